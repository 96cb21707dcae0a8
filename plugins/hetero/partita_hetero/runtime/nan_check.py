"""Reports NaN in outputs for finite inputs: once, with the submodel that it comes from.

A model may mean it, so it is no failure unless REJECT_NAN says so. Only the model's outputs are
looked at, in the first, second, fourth, eighth, ... run of a request, which costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.tensors.tensor import Tensor


class NanWatch:
    """Which runs of one request are looked at."""

    def __init__(self) -> None:
        self._runs = 0

    def is_due(self) -> bool:
        """Counts a run; whether to look at it."""
        self._runs = runs = self._runs + 1
        return runs & (runs - 1) == 0


def nan_from_finite(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int | None:
    """The first output that holds NaN, if all inputs are finite.

    State that is updated in place is an input and an output, and not looked at.
    """
    given = {id(tensor) for tensor in inputs}
    for index, tensor in enumerate(outputs):
        if id(tensor) in given:
            continue
        if tensor.dtype.kind == "f" and np.isnan(tensor.numpy()).any():
            finite = (t.dtype.kind != "f" or np.isfinite(t.numpy()).all() for t in inputs)
            return index if all(finite) else None
    return None
