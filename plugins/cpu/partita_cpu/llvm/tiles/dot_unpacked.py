"""Tile kernels of MatMulNBits for many rows: int16 or int8 rows times weights unpacked beforehand.

`dot_blocks` unpacks a panel's weights again for every few rows. On a processor with few registers
(few rows at a time) this costs a third of the time of the products, so many rows share weights that
were unpacked once into the first-level cache.

Unpacked weights are 32-bit words, those of all columns side by side. A word holds

- a pair: two neighbouring terms as int16, the integer zero point already subtracted; rows are int16
  in the layout of `rows_int16`; or
- a quad: four levels as uint8; rows are int8 in the order of `quad_order`, the one in which shifts
  and masks find weights in packed words. Where `subtracts_zeros` is true, a quad is four levels
  less their zero points as int8, and rows are uint8, 128 more than they were.

A unit is a run of terms that has one scale on both sides. Its sums are exact: those of quads in
int32, where an instruction multiplies four bytes and adds them up, else in int16 until the unit
ends. The latter is for 4-bit weights and units of at most `SHORT_UNIT` terms: a lane then adds up
16 products of at most 15 * 127, which is 30480.

Zero points that are not subtracted yet are removed in float32: zero point times scale, times the
sum of the row's terms. Where all are equal and sums are int32, these start at the correction
instead, which is the second number of the row's unit. Where quads are int8, sums start at what the
128 come to, which is the term of the column's unit as int32.
"""

from __future__ import annotations

import enum

from partita_cpu.llvm.epilogue import prefetch
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import AARCH64, Level
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store
from partita_cpu.llvm.tiles.dot_blocks import (
    Variant,
    Zeros,
    add_pairs,
    scales_by_exponents,
    times_power_of_two,
)
from partita_cpu.llvm.tiles.pair_sums import declaration as pair_sums_declaration
from partita_cpu.llvm.tiles.pair_sums import pair_sums

PARAMETERS = (
    "ptr %x, i64 %ldx, ptr %numbers, ptr %w, ptr %scales, ptr %terms, i64 %units, i64 %words, "
    "ptr %from, i64 %ldfrom, ptr %y, i64 %ldy, i64 %columns, ptr %ahead, ptr %factor"
)
"""x: the first word of the first row; ldx: bytes between rows. numbers: the two numbers (scale,
zero-point correction) of its first unit. w: words, `width` for each word of a row. scales, terms:
float32, `width` for each unit; terms of quads of int8: int32. units: number of units; words: words
of a unit. from: what is added, ldfrom bytes between rows. y: the result, ldy bytes between rows.
columns: how many columns exist. ahead: what is read next, one line of which is prefetched for each
unit. factor: that of the first row, ldx bytes from those of the others; read for pairs where
`scales_by_exponents` is true."""

BLOCK_BITS = (4, 8)
"""Bits of block-quantized weights in a model."""

PANEL_BITS = (4, 6, 8)
"""Bits of block-quantized weights in a panel."""

SHORT_UNIT = 32
"""Most terms of a unit whose sums of quads are int16."""

_AHEAD = 64
"""Prefetch distance of rows, in bytes."""

_GROUP = 3
"""Rows that share a pointer."""

_VECTORS = range(2)

_HELD = 12
"""float32 accumulators that fit in registers beside those of a unit, where there are 32."""


class Factors(enum.Enum):
    """What a 32-bit word of unpacked weights holds."""

    PAIRS = "pairs"  # of int16
    QUADS = "quads"  # of bytes

    @property
    def size(self) -> int:
        """Bytes of a factor."""
        return 2 if self is Factors.PAIRS else 1


def width(level: Level) -> int:
    """Columns of a kernel's tile."""
    return len(_VECTORS) * level.lanes


def quad_order(bits: int) -> tuple[int, ...]:
    """The order in which bytes hold terms, as shifts and masks find them in packed words."""
    return (0, 2, 1, 3) if bits == 8 else (0, 4, 1, 5, 2, 6, 3, 7)


