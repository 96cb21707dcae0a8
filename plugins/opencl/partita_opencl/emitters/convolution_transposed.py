"""Transposed convolutions: each output gathers the inputs that reach it."""

from __future__ import annotations

import math

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Node, Operand
from partita.lowering.geometry.windows import resolve_transposed
from partita_opencl.emitters.convolution import check_size
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
    check_size(node, x)
    window = resolve_transposed(node, x.shape[2:], w.shape[2:])
    filters = w.shape[1] * groups
    out = k.empty((x.shape[0], filters, *window.size[3 - window.rank :]), x.dtype)
    if not out.size:
        return out
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
