"""Einsum by a constant is a MatMul where it is one, and stays Einsum where it is none."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita.lowering import lower_proto, reference_fold

RNG = np.random.default_rng(29)

PRODUCTS = [
    ("ibh,hnd->ibnd", (3, 2, 6), (6, 2, 5)),
    ("ibnd,hnd->ibh", (3, 2, 4, 5), (6, 4, 5)),
    ("ibdn,hnd->ibh", (3, 2, 5, 4), (6, 4, 5)),
    ("ab,bc->ac", (3, 4), (4, 5)),
    ("ab,cb->ac", (3, 4), (5, 4)),
    ("ab,cb", (3, 4), (5, 4)),
    ("...d,df->...f", (2, 3, 4), (4, 5)),
    ("...nd,hnd->...h", (2, 3, 4, 5), (7, 4, 5)),
    ("abc,cde->abed", (2, 3, 4), (4, 5, 6)),
    ("ab,bcd->acd", (3, 4), (4, 2, 5)),
    ("ab,bcd->acd", (0, 4), (4, 2, 5)),
]

OTHERS = [
    ("ab,b->ab", (3, 4), (4,)),  # nothing is summed
    ("ab,b->a", (3, 4), (4,)),  # no columns
    ("b,bc->c", (4,), (4, 5)),  # no rows
    ("ba,bc->ac", (4, 3), (4, 5)),  # summed over what comes first
    ("ab,bc->ca", (3, 4), (4, 5)),  # columns come first
    ("ab,bc->c", (3, 4), (4, 5)),  # rows are summed, too
    ("abc,bcd->abd", (3, 2, 4), (2, 4, 5)),  # a product for each b
    ("ab,bb->ab", (3, 4), (4, 4)),  # a diagonal
    ("ab,bcd->ac", (3, 4), (4, 5, 6)),  # the constant is summed by itself
    ("ab,bc->ac", (3, 1), (4, 5)),  # a size of 1, which broadcasts
    ("ab,bcd->acd", (3, 0), (0, 2, 5)),  # no weights: nothing is packed
    ("abc,bcd->ad", (3, 2, 0), (2, 0, 5)),
    ("ab,bcd->acd", (3, 4), (4, 2, 0)),
]


def einsum(equation, x, w, *, first, symbols):
    """A model that multiplies by a constant, which comes first or last."""
    names = ["w", "x"] if first else ["x", "w"]
    if first:
        terms, arrow, result = equation.partition("->")
        equation = ",".join(reversed(terms.split(","))) + arrow + result
    node = helper.make_node("Einsum", names, ["y"], name="linear", equation=equation)
    shape = list(x.shape)
    if symbols:
        shape[0] = "n"
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    end = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [port], [end], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def floats(*shape):
    return RNG.standard_normal(shape, np.float32)


def computed(graph, x):
    values = {graph.inputs[0]: x}
    for node in graph.nodes:
        arrays = [
            value.const if value.const is not None else values[value] for value in node.inputs
        ]
        (values[node.outputs[0]],) = reference_fold(node, arrays)
    return values[graph.outputs[0]]


@pytest.mark.parametrize(("first", "symbols"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize(("equation", "of_x", "of_w"), PRODUCTS)
def test_products(equation, of_x, of_w, first, symbols):
    x, w = floats(*of_x), floats(*of_w)
    graph = lower_proto(einsum(equation, x, w, first=first, symbols=symbols))
    kinds = [node.kind for node in graph.nodes]
    assert kinds.count("MatMul") == 1
    assert set(kinds) <= {"MatMul", "Reshape"}
    assert {node.origins for node in graph.nodes} == {("linear",)}
    (product,) = (node for node in graph.nodes if node.kind == "MatMul")
    assert (product.name, product.model_kind) == ("linear", "Einsum")
    due = np.einsum(equation, x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_allclose(computed(graph, x), due, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("equation", "of_x", "of_w"), OTHERS)
def test_what_is_no_product_stays(equation, of_x, of_w, first):
    proto = einsum(equation, floats(*of_x), floats(*of_w), first=first, symbols=False)
    assert [node.kind for node in lower_proto(proto).nodes] == ["Einsum"]


def test_weights_are_not_copied_where_they_lie_as_a_matrix():
    w = floats(40, 8, 16)
    for equation, shape in (("ibh,hnd->ibnd", (3, 2, 40)), ("ibnd,hnd->ibh", (3, 2, 8, 16))):
        proto = einsum(equation, floats(*shape), w, first=False, symbols=False)
        (product,) = (node for node in lower_proto(proto).nodes if node.kind == "MatMul")
        assert not product.inputs[1].const.flags.owndata
