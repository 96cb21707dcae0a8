"""Bound calls: runs whose tensors stay what they are."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.tensors.tensor import Tensor


class BoundCall(abc.ABC):
    """A run whose tensors stay the same, so that there is nothing to look at before it starts."""

    @abc.abstractmethod
    def __call__(self) -> None:
        """(required) Computes the outputs anew from what the inputs hold now.

        Raises:
            BoundCallEndedError: An output now has another shape; the caller is to run instead.
            InferError: The device could not compute them.
        """

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """(optional) Reads other inputs of the same shapes from now on (defaults to: cannot).

        Args:
            inputs: One tensor per input port; some may be those that it reads already.

        Returns:
            Whether it does; if not, it still reads those that it was made for.
        """
        return False
