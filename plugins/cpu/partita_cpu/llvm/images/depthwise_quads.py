"""8-bit depthwise convolution by an instruction that adds up four products; for AVX-512.

Four rows of taps are interleaved, so that four bytes of each channel lie side by side and are
multiplied with as many weights. All taps must lie on the (padded) image.
"""

from __future__ import annotations

from partita_cpu.llvm.epilogue_int8 import byte_bounds, packed_levels, rounded_below
from partita_cpu.llvm.function import Function
from partita_cpu.llvm.levels import Level
from partita_cpu.llvm.tiles.dot_int8 import dot_quads

PARAMETERS = (
    "ptr %x, i64 %row, i64 %tap, i64 %pixel, i64 %rows, i64 %taps, ptr %w, i64 %channels, "
    "ptr %bias, ptr %factors, ptr %y, i64 %y_pixel, float %low, float %high, i64 %level"
)
"""x: uint8, the first tap of the first pixel. row, tap, pixel: bytes between rows of taps, taps,
output pixels. rows, taps: how many taps down and across. w: int8 weights (blocks of channels, fours
of rows, taps across, channels of a block in `ORDER`, rows of a four), 0 for rows that do not exist.
channels: how many. bias: int32, factors: float32, for each channel in the order of the weights,
filled up to whole blocks. y_pixel: bytes between output pixels. low, high: bounds of levels less
that of 0, which is `level`."""

PIXELS = (1, 2, 4)
"""Numbers of output pixels that kernels compute together."""

BLOCK = 64
"""Channels that are computed together."""

ROWS = 4
"""Rows of taps that an instruction adds up."""

ORDER = [16 * lane + 4 * quad + i for quad in range(4) for lane in range(4) for i in range(4)]
"""Channels of a block as interleaved vectors have them."""

_VECTORS = BLOCK // 16
_WEIGHTS = BLOCK * ROWS
_BYTES, _WORDS, _WHOLE, _REAL = "<64 x i8>", "<32 x i16>", "<16 x i32>", "<16 x float>"
_MASK = "<64 x i1>"


def takes_quads(level: Level) -> bool:
    """Whether a level has the kernels."""
    return level.lanes == 16 and level.dots_bytes and level.masks_halves


def depthwise_quads(name: str, pixels: int) -> Function:
    """Sums of `pixels` neighbours."""
    f = Function(name, PARAMETERS)
    kernel = _Quads(f, pixels)
    whole = f.let(f"udiv i64 %channels, {BLOCK}")
    rest = f.let(f"urem i64 %channels, {BLOCK}")
    bits = f.let(f"sub i64 {f.let(f'shl i64 1, {rest}')}, 1")
    mask = f.let(f"bitcast i64 {bits} to {_MASK}")
    last = f.let(f"zext i1 {f.let(f'icmp ne i64 {rest}, 0')} to i64")

    def block(index: str, _: list[str]) -> list[str]:
        kernel.block(index, "")
        return []

    def part(_: str, __: list[str]) -> list[str]:
        kernel.block(whole, mask)
        return []

    f.loop(whole, [], block)
    f.loop(last, [], part)
    f.do("ret void")
    return f


