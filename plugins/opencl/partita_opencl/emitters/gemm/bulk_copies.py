"""Launches of products whose tiles NVIDIA's copy engine brings; see ``product_bulk.cl``."""

from __future__ import annotations

from partita.lowering.shapes.symbolic_size import evaluated
from partita_opencl.device.limits import Limits
from partita_opencl.drivers.hopper_ptx import multiplier
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.emitters.gemm.stream import Streamed, StreamOperands
from partita_opencl.launches.emitter_kit import Kit, Options, f32, i32, is_half
from partita_opencl.launches.steps import Matrix, TensorMapBuffer
from partita_opencl.tuning.product_tiles import Cut, StreamTile

_COPYING = 32
"""Items of the warp that asks for tiles."""

_SLAB_ROWS = 16
_SLAB_BYTES = _SLAB_ROWS * 128


def slab_count(tile: StreamTile, parts: int, room: int) -> int:
    """Parts of a warp's results that are in local memory at a time; a divisor of all."""
    fitting = 1 + (room - tile.local_bytes) // (tile.items // 32 * _SLAB_BYTES)
    return max(n for n in range(1, parts + 1) if parts % n == 0 and n <= max(1, fitting))


def _groups_per_unit(tile: StreamTile, limits: Limits) -> int:
    """Groups that a compute unit has local memory for."""
    return max(1, limits.kernel_local_bytes // tile.local_bytes)


def _group_count(tiles: int, limits: Limits, tile: StreamTile) -> int:
    return min(tiles, limits.compute_units * _groups_per_unit(tile, limits))


def _multiplier(tile: StreamTile, half_kind: str) -> str:
    return multiplier(tile.wide, half_kind)


def _macros(tile: StreamTile, limits: Limits, size: int) -> Options:
    """Compile-time constants of the kernel; ``size`` is that of a result in float16."""
    options = {name: value for name, value in tile.options().items() if name != "BULK"}
    options["STAGES"] = tile.stages
    room = limits.kernel_local_bytes // _groups_per_unit(tile, limits)
    options["SLABS"] = slab_count(tile, tile.wide * size // 64, room)
    return tuple(options.items())


def bulk_product(
    k: Kit, how: Cut, tile: StreamTile, operands: StreamOperands, product: Streamed
) -> None:
    """Records a dense product of halves.

    Args:
        k: Records it.
        how: How the product is cut: not in parts of sums.
        tile: Its tiles.
        operands: What is read and written.
        product: What is computed; the launch is known by it to passes.
    """
    x, w, bias, residual, out, biased = operands
    stream, activation = product.stream, product.activation
    rows, depth, columns, width = stream.rows, stream.depth, stream.columns, stream.width
    limits = k.tuning.limits
    size = 1 if is_half(out.dtype) else 2
    options: dict[str, int | None] = {"ACTIVATION": int(activation.code)}
    flags = {"RESIDUAL": residual is not None, "SINGLE": size == 2, "BIASED": biased}
    names = ("HALF", "NVIDIA") if limits.is_nvidia else ("HALF",)
    describer = ProgramKey("tensor_map.cl", tuple((name, None) for name in names))
    result = (width * size, rows, width * size, _SLAB_ROWS)
    matrices = [
        Matrix(0, stream.channels, rows, stream.pitch, evaluated(getattr, tile, "high")),
        Matrix(1, depth, columns, depth, evaluated(getattr, tile, "wide")),
        Matrix(4, *result),
    ]
    if residual is not None:
        matrices.append(Matrix(3, *result))
    k.launch_generated(
        evaluated(_multiplier, tile, k.tuning.half_kind) if limits.is_nvidia else "",
        "product_bulk.cl",
        "product_bulk",
        k.tuning.groups(
            evaluated(_group_count, how.tiles, limits, tile),
            evaluated(getattr, tile, "items") + _COPYING * limits.is_nvidia,
        ),
        x,
        w,
        bias,
        residual or x,
        out,
        TensorMapBuffer(describer, tuple(matrices)),
        i32(rows),
        i32(columns),
        i32(depth),
        i32(stream.channels),
        i32(stream.pitch),
        i32(width),
        f32(activation.alpha),
        f32(activation.beta),
        product=product,
        chosen=evaluated(_macros, tile, limits, size),
        **options,
        **{name: None for name, on in flags.items() if on},
    )
