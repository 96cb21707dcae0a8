"""8-bit tile kernels in vectors: rows of uint8 times a panel of int8, int32 accumulators.

A row is made of runs of bytes that lie at equal distances, as the lines under a window do. A panel
is as `amx_int8` has it: (quad, column, 4). A quad of a row is broadcast, and meets four bytes of
each column. One instruction multiplies them and adds them up, where the level has it; elsewhere
bytes are widened to 16 bits, and two instructions take two products each. Neither can overflow.

ARM's first such instruction, ``sdot``, takes int8 on both sides: rows are 128 less then, and 128
times the sums of the columns is added in the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from partita_cpu.llvm.epilogue import prefetch
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import AARCH64, Level
from partita_cpu.llvm.tiles.amx_int8 import COLUMNS
from partita_cpu.llvm.tiles.pair_sums import declaration as pair_sums_declaration
from partita_cpu.llvm.tiles.pair_sums import pair_sums

PARAMETERS = "ptr %a, i64 %lda, i64 %runs, i64 %pitch, ptr %b, i64 %quads, ptr %tile, ptr %ahead"
"""a: the first row of bytes; the others follow at distances of lda. runs: pieces of a row, `pitch`
bytes apart; quads: fours of bytes of each. b: the panel, run after run. tile: where the sums go,
64 to a row. ahead: what is needed next of the weights; of it an eighth as much is fetched as is
read, or a quarter where there are few registers."""

_CHAINS = 8
"""Sums that wait for one another: with fewer, several sets of them run side by side."""

_LINE = 64

_UNROLL = 2
"""Quads of a round of the innermost loop, which fetches one line ahead; with 16 registers sums
would be spilled."""


PART = 16
"""A panel's first columns are computed alone by so many, where the others do not exist."""

_MOST_PART_ROWS = 8
"""Of a part of a panel: more rows are no faster."""

_REGISTERS = 32
"""Of vectors with AVX-512."""


def most_rows(level: Level, columns: int = COLUMNS) -> int:
    """Most rows of a kernel: so many that all sums lie in registers.

    Args:
        level: Whose registers.
        columns: Of the panel, from the first one.
    """
    if level.lanes != 16:
        return 6 if level.dots_bytes else 4
    vectors, halves = columns // level.lanes, 1 if level.dots_bytes else 2
    # Weights, what they meet, and what is added; but for the instruction each in two halves.
    rows = (_REGISTERS - halves * (vectors + 1) - 1) // vectors
    return rows if columns == COLUMNS else min(rows, _MOST_PART_ROWS)


