"""Tile kernels of MatMulNBits for few rows: int16 rows times a panel of block-quantized weights.

Layout of a panel of 16 columns: one block after another, in steps of 16 terms; a step is ``bits /
2`` 32-bit words for each column, the same word of all columns side by side. Where ``t0, t1, ...``
are the terms of a word::

    bit     31     27     23     19     15     11      7      3    0
    4 bits  |  t7  |  t5  |  t3  |  t1  |  t6  |  t4  |  t2  |  t0 |
    8 bits  |      t3     |      t1     |      t2     |      t0    |

So one shift and one mask leave a pair of neighbouring terms in the two 16-bit halves of a lane, and
one instruction multiplies the pair of each column with a pair of the row and adds up. Of 6 bits,
two words hold the lower four bits of 16 terms as 4-bit weights, and a third one the upper two, as
`six_bit_quads` takes them apart.

Scales are an array of 16 for each block, and so are zero points where they differ. Both are int8
where they are integers times a factor that `GROUP_TERMS` terms of a column share (`scale_levels`).

Sums of a block are exact in int32: 256 terms of 16 bits times 8 bits. They are multiplied by the
scales of row and column and added up in float32. `rows_int16` has the layout of rows, and
says how zero points are removed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from partita_cpu.llvm.epilogue import prefetch
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import AARCH64, Level
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store
from partita_cpu.llvm.tiles.pair_sums import declaration as pair_sums_declaration
from partita_cpu.llvm.tiles.pair_sums import pair_sums

PARAMETERS = (
    "ptr %x, i64 %ldx, i64 %numbers, ptr %w, ptr %scales, ptr %zeros, i64 %blocks, i64 %steps, "
    "ptr %bias, ptr %y, i64 %ldy, i64 %columns, ptr %factors, ptr %zero_factors, i64 %each"
)
"""x: the first row; the others follow at distances of ldx bytes. numbers: bytes from the start of a
row to the two numbers (scale, zero-point correction) of its first block. w, scales, zeros: the
panel. blocks: number of blocks; steps: steps of 16 terms in a block. bias: one number per column.
y: the first row of the result; ldy: bytes between rows. columns: how many columns of the panel
exist. factors, zero_factors: float32, 16 for every `each` blocks of int8 scales and zero points;
not read otherwise."""

COLUMNS = 16
"""Columns of a panel."""

STEP = 16
"""Terms of a step."""

GROUP_TERMS = 256
"""Terms of a column whose int8 scales share a factor."""

AHEAD = 8192
"""Prefetch distance of weights into the first-level cache, in bytes: two pages, not one."""

_GROUP = 3

_FEW_ROWS = 4
"""With more rows, lines of the result are prefetched before the sums."""

_CHAINS = 4
"""Accumulators that hide the latency of an addition: with fewer sums, each is split in several."""


class Zeros(enum.IntEnum):
    """How a panel holds zero points."""

    EQUAL = 0  # it does not: all are equal
    BYTES = 1  # as uint8
    HALVES = 2  # as float16, multiplied by the scales
    FLOATS = 3  # as float32, multiplied by the scales
    LEVELS = 4  # as int8, which factors of groups make those multiplied by the scales

    @property
    def size(self) -> int:
        """Bytes of one."""
        return (0, 1, 2, 4, 1)[self]


class Variant(NamedTuple):
    """The number formats of a panel.

    Attributes:
        bits: Bits of a weight.
        halves: Whether scales are float16; else float32.
        zeros: The form of zero points.
        levels: Whether scales are int8, to be multiplied by factors of groups.
    """

    bits: int
    halves: bool
    zeros: Zeros
    levels: bool = False

    @property
    def name(self) -> str:
        """The prefix of the kernels' symbols."""
        scales = "i8" if self.levels else "f16" if self.halves else "f32"
        return f"blocks_{self.bits}_{scales}_{self.zeros.name.lower()}"

    @property
    def scale_bytes(self) -> int:
        """Bytes of a scale."""
        return 1 if self.levels else 2 if self.halves else 4


