"""Depthwise convolution of neighbouring output pixels, reading the image in place.

Every column of the image that the pixels need is read once and serves all of them. Columns that may
lie outside of the image, at either end, are masked, and only these. What the pixels below need
beside that is prefetched: of each pixel one vector after another is read, from lines that lie so
far apart that no processor foresees them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from partita_cpu.llvm.epilogue import gated, prefetch
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.half_vectors import (
    larger_magnitude,
    load_half,
    load_words,
    rounded_pair,
    store_pair_parts,
    store_parts,
)
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.masked import bounded, column_masks, masked_load, masked_store
from partita_cpu.llvm.tiles.fma import multiply_pairs, pairs_of

PARAMETERS = (
    "ptr %x, i64 %row, i64 %pixel, i64 %rows, i64 %below, i64 %begin, i64 %end, ptr %w, "
    "i64 %w_block, ptr %bias, i64 %blocks, i64 %channels, i64 %stored, ptr %y, i64 %y_pixel, "
    "i64 %parts, i64 %low_plane, i64 %groups, float %low, float %high, i64 %gate"
)
"""x: the first column of the first row. row, pixel: bytes between rows of taps, and pixels. rows:
how many rows of taps lie in the image. below: how many rows below these are needed next, which are
brought into the second-level cache. begin, end: columns before `begin` and from `end` on do not;
only `clipped` of them at each end may be missing. w: a vector per tap, row by row; w_block: bytes
from one block of channels to the next. bias: a vector per block. For bfloat16 channels of both are
in the order of `EVEN_FIRST`, 32 after 32, as long as so many exist. blocks: how many to compute.
channels: how many exist in these. stored: how many are written, at least as many; of those that do
not exist, some number. y: the first output pixel; y_pixel: bytes to the next. parts: 0, or in how
many bfloat16 results are split, 2 or 3; only for kernels that can. low_plane: bytes from each part
to the next. groups: how many groups of pixels to compute, each next to the one before it; begin and
end are those of the first one. gate: see `epilogue.gated`. low, high: bounds, if there is no gate.

Returns the largest absolute value among the results as the bits of a float32, from kernels whose
results go to AMX as bfloat16; others 0.
"""

_LINE = 64
"""Bytes of a cache line."""

PIXELS = (1, 2, 4, 7, 8)
"""Numbers of output pixels that kernels compute together."""

PAIRED_PIXELS = 7
"""Kernels of float32 for so many pixels and more compute two vectors of channels at a time, and
those of bfloat16 for any number..."""

PAIRED_LANES = 16
"""...of so many floats, for whose sums there are registers enough."""

EVEN_FIRST = (*range(0, 2 * PAIRED_LANES, 2), *range(1, 2 * PAIRED_LANES, 2))
"""Which of the channels of two vectors of bfloat16 that are computed together come first.

So each is widened by one instruction: they are the lower and the upper halves of 16 words.
"""

ACROSS = (3, 5, 7)
"""Taps across that there are kernels for."""

STRIDES = (1, 2)
"""Strides across that there are kernels for."""


class Products(enum.Enum):
    """What kernels multiply; the names of their parts begin so."""

    FLOATS = "depthwise"
    HALVES = "depthwise_halves"  # bfloat16, widened, by weights in float32
    PAIRS = "depthwise_pairs"  # pairs of neighbours in bfloat16 by such weights


FEWEST_PAIRED = 5
"""Taps across from which on pairs take less time: those of 3 are paired as often as multiplied."""


def products_of(across: int, half: bool, level: Level, finite: bool = True) -> Products:
    """What kernels multiply that take the least time.

    Args:
        across: Taps across.
        half: Whether images are bfloat16.
        level: Whose kernels; where it has AMX, vectors do not multiply pairs, which may take long.
        finite: Whether all weights are finite in bfloat16.
    """
    if not half:
        return Products.FLOATS
    paired = across >= FEWEST_PAIRED and not level.tiles and finite
    return Products.PAIRS if paired else Products.HALVES


def depthwise_part(across: int, products: Products = Products.FLOATS) -> str:
    """The part of a level's kernels that has those with so many taps across."""
    return f"_{products.value}_{across}"


