"""Matrix products, fully connected layers and embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("FULLY_CONNECTED")
def fully_connected(at: Site) -> ir.Value:
    """Rows of the input times weights [out, in]; a bias and an activation may follow."""
    if at.rank(1) != 2:
        raise at.error(f"weights have shape {list(at.dims(1))}; expected two sizes")
    if at.integer("WeightsFormat", 0):
        raise at.error(f"weights in format {at.integer('WeightsFormat')} are not read")
    out, depth = at.dims(1)
    rank, target = at.rank(0), at.target()
    bias = at.floats(2) if at.has(2) else None
    if rank == len(target.dims) > 2 and at.levels(at.tensor(0)) is None:
        value = at.emit("MatMul", at.value(0), at.floats(1, (1, 0)))
        value = value if bias is None else at.emit("Add", value, bias)
        return at.result(at.activated(value))
    if rank == 2 and at.dims(0)[1] == depth:
        x = at.floats(0)
    else:
        x = at.dequantized(at.reshaped(at.value(0), [-1, depth]), at.tensor(0))
    value = at.emit("Gemm", x, at.floats(1), bias, transB=1)
    value = at.result(at.activated(value))
    if len(target.dims) == 2:
        return value
    return _rows_back(at, value, out)


def _rows_back(at: Site, value: ir.Value, out: int) -> ir.Value:
    """Rows of the result in the shape that the input's rows had."""
    dims = at.target().dims
    if sum(dim < 0 for dim in dims) <= 1:
        return at.reshaped(value, dims)
    sizes = at.emit("Shape", at.value(0), start=0, end=-1)
    return at.emit("Reshape", value, at.emit("Concat", sizes, at.const([out], np.int64), axis=0))


@translates("BATCH_MATMUL")
def batch_matmul(at: Site) -> ir.Value:
    """Products of matrices, either of which may be transposed."""
    sides = []
    for index, option in enumerate(("AdjX", "AdjY")):
        rank = at.rank(index)
        if rank < 2:
            raise at.error(f"input {index} has {rank} dimensions; expected two or more")
        perm = (*range(rank - 2), rank - 1, rank - 2) if at.flag(option, False) else None
        sides.append(at.floats(index, perm))
    return at.result(at.emit("MatMul", *sides))


@translates("EMBEDDING_LOOKUP")
def embedding_lookup(at: Site) -> ir.Value:
    """Rows of a table; those of levels become floats where the result holds floats."""
    if at.same_levels([1]):
        return at.emit("Gather", at.value(1), at.value(0), axis=0)
    return at.result(at.emit("Gather", at.floats(1), at.value(0), axis=0))
