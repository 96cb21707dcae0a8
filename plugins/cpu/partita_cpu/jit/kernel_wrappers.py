"""Wrappers of kernels: one compiled form per element size, and readable errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from partita.errors import InferError
from partita.lowering import Operand

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class ItemSized:
    """A kernel for arrays of any dtype, which it sees as unsigned integers of the same size.

    Args:
        kernel: A compiled function; its first arguments are flat arrays of unsigned integers.
        arrays: How many of its arguments are such arrays.
    """

    def __init__(self, kernel: Any, arrays: int) -> None:
        self.kernel = kernel
        self.arrays = arrays
        self.__name__ = getattr(kernel, "__name__", type(self).__name__)

    def __call__(self, *args: Any) -> None:
        """Calls the kernel on the bits of the first arguments."""
        count = self.arrays
        bits = [array.view(_BITS[array.itemsize]) for array in args[:count]]
        self.kernel(*bits, *args[count:])

    def seen(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of a step as the kernel sees them: operands of its types, without memory.

        Compiled code checks sizes of elements only, so that it takes the arrays as they are.
        """
        count = self.arrays
        bits = [Operand(x.shape, np.dtype(_BITS[x.dtype.itemsize])) for x in args[:count]]
        return [*bits, *args[count:]]


class Checked(ItemSized):
    """A kernel that raises an error for some elements; what it writes before shows which.

    Args:
        kernel: A compiled function.
        explain: Raises the error for people; called with the arguments of the step, whose inputs
            may be operands.
        arrays: How many of its first arguments it sees as unsigned integers.
    """

    def __init__(self, kernel: Any, explain: Callable[..., NoReturn], arrays: int = 0) -> None:
        super().__init__(kernel, arrays)
        self.explain = explain

    def __call__(self, *args: Any) -> None:
        """Calls the kernel."""
        try:
            super().__call__(*args)
        except (InferError, ValueError):  # of our call of machine code, or of numba's
            self.explain(*args[:-2])
