"""Operators that ONNX defines by others: the expansion computes what onnxruntime computes."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper, parser
from onnx.defs import get_schema, has

from partita.lowering import expand_functions, lower_proto, reference_fold
from partita.lowering.models import function_expansion

RNG = np.random.default_rng(5)


def accepts(node):
    """As a back-end that has nothing but what ONNX does not define by other operators."""
    if node.domain or not has(node.op_type):
        return False
    schema = get_schema(node.op_type, node.version)
    return not schema.has_function and not schema.has_context_dependent_function


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def evaluate(graph, feeds):
    known = {value: feeds[value.name] for value in graph.inputs}

    def array(value):
        return None if value is None else value.const if value.const is not None else known[value]

    for node in graph.nodes:
        results = reference_fold(node, [array(value) for value in node.inputs])
        known.update((v, r) for v, r in zip(node.outputs, results, strict=False) if v is not None)
    return [array(value) for value in graph.outputs]


def single(op_type, inputs, outputs=1, opset=18, **attrs):
    """A model of one node, and its lowered, expanded graph."""
    names = [f"i{n}" for n in range(len(inputs))]
    results = [f"o{n}" for n in range(outputs)]
    node = helper.make_node(op_type, names, results, name="the_node", **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, inputs, strict=True)
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    lowered = lower_proto(model)
    expand_functions(lowered, accepts)
    return model, lowered


CASES = [
    ("Celu", [floats(3, 4)], {"alpha": 0.7}),
    ("Celu", [floats(3, 4)], {}),
    ("Selu", [floats(3, 4)], {}),
    ("HardSwish", [floats(3, 4)], {}),
    ("Softsign", [floats(3, 4)], {}),
    ("ReduceLogSumExp", [floats(3, 4, 5), np.array([1])], {"keepdims": 0}),
    ("MeanVarianceNormalization", [floats(2, 3, 4, 5)], {}),
    ("LogSoftmax", [floats(3, 4)], {"axis": 0}),
    ("GreaterOrEqual", [floats(3, 4), floats(4)], {}),
    ("SoftmaxCrossEntropyLoss", [floats(5, 3), np.array([0, 2, 1, 1, 0])], {"reduction": "sum"}),
    ("SoftmaxCrossEntropyLoss", [floats(5, 3), np.array([0, 2, 1, 1, 0])], {}),
    ("LayerNormalization", [floats(2, 3, 8), floats(8), floats(8)], {"epsilon": 0.01}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attrs"), CASES)
def test_expansions_compute_what_the_operator_does(op_type, inputs, attrs):
    model, graph = single(op_type, inputs, **attrs)
    assert len(graph.nodes) > 1
    assert all(accepts(node) for node in graph.nodes)
    assert {node.origins for node in graph.nodes} == {("the_node",)}
    feeds = {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    found = evaluate(graph, feeds)
    assert [array.dtype for array in found] == [array.dtype for array in wanted]
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5, atol=1e-6)


def test_shapes_that_cannot_be_inferred_are_not_logged(caplog):
    _, graph = single("AffineGrid", [floats(2, 2, 3), np.array([2, 3, 4, 4])], opset=20)
    assert len(graph.nodes) > 1
    assert not caplog.records


def test_outputs_that_the_node_has_are_computed_and_no_others():
    inputs = [floats(2, 3, 8), floats(8)]
    _, one = single("LayerNormalization", inputs)
    model, three = single("LayerNormalization", inputs, outputs=3)
    assert len(one.nodes) < len(three.nodes)
    feeds = {"i0": inputs[0], "i1": inputs[1]}
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    for found, want in zip(evaluate(three, feeds), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_definitions_in_other_domains_are_of_operators_of_onnx():
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 26, "ai.onnx.preview" : 1]>
        g (float[2,3,4,8] q, float[2,3,5,8] k, float[2,3,5,8] v) => (float[2,3,4,8] y) {
            y = ai.onnx.preview.FlexAttention (q, k, v)
        }"""
    )
    graph = lower_proto(model)
    expand_functions(graph, accepts)
    assert all(accepts(node) for node in graph.nodes)
    q, k, v = floats(2, 3, 4, 8), floats(2, 3, 5, 8), floats(2, 3, 5, 8)
    weights = np.exp(q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(8))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    found = evaluate(graph, {"q": q, "k": k, "v": v})[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["Conv", "Unheard"])
