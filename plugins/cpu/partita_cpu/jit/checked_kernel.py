"""Kernels that refuse some elements, and say which where people can read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from partita.errors import InferError
from partita_cpu.jit.item_sized import ItemSized


class Checked(ItemSized):
    """A kernel that raises an error for some elements; what it writes before tells which.

    Args:
        kernel: A compiled function.
        explain: Raises the error for people; called with the arguments of the step, whose inputs
            may be operands.
    """

    def __init__(self, kernel: Any, explain: Callable[..., NoReturn]) -> None:
        super().__init__(kernel, 0)
        self.explain = explain

    def __call__(self, *args: Any) -> None:
        """Calls the kernel."""
        try:
            super().__call__(*args)
        except (InferError, ValueError):  # of our call of machine code, or of numba's
            self.explain(*args[:-2])
