"""Convolutions: implicit matrix products, and depthwise ones."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Array, Node, Operand
from partita.lowering.transformed_weights import Form as WeightForm
from partita_opencl.emitters.gemm.products import Epilogue, Product, activation_of, lanes, tiles
from partita_opencl.emitters.operator_table import operator
from partita_opencl.emitters.windows import Window, int4, spatial_dims, window_of
from partita_opencl.launches.emitter_kit import Argument, Kit, i32, is_half
from partita_opencl.launches.tensor_moves import expand, pad_zeros, transpose
from partita_opencl.tuning.product_tiles import DEEP, MATRIX_DEEP

LARGEST_IMAGE = 2**31 - 1
"""Elements of one image, with its padding, that kernels address by an int."""

Triple = tuple[int, ...]
"""Numbers along x, y and z."""

_FILTERS_AT_ONCE = 32
"""Filters of which a part of the terms fits the first-level cache while they are laid out."""

_MOST_TAPS = 32
"""Taps of which a kernel keeps a bit each."""

_KEPT_TABLES = 64
"""Tables kept of the latest convolutions: most networks have many over images of one size."""


@dataclass(frozen=True)
class Convolution:
    """A convolution, with what follows its sums.

    Attributes:
        x: Images (n, channels, ...).
        w: Weights (filters, channels / groups, ...).
        out: What is written (n, filters, ...).
        groups: Groups.
        window: The window over an image.
        epilogue: What becomes of the sums; rows are filters, columns are pixels.
    """

    x: Operand
    w: Operand
    out: Operand
    groups: int
    window: Window
    epilogue: Epilogue

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.x.shape[1] // self.groups

    @property
    def filters(self) -> int:
        """Output channels of a group."""
        return self.w.shape[0] // self.groups

    @property
    def batches(self) -> int:
        """Groups of all images."""
        return self.x.shape[0] * self.groups

    @property
    def pixels(self) -> int:
        """Output positions of an image and channel."""
        return math.prod(self.window.out)

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return math.prod(self.window.size)

    @property
    def depth(self) -> int:
        """Terms of each sum."""
        return self.channels * self.taps

    def offsets_key(self) -> tuple[Any, ...]:
        """What the offsets of the taps follow from: the arguments of the tables below."""
        return self.channels, self.window.size, self.window.dilation, *self.window.image


def _conv_check(node: Node) -> Reason | None:
    w = node.input(1)
    if w is not None and w.shape is not None and any(size == 0 for size in w.shape):
        return Reason(ReasonCode.UNSUPPORTED_SHAPE, "weights without elements")
    return spatial_dims()(node)


@operator("Conv", check=_conv_check, folds=False)
@operator("Conv", domain="partita", check=_conv_check)
def conv(
    k: Kit,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Convolution of one to three dimensions, with bias, residual and activation."""
    groups = int(node.attrs.get("group", 1))
    window = window_of(node, x.shape[2:], w.shape[2:])
    check_size(node, x.size // max(x.shape[0], 1), x.shape[1], window)
    out = k.empty((x.shape[0], w.shape[0], *window.out[: x.ndim - 2][::-1]), x.dtype)
    if not out.size:
        return out
    residual = None if residual is None else as_result(k, node, residual, out)
    epilogue = Epilogue(bias, (1, 0), groups, residual, activation_of(node))
    convolution = Convolution(x, w, out, groups, window, epilogue)
    if groups == x.shape[1] > 1:
        _depthwise(k, convolution)
    elif k.tuning.local_tiles:
        conv_tiles(k, convolution)
    else:
        _conv_lanes(k, convolution)
    return out


def check_size(node: Node, image: int, channels: int, window: Window) -> None:
    """Raises if an image, padded or not, or a result is too large for kernels to address.

    Args:
        node: The convolution.
        image: Elements of one image.
        channels: Of the input.
        window: What moves over it.
    """
    pairs = zip(window.begin, window.image, window.end, strict=True)
    padded = [begin + size + max(end, 0) for begin, size, end in pairs]
    reach = [(n - 1) * d for n, d in zip(window.size, window.dilation, strict=True)]
    ends = [(n - 1) * s + r for n, s, r in zip(window.out, window.stride, reach, strict=True)]
    most = max(image, channels * math.prod(padded), math.prod(window.out))
    if max(most, *padded, *ends) > LARGEST_IMAGE:
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) has images of {image} elements, padded "
            f"to {padded[::-1]}, and results of {math.prod(window.out)} pixels; device OPENCL "
            f"takes {LARGEST_IMAGE}."
        )


