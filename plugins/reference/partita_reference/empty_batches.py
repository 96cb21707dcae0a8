"""Operators that ``onnx.reference`` fails at where a batch has no rows, which others compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml.op_normalizer import Normalizer as OriginalNormalizer
from onnx.reference.ops.op_global_average_pool import (
    GlobalAveragePool as OriginalGlobalAveragePool,
)


class TakesNoRows(OpRun):
    """Where there are no rows, one of zeros tells types and the other dimensions of all results."""

    def _run(self, x: np.ndarray[Any, Any], *others: Any, **attributes: Any) -> tuple[Any, ...]:
        original: Any = super()._run  # type: ignore[safe-super]  # the operator behind it
        rows = len(x)
        x = x if rows else np.zeros((1, *x.shape[1:]), x.dtype)
        return tuple(result[:rows] for result in original(x, *others, **attributes))


class GlobalAveragePool(TakesNoRows, OriginalGlobalAveragePool):
    """The original divides by the number of images."""


class Normalizer(TakesNoRows, OriginalNormalizer):
    """The original asks for as many columns as there is room for."""


EMPTY_BATCHES: tuple[type[OpRun], ...] = (GlobalAveragePool, Normalizer)
