"""Element types of an OpenVINO IR, and the constants in its ``.bin`` file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelError, ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.frontends.openvino_ir.document import Layer

Array = np.ndarray[Any, Any]

_TYPES = {
    "f16": "FLOAT16",
    "f32": "FLOAT",
    "f64": "DOUBLE",
    "bf16": "BFLOAT16",
    "f8e4m3": "FLOAT8E4M3FN",
    "f8e5m2": "FLOAT8E5M2",
    "i4": "INT4",
    "u4": "UINT4",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "boolean": "BOOL",
    "string": "STRING",
}
"""The names in attributes, to ONNX's."""

_LEVELS = {
    "f4e2m1": [*(_HALVES := [0, 0.5, 1, 1.5, 2, 3, 4, 6]), *(-number for number in _HALVES)],
    "f8e8m0": [*(2.0 ** (power - 127) for power in range(255)), np.nan],
    "nf4": [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
}
"""Types of weights alone, by the number that each pattern of bits is; they are read as float32.

f4e2m1 and f8e8m0 are those of the OCP Microscaling Formats, version 1.0; nf4 is that of QLoRA
(Dettmers et al., 2023, appendix E).
"""

_PRECISIONS = {"FP16": "f16", "FP32": "f32", "FP64": "f64", "BOOL": "boolean"}
"""The names at ports, where they are more than the attribute's name in capitals."""


def element_type(name: str, owner: object) -> ir.DataType:
    """The ONNX type of a name such as ``f32`` (attributes) or ``FP32`` (ports)."""
    import onnx_ir as ir

    found = _TYPES.get(_PRECISIONS.get(name, name.lower()))
    if found is None:
        raise ModelFormatError(f"{owner} has element type '{name}', which ONNX does not have")
    return ir.DataType[found]


def type_name(dtype: ir.DataType, owner: object) -> str:
    """The name that attributes have for an ONNX type, such as ``f32``.

    Raises:
        ModelError: OpenVINO does not have the type.
    """
    for name, found in _TYPES.items():
        if found == dtype.name:
            return name
    raise ModelError(f"{owner} has element type {dtype.name}, which OpenVINO does not have.")


def precision_name(dtype: ir.DataType) -> str:
    """The name that ports have for an ONNX type, such as ``FP32``."""
    name = type_name(dtype, "A port")
    shown = {attribute: port for port, attribute in _PRECISIONS.items()}
    return shown.get(name, name.upper())


def open_weights(source: Any, beside: Path | None) -> Array:
    """The bytes of the ``.bin`` file; a file is mapped into memory, not read.

    Args:
        source: A path, bytes or an array, or ``None`` for the file beside the ``.xml``.
        beside: The ``.xml`` file, where the model came from a file.
    """
    if source is None:
        if beside is None:
            return np.empty(0, np.uint8)
        source = beside.with_suffix(".bin")
        if not source.exists():  # a network without constants comes without one
            return np.empty(0, np.uint8)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        try:
            return np.empty(0, np.uint8) if not path.stat().st_size else np.memmap(path, mode="r")
        except FileNotFoundError as error:
            raise ModelNotFoundError(f"Weights file '{path}' does not exist.") from error
        except OSError as error:
            raise ModelFormatError(f"Weights file '{path}' cannot be read: {error}") from error
    if isinstance(source, (bytes, bytearray, memoryview, np.ndarray)):
        held = np.ascontiguousarray(source) if isinstance(source, np.ndarray) else source
        return np.frombuffer(held, np.uint8)
    raise ModelFormatError(f"Weights are a path, bytes or an array; found {type(source).__name__}.")


def constant(layer: Layer, weights: Array) -> ir.TensorProtocol:
    """The tensor of a ``Const`` layer, a view of the weights where their order allows."""
    import onnx_ir as ir

    name = layer.data.get("element_type", "")
    levels = _LEVELS.get(name.lower())
    held = "u8" if levels is not None and len(levels) > 16 else "u4"
    dtype = element_type(name if levels is None else held, layer)
    if dtype == ir.DataType.STRING:
        raise ModelFormatError(f"{layer} holds strings, which are not read")
    shape = [_size(dim, layer) for dim in layer.data.get("shape", "").split(",") if dim.strip()]
    offset, size = _size(layer.data.get("offset"), layer), _size(layer.data.get("size"), layer)
    count = math.prod(shape)
    expected = math.ceil(count * dtype.bitwidth / 8)
    if size < expected:
        raise ModelFormatError(f"{layer} of shape {shape} needs {expected} bytes, not {size}")
    if not weights.size and expected:
        raise ModelFormatError(
            f"{layer} needs weights, and none were given: put the .bin file beside the .xml under "
            "the same name, or hand it to read_model(model, weights)."
        )
    if offset + size > weights.size:
        raise ModelFormatError(
            f"{layer} ends at byte {offset + size} of the weights, which have {weights.size}: is "
            "this the right .bin file?"
        )
    raw = weights[offset : offset + expected]
    if dtype.bitwidth == 4:  # two elements a byte, the first in the low bits, as in ONNX
        halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count].reshape(shape)
        if levels is not None:
            return ir.Tensor(np.array(levels, np.float32)[halves])
        signed = dtype == ir.DataType.INT4
        whole = (halves ^ 8).astype(np.int8) - 8 if signed else halves
        return ir.Tensor(whole.astype(dtype.numpy()), dtype)
    if levels is not None:
        return ir.Tensor(np.array(levels, np.float32)[np.frombuffer(raw, np.uint8)].reshape(shape))
    array = np.frombuffer(raw, np.uint8).view(np.dtype(dtype.numpy()))
    if dtype == ir.DataType.BOOL and np.any(np.frombuffer(raw, np.uint8) > 1):
        array = np.frombuffer(raw, np.uint8) != 0
    return ir.Tensor(array.reshape(shape), dtype)


def _size(text: str | None, layer: Layer) -> int:
    if text is None or not text.strip().isdigit():
        raise ModelFormatError(f"{layer}: '{text}' where a size is expected")
    return int(text)
