"""Tile kernels on AMX: 16 or 32 rows, 32 columns, bfloat16 factors, float32 accumulators.

b is packed per step of 32 along k as tiles of (16 pairs of k, 16 columns, 2), one for each half of
the columns. In the form with three products every float32 is a sum of two bfloat16; a's second
parts lie in a second plane, b's second tiles behind the first ones, and the three larger products
of parts leave an error of about 2^-16 of each whole one. With three parts, which hold all bits of a
float32, and six products it is 2^-24: no more than float32 itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita_cpu.llvm.epilogue import Finish, prefetch
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import BFLOAT
from partita_cpu.llvm.tiles.fma import PARAMETERS

TILE_BYTES = 1024
A_TILES = (4, 5)
B_TILES = (6, 7)

LATE_PARAMETERS = f"{PARAMETERS}, ptr %before, i64 %late"
"""Of kernels that leave their sums in the tile, and finish those of another one meanwhile.

They do so between products: vectors have time for it while tiles are multiplied.

before: the other tile, as such a kernel left it. late: how many of its rows are finished. Bias and
what follows it in `epilogue.PARAMETERS` are about these; the bias is read even if there are none.
"""

Load = tuple[str, int, int]
"""Loads half 0 or 1 of "a" or "b" (rows or columns), of some part, to its tile."""

PRODUCTS = {
    1: ((0, 0),),
    2: ((0, 1), (0, 0), (1, 0)),
    3: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0)),
}
"""By number of parts, which part of b meets which part of a; neighbours have one in common."""


def schedule(halves: int, planes: int) -> list[Load | tuple[int, int]]:
    """A step along k: loads, and products of a half of a with one of b.

    What the next product needs is loaded while the last ones are computed, into tiles that no
    product waits for.
    """
    made: list[Load | tuple[int, int]] = []
    held: dict[tuple[str, int], int] = {}
    before = -1
    for of_b, of_a in PRODUCTS[planes]:
        # Halves of what changed come one after the other.
        by_rows = of_b == before or before < 0
        pairs = [(i, j) for i in range(halves) for j in range(2)]
        for i, j in pairs if by_rows else sorted(pairs, key=lambda pair: pair[::-1]):
            for side, half, part in (("b", j, of_b), ("a", i, of_a)):
                if held.get((side, half)) == part:
                    continue
                held[side, half] = part
                last = made[-1] if made and before >= 0 else ("", 0, 0)
                free = len(last) == 2 and half != last["ab".index(side)]
                made.insert(len(made) - int(free), (side, half, part))
            made.append((i, j))
        before = of_b
    return made


def amx_tile(
    name: str, halves: int, planes: int, narrow: bool = False, packed: bool = False
) -> Function:
    """Sums of up to `16 * halves` rows; depth counts steps of 32. See `LATE_PARAMETERS`.

    Args:
        name: Its symbol.
        halves: Tiles down.
        planes: Parts of an element.
        narrow: Whether output and residual are bfloat16.
        packed: Whether a is packed as whole tiles, see `bf16_split.pack_tile`: for 16 rows one
            tile per step, further parts behind it. Then lda is the distance of the next 16 rows, a
            quarter of b is fetched, and taps, ntaps and low_plane are not read. Such a kernel
            finishes its own tile behind its sums; see `fma.PARAMETERS`.
    """
    f = Function(name, PARAMETERS if packed else LATE_PARAMETERS)
    end = Finish(f, 16, BFLOAT if narrow else "")
    at_once = "" if packed else _rows_at_once(f, end, len(PRODUCTS[planes]))
    below = "%lda" if packed else f.let("shl i64 %lda, 4")
    places = [16 * 128 * (c // 2) + 64 * (c % 2) for c in range(2 * halves)]
    begin_sums(f, f.let("icmp eq ptr %start, null"), [f.at("%start", x) for x in places], 128)
    fetched = TILE_BYTES * planes // (2 if packed else 1)
    # Without further parts, the parameter for their distance says how wide a step is.
    whole = planes > 1 or packed
    apart: str | int = TILE_BYTES if packed else "%low_plane"
    wide_a: str | int = planes * TILE_BYTES if packed else 64 if whole else "%low_plane"
    wide_b: str | int = TILE_BYTES if whole else f.let("shl i64 %low_plane, 4")
    beyond: str | int = 2 * planes * TILE_BYTES if whole else f.let("shl i64 %low_plane, 5")
    order = schedule(halves, planes)

    def load(a: str, b: str, what: Load) -> None:
        side, half, part = what
        if side == "a":
            place = a
            for _ in range(part):
                place = f.at(place, apart)
            place = f.at(place, below) if half else place
            load_tile(f, A_TILES[half], place, "64" if packed else "%lda", packed and planes < 3)
        else:
            place = f.at(b, 2 * TILE_BYTES * part) if part else b
            place = f.at(place, wide_b) if half else place
            load_tile(f, B_TILES[half], place, "64")

    def step(_: str, values: list[str]) -> list[str]:
        a, b, ahead, *waiting = values
        waiting = _fetch_rows(f, waiting[0], apart_y) if packed else waiting
        asked = products = 0
        for done, what in enumerate(order, 1):
            if isinstance(what[0], str):
                load(a, b, (what[0], what[1], what[2]))
            else:
                add_product(f, what[0], what[1])
                products += 1
                if not packed and products % (2 * halves) == 0:
                    waiting = _finish_rows(f, end, at_once, waiting)
            # All at once they would keep a's loads waiting for the memory's buffers.
            while asked * len(order) < fetched * done:
                f.do(prefetch(f.at(ahead, asked)))
                asked += 64
        return [f.at(a, wide_a), f.at(b, beyond), f.at(ahead, fetched), *waiting]

    def tap(index: str, values: list[str]) -> list[str]:
        offset = f.load("i64", f.let(f"getelementptr i64, ptr %taps, i64 {index}"), 8)
        state = [("ptr", f.at("%a", offset))]
        state += [(kind, value) for (kind, _), value in zip(streams, values, strict=True)]
        return f.loop("%depth", state, step)[1:]

    streams = [("ptr", "%b"), ("ptr", "%ahead")]
    if packed:
        first_y, apart_y = _rows_to_fetch(f)
        f.loop("%depth", [("ptr", "%a"), *streams, ("ptr", first_y)], step)
    else:
        streams += [("ptr", name) for name in ("%before", "%residual", "%y")] + [("i64", "%late")]
        *places_left, left = f.loop("%ntaps", streams, tap)[2:]
        end.next_rows(left, places_left)  # all, if there are no products
    store_sums(f, [f.at("%tile", x) for x in places], 128)
    if packed:
        f.either(f.let("icmp eq ptr %y, null"), lambda: None, lambda: end.stored_tile("%rows"))
    f.do("ret void")
    return f


def _rows_to_fetch(f: Function) -> tuple[str, str]:
    """The first row of the output and the distance to the next; one of the tile if it stays."""
    stays = f.let("icmp eq ptr %y, null")
    first = f.let(f"select i1 {stays}, ptr %tile, ptr %y")
    return first, f.let(f"select i1 {stays}, i64 0, i64 %ldy")


def _fetch_rows(f: Function, place: str, apart: str) -> list[str]:
    """Asks for the lines of the next rows of the output; the place of the row behind them.

    Rows lie apart, and stores would wait for their lines one after another; the products of a step
    take longer than the lines of two rows. From 16 steps on all of a tile's are there in time.
    """
    for _ in range(_ROWS_A_STEP):
        for line in range(0, 128, 64):
            f.do(prefetch(f.at(place, line), 3))
        place = f.at(place, apart)
    return [place]


_ROWS_A_STEP = 2


def _rows_at_once(f: Function, end: Finish, turns: int) -> str:
    """How many rows of another tile are finished at a time, if there are so many turns a step."""
    end.begin_rows()
    total = f.let(f"mul i64 {f.let('mul i64 %ntaps, %depth')}, {turns}")
    none = f.let(f"icmp eq i64 {total}, 0")
    total = f.let(f"select i1 {none}, i64 1, i64 {total}")
    up = f.let(f"sub i64 {f.let(f'add i64 %late, {total}')}, 1")
    return f.let(f"udiv i64 {up}, {total}")


def _finish_rows(f: Function, end: Finish, at_once: str, waiting: list[str]) -> list[str]:
    """Finishes the next rows of another tile: their places, and how many are left."""
    *places, left = waiting
    fewer = f.let(f"icmp slt i64 {left}, {at_once}")
    count = f.let(f"select i1 {fewer}, i64 {left}, i64 {at_once}")
    return [*end.next_rows(count, places), f.let(f"sub i64 {left}, {count}")]


def load_tile(f: Function, tile: int, place: str, pitch: str, passes: bool = False) -> None:
    """Loads a tile.

    Args:
        f: The kernel.
        tile: Its number.
        place: Where its first row lies.
        pitch: Bytes from one row to the next.
        passes: Whether it does not stay in the first-level cache. A product of two tiles takes as
            long as one tile from the second-level cache, so that others are to stay.
    """
    hint = "t1" if passes else ""
    f.do(f"call void @llvm.x86.tileloadd{hint}64(i8 {tile}, ptr {place}, i64 {pitch})")


def add_product(f: Function, half_of_a: int, half_of_b: int) -> None:
    """Adds the product of two tiles that were loaded to its sums."""
    sums = 2 * half_of_a + half_of_b
    tiles = f"i8 {sums}, i8 {A_TILES[half_of_a]}, i8 {B_TILES[half_of_b]}"
    f.do(f"call void @llvm.x86.tdpbf16ps({tiles})")


def begin_sums(f: Function, fresh: str, places: Sequence[str], pitch: str | int) -> None:
    """Sums, in tiles from 0 on, begin with zero if they are fresh, or with what lies at places.

    Args:
        f: The kernel.
        fresh: An i1.
        places: Where each tile's sums lie.
        pitch: Bytes from one row of them to the next.
    """

    def zero() -> None:
        for tile in range(len(places)):
            f.do(f"call void @llvm.x86.tilezero(i8 {tile})")

    def go_on() -> None:
        for tile, place in enumerate(places):
            f.do(f"call void @llvm.x86.tileloadd64(i8 {tile}, ptr {place}, i64 {pitch})")

    f.either(fresh, zero, go_on)


def store_sums(f: Function, places: Sequence[str], pitch: str | int) -> None:
    """Writes sums to where `begin_sums` reads them."""
    for tile, place in enumerate(places):
        f.do(f"call void @llvm.x86.tilestored64(i8 {tile}, ptr {place}, i64 {pitch})")


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
    for tile in A_TILES:
        widths[tile] = 2 * step
    for tile in B_TILES:
        heights[tile] = step // 2
    sizes = [byte for width in widths for byte in (width, 0)]
    return bytes([1, *[0] * 15, *sizes, *[0] * 16, *heights, *[0] * 8])


def declarations() -> str:
    """What the kernels call."""
    return """declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
declare void @llvm.x86.tileloaddt164(i8 immarg, ptr, i64)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)
"""
