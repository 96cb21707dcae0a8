"""Vectors of float32 from and to 16-bit floats in memory: loads, rounding, stores, splitting."""

from __future__ import annotations

from partita_cpu.llvm.function import Function

BFLOAT = "bfloat"
FLOAT16 = "half"


def rounded_to_float16(f: Function, lanes: int, x: str) -> str:
    """A vector of floats, each the nearest float16; what is too large is infinite."""
    kind, half = f"<{lanes} x float>", f"<{lanes} x half>"
    return f.let(f"fpext {half} {f.let(f'fptrunc {kind} {x} to {half}')} to {kind}")


def load_half(f: Function, lanes: int, pointer: str, mask: str | None, kind: str = BFLOAT) -> str:
    """A vector of 16-bit numbers as floats; lanes outside of the mask are not read, and 0.

    Without a mask all are read.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        pointer: Name of the address.
        mask: Name of ``lanes`` bits, or ``None``.
        kind: `BFLOAT` or `FLOAT16`.

    Returns:
        The name of the vector of floats.
    """
    short, wide = f"<{lanes} x i16>", f"<{lanes} x i32>"
    bits = load_words(f, lanes, pointer, mask)
    if kind == FLOAT16:
        numbers = f.let(f"bitcast {short} {bits} to <{lanes} x half>")
        return f.let(f"fpext <{lanes} x half> {numbers} to <{lanes} x float>")
    whole = f.let(f"zext {short} {bits} to {wide}")
    shifted = f.let(f"shl {wide} {whole}, {f.splat(lanes, 'i32', '16')}")
    return f.let(f"bitcast {wide} {shifted} to <{lanes} x float>")


def load_words(f: Function, lanes: int, pointer: str, mask: str | None) -> str:
    """A vector of i16; lanes outside of the mask are not read, and 0. Without one all are read.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        pointer: Name of the address.
        mask: Name of ``lanes`` bits, or ``None``.

    Returns:
        The name of the vector.
    """
    short = f"<{lanes} x i16>"
    if mask is None:
        return f.load(short, pointer, 2)
    call = f"call {short} @llvm.masked.load.v{lanes}i16.p0"
    return f.let(f"{call}(ptr {pointer}, i32 2, <{lanes} x i1> {mask}, {short} zeroinitializer)")


def store_half(
    f: Function, lanes: int, x: str, pointer: str, mask: str | None, kind: str = BFLOAT
) -> str:
    """Rounds a vector of floats to 16 bits and writes the lanes of the mask; returns the bits.

    Without a mask it writes all.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        x: Name of the vector of floats.
        pointer: Name of the address.
        mask: Name of ``lanes`` bits, or ``None``.
        kind: `BFLOAT` or `FLOAT16`.

    Returns:
        The name of a vector of i16.
    """
    short, m = f"<{lanes} x i16>", f"<{lanes} x i1>"
    rounded = f.let(f"fptrunc <{lanes} x float> {x} to <{lanes} x {kind}>")
    bits = f.let(f"bitcast <{lanes} x {kind}> {rounded} to {short}")
    if mask is None:
        f.do(f"store {short} {bits}, ptr {pointer}, align 2")
        return bits
    name = f"@llvm.masked.store.v{lanes}i16.p0"
    f.do(f"call void {name}({short} {bits}, ptr {pointer}, i32 2, {m} {mask})")
    return bits


def rounded_pair(f: Function, first: str, second: str) -> str:
    """Two vectors of 16 floats as 32 bfloat16; an instruction of AVX-512's for products of these.

    It takes less time than one that rounds a vector takes for each of them.

    Args:
        f: The function that is written.
        first: Name of a vector of 16 floats; it becomes the lower half.
        second: Name of the other.

    Returns:
        The name of the vector.
    """
    return f.let(f"call <32 x bfloat> {_ROUND_TWO}(<16 x float> {second}, <16 x float> {first})")


def store_pair(f: Function, pair: list[str], pointer: str, mask: str) -> None:
    """Rounds two vectors of 16 floats, which lie side by side, and writes the lanes of the mask.

    Args:
        f: The function that is written.
        pair: Names of the two vectors.
        pointer: Name of the address.
        mask: Name of 32 bits.
    """
    short = "<32 x i16>"
    bits = f.let(f"bitcast <32 x bfloat> {rounded_pair(f, *pair)} to {short}")
    name = "@llvm.masked.store.v32i16.p0"
    f.do(f"call void {name}({short} {bits}, ptr {pointer}, i32 2, <32 x i1> {mask})")


