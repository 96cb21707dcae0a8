"""Arithmetic of elements and statistics that ``onnx.reference`` does otherwise than ONNX says."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14
from onnx.reference.ops.op_cum_sum import CumSum as OriginalCumSum
from onnx.reference.ops.op_pow import Pow as OriginalPow
from onnx.reference.ops.op_prelu import PRelu as OriginalPRelu

Array = np.ndarray[Any, Any]


class BatchNormalization(BatchNormalization_14):
    """Before opset 14 the original mixes the batch's statistics in, as if it were training."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        var: Array,
        epsilon: float | None = None,
        momentum: float | None = None,
        training_mode: int | None = None,
        **_: Any,
    ) -> tuple[Array, ...]:
        if training_mode:
            trained: tuple[Array, ...] = super()._run(  # type: ignore[no-untyped-call]  # onnx
                x, scale, bias, mean, var, epsilon, momentum, training_mode
            )
            return trained
        shape = (-1, *(1,) * (x.ndim - 2))
        added = np.float64(np.float32(1e-5 if epsilon is None else epsilon))
        factor = scale / np.sqrt(var + added)  # in float64, whatever the statistics' type
        y = (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return (y.astype(x.dtype),)


class CumSum(OriginalCumSum):
    """The original refuses an axis in a list of its own, as PyTorch exports that of logcumsumexp.

    onnxruntime takes it. A scalar, which has no axis, becomes a list of one element.
    """

    def _run(
        self, x: Array, axis: Array, exclusive: int | None = None, reverse: int | None = None
    ) -> tuple[Array]:
        if not x.ndim:
            raise np.exceptions.AxisError(int(axis.reshape(-1)[0]), 0)
        along = axis.reshape(()) if axis.shape == (1,) else axis
        sums: tuple[Array] = super()._run(  # type: ignore[no-untyped-call]  # onnx
            x, along, exclusive, reverse
        )
        return sums


class PRelu(OriginalPRelu):
    """The original multiplies what is 0, has NaN where the slope is infinite, and may grow."""

    def _run(self, x: Array, slope: Array) -> tuple[Array]:
        if np.broadcast_shapes(x.shape, slope.shape) != x.shape:
            raise ValueError(
                f"a slope of shape {list(slope.shape)} does not broadcast to {list(x.shape)}"
            )
        (below,) = super()._run(x, slope)  # type: ignore[no-untyped-call]  # onnx
        return (np.where(x < 0, below, x),)


class Pow(OriginalPow):
    """The original takes numpy's square root for powers of one half, which has no -inf.

    It has no negative powers of integers, which are what is left of fractions.
    """

    def _run(self, base: Array, exponent: Array) -> tuple[Array]:
        due = np.broadcast_shapes(base.shape, exponent.shape)
        shape = due or (1,)  # numpy's shortcuts are for single numbers
        each, numbers = np.broadcast_to(exponent, shape).copy(), np.broadcast_to(base, shape)
        below = (each < 0) & (base.dtype.kind in "iu" and each.dtype.kind == "i")
        original: Any = super()._run
        (y,) = original(numbers, np.where(below, each.dtype.type(0), each))
        if below.any():
            parts = np.power(numbers.astype(np.float64), each.astype(np.float64))
            y = np.where(below, parts.astype(y.dtype), y)
        return (y.reshape(due),)
