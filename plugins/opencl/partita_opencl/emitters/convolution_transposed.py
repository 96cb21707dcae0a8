"""Transposed convolutions, as convolutions whose filters make a block of pixels each.

Where results are no whole blocks, each output gathers the inputs that reach it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import Array, Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.windows import Window, resolve_transposed
from partita.lowering.nhwc.conversion import DOMAIN
from partita.lowering.transformed_weights import Form as WeightForm
from partita_opencl.emitters.convolution import (
    LARGEST_IMAGE,
    Convolution,
    as_result,
    conv_tiles,
)
from partita_opencl.emitters.gemm.matrix_units import stream_product
from partita_opencl.emitters.gemm.products import Epilogue, activation_of
from partita_opencl.emitters.gemm.stream import (
    Stream,
    StreamOperands,
    form_of_filters,
    packed_bias,
    packed_filters,
)
from partita_opencl.emitters.operator_table import operator
from partita_opencl.emitters.windows import Window as ConvWindow
from partita_opencl.emitters.windows import int4, spatial_dims
from partita_opencl.launches.emitter_kit import Kit, i32
from partita_opencl.launches.tensor_moves import copy_box
from partita_opencl.passes.half_precision import HALF
from partita_opencl.passes.nhwc import Blocks, blocks_of, filled

_TRANSPOSE_CHANNELS = 4
"""Outputs per item of a transposed convolution."""


def _transpose_check(node: Node) -> Reason | None:
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"auto_pad {node.attrs['auto_pad']!r}")
    return spatial_dims()(node)


@operator("ConvTranspose", check=_transpose_check, folds=False)
@operator("ConvTranspose", domain="partita", check=_transpose_check)
def conv_transpose(
    k: Kit,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Transposed convolution of one to three dimensions, with bias, residual and activation."""
    groups = int(node.attrs.get("group", 1))
    window = resolve_transposed(node, x.shape[2:], w.shape[2:])
    _check_size(node, x, window)
    filters = w.shape[1] * groups
    out = k.empty((x.shape[0], filters, *window.size[3 - window.rank :]), x.dtype)
    if not out.size:
        return out
    blocks = (
        blocks_of(window) if groups == 1 and residual is None and k.tuning.local_tiles else None
    )
    if blocks is not None and w.const is not None and (bias is None or bias.const is not None):
        _block_tiles(k, node, (x, w, bias, out), window, blocks)
        return out
    residual = None if residual is None else as_result(k, node, residual, out)
    epilogue = Epilogue(bias, (1, 0), 1, residual, activation_of(node))
    jobs = x.shape[0] * groups * math.ceil(w.shape[1] / _TRANSPOSE_CHANNELS)
    k.launch(
        "conv_transpose.cl",
        "conv_transpose",
        k.tuning.grid(math.prod(window.size), jobs),
        x,
        w,
        *epilogue.buffers(x),
        out,
        int4(window.out[::-1], x.shape[1]),
        int4(window.size[::-1], filters),
        int4(window.kernel[::-1], groups),
        int4(window.stride[::-1]),
        int4(window.begin[::-1]),
        int4(window.dilation[::-1]),
        i32(x.shape[0]),
        *epilogue.flags(),
        CHANNELS=_TRANSPOSE_CHANNELS,
        **epilogue.options(),
    )
    return out


def _block_tiles(
    k: Kit,
    node: Node,
    operands: tuple[Operand, Operand, Operand | None, Operand],
    window: Window,
    blocks: Blocks,
) -> None:
    """Records one with channels first: a convolution, whose filters are then laid out as pixels.

    Args:
        k: Records the launches.
        node: For the activation.
        operands: Images, constant weights (channel, filter, ...), bias, the result.
        window: As the operator has it.
        blocks: Those of the window.
    """
    x, w, bias, out = operands
    (high, wide), begin, rank = blocks.steps, window.begin[1:], window.rank
    channels, filters = w.shape[:2]
    shape = (high * wide * filters, channels, *blocks.taps[2 - rank :])

    def pack(array: Array) -> Array:
        kernel = array.reshape(channels, filters, *window.kernel[1:])
        return _block_filters(kernel, blocks, begin, filters).reshape(shape)

    key = ("blocks first", blocks, begin)
    weights = k.builder.prepack(w, key, pack, form=WeightForm(w.dtype, shape))
    row = None
    if bias is not None:
        row = k.builder.prepack(bias, ("repeated", high * wide), partial(np.tile, reps=high * wide))
    parts = k.empty((x.shape[0], shape[0], *blocks.out[2 - rank :]), x.dtype)
    size, taps, first, steps = window.out, blocks.taps, blocks.first, blocks.out
    ends = [steps[i] + taps[i] - 1 + first[i] - size[i + 1] for i in (1, 0)]
    moved = ConvWindow(
        image=size[::-1],
        size=(*taps[::-1], 1),
        stride=(1, 1, 1),
        begin=(-first[1], -first[0], 0),
        end=(*ends, 0),
        dilation=(1, 1, 1),
        out=(*steps[::-1], 1),
    )
    epilogue = Epilogue(row, (1, 0), 1, None, activation_of(node))
    conv_tiles(k, Convolution(x, weights, parts, 1, moved, epilogue))
    order = strides_of((x.shape[0], high, wide, filters, *steps))
    sizes = (x.shape[0], filters, steps[0], high, steps[1], wide)
    strides = [order[i] for i in (0, 3, 4, 1, 5, 2)]
    copy_box(k, Box(parts, strides), Box(out, strides_of(sizes)), sizes)