def store_parts(
    f: Function,
    lanes: int,
    x: str,
    pointer: str,
    mask: str | None,
    planes: int,
    apart: str | int = "%low_plane",
) -> None:
    """Writes a vector of floats as so many bfloat16 that add up to them, so many bytes apart.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        x: Name of the vector of floats.
        pointer: Name of the address of the first bfloat16, the largest ones.
        mask: Name of ``lanes`` bits; ``None`` writes all.
        planes: How many bfloat16 add up to a float: 3 keep all of its bits.
        apart: Bytes from one to the next, or the name of an i64.
    """
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    for plane in range(planes):
        pointer = f.at(pointer, apart) if plane else pointer
        part = store_half(f, lanes, x, pointer, mask)
        if plane + 1 < planes:
            whole = f.let(f"zext <{lanes} x i16> {part} to {ints}")
            whole = f.let(f"shl {ints} {whole}, {f.splat(lanes, 'i32', '16')}")
            x = f.let(f"fsub {floats} {x}, {f.let(f'bitcast {ints} {whole} to {floats}')}")


def store_pair_parts(
    f: Function, pair: list[str], pointer: str, planes: int, apart: str | int = "%low_plane"
) -> None:
    """What `store_parts` writes of two vectors of 16, which lie side by side; all of their lanes.

    The upper halves of 32 bits are taken by one permutation of both vectors, where an instruction
    that rounds to bfloat16 takes each vector apart and needs two more to widen it again. Halves are
    rounded away from zero. The third part needs no rounding: 8 bits are left of a float32's 24.
    Every NaN is written as one whose bits can be rounded like those of numbers.

    Args:
        f: The function that is written.
        pair: Names of the two vectors of floats.
        pointer: Name of the address of the first bfloat16, the largest ones.
        planes: How many bfloat16 add up to a float.
        apart: Bytes from one to the next, or the name of an i64.
    """
    floats, ints, shorts = "<16 x float>", "<16 x i32>", "<32 x i16>"
    upper = "<" + ", ".join(f"i32 {2 * i + 1}" for i in range(32)) + ">"
    half, mask = f.splat(16, "i32", "32768"), f.splat(16, "i32", "-65536")
    pair = [_with_one_nan(f, x) for x in pair]
    for plane in range(planes):
        pointer = f.at(pointer, apart) if plane else pointer
        bits = [f.let(f"bitcast {floats} {x} to {ints}") for x in pair]
        if plane < 2:
            bits = [f.let(f"add {ints} {bit}, {half}") for bit in bits]
        words = [f.let(f"bitcast {ints} {bit} to {shorts}") for bit in bits]
        both = f"shufflevector {shorts} {words[0]}, {shorts} {words[1]}, <32 x i32> {upper}"
        f.do(f"store {shorts} {f.let(both)}, ptr {pointer}, align 2")
        if plane + 1 < planes:
            parts = [
                f.let(f"bitcast {ints} {f.let(f'and {ints} {bit}, {mask}')} to {floats}")
                for bit in bits
            ]
            pair = [
                f.let(f"fsub {floats} {x}, {part}") for x, part in zip(pair, parts, strict=True)
            ]


def larger_magnitude(f: Function, lanes: int, largest: str, x: str) -> str:
    """The larger of the largest magnitudes found so far and those of a vector of floats.

    Magnitudes are the bits of absolute values, as integers: infinity is above all numbers, and NaN
    above infinity.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        largest: Name of a vector of i32: for each lane, what was found so far.
        x: Name of the vector of floats.

    Returns:
        The name of what takes the place of ``largest``.
    """
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    bits = f.let(f"bitcast {floats} {x} to {ints}")
    size = f.let(f"and {ints} {bits}, {f.splat(lanes, 'i32', '2147483647')}")
    return f.let(f"call {ints} @llvm.umax.v{lanes}i32({ints} {largest}, {ints} {size})")


def _with_one_nan(f: Function, x: str) -> str:
    """One NaN for all: half a unit added to the bits of another may make a number of it.

    So may leaving the lower half of its bits out.
    """
    floats, mask = "<16 x float>", "<16 x i1>"
    nan = f.splat(16, "float", "0x7FF8000000000000")
    unordered = f.let(f"fcmp uno {floats} {x}, zeroinitializer")
    return f.let(f"select {mask} {unordered}, {floats} {nan}, {floats} {x}")


_ROUND_TWO = "@llvm.x86.avx512bf16.cvtne2ps2bf16.512"

ROUND_TWO = f"declare <32 x bfloat> {_ROUND_TWO}(<16 x float>, <16 x float>)\n"
"""What `rounded_pair` calls."""


def declarations(lanes: int) -> str:
    """What kernels with 16-bit numbers call, beyond those of `masked`."""
    short, m = f"<{lanes} x i16>", f"<{lanes} x i1>"
    return (
        f"declare {short} @llvm.masked.load.v{lanes}i16.p0(ptr, i32 immarg, {m}, {short})\n"
        f"declare void @llvm.masked.store.v{lanes}i16.p0({short}, ptr, i32 immarg, {m})\n"
    )
