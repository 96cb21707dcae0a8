"""8-bit tile kernels with a requantizing epilogue in registers; for AVX-512.

Sums of `dot_int8` pass through memory, where `epilogue_int8` finds them. Here each row of them is
finished in the kernel that computes it, by numbers that are prepared once per panel.
"""

from __future__ import annotations

from partita_cpu.llvm.epilogue_int8 import levels_together, rounded
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.masked import column_masks
from partita_cpu.llvm.tiles.amx_int8 import COLUMNS
from partita_cpu.llvm.tiles.dot_int8 import PART, most_rows, sums_of_rows

PARAMETERS = (
    "ptr %a, i64 %lda, i64 %runs, i64 %pitch, ptr %b, i64 %quads, ptr %ahead, ptr %starts, "
    "ptr %end, ptr %y, i64 %ldy"
)
"""As `dot_int8.PARAMETERS` without a tile. starts: by row an int32 that is added to its
sums, or null for nothing. end: what `prepare_end` wrote. y: the first row of levels, ldy: bytes
between rows."""

PREPARE_PARAMETERS = (
    "ptr %end, i64 %columns, ptr %totals, i64 %zero, ptr %bias, ptr %factors, float %scale, "
    "i64 %low, i64 %level"
)
"""end: where the numbers of a panel go, `END_BYTES`. low: the least level; the others are those of
`epilogue_int8.PARAMETERS`."""

LANES = 16
_FACTORS = 4 * COLUMNS
_LOW = 2 * _FACTORS
_LEAST = _LOW + 4
_COLUMNS = _LEAST + 4
END_BYTES = _COLUMNS + 8
"""By column what a sum begins with (int32) and a factor (float32); the least level less that of
0, the least level, and how many columns exist."""


