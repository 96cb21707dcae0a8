"""Inverted bottleneck as one step: 1x1 convolution, depthwise convolution, 1x1 convolution.

The first one makes many channels of few, for a band of rows at a time, which stay in the thread's
cache until the depthwise convolution reads them. Rows that two bands of a thread need are moved
from the end of one to the beginning of the next; those that two threads need are computed by both.
Where lines do not divide evenly among threads, they share parts of lines: of the first and the last
row that it needs, a thread computes those pixels that its windows reach.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita.lowering.shapes.symbolic_size import evaluated, integers
from partita_cpu.gemm.macrokernel.panel_loop import multiply_panel
from partita_cpu.gemm.product_records import (
    ALL_TILES,
    Epilogue,
    PanelContext,
    ProductAddresses,
    ProductArrays,
    TileContext,
    TileRange,
    addresses_of,
    own_memory,
)
from partita_cpu.gemm.tile_fields import BLOCKS, ROW, TAPS, THREAD_BYTES, X_BYTES, X_FIRST
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.jit.intrinsics.address_array import shorts_at
from partita_cpu.jit.intrinsics.address_call import address, call_narrow, call_plain
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc.depthwise_direct import Depthwise, depthwise_addresses
from partita_cpu.nhwc.depthwise_separable import multiply_depthwise
from partita_cpu.threads.thread_memory import room_of

BAND_SHARE = 3 / 8
"""Of the second-level cache, for the rows that are kept; the rest is for what is read beside them.