VARIANTS = tuple(
    Variant(bits, halves, zeros)
    for bits in (4, 6, 8)
    for halves in (False, True)
    for zeros in Zeros
    if zeros is not Zeros.LEVELS and (halves or zeros is not Zeros.HALVES)
)

LEVEL_VARIANTS = tuple(
    Variant(bits, False, zeros, levels=True)
    for bits in (4, 6, 8)
    for zeros in (Zeros.EQUAL, Zeros.LEVELS)
)
"""Only for few rows: for many, int8 scales are widened to float32 first."""


def row_counts(level: Level) -> tuple[int, ...]:
    """Row counts that have a kernel; with the largest one, accumulators just fit in registers."""
    return {16: (1, 2, 3, 4, 6, 8, 12), 8: (1, 2, 3), 4: (1, 2)}[level.lanes]


def scales_by_exponents(level: Level) -> bool:
    """Whether scales of rows are powers of two times a factor of the row.

    Then one instruction (``vscalefps``) applies a scale by adding to exponents. On Zen 4, for which
    this is, it uses the units that add, while products of many rows are limited by those that
    multiply.
    """
    return level.lanes == 16 and level.dots_bfloat16 and not level.tiles


def functions(level: Level, variant: Variant) -> list[Function]:
    """All kernels of a level for one variant of panels."""
    return [
        dot_blocks(f"{variant.name}_{rows}", rows, level, variant) for rows in row_counts(level)
    ]


def dot_blocks(name: str, rows: int, level: Level, variant: Variant) -> Function:
    """The kernel of ``y = x @ w + bias`` for so many rows; see `PARAMETERS`."""
    return _DotBlocks(name, rows, level, variant).function()


