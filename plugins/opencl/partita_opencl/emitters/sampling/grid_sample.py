"""GridSample: images and volumes read at normalized coordinates."""

from __future__ import annotations

import math

from partita.contract.query import Reason
from partita.errors import OperandError
from partita.lowering import Node, Operand
from partita.lowering.kernel_table import refused_choice
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.launches.emitter_kit import Kit, i32, i64, ints, is_half

_TAPS = {"linear": 2, "bilinear": 2, "nearest": 1, "cubic": 4, "bicubic": 4}
"""Elements along each axis that a result is made of; the first mode is the default one."""

_PADDINGS = ("zeros", "border", "reflection")


def _known_modes(node: Node) -> Reason | None:
    return refused_choice(node, "mode", *_TAPS) or refused_choice(node, "padding_mode", *_PADDINGS)


@operator("GridSample", types=FLOATS, check=_known_modes, since=16, folds=False)
def grid_sample(k: Kit, node: Node, x: Operand, grid: Operand) -> Operand:
    """Images or volumes read at normalized coordinates."""
    attrs, rank = node.attrs, x.ndim - 2
    taps = _TAPS[attrs.get("mode", "linear")]
    if rank not in (2, 3) or grid.shape[-1] != rank or (rank == 3 and taps == 4):
        raise OperandError(
            f"Operation '{node.name}' (GridSample) cannot sample an input of shape "
            f"{list(x.shape)} at a grid of shape {list(grid.shape)} in mode '{attrs.get('mode')}'."
        )
    y = k.empty((*x.shape[:2], *grid.shape[1:-1]), x.dtype)
    points = math.prod(grid.shape[1:-1])
    flags = {
        attrs.get("padding_mode", "zeros").upper(): True,
        "ALIGNED": bool(attrs.get("align_corners", 0)),
        "X_HALF": is_half(x.dtype),
        "GRID_HALF": is_half(grid.dtype),
    }
    sizes = [*reversed(x.shape[2:]), *(1,) * (4 - rank)]
    k.launch(
        "grid_sample.cl",
        "grid_sample",
        k.tuning.grid(points, x.shape[1], x.shape[0]),
        x,
        grid,
        y,
        i64(points),
        i32(x.shape[1]),
        i32(x.shape[0]),
        ints(*sizes),
        RANK=rank,
        TAPS=taps,
        **{name: None for name, on in flags.items() if on},
    )
    return y
