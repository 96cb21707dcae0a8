"""Transposed convolutions: each output gathers the inputs that reach it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from partita.errors import CompileError
from partita.lowering import Node, Operand
from partita.query import Reason, ReasonCode
from partita_opencl.emitters.convolution import check_size
from partita_opencl.emitters.products import Epilogue, activation_of
from partita_opencl.emitters.windows import int4, spatial_dims
from partita_opencl.kit import Kit, i32
from partita_opencl.table import operator

_TRANSPOSE_CHANNELS = 4
"""Outputs per item of a transposed convolution."""


def _transpose_check(node: Node) -> Reason | None:
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"auto_pad {node.attrs['auto_pad']!r}")
    return spatial_dims(2)(node)


@operator("ConvTranspose", check=_transpose_check)
@operator("ConvTranspose", domain="partita", check=_transpose_check)
def conv_transpose(
    k: Kit,
    node: Node,
    x: Operand,
    w: Operand,
    bias: Operand | None = None,
    residual: Operand | None = None,
) -> Operand:
    """Transposed convolution of one or two dimensions, with bias, residual and activation."""
    groups = int(node.attrs.get("group", 1))
    if x.ndim != w.ndim or x.shape[1] != w.shape[0] or x.shape[1] % groups:
        raise CompileError(
            f"Operation '{node.name}' ({node.kind}) cannot convolve an input of shape "
            f"{list(x.shape)} with weights of shape {list(w.shape)} in {groups} groups."
        )
    check_size(node, x)
    rank = x.ndim - 2
    stride = node.attrs.get("strides") or [1] * rank
    dilation = node.attrs.get("dilations") or [1] * rank
    size = w.shape[2:]
    begin, sizes = _transposed_sizes(node, x.shape[2:], size, stride, dilation)
    filters = w.shape[1] * groups
    out = k.empty((x.shape[0], filters, *sizes), x.dtype)
    if not out.size:
        return out
    epilogue = Epilogue(bias, (1, 0), 1, residual, activation_of(node))
    blocks = x.shape[0] * groups * math.ceil(w.shape[1] / _TRANSPOSE_CHANNELS)
    k.launch(
        "conv_transpose.cl",
        "conv_transpose",
        k.tuning.grid(math.prod(sizes), blocks),
        x,
        w,
        *epilogue.buffers(x),
        out,
        int4(_xy(x.shape[2:]), x.shape[1]),
        int4(_xy(sizes), filters),
        int4(_xy(size), groups),
        int4(_xy(stride)),
        int4(_xy(begin, 0)),
        int4(_xy(dilation)),
        i32(x.shape[0]),
        *epilogue.flags(),
        CHANNELS=_TRANSPOSE_CHANNELS,
        **epilogue.options(),
    )
    return out


def _xy(values: Sequence[int], fill: int = 1) -> tuple[int, int, int]:
    """One or two values in ONNX's order as x, y and an unused one."""
    return values[-1], values[0] if len(values) > 1 else fill, fill


def _transposed_sizes(
    node: Node,
    image: Sequence[int],
    size: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Leading pads and output sizes, as the operator's specification derives them."""
    rank = len(image)
    attrs = node.attrs
    extra = attrs.get("output_padding") or [0] * rank
    pads = attrs.get("pads") or [0] * (2 * rank)
    wanted = attrs.get("output_shape")
    auto = attrs.get("auto_pad", "NOTSET")
    full = [
        stride[i] * (image[i] - 1) + extra[i] + (size[i] - 1) * dilation[i] + 1 for i in range(rank)
    ]
    if wanted is None and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [image[i] * stride[i] for i in range(rank)]
    if wanted is None:
        begin, end = ([0] * rank, [0] * rank) if auto == "VALID" else (pads[:rank], pads[rank:])
        return list(begin), [full[i] - begin[i] - end[i] for i in range(rank)]
    sizes = list(wanted[-rank:])
    begin = []
    for i in range(rank):
        total = max(0, full[i] - sizes[i])
        begin.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return begin, sizes