class _DotBlocks:
    """Generates one kernel."""

    def __init__(self, name: str, rows: int, level: Level, variant: Variant) -> None:
        self._f = Function(name, PARAMETERS)
        self._rows, self._level, self._variant = rows, level, variant
        self._lanes, self._bytes = level.lanes, 4 * level.lanes
        self._vectors = range(COLUMNS // level.lanes)
        self._floats = f"<{level.lanes} x float>"
        self._ints = f"<{level.lanes} x i32>"
        self._shorts = f"<{2 * level.lanes} x i16>"
        self._places = [(row, v) for row in range(rows) for v in self._vectors]
        self._sets = max(1, _CHAINS // len(self._places))
        self._groups = -(-rows // _GROUP)  # of rows that share a pointer
        self._twice = ""
        self._scales = scales_by_exponents(level)
        self._factors: list[list[str]] = []
        self._pointers = 0

    def function(self) -> Function:
        f = self._f
        self._twice = f.let("shl i64 %ldx, 1")
        thrice = f.let(f"add i64 %ldx, {self._twice}")
        rows, numbers = ["%x"], [f.at("%x", "%numbers")]
        for _ in range(1, self._groups):
            rows.append(f.at(rows[-1], thrice))
            numbers.append(f.at(numbers[-1], thrice))
        masks = column_masks(f, "%columns", self._lanes, len(self._vectors))
        bias = [
            masked_load(f, self._lanes, f.at("%bias", self._bytes * v), masks[v])
            for v in self._vectors
        ]
        if self._rows > _FEW_ROWS:
            line = "%y"
            for row in range(self._rows):
                line = f.at(line, "%ldy") if row else line
                f.do(prefetch(line, 3))
        pointers = ["%w", "%scales", "%zeros", *rows, *numbers]
        self._pointers = len(pointers)
        firsts = ["zeroinitializer"] * len(bias) if self._scales else bias
        state = [*pointers, *(firsts[v] for _, v in self._places)]
        if self._variant.levels:
            groups = f.let("sdiv i64 %blocks, %each")
            factors = [("ptr", "%factors"), ("ptr", "%zero_factors")]
            done = f.loop(groups, [*factors, *self._typed(state)], self._group)[2:]
        else:
            done = f.loop("%blocks", self._typed(state), self._block)
        numbers, done = done[len(pointers) - len(numbers) : len(pointers)], done[len(pointers) :]
        to = "%y"
        for (row, v), total in zip(self._places, done, strict=True):
            to = f.at(to, "%ldy") if row and v == 0 else to
            if self._scales:
                factor = self._row_number(f.at(self._at_row(numbers, row), 4))
                total = f.fma(self._lanes, total, factor, bias[v])
            masked_store(f, self._lanes, total, f.at(to, self._bytes * v), masks[v])
        f.do("ret void")
        return f

    def _typed(self, state: list[str]) -> list[tuple[str, str]]:
        """Loop-carried values with their types: pointers, then float32 accumulators."""
        count = self._pointers
        typed = [("ptr", value) for value in state[:count]]
        return typed + [(self._floats, value) for value in state[count:]]

    def _group(self, _: str, values: list[str]) -> list[str]:
        """The blocks of a group, which share factors; values: pointers to these, then the state."""
        f, places, state = self._f, values[:2], values[2:]
        read = places if self._variant.zeros is Zeros.LEVELS else places[:1]
        self._factors = [
            [f.load(self._floats, f.at(place, self._bytes * v)) for v in self._vectors]
            for place in read
        ]
        after = f.loop("%each", self._typed(state), self._block)
        return [*[f.at(place, 4 * COLUMNS) for place in places], *after]

    def _at_row(self, pointers: list[str], row: int) -> str:
        """The pointer to a row, from the pointer of its group of rows."""
        group, within = divmod(row, _GROUP)
        stride = (None, "%ldx", self._twice)[within]
        return pointers[group] if stride is None else self._f.at(pointers[group], stride)

    def _block(self, _: str, values: list[str]) -> list[str]:
        """One block; values: pointers into the panel and the rows, and float32 accumulators."""
        f, count = self._f, self._groups
        (w, scales_at, zeros_at), rows = values[:3], values[3 : 3 + count]
        numbers, totals = values[3 + count : 3 + 2 * count], values[3 + 2 * count :]
        sums = [self._first_sum(self._at_row(numbers, row)) for row, _ in self._places]
        sums += ["zeroinitializer"] * (len(sums) * (self._sets - 1))
        state = [("ptr", pointer) for pointer in (w, *rows)] + [(self._ints, s) for s in sums]
        w, *after = f.loop("%steps", state, self._step)
        rows, sums = after[:count], after[count:]
        f.do(prefetch(f.at(scales_at, AHEAD // 8)))
        size = self._variant.scale_bytes
        if self._variant.levels:
            scales = self._of_levels(scales_at, self._factors[0])
        else:
            scales = [
                column_numbers(f, self._lanes, f.at(scales_at, size * self._lanes * v), size)
                for v in self._vectors
            ]
        zeros = self._zero_terms(zeros_at, scales)
        for place, (row, v) in enumerate(self._places):
            total = self._added(sums[place :: len(self._places)])
            product = f.let(f"sitofp {self._ints} {total} to {self._floats}")
            of_row = self._at_row(numbers, row)
            product = self._scaled(product, self._row_number(of_row))
            totals[place] = self._f.fma(self._lanes, scales[v], product, totals[place])
            if zeros:
                below = f.let(f"fneg {self._floats} {self._row_number(f.at(of_row, 4))}")
                totals[place] = self._f.fma(self._lanes, zeros[v], below, totals[place])
        scales_at = f.at(scales_at, size * COLUMNS)
        zeros_at = f.at(zeros_at, self._variant.zeros.size * COLUMNS)
        following = [f.at(pointer, 8) for pointer in numbers]
        return [w, scales_at, zeros_at, *rows, *following, *totals]

    def _first_sum(self, numbers: str) -> str:
        """The initial value of a block's accumulator."""
        if self._variant.zeros is not Zeros.EQUAL:
            return "zeroinitializer"
        f = self._f
        return f.splat(self._lanes, "i32", f.load("i32", f.at(numbers, 4)))

    def _scaled(self, product: str, number: str) -> str:
        """A product times the row's scale of the block, or times 2 to the power of its exponent."""
        f, kind = self._f, self._floats
        if not self._scales:
            return f.let(f"fmul {kind} {product}, {number}")
        return times_power_of_two(f, kind, product, number)

    def _row_number(self, pointer: str) -> str:
        return self._f.splat(self._lanes, "float", self._f.load("float", pointer))

    def _zero_terms(self, pointer: str, scales: list[str]) -> list[str]:
        """Zero points times scales, as vectors; empty if all are equal."""
        f, zeros = self._f, self._variant.zeros
        if zeros is Zeros.EQUAL:
            return []
        if zeros is Zeros.LEVELS:
            return self._of_levels(pointer, self._factors[1])
        at = [f.at(pointer, zeros.size * self._lanes * v) for v in self._vectors]
        found = [column_numbers(f, self._lanes, place, zeros.size) for place in at]
        if zeros is not Zeros.BYTES:
            return found
        pairs = zip(found, scales, strict=True)
        return [f.let(f"fmul {self._floats} {zero}, {scale}") for zero, scale in pairs]

    def _of_levels(self, pointer: str, factors: list[str]) -> list[str]:
        """The int8 numbers of a block times their factors, as vectors."""
        f, bytes_of = self._f, f"<{self._lanes} x i8>"
        found = []
        for v in self._vectors:
            levels = f.load(bytes_of, f.at(pointer, self._lanes * v), 1)
            floats = f.let(f"sitofp {bytes_of} {levels} to {self._floats}")
            found.append(f.let(f"fmul {self._floats} {floats}, {factors[v]}"))
        return found

    def _added(self, sums: list[str]) -> str:
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [self._f.let(f"add {self._ints} {x}, {y}") for x, y in pairs]
        return sums[0]

    def _step(self, _: str, values: list[str]) -> list[str]:
        """16 terms; values: the weight pointer, the row pointers, and the int32 accumulators."""
        f, count, bits = self._f, self._groups, self._variant.bits
        w, rows, sums = values[0], values[1 : 1 + count], values[1 + count :]
        size = COLUMNS * STEP * bits // 8
        for line in range(0, size, 64):
            f.do(prefetch(f.at(w, AHEAD + line), 3))
        for pair, weights in self._pairs(w):
            chosen = pair % self._sets * len(self._places)
            for row in range(self._rows):
                factor = self._factor(f.at(self._at_row(rows, row), 4 * pair))
                for v in self._vectors:
                    place_of_sum = chosen + row * len(self._vectors) + v
                    sums[place_of_sum] = add_pairs(
                        f, self._level, sums[place_of_sum], factor, weights[v]
                    )
        return [f.at(w, size), *[f.at(row, 2 * STEP) for row in rows], *sums]

    def _pairs(self, w: str) -> Iterator[tuple[int, list[str]]]:
        """The pairs of a step: the number of the pair, and its weights as vectors."""
        bits = self._variant.bits
        if bits == 6:
            words = [self._words(w, word) for word in range(3)]
            quads = [six_bit_quads(self._f, self._lanes, of) for of in zip(*words, strict=True)]
            for quad in range(STEP // 4):
                chosen = [of_vector[quad] for of_vector in quads]
                for half, pair in enumerate(quad_pairs(quad)):
                    yield pair, [self._shifted(word, 8 * half, 8) for word in chosen]
            return
        for word in range(bits // 2):
            found = self._words(w, word)
            for part in range(16 // bits):
                weights = [self._shifted(each, bits * part, bits) for each in found]
                yield word * (16 // bits) + part, weights

    def _words(self, w: str, word: int) -> list[str]:
        """One word of a step for each column, as vectors."""
        place = self._f.at(w, word * 4 * COLUMNS)
        at = [self._f.at(place, self._bytes * v) for v in self._vectors]
        return [self._f.load(self._shorts, vector, 1) for vector in at]

    def _factor(self, pointer: str) -> str:
        """A pair of a row, broadcast to all columns."""
        pairs = self._f.splat(self._lanes, "i32", self._f.load("i32", pointer))
        return self._f.let(f"bitcast {self._ints} {pairs} to {self._shorts}")

    def _shifted(self, words: str, shift: int, bits: int) -> str:
        """The weights that begin at bit `shift` of both halves of each word, as 16-bit numbers."""
        f, kind, wide = self._f, self._shorts, 2 * self._lanes
        if shift:
            words = f.let(f"lshr {kind} {words}, {f.splat(wide, 'i16', str(shift))}")
        if shift + bits < 16:
            words = f.let(f"and {kind} {words}, {f.splat(wide, 'i16', str((1 << bits) - 1))}")
        return words


_SCALE, _AS_SET = "@llvm.x86.avx512.mask.scalef.ps.512", 4
"""Multiplies by a power of two, and the mode of rounding that the processor is in."""

_LOW_BITS, _HIGH_BITS = 0x0F0F, 0x3030

_HIGH_SHIFTS = (0, -2, 4, 2)
"""Left shifts that bring the quads' upper two bits into place; negative: to the right."""


def quad_pairs(quad: int) -> tuple[int, int]:
    """The two pairs, of the eight of a step, that a quad of `six_bit_quads` holds."""
    first = quad // 2 * 4 + quad % 2
    return first, first + 2


def six_bit_quads(f: Function, lanes: int, words: Sequence[str]) -> list[str]:
    """Unpacks a step of 6-bit weights to four words (quads) of four bytes, each with two pairs.

    The bytes of a quad are the first terms of both pairs, then the second terms.

    Args:
        f: The function to append to.
        lanes: Columns of a vector.
        words: The three words, as vectors of 16 bits.
    """
    kind, (*lows, top) = f"<{2 * lanes} x i16>", words

    def masked(word: str, left: int, mask: int) -> str:
        if left:
            amount = f.splat(2 * lanes, "i16", str(abs(left)))
            word = f.let(f"{'shl' if left > 0 else 'lshr'} {kind} {word}, {amount}")
        return f.let(f"and {kind} {word}, {f.splat(2 * lanes, 'i16', str(mask))}")

    found = []
    for quad, left in enumerate(_HIGH_SHIFTS):
        low = masked(lows[quad // 2], -4 * (quad % 2), _LOW_BITS)
        found.append(f.let(f"or {kind} {low}, {masked(top, left, _HIGH_BITS)}"))
    return found


def times_power_of_two(f: Function, kind: str, product: str, exponent: str) -> str:
    """Floats of 16 lanes times 2 to the power of whole numbers, which are floats, too."""
    more = f"{kind} zeroinitializer, i16 -1, i32 {_AS_SET}"
    return f.let(f"call {kind} {_SCALE}({kind} {product}, {kind} {exponent}, {more})")


def add_pairs(f: Function, level: Level, total: str, x: str, w: str) -> str:
    """Adds to int32 accumulators the products of a pair of 16-bit numbers in each lane."""
    ints, of = f"<{level.lanes} x i32>", f"<{2 * level.lanes} x i16>"
    if _adds_up(level):
        return f.let(f"call {ints} {_dot(level)}({ints} {total}, {of} {x}, {of} {w})")
    return f.let(f"add {ints} {total}, {pair_sums(f, level, x, w)}")


def column_numbers(f: Function, lanes: int, pointer: str, size: int) -> str:
    """One number per column as float32, from floats of 4 or 2 bytes, or from uint8."""
    floats = f"<{lanes} x float>"
    if size == 4:
        return f.load(floats, pointer)
    if size == 2:
        half = f"<{lanes} x half>"
        return f.let(f"fpext {half} {f.load(half, pointer, 2)} to {floats}")
    return f.let(f"uitofp <{lanes} x i8> {f.load(f'<{lanes} x i8>', pointer, 1)} to {floats}")


def _adds_up(level: Level) -> bool:
    """Whether one instruction multiplies pairs and adds them to a sum."""
    return level.dots_bytes and level.architecture != AARCH64


def _dot(level: Level) -> str:
    return f"@llvm.x86.avx512.vpdpwssd.{32 * level.lanes}"


def declarations(level: Level) -> str:
    """What the kernels call, beyond those of `fma` and `masked`."""
    if not _adds_up(level):
        return pair_sums_declaration(level)
    ints, of = f"<{level.lanes} x i32>", f"<{2 * level.lanes} x i16>"
    declared = f"declare {ints} {_dot(level)}({ints}, {of}, {of})\n"
    if scales_by_exponents(level):
        floats = f"<{level.lanes} x float>"
        declared += f"declare {floats} {_SCALE}({floats}, {floats}, {floats}, i16, i32)\n"
    return declared
