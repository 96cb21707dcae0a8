"""Rows of int16 times weights of a panel that were made int16: for many rows, in vectors of 8.

`dot_blocks` makes 16-bit factors of a panel's weights for every few rows. A processor with few
registers has so few rows at a time that this costs a third of the products; so many rows share what
was unpacked once, which stays in the first-level cache. Weights are pairs of neighbouring terms,
16 columns side by side, and integer zero points are taken off; others are left as terms, multiplied
by the scales. Rows are those of `dot_blocks`.
"""

from __future__ import annotations

from partita_cpu.llvm.epilogue import prefetch
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store
from partita_cpu.llvm.tiles.dot_blocks import COLUMNS, add_pairs

PARAMETERS = (
    "ptr %x, i64 %ldx, ptr %numbers, ptr %w, ptr %scales, ptr %terms, i64 %blocks, i64 %pairs, "
    "ptr %from, i64 %ldfrom, ptr %y, i64 %ldy, i64 %columns"
)
"""x: the first term of the first row; ldx: bytes between rows. numbers: the two numbers of its
first block. w: pairs of int16. scales, terms: float32, 16 for each block. blocks: how many; pairs:
of each. from: what is added, ldfrom bytes between rows. y: the result, ldy between rows.
columns: how many exist."""

_AHEAD = 64
"""Bytes of rows ahead of which they are fetched."""