def longest_unit(level: Level, bits: int) -> int:
    """Most terms of a unit whose sums of quads are exact; 0 if a level has no kernels for it.

    With tiles there are none: products of bfloat16 split in parts take no longer there.
    """
    if not level.native or level.architecture == AARCH64 or level.tiles:
        return 0
    if level.dots_bytes:
        return 1 << 16
    return SHORT_UNIT if bits == 4 else 0


def row_counts(level: Level, factors: Factors) -> tuple[int, ...]:
    """Rows that there are kernels for: of the largest sums, weights and a factor fit registers.

    Of 32 registers that is both sums, of a unit and of floats.
    """
    if factors is Factors.QUADS and not longest_unit(level, 4):
        return ()
    if level.lanes == 8:
        return (1, 2, 3, 4, 5, 6)
    return (1, 2, 4, 6) if level.lanes == 16 else ()


def kernel_name(rows: int, factors: Factors, has_terms: bool, signed: bool = False) -> str:
    """The symbol of a kernel."""
    kind = "signed_" if signed else "terms_" if has_terms else ""
    return f"{factors.value}_{kind}{rows}"


def pair_functions(level: Level) -> list[Function]:
    """All kernels for pairs."""
    return [
        _Dots(rows, level, Factors.PAIRS, has_terms).function()
        for has_terms in (False, True)
        for rows in row_counts(level, Factors.PAIRS)
    ]


def quad_functions(level: Level) -> list[Function]:
    """All kernels for quads; without terms where sums can begin with what comes off."""
    kinds = [(False, False), (False, True), (True, False)] if level.dots_bytes else [(True, False)]
    return [
        _Dots(rows, level, Factors.QUADS, has_terms, signed).function()
        for has_terms, signed in kinds
        for rows in row_counts(level, Factors.QUADS)
    ]


def begins_with_zeros(level: Level, variant: Variant) -> bool:
    """Whether sums of quads begin with what zero points of such weights take off."""
    return level.dots_bytes and variant.zeros is Zeros.EQUAL


def subtracts_zeros(level: Level, variant: Variant) -> bool:
    """Whether quads of such weights are int8, less their zero points, and rows uint8."""
    return level.dots_bytes and variant.zeros is Zeros.BYTES and variant.bits == 4


