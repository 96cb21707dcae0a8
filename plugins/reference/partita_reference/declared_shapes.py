"""What a model declares of shapes, told to operations, which the evaluator hands arrays alone."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


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
    them from the output, since there may be no iteration that tells. Operations in bodies are left
    as they are.
    """
    shapes = {
        info.name: info.type.tensor_type.shape
        for info in (*graph.input, *graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
    }
    for node in graph.node:
        if (node.domain, node.op_type) == ("", "Loop"):
            carried = max(len(node.input) - 2, 0)
            for body in bodies(node):
                rows = body.output[1 + carried :]
                for row, stacked in zip(rows, node.output[carried:], strict=False):
                    if stacked in shapes and not row.type.tensor_type.HasField("shape"):
                        row.type.tensor_type.shape.dim.extend(shapes[stacked].dim[1:])
