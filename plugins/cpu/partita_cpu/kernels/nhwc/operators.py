"""Operators on images with channels last, in domain ``partita.nhwc``; `passes.nhwc` makes them.

They exist only where there are native kernels, so they need no portable form.
"""

from __future__ import annotations

import math

import numpy as np

from partita.errors import OperandError
from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.reached_taps import TapWay, ways_without_padding, without_padding
from partita.lowering.geometry.windows import (
    Window,
    resolve,
    resolve_transposed,
)
from partita.lowering.shapes.symbolic_size import evaluated, integer
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.fused_activation import bounds_of
from partita_cpu.gemm.product_records import InputScaling
from partita_cpu.gemm.product_steps import LinearOp, LinearStep, emit_product
from partita_cpu.gemm.tile_kernels import single_kernel
from partita_cpu.kernels.int8.integer_product import BYTES
from partita_cpu.kernels.movement.rearrange import expanded, transposed
from partita_cpu.kernels.nhwc.channel_groups import emit_by_groups
from partita_cpu.kernels.nhwc.channel_parts import emit_by_channels
from partita_cpu.kernels.nhwc.depthwise import channel_slice, counts_of, emit_depthwise, emit_slide
from partita_cpu.kernels.nhwc.pixel_grouping import emit_grouped_pixels
from partita_cpu.kernels.nhwc.placement import DOMAIN, HALF, STORED, Place, choice_of
from partita_cpu.kernels.nhwc.row_groups import emit_by_rows
from partita_cpu.kernels.nhwc.transposed_blocks import emit_blocks, touches
from partita_cpu.kernels.nhwc.transposed_phases import emit_phases
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.nhwc.pixel_moves import interleave_groups, put_channels, swap_axes
from partita_cpu.nhwc.pixel_steps import scale_and_shift
from partita_cpu.nhwc.transpose import emit_transpose
from partita_cpu.nhwc.window import MAX, MEAN, over_all_pixels
from partita_cpu.scalar.activations import ActivationFields
from partita_cpu.winograd.steps import emit_filtered

SHORT_SUM = 256
"""Means over more pixels are sums of sums."""


@kernel("ToChannelsLast", domain=DOMAIN, dtypes=F32 | BYTES)
def to_channels_last(b: Builder, node: Node, x: Operand) -> Operand:
    """(N, C, H, W) to (N, H, W, C), or with zeros for more channels if the node asks for them."""
    n, c, h, w = x.shape
    return _swapped(b, x, c, h * w, (n, h, w, integer(node.attrs.get("channels", c))))


@kernel("ToChannelsFirst", domain=DOMAIN, dtypes=F32 | BYTES)
def to_channels_first(b: Builder, node: Node, x: Operand) -> Operand:
    """(N, H, W, C) to (N, C, H, W)."""
    n, h, w, c = x.shape
    return _swapped(b, x, h * w, c, (n, c, h, w))


def to_last(b: Builder, x: Operand) -> Operand:
    """(N, C, H, W) to (N, H, W, C)."""
    n, c, h, w = x.shape
    return _swapped(b, x, c, h * w, (n, h, w, c))


def _swapped(b: Builder, x: Operand, rows: int, columns: int, shape: tuple[int, ...]) -> Operand:
    if x.dtype in BYTES:
        return b.view(transposed(b, b.view(x, (x.shape[0], rows, columns)), (0, 2, 1)), shape)
    if math.prod(shape) == x.size:
        if rows == 1 or columns == 1 or not x.size:
            return b.view(x, shape)
        found = emit_transpose(b, b.view(x, (x.shape[0], rows, columns)), (0, 2, 1))
        if found is not None:
            return b.view(found, shape)
    y = b.empty(shape, x.dtype)
    pitch = y.size * rows // x.size
    b.call(swap_axes, b.flat(x), b.flat(y), rows, columns, pitch, exec_type="reorder")
    return y


