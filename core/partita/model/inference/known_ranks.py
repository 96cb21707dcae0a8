"""Ranks that follow from the number of an operator's axes, whatever these are.

Onnx's inference says nothing of operators whose axes are computed. What a file claims of such
values would be believed, even that there are two dimensions where another one was added to two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

MOST_RANK = 64
"""Dimensions of a tensor: numpy has no more."""


def tell_ranks(graph: onnx.GraphProto, inferred: onnx.GraphProto) -> bool:
    """Adds types of known rank and unknown sizes for values of which inference found no shape.

    Args:
        graph: What inference starts from; gets the types.
        inferred: What it found.

    Returns:
        Whether there were any, so that inference may find more behind them.
    """
    dims: dict[str, Sequence[int]] = {one.name: one.dims for one in inferred.initializer}
    types = {}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        types[info.name] = tensor = info.type.tensor_type
        if tensor.HasField("shape"):
            dims[info.name] = [dim.dim_value or -1 for dim in tensor.shape.dim]
    outputs = {info.name: info for info in graph.output}
    added = False
    for node in inferred.node:
        name = node.output[0] if node.output else ""
        if node.domain not in ("", "ai.onnx") or name in dims or name not in types:
            continue
        rank = _rank(node, dims)
        if rank is None or not types[name].elem_type:
            continue
        info = outputs.get(name) or graph.value_info.add(name=name)
        info.type.tensor_type.elem_type = types[name].elem_type
        info.type.tensor_type.shape.SetInParent()
        for _ in range(rank):
            info.type.tensor_type.shape.dim.add()
        added = True
    return added


def _rank(node: onnx.NodeProto, dims: Mapping[str, Sequence[int]]) -> int | None:
    """How many dimensions the first output has, by those of the inputs."""
    if len(node.input) < 2:
        return None
    x, row = (dims.get(name) for name in node.input[:2])
    length = row[0] if row is not None and len(row) == 1 and 0 <= row[0] <= MOST_RANK else None
    match node.op_type:
        case "Unsqueeze" if x is not None and length is not None:
            return len(x) + length
        case op_type if op_type.startswith("Reduce") and x is not None:
            keeps = {one.name: one.i for one in node.attribute}.get("keepdims", 1)
            return len(x) if keeps else None
    return None
