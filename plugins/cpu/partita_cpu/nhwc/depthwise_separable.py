"""A depthwise convolution and the 1x1 convolution that alone reads it, as one step.

What the first one computes goes, some output pixels at a time, to where tiles of the second one
read it, in the arithmetic that they take. So it stays in the cache, and nothing is converted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.gemm.macrokernel import multiply_panel
from partita_cpu.gemm.tile_fields import (
    ARITHMETIC,
    BLOCKS,
    GRAIN,
    PADDED,
    PANEL_UNITS,
    PLANE_BYTES,
    ROW,
    THREAD_BYTES,
    UNITS,
)
from partita_cpu.gemm.tile_kernels import CONFIG, CONFIGURE, RELEASE, Arithmetic
from partita_cpu.jit.intrinsics.address_call import address, call_plain
from partita_cpu.jit.kernel import jit
from partita_cpu.nhwc.depthwise_direct import weigh_pixels

_SPLIT = int(Arithmetic.BF16X3)


@jit
def weigh_and_multiply(
    x: Array,
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
    """A depthwise convolution of x, finished, times w, finished; channels last.

    Args:
        x: Input pixels, flat; bfloat16 as uint16.
        taps: `weighing.pack_taps`, for as many channels as a row of tiles' input has.
        offset: `weighing.pack_row`, likewise.
        weighing: `weighing.weigh_kernels`.
        window: `weighing.places`.
        lowest: Lower bound of the depthwise convolution.
        highest: Upper bound of it.
        gated: 1 if HardSwish follows, else 0.
        w: From here on as in `driver.multiply_tiles`.
        bias: .
        residual: .
        y: .
        scratch: .
        offsets: .
        kernels: .
        p: `Plan.table` of an input that is computed.
        has_residual: .
        low: .
        high: .
        gate: .
        code: .
        alpha: .
        beta: .
        tid: This thread.
        nt: All threads; they share the pixels.
    """
    threads = min(nt, scratch.size // p[THREAD_BYTES])
    if tid >= threads:
        return
    memory = own_memory(scratch, p[THREAD_BYTES], tid)
    grains = -(-p[UNITS] // p[GRAIN])
    unit = grains * tid // threads * p[GRAIN]
    end = min(grains * (tid + 1) // threads * p[GRAIN], p[UNITS])
    if kernels[CONFIGURE]:
        call_plain(kernels[CONFIGURE], (kernels[CONFIG],))
    multiply_weighed(
        address(x),
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
        unit,
        end,
    )
    if kernels[CONFIGURE]:
        call_plain(kernels[RELEASE], (0,))


@jit(inline=True)
def own_memory(scratch: Array, size: int, tid: int) -> Any:
    """A thread's part of scratch memory, from where a cache line starts."""
    start = tid * size
    start += -(address(scratch) + start) % 64
    return scratch[start : (tid + 1) * size]


@jit
def multiply_weighed(
    x: int,
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
    memory: Array,
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
    unit: int,
    end: int,
) -> None:
    """Some output pixels of `weigh_and_multiply`, a piece at a time.

    Args:
        x: Address of the first input pixel.
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
        memory: Scratch memory of this thread.
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
        unit: The first pixel.
        end: Behind the last one.
    """
    bounds: Any = np.float32(lowest), np.float32(highest)
    parts = p[ARITHMETIC] if p[ARITHMETIC] >= _SPLIT else 0  # the numbers say in how many
    while unit < end:
        stop = min(unit + p[PANEL_UNITS], end)
        largest = weigh_pixels(
            x,
            address(taps),
            address(offset),
            weighing,
            window,
            bounds[0],
            bounds[1],
            gated,
            unit,
            stop,
            address(memory),
            p[ROW],
            parts,
            p[PLANE_BYTES],
            p[PADDED],
        )
        multiply_panel(
            address(memory),
            largest if p[ARITHMETIC] else 0,
            address(w),
            address(bias),
            address(residual),
            address(y),
            address(memory),
            address(offsets),
            kernels,
            p,
            has_residual,
            low,
            high,
            gate,
            code,
            alpha,
            beta,
            0,
            0,
            p[BLOCKS],
            unit,
            stop,
        )
        unit = stop
