"""Convolutions: implicit matrix products, and depthwise ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError, OperandError
from partita.lowering import Array, Node, Operand
from partita.lowering.transformed_weights import Form as WeightForm
from partita_opencl.emitters.gemm.products import Epilogue, Product, activation_of, lanes, tiles
from partita_opencl.emitters.movement import expand, pad_zeros, transpose
from partita_opencl.emitters.operator_table import operator
from partita_opencl.emitters.windows import Window, int4, spatial_dims, window_of
from partita_opencl.launches.emitter_kit import Argument, Kit, i32, is_half
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
class _Conv:
    """The sizes of a convolution.

    Attributes:
        images: Batch size.
        channels: Input channels.
        filters: Output channels.
        groups: Groups.
        window: The window over the image.
    """

    images: int
    channels: int
    filters: int
    groups: int
    window: Window

    @property
    def depth(self) -> int:
        """Terms of each sum."""
        return self.channels // self.groups * math.prod(self.window.size)

    def along_taps(self, image: Sequence[int]) -> tuple[Any, ...]:
        """What the taps follow from, for windows over an image of these sizes."""
        return self.channels // self.groups, self.window.size, self.window.dilation, *image

    @property
    def pixels(self) -> int:
        """Output positions per image and channel."""
        return math.prod(self.window.out)


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
    sizes = _Conv(x.shape[0], x.shape[1], w.shape[0], groups, window)
    check_size(node, x.size // max(x.shape[0], 1), x.shape[1], window)
    out = k.empty((sizes.images, sizes.filters, *window.out[: x.ndim - 2][::-1]), x.dtype)
    if not out.size:
        return out
    residual = None if residual is None else as_result(k, node, residual, out)
    if groups == sizes.channels > 1:
        _depthwise(k, node, sizes, x, w, out, bias, residual)
    elif k.tuning.local_tiles:
        _conv_tiles(k, node, sizes, x, w, out, bias, residual)
    else:
        _conv_lanes(k, node, sizes, x, w, out, bias, residual)
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


def _conv_tiles(
    k: Kit,
    node: Node,
    sizes: _Conv,
    x: Operand,
    w: Operand,
    out: Operand,
    bias: Operand | None,
    residual: Operand | None,
) -> None:
    """Filters are rows, pixels are columns; padding is handled by the kernel."""
    batches = sizes.images * sizes.groups
    product = Product(
        rows=sizes.filters // sizes.groups,
        columns=sizes.pixels,
        depth=sizes.depth,
        batches=batches,
        batch_map=(1, sizes.groups, 1, batches),
    )
    epilogue = Epilogue(bias, (1, 0), sizes.groups, residual, activation_of(node))
    window = sizes.window
    channels = sizes.channels // sizes.groups
    taps = math.prod(window.size)
    deep = MATRIX_DEEP if k.tuning.matrix_units and is_half(x.dtype) else DEEP
    by_channels = channels % deep == 0 and taps <= _MOST_TAPS
    packed = _packed(k, w, sizes.groups, taps_first=by_channels)
    step = packed.shape[-1]
    if window.is_pointwise:
        tiles(k, product, packed, x, out, epilogue, a_step=step)
        return
    options: dict[str, None] = {"IM2COL": None}
    if by_channels:
        options["CHANNELS"] = None
    rows = taps + 1 if by_channels else product.depth
    make = _taps_of_a_channel if by_channels else _taps
    extra: tuple[Argument, ...] = (
        k.builder.computed((rows, 4), np.int32, make, *sizes.along_taps(window.image)),
        int4(window.image, channels),
        int4(window.out),
        int4(window.stride),
        int4(window.begin),
    )
    tiles(
        k, product, packed, x, out, epilogue, extra, step, channels if by_channels else 0, **options
    )


def _conv_lanes(
    k: Kit,
    node: Node,
    sizes: _Conv,
    x: Operand,
    w: Operand,
    out: Operand,
    bias: Operand | None,
    residual: Operand | None,
) -> None:
    """Pixels are rows, filters are lanes; the image is padded first."""
    x, window = _padded(k, x, sizes.window)
    batches = sizes.images * sizes.groups
    product = Product(
        rows=sizes.pixels,
        columns=sizes.filters // sizes.groups,
        depth=sizes.depth,
        batches=batches,
        batch_map=(1, batches, 1, sizes.groups),
    )
    epilogue = Epilogue(bias, (0, 1), sizes.groups, residual, activation_of(node))
    extra: tuple[Argument, ...] = (
        k.builder.computed((product.depth,), np.int32, _offsets, *sizes.along_taps(window.image)),
        int4(window.image, sizes.channels // sizes.groups),
        int4(window.out),
        int4(window.stride),
    )
    lanes(k, product, x, w, out, epilogue, extra, columns_first=True, IM2COL=None)


def _padded(k: Kit, x: Operand, window: Window) -> tuple[Operand, Window]:
    """The image with its border of zeros, and the window over it."""
    if not any(window.begin) and not any(window.end):
        return x, window
    rank = x.ndim - 2
    before = (0, 0, *window.begin[:rank][::-1])
    after = (0, 0, *window.end[:rank][::-1])
    padded = pad_zeros(k, x, before, after)
    image = (*padded.shape[2:][::-1], *window.image[rank:])
    return padded, replace(window, image=image, begin=(0, 0, 0), end=(0, 0, 0))


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


def _depthwise(
    k: Kit,
    node: Node,
    sizes: _Conv,
    x: Operand,
    w: Operand,
    out: Operand,
    bias: Operand | None,
    residual: Operand | None,
) -> None:
    window = sizes.window
    options: dict[str, None] = {}
    if not k.tuning.local_tiles:
        # Without tests at the border, the compiler computes neighbours by vector instructions.
        x, window = _padded(k, x, window)
        options = {"PADDED": None}
    epilogue = Epilogue(bias, (1, 0), 1, residual, activation_of(node))
    planes = sizes.images * sizes.filters
    k.launch(
        "conv_depthwise.cl",
        "conv_depthwise",
        k.tuning.grid(window.out[0], window.out[1] * window.out[2], planes),
        x,
        w,
        *epilogue.buffers(x),
        out,
        int4(window.image, sizes.channels),
        int4(window.out, sizes.filters),
        int4(window.stride),
        int4(window.begin),
        int4(window.dilation),
        i32(sizes.images),
        *epilogue.flags(),
        KX=window.size[0],
        KY=window.size[1],
        KZ=window.size[2],
        **epilogue.options(),
        **options,
    )
