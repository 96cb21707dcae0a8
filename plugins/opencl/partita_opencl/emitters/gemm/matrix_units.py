"""Launches of products that stream halves through matrix units; see ``product_stream.cl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from partita.lowering import NO_ACTIVATION, Activation, Operand
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_opencl.device.limits import Limits
from partita_opencl.drivers.hopper_ptx import multiplier
from partita_opencl.emitters.gemm.bulk_copies import bulk_product
from partita_opencl.emitters.gemm.products import chosen_cut, handed_over
from partita_opencl.emitters.gemm.stream import Stream, Streamed, StreamOperands
from partita_opencl.launches.emitter_kit import Argument, Kit, Options, f32, i32, ints, is_half
from partita_opencl.passes.nhwc import filled
from partita_opencl.tuning.product_tiles import (
    STREAM_DEEP,
    Cut,
    StreamTile,
    Tile,
    cut_whole,
    tiles_for,
)

_NORMALIZED = 256
"""Elements of a row that a warp normalizes at a time."""

_MOST_NORMALIZED = 256
"""Rows that are normalized again and again, by every group that reads them."""


@dataclass(frozen=True)
class Norm:
    """A layer normalization of the rows that a product reads.

    Attributes:
        out: Where the normalized rows go.
        scale: Factors by element, float32.
        shift: Addends by element, float32.
        epsilon: Added to the variance.
    """

    out: Operand
    scale: Operand
    shift: Operand
    epsilon: float


def normalizes(k: Kit, stream: Stream) -> bool:
    """Whether the product's groups had better normalize its rows than a kernel of its own."""
    if stream.channels % STREAM_DEEP or stream.channels > 2 * _NORMALIZED:
        return False
    if stream.rows > _MOST_NORMALIZED:
        return False
    tiles = tiles_for(k.tuning.limits, warpgroups=k.tuning.warpgroups)
    return bool(settled(evaluated(getattr, _whole(k, tiles, stream), "found")))


class _Whole(NamedTuple):
    """A cut, if one was found."""

    found: bool
    cut: Cut | None


def _whole(k: Kit, tiles: Sequence[Tile], stream: Stream) -> _Whole:
    """The cut whose groups keep all terms in local memory; may stand for others."""
    sizes = stream.rows, stream.columns, stream.depth
    return evaluated(_find_whole, k.tuning.limits, tuple(tiles), *sizes)  # type: ignore[no-any-return]


def _find_whole(limits: Limits, tiles: Sequence[Tile], *sizes: int) -> _Whole:
    rows, columns, depth = sizes
    found = cut_whole(limits, tiles, rows, columns, depth)
    return _Whole(found is not None, found)


def stream_product(
    k: Kit,
    stream: Stream,
    operands: StreamOperands,
    activation: Activation = NO_ACTIVATION,
    norm: Norm | None = None,
) -> None:
    """Records the product of an image by packed filters, a bias in float32 and a residual.

    Args:
        k: Records it.
        stream: How rows of the image are read.
        operands: What is read and written.
        activation: Applied last.
        norm: How rows of a dense product are normalized first, if they are: only where
            :func:`normalizes` says so. The normalized ones may be float32, too.
    """
    residual, out = operands.residual, operands.out
    how = _chosen(k, stream, operands, norm)
    tile: Any = how.tile
    product = Streamed(
        stream,
        activation,
        residual is not None,
        norm is None and all(is_half(o.dtype) for o in (out, residual or out)),
    )
    if settled(evaluated(getattr, tile, "bulk")):
        bulk_product(k, how, tile, operands, product)
    else:
        _launch(k, how, tile, operands, norm, product)


def _chosen(k: Kit, stream: Stream, operands: StreamOperands, norm: Norm | None) -> Cut:
    """How the product is cut: whole for a normalization, else as was measured or is expected."""
    x, residual, out = operands.x, operands.residual, operands.out
    limits, dense = k.tuning.limits, stream.is_dense
    bulk = k.tuning.copy_engine and dense and stream.groups == 1 and norm is None
    bulk = bulk and is_half(x.dtype) and (residual is None or residual.dtype == out.dtype)
    if stream.ragged:
        bulk = bulk and not is_half(out.dtype) and stream.filters % 4 == 0
    tiles = tiles_for(limits, warpgroups=k.tuning.warpgroups, bulk=bulk)
    sizes = (stream.rows, stream.columns, stream.depth, stream.groups)
    if norm is not None:
        whole = evaluated(getattr, _whole(k, tiles, stream), "cut")
        return Cut(*(evaluated(getattr, whole, field.name) for field in fields(Cut)))
    return chosen_cut(k, f"stream {stream.taps[0]}x{stream.taps[1]}", tiles, sizes)


