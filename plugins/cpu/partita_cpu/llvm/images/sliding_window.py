"""Windows that slide over a row of an image with channels last: weighted sum, maximum, sum.

A call computes some neighbouring output pixels for all channels. Every tap is read in place, so
nothing is copied; a caller clips the taps at the edges by passing fewer of them.
"""

from __future__ import annotations

from partita_cpu.llvm.epilogue import gated
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import load_half, store_half
from partita_cpu.llvm.masked import bounded, column_masks, masked_load, masked_store

PARAMETERS = (
    "ptr %x, i64 %row, i64 %tap, i64 %pixel, i64 %rows, i64 %taps, ptr %w, i64 %w_row, "
    "i64 %channels, ptr %bias, ptr %y, i64 %y_pixel, float %low, float %high, i64 %gate"
)
"""x: the first tap of the first pixel. row, tap, pixel: bytes between rows of taps, taps, output
pixels. rows, taps: how many taps down and across. w: weights of the first tap, `channels` floats a
tap; w_row: bytes between rows of them. y_pixel: bytes between output pixels. gate: of a
weighted sum, see `epilogue.gated`. For a sum, `low` is the factor of the result."""

WINDOW_PIXELS = (1, 2, 4, 8)
"""Numbers of output pixels that kernels compute together."""


def window(
    name: str,
    kind: str,
    pixels: int,
    lanes: int,
    half_in: bool = False,
    half_out: bool = False,
) -> Function:
    """One of the kinds ``"convolve"``, ``"max"`` and ``"sum"`` over `pixels` neighbours.

    Args:
        name: Its symbol.
        kind: What is computed.
        pixels: Output pixels of a call.
        lanes: Floats of a vector.
        half_in: Whether the input is bfloat16.
        half_out: Whether the output is.
    """
    load = load_half if half_in else masked_load
    store = store_half if half_out else masked_store
    f = Function(name, PARAMETERS)
    v = f"<{lanes} x float>"
    blocks = f.let(f"sdiv i64 {f.let(f'add i64 %channels, {lanes - 1}')}, {lanes}")
    tap_bytes = f.let("shl i64 %channels, 2")
    low, high = f.splat(lanes, "float", "%low"), f.splat(lanes, "float", "%high")
    lowest = f.splat(lanes, "float", "0xFFF0000000000000")

    def block(index: str, _: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {lanes}")
        mask = column_masks(f, f.let(f"sub i64 %channels, {first}"), lanes, 1)[0]
        place = f.let(f"shl i64 {first}, 2")
        place_in = f.let(f"shl i64 {first}, {1 if half_in else 2}")
        place_out = f.let(f"shl i64 {first}, {1 if half_out else 2}")
        start = "zeroinitializer"
        if kind == "convolve":
            start = masked_load(f, lanes, f.at("%bias", place), mask)
        elif kind == "max":
            start = lowest

        def down(_: str, outer: list[str]) -> list[str]:
            def across(_: str, inner: list[str]) -> list[str]:
                x, w, *sums = inner
                weight = masked_load(f, lanes, w, mask) if kind == "convolve" else ""
                at = x
                for p in range(pixels):
                    element = load(f, lanes, at, mask)
                    sums[p] = _add(f, kind, v, lanes, element, weight, sums[p])
                    at = f.at(at, "%pixel")
                return [f.at(x, "%tap"), f.at(w, tap_bytes), *sums]

            before = outer[2:]
            begin = ["zeroinitializer"] * pixels if kind == "sum" else before
            state = [("ptr", outer[0]), ("ptr", outer[1])] + [(v, s) for s in begin]
            sums = f.loop("%taps", state, across)[2:]
            if kind == "sum":
                # Rows are added up apart, so that the error does not grow with all elements.
                pairs = zip(before, sums, strict=True)
                sums = [f.let(f"fadd {v} {total}, {row}") for total, row in pairs]
            return [f.at(outer[0], "%row"), f.at(outer[1], "%w_row"), *sums]

        state = [("ptr", f.at("%x", place_in)), ("ptr", f.at("%w", place))] + [(v, start)] * pixels
        sums = f.loop("%rows", state, down)[2:]
        to = f.at("%y", place_out)
        if kind == "convolve":
            sums = [bounded(f, v, x, low, high, lanes) for x in sums]
            sums = gated(f, lanes, sums)
        for p in range(pixels):
            x = f.let(f"fmul {v} {sums[p]}, {low}") if kind == "sum" else sums[p]
            store(f, lanes, x, to, mask)
            to = f.at(to, "%y_pixel")
        return []

    f.loop(blocks, [], block)
    f.do("ret void")
    return f


def _add(f: Function, kind: str, v: str, lanes: int, x: str, w: str, total: str) -> str:
    """Adds a tap to the running result of a window, and returns the new one.

    Args:
        f: The function.
        kind: "convolve", "sum" or "max".
        v: The vector's type.
        lanes: Elements of the vector.
        x: The tap.
        w: Its weight.
        total: The result so far.
    """
    if kind == "convolve":
        return f.fma(lanes, x, w, total)
    if kind == "sum":
        return f.let(f"fadd {v} {total}, {x}")
    # As in the other pooling kernels, a NaN is never larger.
    larger = f.let(f"fcmp ogt {v} {x}, {total}")
    return f.let(f"select <{lanes} x i1> {larger}, {v} {x}, {v} {total}")
