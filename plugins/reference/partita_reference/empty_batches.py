"""Operators that ``onnx.reference`` fails at where a batch has no rows, which others compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml.op_normalizer import Normalizer as OriginalNormalizer
from onnx.reference.ops.op_col2im import Col2Im as OriginalCol2Im
from onnx.reference.ops.op_gathernd import GatherND as OriginalGatherND
from onnx.reference.ops.op_global_average_pool import (
    GlobalAveragePool as OriginalGlobalAveragePool,
)
from onnx.reference.ops.op_softmax_cross_entropy_loss import (
    SoftmaxCrossEntropyLoss as OriginalCrossEntropyLoss,
)

Array = np.ndarray[Any, Any]


class EmptyBatchOp(OpRun):
    """Where there are no rows, one of zeros tells types and the other dimensions of all results."""

    def _run(self, x: np.ndarray[Any, Any], *others: Any, **attributes: Any) -> tuple[Any, ...]:
        original: Any = super()._run  # type: ignore[safe-super]  # the operator behind it
        rows = len(x)
        x = x if rows else np.zeros((1, *x.shape[1:]), x.dtype)
        return tuple(result[:rows] for result in original(x, *others, **attributes))


class GlobalAveragePool(EmptyBatchOp, OriginalGlobalAveragePool):
    """The original divides by the number of images."""


class Col2Im(EmptyBatchOp, OriginalCol2Im):  # type: ignore[misc]  # onnx names each of them
    """The original has no image to begin with."""


class GatherND(OriginalGatherND):
    """The original makes rows of as many indices as there is room for."""

    def _run(self, data: Array, indices: Array, batch_dims: int = 0) -> tuple[Array]:
        if len(indices):
            original: Any = super()._run
            return (original(data, indices, batch_dims)[0],)
        kept = data.shape[batch_dims + indices.shape[-1] :]
        return (np.zeros((*indices.shape[:-1], *kept), data.dtype),)


class SoftmaxCrossEntropyLoss(OriginalCrossEntropyLoss):
    """The original makes rows of as many places as there is room for."""

    def _run(  # type: ignore[override]  # onnx names each of them
        self, x: Array, target: Array, weight: Array | None = None, **given: Any
    ) -> tuple[Array, ...]:
        if len(x):
            original: Any = super()._run
            return tuple(original(x, target, weight, **given))
        results = no_loss(x, target, given.get("reduction") or "mean"), x.copy()
        return results[: len(self.onnx_node.output)]


def no_loss(x: Array, target: Array, reduction: str) -> Array:
    """What is lost where nothing is classified; the mean of nothing is NaN, as numpy has it."""
    if reduction == "none":
        return np.zeros(target.shape, x.dtype)
    return np.array(np.nan if reduction == "mean" else 0, x.dtype)


class Normalizer(EmptyBatchOp, OriginalNormalizer):
    """The original asks for as many columns as there is room for."""


EMPTY_BATCHES: tuple[type[OpRun], ...] = (
    Col2Im,
    GatherND,
    GlobalAveragePool,
    Normalizer,
    SoftmaxCrossEntropyLoss,
)
