"""What compiled models may use: instruction sets, arithmetic and threads."""

from __future__ import annotations

from dataclasses import dataclass

from partita.properties.hint import ExecutionMode
from partita_cpu.native.isa import Isa, isa
from partita_cpu.native.table import Arithmetic
from partita_cpu.properties import CpuProperties


@dataclass(frozen=True)
class Choice:
    """How native kernels compute; emitters find it as ``builder.options``.

    Attributes:
        level: Instruction sets that kernels may use.
        arithmetic: What float32 products are computed in.
        threads: Threads that scratch memory is laid out for.
    """

    level: Isa
    arithmetic: Arithmetic
    threads: int

    @property
    def native(self) -> bool:
        """Whether there are native kernels at all."""
        return self.level is not Isa.PORTABLE


def choose(properties: CpuProperties, threads: int) -> Choice:
    """What properties and environment allow on this machine.

    Raises:
        PropertyError: PARTITA_CPU_ISA names no level.
    """
    level = isa()
    arithmetic = Arithmetic.F32
    if level is Isa.AMX and properties.INFERENCE_PRECISION_HINT == "bf16":
        arithmetic = Arithmetic.BF16
    elif level is Isa.AMX and properties.EXECUTION_MODE_HINT is ExecutionMode.PERFORMANCE:
        arithmetic = Arithmetic.BF16X3
    return Choice(level, arithmetic, threads)


def native_choice(options: object) -> Choice | None:
    """A builder's options, if they allow native kernels."""
    return options if isinstance(options, Choice) and options.native else None
