"""Depthwise convolution of neighbouring output pixels, from image rows copied for it.

A copied row has its channels in blocks of a vector, and in a block one pixel behind another, with
zeros where the image is padded. So every product reads a whole vector at a known distance, and no
pixel is at an edge.
"""

from __future__ import annotations

from partita_cpu.llvm.epilogue import gated
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half
from partita_cpu.llvm.masked import bounded, column_masks, masked_load, masked_store

PARAMETERS = (
    "ptr %lines, i64 %place, i64 %rows, i64 %taps, i64 %block, ptr %w, i64 %w_block, ptr %bias, "
    "i64 %blocks, i64 %channels, ptr %y, i64 %y_pixel, float %low, float %high, i64 %gate"
)
"""lines: addresses of `rows` laid out rows; place: bytes to the first pixel's first tap. taps: of a
row. block: bytes from one block of a row to the next. w: a vector per tap; w_block: bytes from one
block's weights to the next. bias: a vector per block. blocks: how many to compute. channels: how
many exist in these. y: the first output pixel; y_pixel: bytes to the next. low, high: bounds. gate:
see `epilogue.gated`."""

PACK_PARAMETERS = "ptr %x, i64 %pixels, i64 %x_pixel, i64 %channels, ptr %to, i64 %block"
"""x: the first pixel; x_pixel: bytes to the next. to: the place of its first block; block: bytes to
the next block."""

MOST_PIXELS = 8


def depthwise(name: str, pixels: int, lanes: int, half: bool = False) -> Function:
    """Sums, bounded and perhaps gated, of `pixels` neighbours, in float32 or bfloat16."""
    f = Function(name, PARAMETERS)
    v, vector = f"<{lanes} x float>", 4 * lanes
    low, high = f.splat(lanes, "float", "%low"), f.splat(lanes, "float", "%high")
    store = store_half if half else masked_store

    def block(index: str, _: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {lanes}")
        mask = column_masks(f, f.let(f"sub i64 %channels, {first}"), lanes, 1)[0]
        begin = f.let(f"add i64 %place, {f.let(f'mul i64 {index}, %block')}")
        bias = f.load(v, f.at("%bias", f.let(f"mul i64 {index}, {vector}")))

        def row(a: str, outer: list[str]) -> list[str]:
            line = f.load("i64", f.let(f"getelementptr i64, ptr %lines, i64 {a}"), 8)
            x = f.let(f"inttoptr i64 {f.let(f'add i64 {line}, {begin}')} to ptr")

            def tap(_: str, inner: list[str]) -> list[str]:
                x, w, *sums = inner
                weight = f.load(v, w)
                for p in range(pixels):
                    element = f.load(v, f.at(x, vector * p))
                    sums[p] = f.fma(lanes, element, weight, sums[p])
                return [f.at(x, vector), f.at(w, vector), *sums]

            state = [("ptr", x), ("ptr", outer[0])] + [(v, s) for s in outer[1:]]
            return f.loop("%taps", state, tap)[1:]

        weights = f.at("%w", f.let(f"mul i64 {index}, %w_block"))
        sums = f.loop("%rows", [("ptr", weights)] + [(v, bias)] * pixels, row)[1:]
        sums = [bounded(f, v, x, low, high, lanes) for x in sums]
        sums = gated(f, lanes, sums)
        to = f.at("%y", f.let(f"mul i64 {index}, {(2 if half else 4) * lanes}"))
        for x in sums:
            store(f, lanes, x, to, mask)
            to = f.at(to, "%y_pixel")
        return []

    f.loop("%blocks", [], block)
    f.do("ret void")
    return f


def pack_pixels(name: str, lanes: int, half: bool = False) -> Function:
    """Pixels laid out block by block, as float32; zeros for channels that do not exist."""
    f = Function(name, PACK_PARAMETERS)
    v = f"<{lanes} x float>"
    load = load_half if half else masked_load
    blocks = f.let(f"udiv i64 {f.let(f'add i64 %channels, {lanes - 1}')}, {lanes}")

    def pixel(index: str, _: list[str]) -> list[str]:
        source = f.at("%x", f.let(f"mul i64 {index}, %x_pixel"))
        to = f.at("%to", f.let(f"mul i64 {index}, {4 * lanes}"))

        def block(number: str, _: list[str]) -> list[str]:
            first = f.let(f"mul i64 {number}, {lanes}")
            mask = column_masks(f, f.let(f"sub i64 %channels, {first}"), lanes, 1)[0]
            x = load(f, lanes, f.at(source, f.let(f"mul i64 {first}, {2 if half else 4}")), mask)
            place = f.at(to, f.let(f"mul i64 {number}, %block"))
            f.do(f"store {v} {x}, ptr {place}, align 4")
            return []

        f.loop(blocks, [], block)
        return []

    f.loop("%pixels", [], pixel)
    f.do("ret void")
    return f