def as_result(k: Kit, node: Node, residual: Operand, out: Operand) -> Operand:
    """What kernels add element by element, in the result's shape.

    Raises:
        OperandError: It does not broadcast to that.
    """
    dims = (1,) * (out.ndim - residual.ndim) + residual.shape
    fits = len(dims) == out.ndim
    if not fits or any(n not in (1, m) for n, m in zip(dims, out.shape, strict=True)):
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}): a tensor of shape "
            f"{list(residual.shape)} does not broadcast to {list(out.shape)}."
        )
    return expand(k, residual, out.shape)


def conv_tiles(k: Kit, conv: Convolution) -> None:
    """Records one by tiles in local memory.

    Filters are rows, pixels are columns; padding is handled by the kernel.
    """
    product = Product(
        rows=conv.filters,
        columns=conv.pixels,
        depth=conv.depth,
        batches=conv.batches,
        batch_map=(1, conv.groups, 1, conv.batches),
    )
    window, channels = conv.window, conv.channels
    deep = MATRIX_DEEP if k.tuning.matrix_units and is_half(conv.x.dtype) else DEEP
    by_channels = channels % deep == 0 and conv.taps <= _MOST_TAPS
    packed = _packed(k, conv.w, conv.groups, taps_first=by_channels)
    step = packed.shape[-1]
    if window.is_pointwise:
        tiles(k, product, packed, conv.x, conv.out, conv.epilogue, a_step=step)
        return
    options: dict[str, None] = {"IM2COL": None}
    rows, make, unit = conv.depth, _taps, 0
    if by_channels:
        options["CHANNELS"] = None
        rows, make, unit = conv.taps + 1, _taps_of_a_channel, channels
    extra: tuple[Argument, ...] = (
        k.builder.computed((rows, 4), np.int32, make, *conv.offsets_key()),
        int4(window.image, channels),
        int4(window.out),
        int4(window.stride),
        int4(window.begin),
    )
    tiles(k, product, packed, conv.x, conv.out, conv.epilogue, extra, step, unit, **options)


def _conv_lanes(k: Kit, conv: Convolution) -> None:
    """Pixels are rows, filters are lanes; the image is padded first."""
    conv = _padded(k, conv)
    window = conv.window
    product = Product(
        rows=conv.pixels,
        columns=conv.filters,
        depth=conv.depth,
        batches=conv.batches,
        batch_map=(1, conv.batches, 1, conv.groups),
    )
    epilogue = replace(conv.epilogue, bias_step=(0, 1))
    extra: tuple[Argument, ...] = (
        k.builder.computed((conv.depth,), np.int32, _offsets, *conv.offsets_key()),
        int4(window.image, conv.channels),
        int4(window.out),
        int4(window.stride),
    )
    lanes(k, product, conv.x, conv.w, conv.out, epilogue, extra, columns_first=True, IM2COL=None)


def _padded(k: Kit, conv: Convolution) -> Convolution:
    """The convolution of the image with its border of zeros, which then needs no padding."""
    x, window = conv.x, conv.window
    if not any(window.begin) and not any(window.end):
        return conv
    rank = x.ndim - 2
    before = (0, 0, *window.begin[:rank][::-1])
    after = (0, 0, *window.end[:rank][::-1])
    padded = pad_zeros(k, x, before, after)
    image = (*padded.shape[2:][::-1], *window.image[rank:])
    return replace(
        conv, x=padded, window=replace(window, image=image, begin=(0, 0, 0), end=(0, 0, 0))
    )