def test_operators_without_a_definition_stay(op_type):
    _, graph = single(op_type, [floats(1, 1, 3, 3), floats(1, 1, 2, 2)])
    assert [node.op_type for node in graph.nodes] == [op_type]


def test_an_operator_whose_definition_needs_something_refused_stays():
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18]> g (float[N] x) => (float[N] y) { y = Celu(x) }'
    )
    graph = lower_proto(model)
    expand_functions(graph, lambda node: node.op_type not in ("Celu", "Elu", "Div"))
    assert [node.op_type for node in graph.nodes] == ["Celu"]
    assert graph.outputs[0].producer is graph.nodes[0]


def test_an_operator_whose_definition_needs_an_input_that_is_left_out_stays(monkeypatch):
    definition = parser.parse_function(
        """<opset_import: ["" : 18], domain: "" > Clip (x, low, high) => (y) {
            shape = Shape(x)
            all = Expand(high, shape)
            y = Min(x, all)
        }"""
    )
    monkeypatch.setattr(function_expansion, "definition_of", lambda node: definition)
    _, graph = single("Clip", [floats(3)])
    assert [node.op_type for node in graph.nodes] == ["Clip"]


def test_operators_inside_bodies_are_expanded():
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[3] x, bool c) => (float[3] y) {
            y = If (c) <
                then_branch = t () => (float[3] p) { p = HardSwish(x) },
                else_branch = e () => (float[3] q) { q = Neg(x) }
            >
        }"""
    )
    graph = lower_proto(model)
    expand_functions(graph, accepts)
    assert all(accepts(node) for node in graph.all_nodes())
    assert len(list(graph.all_nodes())) > 3


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-9)])
def test_numbers_far_from_zero_are_normalized_by_their_distances(dtype, tolerance):
    x = (RNG.standard_normal((2, 3, 4, 5)) + 300).astype(dtype)
    _, graph = single("MeanVarianceNormalization", [x], axes=[0, 2, 3])
    wide = x.astype(np.float64)
    axes = {"axis": (0, 2, 3), "keepdims": True}
    wanted = (wide - wide.mean(**axes)) / wide.std(**axes)
    (found,) = evaluate(graph, {"i0": x})
    assert found.dtype == dtype
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def test_halves_whose_squares_are_too_large_are_normalized():
    x = (RNG.standard_normal((2, 3, 4, 5)) * 1000).astype(np.float16)
    _, graph = single("MeanVarianceNormalization", [x])
    wide = x.astype(np.float64)
    axes = {"axis": (0, 2, 3), "keepdims": True}
    (found,) = evaluate(graph, {"i0": x})
    wanted = (wide - wide.mean(**axes)) / wide.std(**axes)
    np.testing.assert_allclose(found, wanted, rtol=2**-10, atol=1e-4)


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_zeros_are_quantized_by_scale_1(factor):
    x = floats(3, 5) * np.float32(factor)
    model, graph = single("DynamicQuantizeLinear", [x], outputs=3)
    wanted = ort.InferenceSession(model.SerializeToString()).run(None, {"i0": x})
    for array, due in zip(evaluate(graph, {"i0": x}), wanted, strict=True):
        np.testing.assert_array_equal(array, due)


@pytest.mark.parametrize(
    ("values", "mask", "expanded"),
    [
        (np.float32, np.float32, True),
        (np.float32, np.bool_, True),
        (np.float32, np.int8, False),
        (np.float32, np.uint64, False),
        (np.float16, np.bool_, False),
    ],
)
def test_attention_is_expanded_where_its_definition_holds_for_the_types(values, mask, expanded):
    q, k, v = floats(2, 2, 3, 4), floats(2, 2, 5, 4), floats(2, 2, 5, 4).astype(values)
    inputs = [q, k, v, np.ones((3, 5), mask)]
    _, graph = single("Attention", inputs, opset=23, is_causal=1)
    assert (len(graph.nodes) > 1) == expanded


@pytest.mark.parametrize(("kind", "expanded"), [(np.int64, True), (np.int32, False)])
def test_a_crop_of_sizes_of_another_type_stays(kind, expanded):
    _, graph = single("CenterCropPad", [floats(5, 7), np.array([3, 9], kind)])
    assert (len(graph.nodes) > 1) == expanded
