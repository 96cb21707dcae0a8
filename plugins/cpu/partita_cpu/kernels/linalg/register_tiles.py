"""Register tiles: a few rows times a panel of 64 columns, as vector code of their own.

A loop in numba keeps no array in registers; these functions do, being written as LLVM
instructions. Weights come in panels: for each step over the terms 64 neighbouring columns, or four
bytes of each of 64 columns. LLVM splits the 64-byte vectors where a processor has shorter ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering import Array
from partita.system.large_pages import lasting_bytes
from partita_cpu.jit.deferred_numba import cgutils as _tools
from partita_cpu.jit.deferred_numba import intrinsic, ir, types

PANEL = 64
"""Columns of a panel."""
LANES = 16
"""Elements of a vector; four vectors make a panel."""
ROWS = 4
"""Rows of the larger tile of bytes."""
MOST_ROWS = 6
"""Rows of the largest tile of floats."""
AHEAD = 8
"""Terms before a line of weights is read it is asked for."""
QUAD = 4
"""Bytes that one instruction multiplies and adds up."""


def _i32(value: int) -> Any:
    return ir.IntType(32)(value)


def _i64(value: int) -> Any:
    return ir.IntType(64)(value)


def _data(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Pointer to the first element of a numba array."""
    return _tools.create_struct_proxy(kind)(context, builder, value=value).data


def _splat(builder: Any, scalar: Any) -> Any:
    """A vector of 16 times the scalar."""
    vector = ir.VectorType(scalar.type, LANES)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _i32(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), mask)


def make_tile(rows: int, arithmetic: Callable[..., Any], quads: bool) -> Any:
    """A tile function ``(a, a_at, a_step, w, w_at, c, c_at, c_step, terms)``.

    ``c[row] += a[row] @ panel`` for neighbouring rows that lie ``a_step`` and ``c_step`` elements
    apart; ``_at`` says where the first one starts in each array. With ``quads``, ``terms`` counts
    quads of bytes.
    """

    def typed(
        typing_context: Any,
        a: Any,
        a_at: Any,
        a_step: Any,
        w: Any,
        w_at: Any,
        c: Any,
        c_at: Any,
        c_step: Any,
        terms: Any,
    ) -> Any:
        del typing_context, a_at, a_step, w_at, c_at, c_step, terms
        i64 = types.int64
        result = types.void(a, i64, i64, w, i64, c, i64, i64, i64)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            _emit_tile(context, builder, signature.args, values, rows, arithmetic, quads)
            return context.get_dummy_value()

        return result, generate

    return intrinsic(typed)


