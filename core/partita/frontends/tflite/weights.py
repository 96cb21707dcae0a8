"""Element types of TFLite files, and their constants as initializers, views of the file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.tflite import sparse
from partita.frontends.tflite.subgraph import Tensor

if TYPE_CHECKING:
    import onnx_ir as ir

Array = np.ndarray[Any, Any]

_TYPES = {
    0: "FLOAT",
    1: "FLOAT16",
    2: "INT32",
    3: "UINT8",
    4: "INT64",
    6: "BOOL",
    7: "INT16",
    9: "INT8",
    10: "DOUBLE",
    12: "UINT64",
    15: "UINT32",
    16: "UINT16",
    17: "INT8",  # four bits: kept as bytes
    18: "BFLOAT16",
}
"""Number of an element type to ONNX's name."""

_OTHERS = {
    -5: "GGML_Q8_1",
    -4: "GGML_Q8_0",
    -3: "GGML_Q4_1",
    -2: "GGML_Q4_0",
    -1: "UINT4",
    5: "STRING",
    8: "COMPLEX64",
    11: "COMPLEX128",
    13: "RESOURCE",
    14: "VARIANT",
}
"""Types that no operator here takes, by the schema's names."""

COMPLEX64 = 8
INT4 = 17
RESOURCE = 13


def element_type(number: int, owner: object) -> ir.DataType:
    """The ONNX type of a type's number.

    Raises:
        ModelFormatError: ONNX does not have it.
    """
    import onnx_ir as ir

    if number not in _TYPES:
        name = _OTHERS.get(number, f"number {number}")
        raise ModelFormatError(f"{owner} has element type {name}, which is not read")
    return ir.DataType[_TYPES[number]]


def constant(tensor: Tensor) -> ir.TensorProtocol:
    """The elements of a constant, a view of the file; those of four bits are unpacked when read.

    Raises:
        ModelFormatError: Its bytes are more or fewer than its shape asks for, or it is sparse in a
            way that cannot be.
    """
    import onnx_ir as ir

    dtype = element_type(tensor.type, tensor)
    data = tensor.data if tensor.data is not None else memoryview(b"")
    sparsity = tensor.sparsity
    count = math.prod(tensor.dims) if sparsity is None else _stored_elements(tensor, sparsity)
    bits = 4 if tensor.type == INT4 else dtype.bitwidth
    if len(data) != math.ceil(count * bits / 8):
        raise ModelFormatError(
            f"{tensor} of shape {list(tensor.dims)} has {len(data)} bytes, not "
            f"{math.ceil(count * bits / 8)}"
        )
    raw = np.frombuffer(data, np.uint8)
    if sparsity is not None:
        kept = _nibbles(raw, count) if tensor.type == INT4 else raw.view(dtype.numpy())
        places = sparsity.places(tensor.dims)
        return lazy(lambda: sparse.dense(kept, places, tensor.dims), dtype, tensor.dims)
    if tensor.type == INT4:
        return lazy(lambda: _nibbles(raw, count).reshape(tensor.dims), dtype, tensor.dims)
    if dtype == ir.DataType.BOOL:
        return ir.Tensor((raw != 0).reshape(tensor.dims))
    return ir.Tensor(raw.view(dtype.numpy()).reshape(tensor.dims), dtype)


def _stored_elements(tensor: Tensor, sparsity: sparse.Sparsity) -> int:
    """How many elements of a sparse tensor are kept."""
    fault = sparsity.fault(tensor.dims)
    count = None if fault else sparsity.count()
    if count is None:
        raise ModelFormatError(
            f"{tensor} of shape {list(tensor.dims)} is sparse and cannot be read: "
            f"{fault or 'its segments do not fit its axes'}"
        )
    return count


def lazy(make: Any, dtype: ir.DataType, shape: tuple[int, ...]) -> ir.LazyTensor:
    """A tensor that is made each time it is asked for, and not kept."""
    import onnx_ir as ir

    return ir.LazyTensor(
        lambda: ir.Tensor(np.asarray(make()), dtype), dtype=dtype, shape=ir.Shape(shape)
    )


def transposed(tensor: ir.TensorProtocol, perm: tuple[int, ...]) -> ir.TensorProtocol:
    """The same elements with the axes in another order; no copy is kept."""
    import onnx_ir as ir

    if isinstance(tensor, ir.Tensor):
        return ir.Tensor(tensor.numpy().transpose(perm), tensor.dtype)
    sizes = tensor.shape.numpy()
    shape = tuple(int(sizes[axis]) for axis in perm)
    return lazy(lambda: tensor.numpy().transpose(perm), tensor.dtype, shape)


def cast(tensor: ir.TensorProtocol, dtype: ir.DataType) -> ir.TensorProtocol:
    """The same numbers in another type, made when they are asked for."""
    shape = tuple(int(dim) for dim in tensor.shape.numpy())
    return lazy(lambda: tensor.numpy().astype(dtype.numpy()), dtype, shape)


def _nibbles(raw: Array, count: int) -> Array:
    """Signed numbers of four bits, the first in the low bits."""
    halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count]
    return (halves ^ 8).astype(np.int8) - np.int8(8)
