"""Look-ups by indices, which ``onnx.reference`` checks little."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class Gather(OpRun):
    """The original copies a table whole if it is not aligned, as one read from a file may be."""

    def _run(
        self, data: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], axis: int | None = None
    ) -> tuple[np.ndarray[Any, Any]]:
        along = (axis or 0) % data.ndim
        before, after = data.shape[:along], data.shape[along + 1 :]
        found = data[(slice(None),) * along + (np.ravel(indices),)]
        return (found.reshape((*before, *np.shape(indices), *after)),)


class GatherElements(OpRun):
    """The original wraps indices by as many subtractions as it takes, and wants full indices."""

    def _run(
        self, data: np.ndarray[Any, Any], indices: np.ndarray[Any, Any], axis: int | None = None
    ) -> tuple[np.ndarray[Any, Any]]:
        along = (axis or 0) % data.ndim
        limit = data.shape[along]
        if indices.size and not -limit <= indices.min() <= indices.max() < limit:
            raise IndexError(
                f"indices are {indices.min()} to {indices.max()}; allowed are {-limit} to "
                f"{limit - 1}"
            )
        places = list(np.ogrid[tuple(slice(size) for size in indices.shape)])
        places[along] = indices
        return (data[tuple(places)],)
