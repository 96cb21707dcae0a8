"""Argument records of the loops in `macrokernel`: operands, epilogue, memory, kernels."""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

from partita.lowering import Array
from partita_cpu.jit.intrinsics.address_call import address
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import KernelArray


class ProductArrays(NamedTuple):
    """Arrays of a product beside its input.

    Attributes:
        w: Packed weights, as uint16.
        bias: Packed bias.
        residual: Like y; not read unless the epilogue says so.
        y: Output pixels, flat; bfloat16 as uint16.
    """

    w: KernelArray
    bias: KernelArray
    residual: KernelArray
    y: KernelArray


class ProductAddresses(NamedTuple):
    """Where the arrays of `ProductArrays` start."""

    w: int
    bias: int
    residual: int
    y: int


class InputScaling(NamedTuple):
    """What happens to an input first: ``min(max(x * factor + shift, low), high)``.

    Attributes:
        factor: One number per channel.
        shift: Likewise.
        low: Lower bound.
        high: Upper bound.
    """

    factor: KernelArray
    shift: KernelArray
    low: float = -math.inf
    high: float = math.inf


def gate_word(factor: float = 1.0, summand: float = 0.0) -> int:
    """What kernels take for ``factor * hard_swish(x) + summand``.

    1 for HardSwish itself, else both numbers as float32. 0 means that there is no gate.
    """
    if factor == 1 and summand == 0:
        return 1
    word: int = struct.unpack("<q", struct.pack("<2f", factor, summand))[0]
    return word


class Epilogue(NamedTuple):
    """What happens to sums last: ``activation(min(max(sum + bias + residual, low), high))``.

    Attributes:
        has_residual: 0 or 1.
        low: Lower bound.
        high: Upper bound.
        gate: `gate_word` for HardSwish, else 0.
        code: `ActivationCode` of what bounds and gate do not express, or 0.
        alpha: Of the activation.
        beta: Of the activation.
    """

    has_residual: int
    low: float
    high: float
    gate: int
    code: int
    alpha: float
    beta: float


class TileContext(NamedTuple):
    """What a driver needs to compute tiles.

    Attributes:
        scratch: Bytes; `Plan.thread_bytes` for each thread.
        offsets: `Plan.offsets`.
        kernels: `tile_kernels.tile_kernels`.
        p: `Plan.table`.
        claims: Words in which threads note which tiles they take; see `threads.claims`.
    """

    scratch: KernelArray
    offsets: KernelArray
    kernels: KernelArray
    p: KernelArray
    claims: KernelArray


class PanelContext(NamedTuple):
    """The same for one thread.

    Attributes:
        memory: Address of the thread's scratch memory.
        offsets: Address of `Plan.offsets`.
        kernels: `tile_kernels.tile_kernels`.
        p: `Plan.table`.
    """

    memory: int
    offsets: int
    kernels: Array
    p: Array


class TileRange(NamedTuple):
    """Which part of a result is computed.

    Attributes:
        group: The group.
        first_block: First tile across, of the group.
        last_block: Behind the last one.
        unit: First row of the result: a pixel, or an image row where the input has a halo.
        stop: Behind the last one.
        first_tile: Of each column.
        last_tile: Behind the last one, or `ALL_TILES`.
        goes_on: 1 if the column of tiles behind the last block is computed next, else 0.
        first_tap: The first that is added up; others belong to slices that a volume lacks.
        last_tap: Behind the last one.
    """

    group: int
    first_block: int
    last_block: int
    unit: int
    stop: int
    first_tile: int
    last_tile: int
    goes_on: int
    first_tap: int
    last_tap: int


ALL_TILES = 1 << 40
"""More than any column has."""


class Panel(NamedTuple):
    """What the tiles of a panel have in common.

    Attributes:
        tile: Address of memory for a tile, and for a second one behind it.
        zeros: Address of a bias of zeros.
        partials: Address of tiles whose sums are not complete.
        exact: Whether the input is infinite, NaN or nearly so; see `nonfinite`.
        lines: Image rows that tiles do not run on over, or 1.
        line_bytes: Of the input, from one of them to the next.
        length: Rows of tiles that lie one after another in a line.
        tiles: Tiles of a line.
        even_rows: Rows of a tile, where all have as many, or one more.
        longer: How many have one more, which come first.
        width: Those of an image row that are results.
        pitch: Those from one image row to the next.
        first_pixel: Of the result.
        pixel_bytes: From one pixel of the result to the next.
    """

    tile: int
    zeros: int
    partials: int
    exact: bool
    lines: int
    line_bytes: int
    length: int
    tiles: int
    even_rows: int
    longer: int
    width: int
    pitch: int
    first_pixel: int
    pixel_bytes: int


class Column(NamedTuple):
    """A column of tiles.

    Attributes:
        weights: Their address.
        bias: Its address.
        exist: Columns of a tile that are results.
        at: Bytes from a pixel of the result to the first of them.
    """

    weights: int
    bias: int
    exist: int
    at: int


class PendingRows(NamedTuple):
    """Rows of a tile that has its sums, and is finished while the next one is computed.

    Attributes:
        rows: How many; none is waited for if it is 0.
        tile: Address of the sums.
        bias: Its address, which is read even if there are no rows.
        residual: Address of the first row's, or 0.
        result: Address of the first row's.
        exist: Columns that are results.
    """

    rows: int
    tile: int
    bias: int
    residual: int
    result: int
    exist: int


@loop(inline=True)
def own_memory(scratch: Array, size: int, tid: int) -> Any:
    """Address of a thread's part of scratch memory, from where a cache line starts.

    Args:
        scratch: Bytes of all threads; `size` for each.
        size: Bytes of a thread, up to 63 of which are skipped.
        tid: The thread.
    """
    start = address(scratch) + tid * size
    return start + -start % 64


@loop(inline=True)
def addresses_of(arrays: ProductArrays) -> Any:
    """Where arrays start."""
    return ProductAddresses(
        address(arrays.w), address(arrays.bias), address(arrays.residual), address(arrays.y)
    )
