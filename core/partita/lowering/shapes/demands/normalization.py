"""Demands of normalizations: scales and biases of channels."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.shapes.demands.demand import (
    Demand,
    Shapes,
    first_of,
    holds,
    pair_of,
)

NORMALIZATION_DEMANDS: dict[str, Demand] = {}
"""By operator."""

_demand = functools.partial(entered_in, NORMALIZATION_DEMANDS)


@_demand("BatchNormalization")
def _batch_normalization(node: Node, shapes: Shapes) -> Iterable[str]:
    x = first_of(shapes)
    for name, shape in zip(("scale", "B", "mean", "var"), shapes[1:], strict=False):
        yield from holds(name, shape, x[1] if len(x) > 1 else 1)


@_demand(
    "LayerNormalization",
    "partita::LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "com.microsoft::SimplifiedLayerNormalization",
)
def _row_normalization(node: Node, shapes: Shapes) -> Iterable[str]:
    x = first_of(shapes)
    for name, shape in zip(("scale", "bias"), shapes[1:3], strict=True):
        if shape is not None:
            pairs = zip(shape[::-1], x[::-1], strict=False)
            if len(shape) > len(x) or any(own not in (1, full) for own, full in pairs):
                yield f"{name} does not broadcast to the first input"


@_demand("InstanceNormalization", "GroupNormalization", "partita::ChannelNormalization")
def _plane_normalization(node: Node, shapes: Shapes) -> Iterable[str]:
    size = first_of(shapes)[1]
    if node.op_type == "GroupNormalization":
        groups = node.attrs["num_groups"]
        if groups < 1 or size % groups:
            yield f"{size} channels do not fall into {groups} groups; num_groups must divide them"
        size = groups if node.version < 21 else size
    yield from holds("scale", shapes[1], size)
    yield from holds("bias", shapes[2], size)


@_demand("com.microsoft::EmbedLayerNormalization")
def _embed_layer_normalization(node: Node, shapes: Shapes) -> Iterable[str]:
    _, words = pair_of(shapes, 2)
    yield from holds("gamma", shapes[5], words[1])
    yield from holds("beta", shapes[6], words[1])