Fewer rows would mean that more of them are moved.
"""

MOVED = 2
"""How many rows may be moved for each that is computed: it takes about a sixth of the time."""

TWICE = {False: 12, True: 15}
"""How many rows may be computed in the place of ten; more in bfloat16, whose products are a small
part of the time.
"""

WEIGHT_SHARE = 1 / 8
"""Of the second-level cache, for weights with which several threads that multiply by tiles may
compute any number of rows twice, where a band is all that a thread computes: it takes them less
time than to wait for each other and fetch rows from another's cache. But each reads all weights.
"""

LINE_PARTS = 2, 4, 8
"""In how many parts threads may share each line."""

RESULT_COST = 2
"""Time of a pixel of the result, over that of one of the wide image."""

LESS = 0.95
"""What the longest share has to be of that of whole lines, to share parts of lines."""

TILE_PIXELS = 16
"""By so many pixels matrix units compute."""

(
    HEIGHT,  # of its input
    WIDTH,
    OUT_HEIGHT,
    OUT_WIDTH,
    STRIDE,  # input rows from one output row to the next
    TOP,  # rows of zeros above
    REACH,  # input rows under an output row
    PIXEL_BYTES,  # of the input
    LINES,  # output rows of a band
    ROWS,  # input rows of a band, at most
    LEAST,  # and at least
    IMAGES,
    ROOM,  # bytes from one thread's band to the next one's
    LEFT,  # columns of zeros before a row
    ACROSS,  # columns under a pixel of the output
    STEP,  # columns from one pixel of the output to the next
    PARTS,  # of an output line, which threads share
    LEAST_PIXELS,  # that are computed at a time
) = range(18)
"""Places of the table that `bands` makes, for the depthwise convolution."""


class Pixels(NamedTuple):
    """What decides whether an image is cut into bands, beside its window.

    Attributes:
        nbytes: Of a pixel of the wide image.
        least: Pixels that every band has to have.
        weights: Bytes of the weights of both products.
        in_bfloat16: Whether the products are computed in bfloat16.
    """

    nbytes: int
    least: int
    weights: int
    in_bfloat16: bool = False


def bands(
    window: Window, pixels: Pixels, machine: MachineModel, threads: int, images: int = 1
) -> Array | None:
    """How images are cut for `inverted_bottleneck`; ``None`` if that does not pay.

    Args:
        window: Of the depthwise convolution, of depth 1.
        pixels: Of a wide image, and what makes them.
        machine: What it is cut for.
        threads: Threads that share the rows of all images.
        images: How many there are; no band has rows of two.
    """
    (height, width), (oh, ow) = window.size[1:], window.out[1:]
    stride, top = window.stride[1], window.begin[1]
    reach = (window.kernel[1] - 1) * window.dilation[1] + 1
    room = machine.l2_bytes(BAND_SHARE) // (width * pixels.nbytes)
    share = evaluated(_most_lines, images * oh, threads)
    share = evaluated(min, share, oh)
    lines = evaluated(min, (room - reach) // stride + 1, share)
    rows = evaluated(min, (lines - 1) * stride + reach, height)
    by_tiles = pixels.in_bfloat16 and pixels.least > 1 and threads > 1
    alone = by_tiles and pixels.weights <= machine.l2_bytes(WEIGHT_SHARE)
    twice = TWICE[pixels.in_bfloat16]
    read = height, width, stride, reach
    # Decided at once: sizes for which parts of it come out otherwise have the same program.
    if not evaluated(_pays, lines, share, twice, alone, pixels.least, *read):
        return None
    parts = 1
    if threads > 1:
        across = window.stride[2], ow
        parts = evaluated(_parts, images * oh, threads, pixels.least > 1, *read, *across)
    touched = evaluated(_most_lines, images * oh, threads, parts)
    lines = evaluated(min, (room - reach) // stride + 1, evaluated(min, touched, oh))
    rows = evaluated(min, (lines - 1) * stride + reach, height)
    least = -(-pixels.least // width)
    room = room_of(rows * width * pixels.nbytes, threads)
    counts = lines, rows, least, images, room
    columns = window.begin[2], window.kernel[2], window.stride[2], parts, pixels.least
    sizes = height, width, oh, ow, stride, top, reach, pixels.nbytes, *counts, *columns
    return integers(sizes)


def _pays(
    lines: int,
    share: int,
    twice: int,
    alone: bool,
    least: int,
    height: int,
    width: int,
    stride: int,
    reach: int,
) -> bool:
    """Whether bands have lines, few rows are computed twice or moved, and no band is too short.

    Args:
        lines: Of a band.
        share: Lines of an image that a thread computes.
        twice: How many rows it may compute in the place of ten.
        alone: Whether it may be any number if one band is all that a thread computes.
        least: Pixels that a band must have.
        height: Of the image that is read.
        width: Of it.
        stride: Lines of it from one line of the result to the next.
        reach: Lines of it that a line of the result takes.
    """
    if lines < 1 or reach - stride > MOVED * lines * stride:
        return False
    computed, rows = (min((n - 1) * stride + reach, height) for n in (share, lines))
    few = 10 * computed <= twice * share * stride or (alone and lines == share)
    return few and rows * width >= least


def _parts(
    lines: int,
    threads: int,
    by_tiles: bool,
    height: int,
    width: int,
    stride: int,
    reach: int,
    step: int,
    columns: int,
) -> int:
    """In how many parts threads share each line of the results: those with the shortest share.

    Windows are taken to be as wide as they are high, and to reach as far to both sides.

    Args:
        lines: Of all results.
        threads: That share them.
        by_tiles: Whether matrix units compute the wide images.
        height: Of a wide image.
        width: Of it.
        stride: Lines of it from one line of the result to the next.
        reach: Lines of it that a line of the result takes.
        step: Columns of it from one pixel of the result to the next.
        columns: Of the result.
    """

    def cost(first: int, end: int) -> int:
        line, behind = first // columns, -(-end // columns)
        begin = max((first - line * columns) * step - reach // 2, 0)
        last = (end - 1 - (behind - 1) * columns) * step - reach // 2 + reach
        rows = min((behind - 1 - line) * stride + reach, height)
        wide = rows * width - begin - max(width - last, 0)
        if by_tiles:
            wide = -(-wide // TILE_PIXELS) * TILE_PIXELS
        return wide + RESULT_COST * (end - first)

    def longest(parts: int) -> int:
        shares = _shares(lines * parts, threads)
        return max(cost(*(_pixel(end, parts, columns) for end in share)) for share in shares)

    if lines % threads == 0:
        return 1
    best = min((parts for parts in LINE_PARTS if parts <= columns), key=longest, default=1)
    return best if longest(best) <= LESS * longest(1) else 1


def _pixel(part: int, parts: int, columns: int) -> int:
    """The first pixel of a part of a line."""
    return part // parts * columns + part % parts * columns // parts


def _most_lines(lines: int, threads: int, parts: int = 1) -> int:
    """Lines of the thread that has parts of most."""
    shares = _shares(lines * parts, threads)
    return max((-(-behind // parts) - first // parts for first, behind in shares), default=0)


def _shares(count: int, threads: int) -> list[tuple[int, int]]:
    """First and behind the last of what threads get, those that get any."""
    ends = [count * tid // threads for tid in range(threads + 1)]
    return [(first, behind) for first, behind in itertools.pairwise(ends) if first < behind]


class Expansion(NamedTuple):
    """The first 1x1 convolution, and how the image that it makes is cut.

    Attributes:
        w: Packed weights.
        bias: Packed bias.
        offsets: `Plan.offsets`.
        kernels: `tile_kernels.tile_kernels`.
        p: `Plan.table`, of tiles that read the input where it lies.
        low: Lower bound of the result.
        high: Upper bound of it.
        gate: 1 if HardSwish follows, else 0.
        rows: Memory for a band of it for each thread, flat.
        cut: `bands`.
        copy: Address of the kernel that copies floats.
    """

    w: KernelArray
    bias: KernelArray
    offsets: KernelArray
    kernels: KernelArray
    p: KernelArray
    low: float
    high: float
    gate: int
    rows: KernelArray
    cut: KernelArray
    copy: int


@loop(effort=Effort.CALLS)
def inverted_bottleneck(
    x: Array,
    wide: Expansion,
    depthwise: Depthwise,
    arrays: ProductArrays,
    context: TileContext,
    epilogue: Epilogue,
    tid: int,
    nt: int,
) -> None:
    """`separable_convolution` of images that are products themselves, channels last.

    Args:
        x: Input pixels of the first product, flat; bfloat16 as uint16.
        wide: The first product.
        depthwise: From here on as in `separable_convolution`.
        arrays: Of the last product.
        context: Memory, kernels and plan of it.
        epilogue: What happens to its sums.
        tid: This thread.
        nt: All threads; they share the rows of all images.
    """
    cut, kernels, first, first_p = wide.cut, context.kernels, wide.kernels, wide.p
    width, room = cut[WIDTH], cut[ROOM]
    threads = min(nt, wide.rows.size * wide.rows.itemsize // room)
    if tid >= threads:
        return
    memory = own_memory(context.scratch, context.p[THREAD_BYTES], tid)
    band = address(wide.rows) + tid * room
    height, columns = cut[HEIGHT], cut[OUT_WIDTH]
    pixel, end = _first_pixel(cut, tid, threads), _first_pixel(cut, tid + 1, threads)
    source = address(x) + first_p[X_BYTES] * first_p[X_FIRST]
    own_wide = PanelContext(memory, address(wide.offsets), first, first_p)
    bounds = Epilogue(0, wide.low, wide.high, wide.gate, 0, 0.0, 0.0)
    own = PanelContext(memory, address(context.offsets), kernels, context.p)
    window, at = depthwise_addresses(depthwise), addresses_of(arrays)
    row_bytes, first_row, behind_row = width * cut[PIXEL_BYTES], 0, 0  # rows that the band holds
    while pixel < end:
        line = pixel // columns
        image = line // cut[OUT_HEIGHT]
        first_line = image * cut[OUT_HEIGHT]
        stop = min(line + cut[LINES], -(-end // columns), first_line + cut[OUT_HEIGHT])
        behind, first_pixel = min(stop * columns, end), first_line * columns
        top = max((line - first_line) * cut[STRIDE] - cut[TOP], 0)
        bottom = min((stop - 1 - first_line) * cut[STRIDE] - cut[TOP] + cut[REACH], height)
        places = pixel - first_pixel, behind - first_pixel
        begin, rest = _needless(cut, *places, behind < end, top, bottom)
        bottom = min(max(bottom, top + cut[LEAST]), height)
        top = max(min(top, bottom - cut[LEAST]), 0) + image * height
        bottom += image * height
        kept = max(behind_row - top, 0) if first_row <= top else 0
        if first_row < top:
            _move_rows(wide.copy, band, top - first_row, kept, row_bytes)
        row = max(min(top + kept, bottom - cut[LEAST]), top)
        first_row, behind_row = top, bottom
        count, least, taps = (bottom - row) * width, cut[LEAST_PIXELS], first_p[TAPS]
        begin = min(begin, count - least) if row == top else 0
        count = max(count - begin - rest, least)
        tiles = TileRange(0, 0, first_p[BLOCKS], 0, count, 0, ALL_TILES, 0, 0, taps)
        rows = source + (row * width + begin) * first_p[ROW]
        to = band + (row - top) * row_bytes + begin * cut[PIXEL_BYTES]
        wide_at = ProductAddresses(address(wide.w), address(wide.bias), to, to)
        if first[CONFIGURE]:
            call_plain(first[CONFIGURE], (first[CONFIG],))
        multiply_panel(rows, 0, wide_at, own_wide, bounds, tiles)
        if kernels[CONFIGURE]:
            call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
        pixels = band - top * row_bytes
        multiply_depthwise(pixels, window, at, own, epilogue, pixel, behind)
        pixel = behind
    for table in (first, kernels):
        if table[CONFIGURE]:
            call_plain(table[RELEASE], (0,))


@loop(inline=True)
def _first_pixel(cut: Array, tid: int, threads: int) -> Any:
    """The first pixel of a thread, counted through all results."""
    parts, columns = cut[PARTS], cut[OUT_WIDTH]
    part = cut[OUT_HEIGHT] * cut[IMAGES] * parts * tid // threads
    return part // parts * columns + part % parts * columns // parts


@loop(inline=True)
def _needless(cut: Array, pixel: int, behind: int, goes_on: bool, top: int, bottom: int) -> Any:
    """Pixels of a band that no window reaches: the first of its first row, the last of its last.

    Args:
        cut: `bands`.
        pixel: The first pixel of the band's result, counted through its image.
        behind: Behind the last one.
        goes_on: Whether the thread computes what follows.
        top: The first row that windows reach.
        bottom: Behind the last one.
    """
    columns, stride, above = cut[OUT_WIDTH], cut[STRIDE], cut[TOP]
    line, last = pixel // columns, (behind - 1) // columns
    first, end = 0, 0
    if (line + 1) * stride - above > top or (line == last and not goes_on):
        first = max((pixel - line * columns) * cut[STEP] - cut[LEFT], 0)
    if not goes_on and ((last - 1) * stride - above + cut[REACH] < bottom or line == last):
        reached = (behind - 1 - last * columns) * cut[STEP] - cut[LEFT] + cut[ACROSS]
        end = max(cut[WIDTH] - reached, 0)
    return first, end


@loop(inline=True)
def _move_rows(copy: int, band: int, down: int, count: int, row_bytes: int) -> None:
    """Moves rows of a band to its beginning.

    Args:
        copy: Address of the kernel that copies floats.
        band: Address of the first row.
        down: How far from there the first one that is moved lies, in rows, at least 1.
        count: How many are moved.
        row_bytes: Of each, a multiple of 2.
    """
    floats = row_bytes // 4
    for number in range(count):
        to = band + number * row_bytes
        source = to + down * row_bytes
        call_narrow(copy, (source, floats, to, 0, floats))
        if row_bytes % 4:
            shorts_at(to + 4 * floats, 1)[0] = shorts_at(source + 4 * floats, 1)[0]
