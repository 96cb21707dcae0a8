"""Ports with channels last: graphs whose callers pass and get images in that layout."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from partita.lowering.graph import Graph, Node, Value
from partita.lowering.nhwc.conversion import DOMAIN

PORT = "port"
"""Attribute of the conversions at ports: the index of the input or output."""


def with_ports_last(
    graph: Graph, inputs: Collection[int], outputs: Collection[int], dtype: np.dtype[Any]
) -> Graph:
    """A copy of a graph in which some inputs and outputs are images with channels last.

    It converts them behind the inputs and before the outputs, so that it is right as it is;
    :class:`~partita.lowering.ChannelsLast` takes away the conversions that nobody needs.

    Args:
        graph: The graph; not changed.
        inputs: Indices of inputs, all of four dimensions.
        outputs: Indices of outputs, all of four dimensions and computed.
        dtype: Element type of images with channels last in memory.
    """
    new = graph.copy()
    before, after = [], []
    for index in inputs:
        plain = new.inputs[index]
        new.inputs[index] = Value(plain.name, dtype, _last(plain))
        before.append(_conversion("ToChannelsFirst", new.inputs[index], plain, index))
    for index in outputs:
        plain = new.outputs[index]
        new.outputs[index] = Value(plain.name, dtype, _last(plain))
        after.append(_conversion("ToChannelsLast", plain, new.outputs[index], index))
    new.nodes = [*before, *new.nodes, *after]
    return new


def converted_ports(graph: Graph) -> tuple[set[int], set[int]]:
    """Inputs and outputs at which a walked graph still converts."""
    inputs, outputs = set(), set()
    positions = {value: index for index, value in enumerate(graph.inputs)}
    for node in graph.nodes:
        if node.domain == DOMAIN and node.op_type == "ToChannelsFirst":
            source = node.inputs[0]
            if source is not None and source in positions:
                inputs.add(positions[source])
        elif node.domain == DOMAIN and PORT in node.attrs:
            outputs.add(node.attrs[PORT])
    return inputs, outputs


def _last(value: Value) -> tuple[int | str | None, ...] | None:
    if value.shape is None:
        return None
    n, c, h, w = value.shape
    return n, h, w, c


def _conversion(op_type: str, source: Value, target: Value, port: int) -> Node:
    shape = target.shape if op_type == "ToChannelsFirst" else source.shape
    attrs: dict[str, Any] = {PORT: port}
    if shape is not None and isinstance(shape[1], int):
        attrs["channels"] = shape[1]
    name = f"permute {source.name}"
    return Node(op_type, [source], [target], attrs, domain=DOMAIN, name=name, origins=())