@operator("ConvTranspose", domain=DOMAIN)
def conv_transpose_last(
    k: Kit, node: Node, x: Operand, w: Operand, bias: Operand | None = None
) -> Operand:
    """Of an image of halves with channels last, by constant weights (channel, filter, y, x)."""
    window = resolve_transposed(node, x.shape[1:3], w.shape[2:])
    blocks = blocks_of(window)
    if blocks is None:
        raise CompileError(f"Operation '{node.name}' ({node.model_kind}) is not one of blocks.")
    channels, filters = w.shape[:2]
    pitch, (high, wide), images = filled(filters), blocks.steps, x.shape[0]
    out = k.empty((images, *window.size[1:], pitch), HALF)
    if not out.size:
        return out
    stream = Stream(
        images=images,
        image=(x.shape[2], x.shape[1]),
        pitch=x.shape[3],
        channels=channels,
        filters=high * wide * pitch,
        out=blocks.out[::-1],
        taps=blocks.taps[::-1],
        begin=(-blocks.first[1], -blocks.first[0]),
    )
    begin = window.begin[1:]

    def pack(array: Array) -> Array:
        numbers = k.numbers(array).astype(np.float32)
        return packed_filters(k, stream, _block_filters(numbers, blocks, begin, pitch))

    key = ("blocks", blocks, begin, pitch)
    weights = k.builder.prepack(w, key, pack, form=form_of_filters(stream))
    if bias is None:
        row = packed_bias(k, stream, w, None)
    else:
        row = k.builder.prepack(bias, ("blocks", high * wide, pitch), _repeated(high * wide, pitch))
    y, x_ = blocks.out
    parts = k.empty((images, y, x_, high * wide * pitch), HALF)
    operands = StreamOperands(x, weights, row, None, parts)
    stream_product(k, stream, operands, activation_of(node))
    order = strides_of((images, y, x_, high, wide, pitch))
    steps = [order[i] for i in (0, 1, 3, 2, 4, 5)]
    sizes = (images, y, high, x_, wide, pitch)
    copy_box(k, Box(parts, steps), Box(out, strides_of(sizes)), sizes)
    return out


def _block_filters(array: Array, blocks: Blocks, begin: tuple[int, ...], pitch: int) -> Array:
    """Weights (channel, filter, y, x) as those of a convolution: (pixel and filter, channel, y, x).

    Args:
        array: The weights.
        blocks: The blocks.
        begin: Leading pads in y and x.
        pitch: To how many the filters of a pixel are filled up.

    Returns:
        [pixels of a block * pitch, channels, taps in y, taps in x], of the weights' type.
    """
    channels, filters, *kernel = array.shape
    found = np.zeros((*blocks.steps, pitch, channels, *blocks.taps), array.dtype)
    for place in itertools.product(*map(range, (*blocks.steps, *blocks.taps))):
        (py, px), (ty, tx) = place[:2], place[2:]
        y = py + begin[0] - blocks.steps[0] * (blocks.first[0] + ty)
        x = px + begin[1] - blocks.steps[1] * (blocks.first[1] + tx)
        if 0 <= y < kernel[0] and 0 <= x < kernel[1]:
            found[py, px, :filters, :, ty, tx] = array[:, :, y, x].T
    return found.reshape(-1, channels, *blocks.taps)


def _repeated(count: int, pitch: int) -> Callable[[Array], Array]:
    """What fills a row up to a pitch and repeats it."""

    def pack(array: Array) -> Array:
        row = np.zeros(pitch, np.float32)
        row[: array.size] = array
        return np.tile(row, count)

    return pack


def _check_size(node: Node, x: Operand, window: Window) -> None:
    """Raises if an image or a result is too large for kernels to address."""
    sizes = zip(window.size, window.begin, window.kernel, window.dilation, strict=True)
    ends = [abs(size) + abs(begin) + (n - 1) * step for size, begin, n, step in sizes]
    image = x.size // max(x.shape[0], 1)
    if max(image, *ends, math.prod(window.size)) > LARGEST_IMAGE:
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) has images of {image} elements, and "
            f"results of {list(window.size)} pixels; device OPENCL takes {LARGEST_IMAGE}."
        )
