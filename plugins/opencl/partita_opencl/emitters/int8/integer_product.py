"""Products of matrices of bytes, summed in 32 bits: MatMulInteger and QLinearMatMul."""

from __future__ import annotations

import math

import numpy as np

from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.kernel_table import DTypes
from partita_opencl.emitters.int8.quantization import quantized
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, i32
from partita_opencl.launches.tensor_moves import expand

_BYTES: DTypes = frozenset({np.dtype(np.int8), np.dtype(np.uint8)})

_TILE, _SMALL_TILE = 16, 8
"""Rows and columns of a work-group; of devices whose groups are small."""


@operator("MatMulInteger", types=_BYTES, since=10, folds=False)
def matmul_integer(
    k: Kit,
    node: Node,
    a: Operand,
    b: Operand,
    a_zero: Operand | None = None,
    b_zero: Operand | None = None,
) -> Operand:
    """Sums of products of whole numbers, less their zero points."""
    return integer_product(k, node, a, b, a_zero, b_zero)


@operator(
    "QLinearMatMul",
    types={0: _BYTES, 1: FLOATS, 2: _BYTES, 3: _BYTES, 4: FLOATS, 5: _BYTES, 6: FLOATS, 7: _BYTES},
    since=10,
    folds=False,
)
def quantized_matmul(
    k: Kit,
    node: Node,
    a: Operand,
    a_scale: Operand,
    a_zero: Operand,
    b: Operand,
    b_scale: Operand,
    b_zero: Operand,
    y_scale: Operand,
    y_zero: Operand,
) -> Operand:
    """The product of the numbers that levels stand for, as levels."""
    if min(a.ndim, b.ndim) < 2 or y_scale.size != 1 or y_zero.size != 1:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) takes matrices and one scale of the "
            "result."
        )
    sums = integer_product(k, node, a, b, a_zero, b_zero)
    rows = k.view(a_scale, () if a_scale.size == 1 else (a_scale.size, 1))
    columns = k.view(b_scale, () if b_scale.size == 1 else (b_scale.size,))
    scale, zero = k.view(y_scale, ()), k.view(y_zero, ())
    template = "(float){0} * ({1} * {2} / {3})"
    return quantized(k, template, y_zero.dtype, zero, sums, rows, columns, scale)


def integer_product(
    k: Kit,
    node: Node,
    a: Operand,
    b: Operand,
    a_zero: Operand | None,
    b_zero: Operand | None,
) -> Operand:
    """Matrix products in int32, with numpy's rules for vectors and batches.

    Args:
        k: Records it.
        node: What is computed.
        a: Left matrices of bytes.
        b: Right ones.
        a_zero: One number for all, or one for each row.
        b_zero: One number for all, or one for each column.

    Raises:
        OperandError: Shapes do not fit.
    """
    left = a if a.ndim > 1 else k.view(a, (1, a.size))
    right = b if b.ndim > 1 else k.view(b, (b.size, 1))
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    zeros = [1 if zero is None else zero.size for zero in (a_zero, b_zero)]
    if right.shape[-2] != depth or zeros[0] not in (1, rows) or zeros[1] not in (1, columns):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) cannot multiply shapes {list(a.shape)} "
            f"and {list(b.shape)} with {zeros[0]} and {zeros[1]} zero points."
        )
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    left = expand(k, left, (*batch, rows, depth))
    if math.prod(right.shape[:-2]) != 1:
        right = expand(k, right, (*batch, depth, columns))
    y = k.empty((*batch, rows, columns), np.int32)
    tile = _TILE if k.tuning.limits.group_items >= _TILE * _TILE else _SMALL_TILE
    groups = math.prod(batch) * -(-rows // tile) * -(-columns // tile)
    flags = {
        "A_ZEROS": a_zero is not None,
        "B_ZEROS": b_zero is not None,
        "ROW_ZEROS": zeros[0] != 1,
        "COLUMN_ZEROS": zeros[1] != 1,
        "ONE_B": math.prod(right.shape[:-2]) == 1,
    }
    k.launch(
        "integer_product.cl",
        "integer_product",
        ((groups * tile, tile), (tile, tile)),
        left,
        right,
        a_zero or left,
        b_zero or right,
        y,
        i32(rows),
        i32(columns),
        i32(depth),
        A=ctype_of(a.dtype),
        B=ctype_of(b.dtype),
        TILE=tile,
        **{name: None for name, on in flags.items() if on},
    )
    own = [size for size, given in ((rows, a.ndim > 1), (columns, b.ndim > 1)) if given]
    return k.view(y, (*batch, *own))
