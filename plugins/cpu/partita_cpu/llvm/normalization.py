"""Normalization of rows of float32 that ends in bfloat16 or float32, for AVX-512."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita_cpu.llvm import eight_rows
from partita_cpu.llvm.eight_rows import EIGHT, LANES, EightRows
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import store_half, store_parts
from partita_cpu.llvm.masked import column_masks, masked_load, masked_store
from partita_cpu.llvm.tiles.amx import TILE_BYTES

PARAMETERS = "i64 %rows, i64 %n, ptr %x, ptr %scale, ptr %bias, ptr %y, double %epsilon"
"""rows: how many, of n floats each, one behind another from x on, as results are from y on. scale,
bias: n floats each. epsilon: what is added to variances."""

EIGHTS_PARAMETERS = (
    "i64 %eights, i64 %n, ptr %x, ptr %skip, ptr %total, ptr %scale, ptr %bias, ptr %y, "
    "ptr %means, ptr %inverses, double %epsilon"
)
"""The same of so many times eight rows. skip: what is added to rows first; total: where the sums go
that are normalized, which may be the rows themselves; both are not looked at if nothing is added.
means, inverses: where statistics of rows go, floats."""

TOGETHER = 4
"""Vectors that are added up side by side: a sum waits for the one before."""

TILE_ROW_BYTES = 64
"""Bytes of a row of a tile of AMX: 32 numbers."""

_FLOATS, _INTS = f"<{LANES} x float>", f"<{LANES} x i32>"
_LARGER = f"@llvm.umax.v{LANES}i32"
_REDUCE = f"@llvm.vector.reduce.fadd.v{LANES}f32"


def normalize_rows(name: str) -> Function:
    """Rows to mean 0 and variance 1, times scale, plus bias, rounded once.

    Moments are taken about the mean as float32 has it, and what that misses is taken off too; see
    `kernels.normalization.norm_loops.normalize_rows`.
    """
    f = Function(name, PARAMETERS)
    share = f.let(f"fdiv double 1.0, {f.let('sitofp i64 %n to double')}")
    pitch, short_pitch = f.let("shl i64 %n, 2"), f.let("shl i64 %n, 1")
    vectors, together = _Vectors(f), EightRows(f, share, centered=True)

    def eight(_: str, places: list[str]) -> list[str]:
        rows, ends = _starts(f, places[0], pitch), _starts(f, places[1], short_pitch)

        def write(row: int, at: str, value: str, mask: str | None) -> None:
            store_half(f, LANES, value, f.at(ends[row], f.let(f"lshr i64 {at}, 1")), mask)

        together.normalize(rows[:EIGHT], write)
        return [rows[EIGHT], ends[EIGHT]]

    def row(_: str, places: list[str]) -> list[str]:
        x, y = places
        total = vectors.sums(x, 1, lambda value: [value])[0]
        center = f.let(
            f"fptrunc double {f.let(f'fmul double {_wide(f, total)}, {share}')} to float"
        )
        about = f.splat(LANES, "float", center)

        def moments(value: str) -> list[str]:
            off = f.let(f"fsub {_FLOATS} {value}, {about}")
            return [off, f.let(f"fmul {_FLOATS} {off}, {off}")]

        part, square = vectors.sums(x, 2, moments)
        rest = f.let(f"fmul double {_wide(f, part)}, {share}")
        mean_square = f.let(f"fmul double {_wide(f, square)}, {share}")
        variance = f.let(f"fsub double {mean_square}, {f.let(f'fmul double {rest}, {rest}')}")
        below = f.let(f"fcmp olt double {variance}, 0.0")
        variance = f.let(f"select i1 {below}, double 0.0, double {variance}")
        root = f.let(
            f"call double @llvm.sqrt.f64(double {f.let(f'fadd double {variance}, %epsilon')})"
        )
        inverse = f.let(f"fptrunc double {f.let(f'fdiv double 1.0, {root}')} to float")
        missing = f.let(f"fptrunc double {rest} to float")
        factor, lost = (f.splat(LANES, "float", one) for one in (inverse, missing))

        def write(at: str, mask: str | None) -> None:
            scale, bias = (_load(f, f.at(each, at), mask) for each in ("%scale", "%bias"))
            value = f.let(f"fsub {_FLOATS} {_load(f, f.at(x, at), mask)}, {about}")
            value = f.let(f"fsub {_FLOATS} {value}, {lost}")
            value = f.let(f"fmul {_FLOATS} {value}, {factor}")
            value = f.fma(LANES, value, scale, bias)
            store_half(f, LANES, value, f.at(y, f.let(f"lshr i64 {at}, 1")), mask)

        vectors.each(write)
        return [f.at(x, pitch), f.at(y, short_pitch)]

    short = f.let(f"icmp sle i64 %n, {eight_rows.LONGEST}")
    eights = f.let(f"select i1 {short}, i64 {f.let(f'udiv i64 %rows, {EIGHT}')}, i64 0")
    places = f.loop(eights, [("ptr", "%x"), ("ptr", "%y")], eight)
    left = f.let(f"sub i64 %rows, {f.let(f'mul i64 {eights}, {EIGHT}')}")
    f.loop(left, [("ptr", place) for place in places], row)
    f.do("ret void")
    return f


def eights_name(centered: bool, added: bool) -> str:
    """The symbol of `normalize_eights`."""
    return f"{'normalize' if centered else 'scale'}_{'sums' if added else 'eights'}"


def normalize_eights(centered: bool, added: bool, planes: int = 0) -> Function:
    """The same of short rows in float32, which yields means, or 0, and inverse deviations too.

    Args:
        centered: Whether rows are brought to mean 0; else they are divided by the root of their
            square mean.
        added: Whether rows are sums, which are made and written down first.
        planes: In how many parts of bfloat16 results are laid out as tiles of AMX, 0 for rows of
            float32. Of tiles there are whole ones across, eights are those of 16 rows at most, and
            the largest magnitude of a result is returned, as its bits.
    """
    f = Function(eights_name(centered, added), EIGHTS_PARAMETERS, "i64" if planes else "void")
    share = f.let(f"fdiv double 1.0, {f.let('sitofp i64 %n to double')}")
    pitch = f.let("shl i64 %n, 2")
    together = EightRows(f, share, centered, measured=planes > 0)
    read = ("%x", "%skip", "%total") if added else ("%x",)

    def eight(_: str, places: list[str]) -> list[str]:
        given = [_starts(f, place, pitch) for place in places[: len(read)]]
        y, *statistics, largest = places[len(read) :]
        ends = _starts(f, y, TILE_ROW_BYTES if planes else pitch)

        def add(row: int, at: str, mask: str | None) -> str:
            x, skip = (masked_load(f, LANES, f.at(part[row], at), mask) for part in given[:2])
            total = f.let(f"fadd {_FLOATS} {x}, {skip}")
            masked_store(f, LANES, total, f.at(given[2][row], at), mask)
            return total

        def write(row: int, at: str, value: str, mask: str | None) -> None:
            if not planes:
                masked_store(f, LANES, value, f.at(ends[row], at), mask)
            elif mask is None:
                to = f.at(ends[row], _place_in_tiles(f, at, planes))
                store_parts(f, LANES, value, to, None, planes, TILE_BYTES)

        found = together.normalize(given[-1][:EIGHT], write, add if added else None)
        for place, value in zip(statistics, found[:2], strict=True):
            f.do(f"store <{EIGHT} x float> {value}, ptr {place}, align 4")
        next_statistics = [f.at(place, 4 * EIGHT) for place in statistics]
        largest = f.let(f"call {_INTS} {_LARGER}({_INTS} {largest}, {_INTS} {found.largest})")
        return [*(rows[EIGHT] for rows in given), ends[EIGHT], *next_statistics, largest]

    state = [("ptr", name) for name in (*read, "%y", "%means", "%inverses")]
    *_, largest = f.loop("%eights", [*state, (_INTS, "zeroinitializer")], eight)
    if planes:
        found = f.let(f"call i32 @llvm.vector.reduce.umax.v{LANES}i32({_INTS} {largest})")
        f.do(f"ret i64 {f.let(f'zext i32 {found} to i64')}")
    else:
        f.do("ret void")
    return f


def _place_in_tiles(f: Function, at: str, planes: int) -> str:
    """Bytes from a row's place in its first tile to a vector, `at` bytes from its first float."""
    tile = f.let(f"mul i64 {f.let(f'lshr i64 {at}, 7')}, {planes * TILE_BYTES}")
    within = f.let(f"lshr i64 {f.let(f'and i64 {at}, 64')}, 1")
    return f.let(f"add i64 {tile}, {within}")