def _launch(
    k: Kit,
    how: Cut,
    tile: StreamTile,
    operands: StreamOperands,
    norm: Norm | None,
    product: Streamed,
) -> None:
    """Records the launch of ``product_stream``.

    Args:
        k: The kit.
        how: How the product is cut over work-groups.
        tile: What a work-group computes.
        operands: What is read and written.
        norm: How rows are normalized before; None if they are not.
        product: Sizes, activation and limits.
    """
    x, w, bias, residual, out, _ = operands
    stream, activation, limits = product.stream, product.activation, k.tuning.limits
    steps = how.per_split // STREAM_DEEP
    flags = _flags(stream, how, operands, norm)
    early = residual is not None and how.splits == 1 and not stream.ragged
    given = steps, stream.channels, norm is not None, early
    macros = evaluated(_stream_macros, tile, limits.kernel_local_bytes, *given)
    options: dict[str, int | None] = {"ACTIVATION": int(activation.code)}
    more: tuple[Argument, ...] = ()
    if how.splits > 1:
        more = handed_over(k, how)
    if norm is not None:
        options["NORMALIZE"] = math.ceil(stream.depth / _NORMALIZED)
        more = norm.out, norm.scale, norm.shift, f32(norm.epsilon)
    k.launch_generated(
        evaluated(_multiplier, tile, k.tuning.half_kind) if limits.is_nvidia else "",
        "product_stream.cl",
        "product_stream",
        k.tuning.groups(how.tiles * how.splits, evaluated(getattr, tile, "items")),
        x,
        w,
        bias,
        residual or x,
        out,
        i32(stream.rows),
        i32(stream.columns),
        i32(stream.depth),
        ints(*stream.image, stream.pitch, stream.channels),
        ints(*stream.out, stream.width, stream.groups),
        ints(stream.taps[0], *stream.dilation, filled(stream.channels)),
        ints(*stream.stride, *stream.begin),
        i32(stream.width),
        f32(activation.alpha),
        f32(activation.beta),
        i32(steps),
        *more,
        product=product,
        chosen=macros,
        **options,
        **{name: None for name, on in flags.items() if on},
    )


def _multiplier(tile: StreamTile, half_kind: str) -> str:
    """The code by which the tile's warps multiply together, if they do."""
    return multiplier(tile.wide, half_kind) if tile.warpgroup else ""


def _stream_macros(
    tile: StreamTile, local_bytes: int, steps: int, channels: int, whole: bool, early: bool
) -> Options:
    """Compile-time constants of ``product_stream``.

    Args:
        tile: The tile.
        local_bytes: What a kernel may have.
        steps: Of a part of the sums.
        channels: Of the input.
        whole: Whether all of a row is in local memory at a time.
        early: Whether residuals are read early if there is room.
    """
    at_once = steps <= tile.stages or whole
    stages = steps if at_once else tile.stages
    room = local_bytes - replace(tile, stages=stages).local_bytes
    flags = {
        "AT_ONCE": at_once,
        "EARLY": early and tile.result_bytes <= room,
        "EXACT": channels % tile.deep == 0,
    }
    options = {**tile.options(), "STAGES": stages}
    return (*options.items(), *((name, None) for name, on in flags.items() if on))


def _flags(
    stream: Stream, how: Cut, operands: StreamOperands, norm: Norm | None
) -> dict[str, bool]:
    """Which parts of ``product_stream`` are compiled."""
    residual, single = operands.residual, not is_half(operands.out.dtype)
    return {
        "TAPS": stream.has_taps,
        "DENSE": stream.is_dense,
        "RESIDUAL": residual is not None,
        "LOOSE": stream.ragged,
        "SINGLE": single,
        "PAIRS": single and stream.filters % 2 == 0,
        "ADDS_SINGLE": residual is not None and not is_half(residual.dtype),
        "SINGLE_ROWS": not is_half(operands.x.dtype),
        "SINGLE_NORMAL": norm is not None and not is_half(norm.out.dtype),
        "HAND_OVER": how.splits > 1,
    }
