"""Initializers that are made when somebody reads them."""

import numpy as np
import onnx_ir as ir

import partita
from partita.lowering import lower


def lazy_model(shape):
    """A product whose weights count how often they are made."""
    made = []

    def make():
        made.append(1)
        return ir.Tensor(np.full(shape, 3, np.float32))

    weights = ir.Value(name="w", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
    weights.const_value = ir.LazyTensor(make, ir.DataType.FLOAT, ir.Shape(shape), name="w")
    given = ir.Value(name="x", shape=ir.Shape((2, shape[0])), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("MatMul", [given, weights], name="product")
    node.outputs[0].name = "y"
    node.outputs[0].shape = ir.Shape((2, shape[1]))
    node.outputs[0].dtype = ir.DataType.FLOAT
    graph = ir.Graph(
        [given],
        node.outputs,
        nodes=[node],
        initializers=[weights],
        opset_imports={"": 18},
        name="lazy",
    )
    return partita.Model(ir.Model(graph, ir_version=10)), made


def test_a_query_makes_no_large_weights():
    model, made = lazy_model((600, 700))
    (node,) = lower(model, for_query=True).nodes
    weights = node.inputs[1].const
    assert (weights.shape, weights.dtype, made) == ((600, 700), np.float32, [])


def test_core_queries_devices_without_making_weights():
    model, made = lazy_model((600, 700))
    taken = partita.Core().query_model(model, "HETERO:CPU,OPENCL")
    assert taken["product"] == "CPU"
    assert made == []


def test_what_is_compiled_holds_the_weights_as_they_are():
    model, made = lazy_model((600, 700))
    (node,) = lower(model).nodes
    assert len(made) == 1
    np.testing.assert_array_equal(node.inputs[1].const, np.full((600, 700), 3, np.float32))


def test_small_weights_are_seen_by_a_query():
    model, _ = lazy_model((6, 7))
    (node,) = lower(model, for_query=True).nodes
    np.testing.assert_array_equal(node.inputs[1].const, np.full((6, 7), 3, np.float32))
