"""Products that stream halves through matrix units: their sizes, operands and packed filters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from partita.lowering import Activation, Array, Operand
from partita.lowering.transformed_weights import Form as WeightForm
from partita.system.array_conversion import convert_into
from partita_opencl.launches.emitter_kit import Kit
from partita_opencl.passes.nhwc import filled

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


class StreamOperands(NamedTuple):
    """What a launch reads and writes.

    Attributes:
        x: The image, in halves; rows of a dense product may be float32.
        w: The packed filters.
        bias: As :func:`packed_bias` makes it.
        residual: Added to the result, or ``None``: halves, or float32 if the result is, too.
        out: The result: halves, or float32 if it is ragged.
        biased: Whether the bias is more than zeros, which need not be read.
    """

    x: Operand
    w: Operand
    bias: Operand
    residual: Operand | None
    out: Operand
    biased: bool = True
