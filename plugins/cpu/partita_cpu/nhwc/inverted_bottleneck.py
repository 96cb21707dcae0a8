"""A 1x1 convolution, a depthwise one and another 1x1 one that alone read each other, as one step.

The first one makes many channels of few, for some rows of the image at a time, which stay in the
thread's cache until they are weighed. Rows that two bands need are computed twice.
"""

from __future__ import annotations

import numpy as np

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita_cpu.gemm.macrokernel import multiply_panel
from partita_cpu.gemm.tile_fields import BLOCKS, ROW, THREAD_BYTES, X_BYTES, X_FIRST
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.jit.intrinsics.address_call import address, call_plain
from partita_cpu.jit.kernel import jit
from partita_cpu.nhwc.depthwise_separable import multiply_weighed, own_memory

BAND_BYTES = 640 << 10
"""Size of the rows that are kept: with what is read beside them they stay in the second cache."""

TWICE = 1.2
"""How many times as many rows may be computed as there are."""

FIELDS = (
    *("HEIGHT", "WIDTH", "OUT_HEIGHT", "OUT_WIDTH", "STRIDE", "TOP", "REACH", "CHANNELS"),
    *("LINES", "ROWS"),
)
"""What `bands` holds: of the depthwise convolution sizes, distance from one output row to the next,
rows of zeros above, input rows that one output row takes, channels; then output rows of a band, and
input rows of one at most.
"""

(
    HEIGHT,
    WIDTH,
    OUT_HEIGHT,
    OUT_WIDTH,
    STRIDE,
    TOP,
    REACH,
    CHANNELS,
    LINES,
    ROWS,
) = range(len(FIELDS))


def bands(window: Window, channels: int, threads: int) -> Array | None:
    """How an image is cut for `expand_weigh_and_multiply`; ``None`` if that does not pay.

    It does where a thread's share of the wide image does not stay in its cache anyway.

    Args:
        window: Of the depthwise convolution, of depth 1.
        channels: Of the wide image.
        threads: Threads that share its rows.
    """
    (height, width), (oh, ow) = window.size[1:], window.out[1:]
    stride, top = window.stride[1], window.begin[1]
    reach = (window.kernel[1] - 1) * window.dilation[1] + 1
    row_bytes = 4 * width * channels
    rows = BAND_BYTES // row_bytes
    share = -(-oh // threads)
    lines = min((rows - reach) // stride + 1, share)
    if rows < reach or height * row_bytes <= BAND_BYTES * threads:
        return None
    rows = (lines - 1) * stride + reach
    if rows > TWICE * lines * stride:
        return None
    numbers = (height, width, oh, ow, stride, top, reach, channels, lines, rows)
    return np.array(numbers, np.int64)


@jit
def expand_weigh_and_multiply(
    x: Array,
    wide: Array,
    wide_bias: Array,
    wide_offsets: Array,
    wide_kernels: Array,
    wide_p: Array,
    wide_low: float,
    wide_high: float,
    wide_gate: int,
    rows: Array,
    cut: Array,
    taps: Array,
    offset: Array,
    weighing: Array,
    window: Array,
    lowest: float,
    highest: float,
    gated: int,
    w: Array,
    bias: Array,
    residual: Array,
    y: Array,
    scratch: Array,
    offsets: Array,
    kernels: Array,
    p: Array,
    has_residual: int,
    low: float,
    high: float,
    gate: int,
    code: int,
    alpha: float,
    beta: float,
    tid: int,
    nt: int,
) -> None:
    """`weigh_and_multiply` of an image that is a product itself; of one image, channels last.

    Args:
        x: Input pixels of the first product, flat; float32.
        wide: Its weights, as in `driver.multiply_tiles`; it is in float32.
        wide_bias: Its bias.
        wide_offsets: Its `Plan.offsets`.
        wide_kernels: Its `table.tile_kernels`.
        wide_p: Its `Plan.table`, of tiles that read the input where it lies.
        wide_low: Lower bound of it.
        wide_high: Upper bound of it.
        wide_gate: 1 if HardSwish follows, else 0.
        rows: Memory for a band of it for each thread, flat.
        cut: `bands`.
        taps: From here on as in `weigh_and_multiply`.
        offset: .
        weighing: .
        window: .
        lowest: .
        highest: .
        gated: .
        w: .
        bias: .
        residual: .
        y: .
        scratch: .
        offsets: .
        kernels: .
        p: .
        has_residual: .
        low: .
        high: .
        gate: .
        code: .
        alpha: .
        beta: .
        tid: This thread.
        nt: All threads; they share the rows.
    """
    width, room = cut[WIDTH], cut[ROWS] * cut[WIDTH] * cut[CHANNELS]
    threads = min(nt, rows.size // room)
    if tid >= threads:
        return
    memory = own_memory(scratch, p[THREAD_BYTES], tid)
    band = rows[tid * room : (tid + 1) * room]
    line, end = cut[OUT_HEIGHT] * tid // threads, cut[OUT_HEIGHT] * (tid + 1) // threads
    if kernels[CONFIGURE]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    while line < end:
        stop = min(line + cut[LINES], end)
        first = max(line * cut[STRIDE] - cut[TOP], 0)
        last = min((stop - 1) * cut[STRIDE] - cut[TOP] + cut[REACH], cut[HEIGHT])
        multiply_panel(
            address(x) + wide_p[X_BYTES] * wide_p[X_FIRST] + first * width * wide_p[ROW],
            0,
            address(wide),
            address(wide_bias),
            address(band),
            address(band),
            address(memory),
            address(wide_offsets),
            wide_kernels,
            wide_p,
            0,
            wide_low,
            wide_high,
            wide_gate,
            0,
            0.0,
            0.0,
            0,
            0,
            wide_p[BLOCKS],
            0,
            (last - first) * width,
        )
        multiply_weighed(
            address(band) - 4 * first * width * cut[CHANNELS],
            taps,
            offset,
            weighing,
            window,
            lowest,
            highest,
            gated,
            w,
            bias,
            residual,
            y,
            memory,
            offsets,
            kernels,
            p,
            has_residual,
            low,
            high,
            gate,
            code,
            alpha,
            beta,
            line * cut[OUT_WIDTH],
            stop * cut[OUT_WIDTH],
        )
        line = stop
    if kernels[CONFIGURE]:
        call_plain(kernels[RELEASE], (0,))
