"""8-bit matrix products: uint8 rows times panels of int8 weights, corrected for zero points.

int8 on the left and uint8 on the right are shifted by 128, together with their zero points. Sums
wrap in int32, so that it does not matter when corrections are added. A tile of 32 rows and 64
columns is finished while it is in the cache: as int32, float32, or levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.lowering import Array, Builder, Operand
from partita.lowering.transformed_weights import Form
from partita.system.processors import usable_processors
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.tile_kernels import byte_exec_type, byte_kernels
from partita_cpu.kernels.int8.byte_tiles import (
    CHUNK,
    FEW,
    SHIFT,
    TILE,
    TOGETHER,
    Kind,
    SumScaling,
    ZeroPoints,
    multiply_bytes,
    pack_rows,
)
from partita_cpu.kernels.linalg.register_tiles import (
    PANEL,
    QUAD,
    byte_panels,
)
from partita_cpu.llvm.levels import PORTABLE, Level
from partita_cpu.llvm.tiles.amx_int8 import STEP
from partita_cpu.machine_model import MachineModel

MORE_STEPS = 1
"""So many more steps than there must be are quicker than to copy rows."""
WEIGHTS_SHARE = 1 / 2
"""Of the first-level cache, for weights that stay there from tile to tile.

With a cache of 48 KB these are six steps of AMX. With five to seven a product takes 6.5 to 8 ns,
with nine 10, with 36 12.
"""


@dataclass(frozen=True)
class ByteOperands:
    """What is multiplied: bytes on both sides, less their zero points.

    Attributes:
        x: Rows (..., terms) or images, uint8 or int8.
        w: A matrix (terms, columns), or weights of a convolution, int8 or uint8.
        x_zero: One zero point, or one per row; ``None`` for 0.
        w_zero: One zero point, or one per column or output; ``None`` for 0.
    """

    x: Operand
    w: Operand
    x_zero: Operand | None = None
    w_zero: Operand | None = None

    @property
    def shift(self) -> int:
        """What is added to the elements of x to make them uint8."""
        return SHIFT if self.x.dtype == np.int8 else 0

    def zero_level(self, b: Builder) -> Operand:
        """The levels of x that are 0; images are padded with it."""
        zero = self.x_zero
        return b.constant(np.zeros(1, self.x.dtype)) if zero is None else b.flat(zero)

    @property
    def needs_row_totals(self) -> bool:
        """Whether weights, shifted to int8, have zero points that need the sums of rows."""
        least = SHIFT if self.w.dtype == np.uint8 else 0
        if self.w_zero is None:
            return least != 0
        return self.w_zero.const is None or bool((self.w_zero.const != least).any())

    def row_totals(self, b: Builder, rows: int) -> Operand:
        """Memory for the sums of rows; zeros where they do not count."""
        return b.empty((rows,), np.int32) if self.needs_row_totals else b.zeros(rows, np.int32)


@dataclass(frozen=True)
class Result:
    """What sums become, and by what; every tensor has one element or one per column.

    Attributes:
        kind: Which formula.
        dtype: Of the result.
        scale: One factor.
        factors: More of them.
        bias: int32 for levels, float32 for floats.
        zero: Of the levels.
        positive: Whether floats below 0 become 0.
    """

    kind: Kind
    dtype: Any
    scale: Operand
    factors: Operand
    bias: Operand
    zero: Operand
    positive: bool = False


def signed(weights: Array) -> Array:
    """Weights as int8, uint8 moved by 128."""
    if weights.dtype == np.int8:
        return weights
    return (weights.astype(np.int16) - SHIFT).astype(np.int8)


def totals_of(weights: Array) -> Array:
    """Sums of the columns of a matrix of bytes, as moved to int8."""
    return np.asarray(signed(weights).sum(0, dtype=np.int32))


def _pack_weights(
    arrange: Callable[[Array], Array], weights: Array, panels: Array, totals: Array, width: int
) -> None:
    """Panels and sums of weights that only the run brings."""
    matrix = arrange(weights)
    panels[...] = byte_panels(signed(matrix), width)
    totals[...] = totals_of(matrix)


def as_is(weights: Array) -> Array:
    """Weights that are a matrix (terms, columns) already."""
    return weights


def level_of(b: Builder) -> Level:
    """The level whose kernels may be used."""
    return _machine_of(b).level


def block_steps(b: Builder) -> int:
    """Steps of AMX whose weights stay in the first-level cache from tile to tile."""
    return max(1, _machine_of(b).l1_bytes(WEIGHTS_SHARE) // (STEP * PANEL))


def _machine_of(b: Builder) -> MachineModel:
    return b.options.machine if isinstance(b.options, PrecisionPolicy) else MachineModel(PORTABLE)


def row_steps(terms: int) -> tuple[int, int]:
    """In how many steps AMX takes so many terms, and of how many terms each: equal steps.

    Rows that are whole quads stay as they are, if that takes few steps.
    """
    fewest = max(1, -(-terms // STEP))
    for steps in range(fewest, fewest + MORE_STEPS + 1):
        if terms and terms % (QUAD * steps) == 0:
            return steps, terms // steps
    return fewest, -(-max(terms, 1) // (QUAD * fewest)) * QUAD


def row_bytes(b: Builder, terms: int) -> int:
    """Bytes of a packed row."""
    if not level_of(b).tiles:
        return -(-terms // QUAD) * QUAD
    steps, step = row_steps(terms)
    return steps * step


def empty_rows(b: Builder, rows: int, terms: int) -> Operand:
    """Memory for packed rows; tiles of AMX read whole chunks."""
    count = -(-rows // CHUNK) * CHUNK if level_of(b).tiles else rows
    return b.empty((count * row_bytes(b, terms),), np.uint8)


def _is_packed(b: Builder, x: Operand, rows: int, terms: int) -> bool:
    """Whether rows are as `pack_rows` would leave them, and tiles read nothing behind them."""
    whole = not level_of(b).tiles or rows >= CHUNK or rows == CHUNK // 2 or rows <= FEW
    return x.dtype == np.uint8 and terms == row_bytes(b, terms) and whole


def emit_byte_product(b: Builder, operands: ByteOperands, result: Result | None = None) -> Operand:
    """The product of rows of any leading shape with a matrix.

    Args:
        b: Records it.
        operands: What is multiplied.
        result: What sums become; ``None`` for int32.
    """
    x, (terms, columns) = operands.x, operands.w.shape
    shape = (*x.shape[:-1], columns)
    if not math.prod(shape):
        return b.empty(shape, np.int32 if result is None else result.dtype)
    return b.view(emit_rows(b, operands, as_is, terms, result), shape)


def emit_rows(
    b: Builder,
    operands: ByteOperands,
    arrange: Callable[[Array], Array],
    terms: int,
    result: Result | None,
) -> Operand:
    """The product of rows of bytes with packed weights.

    Args:
        b: Records it.
        operands: What is multiplied.
        arrange: Makes a matrix (terms, columns) of the weights.
        terms: Terms of each sum.
        result: What becomes of the sums; ``None`` leaves them int32.

    Returns:
        The result [rows, columns].
    """
    x = operands.x
    rows = x.size // terms if terms else math.prod(x.shape[:-1])
    totals = operands.row_totals(b, rows)
    counted = operands.needs_row_totals
    if _is_packed(b, x, rows, terms) and not counted:
        packed = b.flat(x)
    else:
        packed = empty_rows(b, rows, terms)
        sizes = (terms, row_bytes(b, terms), operands.shift, int(counted))
        b.call(pack_rows, b.flat(x), packed, totals, *sizes)
    return emit_packed_product(b, operands, (packed, totals), arrange, terms, result)


def emit_packed_product(
    b: Builder,
    operands: ByteOperands,
    rows: tuple[Operand, Operand],
    arrange: Callable[[Array], Array],
    terms: int,
    result: Result | None,
) -> Operand:
    """The product of packed rows of bytes with packed weights.

    Args:
        b: Records it.
        operands: What is multiplied.
        rows: Rows of uint8 as `pack_rows` leaves them, and `ByteOperands.row_totals`.
        arrange: Makes a matrix (terms, columns) of the weights.
        terms: Terms of each sum.
        result: What becomes of the sums; ``None`` leaves them int32.

    Returns:
        The result [rows, columns].
    """
    (packed, row_totals), w, x_zero = rows, operands.w, operands.x_zero
    count, width, level = row_totals.size, row_bytes(b, terms), level_of(b)
    columns = w.size // terms if terms else max(w.shape)
    panels, totals = packed_weights(b, w, arrange, columns, width)
    none = b.constant(np.zeros(1, np.int32))
    result = of_sums(b, columns) if result is None else result
    zeros = [none if zero is None else b.flat(zero) for zero in (x_zero, operands.w_zero)]
    factors = factors_of_columns(b, result, columns)
    result = replace(result, factors=factors)
    steps = row_steps(terms) if level.tiles else (1, STEP)
    table, in_registers = byte_table(b, operands, result, (terms, columns, width, steps[0]))
    y = b.empty((count, columns), result.dtype)
    finish = (result.scale, factors, result.bias, result.zero)
    b.call(
        multiply_bytes,
        packed,
        panels,
        ZeroPoints(row_totals, totals, *zeros),
        SumScaling(*map(b.flat, finish)),
        b.flat(y),
        b.empty((threads_of(b) * TOGETHER * TILE,), np.int32),
        b.constant(kernels_for(level, steps[1], result, in_registers)),
        b.constant(table),
        work=count * terms * columns // (4 * QUAD if level.tiles else QUAD),
        exec_type=byte_exec_type(level),
    )
    return y


def of_sums(b: Builder, columns: int) -> Result:
    """Sums of products as they are, in int32."""
    none, one = b.constant(np.zeros(1, np.int32)), b.constant(np.ones(1, np.float32))
    return Result(Kind.SUMS, np.int32, one, one, b.zeros(columns, np.int32), none)


def byte_table(
    b: Builder, operands: ByteOperands, result: Result, sizes: tuple[int, int, int, int]
) -> tuple[Array, bool]:
    """The table of `byte_tiles.multiply_bytes`, and whether its sums may end in registers.

    Args:
        b: Records the product.
        operands: What is multiplied.
        result: What sums become.
        sizes: Terms, columns, bytes of a packed row, and steps in which AMX takes it.
    """
    terms, columns, width, steps = sizes
    limits = np.iinfo(result.dtype if result.kind is Kind.LEVELS else np.int32)
    column_shift = -SHIFT if operands.w.dtype == np.uint8 else 0
    x_zero, w_zero = (zero is None or zero.size == 1 for zero in (operands.x_zero, operands.w_zero))
    equal = x_zero and result.factors.size == columns
    plain = equal and not operands.needs_row_totals
    head = (terms, columns, width // QUAD, operands.shift, column_shift, result.kind)
    least = 0 if result.positive else limits.min
    table = (*head, least, limits.max, steps, plain, block_steps(b))
    return np.array(table, np.int64), plain or (equal and w_zero)


def kernels_for(level: Level, step: int, result: Result, plain: bool = True) -> Array:
    """The kernels of a product, among them those that end sums in the registers if they may.

    These take no care of floats beyond int32: factors must be known, and less than 1.

    Args:
        level: Whose kernels.
        step: Terms that AMX takes at a time.
        result: What sums become.
        plain: What `byte_table` says of its sums.
    """
    scale, factors = result.scale.const, result.factors.const
    if result.kind is not Kind.LEVELS or not plain or scale is None or factors is None:
        return byte_kernels(level, step)
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.abs(scale.reshape(-1) * factors.reshape(-1)).max(initial=0)
    return byte_kernels(level, step, in_registers=bool(largest < 1))


def packed_weights(
    b: Builder, w: Operand, arrange: Callable[[Array], Array], columns: int, width: int
) -> tuple[Operand, Operand]:
    """``arrange(w)`` by panels of so many bytes down, and the sums of its columns."""
    if w.const is not None:
        key = f"of bytes {arrange.__name__}"
        form = Form(np.int8, (-(-columns // PANEL) * width * PANEL,))
        panels = b.prepack(
            w, f"panels {width} {key}", lambda a: _panels(arrange(a), width), form=form
        )
        sums = Form(np.int32, (columns,))
        return panels, b.prepack(w, f"totals {key}", lambda a: totals_of(arrange(a)), form=sums)
    panels = b.empty((-(-columns // PANEL) * width * PANEL,), np.int8)
    totals = b.empty((columns,), np.int32)
    b.call_numpy(_pack_weights, arrange, w, panels, totals, width)
    return panels, totals


def factors_of_columns(b: Builder, result: Result, columns: int) -> Operand:
    """A result's factors, one for each column if they are constant."""
    factors = result.factors
    if factors.size > 1 or factors.const is None:
        return factors
    return b.table((columns,), np.float32, np.full, columns, factors.const.reshape(-1)[0])


def _panels(matrix: Array, width: int) -> Array:
    return byte_panels(signed(matrix), width)


def threads_of(b: Builder) -> int:
    """How many threads may run a step."""
    return b.options.threads if isinstance(b.options, PrecisionPolicy) else usable_processors()
