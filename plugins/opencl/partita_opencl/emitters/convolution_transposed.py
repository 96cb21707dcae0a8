"""Transposed convolutions: each output gathers the inputs that reach it."""

from __future__ import annotations

import math

from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita.lowering import Node, Operand
from partita.lowering.geometry.windows import Window, resolve_transposed
from partita_opencl.emitters.convolution import LARGEST_IMAGE, as_result
from partita_opencl.emitters.gemm.products import Epilogue, activation_of
from partita_opencl.emitters.operator_table import operator
from partita_opencl.emitters.windows import int4, spatial_dims
from partita_opencl.launches.emitter_kit import Kit, i32

_TRANSPOSE_CHANNELS = 4
"""Outputs per item of a transposed convolution."""


def _transpose_check(node: Node) -> Reason | None:
    if node.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, f"auto_pad {node.attrs['auto_pad']!r}")
    return spatial_dims(2)(node)


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
    """Transposed convolution of one or two dimensions, with bias, residual and activation."""
    groups = int(node.attrs.get("group", 1))
    window = resolve_transposed(node, x.shape[2:], w.shape[2:])
    _check_size(node, x, window)
    filters = w.shape[1] * groups
    out = k.empty((x.shape[0], filters, *window.size[3 - window.rank :]), x.dtype)
    if not out.size:
        return out
    residual = None if residual is None else as_result(k, node, residual, out)
    epilogue = Epilogue(bias, (1, 0), 1, residual, activation_of(node))
    blocks = x.shape[0] * groups * math.ceil(w.shape[1] / _TRANSPOSE_CHANNELS)
    k.launch(
        "conv_transpose.cl",
        "conv_transpose",
        k.tuning.grid(math.prod(window.size), blocks),
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