def columns(pixels: int, across: int, stride: int) -> int:
    """Columns of the image that so many pixels need."""
    return (pixels - 1) * stride + across


def clipped(pixels: int, across: int) -> int:
    """How many columns at each end may lie outside of the image."""
    return across if pixels == 1 else across // 2


def depthwise(
    name: str,
    pixels: int,
    across: int,
    stride: int,
    lanes: int,
    products: Products = Products.FLOATS,
    tiles: bool = False,
) -> Function:
    """Sums, bounded and perhaps gated, of `pixels` neighbours.

    Args:
        name: Its symbol.
        pixels: Output pixels of a call.
        across: Taps across.
        stride: Across.
        lanes: Floats of a vector.
        products: What is multiplied; input and output are bfloat16 but for `FLOATS`.
        tiles: Whether results may go to AMX: float32 can be written as several bfloat16, and the
            largest value of what is bfloat16 is told.
    """
    return _Depthwise(name, (pixels, across, stride), lanes, products, tiles).function()


class _Depthwise:
    """Writes one kernel."""

    def __init__(
        self, name: str, sizes: tuple[int, int, int], lanes: int, products: Products, tiles: bool
    ) -> None:
        half = products is not Products.FLOATS
        self._f = Function(name, PARAMETERS, "i64")
        self._pixels, self._across, self._stride = sizes
        self._lanes, self._half, self._split = lanes, half, tiles and not half
        self._tells = tiles
        self._in_pairs = products is Products.PAIRS
        self._vector, self._ints = f"<{lanes} x float>", f"<{lanes} x i32>"
        self._load = load_half if half else masked_load
        self._columns = columns(*sizes)
        self._x, self._y, self._left, self._right = "%x", "%y", "%begin", "%end"

    def function(self) -> Function:
        f, lanes = self._f, self._lanes
        low, high = f.splat(lanes, "float", "%low"), f.splat(lanes, "float", "%high")

        def block(index: str, carried: list[str]) -> list[str]:
            first = f.let(f"mul i64 {index}, {lanes}")
            left = f.let(f"sub i64 %channels, {first}")
            inside = column_masks(f, left, lanes, 1)[0]
            whole = f.let(f"icmp sge i64 {left}, {lanes}")
            count = f.let(f"select i1 {whole}, i64 %rows, i64 0")
            rest = f.let(f"sub i64 %rows, {count}")
            stored = f.let(f"sub i64 %stored, {first}")
            mask = column_masks(f, stored, lanes, 1)[0]

            def group(largest: str) -> str:
                state = self._begin(index, 1)
                after = f.loop(count, state, lambda _, values: self._row(values, inside, False))
                state = [(kind, a) for (kind, _), a in zip(state, after, strict=True)]
                after = f.loop(rest, state, lambda _, values: self._row(values, inside, True))
                sums = [self._finished(after[2:], low, high)]
                self._store(sums, first, mask)
                return self._largest(sums, largest)

            return [self._groups(group, carried[0])]

        def pair(number: str, carried: list[str]) -> list[str]:
            index = f.let(f"mul i64 {number}, 2")
            first = f.let(f"mul i64 {index}, {lanes}")
            row = self._row_of_pairs if self._in_pairs else self._row_of_two

            def group(largest: str) -> str:
                state, pixels = self._begin(index, 2), self._pixels
                after = f.loop("%rows", state, lambda _, values: row(values))
                sums = [after[3 : 3 + pixels], after[3 + pixels :]]
                sums = [self._finished(found, low, high) for found in sums]
                self._store(sums, first, None)
                return self._largest(sums, largest)

            return [self._groups(group, carried[0])]

        start, before = "zeroinitializer", "0"
        if (self._half or self._pixels >= PAIRED_PIXELS) and lanes == PAIRED_LANES:
            pairs = f.let(f"udiv i64 %channels, {2 * lanes}")
            start = f.loop(pairs, [(self._ints, start)], pair)[0]
            before = f.let(f"mul i64 {pairs}, 2")

        def single(index: str, carried: list[str]) -> list[str]:
            return block(f.let(f"add i64 {index}, {before}"), carried)

        alone = f.let(f"sub i64 %blocks, {before}")
        largest = f.loop(alone, [(self._ints, start)], single)[0]
        found = f.let(f"call i32 @llvm.vector.reduce.umax.v{lanes}i32({self._ints} {largest})")
        f.do(f"ret i64 {f.let(f'zext i32 {found} to i64')}")
        return f

    def _groups(self, group: Callable[[str], str], largest: str) -> str:
        """Computes the same blocks of one group of pixels after another, whose taps lie at hand.

        Args:
            group: Writes one; takes and returns the largest values so far.
            largest: Those before it.
        """
        f = self._f
        places = [("ptr", "%x"), ("ptr", "%y"), ("i64", "%begin"), ("i64", "%end")]
        further = self._pixels * self._stride
        right = f.let(f"mul i64 %pixel, {further}")
        down = f.let(f"mul i64 %y_pixel, {self._pixels}")

        def one(_: str, carried: list[str]) -> list[str]:
            self._x, self._y, self._left, self._right = carried[:4]
            found = group(carried[4])
            x, y = f.at(carried[0], right), f.at(carried[1], down)
            begin, end = (f.let(f"sub i64 {place}, {further}") for place in carried[2:4])
            return [x, y, begin, end, found]

        return f.loop("%groups", [*places, (self._ints, largest)], one)[4]

    def _begin(self, index: str, wide: int) -> list[tuple[str, str]]:
        """What changes from row to row of taps of so many blocks, with its first values."""
        f, v, lanes = self._f, self._vector, self._lanes
        unit, first = 2 if self._half else 4, f.let(f"mul i64 {index}, {self._lanes}")
        x = f.at(self._x, f.let(f"mul i64 {first}, {unit}"))
        w = f.at("%w", f.let(f"mul i64 {index}, %w_block"))
        bias = f.at("%bias", f.let(f"mul i64 {first}, 4"))
        state = [("ptr", x), ("ptr", w)] + ([("ptr", f.at(w, "%w_block"))] if wide > 1 else [])
        for i in range(wide):
            which = f.let(f"add i64 {index}, {i}")
            self._fetch(f.at(x, i * unit * lanes), which, unit)
            state += [(v, f.load(v, f.at(bias, 4 * lanes * i)))] * self._pixels
        return state

    def _finished(self, sums: list[str], low: str, high: str) -> list[str]:
        """Sums within bounds, or gated: a gate has no bounds beside it."""
        f, lanes, v = self._f, self._lanes, self._vector

        def limited(_: str, inner: list[str]) -> list[str]:
            return [bounded(f, v, s, low, high, lanes) for s in inner]

        plain = f.let(f"zext i1 {f.let('icmp eq i64 %gate, 0')} to i64")
        return gated(f, lanes, f.loop(plain, [(v, s) for s in sums], limited))

    def _fetch(self, x: str, index: str, unit: int) -> None:
        """Asks for what a block of the pixels below needs, once for each of its cache lines."""
        f, blocks = self._f, _LINE // (unit * self._lanes)
        count = "%below"
        if blocks > 1:
            begins = f.let(f"icmp eq i64 {f.let(f'and i64 {index}, {blocks - 1}')}, 0")
            count = f.let(f"select i1 {begins}, i64 %below, i64 0")

        def row(_: str, carried: list[str]) -> list[str]:
            at = carried[0]
            for column in range(self._pixels * self._stride):
                at = f.at(at, "%pixel") if column else at
                f.do(prefetch(at))
            return [f.at(carried[0], "%row")]

        f.loop(count, [("ptr", f.at(x, f.let("mul i64 %rows, %row")))], row)

    def _row(
        self, values: list[str], inside: str | None, partial: bool, wide: int = 1
    ) -> list[str]:
        """Adds one row of taps to sums of so many blocks of channels.

        Args:
            values: What `_begin` begins.
            inside: Which channels of a block exist; ``None`` if all do.
            partial: Whether some do not.
            wide: Blocks.
        """
        f, v, lanes = self._f, self._vector, self._lanes
        x, *rest = values
        rows, sums = rest[:wide], rest[wide:]
        weights = [
            [f.load(v, f.at(w, 4 * lanes * tap)) for tap in range(self._across)] for w in rows
        ]
        edge = clipped(self._pixels, self._across)
        at = x
        for column in range(self._columns):
            clear = edge <= column < self._columns - edge
            every = clear and not partial
            there = at if clear else self._place(at, column)
            if self._half and wide > 1:
                elements = self._load_pair(there, None if every else self._mask(None, column, 2))
            else:
                mask = None if every else inside if clear else self._mask(inside, column)
                places = [f.at(there, 4 * lanes * i) if i else there for i in range(wide)]
                elements = [self._load(f, lanes, place, mask) for place in places]
            for i, element in enumerate(elements):
                for tap in range(self._across):
                    pixel, between = divmod(column - tap, self._stride)
                    if not between and 0 <= pixel < self._pixels:
                        number = i * self._pixels + pixel
                        sums[number] = f.fma(lanes, element, weights[i][tap], sums[number])
            at = f.at(at, "%pixel")
        further = [f.at(w, 4 * lanes * self._across) for w in rows]
        return [f.at(x, "%row"), *further, *sums]

    def _row_of_two(self, values: list[str]) -> list[str]:
        """Adds one row of taps to sums of two blocks of channels that exist."""
        return self._row(values, None, False, 2)

    def _row_of_pairs(self, values: list[str]) -> list[str]:
        """The same where two neighbouring taps are multiplied by an instruction.

        Of each column's 32 words the even and the odd channels are paired with those of the next
        one. The last tap of a row is paired with zero, since what lies beside it may be infinite.
        """
        f, lanes, across, stride = self._f, self._lanes, self._across, self._stride
        x, *rest = values
        rows, sums = rest[:2], rest[2:]
        pairs, ints, couples = pairs_of(lanes), self._ints, across // 2
        weights = [
            [f.load(pairs, f.at(w, 4 * lanes * k)) for k in range(couples + 1)] for w in rows
        ]
        edge = clipped(self._pixels, across)
        shift, upper, lower = (f.splat(lanes, "i32", n) for n in ("16", "-65536", "65535"))

        def add(products: list[str], column: int, couple: int) -> None:
            """Adds what a tap's column, and the next one, come to for the pixel that they serve."""
            pixel, between = divmod(column - 2 * couple, stride)
            if not between and 0 <= pixel < self._pixels:
                for i, words in enumerate(products):
                    number = i * self._pixels + pixel
                    pair = f.let(f"bitcast {ints} {words} to {pairs}")
                    w = weights[i][couple]
                    sums[number] = multiply_pairs(f, lanes, pair, w, sums[number])

        at, before = x, ["", ""]
        for column in range(self._columns):
            clear = edge <= column < self._columns - edge
            mask = None if clear else self._mask(None, column, 2)
            there = at if clear else self._place(at, column)
            bits = load_words(f, 2 * lanes, there, mask)
            words = f.let(f"bitcast <{2 * lanes} x i16> {bits} to {ints}")
            # Even channels by themselves above zeros, odd ones below.
            even = f.let(f"shl {ints} {words}, {shift}")
            odd = f.let(f"lshr {ints} {words}, {shift}")
            if column:
                left = f.let(f"and {ints} {before[0]}, {lower}")
                right = f.let(f"and {ints} {words}, {upper}")
                both = [
                    f.let(f"or {ints} {left}, {even}"),
                    f.let(f"or {ints} {before[1]}, {right}"),
                ]
                for couple in range(couples):
                    add(both, column - 1, couple)
            add([even, odd], column, couples)
            before = [words, odd]
            at = f.at(at, "%pixel")
        further = [f.at(w, 4 * lanes * across) for w in rows]
        return [f.at(x, "%row"), *further, *sums]

    def _exists(self, column: int) -> str:
        """Whether a column lies in the image."""
        f = self._f
        after = f.let(f"icmp sge i64 {column}, {self._left}")
        before = f.let(f"icmp slt i64 {column}, {self._right}")
        return f.let(f"and i1 {after}, {before}")

    def _place(self, at: str, column: int) -> str:
        """Where a column is read: one outside of the image, of which nothing is, at the weights.

        Beside an image may lie a page that is not there. To find that a masked load reads none of
        it takes processors hundreds of cycles.
        """
        return self._f.let(f"select i1 {self._exists(column)}, ptr {at}, ptr %w")

    def _mask(self, inside: str | None, column: int, wide: int = 1) -> str:
        f, lanes = self._f, wide * self._lanes
        exists = self._exists(column)
        mask = f"<{lanes} x i1>"
        inside = inside or "splat (i1 true)"
        return f.let(f"select i1 {exists}, {mask} {inside}, {mask} zeroinitializer")

    def _load_pair(self, pointer: str, mask: str | None) -> list[str]:
        """32 bfloat16 as two vectors of floats, in the order of `EVEN_FIRST`."""
        f, ints = self._f, self._ints
        bits = load_words(f, 2 * self._lanes, pointer, mask)
        words = f.let(f"bitcast <{2 * self._lanes} x i16> {bits} to {ints}")
        even = f.let(f"shl {ints} {words}, {f.splat(self._lanes, 'i32', '16')}")
        odd = f.let(f"and {ints} {words}, {f.splat(self._lanes, 'i32', '-65536')}")
        return [f.let(f"bitcast {ints} {half} to {self._vector}") for half in (even, odd)]

    def _store(self, blocks: list[list[str]], first: str, mask: str | None) -> None:
        """Writes the sums of one block or two.

        Args:
            blocks: The sums of each.
            first: Channel of the first.
            mask: Which channels are written; ``None``: all.
        """
        f, lanes, shorts = self._f, self._lanes, "<32 x i16>"
        pixels = [list(pixel) for pixel in zip(*blocks, strict=True)]

        def floats() -> None:
            to = f.at(self._y, f.let(f"mul i64 {first}, 4"))
            for pixel in pixels:
                for i, x in enumerate(pixel):
                    masked_store(f, lanes, x, f.at(to, 4 * lanes * i), mask)
                to = f.at(to, "%y_pixel")

        def halves(parts: int) -> None:
            to = f.at(self._y, f.let(f"mul i64 {first}, 2"))
            for pixel in pixels:
                if len(pixel) > 1 and self._half:
                    words = f.let(f"bitcast <32 x bfloat> {rounded_pair(f, *pixel)} to {shorts}")
                    order = ", ".join(f"i32 {EVEN_FIRST.index(i)}" for i in range(32))
                    both = f"shufflevector {shorts} {words}, {shorts} poison, <32 x i32> <{order}>"
                    f.do(f"store {shorts} {f.let(both)}, ptr {to}, align 2")
                elif len(pixel) > 1 and parts > 1:
                    store_pair_parts(f, pixel, to, parts)
                else:
                    for i, x in enumerate(pixel):
                        store_parts(f, lanes, x, f.at(to, 2 * lanes * i), mask, parts)
                to = f.at(to, "%y_pixel")

        def split() -> None:
            f.either(f.let("icmp eq i64 %parts, 2"), lambda: halves(2), lambda: halves(3))

        if self._half:
            halves(1)
        elif self._split:
            f.either(f.let("icmp eq i64 %parts, 0"), floats, split)
        else:
            floats()

    def _largest(self, blocks: list[list[str]], largest: str) -> str:
        """The largest of all so far, if it is asked for, and of sums of one block or two."""
        for x in (x for sums in blocks for x in sums) if self._tells else ():
            largest = larger_magnitude(self._f, self._lanes, largest, x)
        return largest