def _packed(k: Kit, w: Operand, groups: int, *, taps_first: bool) -> Operand:
    """Weights as (group, term of the sums, filter): neighbouring filters are neighbours in memory.

    Constant ones have a multiple of eight filters, filled with zeros.
    """
    shape = (groups, w.shape[0] // groups, w.shape[1], math.prod(w.shape[2:]))
    depth = shape[2] * shape[3]
    order = (0, 3, 2, 1) if taps_first else (0, 2, 3, 1)

    def pack(array: Array) -> Array:
        terms = array.reshape(shape).transpose(order)
        filters = shape[1]
        panels = np.empty((*terms.shape[:-1], filters + -filters % 8), array.dtype)
        panels[..., filters:] = 0
        for start in range(0, filters, _FILTERS_AT_ONCE):
            some = slice(start, min(start + _FILTERS_AT_ONCE, filters))
            panels[..., some] = terms[..., some]
        return panels.reshape(groups, depth, panels.shape[-1])

    if w.const is not None:
        form = WeightForm(w.dtype, (groups, depth, shape[1] + -shape[1] % 8))
        return k.builder.prepack(w, f"packed:{groups}:{taps_first}", pack, form=form)
    return k.view(transpose(k, k.view(w, shape), order), (groups, depth, shape[1]))


@functools.lru_cache(_KEPT_TABLES)
def _taps(channels: int, size: Triple, dilation: Triple, *image: int) -> Array:
    """Per term of the sums: offset in the image, then z, y, x of the tap (int32, depth by 4)."""
    z, y, x = _along(size, dilation)
    table = np.empty((channels, *size[::-1], 4), np.int32)
    table[..., 0] = _offsets(channels, size, dilation, *image).reshape(table.shape[:-1])
    table[..., 1], table[..., 2], table[..., 3] = z, y, x
    return _shared(table.reshape(-1, 4))


@functools.lru_cache(_KEPT_TABLES)
def _offsets(channels: int, size: Triple, dilation: Triple, *image: int) -> Array:
    """Per term of the sums its offset in the image."""
    z, y, x = _along(size, dilation)
    channel = np.arange(channels, dtype=np.int64)[:, None, None, None]
    offset = ((channel * image[2] + z) * image[1] + y) * image[0] + x
    return _shared(offset.reshape(-1).astype(np.int32))


def _along(size: Triple, dilation: Triple) -> tuple[Array, Array, Array]:
    """The taps' places along z, y and x, as rows of these three dimensions."""
    x, y, z = (
        np.arange(count, dtype=np.int64) * step for count, step in zip(size, dilation, strict=True)
    )
    return z[:, None, None], y[:, None], x


@functools.lru_cache(_KEPT_TABLES)
def _taps_of_a_channel(channels: int, size: Triple, dilation: Triple, *image: int) -> Array:
    """Those of the first channel, and one more that is read, though not used, at the end."""
    taps = _taps(1, size, dilation, *image)
    return _shared(np.concatenate([taps, taps[:1]]))


def _shared(table: Array) -> Array:
    """The table, which all convolutions alike have: one that nobody can write."""
    table.flags.writeable = False
    return table


def _depthwise(k: Kit, conv: Convolution) -> None:
    options: dict[str, None] = {}
    if not k.tuning.local_tiles:
        # Without tests at the border, the compiler computes neighbours by vector instructions.
        conv = _padded(k, conv)
        options = {"PADDED": None}
    window = conv.window
    images, channels, filters = conv.x.shape[0], conv.x.shape[1], conv.w.shape[0]
    k.launch(
        "conv_depthwise.cl",
        "conv_depthwise",
        k.tuning.grid(window.out[0], window.out[1] * window.out[2], images * filters),
        conv.x,
        conv.w,
        *conv.epilogue.buffers(conv.x),
        conv.out,
        int4(window.image, channels),
        int4(window.out, filters),
        int4(window.stride),
        int4(window.begin),
        int4(window.dilation),
        i32(images),
        *conv.epilogue.flags(),
        KX=window.size[0],
        KY=window.size[1],
        KZ=window.size[2],
        **conv.epilogue.options(),
        **options,
    )
