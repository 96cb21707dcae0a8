"""Tiles of a matrix product on AMX: 16 or 32 rows, 32 columns, bfloat16 in, float32 sums.

b is packed per step of 32 along k as tiles of (16 pairs of k, 16 columns, 2), one for each half of
the columns. In the three-product form every float32 is a sum of two bfloat16, ``high + low``; a's
low halves lie in a second plane, b's low tiles behind the high ones, and
``low*high + high*high + high*low`` leaves an error of about 2^-16 of each product.
"""

from __future__ import annotations

from partita_cpu.native.ir.finish import Finish, prefetch
from partita_cpu.native.ir.fma import PARAMETERS
from partita_cpu.native.ir.text import Function

TILE_BYTES = 1024
_A_TILES = (4, 5)
_B_TILES = (6, 7)


def amx_tile(name: str, halves: int, split: bool, narrow: bool = False) -> Function:
    """Sums of up to `16 * halves` rows; depth counts steps of 32. See `fma.PARAMETERS`.

    Args:
        name: Its symbol.
        halves: Tiles down.
        split: Whether elements have lower halves.
        narrow: Whether output and residual are bfloat16.
    """
    f = Function(name, PARAMETERS)
    end = Finish(f, 16, narrow)
    below = f.let("shl i64 %lda, 4")
    places = [16 * 128 * (c // 2) + 64 * (c % 2) for c in range(2 * halves)]

    def zero() -> None:
        for c in range(2 * halves):
            f.do(f"call void @llvm.x86.tilezero(i8 {c})")

    def go_on() -> None:
        for c, place in enumerate(places):
            at = f.at("%start", place)
            f.do(f"call void @llvm.x86.tileloadd64(i8 {c}, ptr {at}, i64 128)")

    f.either(f.let("icmp eq ptr %start, null"), zero, go_on)

    def load_a(pointer: str) -> None:
        for i in range(halves):
            place = pointer if i == 0 else f.at(pointer, below)
            f.do(f"call void @llvm.x86.tileloadd64(i8 {_A_TILES[i]}, ptr {place}, i64 %lda)")

    fetched = TILE_BYTES * (2 if split else 1)
    # Without lower halves, the parameter for their distance says how wide a step is.
    wide_a: str | int = 64 if split else "%low_plane"
    wide_b = TILE_BYTES if split else f.let("shl i64 %low_plane, 4")
    beyond = 4 * TILE_BYTES if split else f.let("shl i64 %low_plane, 5")

    def load_b(pointer: str, first: int) -> None:
        for j in range(2):
            place = f.at(pointer, TILE_BYTES * first)
            place = f.at(place, wide_b) if j else place
            f.do(f"call void @llvm.x86.tileloadd64(i8 {_B_TILES[j]}, ptr {place}, i64 64)")

    def multiply() -> None:
        for i in range(halves):
            for j in range(2):
                f.do(
                    f"call void @llvm.x86.tdpbf16ps(i8 {2 * i + j}, i8 {_A_TILES[i]}, "
                    f"i8 {_B_TILES[j]})"
                )

    def step(_: str, values: list[str]) -> list[str]:
        a, b, ahead = values
        for line in range(0, fetched, 64):
            f.do(prefetch(f.at(ahead, line)))
        load_b(b, 0)
        if split:
            load_a(f.at(a, "%low_plane"))
            multiply()
        load_a(a)
        multiply()
        if split:
            load_b(b, 2)
            multiply()
        return [f.at(a, wide_a), f.at(b, beyond), f.at(ahead, fetched)]

    def tap(index: str, values: list[str]) -> list[str]:
        offset = f.load("i64", f.let(f"getelementptr i64, ptr %taps, i64 {index}"), 8)
        state = [("ptr", f.at("%a", offset)), *(("ptr", value) for value in values)]
        return f.loop("%depth", state, step)[1:]

    f.loop("%ntaps", [("ptr", "%b"), ("ptr", "%ahead")], tap)
    for c, place in enumerate(places):
        f.do(f"call void @llvm.x86.tilestored64(i8 {c}, ptr {f.at('%tile', place)}, i64 128)")
    f.either(f.let("icmp eq ptr %y, null"), lambda: None, lambda: end.stored_tile("%rows"))
    f.do("ret void")
    return f


def configure(name: str) -> Function:
    """Gives the tiles of a thread their sizes; reads 64 bytes of `tile_config`."""
    f = Function(name, "ptr %config")
    f.do("call void @llvm.x86.ldtilecfg(ptr %config)")
    f.do("ret void")
    return f


def release(name: str) -> Function:
    """Gives the tiles back, so that the system need not save them."""
    f = Function(name, "")
    f.do("call void @llvm.x86.tilerelease()")
    f.do("ret void")
    return f


def tile_config(step: int) -> bytes:
    """For `configure`, if `step` elements along k are taken at a time: an even number, up to 32.

    Palette 1; sums have 16 rows of 64 bytes, a's tiles shorter rows, b's fewer.
    """
    widths, heights = [64] * 8, [16] * 8
    for tile in _A_TILES:
        widths[tile] = 2 * step
    for tile in _B_TILES:
        heights[tile] = step // 2
    sizes = [byte for width in widths for byte in (width, 0)]
    return bytes([1, *[0] * 15, *sizes, *[0] * 16, *heights, *[0] * 8])


def declarations() -> str:
    """What the kernels call."""
    return """declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
"""
