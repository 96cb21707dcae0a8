"""Draws inside a branch of If, which read values of the surrounding graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from partita_conformance.draws.draw import Array, Draw
from partita_conformance.draws.operators import model_of


def inside(
    op_type: str, drawn: Sequence[Draw], expected: Sequence[Sequence[Array]]
) -> tuple[onnx.ModelProto, dict[str, Array], list[tuple[Draw, int, Array]]]:
    """A model of draws of one opset, all in the branch that is taken; the other gives zeros.

    A body imports no opset: its operators are of that of the model.

    Args:
        op_type: The operator.
        drawn: The draws.
        expected: The right outputs of each.

    Returns:
        The model, its inputs, and for each of its outputs the draw, the place there, and what is
        right.
    """
    ports: list[onnx.ValueInfoProto] = [helper.make_tensor_value_info("taken", 9, [])]
    feeds: dict[str, Array] = {"taken": np.array(True)}
    weights, nodes, zeros, results, due = [], [], [], [], []
    for number, (one, right) in enumerate(zip(drawn, expected, strict=True)):
        proto, given = model_of(op_type, one)
        graph = proto.graph
        names = {
            name: f"d{number}_{name}" for name in (*graph.node[0].input, *graph.node[0].output)
        }
        names[""] = ""
        for value in (*graph.input, *graph.initializer):
            value.name = names[value.name]
        ports += graph.input
        weights += graph.initializer
        feeds |= {names[name]: array for name, array in given.items()}
        node = graph.node[0]
        node.name = f"{node.name}_{number}"
        node.input[:] = [names[name] for name in node.input]
        node.output[:] = [names[name] for name in node.output]
        nodes.append(node)
        for place, (name, array) in enumerate(zip(node.output, right, strict=True)):
            due.append((one, place, array))
            element = helper.np_dtype_to_tensor_dtype(array.dtype)
            results.append(helper.make_tensor_value_info(name, element, array.shape))
            nothing = np.full(array.shape, "", object) if array.dtype == object else array * 0
            zeros.append(
                helper.make_node(
                    "Constant",
                    [],
                    [f"zero_{name}"],
                    name=f"zero_{name}",
                    value=numpy_helper.from_array(np.asarray(nothing, array.dtype)),
                )
            )
    others = [_renamed(value, f"zero_{value.name}") for value in results]
    outputs = [_renamed(value, f"of_{value.name}") for value in results]
    choice = helper.make_node(
        "If",
        ["taken"],
        [value.name for value in outputs],
        name="choice",
        then_branch=helper.make_graph(nodes, "drawn", [], results),
        else_branch=helper.make_graph(zeros, "zeros", [], others),
    )
    model = helper.make_graph([choice], f"inside_{op_type}", ports, outputs, weights)
    imports = [helper.make_opsetid("", drawn[0].opset)]
    version = max(8, helper.find_min_ir_version_for(imports, ignore_unknown=True))
    return helper.make_model(model, opset_imports=imports, ir_version=version), feeds, due


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    found = onnx.ValueInfoProto()
    found.CopyFrom(value)
    found.name = name
    return found
