"""Depthwise-separable convolution as one step: depthwise, then the 1x1 convolution that reads it.

What the first one computes is written, some output pixels at a time, as the panel that tiles of the
second one read, in their arithmetic. So it stays in the cache, and nothing is converted.
"""

from __future__ import annotations

from partita.lowering import Array
from partita_cpu.gemm.arithmetic import Arithmetic
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
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    BLOCKS,
    GRAIN,
    PADDED,
    PANEL_UNITS,
    PLANE_BYTES,
    ROW,
    TAPS,
    THREAD_BYTES,
    UNITS,
)
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE
from partita_cpu.jit.intrinsics.address_call import address, call_plain
from partita_cpu.jit.kernel_definition import Effort
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.nhwc.depthwise_direct import (
    Depthwise,
    DepthwiseAddresses,
    PixelTarget,
    depthwise_addresses,
    depthwise_pixels,
)

_SPLIT = int(Arithmetic.BF16X3)


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
