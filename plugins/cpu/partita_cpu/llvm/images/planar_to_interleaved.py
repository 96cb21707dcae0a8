"""Pictures of three planes (channels first) to interleaved pixels, row by row."""

from __future__ import annotations

from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import store_parts
from partita_cpu.llvm.masked import masked_load, masked_store

CHANNELS = 3
"""Channels of a picture."""

PARAMETERS = "ptr %x, i64 %apart, i64 %n, ptr %to, i64 %low_plane"
"""x: the first of n floats of the first channel; apart: bytes from it to the next channel's. to:
gets 3 n elements. low_plane: distance in bytes from `to` to the second parts, and from these to the
third ones."""


def interleave(name: str, lanes: int, planes: int = 0) -> Function:
    """Interleaves a row; returns what `bf16_split.narrow` returns, or 0 for floats.

    Args:
        name: Its symbol.
        lanes: Floats of a vector.
        planes: In how many parts of bfloat16 elements are kept; 0 for float32.
    """
    f = Function(name, PARAMETERS, "i64")
    floats, ints, bits = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{lanes} x i1>"
    rounds = f.let(f"udiv i64 {f.let(f'add i64 %n, {lanes - 1}')}, {lanes}")

    def below(first: int, count: str) -> str:
        """The lanes, counted from `first`, that are below a number."""
        numbers = ", ".join(f"i32 {first + lane}" for lane in range(lanes))
        return f.let(f"icmp slt {ints} <{numbers}>, {f.splat(lanes, 'i32', count)}")

    def chosen(a: str, b: str, places: list[int]) -> str:
        mask = ", ".join(f"i32 {place}" for place in places)
        return f.let(f"shufflevector {floats} {a}, {floats} {b}, {ints} <{mask}>")

    def piece(index: str, values: list[str]) -> list[str]:
        first = f.let(f"mul i64 {index}, {lanes}")
        left = f.let(f"trunc i64 {f.let(f'sub i64 %n, {first}')} to i32")
        inside = below(0, left)
        rows, at = [], f.at("%x", f.let(f"shl i64 {first}, 2"))
        for channel in range(CHANNELS):
            at = f.at(at, "%apart") if channel else at
            rows.append(masked_load(f, lanes, at, inside))
        many = f.let(f"mul i32 {left}, {CHANNELS}")
        size = 2 if planes else 4
        to = f.at("%to", f.let(f"mul i64 {first}, {CHANNELS * size}"))
        largest = values[0]
        for part in range(CHANNELS):
            places = [divmod(lanes * part + lane, CHANNELS) for lane in range(lanes)]
            two = chosen(rows[0], rows[1], [pixel + lanes * (c % 2) for pixel, c in places])
            last = [lane if c < 2 else lanes + p for lane, (p, c) in enumerate(places)]
            x = chosen(two, rows[2], last)
            writable, place = below(lanes * part, many), f.at(to, size * lanes * part)
            if not planes:
                masked_store(f, lanes, x, place, writable)
                continue
            store_parts(f, lanes, x, place, writable, planes)
            found = f.let(f"bitcast {floats} {x} to {ints}")
            found = f.let(f"and {ints} {found}, {f.splat(lanes, 'i32', '2147483647')}")
            found = f.let(f"select {bits} {writable}, {ints} {found}, {ints} zeroinitializer")
            largest = f.let(f"call {ints} @llvm.umax.v{lanes}i32({ints} {largest}, {ints} {found})")
        return [largest]

    largest = f.loop(rounds, [(ints, "zeroinitializer")], piece)[0]
    found = f.let(f"call i32 @llvm.vector.reduce.umax.v{lanes}i32({ints} {largest})")
    f.do(f"ret i64 {f.let(f'zext i32 {found} to i64')}")
    return f