@kernel("Buffer", domain=DOMAIN, folds=False)
def buffer(b: Builder, node: Node) -> Operand:
    """Memory that several nodes write their channels to."""
    return b.empty(node.attrs["shape"], HALF if node.attrs.get("half") else np.float32)


@kernel("Joined", domain=DOMAIN, dtypes=STORED)
def joined(b: Builder, node: Node, *parts: Operand) -> Operand:
    """A buffer when all have written to it."""
    return parts[0]


@kernel("PutChannels", domain=DOMAIN, dtypes=STORED)
def put(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Channels copied to their place in a buffer."""
    place = Place.of(node, x, y)
    if x.size:
        name = "copy_halves" if x.dtype == HALF else "copy"
        kernels = b.constant(single_kernel(choice_of(b).level, name))
        numbers = place.channels, place.first, place.into, y.shape[3]
        b.call(put_channels, b.flat(x), b.flat(y), kernels, *numbers, exec_type="copy")
    return y


_FASTER_WAYS = (
    emit_by_rows,
    emit_grouped_pixels,
    emit_filtered,
    emit_by_channels,
    emit_by_groups,
)
"""What records a convolution if it takes less time so than `emit_product`'s step; by preference."""


@kernel("Conv", domain=DOMAIN, dtypes=STORED)
def conv(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
    factor: Operand | None = None,
    shift: Operand | None = None,
    target: Operand | None = None,
) -> Operand:
    """Convolution by constant weights, then bias, residual and activation.

    With a factor and a shift per channel, the input is multiplied and shifted on its way, and
    brought within the bounds of attribute ``scaled``. A ``planar`` input is (N, C, H, W).
    """
    planar = bool(node.attrs.get("planar"))
    if planar and not _reads_planes(b, node, x, w):
        x, planar = to_last(b, x), False
    if planar:
        into = node.attrs.get("into", 0)
        place, size = Place(x, 0, x.shape[1], target, into), x.shape[2:]
    else:
        place, size = Place.of(node, x, target), x.shape[1:3]
    place = place.settled()
    ways = ways_without_padding(b, resolve(node, size, w.shape[2:]), w)
    groups = int(node.attrs.get("group", 1))
    n, channels = x.shape[0], place.channels
    if channels != w.shape[1] * groups or w.shape[0] % groups:
        raise OperandError(
            f"Operation '{node.name}' (Conv): {channels} input channels do not fit weights of "
            f"shape {list(w.shape)} in {groups} groups."
        )
    shape = (n, *ways[0].window.out_shape, w.shape[0])
    y = place.output(b, shape, bool(node.attrs.get("half")))
    if not math.prod(shape):
        return y
    if residual is not None:
        residual = expanded(b, residual, y.shape)
    op = LinearOp(w, bias, residual, node.attrs.get("activation"))
    scaling = None
    if factor is not None and shift is not None:
        scaling = InputScaling(factor, shift, *node.attrs["scaled"])
    storage = Storage(
        x.dtype == HALF,
        y.dtype == HALF,
        channels if planar else x.shape[3],
        place.first,
        y.shape[3],
        place.into,
        scaling is not None,
        math.prod(size) if planar else 0,
    )
    for way in ways:
        with b.only_if(way.chosen):
            _emit_way(b, way, place, groups, op, y, storage, scaling)
    return y


def _emit_way(
    b: Builder,
    way: TapWay,
    place: Place,
    groups: int,
    op: LinearOp,
    y: Operand,
    storage: Storage,
    scaling: InputScaling | None,
) -> None:
    """A convolution by the taps of one way.

    Args:
        b: Records it.
        way: Its window and weights.
        place: What it reads.
        groups: Of channels.
        op: What it computes, with the weights of all taps.
        y: What it writes, images with channels last.
        storage: How both lie in memory.
        scaling: What its input is multiplied by and shifted on its way, or ``None``.
    """
    window, op = way.window, op._replace(w=way.weights)
    outputs = op.w.shape[0]
    if 1 < groups == place.channels == outputs and op.residual is None:
        emit_depthwise(b, window, place, op, y)
        return
    images = images_of(y.shape[0], place.channels, outputs, groups, window)
    policy = choice_of(b)
    step = LinearStep(images, place.x, op, y, storage, scaling)
    if not any(emit(b, policy, step) for emit in _FASTER_WAYS):
        emit_product(b, policy, step)


def images_of(n: int, channels: int, outputs: int, groups: int, window: Window) -> Images:
    """A convolution by a window that does not extend or move in depth, or one slice of it."""
    return Images(
        n,
        *window.size[1:],
        channels,
        outputs,
        groups,
        window.kernel[1:],
        window.stride[1:],
        window.dilation[1:],
        window.begin[1:],
        window.end[1:],
        *window.out[1:],
    )


def _reads_planes(b: Builder, node: Node, x: Operand, w: Operand) -> bool:
    """Whether a picture can be read as it is: its rows are laid out anew in any case."""
    policy = choice_of(b)
    window, w = without_padding(b, resolve(node, x.shape[2:], w.shape[2:]), w)
    images = images_of(x.shape[0], x.shape[1], w.shape[0], 1, window)
    arithmetic = policy.product_arithmetic(images, b.value(w, anywhere=True))
    storage = Storage(planar=images.height * images.width)
    source = plan(images, policy.machine, arithmetic, policy.threads, storage).source
    return images.pixels > 0 and source is Source.HALO


@kernel("ConvTranspose", domain=DOMAIN, dtypes=STORED)
def conv_transpose(
    b: Builder,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    target: Operand | None = None,
) -> Operand:
    """A transposed convolution: by blocks where windows touch and do not overlap, or by phases."""
    place = Place.of(node, x, target).settled()
    n, h, width, _ = x.shape
    inputs, outputs, *kernel = w.shape
    if inputs != place.channels:
        raise OperandError(
            f"Operation '{node.name}' (ConvTranspose): {place.channels} input channels do not fit "
            f"weights of shape {list(w.shape)}."
        )
    window = resolve_transposed(node, (h, width), kernel)
    y = place.output(b, (n, *window.size[1:], outputs), bool(node.attrs.get("half")))
    if not y.size:
        return y
    op = LinearOp(w, bias, None, node.attrs.get("activation"))
    if touches(window):
        emit_blocks(b, window, place, op, y)
    else:
        emit_phases(b, choice_of(b), window, place, op, y)
    return y


@kernel("MaxPool", domain=DOMAIN, dtypes=STORED)
def max_pool(b: Builder, node: Node, x: Operand, target: Operand | None = None) -> Operand:
    """The largest element of each window."""
    window, place, y = _pool(b, node, x, target)
    if y.size:
        none = b.constant(np.zeros(1, np.float32))
        emit_slide(b, window.trimmed, place, LinearOp(none), y, MAX)
    return y


@kernel("AveragePool", domain=DOMAIN, dtypes=STORED)
def average_pool(b: Builder, node: Node, x: Operand, target: Operand | None = None) -> Operand:
    """The mean of each window, with or without the padding under it."""
    window, place, y = _pool(b, node, x, target)
    if y.size:
        include = bool(node.attrs.get("count_include_pad", 0))
        none = b.constant(np.zeros(1, np.float32))
        emit_slide(b, window.trimmed, place, LinearOp(none), y, MEAN, counts_of(b, window, include))
    return y


def _pool(
    b: Builder, node: Node, x: Operand, target: Operand | None
) -> tuple[Window, Place, Operand]:
    ceil_mode = bool(node.attrs.get("ceil_mode", 0))
    window = resolve(node, x.shape[1:3], node.attrs["kernel_shape"], ceil_mode=ceil_mode)
    place = Place.of(node, x, target)
    shape = (x.shape[0], *window.out_shape, place.channels)
    return window, place, place.output(b, shape, x.dtype == HALF)


@kernel("GlobalAveragePool", "GlobalMaxPool", domain=DOMAIN, dtypes=STORED)
def global_pool(b: Builder, node: Node, x: Operand) -> Operand:
    """The mean or the maximum of each channel, in float32."""
    n, h, w, _ = x.shape
    place = Place.of(node, x, None)
    y = b.empty((n, 1, 1, place.channels), np.float32)
    mean = node.op_type == "GlobalAveragePool"
    if y.size and h * w:
        kind = "all_sum" if mean else "all_max"
        name = f"{kind}_widen" if x.dtype == HALF else kind
        kernels = b.constant(single_kernel(choice_of(b).level, name))
        rows = evaluated(_rows, h * w)
        numbers = place.channels, rows, h * w // rows, place.first, evaluated(_share, h * w)
        b.call(over_all_pixels, b.flat(x), b.flat(y), kernels, *numbers)
    elif y.size:
        b.call_numpy(np.ndarray.fill, y, math.nan if mean else -math.inf)
    return y


def _share(pixels: int) -> float:
    return 1 / pixels


def _rows(pixels: int) -> int:
    """Into how many equal parts a sum over many pixels is divided, each added up by itself.

    PP-OCR's detection has means over 160 x 160; in one sum they were off by 5e-5.
    """
    if pixels <= SHORT_SUM:
        return 1
    return max(n for n in range(1, math.isqrt(pixels) + 1) if pixels % n == 0)


@kernel("ScaleShift", domain=DOMAIN, dtypes=STORED)
def scale_shift(
    b: Builder,
    node: Node,
    x: Operand,
    factor: Operand,
    shift: Operand,
    target: Operand | None = None,
) -> Operand:
    """A factor and a summand per channel, then an activation."""
    place = Place.of(node, x, target)
    y = place.output(b, (*x.shape[:3], place.channels), x.dtype == HALF)
    low, high, act = bounds_of(node.attrs.get("activation"))
    if y.size:
        name = "scale_halves" if x.dtype == HALF else "scale"
        b.call(
            scale_and_shift,
            b.flat(x),
            InputScaling(factor, shift, low, high),
            b.flat(y),
            b.constant(single_kernel(choice_of(b).level, name)),
            channel_slice(place, y),
            ActivationFields(int(act.code), float(act.alpha), float(act.beta)),
        )
    return y


@kernel("ShuffleChannels", domain=DOMAIN, dtypes=STORED | BYTES)
def shuffle_channels(b: Builder, node: Node, x: Operand) -> Operand:
    """Groups of channels interleaved: channel (g, i) of (groups, others) becomes (i, g)."""
    y = b.empty(x.shape, x.dtype)
    if y.size:
        groups = int(node.attrs["groups"])
        b.call(interleave_groups, b.flat(x), b.flat(y), groups, x.shape[3] // groups)
    return y


@kernel("DepthToSpace", domain=DOMAIN, dtypes=F32 | BYTES)
def depth_to_space(b: Builder, node: Node, x: Operand) -> Operand:
    """Blocks of channels become squares of pixels, in either order of the channel index."""
    n, h, w, c = x.shape
    size = node.attrs["blocksize"]
    depth = c // (size * size)
    if node.attrs.get("mode", "DCR") == "DCR":
        y = transposed(b, b.view(x, (n, h, w, size, size, depth)), (0, 1, 3, 2, 4, 5))
    else:
        y = transposed(b, b.view(x, (n, h, w, depth, size, size)), (0, 1, 4, 2, 5, 3))
    return b.view(y, (n, h * size, w * size, depth))


@kernel("SpaceToDepth", domain=DOMAIN, dtypes=F32 | BYTES)
def space_to_depth(b: Builder, node: Node, x: Operand) -> Operand:
    """Squares of pixels become channels, in either order of the channel index."""
    n, h, w, c = x.shape
    size = node.attrs["blocksize"]
    cut = b.view(x, (n, h // size, size, w // size, size, c))
    perm = (0, 1, 3, 2, 4, 5) if node.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return b.view(transposed(b, cut, perm), (n, h // size, w // size, c * size * size))
