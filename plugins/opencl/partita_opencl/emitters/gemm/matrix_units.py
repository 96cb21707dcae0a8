"""Launches of products that stream halves through matrix units; see ``product_stream.cl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from partita.lowering import NO_ACTIVATION, Activation, Array, Operand
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita.lowering.transformed_weights import Form as WeightForm
from partita.system.array_conversion import convert_into
from partita_opencl.device.limits import Limits
from partita_opencl.drivers.hopper_ptx import multiplier
from partita_opencl.emitters.gemm.bulk_copies import bulk_product
from partita_opencl.emitters.gemm.products import chosen_cut, handed_over
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

MOST_ROWS = 2**24
"""Rows of a product; with the columns that there are, elements are addressed by an int."""


@dataclass(frozen=True)
class Stream:
    """A convolution of an image (n, y, x, pitch); a matrix product is one of a single tap.

    Attributes:
        images: Batch size.
        image: x and y of the input.
        pitch: Halves from one pixel of the input to the next.
        channels: Input channels of a group.
        filters: Output channels of a group.
        groups: Groups; of several, channels and filters must be whole units.
        out: x and y of the output.
        taps: Taps in x and y.
        stride: In x and y.
        begin: Leading pads in x and y.
        dilation: In x and y.
        ragged: Whether pixels of the output have as many halves as there are filters, rather than
            as many as whole units need.
    """

    images: int
    image: tuple[int, int]
    pitch: int
    channels: int
    filters: int
    groups: int = 1
    out: tuple[int, int] = (1, 1)
    taps: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    begin: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    ragged: bool = False

    @property
    def rows(self) -> int:
        """Pixels of the output."""
        return self.images * math.prod(self.out)

    @property
    def columns(self) -> int:
        """Filters of a group in whole units."""
        return filled(self.filters)

    @property
    def width(self) -> int:
        """Elements from one pixel of the output to the next."""
        return self.filters if self.ragged else self.columns * self.groups

    @property
    def has_taps(self) -> bool:
        """Whether an output pixel reads others than one input pixel."""
        return self.taps != (1, 1) or any(self.begin)

    @property
    def is_dense(self) -> bool:
        """Whether output pixels are input pixels, in order."""
        return not self.has_taps and self.stride == (1, 1)

    @property
    def depth(self) -> int:
        """Terms of the sums, with channels in whole units."""
        return math.prod(self.taps) * filled(self.channels)


def packed(
    k: Kit, stream: Stream, w: Operand, bias: Operand | None, *, transposed: bool = False
) -> tuple[Operand, Operand]:
    """Weights and bias as the kernel takes them, made once.

    Args:
        k: The kit.
        stream: The sizes.
        w: Constant weights (filter, channel, y, x), or (channel, filter) if ``transposed``.
        bias: Constant, a number per filter or one for all; without one, zeros are added.
        transposed: Whether channels come first.
    """
    sizes = (stream.groups, stream.filters, stream.channels, transposed)

    def pack(array: Array) -> Array:
        return packed_filters(k, stream, array.T if transposed else array)

    form = form_of_filters(stream)
    weights = k.builder.prepack(w, ("stream", *sizes), pack, anywhere=True, form=form)
    return weights, packed_bias(k, stream, w, bias)


def form_of_filters(stream: Stream) -> WeightForm:
    """The form of :func:`packed_filters`."""
    sizes = stream.groups, stream.columns, math.prod(stream.taps), filled(stream.channels)
    return WeightForm(np.float16, sizes)


def packed_filters(k: Kit, stream: Stream, *parts: Array, gated: bool = False) -> Array:
    """Weights (filter, channel, y, x) as (group, filter, y, x, channel), filled up by zeros.

    Args:
        k: The kit.
        stream: The sizes.
        parts: The weights; several have their filters one behind another.
        gated: Whether filters of several take turns instead.
    """
    groups, channels, taps = stream.groups, stream.channels, math.prod(stream.taps)
    packed = np.zeros(form_of_filters(stream).shape, k.tuning.stored_type)
    start = 0
    for number, part in enumerate(parts):
        w = k.numbers(part).reshape(groups, -1, channels, taps).transpose(0, 1, 3, 2)
        place = (
            slice(number, stream.filters, len(parts)) if gated else slice(start, start + w.shape[1])
        )
        convert_into(packed[:, place, :, :channels], w)
        start += w.shape[1]
    return packed.view(np.float16)


def packed_bias(k: Kit, stream: Stream, w: Operand, bias: Operand | None) -> Operand:
    """The bias in float32, filled up; where there is none, zeros that go by the weights.

    Args:
        k: Records it.
        stream: Says how many filters there are, and to how many columns they are filled up.
        w: The weights, with which zeros live and go.
        bias: One number, or one for each filter of each group; ``None`` if there is none.

    Returns:
        float32 [groups * columns].
    """
    key = ("stream bias", stream.groups, stream.filters)

    def pack(array: Array | None) -> Array:
        full = np.zeros((stream.groups, stream.columns), np.float32)
        if array is not None:
            values = np.broadcast_to(array.reshape(-1), stream.groups * stream.filters)
            full[:, : stream.filters] = values.reshape(-1, stream.filters)
        return full.reshape(-1)

    if bias is None:
        return k.builder.prepack(w, key, lambda _: pack(None))
    return k.builder.prepack(bias, key, pack)


@dataclass(frozen=True)
class Streamed:
    """What a launch computes; its arguments are input, filters, bias, residual, result and others.

    Attributes:
        stream: The sizes.
        activation: Applied last.
        residual: Whether the residual is added.
        plain: Whether rows are read as they are and written as halves.
    """

    stream: Stream
    activation: Activation
    residual: bool
    plain: bool


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
    x: Operand,
    w: Operand,
    bias: Operand,
    residual: Operand | None,
    out: Operand,
    activation: Activation = NO_ACTIVATION,
    norm: Norm | None = None,
) -> None:
    """Records the product of an image by packed filters, a bias in float32 and a residual.

    ``out`` is of halves, or of float32 if it is ragged; the residual of halves, or of float32 if
    ``out`` is, too. Rows are normalized first only where :func:`normalizes` says so, and for a
    dense product; these may be of float32, and so may the normalized ones be.

    Args:
        k: Records it.
        stream: How rows of the image are read.
        x: The image, in halves.
        w: The packed filters.
        bias: As :func:`packed_bias` makes it.
        residual: What is added, if anything is.
        out: What is written.
        activation: What is applied at last.
        norm: How rows are normalized first, if they are.
    """
    operands = _Operands(x, w, bias, residual, out)
    how = _chosen(k, stream, operands, norm)
    tile: Any = how.tile
    product = Streamed(
        stream,
        activation,
        residual is not None,
        norm is None and all(is_half(o.dtype) for o in (out, residual or out)),
    )
    if settled(evaluated(getattr, tile, "bulk")):
        of_rows = stream.rows, stream.channels, stream.pitch
        sizes = stream.depth, stream.columns, of_rows, stream.width
        bulk_product(k, how, tile, *sizes, operands, activation, product)
    else:
        _launch(k, how, tile, operands, norm, product)


class _Operands(NamedTuple):
    """What a launch reads and writes."""

    x: Operand
    w: Operand
    bias: Operand
    residual: Operand | None
    out: Operand


def _chosen(k: Kit, stream: Stream, operands: _Operands, norm: Norm | None) -> Cut:
    """How the product is cut: whole for a normalization, else as was measured or is expected."""
    x, _, _, residual, out = operands
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
    k: Kit, how: Cut, tile: StreamTile, operands: _Operands, norm: Norm | None, product: Streamed
) -> None:
    """Records the launch of ``product_stream``."""
    x, w, bias, residual, out = operands
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
    """What ``product_stream`` is told of the tile.

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


def _flags(stream: Stream, how: Cut, operands: _Operands, norm: Norm | None) -> dict[str, bool]:
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
