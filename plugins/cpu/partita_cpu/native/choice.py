"""What compiled models may use: instruction sets, arithmetic and threads."""

from __future__ import annotations

from dataclasses import dataclass

from partita_cpu.native.isa import Isa
from partita_cpu.native.table import Arithmetic


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
