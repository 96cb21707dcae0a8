"""Variations of a draw: another element type, an older opset, an attribute less, other values."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import defs, helper

from partita_conformance.draws.draw import Array, Draw

TYPES: Mapping[str, Any] = {
    "float": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "double": np.float64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "bool": np.bool_,
    "string": np.object_,
}
"""Element types that operators are tried with, by ONNX's names."""


@functools.cache
def schema_of(op_type: str, opset: int) -> defs.OpSchema | None:
    """The operator's schema in an opset, or ``None`` if it is not there (any more)."""
    if not defs.has(op_type, opset):
        return None
    schema = defs.get_schema(op_type, opset, "")
    return None if schema.deprecated else schema


def _formal(schema: defs.OpSchema, position: int) -> Any:
    """The formal input of a position; the last one, if it is variadic, stands for all others."""
    return schema.inputs[min(position, len(schema.inputs) - 1)]


def element_types(op_type: str, draw: Draw) -> list[str]:
    """ONNX's names of the types that the first input may have by the operator's schema."""
    schema = schema_of(op_type, draw.opset)
    if schema is None:
        return []
    allowed = set(_formal(schema, _first(draw)).types)
    return [name for name in TYPES if f"tensor({name})" in allowed]


def _first(draw: Draw) -> int:
    return next(i for i, array in enumerate(draw.inputs) if array is not None)


def converted(array: Array, dtype: Any) -> Array:
    """Numbers of another type that differ from one another as those given do."""
    kind = np.dtype(dtype)
    if kind == array.dtype:
        return array
    if kind == np.dtype(object):
        texts = [f"t{value:g}" for value in array.reshape(-1).astype(np.float64)]
        return np.array(texts, object).reshape(array.shape)
    if kind.kind == "b":
        return np.asarray(array > np.median(array) if array.size > 1 else array != 0)
    if kind.kind in "iu":
        whole = array if array.dtype.kind in "iub" else np.round(array.astype(np.float64) * 5)
        limits = np.iinfo(kind)
        bounded = np.abs(whole) if kind.kind == "u" else whole
        return np.asarray(np.clip(bounded, limits.min, limits.max).astype(kind))
    return np.asarray(array.astype(kind))


def typed(op_type: str, draw: Draw, element: str) -> Draw:
    """The draw with the first input, and all that the schema gives its type, of another type."""
    schema = schema_of(op_type, draw.opset)
    assert schema is not None  # noqa: S101  # element_types gives nothing otherwise
    variable = _formal(schema, _first(draw)).type_str
    inputs = [
        converted(array, TYPES[element])
        if array is not None and _formal(schema, i).type_str == variable
        else array
        for i, array in enumerate(draw.inputs)
    ]
    return dataclasses.replace(draw, inputs=inputs)


def without(draw: Draw, attribute: str) -> Draw:
    """The draw as a device reads it that does not know an attribute."""
    kept = {name: value for name, value in draw.attributes.items() if name != attribute}
    return dataclasses.replace(draw, attributes=kept)


_ATTRIBUTES_BEFORE: Mapping[str, Sequence[tuple[int, Sequence[str]]]] = {
    "Clip": ((11, ("min", "max")),),
    "Pad": ((11, ("pads", "value")),),
    "Slice": ((10, ("starts", "ends", "axes")),),
    "Split": ((13, ("split",)),),
    "Squeeze": ((13, ("axes",)),),
    "Unsqueeze": ((13, ("axes",)),),
    "ReduceSum": ((13, ("axes",)),),
    "TopK": ((10, ("k",)),),
    **dict.fromkeys(
        ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
        ((18, ("axes",)),),
    ),
}
"""Operators whose inputs behind the first were attributes before an opset, and their names."""