def dot_bytes(name: str, rows: int, level: Level, columns: int = COLUMNS) -> Function:
    """``tile = a @ b`` for so many rows, and the first columns; see `PARAMETERS`.

    All vectors of a row of the panel are taken at once with AVX-512, a pair of them else.
    """
    f = Function(name, PARAMETERS)
    vectors = columns // level.lanes if level.lanes == 16 else 2
    kind = f"<{level.lanes} x i32>"
    for first in range(0, columns // level.lanes, vectors):
        taken = range(first, first + vectors)
        totals = iter(_Pass(f, level, rows, taken).totals())
        for row, column in itertools.product(range(rows), taken):
            at = f.at("%tile", 4 * COLUMNS * row + 4 * level.lanes * column)
            f.do(f"store {kind} {next(totals)}, ptr {at}, align 4")
    f.do("ret void")
    return f


def sums_of_rows(f: Function, level: Level, rows: int, starts: list[str]) -> list[list[str]]:
    """Writes the sums of so many rows and the first columns, with AVX-512.

    Args:
        f: The kernel; of `PARAMETERS` it has all but the tile.
        level: One whose vectors have 16 lanes.
        rows: At most `most_rows`.
        starts: By vector of columns what the sums of every row begin with.

    Returns:
        By row the names of vectors of int32.
    """
    vectors = len(starts)
    totals = _Pass(f, level, rows, range(vectors), starts).totals()
    return [totals[vectors * row : vectors * (row + 1)] for row in range(rows)]


class _Pass:
    """Writes the sums of all rows and some vectors of columns.

    Args:
        f: The kernel.
        level: Its instructions.
        rows: How many.
        columns: Which vectors of a panel's columns.
        starts: By vector of columns what sums begin with; 0 if there is none.
    """

    def __init__(
        self, f: Function, level: Level, rows: int, columns: range, starts: Sequence[str] = ()
    ) -> None:
        self._f, self._level, self._rows, self._columns = f, level, rows, columns
        self._kind = f"<{level.lanes} x i32>"
        self._bytes = 4 * level.lanes
        self._sets = max(1, _CHAINS // (rows * len(columns)))
        self._shifted = _takes_signed(level)
        self._starts = [*starts] or ["zeroinitializer"] * len(columns)

    def totals(self) -> list[str]:
        """Names of the sums, row by row."""
        f, sets = self._f, self._sets
        unroll = max(sets, _UNROLL if self._unrolls else 1)
        per_set = self._rows * len(self._columns) + self._extras
        whole, rest = (f.let(f"{op} i64 %quads, {unroll}") for op in ("udiv", "urem"))

        def run(index: str, values: list[str]) -> list[str]:
            a = f.at("%a", f.let(f"mul i64 {index}, %pitch"))
            values = f.loop(whole, self._state([a, *values]), lambda _, v: self._round(v, unroll))
            return f.loop(rest, self._state(values), lambda _, v: self._steps(v, 1))[1:]

        starts = self._starts * self._rows
        zeros = ["zeroinitializer"] * (per_set * sets - len(starts))
        sums = f.loop("%runs", self._state(["%b", "%ahead", *starts, *zeros], 2), run)[2:]
        totals = sums[:per_set]
        for number in range(1, sets):
            pairs = zip(totals, sums[number * per_set :][:per_set], strict=True)
            totals = [f.let(f"add {self._kind} {x}, {y}") for x, y in pairs]
        products = self._rows * len(self._columns)
        return self._shifted_back(totals[:products], totals[products:])

    @property
    def _unrolls(self) -> bool:
        """Whether LLVM finds registers for the weights of two quads at once."""
        whole = len(self._columns) * self._level.lanes == COLUMNS
        return self._level.lanes == 16 and (whole or self._level.dots_bytes)

    def _state(self, values: list[str], pointers: int = 3) -> list[tuple[str, str]]:
        """Values with their types: a, b and what is ahead, then sums."""
        kinds = ["ptr"] * pointers + [self._kind] * (len(values) - pointers)
        return list(zip(kinds, values, strict=True))

    def _round(self, values: list[str], count: int) -> list[str]:
        """`count` quads, and a line of what is ahead."""
        values = self._steps(values, count)
        if self._columns[0] == 0:
            self._f.do(prefetch(values[2]))
            values[2] = self._f.at(values[2], _LINE)
        return values

    @property
    def _extras(self) -> int:
        """Sums of weights by column, beside those of products."""
        return len(self._columns) if self._shifted else 0

    def _shifted_back(self, totals: list[str], weights: list[str]) -> list[str]:
        """Adds what bytes of rows were taken too low: 128 times the sums of weights."""
        if not weights:
            return totals
        f, kind = self._f, self._kind
        seven = f.splat(self._level.lanes, "i32", "7")
        missing = [f.let(f"shl {kind} {x}, {seven}") for x in weights]
        return [
            f.let(f"add {kind} {total}, {missing[number % len(missing)]}")
            for number, total in enumerate(totals)
        ]

    def _steps(self, values: list[str], count: int) -> list[str]:
        """`count` quads: values are a, b, what is ahead, and the sums, set by set."""
        f, per_set = self._f, self._rows * len(self._columns) + self._extras
        a, b, ahead, *sums = values
        for k in range(count):
            at = f.at(b, 4 * COLUMNS * k)
            weights = [self._weights(f.at(at, self._bytes * c)) for c in self._columns]
            row_at = f.at(a, 4 * k)
            for row in range(self._rows):
                row_at = f.at(row_at, "%lda") if row else row_at
                factor = self._factor(f.load("i32", row_at, 1))
                for i, weight in enumerate(weights):
                    place = k % self._sets * per_set + row * len(self._columns) + i
                    sums[place] = self._add(sums[place], factor, weight)
            for i, weight in enumerate(weights if self._shifted else ()):
                place = k % self._sets * per_set + self._rows * len(self._columns) + i
                ones = self._cast(f.splat(self._level.lanes, "i32", str(0x01010101)), 8)
                sums[place] = self._add(sums[place], [ones], weight)
        return [f.at(a, 4 * count), f.at(b, 4 * COLUMNS * count), ahead, *sums]

    def _factor(self, quad: str) -> list[str]:
        """A quad of a row for every column; its even and odd bytes as 16 bits, if need be."""
        f, lanes = self._f, self._level.lanes
        if self._shifted:
            quad = f.let(f"xor i32 {quad}, {-0x7F7F7F80}")  # 128 less, in each byte
        if self._level.dots_bytes:
            return [self._cast(f.splat(lanes, "i32", quad), 8)]
        even = f.let(f"and i32 {quad}, 16711935")
        odd = f.let(f"and i32 {f.let(f'lshr i32 {quad}, 8')}, 16711935")
        return [self._cast(f.splat(lanes, "i32", half), 16) for half in (even, odd)]

    def _weights(self, pointer: str) -> list[str]:
        """A vector of quads; its even and odd bytes as 16 bits, if need be."""
        f, lanes = self._f, self._level.lanes
        quads = f.load(self._kind, pointer, 1)
        if self._level.dots_bytes:
            return [self._cast(quads, 8)]
        kind, eight = f"<{2 * lanes} x i16>", f.splat(2 * lanes, "i16", "8")
        pairs = self._cast(quads, 16)
        even = f.let(f"ashr {kind} {f.let(f'shl {kind} {pairs}, {eight}')}, {eight}")
        return [even, f.let(f"ashr {kind} {pairs}, {eight}")]

    def _cast(self, value: str, bits: int) -> str:
        kind = f"<{32 * self._level.lanes // bits} x i{bits}>"
        return self._f.let(f"bitcast {self._kind} {value} to {kind}")

    def _add(self, total: str, factor: list[str], weight: list[str]) -> str:
        f, kind = self._f, self._kind
        if self._level.dots_bytes:
            of = f"<{self._bytes} x i8>"
            call = f"call {kind} {_dot(self._level)}"
            return f.let(f"{call}({kind} {total}, {of} {factor[0]}, {of} {weight[0]})")
        for x, w in zip(factor, weight, strict=True):
            total = f.let(f"add {kind} {total}, {pair_sums(f, self._level, x, w)}")
        return total


def dot_quads(f: Function, total: str, quads: str, weights: str) -> str:
    """Sums of four products each, of uint8 and int8, with AVX-512: 16 of int32."""
    call = "call <16 x i32> @llvm.x86.avx512.vpdpbusd.512"
    return f.let(f"{call}(<16 x i32> {total}, <64 x i8> {quads}, <64 x i8> {weights})")


def _takes_signed(level: Level) -> bool:
    """Whether the instruction takes int8 on both sides."""
    return level.dots_bytes and level.architecture == AARCH64 and "i8mm" not in level.features


def _dot(level: Level) -> str:
    if level.architecture == AARCH64:
        return f"@llvm.aarch64.neon.{'sdot' if _takes_signed(level) else 'usdot'}.v4i32.v16i8"
    return f"@llvm.x86.avx512.vpdpbusd.{32 * level.lanes}"


def declarations(level: Level) -> str:
    """What the kernels call."""
    kind, size = f"<{level.lanes} x i32>", 4 * level.lanes
    if level.dots_bytes:
        return f"declare {kind} {_dot(level)}({kind}, <{size} x i8>, <{size} x i8>)\n"
    return pair_sums_declaration(level)
