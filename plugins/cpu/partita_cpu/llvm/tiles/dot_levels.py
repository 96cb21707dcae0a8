"""8-bit tile kernels with a requantizing epilogue in registers; for AVX-512.

Sums of `dot_int8` pass through memory, where `epilogue_int8` finds them. Here each row of them is
finished in the kernel that computes it, by numbers that are prepared once per panel.
"""

from __future__ import annotations

from collections.abc import Callable

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
"""By column what is taken off a sum (int32) and a factor (float32); the least level less that of
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
        off = f.let(f"sub {whole} {f.let(f'mul {whole} {totals}, {zero}')}, {bias}")
        factors = f.let(f"bitcast {whole} {factors} to {real}")
        factors = f.let(f"fmul {real} {scale}, {factors}")
        f.do(f"store {whole} {off}, ptr {f.at('%end', place)}, align 4")
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
    f = Function(name, PARAMETERS)
    sums = sums_of_rows(f, level, rows, columns)
    low = f.splat(32, "i16", f.let(f"trunc i32 {f.load('i32', f.at('%end', _LOW))} to i16"))
    least = f.splat(64, "i8", f.let(f"trunc i32 {f.load('i32', f.at('%end', _LEAST))} to i8"))
    exist = f.load("i64", f.at("%end", _COLUMNS))

    def finish(store: _Store, started: bool = False) -> None:
        to = "%y"
        for row in range(rows):
            to = f.at(to, "%ldy") if row else to
            totals = sums[row]
            if started:
                start = f.splat(LANES, "i32", f.load("i32", f.at("%starts", 4 * row)))
                totals = [f.let(f"add <{LANES} x i32> {total}, {start}") for total in totals]
            found = [_finished(f, total, i) for i, total in enumerate(totals)]
            found += ["zeroinitializer"] * (COLUMNS // LANES - len(found))
            store(f, columns, levels_together(f, found, low, least), to)

    def some(started: bool = False) -> None:
        bits = f.let(f"sub i64 {COLUMNS}, {exist}")
        mask = f.let(f"bitcast i64 {f.let(f'lshr i64 -1, {bits}')} to <64 x i1>")

        def store(f: Function, _: int, levels: str, to: str) -> None:
            name = "@llvm.masked.store.v64i8.p0"
            f.do(f"call void {name}(<64 x i8> {levels}, ptr {to}, i32 1, <64 x i1> {mask})")

        finish(store, started)

    def as_they_are() -> None:
        f.either(f.let(f"icmp eq i64 {exist}, {columns}"), lambda: finish(_store_all), some)

    f.either(f.let("icmp eq ptr %starts, null"), as_they_are, lambda: some(started=True))
    f.do("ret void")
    return f


def _finished(f: Function, total: str, number: int) -> str:
    """A vector of sums as levels less that of 0, in int32."""
    whole, real = f"<{LANES} x i32>", f"<{LANES} x float>"
    place = 4 * LANES * number
    off, factors = f.load(whole, f.at("%end", place)), f.at("%end", _FACTORS + place)
    sums = f.let(f"sub {whole} {total}, {off}")
    x = f.let(f"sitofp {whole} {sums} to {real}")
    return rounded(f, f.let(f"fmul {real} {x}, {f.load(real, factors)}"))


def _store_all(f: Function, columns: int, levels: str, to: str) -> None:
    """Writes the first columns, all of which exist."""
    order = ", ".join(f"i32 {i}" for i in range(columns))
    kind = f"<{columns} x i8>"
    taken = f"shufflevector <64 x i8> {levels}, <64 x i8> poison, <{columns} x i32> <{order}>"
    f.do(f"store {kind} {f.let(taken)}, ptr {to}, align 1")


_Store = Callable[[Function, int, str, str], None]
"""Writes levels of a row."""


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
    return "declare void @llvm.masked.store.v64i8.p0(<64 x i8>, ptr, i32 immarg, <64 x i1>)\n"
