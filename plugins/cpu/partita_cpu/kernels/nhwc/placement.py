"""The tensors and channels that steps on images with channels last read and write."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from partita.errors import CompileError
from partita.lowering import Builder, Node, Operand
from partita.lowering.shapes.symbolic_size import settled
from partita_cpu.gemm.precision_policy import PrecisionPolicy, native_policy
from partita_cpu.kernels.operator_table import F32

DOMAIN = "partita.nhwc"

SLICES = "partita.slices"
"""Domain of what is computed slice by slice of a volume that is seen as a tall image."""

HALF = np.dtype(np.uint16)
"""What images in bfloat16 hold: its bits. Only operators of this domain see them."""

STORED = F32 | {HALF}


def choice_of(b: Builder) -> PrecisionPolicy:
    """How native kernels compute.

    Raises:
        CompileError: There are none.
    """
    policy = native_policy(b.options)
    if policy is None:
        raise CompileError(
            f"Operation '{b.node.name}' ({b.node.model_kind}) needs native kernels, and there "
            "are none for this machine."
        )
    return policy


@dataclass(frozen=True)
class Place:
    """Where a node reads and writes channels: all of its tensors, or some of a larger one.

    Attributes:
        x: What is read.
        first: The first channel that is read.
        channels: How many are.
        y: What is written to, or ``None`` for a tensor of its own.
        into: The channel that the first result is written to.
    """

    x: Operand
    first: int
    channels: int
    y: Operand | None
    into: int

    @classmethod
    def of(cls, node: Node, x: Operand, y: Operand | None) -> Place:
        """As `slices` has noted it at a node."""
        first, channels = node.attrs.get("channels", (0, x.shape[3]))
        return cls(x, first, channels, y, node.attrs.get("into", 0))

    def settled(self) -> Place:
        """The same with a number of channels, where those of constant weights are as many.

        They may be told by sizes, as where a Reshape leaves them to the rest of its elements.
        """
        return replace(self, channels=settled(self.channels))

    def output(self, b: Builder, shape: tuple[int, ...], half: bool) -> Operand:
        """What is written to."""
        return b.empty(shape, HALF if half else np.float32) if self.y is None else self.y