def aged(op_type: str, draw: Draw, opset: int) -> Draw | None:
    """The draw as an older opset writes it; ``None`` if that cannot say it."""
    schema = schema_of(op_type, opset)
    if schema is None or opset >= draw.opset:
        return None
    inputs, attributes = list(draw.inputs), dict(draw.attributes)
    for before, names in _ATTRIBUTES_BEFORE.get(op_type, ()):
        if opset < before <= draw.opset:
            for name, array in zip(names, inputs[1:], strict=False):
                if array is not None:
                    attributes[name] = array.reshape(-1).tolist()
                    if schema.attributes[name].type in (_TYPE.FLOAT, _TYPE.INT):
                        attributes[name] = attributes[name][0]
            if len(inputs) > 1 + len(names) and not _ones(inputs[1 + len(names)]):
                return None  # e.g. the steps of Slice
            inputs = inputs[:1]
    if not set(attributes) <= set(schema.attributes):
        return None
    least, most = schema.min_input, schema.max_input
    if not least <= len(inputs) <= most:
        return None
    axes = [v for n, v in attributes.items() if n in ("axis", "axes")]
    if opset < 11 and any(np.any(np.asarray(value) < 0) for value in axes):
        return None  # negative axes came with opset 11
    for i, array in enumerate(inputs):
        if array is not None and not _allowed(_formal(schema, i), array.dtype):
            return None
    return dataclasses.replace(draw, inputs=inputs, attributes=attributes, opset=opset)


def _ones(array: Array | None) -> bool:
    return array is None or bool(np.all(array == 1))


def _allowed(formal: Any, dtype: Any) -> bool:
    element = helper.np_dtype_to_tensor_dtype(dtype)
    name = str(onnx.TensorProto.DataType.Name(element)).lower()
    return f"tensor({name})" in formal.types


_TYPE = defs.OpSchema.AttrType
_FLOATS: Mapping[str, Sequence[float]] = {
    "special": (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.5),
    "large": (3e38, -3e38, 1e30, -1e25, 16777217.0, 2147483904.0, -2147484160.0, 90.0, -104.0),
    "small": (1e-30, -1e-37, 1e-20, -0.0, 0.5, -1e-12),
    "ties": (0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 8388609.0, -0.49999997, 3.0, 3.0),
}
GROUPS = tuple(_FLOATS)
"""Groups of values that break things."""
INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")
"""Element types whose limits break things."""
_DIVISORS = {("Div", 1), ("Mod", 1)}
"""Inputs that must not be zero, nor -1 beside the smallest number, which has no answer."""
_FIXED = {"Clip", "Pad", "OneHot", "PRelu"}
"""Operators whose constants have no answer if they are special."""
_BOUNDED = {("BitShift", 1), ("Pow", 1)}
"""Inputs whose limits have no answer."""


def revalued(op_type: str, draw: Draw, group: str, number: int) -> Draw | None:
    """The draw with values that break things instead of its first input's and its like."""
    schema = schema_of(op_type, draw.opset)
    first = draw.inputs[_first(draw)]
    if schema is None or first is None:
        return None
    variable = _formal(schema, _first(draw)).type_str
    rng = np.random.default_rng(zlib.crc32(f"{op_type}/{group}/{number}".encode()))
    inputs: list[Array | None] = []
    for i, array in enumerate(draw.inputs):
        same = array is not None and _formal(schema, i).type_str == variable
        fixed = (op_type, i) in _BOUNDED or (i in draw.constant and op_type in _FIXED)
        if array is None or not same or fixed:
            inputs.append(array)
            continue
        pool = _pool(group, array.dtype)
        if (op_type, i) in _DIVISORS and array.dtype.kind in "iu":
            pool = pool[(pool != 0) & (pool + 1 != 0)]
        inputs.append(_filled(rng, array, pool))
    return dataclasses.replace(draw, inputs=inputs)


def _pool(group: str, dtype: np.dtype[Any]) -> Array:
    if dtype.kind not in "iu":
        return np.asarray(_FLOATS[group]).astype(dtype)
    limits = np.iinfo(dtype)
    bits = dtype.itemsize * 8
    values = [0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.min, limits.min + 1]
    values += [
        2**24 + 1,
        2**24 + 2,
        2**53 + 1,
        2**53 + 2,
        2 ** (bits - 2) + 1,
        2 ** (bits // 2) + 1,
    ]
    if dtype.kind == "i":
        values += [-1, -2, -3, -(2**24) - 1, -(2**53) - 1]
    kept = [value for value in values if limits.min <= value <= limits.max]
    return np.array(kept, dtype)


def _filled(rng: np.random.Generator, array: Array, pool: Array) -> Array:
    """The pool in random order, as often as it takes."""
    order = np.concatenate([rng.permutation(len(pool)) for _ in range(array.size // len(pool) + 1)])
    return np.asarray(pool[order[: array.size]].reshape(array.shape))
