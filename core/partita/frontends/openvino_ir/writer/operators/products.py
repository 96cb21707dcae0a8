"""Operators that multiply and sum: matrix products, convolutions, Einsum."""

from __future__ import annotations

from typing import Any

from partita.frontends.openvino_ir.writer.document import Output
from partita.frontends.openvino_ir.writer.writing_context import Site, writes


@writes("MatMul")
def matmul(at: Site) -> Output:
    """A matrix product."""
    return at.emit("MatMul", at.read(0), at.read(1), transpose_a=False, transpose_b=False)


@writes("Gemm")
def gemm(at: Site) -> Output:
    """A matrix product of either side transposed, scaled, and something added."""
    sides: dict[str, Any] = {
        "transpose_a": bool(at.integer("transA")),
        "transpose_b": bool(at.integer("transB")),
    }
    found = at.emit("MatMul", at.read(0), at.read(1), **sides)
    if (alpha := at.real("alpha", 1.0)) != 1:
        found = at.emit("Multiply", found, at.like(alpha, found), auto_broadcast="numpy")
    if not at.has(2):
        return found
    added = at.read(2)
    if (beta := at.real("beta", 1.0)) != 1:
        added = at.binary("Multiply", added, at.like(beta, added))
    return at.emit("Add", found, added, auto_broadcast="numpy")


@writes("Conv")
def conv(at: Site) -> Output:
    """A convolution; groups stand as an axis of their own in front of the weights."""
    group, weights = at.integer("group", 1), at.read(1)
    if group > 1:
        weights = _grouped(at, weights, group)
    kind = "GroupConvolution" if group > 1 else "Convolution"
    return _with_bias(at, at.emit(kind, at.read(0), weights, **_windows(at)))


@writes("ConvTranspose")
def conv_transpose(at: Site) -> Output:
    """A transposed convolution."""
    group, weights = at.integer("group", 1), at.read(1)
    attributes = _windows(at)
    extra = at.ints("output_padding") or [0] * len(attributes["strides"])
    auto = at.text("auto_pad", "NOTSET")
    if at.ints("output_shape") or auto.startswith("SAME"):
        attributes |= _shared_pads(at, attributes, extra, upper=auto == "SAME_UPPER")
    if group > 1:
        weights = _grouped(at, weights, group)
    kind = "GroupConvolutionBackpropData" if group > 1 else "ConvolutionBackpropData"
    return _with_bias(at, at.emit(kind, at.read(0), weights, output_padding=extra, **attributes))


def _shared_pads(
    at: Site, attributes: dict[str, Any], extra: list[int], upper: bool
) -> dict[str, Any]:
    """Pads by which the output has the size that is asked for, shared out as ONNX does it."""
    sides = (at.read(0).dims or ())[2:]
    kernel = (at.read(1).dims or ())[2:]
    strides = attributes["strides"]
    if min((*sides, *kernel), default=-1) < 0:
        raise at.error("auto_pad or output_shape of an input whose size is not known")
    wanted = at.ints("output_shape")[-len(sides) :]
    wanted = wanted or [side * step for side, step in zip(sides, strides, strict=True)]
    totals = [
        step * (side - 1) + more + (taps - 1) * spread + 1 - size
        for step, side, more, taps, spread, size in zip(
            strides, sides, extra, kernel, attributes["dilations"], wanted, strict=True
        )
    ]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    begin, end = (less, more) if upper else (more, less)
    return {"auto_pad": "explicit", "pads_begin": begin, "pads_end": end}


def _grouped(at: Site, weights: Output, group: int) -> Output:
    dims = weights.dims
    if dims is None or min(dims) < 0:
        raise at.error("the dimensions of the weights are not known")
    shape = [group, dims[0] // group, *dims[1:]]
    if weights.constant is not None:
        return at.const(weights.constant.reshape(shape))
    return at.reshape(weights, shape)


def _windows(at: Site) -> dict[str, Any]:
    count = at.rank(1) - 2
    auto = at.text("auto_pad", "NOTSET")
    pads = at.ints("pads") or [0] * (2 * count)
    return {
        "strides": at.ints("strides") or [1] * count,
        "dilations": at.ints("dilations") or [1] * count,
        "pads_begin": pads[:count],
        "pads_end": pads[count:],
        "auto_pad": "explicit" if auto == "NOTSET" else auto.lower(),
    }


def _with_bias(at: Site, found: Output) -> Output:
    if not at.has(2):
        return found
    bias = at.channels(at.read(2), at.rank(0))
    return at.emit("Add", found, bias, auto_broadcast="numpy")


@writes("DeformConv")
def deformable(at: Site) -> Output:
    """A convolution whose taps are moved by offsets."""
    inputs = [at.read(0), at.read(2), at.read(1)]
    if at.has(4):
        inputs.append(at.read(4))
    if at.has(3):
        raise at.error("a bias")
    groups: dict[str, Any] = {
        "group": at.integer("group", 1),
        "deformable_group": at.integer("offset_group", 1),
    }
    return at.emit(
        "DeformableConvolution", *inputs, version="opset8",
        bilinear_interpolation_pad=True, **groups, **_windows(at),
    )  # fmt: skip


@writes("Einsum")
def einsum(at: Site) -> Output:
    """Einstein's sum."""
    given = (at.read(index) for index in range(len(at.inputs)))
    return at.emit(
        "Einsum", *given, version="opset7", equation=at.text("equation").replace(" ", "")
    )
