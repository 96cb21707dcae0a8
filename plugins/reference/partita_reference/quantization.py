"""Quantization, where ``onnx.reference`` overflows, rounds late or takes rows for columns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.defs
from onnx.helper import np_dtype_to_tensor_dtype
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops._op_list import load_op
from onnx.reference.ops.op_conv import _conv_implementation
from onnx.reference.ops.op_conv_integer import ConvInteger as OriginalConvInteger
from onnx.reference.ops.op_dynamic_quantize_linear import (
    DynamicQuantizeLinear as OriginalDynamicQuantization,
)
from onnx.reference.ops.op_qlinear_conv import QLinearConv as OriginalQLinearConv

Array = np.ndarray[Any, Any]

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

_FAR = 2.0**30
"""Steps beyond every quantized type, and within int32."""


def bounded_quantization(opset: int) -> type[OpRun] | None:
    """QuantizeLinear of an opset; ``None`` if it has none.

    The original makes the smallest number of what int32 does not hold, and of infinity.
    """
    if not onnx.defs.has("QuantizeLinear", opset):
        return None
    base: Any = load_op("", "QuantizeLinear", opset, evaluator_cls=ReferenceEvaluator)

    class QuantizeLinear(base):  # type: ignore[misc]  # made for each version
        def _run(self, x: Array, scale: Array, *rest: Any, **given: Any) -> tuple[Array]:
            most = _FAR * np.min(np.abs(scale.astype(np.float64)), initial=np.inf)
            near = np.clip(x, -most, most).astype(x.dtype) if np.isfinite(most) else x
            result: tuple[Array] = super()._run(near, scale, *rest, **given)
            return result

    QuantizeLinear.__name__ = base.__name__
    return QuantizeLinear


def dividing_as_scales(base: type[OpRun]) -> type[OpRun]:
    """QuantizeLinear of opset 23 or later that divides in the scale's type, as ONNX's text says.

    The original does so only if its input has the same type, and not at all once it is widened.
    """

    class QuantizeLinear(base):  # type: ignore[valid-type,misc]  # made for each version
        def _run(self, x: Array, scale: Array, *rest: Any, **given: Any) -> tuple[Array]:
            if scale.dtype in _HALVES and not given.get("precision"):
                given["precision"] = np_dtype_to_tensor_dtype(scale.dtype)
            result: tuple[Array] = super()._run(x, scale, *rest, **given)
            return result

    return QuantizeLinear


class DynamicQuantizeLinear(OriginalDynamicQuantization):
    """The original's scale of nothing but zeros, by which ONNX's text divides by 0, is 1/255.

    onnxruntime has 1, which the original means to have as well. Of no elements it fails.
    """

    def _run(self, x: Array) -> tuple[Array, ...]:
        if not x.size:
            return np.empty(x.shape, np.uint8), np.ones((), np.float32), np.zeros((), np.uint8)
        results: tuple[Array, ...] = super()._run(x)  # type: ignore[no-untyped-call]  # onnx
        return results if x.any() else (results[0], np.ones_like(results[1]), results[2])


class MatMulInteger(OpRun):
    """The original takes zero points of rows for those of columns."""

    def _run(
        self,
        a: Array,
        b: Array,
        a_zero_point: Array | None = None,
        b_zero_point: Array | None = None,
    ) -> tuple[Array]:
        left, right = a.astype(np.int32), b.astype(np.int32)
        if a_zero_point is not None:
            rows = a_zero_point[:, None] if a_zero_point.ndim == 1 else a_zero_point
            left = left - rows.astype(np.int32)
        if b_zero_point is not None:
            right = right - b_zero_point.astype(np.int32)
        return (np.matmul(left, right),)


class ConvInteger(OriginalConvInteger):
    """The original takes zero points of output channels for images of two dimensions alone."""

    def _run(  # type: ignore[override]  # onnx names each of them
        self,
        x: Array,
        w: Array,
        x_zero_point: Array | None = None,
        w_zero_point: Array | None = None,
        **given: Any,
    ) -> tuple[Array]:
        weights = w.astype(np.int32)
        if w_zero_point is not None:
            weights = weights - _by_channel(w_zero_point, 0, w.ndim).astype(np.int32)
        convolve: Any = super()._run
        result: tuple[Array] = convolve(x, weights, x_zero_point, None, **given)
        return result


def _by_channel(array: Array, place: int, rank: int) -> Array:
    """One number of each channel, or of all, beside the axis of channels."""
    shape = [-1 if axis == place else 1 for axis in range(rank)]
    return array.reshape(shape) if array.size > 1 else array.reshape(())


def _requantized(total: Array, factor: Array, zero: Array) -> Array:
    """Sums of products in a narrow type: the quotient is rounded before the zero point is added."""
    limits = np.iinfo(zero.dtype)
    quotient = np.rint(total * factor.astype(np.float64))
    return np.asarray(np.clip(quotient + zero, limits.min, limits.max).astype(zero.dtype))


def _of_rows(array: Array) -> Array:
    """Scales or zero points of rows, one of each row or one of all."""
    return array[:, None] if array.ndim == 1 else array


class QLinearMatMul(OpRun):
    """The original rounds after it has added the zero point, and takes rows for columns."""

    def _run(
        self,
        a: Array,
        a_scale: Array,
        a_zero_point: Array,
        b: Array,
        b_scale: Array,
        b_zero_point: Array,
        y_scale: Array,
        y_zero_point: Array,
    ) -> tuple[Array]:
        left = a.astype(np.int32) - _of_rows(a_zero_point).astype(np.int32)
        right = b.astype(np.int32) - b_zero_point.astype(np.int32)
        factor = _of_rows(a_scale) * b_scale / _of_rows(y_scale)
        return (_requantized(np.matmul(left, right), factor, _of_rows(y_zero_point)),)


class QLinearConv(OriginalQLinearConv):
    """The original rounds after it has added the zero point; its rows are of two dimensions."""

    def _run(  # type: ignore[override]  # onnx names each of them
        self,
        x: Array,
        x_scale: Array,
        x_zero_point: Array,
        w: Array,
        w_scale: Array,
        w_zero_point: Array,
        y_scale: Array,
        y_zero_point: Array,
        B: Array | None = None,  # noqa: N803  # ONNX's name, by which the evaluator gives it
        **given: Any,
    ) -> tuple[Array]:
        names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
        windows = [given.get(name) or getattr(self, name) for name in names]
        inputs = x.astype(np.int32) - x_zero_point.astype(np.int32)
        weights = w.astype(np.int32) - _by_channel(w_zero_point, 0, w.ndim).astype(np.int32)
        convolve: Any = _conv_implementation
        total = convolve(inputs, weights, B, *windows).astype(np.int32)
        factor = x_scale * _by_channel(w_scale, 1, w.ndim) / y_scale
        return (_requantized(total, np.asarray(factor), y_zero_point),)
