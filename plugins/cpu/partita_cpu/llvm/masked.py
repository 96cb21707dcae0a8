"""Masked loads and stores of vectors at the edge of a tile, and bounds."""

from __future__ import annotations

import functools

from partita_cpu.llvm.function import Function

AVX2_LANES = 8
"""Floats of a vector of AVX2, which has no registers for masks.

AMD's processors take 12 to 20 cycles for a store under a mask there, so that vectors are stored
without one: whole, or as 4, 2 and 1 lanes.
"""


def column_masks(f: Function, columns: str, lanes: int, vectors: int) -> list[str]:
    """For each vector of a row, which lanes are columns that exist.

    Args:
        f: The function that is written.
        columns: Name of an i64: how many columns exist.
        lanes: Elements of a vector.
        vectors: Vectors of the row.

    Returns:
        Names of masks, one of ``lanes`` bits for each vector.
    """
    kind = f"<{lanes} x i32>"
    count = f.splat(lanes, "i32", f.let(f"trunc i64 {columns} to i32"))
    masks = []
    for i in range(vectors):
        numbers = ", ".join(f"i32 {lanes * i + lane}" for lane in range(lanes))
        masks.append(f.let(f"icmp slt {kind} <{numbers}>, {count}"))
    return masks


def bounded(f: Function, kind: str, x: str, low: str, high: str, lanes: int) -> str:
    """Brings x within bounds; comparisons with NaN are false, so NaN stays.

    Args:
        f: The function that is written.
        kind: LLVM's name of the vector's type.
        x: Name of the vector.
        low: Name of a vector of least values.
        high: Name of a vector of largest values.
        lanes: Elements of each.

    Returns:
        The result's name.
    """
    mask = f"<{lanes} x i1>"
    below = f.let(f"fcmp olt {kind} {x}, {low}")
    x = f.let(f"select {mask} {below}, {kind} {low}, {kind} {x}")
    above = f.let(f"fcmp ogt {kind} {x}, {high}")
    return f.let(f"select {mask} {above}, {kind} {high}, {kind} {x}")


def masked_load(f: Function, lanes: int, pointer: str, mask: str | None) -> str:
    """A vector of floats; lanes outside of the mask are not read, and 0. Without one all are.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        pointer: Name of the address; it need not be aligned beyond that of a float.
        mask: Name of ``lanes`` bits; ``None`` if all lanes are there.

    Returns:
        The vector's name.
    """
    v, m = f"<{lanes} x float>", f"<{lanes} x i1>"
    if mask is None:
        return f.load(v, pointer)
    name = f"@llvm.masked.load.v{lanes}f32.p0"
    return f.let(f"call {v} {name}(ptr {pointer}, i32 4, {m} {mask}, {v} zeroinitializer)")


def masked_store(f: Function, lanes: int, x: str, pointer: str, mask: str | None) -> None:
    """Writes the lanes of the mask, and touches no other memory; without one it writes all.

    The mask is one of the first lanes, as `column_masks` makes them, all or none included.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        x: Name of the vector of floats.
        pointer: Name of the address; it need not be aligned beyond that of a float.
        mask: Name of ``lanes`` bits; ``None`` if all lanes are there.
    """
    v, m = f"<{lanes} x float>", f"<{lanes} x i1>"

    def some() -> None:
        name = f"@llvm.masked.store.v{lanes}f32.p0"
        f.do(f"call void {name}({v} {x}, ptr {pointer}, i32 4, {m} {mask})")

    def whole() -> None:
        _store(f, v, x, pointer)

    if mask is None:
        whole()
    elif lanes != AVX2_LANES:
        some()
    else:
        bits = f.let(f"bitcast {m} {mask} to i{lanes}")
        every = f.let(f"icmp eq i{lanes} {bits}, -1")
        f.either(every, whole, lambda: _store_first(f, x, pointer, bits))


_COUNTS_WITH = {4: 0xF0, 2: 0xCC, 1: 0xAA}
"""Numbers below 8, as a bit for each, in whose binary form a power of two is."""


def _store_first(f: Function, x: str, pointer: str, bits: str) -> None:
    """Writes fewer than all eight lanes, the first ones, whose bits are set."""
    count = f.let(f"add i{AVX2_LANES} {bits}, 1")  # the bit of how many there are
    for size, counts in _COUNTS_WITH.items():
        some = f.let(f"and i{AVX2_LANES} {count}, {counts}")
        there = f.let(f"icmp ne i{AVX2_LANES} {some}, 0")
        v, part = f"<{2 * size} x float>", f"<{size} x float>"
        low, high = (
            f.let(f"shufflevector {v} {x}, {v} poison, <{size} x i32> <{lanes}>")
            for lanes in (
                ", ".join(f"i32 {lane}" for lane in range(start, start + size))
                for start in (0, size)
            )
        )
        f.either(there, functools.partial(_store, f, part, low, pointer), lambda: None)
        x = f.let(f"select i1 {there}, {part} {high}, {part} {low}")
        pointer = f.let(f"select i1 {there}, ptr {f.at(pointer, 4 * size)}, ptr {pointer}")


def _store(f: Function, kind: str, x: str, pointer: str) -> None:
    f.do(f"store {kind} {x}, ptr {pointer}, align 4")


def truths_store(f: Function, lanes: int, x: str, pointer: str, mask: str | None) -> None:
    """Writes a vector of bits as bytes that are 0 or 1; without a mask all of them.

    Args:
        f: The function that is written.
        lanes: Elements of the vector.
        x: Name of the vector of bits.
        pointer: Name of the address.
        mask: Name of ``lanes`` bits; ``None`` if all lanes are there.
    """
    v, m = f"<{lanes} x i8>", f"<{lanes} x i1>"
    truths = f.let(f"zext {m} {x} to {v}")
    if mask is None:
        f.do(f"store {v} {truths}, ptr {pointer}, align 1")
    else:
        name = f"@llvm.masked.store.v{lanes}i8.p0"
        f.do(f"call void {name}({v} {truths}, ptr {pointer}, i32 1, {m} {mask})")


def declarations(lanes: int) -> str:
    """What the kernels call."""
    v, m = f"<{lanes} x float>", f"<{lanes} x i1>"
    return (
        f"declare {v} @llvm.masked.load.v{lanes}f32.p0(ptr, i32 immarg, {m}, {v})\n"
        f"declare void @llvm.masked.store.v{lanes}f32.p0({v}, ptr, i32 immarg, {m})\n"
    )
