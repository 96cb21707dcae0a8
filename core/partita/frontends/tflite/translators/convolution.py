"""Convolutions, plain, by channel and transposed; images come and go with channels last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.tflite.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


def window_pads(
    at: Site,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> dict[str, Any]:
    """The attributes of ONNX for ``Padding``: numbers where sizes are known, else by rule.

    SAME keeps ``ceil(size / stride)`` positions, with the odd element behind.

    Args:
        at: The convolution or pool.
        sizes: Of the image, rows first; -1 where one is not known before it runs.
        kernel: Sizes of the window.
        strides: Steps of the window.
        dilations: Steps between elements of the window.

    Returns:
        ``pads``, ``auto_pad``, or nothing where there is no padding.

    Raises:
        ModelFormatError: The file names a padding that the format does not have.
    """
    padding = at.integer("Padding")
    if padding not in (0, 1):
        raise at.error(f"padding {padding} is not known; 0 (SAME) and 1 (VALID) are")
    if padding == 1:
        return {}
    if min(sizes) < 0:
        return {"auto_pad": "SAME_UPPER"}
    totals = []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        reach = (width - 1) * dilation + 1
        totals.append(max((math.ceil(size / stride) - 1) * stride + reach - size, 0))
    pads = [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]
    return {"pads": pads if any(pads) else None}


def plane_steps(at: Site, dilated: bool = False) -> tuple[list[int], list[int]]:
    """Strides and dilations of a plane, rows first."""
    strides = [at.positive("StrideH"), at.positive("StrideW")]
    if not dilated:
        return strides, [1, 1]
    return strides, [at.positive("DilationHFactor", 1), at.positive("DilationWFactor", 1)]


def _weights(at: Site, index: int, perm: tuple[int, ...]) -> ir.Value:
    if at.rank(index) != len(perm) or min(at.dims(index)) < 1:
        raise at.error(f"weights have shape {list(at.dims(index))}; expected {len(perm)} sizes")
    return at.floats(index, perm)


def _bias(at: Site, index: int) -> ir.Value | None:
    return at.floats(index) if at.has(index) else None


def _convolved(
    at: Site, weights: ir.Value, kernel: Sequence[int], steps: Sequence[Sequence[int]], group: int
) -> ir.Value:
    """A convolution of the first input, with the bias and activation of the operator.

    Args:
        at: The operator.
        weights: In the order of ONNX.
        kernel: Sizes of the window.
        steps: Its strides and its dilations.
        group: How many groups of channels there are.
    """
    strides, dilations = steps
    rank = 2 + len(kernel)
    value = at.emit(
        "Conv",
        at.channels_first(0),
        weights,
        _bias(at, 2),
        group=group,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        **window_pads(at, at.dims(0)[1 : rank - 1], kernel, strides, dilations),
    )
    return at.to_last(at.result(at.activated(value)), rank)


@translates("CONV_2D")
def conv_2d(at: Site) -> ir.Value:
    """Weights are [out, height, width, in]; fewer channels in than the image has are groups."""
    weights = _weights(at, 1, (0, 3, 1, 2))
    out, *kernel, depth = at.dims(1)
    if at.rank(0) != 4:
        raise at.error(f"the image has shape {list(at.dims(0))}; expected four sizes")
    channels = at.dims(0)[3]
    if channels % depth or out % (channels // depth or 1):
        raise at.error(f"{channels} channels do not fit weights of {depth}")
    return _convolved(at, weights, kernel, plane_steps(at, dilated=True), channels // depth)


@translates("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(at: Site) -> ir.Value:
    """Weights are [1, height, width, out]; each channel has its own windows."""
    weights = _weights(at, 1, (3, 0, 1, 2))
    _, *kernel, out = at.dims(1)
    if at.rank(0) != 4 or at.dims(0)[3] < 1 or out % at.dims(0)[3] or at.dims(1)[0] != 1:
        raise at.error(f"an image {list(at.dims(0))} does not fit weights {list(at.dims(1))}")
    return _convolved(at, weights, kernel, plane_steps(at, dilated=True), at.dims(0)[3])


@translates("TRANSPOSE_CONV")
def transpose_conv(at: Site) -> ir.Value:
    """The first input is the shape of the result; weights are [out, height, width, in]."""
    weights = _weights(at, 1, (3, 0, 1, 2))
    _, *kernel, depth = at.dims(1)
    if at.rank(2) != 4 or at.dims(2)[3] != depth:
        raise at.error(f"an image {list(at.dims(2))} does not fit weights {list(at.dims(1))}")
    strides, _ = plane_steps(at)
    return _spread(at, weights, kernel, strides)


@translates("CONV_3D_TRANSPOSE")
def conv_3d_transpose(at: Site) -> ir.Value:
    """The first input is the shape of the result; weights are [depth, height, width, out, in]."""
    weights = _weights(at, 1, (4, 3, 0, 1, 2))
    *kernel, _, depth = at.dims(1)
    if at.rank(2) != 5 or at.dims(2)[4] != depth:
        raise at.error(f"an input {list(at.dims(2))} does not fit weights {list(at.dims(1))}")
    return _spread(at, weights, kernel, [at.positive(f"Stride{axis}") for axis in "DHW"])


def _spread(at: Site, weights: ir.Value, kernel: Sequence[int], strides: Sequence[int]) -> ir.Value:
    """A transposed convolution to the sizes that the first input gives."""
    given, rank = at.constant(0), at.rank(2)
    wanted = at.target().dims if given is None else tuple(int(size) for size in given.reshape(-1))
    if len(wanted) != rank or min(wanted[1:-1]) < 0 or min(at.dims(2)[1:-1]) < 0:
        raise at.error("the sizes of the result must be known")
    begins, ends, more = [], [], []
    same = at.integer("Padding") == 0
    for size, result, width, stride in zip(
        at.dims(2)[1:-1], wanted[1:-1], kernel, strides, strict=True
    ):
        total = (size - 1) * stride + width - result
        more.append(max(-total, 0))
        begins.append(max(total, 0) // 2 if same else 0)
        ends.append(max(total, 0) - begins[-1])
    value = at.emit(
        "ConvTranspose",
        at.channels_first(2),
        weights,
        _bias(at, 3),
        kernel_shape=kernel,
        strides=strides,
        pads=[*begins, *ends],
        output_padding=more if any(more) else None,
    )
    return at.to_last(at.result(at.activated(value)), rank)


@translates("CONV_3D")
def conv_3d(at: Site) -> ir.Value:
    """Weights are [depth, height, width, in, out]."""
    weights = _weights(at, 1, (4, 3, 0, 1, 2))
    *kernel, depth, _ = at.dims(1)
    if at.rank(0) != 5 or at.dims(0)[4] % depth:
        raise at.error(f"an input {list(at.dims(0))} does not fit weights {list(at.dims(1))}")
    strides = [at.positive(f"Stride{axis}") for axis in "DHW"]
    dilations = [at.positive(f"Dilation{axis}Factor", 1) for axis in "DHW"]
    return _convolved(at, weights, kernel, (strides, dilations), at.dims(0)[4] // depth)


@translates("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def pool(at: Site) -> ir.Value:
    """The mean, the largest or the root of the mean square of a window, without what is padded."""
    if at.rank(0) != 4:
        raise at.error(f"the image has shape {list(at.dims(0))}; expected four sizes")
    kernel = [at.positive("FilterHeight"), at.positive("FilterWidth")]
    strides, dilations = plane_steps(at)
    steps: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": strides,
        **window_pads(at, at.dims(0)[1:3], kernel, strides, dilations),
    }
    if at.operator.code == "MAX_POOL_2D" and at.same_levels([0]):
        found = at.levels(at.target())
        plain = at.integer("FusedActivationFunction", 0) == 0
        if found is not None and plain and at.dtype(at.target()).itemsize == 1:
            first = at.moved(at.value(0), (0, 3, 1, 2))
            return at.to_last(at.emit("MaxPool", first, **steps))
    x = at.channels_first(0)
    match at.operator.code:
        case "MAX_POOL_2D":
            value = at.emit("MaxPool", x, **steps)
        case "AVERAGE_POOL_2D":
            value = at.emit("AveragePool", x, **steps)
        case _:
            mean = at.emit("AveragePool", at.emit("Mul", x, x), **steps)
            value = at.emit("Sqrt", mean)
    return at.to_last(at.result(at.activated(value)))


@translates("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(at: Site) -> ir.Value:
    """An image of another size; a pixel's place is its corner or its middle."""
    if at.rank(0) != 4:
        raise at.error(f"the image has shape {list(at.dims(0))}; expected four sizes")
    linear = at.operator.code == "RESIZE_BILINEAR"
    corners, middle = at.flag("AlignCorners", False), at.flag("HalfPixelCenters", False)
    if corners and middle:
        raise at.error("both 'AlignCorners' and 'HalfPixelCenters' are set")
    place = "align_corners" if corners else "half_pixel" if middle else "asymmetric"
    rounding = "floor" if not (corners or middle) else "round_prefer_ceil"
    batch, *_, channels = at.dims(0)
    sizes = at.constant(1)
    if sizes is None or min(batch, channels) < 0:
        target, axes = at.indices(1), [2, 3]
    else:
        target, axes = at.const([batch, channels, *sizes.reshape(-1)], np.int64), None

    def write(values: list[ir.Value]) -> ir.Value:
        first = at.moved(values[0], (0, 3, 1, 2))
        attributes: dict[str, Any] = (
            {"mode": "linear"} if linear else {"mode": "nearest", "nearest_mode": rounding}
        )
        resized = at.emit(
            "Resize",
            first,
            None,
            None,
            target,
            axes=axes,
            coordinate_transformation_mode=place,
            **attributes,
        )
        return at.to_last(resized)

    return at.result(write([at.floats(0)])) if linear else at.carried(write)


@translates("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def depth_and_space(at: Site) -> ir.Value:
    """Channels as blocks of pixels, or the other way round; the channel is what moves slowest."""
    block = at.positive("BlockSize")

    def write(values: list[ir.Value]) -> ir.Value:
        first = at.moved(values[0], (0, 3, 1, 2))
        if at.operator.code == "DEPTH_TO_SPACE":
            return at.to_last(at.emit("DepthToSpace", first, blocksize=block, mode="DCR"))
        return at.to_last(at.emit("SpaceToDepth", first, blocksize=block))

    return at.carried(write)


@translates("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(at: Site) -> ir.Value:
    """Each channel by a power of the squares of those beside it; ONNX divides by their number."""
    size = 2 * at.integer("Radius") + 1
    value = at.emit(
        "LRN",
        at.channels_first(0),
        size=size,
        alpha=at.real("Alpha") * size,
        beta=at.real("Beta"),
        bias=at.real("Bias"),
    )
    return at.to_last(at.result(value))
