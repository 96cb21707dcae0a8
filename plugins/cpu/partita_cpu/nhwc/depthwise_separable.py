"""Depthwise-separable convolution as one step: depthwise, then the 1x1 convolution that reads it.

What the first one computes is written, some output pixels at a time, as the panel that tiles of the
second one read, in their arithmetic. So it stays in the cache, and nothing is converted.

A 1x1 convolution and the depthwise one behind it are one step where images are small and channels
many: a thread computes all pixels of its channels, and then reads none that another one made. So it
waits for no other, and finds them in its cache.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from partita.lowering import Array
from partita.lowering.geometry.windows import Window
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import CLAIM_WORK, Plan
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
from partita_cpu.gemm.shares import own_share
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    BLOCKS,
    GRAIN,
    OUTPUTS,
    PADDED,
    PANEL_UNITS,
    PLANE_BYTES,
    ROW,
    SHARES_ACROSS,
    TAPS,
    THREAD_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    UNITS,
    X_BYTES,
    X_FIRST,
)
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.jit.intrinsics.address_call import address, call_plain
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.nhwc.depthwise_direct import (
    CHANNEL_GROUP,
    Depthwise,
    DepthwiseAddresses,
    PixelTarget,
    channel_shares,
    depthwise_addresses,
    depthwise_images,
    depthwise_pixels,
)

_SPLIT = int(Arithmetic.BF16X3)

MOST_WORK = 4 * CLAIM_WORK
"""Multiplications of a share: of larger ones threads had better take tiles from one another."""


@loop(effort=Effort.CALLS)
def separable_convolution(
    x: Array,
    depthwise: Depthwise,
    arrays: ProductArrays,
    context: TileContext,
    epilogue: Epilogue,
    tid: int,
    nt: int,
) -> None:
    """A depthwise convolution of x, finished, times w, finished; channels last.

    Args:
        x: Input pixels, flat; bfloat16 as uint16.
        depthwise: The depthwise convolution, with taps and bias for as many channels as a row of
            tiles' input has.
        arrays: Of the product.
        context: Memory, kernels and plan, which is that of an input that is computed.
        epilogue: What happens to the product's sums.
        tid: This thread.
        nt: All threads; they share the pixels.
    """
    kernels, p = context.kernels, context.p
    threads = min(nt, context.scratch.size // p[THREAD_BYTES])
    if tid >= threads:
        return
    memory = own_memory(context.scratch, p[THREAD_BYTES], tid)
    grains = -(-p[UNITS] // p[GRAIN])
    unit = grains * tid // threads * p[GRAIN]
    end = min(grains * (tid + 1) // threads * p[GRAIN], p[UNITS])
    if kernels[CONFIGURE]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    own = PanelContext(memory, address(context.offsets), kernels, p)
    window = depthwise_addresses(depthwise)
    multiply_depthwise(address(x), window, addresses_of(arrays), own, epilogue, unit, end)
    if kernels[CONFIGURE]:
        call_plain(kernels[RELEASE], (0,))


@loop
def multiply_depthwise(
    x: int,
    depthwise: DepthwiseAddresses,
    at: ProductAddresses,
    context: PanelContext,
    epilogue: Epilogue,
    unit: int,
    end: int,
) -> None:
    """Some output pixels of `separable_convolution`, a piece at a time.

    Args:
        x: Address of the first input pixel.
        depthwise: The depthwise convolution.
        at: Weights, bias, residual and result of the product.
        context: Memory, kernels and plan of it.
        epilogue: What happens to its sums.
        unit: The first pixel.
        end: Behind the last one.
    """
    p, memory = context.p, context.memory
    parts = p[ARITHMETIC] if p[ARITHMETIC] >= _SPLIT else 0  # the numbers say in how many
    target = PixelTarget(memory, p[ROW], parts, p[PLANE_BYTES], p[PADDED])
    while unit < end:
        stop = min(unit + p[PANEL_UNITS], end)
        largest = depthwise_pixels(x, depthwise, unit, stop, target)
        tiles = TileRange(0, 0, p[BLOCKS], unit, stop, 0, ALL_TILES, 0, 0, p[TAPS])
        multiply_panel(memory, largest if p[ARITHMETIC] else 0, at, context, epilogue, tiles)
        unit = stop


def shares_of_channels(cut: Plan, window: Window, threads: int) -> int:
    """Shares of the channels for `expanded_depthwise`; 0 if both are better computed by themselves.

    They are if the longest share of either would be longer.

    Args:
        cut: The 1x1 convolution, which reads its input where it lies, of sizes that are known.
        window: Of the depthwise convolution.
        threads: That share them.
    """
    images = cut.images
    shares = channel_shares(window, images.batch, images.outputs, threads)
    if 2 * shares <= threads or images.work > MOST_WORK * shares:
        return 0
    p, groups = cut.table, -(-images.outputs // CHANNEL_GROUP)
    blocks, across = CHANNEL_GROUP // int(p[TILE_COLUMNS]), int(p[SHARES_ACROSS])
    units, grain, rows = (int(p[field]) for field in (UNITS, GRAIN, TILE_ROWS))
    grains = math.ceil(math.ceil(units / grain) / (threads // across))
    apart = math.ceil(min(grains * grain, units) / rows) * math.ceil(int(p[BLOCKS]) / across)
    joint = math.ceil(units / rows) * math.ceil(groups / shares) * blocks
    return shares if joint <= apart else 0


class ImageTarget(NamedTuple):
    """Where images go, and how threads share them.

    Attributes:
        y: (N, rows, columns, pitch), flat.
        pitch: Elements from one pixel to the next.
        first: The channel that the first result is written to.
        shares: Of the channels.
    """

    y: KernelArray
    pitch: int
    first: int
    shares: int


@loop(effort=Effort.CALLS)
def expanded_depthwise(
    x: Array,
    arrays: ProductArrays,
    context: TileContext,
    epilogue: Epilogue,
    depthwise: Depthwise,
    target: ImageTarget,
    tid: int,
    nt: int,
) -> None:
    """A 1x1 convolution of x, finished, and a depthwise convolution of its result.

    Args:
        x: Input pixels, flat; bfloat16 as uint16.
        arrays: Of the product; its result is what the depthwise convolution reads.
        context: Memory, kernels and plan of the product, whose input is read where it lies.
        epilogue: What happens to the product's sums.
        depthwise: The depthwise convolution.
        target: Where its results go, of the same type as the product's; with as many shares as
            `shares_of_channels` says.
        tid: This thread.
        nt: All threads; they share the channels.
    """
    kernels, p = context.kernels, context.p
    threads = min(nt, target.shares, context.scratch.size // p[THREAD_BYTES])
    if tid >= threads:
        return
    groups, blocks = -(-p[OUTPUTS] // CHANNEL_GROUP), CHANNEL_GROUP // p[TILE_COLUMNS]
    _, _, group, behind = own_share(threads, tid, threads, 1, groups)
    first, last = group * blocks, min(behind * blocks, p[BLOCKS])
    memory = own_memory(context.scratch, p[THREAD_BYTES], tid)
    own, at = PanelContext(memory, address(context.offsets), kernels, p), addresses_of(arrays)
    source, unit = address(x) + p[X_BYTES] * p[X_FIRST], 0
    if kernels[CONFIGURE]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    while unit < p[UNITS]:
        stop = min(unit + p[PANEL_UNITS], p[UNITS])
        tiles = TileRange(0, first, last, unit, stop, 0, ALL_TILES, 0, 0, p[TAPS])
        multiply_panel(source + unit * p[ROW], 0, at, own, epilogue, tiles)
        unit = stop
    if kernels[CONFIGURE]:
        call_plain(kernels[RELEASE], (0,))
    to = target.y, target.pitch, target.first
    depthwise_images(arrays.y, depthwise, *to, threads, 0, tid, threads)
