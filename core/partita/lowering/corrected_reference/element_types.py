"""Operators that ``onnx.reference`` has for some of ONNX's element types, or shapes, only."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops._op import OpRunReduceNumpy

Array = np.ndarray[Any, Any]


def lowest(dtype: np.dtype[Any]) -> Any:
    """What is below all numbers of a type."""
    if dtype.kind == "f" or dtype == ml_dtypes.bfloat16:
        return -np.inf
    return False if dtype.kind == "b" else np.iinfo(dtype).min


class Mean(OpRun):
    """The original adds to its first input, which may be of fewer dimensions than the result."""

    def _run(self, *inputs: Array) -> tuple[Array]:
        total = functools.reduce(np.add, inputs)
        return ((total / len(inputs)).astype(inputs[0].dtype),)


class OneHot(OpRun):
    """The original takes scalars, computes with the two values, and leaves indices' fractions."""

    def _run(
        self, indices: Array, depth: Array, values: Array, axis: int | None = None
    ) -> tuple[Array]:
        if not np.ndim(indices):
            raise ValueError("indices are to have a dimension")
        count = int(np.asarray(depth).reshape(-1)[0])
        whole = indices.astype(np.int64)  # as ONNX says of indices that are no integers
        places = np.where(whole < 0, whole + count, whole)[..., None]
        chosen = places == np.arange(count)
        off, on = values
        result = np.where(chosen, np.asarray(on, values.dtype), np.asarray(off, values.dtype))
        return (np.moveaxis(result, -1, -1 if axis is None else axis),)


class Shrink(OpRun):
    """The original lets integers of 64 bits go through floats."""

    def _run(self, x: Array, bias: float | None = None, lambd: float | None = None) -> tuple[Array]:
        b, limit = float(bias or 0), 0.5 if lambd is None else float(lambd)
        if x.dtype.kind not in "iu" or b != int(b):
            shrunk = np.where(x < -limit, x + b, np.where(x > limit, x - b, 0))
            return (shrunk.astype(x.dtype),)
        taken = np.array(int(b) % 2 ** (8 * x.dtype.itemsize), np.uint64).astype(x.dtype)
        result = np.where(x > limit, x - taken, np.where(x < -limit, x + taken, x.dtype.type(0)))
        return (result,)


class _Reduction(OpRunReduceNumpy):
    """Resolves which axes are reduced, and whether they stay."""

    def _run(
        self,
        data: Array,
        axes: Any = None,
        keepdims: int | None = 1,
        noop_with_empty_axes: int | None = 0,
    ) -> tuple[Array]:
        along = self.handle_axes(axes, noop_with_empty_axes)  # type: ignore[no-untyped-call]  # onnx
        return (self._reduced(data, along, keepdims is None or bool(keepdims)),)

    def _reduced(self, data: Array, along: Any, keep: bool) -> Array:
        raise NotImplementedError  # each operator below has its own


class _ReduceLog(_Reduction):
    """Of integers, which ONNX allowed before opset 28, the result's fraction is cut off."""

    def _reduced(self, data: Array, along: Any, keep: bool) -> Array:
        if data.dtype.kind not in "iu":
            return self._of_floats(data, along, keep)
        wide = self._of_floats(data.astype(np.longdouble), along, keep)
        return np.asarray(np.trunc(wide).astype(data.dtype))

    def _of_floats(self, data: Array, along: Any, keep: bool) -> Array:
        raise NotImplementedError  # each operator below has its own


class ReduceLogSum(_ReduceLog):
    """See the base class."""

    def _of_floats(self, data: Array, along: Any, keep: bool) -> Array:
        return np.asarray(np.log(np.sum(data, axis=along, keepdims=keep, dtype=data.dtype)))


class ReduceLogSumExp(_ReduceLog):
    """The original takes the largest element away, also where that is infinite."""

    def _of_floats(self, data: Array, along: Any, keep: bool) -> Array:
        largest = np.max(data, axis=along, keepdims=True, initial=-np.inf)
        shift = np.where(np.isfinite(largest), largest, 0).astype(data.dtype)
        sums = np.sum(np.exp(data - shift), axis=along, keepdims=True, dtype=data.dtype)
        result = np.log(sums) + shift
        return np.asarray(result if keep else np.squeeze(result, axis=along))


class ReduceMean(_Reduction):
    """The original warns of the mean of no elements, and casts that NaN; of integers it is 0."""

    def _reduced(self, data: Array, along: Any, keep: bool) -> Array:
        if not data.size:
            shape = np.sum(data, axis=along, keepdims=keep).shape
            return np.full(shape, 0 if data.dtype.kind in "iu" else np.nan, data.dtype)
        return np.asarray(np.mean(data, axis=along, keepdims=keep, dtype=data.dtype))


class Softsign(OpRun):
    """The original fails on scalars, into which it would divide in place."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x / (1 + np.abs(x)), x.dtype),)


class Squeeze(OpRun):
    """The original of old opsets takes axes away one by one, which renumbers negative ones."""

    def _run(self, data: Array, axes: Any = None) -> tuple[Array]:
        absent = axes is None or (not isinstance(axes, np.ndarray) and not axes)
        along = None if absent else tuple(int(axis) for axis in np.reshape(axes, -1))
        return (np.squeeze(data, axis=along),)


class Upsample(OpRun):
    """The original repeats elements by whole numbers, and knows no other way."""

    def _run(
        self, x: Array, scales: Any = None, mode: str | None = None, **given: Any
    ) -> tuple[Array]:
        factors = given.get("scales") if scales is None else scales
        result = x if mode != "linear" else x.astype(np.float64)
        for axis, factor in enumerate(np.asarray(factors, np.float64)):
            size = x.shape[axis]
            places = np.arange(int(size * factor)) / factor
            low = np.minimum(np.floor(places).astype(np.int64), size - 1)
            near = np.take(result, low, axis)
            if mode == "linear" and factor != 1:
                far = np.take(result, np.minimum(low + 1, size - 1), axis)
                part = (places - low).reshape(-1, *(1,) * (x.ndim - axis - 1))
                near = near * (1 - part) + far * part
            result = near
        if x.dtype.kind in "iu" and mode == "linear":  # 2.9999999 is what rounding makes of 3
            result = np.trunc(result + np.copysign(2.0**-20, result))
        return (result.astype(x.dtype),)


BY_TYPE: list[type[OpRun]] = [
    Mean,
    OneHot,
    ReduceLogSum,
    ReduceLogSumExp,
    ReduceMean,
    Shrink,
    Softsign,
    Squeeze,
    Upsample,
]
