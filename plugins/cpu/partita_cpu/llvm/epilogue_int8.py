"""The epilogue of 8-bit products: zero points, bias and scale, then stores as levels or floats.

A tile holds int32 sums, `PITCH` bytes a row.
"""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.masked import bounded, column_masks, masked_store

PARAMETERS = (
    "ptr %tile, i64 %rows, i64 %columns, ptr %totals, i64 %zero, ptr %bias, ptr %factors, "
    "float %scale, ptr %y, i64 %ldy, float %low, float %high, i64 %level"
)
"""rows, columns: how many of the tile's exist. totals: sums of the columns of the weights, int32;
zero: what each is multiplied by and taken off. bias: one per column, int32 for levels and float32
for floats. factors: float32, one per column; scale: one for all. y: the first row of the result,
ldy: bytes between rows. low, high: bounds of levels less the level of 0, which is `level`;
of floats the least one alone."""

PITCH = 256
"""Bytes from one row of a tile to the next."""


COLUMNS = PITCH // 4
"""Columns of a tile."""


def finish_bytes(name: str, lanes: int, levels: bool) -> Function:
    """``y = (sum - zero * total) * factor + bias`` in floats, or with the bias first as levels."""
    f = Function(name, PARAMETERS)
    end = _End(f, lanes, levels)
    vectors = f.let(f"udiv i64 {f.let(f'add i64 %columns, {lanes - 1}')}, {lanes}")
    together = COLUMNS // lanes

    def whole_rows() -> None:
        end.rows("0", [""] * together)

    def vector(index: str, _: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {lanes}")
        mask = column_masks(f, f.let(f"sub i64 %columns, {first}"), lanes, 1)[0]
        end.rows(first, [mask])
        return []

    def columns() -> None:
        f.loop(vectors, [], vector)

    if together <= WHOLE:
        f.either(f.let(f"icmp eq i64 %columns, {COLUMNS}"), whole_rows, columns)
    else:
        columns()
    f.do("ret void")
    return f


WHOLE = 4
"""Vectors of a row whose numbers all fit into registers at once."""


class _End:
    """Writes loops over rows, for some neighbouring vectors of each.

    Args:
        f: The kernel.
        lanes: Numbers of a vector.
        levels: Whether results are bytes.
    """

    def __init__(self, f: Function, lanes: int, levels: bool) -> None:
        self._f, self._lanes, self._levels = f, lanes, levels
        self._whole, self._real = f"<{lanes} x i32>", f"<{lanes} x float>"
        self._zero = f.splat(lanes, "i32", f.let("trunc i64 %zero to i32"))
        self._level = f.splat(lanes, "i32", f.let("trunc i64 %level to i32"))
        names = ("%low", "%high", "%scale")
        self._low, self._high, self._scale = (f.splat(lanes, "float", x) for x in names)

    def rows(self, first: str, masks: list[str]) -> None:
        """All rows of the vectors from a column on; an empty mask is for a whole vector."""
        f, lanes, whole, real = self._f, self._lanes, self._whole, self._real
        numbers = []
        for i, mask in enumerate(masks):
            place = f.let(f"shl i64 {f.let(f'add i64 {first}, {lanes * i}')}, 2")
            names = ("%totals", "%bias", "%factors")
            off, bias, factors = (_load(f, lanes, f.at(p, place), mask) for p in names)
            off = f.let(f"mul {whole} {off}, {self._zero}")
            if self._levels:
                off = f.let(f"sub {whole} {off}, {bias}")
            factors = f.let(f"bitcast {whole} {factors} to {real}")
            factors = f.let(f"fmul {real} {self._scale}, {factors}")
            numbers.append((off, factors, f.let(f"bitcast {whole} {bias} to {real}")))
        size = 1 if self._levels else 4

        together = self._levels and lanes == _WIDE and len(masks) == WHOLE and not any(masks)
        bounds = byte_bounds(f) if together else ("", "")

        def row(_: str, at: list[str]) -> list[str]:
            found = []
            for i, (off, factors, bias) in enumerate(numbers):
                sums = f.let(f"sub {whole} {f.load(whole, f.at(at[0], 4 * lanes * i))}, {off}")
                x = f.let(f"fmul {real} {f.let(f'sitofp {whole} {sums} to {real}')}, {factors}")
                to = f.at(at[1], size * lanes * i)
                if together:
                    found.append(rounded_below(f, x, self._high))
                    continue
                if self._levels:
                    x = bounded(f, real, x, self._low, self._high, lanes)
                    store_levels(f, lanes, x, self._level, to, masks[i])
                    continue
                x = f.let(f"fadd {real} {x}, {bias}")
                under = f.let(f"fcmp olt {real} {x}, {self._low}")
                x = f.let(f"select <{lanes} x i1> {under}, {real} {self._low}, {real} {x}")
                if masks[i]:
                    masked_store(f, lanes, x, to, masks[i])
                else:
                    f.do(f"store {real} {x}, ptr {to}, align 4")
            if together:
                store_together(f, found, *bounds, at[1])
            return [f.at(at[0], PITCH), f.at(at[1], "%ldy")]

        source = f.at("%tile", f.let(f"shl i64 {first}, 2"))
        target = f.at("%y", f.let(f"mul i64 {first}, {size}"))
        f.loop("%rows", [("ptr", source), ("ptr", target)], row)


def _load(f: Function, lanes: int, pointer: str, mask: str) -> str:
    v, m = f"<{lanes} x i32>", f"<{lanes} x i1>"
    if not mask:
        return f.load(v, pointer)
    name = f"@llvm.masked.load.v{lanes}i32.p0"
    return f.let(f"call {v} {name}(ptr {pointer}, i32 4, {m} {mask}, {v} zeroinitializer)")


def store_levels(f: Function, lanes: int, x: str, level: str, to: str, mask: str) -> None:
    """Rounds to the nearest, ties to even, and writes bytes.

    Args:
        f: Where it is written.
        lanes: Of a vector.
        x: Name of a vector of float, within the bounds of bytes once the level is added.
        level: Name of a vector of i32, added after rounding: the zero point.
        to: Name of a pointer, to which there is room for a byte of each lane that is written.
        mask: Name of the lanes that are; empty for all.
    """
    _store_levels(f, lanes, levels_of(f, lanes, x, level), to, mask)


def levels_of(f: Function, lanes: int, x: str, level: str) -> str:
    """Rounds to the nearest, ties to even: levels as int32."""
    real, whole = f"<{lanes} x float>", f"<{lanes} x i32>"
    short = f"call {whole} {_CONVERT[lanes]}({real} {x})"
    bits = rounded(f, x) if lanes == _WIDE else f.let(short)
    return f.let(f"add {whole} {bits}, {level}")


def _store_levels(f: Function, lanes: int, levels: str, to: str, mask: str) -> None:
    whole, narrow = f"<{lanes} x i32>", f"<{lanes} x i8>"
    bits = f.let(f"trunc {whole} {levels} to {narrow}")
    if not mask:
        f.do(f"store {narrow} {bits}, ptr {to}, align 1")
        return
    name, m = f"@llvm.masked.store.v{lanes}i8.p0", f"<{lanes} x i1>"
    f.do(f"call void {name}({narrow} {bits}, ptr {to}, i32 1, {m} {mask})")


def rounded_below(f: Function, x: str, high: str) -> str:
    """Rounds to the nearest, ties to even, what may be too low for a level but not too high.

    Numbers below all of int32 become its least one.
    """
    above = f.let(f"fcmp ogt <16 x float> {x}, {high}")
    return rounded(f, f.let(f"select <16 x i1> {above}, <16 x float> {high}, <16 x float> {x}"))


def rounded(f: Function, x: str) -> str:
    """Sixteen floats rounded to the nearest, ties to even; those beyond int32 become its least."""
    rest = "<16 x i32> zeroinitializer, i16 -1, i32 4"
    return f.let(f"call <16 x i32> {_CONVERT[_WIDE]}(<16 x float> {x}, {rest})")


def byte_bounds(f: Function) -> tuple[str, str]:
    """The least level in all lanes: less the level of 0 as i16, and itself as i8."""
    low = f.let("fptosi float %low to i32")
    least = f.let(f"add i32 {low}, {f.let('trunc i64 %level to i32')}")
    words = f.splat(32, "i16", f.let(f"trunc i32 {low} to i16"))
    return words, f.splat(64, "i8", f.let(f"trunc i32 {least} to i8"))


def store_together(f: Function, found: list[str], low: str, least: str, to: str) -> None:
    """Four vectors of levels less the level of 0 as one of bytes.

    Args:
        f: The kernel.
        found: The vectors, of int32.
        low: See `byte_bounds`; so is the next.
        least: In bytes.
        to: Where the bytes go.
    """
    f.do(f"store <64 x i8> {levels_together(f, found, low, least)}, ptr {to}, align 1")


def levels_together(f: Function, found: list[str], low: str, least: str) -> str:
    """What `store_together` stores: packed in pairs, by quarters, then put in order."""
    whole = "<16 x i32>"
    packed = f.let(f"bitcast <64 x i8> {packed_levels(f, found, low, least)} to {whole}")
    order = ", ".join(f"i32 {4 * quarter + vector}" for vector in range(4) for quarter in range(4))
    packed = f.let(f"shufflevector {whole} {packed}, {whole} poison, {whole} <{order}>")
    return f.let(f"bitcast {whole} {packed} to <64 x i8>")


def packed_levels(f: Function, found: list[str], low: str, least: str) -> str:
    """Four vectors of levels less the level of 0 as bytes: a quarter of each, one after another.

    Packing saturates. On the way levels are counted from the least one. See `store_together`.
    """
    whole, words, narrow = "<16 x i32>", "<32 x i16>", "<64 x i8>"
    pairs = []
    for a, b in (found[:2], found[2:]):
        pair = f.let(f"call {words} @llvm.x86.avx512.packssdw.512({whole} {a}, {whole} {b})")
        pairs.append(f.let(f"call {words} @llvm.ssub.sat.v32i16({words} {pair}, {words} {low})"))
    packed = f.let(
        f"call {narrow} @llvm.x86.avx512.packuswb.512({words} {pairs[0]}, {words} {pairs[1]})"
    )
    return f.let(f"add {narrow} {packed}, {least}")


_WIDE = 16
_CONVERT = {
    4: "@llvm.aarch64.neon.fcvtns.v4i32.v4f32",
    8: "@llvm.x86.avx.cvt.ps2dq.256",
    _WIDE: "@llvm.x86.avx512.mask.cvtps2dq.512",
}
"""Conversions that round to the nearest, ties to even (of x86: as the processor is set to)."""


def declarations(lanes: int) -> str:
    """What the kernels call, beyond those of `masked`."""
    real, whole, narrow = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i8"))
    m = f"<{lanes} x i1>"
    more = f", {whole}, i16, i32 immarg" if lanes == _WIDE else ""
    packs = (
        "declare <32 x i16> @llvm.x86.avx512.packssdw.512(<16 x i32>, <16 x i32>)\n"
        "declare <64 x i8> @llvm.x86.avx512.packuswb.512(<32 x i16>, <32 x i16>)\n"
        "declare <32 x i16> @llvm.ssub.sat.v32i16(<32 x i16>, <32 x i16>)\n"
    )
    return (packs if lanes == _WIDE else "") + (
        f"declare {whole} @llvm.masked.load.v{lanes}i32.p0(ptr, i32 immarg, {m}, {whole})\n"
        f"declare void @llvm.masked.store.v{lanes}i8.p0({narrow}, ptr, i32 immarg, {m})\n"
        f"declare {whole} {_CONVERT[lanes]}({real}{more})\n"
    )