def _starts(f: Function, first: str, pitch: str | int) -> list[str]:
    """Where eight rows start, and the one behind them."""
    starts = [first]
    for _ in range(EIGHT):
        starts.append(f.at(starts[-1], pitch))
    return starts


class _Vectors:
    """Walks over a row of `%n` floats: many vectors together, those left, and a part of one."""

    def __init__(self, f: Function) -> None:
        self._f = f
        self._many = f.let(f"udiv i64 %n, {TOGETHER * LANES}")
        left = f.let(f"urem i64 %n, {TOGETHER * LANES}")
        self._others = f.let(f"udiv i64 {left}, {LANES}")
        left = f.let(f"urem i64 %n, {LANES}")
        self._some = f.let(f"zext i1 {f.let(f'icmp ne i64 {left}, 0')} to i64")
        self._mask = column_masks(f, left, LANES, 1)[0]

    def sums(self, x: str, count: int, terms: Callable[[str], Sequence[str]]) -> list[str]:
        """So many sums over a row of what a vector's terms are."""
        f = self._f
        zeros = [(_FLOATS, "zeroinitializer")] * count

        def added(totals: Sequence[str], values: Sequence[str]) -> list[str]:
            pairs = zip(totals, values, strict=True)
            return [f.let(f"fadd {_FLOATS} {a}, {b}") for a, b in pairs]

        def together(_: str, carried: list[str]) -> list[str]:
            found: list[str] = []
            for i in range(TOGETHER):
                value = _load(f, f.at(carried[0], 4 * LANES * i), None)
                totals = carried[1 + i * count : 1 + (i + 1) * count]
                found += added(totals, terms(value))
            return [f.at(carried[0], 4 * LANES * TOGETHER), *found]

        place, *totals = f.loop(self._many, [("ptr", x), *zeros * TOGETHER], together)
        parts = [totals[i * count : (i + 1) * count] for i in range(TOGETHER)]
        sums = added(added(parts[0], parts[1]), added(parts[2], parts[3]))

        def one(_: str, carried: list[str]) -> list[str]:
            value = _load(f, carried[0], None)
            return [f.at(carried[0], 4 * LANES), *added(carried[1:], terms(value))]

        def end(_: str, carried: list[str]) -> list[str]:
            mask = f"<{LANES} x i1> {self._mask}"
            values = [
                f.let(f"select {mask}, {_FLOATS} {term}, {_FLOATS} zeroinitializer")
                for term in terms(_load(f, carried[0], self._mask))
            ]
            return [carried[0], *added(carried[1:], values)]

        for rounds, body in ((self._others, one), (self._some, end)):
            carried = [("ptr", place), *((_FLOATS, total) for total in sums)]
            place, *sums = f.loop(rounds, carried, body)
        return [
            f.let(f"call reassoc float {_REDUCE}(float 0.0, {_FLOATS} {total})") for total in sums
        ]

    def each(self, write: Callable[[str, str | None], None]) -> None:
        """Calls what writes a vector, with its place in bytes from the first float, and a mask."""
        f = self._f

        def together(_: str, carried: list[str]) -> list[str]:
            for i in range(TOGETHER):
                write(f.let(f"add i64 {carried[0]}, {4 * LANES * i}"), None)
            return [f.let(f"add i64 {carried[0]}, {4 * LANES * TOGETHER}")]

        def one(_: str, carried: list[str]) -> list[str]:
            write(carried[0], None)
            return [f.let(f"add i64 {carried[0]}, {4 * LANES}")]

        def end(_: str, carried: list[str]) -> list[str]:
            write(carried[0], self._mask)
            return carried

        place = "0"
        for rounds, body in ((self._many, together), (self._others, one), (self._some, end)):
            place = f.loop(rounds, [("i64", place)], body)[0]


def _wide(f: Function, x: str) -> str:
    return f.let(f"fpext float {x} to double")


def _load(f: Function, pointer: str, mask: str | None) -> str:
    return masked_load(f, LANES, pointer, mask)


DECLARATIONS = "declare double @llvm.sqrt.f64(double)\n" + eight_rows.DECLARATIONS
"""What the kernels call beyond what `masked`, `epilogue`, `tiles.fma` and `attention.attend` do."""