class _Quads:
    """Writes what is computed of one block of channels.

    Args:
        f: The kernel.
        pixels: Output pixels.
    """

    def __init__(self, f: Function, pixels: int) -> None:
        self._f, self._pixels = f, pixels
        self._fours = f.let(f"udiv i64 {f.let(f'add i64 %rows, {ROWS - 1}')}, {ROWS}")
        size = f.let(f"mul i64 {self._fours}, %taps")
        self._size = f.let(f"mul i64 {size}, {_WEIGHTS}")
        self._next = f.let(f"mul i64 %row, {ROWS}")
        self._high = f.splat(16, "float", "%high")
        self._bounds = byte_bounds(f)

    def block(self, index: str, mask: str) -> None:
        """All of a block; an empty mask is for one whose channels all exist."""
        f = self._f
        first = f.let(f"mul i64 {index}, {BLOCK}")
        place = f.let(f"mul i64 {first}, 4")
        bias = [f.load(_WHOLE, f.at(f.at("%bias", place), 64 * v)) for v in range(_VECTORS)]
        w = f.at("%w", f.let(f"mul i64 {index}, {self._size}"))

        def four(number: str, outer: list[str]) -> list[str]:
            left = f.let(f"sub i64 %rows, {f.let(f'mul i64 {number}, {ROWS}')}")
            # Rows that do not exist have no weights; any others are read in their place.
            rows = ["0"]
            for i in range(1, ROWS):
                exists = f.let(f"icmp sgt i64 {left}, {i}")
                rows.append(f.let(f"select i1 {exists}, i64 {f.let(f'mul i64 %row, {i}')}, i64 0"))

            def tap(_: str, inner: list[str]) -> list[str]:
                x, weights, *sums = inner
                vectors = [f.load(_BYTES, f.at(weights, 64 * v), 1) for v in range(_VECTORS)]
                for p in range(self._pixels):
                    at = f.at(x, f.let(f"mul i64 %pixel, {p}")) if p else x
                    quads = self._quads([f.at(at, row) for row in rows], mask)
                    for v in range(_VECTORS):
                        number = p * _VECTORS + v
                        sums[number] = dot_quads(f, sums[number], quads[v], vectors[v])
                return [f.at(x, "%tap"), f.at(weights, _WEIGHTS), *sums]

            sums = [(_WHOLE, value) for value in outer[2:]]
            _, weights, *totals = f.loop(
                "%taps", [("ptr", outer[0]), ("ptr", outer[1]), *sums], tap
            )
            return [f.at(outer[0], self._next), weights, *totals]

        state = [("ptr", f.at("%x", first)), ("ptr", w)]
        state += [(_WHOLE, value) for value in bias * self._pixels]
        totals = f.loop(self._fours, state, four)[2:]
        self._finish(totals, first, place, mask)

    def _quads(self, places: list[str], mask: str) -> list[str]:
        """Bytes of four rows side by side, for all channels in `ORDER`."""
        f = self._f
        rows = [self._load(place, mask) for place in places]
        pairs = [
            _interleaved(f, _BYTES, rows[i], rows[i + 1], upper)
            for upper in (False, True)
            for i in (0, 2)
        ]
        pairs = [f.let(f"bitcast {_BYTES} {pair} to {_WORDS}") for pair in pairs]
        quads = [
            _interleaved(f, _WORDS, pairs[i], pairs[i + 1], upper)
            for i in (0, 2)
            for upper in (False, True)
        ]
        return [f.let(f"bitcast {_WORDS} {quad} to {_BYTES}") for quad in quads]

    def _load(self, place: str, mask: str) -> str:
        """64 levels."""
        f = self._f
        if not mask:
            return f.load(_BYTES, place, 1)
        load = f"call {_BYTES} @llvm.masked.load.v64i8.p0"
        return f.let(f"{load}(ptr {place}, i32 1, {_MASK} {mask}, {_BYTES} zeroinitializer)")

    def _finish(self, totals: list[str], first: str, place: str, mask: str) -> None:
        """Sums become levels."""
        f = self._f
        at = f.at("%factors", place)
        factors = [f.load(_REAL, f.at(at, 64 * v)) for v in range(_VECTORS)]
        to = f.at("%y", first)
        for p in range(self._pixels):
            found = []
            for v in range(_VECTORS):
                real = f.let(f"sitofp {_WHOLE} {totals[p * _VECTORS + v]} to {_REAL}")
                scaled = f.let(f"fmul {_REAL} {real}, {factors[v]}")
                found.append(rounded_below(f, scaled, self._high))
            levels = packed_levels(f, found, *self._bounds)
            if mask:
                store = "call void @llvm.masked.store.v64i8.p0"
                f.do(f"{store}({_BYTES} {levels}, ptr {to}, i32 1, {_MASK} {mask})")
            else:
                f.do(f"store {_BYTES} {levels}, ptr {to}, align 1")
            to = f.at(to, "%y_pixel")


def _interleaved(f: Function, kind: str, a: str, b: str, upper: bool) -> str:
    """Elements of two vectors in turns: the lower or the upper half of each quarter."""
    count = 64 if kind == _BYTES else 32
    quarter = count // 4
    half = quarter // 2
    order = [
        first + quarter * lane + half * upper + i
        for lane in range(4)
        for i in range(half)
        for first in (0, count)
    ]
    numbers = ", ".join(f"i32 {number}" for number in order)
    return f.let(f"shufflevector {kind} {a}, {kind} {b}, <{count} x i32> <{numbers}>")