_GROUP = 3
_LANES = 8
_VECTOR = 4 * _LANES
_FLOATS, _INTS, _SHORTS = "<8 x float>", "<8 x i32>", "<16 x i16>"
_VECTORS = range(COLUMNS // _LANES)


def row_counts(level: Level) -> range:
    """Rows that there are kernels for: so many that sums, weights and a factor fit registers."""
    return range(1, 7) if level.lanes == _LANES else range(0)


def kernel_name(rows: int, has_terms: bool) -> str:
    """The symbol of a kernel."""
    return f"pairs_{'terms_' if has_terms else ''}{rows}"


def functions(level: Level) -> list[Function]:
    """All kernels of a level."""
    return [
        _DotPairs(rows, level, has_terms).function()
        for has_terms in (False, True)
        for rows in row_counts(level)
    ]


class _DotPairs:
    """Writes one kernel.

    Sums of float32 lie in memory: they are touched once a block, and registers hold those of int32.
    """

    def __init__(self, rows: int, level: Level, has_terms: bool) -> None:
        self._f = Function(kernel_name(rows, has_terms), PARAMETERS)
        self._rows, self._level, self._has_terms = rows, level, has_terms
        self._places = [(row, v) for row in range(rows) for v in _VECTORS]
        self._twice = self._totals = ""

    def function(self) -> Function:
        """The kernel."""
        f = self._f
        self._totals = f.let(f"alloca [{len(self._places)} x {_FLOATS}], align {_VECTOR}")
        self._twice = f.let("shl i64 %ldx, 1")
        thrice = f.let(f"add i64 %ldx, {self._twice}")
        masks = column_masks(f, "%columns", _LANES, len(_VECTORS))
        target = "%y"
        for row, v in self._places:
            target = f.at(target, "%ldy") if row and v == 0 else target
            if v == 0:
                f.do(prefetch(target, 3))
            self._store(row, v, "zeroinitializer")
        pointers = ["%w", "%scales", "%terms", "%x", "%numbers"]
        if self._rows > _GROUP:
            pointers += [f.at("%x", thrice), f.at("%numbers", thrice)]
        f.loop("%blocks", [("ptr", pointer) for pointer in pointers], self._block)
        source, target = "%from", "%y"
        for row, v in self._places:
            if row and v == 0:
                source, target = f.at(source, "%ldfrom"), f.at(target, "%ldy")
            first = masked_load(f, _LANES, f.at(source, _VECTOR * v), masks[v])
            total = f.let(f"fadd {_FLOATS} {first}, {self._load(row, v)}")
            masked_store(f, _LANES, total, f.at(target, _VECTOR * v), masks[v])
        f.do("ret void")
        return f

    def _place(self, row: int, v: int) -> str:
        return self._f.at(self._totals, _VECTOR * (row * len(_VECTORS) + v))

    def _load(self, row: int, v: int) -> str:
        return self._f.load(_FLOATS, self._place(row, v), _VECTOR)

    def _store(self, row: int, v: int, value: str) -> None:
        self._f.do(f"store {_FLOATS} {value}, ptr {self._place(row, v)}, align {_VECTOR}")

    def _at_row(self, pointers: list[str], row: int) -> str:
        """Where a row is, by the pointer of its group."""
        group, within = divmod(row, _GROUP)
        stride = (None, "%ldx", self._twice)[within]
        return pointers[group] if stride is None else self._f.at(pointers[group], stride)

    def _block(self, _: str, values: list[str]) -> list[str]:
        """A block: values are weights, scales, terms, then rows and their numbers by groups."""
        f = self._f
        (w, scales, terms), rows, numbers = values[:3], values[3::2], values[4::2]
        state = [("ptr", pointer) for pointer in (w, *rows)]
        state += [(_INTS, "zeroinitializer")] * len(self._places)
        after = f.loop("%pairs", state, self._pair)
        w, rows, sums = after[0], after[1 : 1 + len(rows)], after[1 + len(rows) :]
        for row in range(self._rows):
            f.do(prefetch(f.at(self._at_row(rows, row), _AHEAD), 3))
        for row in range(self._rows):
            of_row = self._at_row(numbers, row)
            scale = self._row_number(of_row)
            below = ""
            if self._has_terms:
                below = f.let(f"fneg {_FLOATS} {self._row_number(f.at(of_row, 4))}")
            for v in _VECTORS:
                total = self._load(row, v)
                if below:
                    term = f.load(_FLOATS, f.at(terms, _VECTOR * v))
                    total = self._fma(term, below, total)
                found = f.let(f"sitofp {_INTS} {sums[row * len(_VECTORS) + v]} to {_FLOATS}")
                found = f.let(f"fmul {_FLOATS} {found}, {scale}")
                of_columns = f.load(_FLOATS, f.at(scales, _VECTOR * v))
                self._store(row, v, self._fma(of_columns, found, total))
        following = [w, f.at(scales, 4 * COLUMNS), f.at(terms, 4 * COLUMNS)]
        for of_rows, of_numbers in zip(rows, numbers, strict=True):
            following += [of_rows, f.at(of_numbers, 8)]
        return following

    def _pair(self, _: str, values: list[str]) -> list[str]:
        """A pair of terms: values are the weights, the rows by groups, and the sums.

        One at a time: of two, LLVM would add the products of a sum first, in more registers.
        """
        f = self._f
        groups = -(-self._rows // _GROUP)
        w, rows, sums = values[0], values[1 : 1 + groups], values[1 + groups :]
        weights = [f.load(_SHORTS, f.at(w, _VECTOR * v)) for v in _VECTORS]
        for row in range(self._rows):
            pair = f.splat(_LANES, "i32", f.load("i32", self._at_row(rows, row)))
            factor = f.let(f"bitcast {_INTS} {pair} to {_SHORTS}")
            for v in _VECTORS:
                place = row * len(_VECTORS) + v
                sums[place] = add_pairs(f, self._level, sums[place], factor, weights[v])
        return [f.at(w, 4 * COLUMNS), *[f.at(row, 4) for row in rows], *sums]

    def _row_number(self, pointer: str) -> str:
        return self._f.splat(_LANES, "float", self._f.load("float", pointer))

    def _fma(self, a: str, b: str, c: str) -> str:
        v = _FLOATS
        return self._f.let(f"call {v} @llvm.fma.v{_LANES}f32({v} {a}, {v} {b}, {v} {c})")
