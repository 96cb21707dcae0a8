"""Operations that read a decoder's large weights: products, and rows of the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.gguf import weights
from partita.frontends.gguf.container import GgufTensor
from partita.frontends.gguf.graph_writer import MICROSOFT, Dims, GraphWriter
from partita.frontends.gguf.weights import QuantisedWeight

if TYPE_CHECKING:
    import onnx_ir as ir


def linear(writer: GraphWriter, x: ir.Value, name: str, rows: int, columns: int) -> ir.Value:
    """The product of ``x`` with a weight of the file, and its bias if there is one.

    Args:
        writer: Writes the operations.
        x: What is multiplied [..., columns].
        name: Of the weight, without ``.weight``; the operation is called so, too.
        rows: Size of the result's last dimension.
        columns: Size of the last dimension of ``x``.
    """
    bias = f"{name}.bias"
    added = writer.vector(bias, rows) if writer.has(bias) else None
    return multiply(writer, x, writer.tensor(f"{name}.weight", [rows, columns]), name, added)


def linear_parts(
    writer: GraphWriter, x: ir.Value, name: str, parts: Mapping[str, int], columns: int
) -> list[ir.Value]:
    """Products of ``x`` with weights that lie one behind the other in one tensor of the file.

    Args:
        writer: Writes the operations.
        x: What is multiplied [..., columns].
        name: Of the tensor, without ``.weight``; its biases, if there are any, lie likewise.
        parts: Name of each product to the size of its last dimension.
        columns: Size of the last dimension of ``x``.
    """
    tensor = writer.tensor(f"{name}.weight", [sum(parts.values()), columns])
    bias = f"{name}.bias"
    biases = writer.numbers(bias, tensor.shape[0]) if writer.has(bias) else None
    products, first = [], 0
    for part, rows in parts.items():
        added = None
        if biases is not None:
            added = writer.constant(f"{part}.bias", biases[first : first + rows])
        weight = tensor.rows(first, rows, f"{part}.weight")
        products.append(multiply(writer, x, weight, part, added))
        first += rows
    return products


def multiply(
    writer: GraphWriter,
    x: ir.Value,
    tensor: GgufTensor,
    name: str,
    added: ir.Value | None = None,
) -> ir.Value:
    """The product of ``x`` with a weight, and what is added to each row.

    Args:
        writer: Writes the operations; a quantised weight is read by one operator, without floats.
        x: What is multiplied [..., columns].
        tensor: The weight [rows, columns].
        name: Of the result.
        added: A bias [rows], if there is one.

    Returns:
        The product [..., rows].
    """
    rows, columns = tensor.shape
    shape = (*writer.dims(x)[:-1], rows)
    weight = weights.quantised(tensor)
    if weight is not None:
        inputs = [x, *_parts(writer, weight, tensor.name), None, added]
        while inputs[-1] is None:
            inputs.pop()
        sizes = {"K": columns, "N": rows, "bits": weight.bits, "block_size": weight.scale_block}
        return writer.apply("MatMulNBits", inputs, name, shape, MICROSOFT, **sizes)
    stored = writer.constant(tensor.name, weights.plain(tensor, transposed=True))
    matrix = _as_float32(writer, stored, f"{tensor.name}.float32")
    if added is None:
        return writer.apply("MatMul", [x, matrix], name, shape)
    product = writer.apply("MatMul", [x, matrix], f"{name}.product", shape)
    return writer.apply("Add", [product, added], name, shape)


def embedding(writer: GraphWriter, ids: ir.Value, name: str, rows: int, columns: int) -> ir.Value:
    """The rows of a weight that ids name.

    Args:
        writer: Writes the operations.
        ids: Numbers of rows, whole numbers of any shape.
        name: Of the weight, without ``.weight``; the result is called so, too.
        rows: How many rows the weight has.
        columns: How many numbers a row has.

    Returns:
        The rows as float32 [*shape of ids, columns].
    """
    tensor = writer.tensor(f"{name}.weight", [rows, columns])
    weight = weights.quantised(tensor)
    shape = (*writer.dims(ids), columns)
    if weight is not None:
        return _quantised_rows(writer, ids, tensor, weight, shape)
    table = writer.constant(f"{tensor.name}.rows", weights.plain(tensor))
    is_float32 = tensor.format.name == "F32"
    found = writer.value(name if is_float32 else f"{name}.stored", shape, table.dtype)
    writer.write("Gather", [table, ids], [found], axis=0)
    return _as_float32(writer, found, name)


def _quantised_rows(
    writer: GraphWriter, ids: ir.Value, tensor: GgufTensor, weight: QuantisedWeight, shape: Dims
) -> ir.Value:
    """Rows of quants times scales; the operator takes no zero points between whole numbers."""
    import onnx_ir as ir

    rows, columns = tensor.shape
    name = tensor.name.removesuffix(".weight")
    quants, scales, _ = _parts(writer, weight, tensor.name)
    # onnxruntime-genai shares a weight between embedding and last product in this way too.
    flat = writer.value(f"{name}.rows", (rows, columns * weight.bits // 8), ir.DataType.UINT8)
    sizes = writer.constant(f"{name}.row_sizes", np.array([rows, -1], np.int64))
    writer.write("Reshape", [quants, sizes], [flat])
    offsets = weight.offsets()
    found = writer.apply(
        "GatherBlockQuantized",
        [flat, ids, scales],
        name if offsets is None else f"{name}.scaled",
        shape,
        MICROSOFT,
        gather_axis=0,
        quantize_axis=1,
        bits=weight.bits,
        block_size=weight.scale_block,
    )
    if offsets is None:
        return found
    table = writer.constant(f"{tensor.name}.offsets", offsets)
    return _with_offsets(writer, found, ids, table, name)


def _with_offsets(
    writer: GraphWriter, scaled: ir.Value, ids: ir.Value, table: ir.Value, name: str
) -> ir.Value:
    """Rows with the offset of each block added."""
    shape = writer.dims(scaled)
    size, blocks = int(shape[-1]), int(writer.dims(table)[-1])
    single, cut = (*shape[:-1], blocks, 1), (*shape[:-1], blocks, size // blocks)
    offsets = writer.apply("Gather", [table, ids], f"{name}.offsets", (*shape[:-1], blocks))
    last = writer.constant("last_axis", np.array([-1], np.int64))
    columns = writer.apply("Unsqueeze", [offsets, last], f"{name}.offset_columns", single)
    apart = writer.constant(f"{name}.block_sizes", np.array([0, 0, *cut[2:]], np.int64))
    whole = writer.constant(f"{name}.whole_sizes", np.array([0, 0, size], np.int64))
    parts = writer.apply("Reshape", [scaled, apart], f"{name}.blocks", cut)
    added = writer.apply("Add", [parts, columns], f"{name}.offset_blocks", cut)
    return writer.apply("Reshape", [added, whole], name, shape)


def _parts(
    writer: GraphWriter, weight: QuantisedWeight, name: str
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Quants, scales and, where the file has offsets, zero points."""
    zero_points = weight.zero_points()
    return (
        writer.constant(f"{name}.quants", weight.quants()),
        writer.constant(f"{name}.scales", weight.scales()),
        None if zero_points is None else writer.constant(f"{name}.zero_points", zero_points),
    )


def _as_float32(writer: GraphWriter, value: ir.Value, name: str) -> ir.Value:
    """The value in float32, under a name if it has to be converted."""
    import onnx_ir as ir

    if value.dtype == ir.DataType.FLOAT:
        return value
    return writer.apply("Cast", [value], name, writer.dims(value), to=ir.DataType.FLOAT)
