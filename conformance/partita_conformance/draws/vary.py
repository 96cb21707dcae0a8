"""Variations of a draw: another element type, another opset, an attribute less."""

from __future__ import annotations

import dataclasses
import functools
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


def formal_input(schema: defs.OpSchema, position: int) -> Any:
    """The formal input of a position; the last one, if it is variadic, stands for all others."""
    return schema.inputs[min(position, len(schema.inputs) - 1)]


def element_types(op_type: str, draw: Draw) -> list[str]:
    """ONNX's names of the types that the first input may have by the operator's schemas.

    That of the draw alone, if its attributes hold a body.
    """
    if _bound(draw):
        return [draw.element_type]
    return [name for name in TYPES if opset_of(op_type, draw, name) is not None]


NEWEST = min(defs.onnx_opset_version(), 24)
"""The newest opset that is tried."""


@functools.cache
def _versions(op_type: str, opset: int) -> tuple[int, ...]:
    """The opset, and those after it in which the operator changed."""
    found: dict[int, int] = {}
    for number in range(opset, max(opset, NEWEST) + 1):
        schema = schema_of(op_type, number)
        if schema is not None:
            found.setdefault(schema.since_version, number)
    return tuple(found.values())


def opset_of(op_type: str, draw: Draw, element: str) -> int | None:
    """The first opset from the draw's on that can say it of an element type, or ``None``."""
    for opset in _versions(op_type, draw.opset):
        schema = schema_of(op_type, opset)
        assert schema is not None  # noqa: S101  # _versions gives no others
        if f"tensor({element})" in formal_input(schema, first_input(op_type, draw)).types:
            return opset if opset == draw.opset or _says(schema, draw) else None
    return None


def _says(schema: defs.OpSchema, draw: Draw) -> bool:
    """Whether another version of the operator has the draw's attributes and inputs."""
    given = set(draw.attributes) <= set(schema.attributes)
    return given and schema.min_input <= len(draw.inputs) <= schema.max_input


def first_input(op_type: str, draw: Draw) -> int:
    """The position of the first input that may have several types; else of the first there is."""
    schema = schema_of(op_type, draw.opset)
    there = [i for i, array in enumerate(draw.inputs) if array is not None]
    if schema is None:
        return there[0]
    several = (i for i in there if len(formal_input(schema, i).types) > 1)
    return next(several, there[0])


def _bound(draw: Draw) -> bool:
    """Whether the draw's types are bound by a body, which is of its own types."""
    return any(isinstance(value, onnx.GraphProto) for value in draw.attributes.values())


def variables(op_type: str, draw: Draw) -> list[tuple[str, str]]:
    """Type variables beside that of :func:`first_input`, each with one of its other types.

    A variable stands for the types of one or more inputs, which go together.
    """
    schema = schema_of(op_type, draw.opset)
    if schema is None or _bound(draw):
        return []
    first = formal_input(schema, first_input(op_type, draw)).type_str
    found: list[tuple[str, str]] = []
    for i, array in enumerate(draw.inputs):
        formal = formal_input(schema, i)
        if array is None or formal.type_str == first:
            continue
        for name, dtype in TYPES.items():
            if f"tensor({name})" in formal.types and dtype is not array.dtype.type:
                found.append((formal.type_str, name))
    return list(dict.fromkeys(found))


def converted(array: Array, dtype: Any) -> Array:
    """Numbers of another type that differ from one another as those given do."""
    kind = np.dtype(dtype)
    if kind == array.dtype:
        return array
    if array.dtype == np.dtype(object):
        array = np.array([_number(text) for text in array.reshape(-1)]).reshape(array.shape)
    if kind == np.dtype(object):
        texts = [f"t{value:g}" for value in array.reshape(-1).astype(np.float64)]
        return np.array(texts, object).reshape(array.shape)
    if kind.kind == "b":
        return np.asarray(array > np.median(array) if array.size > 1 else array != 0)
    if kind.kind in "iu":
        whole = array if array.dtype.kind in "iub" else np.round(array.astype(np.float64) * 5)
        limits = np.iinfo(kind)
        bounded = np.abs(whole) if kind.kind == "u" else whole
        most = min(limits.max, 2**62)  # which int64 holds too
        return np.asarray(np.clip(bounded, limits.min, most).astype(kind))
    if kind == np.float64 and np.any(array != np.round(array)):
        return array.astype(kind) * (1 + 2.0**-31)  # digits that float32 does not hold
    return np.asarray(array.astype(kind))


def _number(text: str) -> int:
    """The number at the end of a drawn text."""
    return int("".join(filter(str.isdigit, text)) or 0)


def _pool(attributes: Mapping[str, Any], element: str) -> dict[str, Any]:
    """What inputs of another type are looked up in: texts in texts, numbers in numbers."""
    found = dict(attributes)
    texts, numbers = found.get("pool_strings"), found.get("pool_int64s")
    if texts and element != "string":
        del found["pool_strings"]
        found["pool_int64s"] = [_number(text) for text in texts]
    if numbers and element == "string":
        del found["pool_int64s"]
        found["pool_strings"] = [f"t{number}" for number in numbers]
    return found


