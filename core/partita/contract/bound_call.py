"""Bound calls: runs whose tensors stay at the same addresses."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.tensors.tensor import Tensor


class BoundCall(abc.ABC):
    """A run bound to its tensors: nothing has to be checked or looked up before it starts."""

    @abc.abstractmethod
    def __call__(self) -> None:
        """(required) Computes the outputs from the present elements of the inputs.

        Raises:
            BoundCallEndedError: An output now has another shape; the caller must use ``run``.
            InferError: The device could not compute them.
        """

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """(optional) Binds the call to other inputs of the same shapes (defaults to ``False``).

        Args:
            inputs: One tensor per input port; some may be those that it is bound to already.

        Returns:
            Whether it is bound to them now; if not, it stays bound to the former ones.
        """
        return False
