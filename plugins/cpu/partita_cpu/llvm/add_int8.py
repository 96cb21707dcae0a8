"""The sum of two quantized tensors as a quantized tensor, 64 levels at a time; for AVX-512.

One kernel rounds each step as float32 does, so that the levels are those of floats which are
dequantized, added and quantized. Another multiplies levels by factors that give the same for all
pairs of levels, where there are such.
"""

from __future__ import annotations

from partita_cpu.llvm.epilogue_int8 import byte_bounds, rounded, rounded_below, store_together
from partita_cpu.llvm.function import Function

PARAMETERS = (
    "ptr %x, ptr %w, ptr %y, i64 %blocks, i64 %x_zero, i64 %w_zero, i64 %level, "
    "float %x_scale, float %w_scale, float %y_scale, float %inverse, float %low, float %high"
)
"""blocks: how many times `BLOCK` levels. x_zero, w_zero: the levels of 0 of x and w; level: that of
y. inverse: the float next to 1 / y_scale. low, high: bounds of y less the level of 0."""

FACTORS_PARAMETERS = (
    "ptr %x, ptr %w, ptr %y, i64 %blocks, float %x_factor, float %w_factor, float %term, "
    "float %low, i64 %level"
)
"""x_factor, w_factor, term: what makes levels a sum in steps of y, from its level of 0, which is
`level`; no sum may be beyond int32. The others are those of `PARAMETERS`."""

BLOCK = 64
_LANES = 16


def add_bytes(name: str, signed: bool) -> Function:
    """``y = round(((x - x_zero) * x_scale + (w - w_zero) * w_scale) / y_scale) + level``."""
    f = Function(name, PARAMETERS)
    whole, real = f"<{_LANES} x i32>", f"<{_LANES} x float>"
    bounds = byte_bounds(f)
    names = ("%x_scale", "%w_scale", "%y_scale", "%inverse", "%high")
    x_scale, w_scale, divisor, inverse, high = (f.splat(_LANES, "float", n) for n in names)
    minus = f.let(f"fneg {real} {divisor}")
    x_zero, w_zero = (
        f.splat(_LANES, "i32", f.let(f"trunc i64 {name} to i32")) for name in ("%x_zero", "%w_zero")
    )

    def number(pointer: str, zero: str, scale: str) -> str:
        levels = f.load(f"<{_LANES} x i8>", pointer, 1)
        wide = f.let(f"{'sext' if signed else 'zext'} <{_LANES} x i8> {levels} to {whole}")
        less = f.let(f"sub {whole} {wide}, {zero}")
        return f.let(f"fmul {real} {f.let(f'sitofp {whole} {less} to {real}')}, {scale}")

    def block(index: str, _: list[str]) -> list[str]:
        start = f.let(f"mul i64 {index}, {BLOCK}")
        found = []
        for first in range(0, BLOCK, _LANES):
            at = f.let(f"add i64 {start}, {first}")
            left = number(f.at("%x", at), x_zero, x_scale)
            total = f.let(f"fadd {real} {left}, {number(f.at('%w', at), w_zero, w_scale)}")
            about = f.let(f"fmul {real} {total}, {inverse}")
            rest = f.fma(_LANES, about, minus, total)
            quotient = f.fma(_LANES, rest, inverse, about)
            found.append(rounded_below(f, quotient, high))
        store_together(f, found, *bounds, f.at("%y", start))
        return []

    f.loop("%blocks", [], block)
    f.do("ret void")
    return f


def add_by_factors(name: str, signed: bool) -> Function:
    """``y = round(x * x_factor + (w * w_factor + term)) + level``, each product with its sum."""
    f = Function(name, FACTORS_PARAMETERS)
    bounds = byte_bounds(f)
    names = ("%x_factor", "%w_factor", "%term")
    x_factor, w_factor, term = (f.splat(_LANES, "float", n) for n in names)

    def block(index: str, _: list[str]) -> list[str]:
        start = f.let(f"mul i64 {index}, {BLOCK}")
        found = []
        for first in range(0, BLOCK, _LANES):
            at = f.let(f"add i64 {start}, {first}")
            right = _floats(f, f.at("%w", at), signed)
            total = f.fma(_LANES, right, w_factor, term)
            total = f.fma(_LANES, _floats(f, f.at("%x", at), signed), x_factor, total)
            found.append(rounded(f, total))
        store_together(f, found, *bounds, f.at("%y", start))
        return []

    f.loop("%blocks", [], block)
    f.do("ret void")
    return f


def _floats(f: Function, pointer: str, signed: bool) -> str:
    """Levels as they are, in float32."""
    whole = f"<{_LANES} x i32>"
    levels = f.load(f"<{_LANES} x i8>", pointer, 1)
    wide = f.let(f"{'sext' if signed else 'zext'} <{_LANES} x i8> {levels} to {whole}")
    return f.let(f"sitofp {whole} {wide} to <{_LANES} x float>")