class _Dots:
    """Writes one kernel.

    Where few registers are, sums of float32 lie in memory: they are touched once a unit, and
    registers hold whole sums.
    """

    def __init__(
        self,
        rows: int,
        level: Level,
        factors: Factors,
        has_terms: bool,
        signed: bool = False,
    ) -> None:
        self._f = Function(kernel_name(rows, factors, has_terms, signed), PARAMETERS)
        self._signed = signed
        self._rows, self._level, self._has_terms = rows, level, has_terms
        self._places = [(row, v) for row in range(rows) for v in _VECTORS]
        lanes = self._lanes = level.lanes
        self._bytes = 4 * lanes
        self._floats, self._ints = f"<{lanes} x float>", f"<{lanes} x i32>"
        self._shorts, self._quads = f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"
        self._factor = self._shorts if factors is Factors.PAIRS else self._quads
        self._exponents = factors is Factors.PAIRS and scales_by_exponents(level)
        self._begins = factors is Factors.QUADS and not has_terms
        self._is_short = factors is Factors.QUADS and not level.dots_bytes
        self._sum = self._shorts if self._is_short else self._ints
        self._groups = -(-rows // _GROUP)
        self._twice = self._totals = ""
        self._held = lanes == 16 and len(self._places) <= _HELD

    def function(self) -> Function:
        """The kernel."""
        f = self._f
        size = len(self._places)
        if not self._held:
            self._totals = f.let(f"alloca [{size} x {self._floats}], align {self._bytes}")
        self._twice = f.let("shl i64 %ldx, 1")
        thrice = f.let(f"add i64 %ldx, {self._twice}")
        masks = column_masks(f, "%columns", self._lanes, len(_VECTORS))
        target = "%y"
        for row, v in self._places:
            target = f.at(target, "%ldy") if row and v == 0 else target
            if v == 0:
                f.do(prefetch(target, 3))
            if not self._held:
                self._store(row, v, "zeroinitializer")
        pointers = ["%w", "%scales", "%terms", "%x", "%numbers"]
        for _ in range(1, self._groups):
            pointers += [f.at(pointer, thrice) for pointer in pointers[-2:]]
        state = [("ptr", pointer) for pointer in pointers]
        if self._held:
            state += [(self._floats, "zeroinitializer")] * size
        totals = f.loop("%units", state, self._unit)[len(pointers) :]
        source, target, place, factor = "%from", "%y", "%factor", ""
        for row, v in self._places:
            if row and v == 0:
                source, target = f.at(source, "%ldfrom"), f.at(target, "%ldy")
                place = f.at(place, "%ldx")
            if self._exponents and v == 0:
                factor = self._row_number(place)
            first = masked_load(f, self._lanes, f.at(source, self._bytes * v), masks[v])
            found = totals[row * len(_VECTORS) + v] if self._held else self._load(row, v)
            if factor:
                total = f.fma(self._lanes, found, factor, first)
            else:
                total = f.let(f"fadd {self._floats} {first}, {found}")
            masked_store(f, self._lanes, total, f.at(target, self._bytes * v), masks[v])
        f.do("ret void")
        return f

    def _place(self, row: int, v: int) -> str:
        return self._f.at(self._totals, self._bytes * (row * len(_VECTORS) + v))

    def _load(self, row: int, v: int) -> str:
        return self._f.load(self._floats, self._place(row, v), self._bytes)

    def _store(self, row: int, v: int, value: str) -> None:
        place = self._place(row, v)
        self._f.do(f"store {self._floats} {value}, ptr {place}, align {self._bytes}")

    def _at_row(self, pointers: list[str], row: int) -> str:
        """Where a row is, by the pointer of its group."""
        group, within = divmod(row, _GROUP)
        stride = (None, "%ldx", self._twice)[within]
        return pointers[group] if stride is None else self._f.at(pointers[group], stride)

    def _unit(self, number: str, values: list[str]) -> list[str]:
        """A unit: values are weights, scales, terms, then rows and their numbers by groups."""
        f = self._f
        f.do(prefetch(f.at("%ahead", f.let(f"shl i64 {number}, 6"))))
        count = 3 + 2 * self._groups
        values, totals = values[:count], values[count:]
        (w, scales, terms), rows, numbers = values[:3], values[3::2], values[4::2]
        state = [("ptr", pointer) for pointer in (w, *rows)]
        state += [(self._sum, first) for first in self._first_sums(numbers, terms)]
        after = f.loop("%words", state, self._word)
        w, rows, sums = after[0], after[1 : 1 + len(rows)], after[1 + len(rows) :]
        for row in range(self._rows):
            f.do(prefetch(f.at(self._at_row(rows, row), _AHEAD), 3))
        of_columns = [f.load(self._floats, f.at(scales, self._bytes * v)) for v in _VECTORS]
        of_zeros = []
        if self._has_terms:
            of_zeros = [f.load(self._floats, f.at(terms, self._bytes * v)) for v in _VECTORS]
        for row in range(self._rows):
            of_row = self._at_row(numbers, row)
            scale = self._row_number(of_row)
            below = ""
            if self._has_terms:
                below = f.let(f"fneg {self._floats} {self._row_number(f.at(of_row, 4))}")
            for v in _VECTORS:
                place = row * len(_VECTORS) + v
                total = totals[place] if self._held else self._load(row, v)
                if below:
                    total = self._f.fma(self._lanes, of_zeros[v], below, total)
                found = self._whole(sums[row * len(_VECTORS) + v])
                found = f.let(f"sitofp {self._ints} {found} to {self._floats}")
                if self._exponents:
                    found = times_power_of_two(f, self._floats, found, scale)
                else:
                    found = f.let(f"fmul {self._floats} {found}, {scale}")
                total = self._f.fma(self._lanes, of_columns[v], found, total)
                if self._held:
                    totals[place] = total
                else:
                    self._store(row, v, total)
        each = 4 * width(self._level)
        following = [w, f.at(scales, each), f.at(terms, each)]
        for of_rows, of_numbers in zip(rows, numbers, strict=True):
            following += [of_rows, f.at(of_numbers, 8)]
        return [*following, *totals]

    def _first_sums(self, numbers: list[str], terms: str) -> list[str]:
        """What the sums of a unit begin with, place by place."""
        if not self._begins:
            return ["zeroinitializer"] * len(self._places)
        f, found = self._f, []
        if self._signed:
            of_columns = [f.load(self._ints, f.at(terms, self._bytes * v)) for v in _VECTORS]
            return of_columns * self._rows
        for row in range(self._rows):
            number = f.load("i32", f.at(self._at_row(numbers, row), 4))
            found += [f.splat(self._lanes, "i32", number)] * len(_VECTORS)
        return found

    def _whole(self, total: str) -> str:
        """A sum as int32."""
        if not self._is_short:
            return total
        ones = self._f.splat(2 * self._lanes, "i16", "1")
        return pair_sums(self._f, self._level, total, ones)

    def _word(self, _: str, values: list[str]) -> list[str]:
        """A word of each row: values are the weights, the rows by groups, and the sums.

        One at a time: of two, LLVM would add the products of a sum first, in more registers.
        """
        f, groups = self._f, self._groups
        w, rows, sums = values[0], values[1 : 1 + groups], values[1 + groups :]
        weights = [f.load(self._factor, f.at(w, self._bytes * v)) for v in _VECTORS]
        for row in range(self._rows):
            word = f.splat(self._lanes, "i32", f.load("i32", self._at_row(rows, row)))
            factor = f.let(f"bitcast {self._ints} {word} to {self._factor}")
            for v in _VECTORS:
                place = row * len(_VECTORS) + v
                sums[place] = self._added(sums[place], factor, weights[v])
        return [f.at(w, 4 * width(self._level)), *[f.at(row, 4) for row in rows], *sums]

    def _added(self, total: str, x: str, w: str) -> str:
        """Sums, and the products of a word in each lane."""
        f = self._f
        if self._factor == self._shorts:
            return add_pairs(f, self._level, total, x, w)
        of = f"{self._quads} {w}, {self._quads} {x}"
        if self._signed:
            of = f"{self._quads} {x}, {self._quads} {w}"
        if self._is_short:
            products = f.let(f"call {self._shorts} {_pairs_of_quads(self._level)}({of})")
            return f.let(f"add {self._shorts} {total}, {products}")
        return f.let(f"call {self._ints} {_dot_quads(self._level)}({self._ints} {total}, {of})")

    def _row_number(self, pointer: str) -> str:
        return self._f.splat(self._lanes, "float", self._f.load("float", pointer))


def _pairs_of_quads(level: Level) -> str:
    """Multiplies uint8 by int8, and adds neighbouring products: int16."""
    return "@llvm.x86." + ("avx512.pmaddubs.w.512" if level.lanes == 16 else "avx2.pmadd.ub.sw")


def _dot_quads(level: Level) -> str:
    """Multiplies uint8 by int8, and adds four products to an int32."""
    return f"@llvm.x86.avx512.vpdpbusd.{32 * level.lanes}"


def quad_declarations(level: Level) -> str:
    """What the kernels for quads call, beyond those of `fma` and `masked`."""
    if not row_counts(level, Factors.QUADS):
        return ""
    ints, quads = f"<{level.lanes} x i32>", f"<{4 * level.lanes} x i8>"
    if level.dots_bytes:
        return f"declare {ints} {_dot_quads(level)}({ints}, {quads}, {quads})\n"
    products = f"declare <{2 * level.lanes} x i16> {_pairs_of_quads(level)}({quads}, {quads})\n"
    return products + pair_sums_declaration(level)
