"""What follows the sums of a tile of a product of bytes: zero points, bias and scale, then memory.

A tile holds int32 sums, `PITCH` bytes a row. They become levels of 8 bits, or floats.
"""

from __future__ import annotations

from partita_cpu.native.ir.masked import bounded, column_masks, masked_store
from partita_cpu.native.ir.text import Function

PARAMETERS = (
    "ptr %tile, i64 %rows, i64 %columns, ptr %totals, i64 %zero, ptr %bias, ptr %factors, "
    "float %scale, ptr %y, i64 %ldy, float %low, float %high, i64 %level"
)
"""rows, columns: how many of the tile's exist. totals: sums of the columns of the weights, int32;
zero: what each is multiplied by and taken off. bias: one per column, int32 for levels and float32
for floats. factors: float32, one per column; scale: one for all. y: the first row of the result,
ldy: bytes between rows. low, high: bounds of levels less the level of 0, which is `level`."""

PITCH = 256
"""Bytes from one row of a tile to the next."""


def finish_bytes(name: str, lanes: int, levels: bool) -> Function:
    """``y = (sum - zero * total) * factor + bias`` in floats, or with the bias first as levels."""
    f = Function(name, PARAMETERS)
    whole, real = f"<{lanes} x i32>", f"<{lanes} x float>"
    zero = f.splat(lanes, "i32", f.let("trunc i64 %zero to i32"))
    level = f.splat(lanes, "i32", f.let("trunc i64 %level to i32"))
    low, high, scale = (f.splat(lanes, "float", x) for x in ("%low", "%high", "%scale"))
    vectors = f.let(f"udiv i64 {f.let(f'add i64 %columns, {lanes - 1}')}, {lanes}")

    def vector(index: str, _: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {lanes}")
        place = f.let(f"mul i64 {index}, {4 * lanes}")
        mask = column_masks(f, f.let(f"sub i64 %columns, {first}"), lanes, 1)[0]
        totals = _load(f, lanes, f.at("%totals", place), mask)
        off = f.let(f"mul {whole} {totals}, {zero}")
        bias = _load(f, lanes, f.at("%bias", place), mask)
        bits = _load(f, lanes, f.at("%factors", place), mask)
        factors = f.let(f"bitcast {whole} {bits} to {real}")
        factors = f.let(f"fmul {real} {scale}, {factors}")
        term = bias if levels else f.let(f"bitcast {whole} {bias} to {real}")
        if levels:
            off = f.let(f"sub {whole} {off}, {bias}")
        size = 1 if levels else 4
        to = f.at("%y", f.let(f"mul i64 {first}, {size}"))

        def row(_: str, at: list[str]) -> list[str]:
            sums = f.let(f"sub {whole} {f.load(whole, at[0])}, {off}")
            x = f.let(f"fmul {real} {f.let(f'sitofp {whole} {sums} to {real}')}, {factors}")
            if levels:
                x = bounded(f, real, x, low, high, lanes)
                store_levels(f, lanes, x, level, at[1], mask)
            else:
                masked_store(f, lanes, f.let(f"fadd {real} {x}, {term}"), at[1], mask)
            return [f.at(at[0], PITCH), f.at(at[1], "%ldy")]

        f.loop("%rows", [("ptr", f.at("%tile", place)), ("ptr", to)], row)
        return []

    f.loop(vectors, [], vector)
    f.do("ret void")
    return f


def _load(f: Function, lanes: int, pointer: str, mask: str) -> str:
    v, m = f"<{lanes} x i32>", f"<{lanes} x i1>"
    name = f"@llvm.masked.load.v{lanes}i32.p0"
    return f.let(f"call {v} {name}(ptr {pointer}, i32 4, {m} {mask}, {v} zeroinitializer)")


def store_levels(f: Function, lanes: int, x: str, level: str, to: str, mask: str) -> None:
    """Rounds to the nearest, ties to even, and writes bytes; x is within their bounds."""
    real, whole, narrow = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i8"))
    x = f.let(f"call {real} @llvm.nearbyint.v{lanes}f32({real} {x})")
    bits = f.let(f"fptosi {real} {x} to {whole}")
    bits = f.let(f"trunc {whole} {f.let(f'add {whole} {bits}, {level}')} to {narrow}")
    name, m = f"@llvm.masked.store.v{lanes}i8.p0", f"<{lanes} x i1>"
    f.do(f"call void {name}({narrow} {bits}, ptr {to}, i32 1, {m} {mask})")


def declarations(lanes: int) -> str:
    """What the kernels call, beyond those of `masked`."""
    real, whole, narrow = (f"<{lanes} x {kind}>" for kind in ("float", "i32", "i8"))
    m = f"<{lanes} x i1>"
    return (
        f"declare {whole} @llvm.masked.load.v{lanes}i32.p0(ptr, i32 immarg, {m}, {whole})\n"
        f"declare void @llvm.masked.store.v{lanes}i8.p0({narrow}, ptr, i32 immarg, {m})\n"
        f"declare {real} @llvm.nearbyint.v{lanes}f32({real})\n"
    )