def typed(op_type: str, draw: Draw, element: str, variable: str = "") -> Draw:
    """The draw with inputs of another type: all those whose types go together by the schema.

    Args:
        op_type: The operator.
        draw: The draw.
        element: The type, one of :data:`TYPES`.
        variable: Which inputs, by the type variable of the schema; by default those that go with
            :func:`first_input`.
    """
    opset = draw.opset if variable else opset_of(op_type, draw, element) or draw.opset
    schema = schema_of(op_type, opset)
    assert schema is not None  # noqa: S101  # element_types gives nothing otherwise
    variable = variable or formal_input(schema, first_input(op_type, draw)).type_str
    inputs = [
        converted(array, TYPES[element])
        if array is not None and formal_input(schema, i).type_str == variable
        else array
        for i, array in enumerate(draw.inputs)
    ]
    if op_type == "QuantizeLinear" and element in ("float16", "bfloat16") and inputs[1] is not None:
        # Whether the quotient is rounded to half precision before it is rounded, ONNX does not say.
        inputs[1] = np.exp2(np.round(np.log2(inputs[1].astype(np.float32)))).astype(TYPES[element])
    whole = _WHOLE_ATTRIBUTES.get(op_type, {}) if np.dtype(TYPES[element]).kind in "iu" else {}
    attributes = {**_pool(draw.attributes, element), **whole}
    return dataclasses.replace(draw, inputs=inputs, attributes=attributes, opset=opset)


_WHOLE_ATTRIBUTES = {"Shrink": {"lambd": 1.0, "bias": 2.0}, "Gemm": {"alpha": 1.0, "beta": 1.0}}
"""Attributes of draws of integers: what a fraction makes of them, ONNX does not say."""


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
    "Upsample": ((9, ("scales",)),),
    **dict.fromkeys(
        ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
        ((18, ("axes",)),),
    ),
}
"""Operators whose inputs behind the first were attributes before an opset, and their names."""


_MEANT_BEFORE = {("RoiAlign", "coordinate_transformation_mode"): "output_half_pixel"}
"""What an operator did before there was an attribute whose default says otherwise."""


def aged(op_type: str, draw: Draw, opset: int) -> Draw | None:
    """The draw as an older opset writes it; ``None`` if that cannot say it."""
    schema = schema_of(op_type, opset)
    if schema is None or opset >= draw.opset:
        return None
    inputs, attributes = list(draw.inputs), dict(draw.attributes)
    newer = schema_of(op_type, draw.opset)

    def usual(name: str, value: Any) -> bool:
        """Whether an attribute says what is done without it, where there is none."""
        if (op_type, name) in _MEANT_BEFORE:
            return bool(value == _MEANT_BEFORE[op_type, name])
        given = newer.attributes[name].default_value if newer else None
        if given is None or not given.type:
            return False
        default = helper.get_attribute_value(given)
        return bool((default.decode() if isinstance(default, bytes) else default) == value)

    if op_type == "Resize" and opset == 10:
        return _resized_by_scales(draw)
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
    attributes = {n: v for n, v in attributes.items() if n in schema.attributes or not usual(n, v)}
    if not set(attributes) <= set(schema.attributes):
        return None
    least, most = schema.min_input, schema.max_input
    if not least <= len(inputs) <= most:
        return None
    axes = [v for n, v in attributes.items() if n in ("axis", "axes")]
    if opset < 11 and any(np.any(np.asarray(value) < 0) for value in axes):
        return None  # negative axes came with opset 11
    for i, array in enumerate(inputs):
        if array is not None and not _allowed(formal_input(schema, i), array.dtype):
            return None
    return dataclasses.replace(draw, inputs=inputs, attributes=attributes, opset=opset)


def _resized_by_scales(draw: Draw) -> Draw | None:
    """Resize of opset 10, which has the scales for its second input and names no way to round."""
    mode = draw.attributes["mode"]
    scaled = len(draw.inputs) == 3 and mode in ("nearest", "linear")
    if not scaled:
        return None
    return Draw([draw.inputs[0], draw.inputs[2]], {"mode": mode}, [1], opset=10)


def _ones(array: Array | None) -> bool:
    return array is None or bool(np.all(array == 1))


def _allowed(formal: Any, dtype: Any) -> bool:
    element = helper.np_dtype_to_tensor_dtype(dtype)
    name = str(onnx.TensorProto.DataType.Name(element)).lower()
    return f"tensor({name})" in formal.types


_TYPE = defs.OpSchema.AttrType


def in_singles(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 instead of half precision, in ports and constants."""
    halves = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    for value in (*wide.graph.input, *wide.graph.output, *wide.graph.value_info):
        if value.type.tensor_type.elem_type in halves:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for tensor in wide.graph.initializer:
        if tensor.data_type in halves:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return wide
