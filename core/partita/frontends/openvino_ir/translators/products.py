"""Layers that multiply and sum: matrix products, convolutions, attention, Einsum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from partita.frontends.openvino_ir.translator import Site, translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("MatMul")
def matmul(at: Site) -> ir.Value:
    """A matrix product, either side transposed."""
    sides = [
        _transposed(at, index, flag) for index, flag in enumerate(("transpose_a", "transpose_b"))
    ]
    return at.emit("MatMul", *sides)


def _transposed(at: Site, index: int, flag: str) -> ir.Value:
    """An input with its last two axes exchanged, if the flag says so."""
    value, rank = at.inputs[index], at.rank(index)
    if not at.flag(flag) or rank < 2:
        return value
    return at.emit("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


@translates("Convolution", "GroupConvolution")
def convolution(at: Site) -> ir.Value:
    """A convolution; groups stand as an axis of their own in front of the weights."""
    weights, group = _grouped(at)
    return at.emit("Conv", at.inputs[0], weights, group=group, **_windows(at))


@translates("ConvolutionBackpropData", "GroupConvolutionBackpropData")
def transposed_convolution(at: Site) -> ir.Value:
    """A transposed convolution; the optional third input is the output's spatial size."""
    weights, group = _grouped(at)
    attributes = _windows(at)
    if any(extra := at.ints("output_padding")):
        attributes["output_padding"] = extra
    if at.has(2):
        attributes |= _filling(at, attributes["auto_pad"], at.axes(2))
    elif attributes["auto_pad"] is not None:  # nothing tells what to keep: all of it
        attributes["auto_pad"] = None
    return at.emit("ConvTranspose", at.inputs[0], weights, group=group, **attributes)


def _filling(at: Site, auto_pad: str | None, shape: list[int]) -> dict[str, Any]:
    """Attributes that give an output shape; the odd element is cut off where ONNX keeps it."""
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        other = "SAME_LOWER" if auto_pad == "SAME_UPPER" else "SAME_UPPER"
        return {"auto_pad": other, "output_shape": shape}
    count = len(shape)
    sizes, kernel = at.dims(0)[2:], at.dims(1)[-count:]
    if min(*sizes, *kernel) < 0:
        raise at.error("an output shape with explicit pads is not read where sizes are unknown")
    nothing = [0] * count
    begin = (at.ints("pads_begin") if auto_pad is None else []) or nothing
    more = at.ints("output_padding") or nothing
    ends = []
    given = (at.ints("strides"), at.ints("dilations"), more, begin, shape)
    for size, width, stride, dilation, extra, before, wanted in zip(
        sizes, kernel, *given, strict=True
    ):
        ends.append((size - 1) * stride + (width - 1) * dilation + 1 + extra - before - wanted)
    return {  # all that is cut off, or filled with zeros, is at the end
        "auto_pad": None,
        "pads": [*begin, *(max(end, 0) for end in ends)],
        "output_padding": [extra + max(-end, 0) for extra, end in zip(more, ends, strict=True)],
    }


def _grouped(at: Site) -> tuple[ir.Value, int]:
    """The weights without the axis of groups, and the number of groups."""
    weights, dims = at.inputs[1], at.dims(1)
    if not at.layer.type.startswith("Group"):
        return weights, 1
    if min(dims) < 0:
        raise at.error(f"weights of unknown shape {list(dims)}")
    shape = [dims[0] * dims[1], *dims[2:]]
    array = at.constant(1)
    if array is not None:
        return at.const(array.reshape(shape)), dims[0]
    return at.emit("Reshape", weights, at.const(shape, np.int64)), dims[0]


def _windows(at: Site) -> dict[str, Any]:
    return at.steps() | {"dilations": at.ints("dilations") or None}


@translates("DeformableConvolution")
def deformable_convolution(at: Site) -> ir.Value:
    """A convolution whose taps are moved by offsets."""
    x, offsets, weights = at.inputs[:3]
    mask = at.inputs[3] if at.has(3) else None
    attributes = _windows(at)
    if attributes.pop("auto_pad") is not None:
        raise at.error("only explicit pads are read")
    if not at.flag("bilinear_interpolation_pad"):
        raise at.error("bilinear_interpolation_pad 'false' is not read: ONNX blends with zeros")
    group, offset_group = at.integer("group", 1), at.integer("deformable_group", 1)
    return at.emit(
        "DeformConv", x, weights, offsets, None, mask,
        group=group, offset_group=offset_group, **attributes,
    )  # fmt: skip


@translates("Col2Im")
def columns_to_image(at: Site) -> ir.Value:
    """Sums of blocks at their places in an image."""
    attributes = _windows(at)
    attributes.pop("auto_pad")
    return at.emit("Col2Im", at.inputs[0], at.indices(1), at.indices(2), **attributes)


@translates("Einsum")
def einsum(at: Site) -> ir.Value:
    """Einstein's sum."""
    return at.emit("Einsum", *at.inputs, equation=at.layer.data.get("equation", ""))


@translates("ScaledDotProductAttention")
def attention(at: Site) -> ir.Value:
    """softmax(Q K^T * scale + mask) V over the last two axes."""
    query, key, value = at.inputs[:3]
    rank = at.rank(1)
    swapped = at.emit("Transpose", key, perm=[*range(rank - 2), rank - 1, rank - 2])
    if at.has(4):
        scaled = at.emit("Mul", query, at.inputs[4])
    else:
        width = at.emit("CastLike", at.emit("Squeeze", at.size(query, -1)), query)
        scaled = at.emit("Div", query, at.emit("Sqrt", width))
    scores = at.emit("MatMul", scaled, swapped)
    if at.flag("causal"):
        shape = at.emit("Concat", at.size(query, -2), at.size(key, -2), axis=0)
        ones = at.emit("Expand", at.const(True), shape)
        below = at.emit("Cast", at.emit("Trilu", at.emit("CastLike", ones, query), upper=0), to=9)
        scores = at.emit("Where", below, scores, at.like(-np.inf))
    elif at.has(3) and at.precision(3) == "BOOL":
        scores = at.emit("Where", at.inputs[3], scores, at.like(-np.inf))
    elif at.has(3):
        scores = at.emit("Add", scores, at.inputs[3])
    return at.emit("MatMul", at.emit("Softmax", scores, axis=-1), value)
