"""8-bit depthwise convolution with channels last: some neighbouring output pixels, all channels.

Levels become floats less the zero point, so that integers are added up exactly and a tap that is
left out at an edge adds nothing. Sums are requantized in registers.
"""

from __future__ import annotations

from partita_cpu.llvm.epilogue_int8 import store_levels
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.masked import bounded, column_masks, masked_load

PARAMETERS = (
    "ptr %x, i64 %row, i64 %tap, i64 %pixel, i64 %rows, i64 %taps, ptr %w, i64 %w_row, "
    "i64 %channels, ptr %bias, ptr %factors, ptr %y, i64 %y_pixel, float %zero, float %low, "
    "float %high, i64 %level"
)
"""x: the first tap of the first pixel. row, tap, pixel: bytes between rows of taps, taps, output
pixels. rows, taps: how many taps down and across. w: float32 weights of the first tap, `channels` a
tap; w_row: bytes between rows of them. bias, factors: float32 per channel. y_pixel: bytes between
output pixels. zero: the level of x that is 0. low, high: bounds of levels less that of 0, which is
`level`."""


def depthwise_bytes(name: str, pixels: int, lanes: int, signed: bool) -> Function:
    """Sums of `pixels` neighbours, for int8 or uint8."""
    f = Function(name, PARAMETERS)
    v = f"<{lanes} x float>"
    blocks = f.let(f"sdiv i64 {f.let(f'add i64 %channels, {lanes - 1}')}, {lanes}")
    tap_bytes = f.let("shl i64 %channels, 2")
    low, high = f.splat(lanes, "float", "%low"), f.splat(lanes, "float", "%high")
    zero = f.splat(lanes, "float", "%zero")
    level = f.splat(lanes, "i32", f.let("trunc i64 %level to i32"))

    def block(index: str, _: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {lanes}")
        mask = column_masks(f, f.let(f"sub i64 %channels, {first}"), lanes, 1)[0]
        place = f.let(f"shl i64 {first}, 2")
        bias = masked_load(f, lanes, f.at("%bias", place), mask)
        factors = masked_load(f, lanes, f.at("%factors", place), mask)

        def down(_: str, outer: list[str]) -> list[str]:
            def across(_: str, inner: list[str]) -> list[str]:
                x, w, *sums = inner
                weight = masked_load(f, lanes, w, mask)
                at = x
                for p in range(pixels):
                    element = f.let(f"fsub {v} {_load(f, lanes, at, mask, signed)}, {zero}")
                    sums[p] = f.fma(lanes, element, weight, sums[p])
                    at = f.at(at, "%pixel")
                return [f.at(x, "%tap"), f.at(w, tap_bytes), *sums]

            state = [("ptr", outer[0]), ("ptr", outer[1])] + [(v, s) for s in outer[2:]]
            sums = f.loop("%taps", state, across)[2:]
            return [f.at(outer[0], "%row"), f.at(outer[1], "%w_row"), *sums]

        state = [("ptr", f.at("%x", first)), ("ptr", f.at("%w", place))] + [(v, bias)] * pixels
        sums = f.loop("%rows", state, down)[2:]
        to = f.at("%y", first)
        for x in sums:
            scaled = bounded(f, v, f.let(f"fmul {v} {x}, {factors}"), low, high, lanes)
            store_levels(f, lanes, scaled, level, to, mask)
            to = f.at(to, "%y_pixel")
        return []

    f.loop(blocks, [], block)
    f.do("ret void")
    return f


def _load(f: Function, lanes: int, pointer: str, mask: str, signed: bool) -> str:
    narrow, m = f"<{lanes} x i8>", f"<{lanes} x i1>"
    name = f"@llvm.masked.load.v{lanes}i8.p0"
    call = f"call {narrow} {name}(ptr {pointer}, i32 1, {m} {mask}, {narrow} zeroinitializer)"
    bits = f.let(call)
    whole = f.let(f"{'sext' if signed else 'zext'} {narrow} {bits} to <{lanes} x i32>")
    return f.let(f"sitofp <{lanes} x i32> {whole} to <{lanes} x float>")


def declarations(lanes: int) -> str:
    """What the kernels call, beyond those of `masked` and `finish_bytes`."""
    narrow, m = f"<{lanes} x i8>", f"<{lanes} x i1>"
    return f"declare {narrow} @llvm.masked.load.v{lanes}i8.p0(ptr, i32 immarg, {m}, {narrow})\n"
