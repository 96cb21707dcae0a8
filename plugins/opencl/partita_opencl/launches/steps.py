"""What emitters record as steps: a kernel to launch, or an element-wise chain yet to be fused."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

from partita.lowering import Operand
from partita_opencl.drivers.program_cache import ProgramKey

Sizes = tuple[tuple[int, ...], tuple[int, ...]]
"""Global and local size of a launch."""

_ALIGNED = 256
"""Bytes of which the place of a constant among others is a multiple."""


class Fault:
    """Stands for the buffer whose first integer becomes the number of an operation that failed.

    From its third integer on, kernels that attend over a cache note a
    :class:`~partita.lowering.cache_faults.CacheFault`.
    """


FAULT = Fault()
"""The argument for it; the engine reads the buffer after a run whose steps have it."""


class StallFlag:
    """Stands for the same buffer, whose second integer is set by groups that waited too long."""


STALL = StallFlag()
"""The argument for it; the engine reads the buffer after a run whose steps have it."""

REPORTS = 7
"""Integers of that buffer. It is one since to bring few bytes to the host takes 9 us."""


@dataclass(frozen=True)
class Counters:
    """Stands for a buffer of zeros in which work-groups count how many of them are done.

    A kernel leaves zeros behind, so that all kernels of a request share one buffer.

    Attributes:
        count: How many the kernel needs.
    """

    count: int


@dataclass(frozen=True)
class ConcatenatedConstants:
    """Stands for a buffer that holds several constants, one behind another.

    Attributes:
        operands: The constants.
    """

    operands: tuple[Operand, ...]

    @functools.cached_property
    def starts(self) -> tuple[int, ...]:
        """The first byte of each constant, and the number of bytes of all."""
        sizes = (-(-operand.nbytes // _ALIGNED) * _ALIGNED for operand in self.operands)
        return tuple(itertools.accumulate(sizes, initial=0))


@dataclass(frozen=True)
class Matrix:
    """A float16 matrix, as the copy engine sees it.

    Attributes:
        position: Which argument of the step it is.
        columns: Halves of a row.
        rows: Rows.
        pitch: Halves from one row to the next.
        high: Rows that are copied at a time.
    """

    position: int
    columns: int
    rows: int
    pitch: int
    high: int


@dataclass(frozen=True)
class TensorMapBuffer:
    """Stands for a buffer of tensor maps for the copy engine; see ``tensor_map.cl``.

    One buffer for all of a kernel's, since a driver takes longer to launch one with more buffers.

    Attributes:
        program: The program that describes a matrix.
        matrices: The matrices in order.
        BYTES: Size of the description of one.
    """

    BYTES: ClassVar[int] = 128

    program: ProgramKey
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True)
class Launch:
    """One kernel call; its arguments are those of the step: operands, numpy scalars, arrays.

    Scalars are numpy scalars of the parameter's size; OpenCL vectors are small numpy arrays.

    Attributes:
        program: The program.
        kernel: The kernel's name.
        sizes: Global and local size.
        product: What is computed, for passes that look for certain kernels; ``None`` for others.
        unless_same: Two positions of operands: nothing is launched where both are one buffer. So a
            copy of an input is left out if a run writes the output over it.
    """

    program: ProgramKey
    kernel: str
    sizes: Sizes
    product: Any = None
    unless_same: tuple[int, int] | None = None

    def __call__(self, *args: Any) -> None:
        """Never called: the engine enqueues launches."""
        raise TypeError(f"kernel '{self.kernel}' runs on an OpenCL device only")


@dataclass(frozen=True)
class Line:
    """One expression of a chain.

    Attributes:
        template: OpenCL C expression with ``{0}``, ``{1}``, ... for its operands.
        operands: What they are: ``n >= 0`` is argument n of the chain, ``~n`` is line n.
        ctype: OpenCL C type of the result.
    """

    template: str
    operands: tuple[int, ...]
    ctype: str


@dataclass(frozen=True)
class Chain:
    """Element-wise expressions; the last line is the result.

    The step's arguments are the output, then the inputs: operands that broadcast to it, or numpy
    scalars.

    Attributes:
        ctypes: OpenCL C element type of each input.
        lines: The expressions in order.
    """

    ctypes: tuple[str, ...]
    lines: tuple[Line, ...]

    def __call__(self, *args: Any) -> None:
        """Never called: the engine makes a launch of it."""
        raise TypeError("element-wise chains run on an OpenCL device only")
