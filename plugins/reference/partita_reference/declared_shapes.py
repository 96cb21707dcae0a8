"""Declared shapes of a model, passed on to operations, to which the evaluator hands only arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import onnx

from partita.shapes.cache_length import may_grow
from partita_reference.decoder import CACHE_STAYS, MICROSOFT


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and the bodies of its operations at any depth."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the attributes of an operation."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def tell_declared_shapes(graph: onnx.GraphProto) -> None:
    """Writes into operations of a graph what they need of the declared shapes of their values.

    The body of a Loop, where it leaves open how many dimensions a row of an output has, receives
    them from the output, since there may be no iteration that tells. A GroupQueryAttention receives
    the attribute `CACHE_STAYS`. Operations in bodies are left as they are.
    """
    shapes = {
        info.name: info.type.tensor_type.shape
        for info in (*graph.input, *graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
    }
    for node in graph.node:
        if (node.domain, node.op_type) == (MICROSOFT, "GroupQueryAttention"):
            past, present = list(node.input[3:5]), list(node.output[1:3])
            pairs = itertools.zip_longest(past, present, fillvalue="")
            if not may_grow(*((_places(shapes.get(a)), _places(shapes.get(b))) for a, b in pairs)):
                node.attribute.append(onnx.helper.make_attribute(CACHE_STAYS, 1))
        elif (node.domain, node.op_type) == ("", "Loop"):
            carried = max(len(node.input) - 2, 0)
            for body in bodies(node):
                rows = body.output[1 + carried :]
                for row, stacked in zip(rows, node.output[carried:], strict=False):
                    if stacked in shapes and not row.type.tensor_type.HasField("shape"):
                        row.type.tensor_type.shape.dim.extend(shapes[stacked].dim[1:])


def _places(shape: onnx.TensorShapeProto | None) -> int | str | None:
    """How many places a model says that a cache (batch, heads, places, size) has."""
    if shape is None or len(shape.dim) != 4:
        return None
    length = shape.dim[2]
    return length.dim_value if length.HasField("dim_value") else length.dim_param or None
