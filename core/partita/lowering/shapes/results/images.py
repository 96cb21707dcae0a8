"""Results of operators that give images another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.lowering.geometry.resampling import scaled
from partita.lowering.graph import Node
from partita.lowering.shapes.results.rule import ResultRules
from partita.lowering.shapes.symbolic_size import evaluated

IMAGE_RESULTS = ResultRules()


@IMAGE_RESULTS.shape("Resize", "Upsample")
def _resize(node: Node, operands: Any) -> Sequence[int] | None:
    shape = list(operands[0].shape)
    given = [None if operand is None else operand.const for operand in operands]
    scales = given[1] if node.op_type == "Upsample" or node.version < 11 else None
    sizes = None
    if scales is None and node.version >= 11:
        scales, sizes = [*given, None, None, None][2:4]
    if "axes" in node.attrs or node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if scales is not None and scales.size == len(shape):
        factors = scales.reshape(-1).tolist()
        return [evaluated(scaled, n, factor) for n, factor in zip(shape, factors, strict=True)]
    found: Sequence[int] | None = None if sizes is None else sizes.reshape(-1).tolist()
    if found is None or len(found) != len(shape) or any(n < 0 for n in found):
        return None
    return found


@IMAGE_RESULTS.shape("GridSample")
def _grid_sample(node: Node, operands: Any) -> Sequence[int]:
    return *operands[0].shape[:2], *operands[1].shape[1:-1]


@IMAGE_RESULTS.shape("RoiAlign")
def _roi_align(node: Node, operands: Any) -> Sequence[int]:
    height, width = (node.attrs.get(f"output_{side}", 1) for side in ("height", "width"))
    return operands[1].shape[0], operands[0].shape[1], height, width


@IMAGE_RESULTS.shape("DepthToSpace")
def _depth_to_space(node: Node, operands: Any) -> Sequence[int]:
    n, c, h, w = operands[0].shape
    size = node.attrs["blocksize"]
    return n, c // (size * size), h * size, w * size


@IMAGE_RESULTS.shape("SpaceToDepth")
def _space_to_depth(node: Node, operands: Any) -> Sequence[int]:
    n, c, h, w = operands[0].shape
    size = node.attrs["blocksize"]
    return n, c * size * size, h // size, w // size
