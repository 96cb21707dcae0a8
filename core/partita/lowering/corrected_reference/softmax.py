"""Softmax and its kin, which ``onnx.reference`` computes by the newest opset's rule alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from partita.lowering.corrected_reference.axes import axis_of

Array = np.ndarray[Any, Any]


class _Flattened(OpRun):
    """Before opset 13 softmax takes all dimensions from ``axis`` on, by default 1, together."""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        if x.size == 0:
            return (x,)
        if self.run_params["opsets"].get("", 13) >= 13:
            along = axis_of(x.ndim, -1 if axis is None else axis)
            return (self._along(x, along).astype(x.dtype),)
        given = any(attribute.name == "axis" for attribute in self.onnx_node.attribute)
        # Where it is left out, it is filled in by newer defaults.
        start = axis_of(x.ndim, axis if given and axis is not None else 1)
        rows = x.reshape(math.prod(x.shape[:start]), -1)
        return (self._along(rows, 1).reshape(x.shape).astype(x.dtype),)

    def _along(self, x: Array, axis: int) -> Array:
        raise NotImplementedError  # each operator below has its own


class Softmax(_Flattened):
    """See the base class.

    Definitions of Attention have attribute ``closed_is_zero``, by which all is 0 where all along
    the axis is -inf; without it, it is NaN.
    """

    def _run(
        self, x: Array, axis: int | None = None, closed_is_zero: int | None = None
    ) -> tuple[Array]:
        (y,) = super()._run(x, axis)
        if closed_is_zero and x.size:
            closed = np.isneginf(x).all(axis=-1 if axis is None else axis, keepdims=True)
            y = np.where(closed, y.dtype.type(0), y)
        return (y,)

    def _along(self, x: Array, axis: int) -> Array:
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        result: Array = powers / powers.sum(axis=axis, keepdims=True)
        return result


class LogSoftmax(_Flattened):
    """See the base class."""

    def _along(self, x: Array, axis: int) -> Array:
        shifted = x - x.max(axis=axis, keepdims=True)
        result: Array = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
        return result


class Hardmax(_Flattened):
    """See the base class."""

    def _along(self, x: Array, axis: int) -> Array:
        result = np.zeros_like(x)
        np.put_along_axis(result, np.expand_dims(x.argmax(axis=axis), axis), 1, axis=axis)
        return result