def prepare_end(name: str) -> Function:
    """Writes what sums of a panel are finished by; columns that do not exist get zeros."""
    f = Function(name, PREPARE_PARAMETERS)
    whole, real, m = f"<{LANES} x i32>", f"<{LANES} x float>", f"<{LANES} x i1>"
    zero = f.splat(LANES, "i32", f.let("trunc i64 %zero to i32"))
    scale = f.splat(LANES, "float", "%scale")
    for i, mask in enumerate(column_masks(f, "%columns", LANES, COLUMNS // LANES)):
        place = 4 * LANES * i
        read = f"@llvm.masked.load.v{LANES}i32.p0"
        totals, bias, factors = (
            f.let(f"call {whole} {read}(ptr {p}, i32 4, {m} {mask}, {whole} zeroinitializer)")
            for p in (f.at(p, place) for p in ("%totals", "%bias", "%factors"))
        )
        start = f.let(f"sub {whole} {bias}, {f.let(f'mul {whole} {totals}, {zero}')}")
        factors = f.let(f"bitcast {whole} {factors} to {real}")
        factors = f.let(f"fmul {real} {scale}, {factors}")
        f.do(f"store {whole} {start}, ptr {f.at('%end', place)}, align 4")
        f.do(f"store {real} {factors}, ptr {f.at('%end', _FACTORS + place)}, align 4")
    least = f.let("trunc i64 %low to i32")
    below = f.let(f"sub i32 {least}, {f.let('trunc i64 %level to i32')}")
    f.do(f"store i32 {below}, ptr {f.at('%end', _LOW)}, align 4")
    f.do(f"store i32 {least}, ptr {f.at('%end', _LEAST)}, align 4")
    f.do(f"store i64 %columns, ptr {f.at('%end', _COLUMNS)}, align 4")
    f.do("ret void")
    return f


def dot_levels(name: str, rows: int, level: Level, columns: int = COLUMNS) -> Function:
    """Levels of so many rows and the first columns; no float may be beyond int32.

    Args:
        name: Its symbol.
        rows: At most `dot_int8.most_rows`.
        level: One whose vectors have 16 lanes.
        columns: A multiple of `PART`; of the last so many some may not exist.
    """
    f, vectors = Function(name, PARAMETERS), range(columns // LANES)
    exist = f.load("i64", f.at("%end", _COLUMNS))
    starts = [f.load(f"<{LANES} x i32>", f.at("%end", 4 * LANES * number)) for number in vectors]
    _RowEnds(f, sums_of_rows(f, level, rows, starts), exist).write()
    f.do("ret void")
    return f


class _RowEnds:
    """Writes what makes sums of rows levels: as many rows at a time as fill a vector of bytes.

    Args:
        f: The kernel.
        sums: By row its vectors.
        exist: Name of how many columns exist.
    """

    def __init__(self, f: Function, sums: list[list[str]], exist: str) -> None:
        self._f, self._sums, self._exist = f, sums, exist
        self._low, self._least = (f.load("i32", f.at("%end", place)) for place in (_LOW, _LEAST))
        self._vectors = len(sums[0])
        self._width = LANES * self._vectors

    def write(self) -> None:
        """All cases: whether rows have numbers of their own, and whether all columns exist."""
        f = self._f

        def as_they_are() -> None:
            whole = f.let(f"icmp eq i64 {self._exist}, {self._width}")
            f.either(whole, lambda: self._rows("", False), lambda: self._rows(self._mask(), False))

        apart = f.let("icmp eq ptr %starts, null")
        f.either(apart, as_they_are, lambda: self._rows(self._mask(), True))

    def _mask(self) -> str:
        """Which columns of a row exist."""
        f, width = self._f, self._width
        bits = f.let(f"lshr i64 -1, {f.let(f'sub i64 {COLUMNS}, {self._exist}')}")
        short = bits if width == COLUMNS else f.let(f"trunc i64 {bits} to i{width}")
        return f.let(f"bitcast i{width} {short} to <{width} x i1>")

    def _rows(self, mask: str, started: bool) -> None:
        """Levels of all rows.

        Args:
            mask: Which columns exist; empty for all.
            started: Whether something is added to the sums of each row.
        """
        f, together = self._f, max(1, COLUMNS // self._width)
        low = f.splat(32, "i16", f.let(f"trunc i32 {self._low} to i16"))
        least = f.splat(COLUMNS, "i8", f.let(f"trunc i32 {self._least} to i8"))
        places = [f.at("%end", _FACTORS + 4 * LANES * n) for n in range(self._vectors)]
        factors = [f.load(f"<{LANES} x float>", place) for place in places]
        to = "%y"
        for first in range(0, len(self._sums), together):
            rows = range(first, min(first + together, len(self._sums)))
            found = [x for row in rows for x in self._rounded(row, factors, started)]
            found += ["zeroinitializer"] * (COLUMNS // LANES - len(found))
            levels = levels_together(f, found, low, least)
            for row in rows:
                self._store(levels, self._width * (row - first), mask, to)
                to = f.at(to, "%ldy")

    def _rounded(self, row: int, factors: list[str], started: bool) -> list[str]:
        """The sums of a row as levels less that of 0, in int32."""
        f, whole, real = self._f, f"<{LANES} x i32>", f"<{LANES} x float>"
        sums = self._sums[row]
        if started:
            start = f.splat(LANES, "i32", f.load("i32", f.at("%starts", 4 * row)))
            sums = [f.let(f"add {whole} {total}, {start}") for total in sums]
        floats = [f.let(f"sitofp {whole} {total} to {real}") for total in sums]
        pairs = zip(floats, factors, strict=True)
        return [rounded(f, f.let(f"fmul {real} {x}, {factor}")) for x, factor in pairs]

    def _store(self, levels: str, first: int, mask: str, to: str) -> None:
        """Writes a row, whose levels begin at the first in a vector of them."""
        f, width = self._f, self._width
        order = ", ".join(f"i32 {i}" for i in range(first, first + width))
        kind, whole = f"<{width} x i8>", f"<{COLUMNS} x i8>"
        taken = f"{whole} {levels}, {whole} poison, <{width} x i32> <{order}>"
        row = f.let(f"shufflevector {taken}")
        if mask:
            store = f"void @llvm.masked.store.v{width}i8.p0"
            f.do(f"call {store}({kind} {row}, ptr {to}, i32 1, <{width} x i1> {mask})")
        else:
            f.do(f"store {kind} {row}, ptr {to}, align 1")


def functions(level: Level) -> list[Function]:
    """All kernels of a level; none where vectors are shorter."""
    if level.lanes != LANES:
        return []
    made = [prepare_end("prepare_end")]
    for columns in range(PART, COLUMNS + 1, PART):
        end = f"{columns}_" if columns < COLUMNS else ""
        made += [
            dot_levels(f"dot_levels_{end}{rows}", rows, level, columns)
            for rows in range(1, most_rows(level, columns) + 1)
        ]
    return made


def declarations() -> str:
    """What they call beyond what `dot_int8` and `epilogue_int8` do."""
    return "".join(
        f"declare void @llvm.masked.store.v{n}i8.p0(<{n} x i8>, ptr, i32 immarg, <{n} x i1>)\n"
        for n in range(2 * PART, COLUMNS + 1, PART)
    )
