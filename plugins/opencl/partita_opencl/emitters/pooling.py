"""Pools over windows and over whole images."""

from __future__ import annotations

import math

from partita.errors import CompileError
from partita.lowering import Node, Operand
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.emitters.reduction import REDUCTIONS, reduce_middle
from partita_opencl.emitters.windows import int4, spatial_dims, window_of
from partita_opencl.launches.emitter_kit import Kit, i32, i64

_MOST_PIXELS = (1 << 31) - 1
"""Kernels count the pixels of an image in 32 bits."""


@operator("MaxPool", "AveragePool", types=FLOATS, check=spatial_dims(), folds=False)
def pool(k: Kit, node: Node, x: Operand) -> Operand:
    """The maximum or mean of each window."""
    window = window_of(node, x.shape[2:], node.attrs["kernel_shape"])
    y = k.empty((*x.shape[:2], *window.out[: x.ndim - 2][::-1]), x.dtype)
    if not y.size:
        return y
    if math.prod(window.out) > _MOST_PIXELS:
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}) makes images of {math.prod(window.out)} "
            f"pixels; device OPENCL takes {_MOST_PIXELS}."
        )
    planes = x.shape[0] * x.shape[1]
    options: dict[str, None] = {"AVERAGE": None} if node.op_type == "AveragePool" else {}
    k.launch(
        "pool.cl",
        "pool",
        k.tuning.grid(math.prod(window.out), planes),
        x,
        y,
        i64(planes),
        int4(window.image),
        int4(window.out),
        int4(window.size),
        int4(window.stride),
        int4(window.begin),
        int4(window.dilation),
        i32(int(node.attrs.get("count_include_pad", 0) != 0)),
        int4(window.end),
        **options,
    )
    return y


@operator("GlobalAveragePool", "GlobalMaxPool", types=FLOATS)
def global_pool(k: Kit, node: Node, x: Operand) -> Operand:
    """The mean or maximum of each channel of each image."""
    planes = x.shape[0] * x.shape[1]
    name = "ReduceMean" if node.op_type == "GlobalAveragePool" else "ReduceMax"
    rows = k.view(x, (planes, x.size // max(1, planes), 1))
    y = reduce_middle(k, REDUCTIONS[name], rows, x.dtype)
    return k.view(y, (*x.shape[:2], *(1,) * (x.ndim - 2)))