def _emit_tile(
    context: Any,
    builder: Any,
    kinds: Any,
    values: Any,
    rows: int,
    arithmetic: Callable[..., Any],
    quads: bool,
) -> None:
    """Writes the loop over a tile's terms in LLVM IR.

    Args:
        context: numba's.
        builder: llvmlite's.
        kinds: numba's types of the arguments.
        values: The arguments.
        rows: Of the tile.
        arithmetic: Adds a product to a vector of sums.
        quads: Whether four bytes make one term.
    """
    a, w, c = (_data(context, builder, kinds[k], values[k]) for k in (0, 3, 5))
    _, a_at, a_step, _, w_at, _, c_at, c_step, terms = values
    element = context.get_value_type(kinds[5].dtype)
    vector = ir.VectorType(element, LANES)
    size = kinds[5].dtype.bitwidth // 8
    width = QUAD if quads else 1
    parts = range(PANEL // LANES)

    def place(row: int, part: int) -> Any:
        at = builder.add(c_at, builder.add(builder.mul(c_step, _i64(row)), _i64(part * LANES)))
        return builder.bitcast(builder.gep(c, [at]), vector.as_pointer())

    # One row of bytes has too few sums to keep a processor busy while it waits for each: it has
    # them twice. Floats are added up in one order, whatever number of rows lies beside.
    sets = 2 if rows == 1 and quads else 1
    sums = [[_tools.alloca_once(builder, vector) for _ in parts] for _ in range(rows * sets)]
    for row in range(rows):
        for part in parts:
            builder.store(_load(builder, place(row, part), size), sums[row][part])
    for part in parts if sets == 2 else ():
        builder.store(ir.Constant(vector, None), sums[1][part])

    def term(index: Any, first: int) -> None:
        start = builder.add(w_at, builder.mul(index, _i64(PANEL * width)))
        panel = builder.bitcast(builder.gep(w, [start]), vector.as_pointer())
        weights = [_load(builder, builder.gep(panel, [_i64(part)]), size) for part in parts]
        for part in parts if not quads else ():
            ahead = builder.gep(panel, [_i64(part + len(parts) * AHEAD)])
            _prefetch(builder, ahead)
        column = builder.mul(index, _i64(width))
        for row in range(rows):
            at = builder.add(builder.add(a_at, builder.mul(a_step, _i64(row))), column)
            pointer = builder.bitcast(builder.gep(a, [at]), element.as_pointer())
            factor = _load(builder, pointer, size // width)
            for part in parts:
                total = builder.load(sums[first + row][part])
                total = arithmetic(context, builder, total, factor, weights[part])
                builder.store(total, sums[first + row][part])

    with _tools.for_range(builder, builder.sdiv(terms, _i64(sets))) as loop:
        for number in range(sets):
            index = builder.add(builder.mul(loop.index, _i64(sets)), _i64(number))
            term(index, number)
    if sets == 2:
        with builder.if_then(builder.trunc(builder.and_(terms, _i64(1)), ir.IntType(1))):
            term(builder.sub(terms, _i64(1)), 0)
    for row in range(rows):
        for part in parts:
            total = builder.load(sums[row][part])
            if sets == 2:
                total = builder.add(total, builder.load(sums[1][part]))
            store = builder.store(total, place(row, part))
            store.align = size


def _prefetch(builder: Any, pointer: Any) -> None:
    """Asks for a line of the first-level cache that is read soon; it may lie behind all weights."""
    byte = ir.IntType(8).as_pointer()
    numbers = [ir.IntType(32)] * 3
    function = ir.FunctionType(ir.VoidType(), [byte, *numbers])
    prefetch = _tools.get_or_insert_function(builder.module, function, "llvm.prefetch.p0")
    read, keep, data = _i32(0), _i32(3), _i32(1)
    builder.call(prefetch, [builder.bitcast(pointer, byte), read, keep, data])


def _load(builder: Any, pointer: Any, align: int) -> Any:
    load = builder.load(pointer)
    load.align = align
    return load


def fused(context: Any, builder: Any, total: Any, factor: Any, weights: Any) -> Any:
    """``total + factor * weights`` of floats."""
    kind = total.type
    bits = 64 if isinstance(kind.element, ir.DoubleType) else 32
    function = ir.FunctionType(kind, [kind] * 3)
    name = f"llvm.fmuladd.v{LANES}f{bits}"
    instruction = _tools.get_or_insert_function(builder.module, function, name)
    return builder.call(instruction, [_splat(builder, factor), weights, total])


def dot(context: Any, builder: Any, total: Any, factor: Any, weights: Any) -> Any:
    """``total`` plus four products of uint8 in ``factor`` and int8 in each of ``weights``."""
    # One by one: where there are instructions for it, `native.ir.dot_bytes` is called instead.
    for byte in range(QUAD):
        shifted = builder.lshr(factor, _i32(8 * byte))
        one = _splat(builder, builder.and_(shifted, _i32(255)))
        up = _splat(builder, _i32(24 - 8 * byte))
        other = builder.ashr(builder.shl(weights, up), _splat(builder, _i32(24)))
        total = builder.add(total, builder.mul(one, other))
    return total


multiply_rows = make_tile(ROWS, fused, False)
"""The tile of four rows of floats."""
multiply_six_rows = make_tile(6, fused, False)
"""The tile of six rows of floats: with 32 registers all its sums are in some."""
multiply_five_rows = make_tile(5, fused, False)
"""The tile of five rows of floats."""
multiply_three_rows = make_tile(3, fused, False)
"""The tile of three rows of floats."""
multiply_two_rows = make_tile(2, fused, False)
"""The tile of two rows of floats."""
multiply_row = make_tile(1, fused, False)
"""The tile of one row of floats."""
multiply_byte_rows = make_tile(ROWS, dot, True)
"""The tile of four rows of uint8 times int8, added up in int32."""
multiply_byte_row = make_tile(1, dot, True)
"""The tile of one row of uint8 times int8."""


def float_panels(weights: Array) -> Array:
    """Panels of a matrix (terms, columns), the last one filled up with zeros; flat."""
    terms, columns = weights.shape
    count = -(-columns // PANEL)
    full = np.zeros((terms, count * PANEL), weights.dtype)
    full[:, :columns] = weights
    return np.ascontiguousarray(full.reshape(terms, count, PANEL).swapaxes(0, 1)).reshape(-1)


def byte_panels(weights: Array, width: int = 0) -> Array:
    """Panels of an int8 matrix (terms, columns), quads of terms together, zeros around; flat.

    A column has `width` terms, if that is more than fill its quads.
    """
    terms, columns = weights.shape
    quads, count = max(-(-terms // QUAD), width // QUAD), -(-columns // PANEL)
    full = np.zeros((quads * QUAD, count * PANEL), np.int8)
    full[:terms, :columns] = weights
    panels = full.reshape(quads, QUAD, count, PANEL).transpose(2, 0, 3, 1)
    found = lasting_bytes(full.size).view(np.int8)  # a vector that spans two cache lines is slow
    found.reshape(panels.shape)[...] = panels
    return found
