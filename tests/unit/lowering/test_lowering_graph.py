"""Lowering keeps what the ONNX graph says and drops what nothing reads."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

import partita
from partita.lowering import Graph, lower, lower_proto


def parse(text, **opsets):
    return parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)


def test_values_know_types_producers_and_constants():
    graph = lower_proto(
        parse(
            """g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {1, 2, 3}> {
                a = Add(x, w)
                y = Relu(a)
            }"""
        )
    )
    add, relu = graph.nodes
    x, w = add.inputs
    assert (x.name, x.dtype, x.shape, x.producer) == ("x", np.float32, ("N", 3), None)
    assert w.const.tolist() == [1, 2, 3]
    assert relu.inputs[0] is add.outputs[0]
    assert add.outputs[0].producer is add
    assert graph.inputs == [x]
    assert graph.outputs == [relu.outputs[0]]
    assert (add.version, add.domain) == (18, "")


def test_constant_nodes_of_every_form_become_constants():
    forms = {
        "value": numpy_helper.from_array(np.array([1.5, 2.5])),
        "value_float": 1.5,
        "value_ints": [1, 2],
        "value_string": "a",
    }
    nodes = [helper.make_node("Constant", [], [key], **{key: v}) for key, v in forms.items()]
    outputs = [
        helper.make_tensor_value_info(key, kind, None)
        for key, kind in zip(
            forms,
            (TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING),
            strict=True,
        )
    ]
    graph = lower_proto(helper.make_model(helper.make_graph(nodes, "g", [], outputs)))
    assert graph.nodes == []
    consts = [value.const for value in graph.outputs]
    assert [c.dtype.kind for c in consts] == ["f", "f", "i", "O"]
    assert [c.tolist() for c in consts] == [[1.5, 2.5], 1.5, [1, 2], "a"]


def test_no_texts_at_all_are_an_array_of_texts():
    model = parse("g () => (string[0] y) { y = Identity(w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.array([], object), "w"))
    (identity,) = lower_proto(model).nodes
    assert (identity.inputs[0].const.dtype, identity.inputs[0].const.shape) == (object, (0,))


def test_outputs_and_nodes_that_nobody_reads_are_dropped():
    graph = lower_proto(
        parse(
            """g (float[4, 6] x) => (float[4, 2] p) {
                p, q = Split <axis = 1, num_outputs = 2> (x)
                unused = Relu(q)
            }"""
        )
    )
    (split,) = graph.nodes
    assert [value and value.name for value in split.outputs] == ["p", None]


def test_absent_optional_inputs_are_none():
    graph = lower_proto(parse("g (float[3] x, float h) => (float[3] y) { y = Clip(x, , h) }"))
    assert [value and value.name for value in graph.nodes[0].inputs] == ["x", None, "h"]


def test_bodies_see_the_values_around_them_and_name_them_as_captures():
    graph = lower_proto(
        parse(
            """g (bool c, float[2] x, float[2] z) => (float[2] y) <float[2] w = {1, 2}> {
                y = If (c) <
                    then_branch = t () => (float[2] u) { v = Add(x, w)  u = Mul(v, z) },
                    else_branch = e () => (float[2] x2) { x2 = Identity(x) }
                >
            }"""
        )
    )
    (node,) = graph.nodes
    then, other = node.attrs["then_branch"], node.attrs["else_branch"]
    assert [value.name for value in then.captures()] == ["x", "z"]
    assert [value.name for value in other.captures()] == ["x"]
    assert {value.name for value in node.reads()} == {"c", "x", "z"}
    assert [n.origins for n in graph.all_nodes()] == [(node.name,)] * 4


def test_local_functions_are_inlined():
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        g (float[3] x) => (float[3] y) { y = own.twice(x) }
        <domain: "own", opset_import: ["" : 18]>
        twice (a) => (b) { b = Add(a, a) }"""
    )
    assert [node.op_type for node in lower_proto(model).nodes] == ["Add"]


def test_a_model_lowers_with_its_friendly_names():
    text = "g (float[3] x) => (float[3] y) { a = Relu(x)  y = Relu(a) }"
    model = partita.Core().read_model(parse(text))
    assert [node.name for node in lower(model).nodes] == [op.name for op in model.ops]


def test_nodes_that_are_dropped_stay_as_they_are_for_other_graphs():
    """A graph is rewritten for some sizes, and its nodes serve for other sizes again."""
    graph = lower_proto(
        parse(
            """g (float[N, 4] x) => (float[N, 2] y, float[N, 4] z) {
                a, y = Split <axis = 1, num_outputs = 2> (x)
                b = Neg(a)
                z = Concat <axis = 1> (b, y)
            }"""
        )
    )
    split, neg, concat = graph.nodes
    names = [value.name for value in split.outputs]
    lesser = Graph(graph.inputs, graph.outputs[:1], [split, neg, concat])
    lesser.prune()
    (left,) = lesser.nodes
    assert left is not split and left.outputs == [None, split.outputs[1]]
    assert [value.name for value in split.outputs] == names
    assert (neg.result.name, concat.result.name) == ("b", "z")
