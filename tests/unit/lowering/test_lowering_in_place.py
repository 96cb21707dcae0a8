"""Which outputs of a graph can be written over an input."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from partita.frontends.reader import read_model
from partita.lowering import lower
from partita.lowering.kernel_table import KernelTable, in_place_outputs

TABLE = KernelTable("partita.lowering.fusion")


@TABLE.register("TensorScatter", "Add", in_place={0: 0})
def scatter(b, node, past, update, places):
    return past


def float_value(name, shape):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def pairs(nodes, outputs, present=(1, 8, 4), past=(1, 8, 4), x=(1, 1, 4)):
    """The pairs of a graph that puts rows into a cache."""
    shapes = {"present": present, "other": (1, 8, 4), "past": past}
    graph = helper.make_graph(
        [helper.make_node(op, reads, writes) for op, reads, writes in nodes],
        "cache",
        [
            float_value("x", x),
            float_value("past", past),
            helper.make_tensor_value_info("at", TensorProto.INT64, (1,)),
        ],
        [float_value(name, shapes[name]) for name in outputs],
    )
    proto = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
    model = read_model(proto.SerializeToString())
    return in_place_outputs(lower(model), model.inputs, model.outputs, TABLE.in_place)


PUT = ("TensorScatter", ["past", "x", "at"], ["present"])


def test_a_cache_is_written_over():
    relu = ("Relu", ["present"], ["other"])
    assert pairs([PUT], ["present"]) == {0: 1}
    assert pairs([PUT, relu], ["other", "present"]) == {1: 1}


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ([PUT, ("Relu", ["past"], ["other"])], ["present", "other"]),
        ([PUT], ["present", "past"]),
        ([PUT, ("Identity", ["present"], ["other"])], ["other"]),
        ([("Relu", ["past"], ["present"])], ["present"]),
        ([("Relu", ["past"], ["inner"]), ("TensorScatter", ["inner", "x", "at"], ["present"])],
         ["present"]),
    ],
)  # fmt: skip
def test_what_others_read_is_not(nodes, outputs):
    assert pairs(nodes, outputs) == {}


def test_shapes_must_not_differ():
    assert pairs([PUT], ["present"], past=("n", 8, 4), present=("n", 8, 4)) == {0: 1}
    add = ("Add", ["past", "x"], ["present"])
    assert pairs([add], ["present"]) == {0: 1}
    assert pairs([add], ["present"], past=(1, 1, 4), x=(1, 8, 4)) == {}
