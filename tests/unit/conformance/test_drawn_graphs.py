"""Random models of several operators: which there are, and that they are valid."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from partita_conformance.draws.graphs.ahead import ahead
from partita_conformance.draws.graphs.around import around
from partita_conformance.draws.graphs.bodies import FAMILIES, drawn, turns
from partita_conformance.draws.graphs.onto import OPERATORS, onto
from partita_conformance.draws.graphs.pairs import near, pairs_of, readers_of, rng_of, start
from partita_conformance.draws.graphs.patterns.every import PATTERNS
from partita_conformance.draws.graphs.variants import pattern
from partita_conformance.draws.operators import model_of
from partita_conformance.draws.vary import schema_of
from partita_conformance.suites.numerics.suite_sweep import UNREAD


def paths(graph):
    return {value.path for value in graph.outputs}


def test_most_operators_stand_behind_one_of_elements():
    drawn = paths(pairs_of("Relu", 0)) | paths(pairs_of("Relu", 1))
    seconds = {path[1] for path in drawn if len(path) > 1}
    assert len(seconds) > 60
    assert {"Conv", "Softmax", "Split", "QuantizeLinear", "ScatterND"} <= seconds


def test_draws_are_the_same_each_time():
    one, other = (pairs_of("Pad", 0).model() for _ in range(2))
    assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


@pytest.mark.parametrize("op", ["MatMul", "Transpose", "Split", "DequantizeLinear"])
def test_models_are_valid_by_onnx(op):
    for make in (pairs_of, readers_of):
        onnx.shape_inference.infer_shapes(make(op, 0).model(), check_type=True, strict_mode=True)


def test_values_have_the_shapes_that_were_drawn():
    rng = rng_of("shapes")
    for op in ("Add", "Transpose", "ReduceSum", "Pad", "MatMul", "Clip"):
        link = next(link for _ in range(20) if (link := onto(op, rng, (2, 3, 4), "float32")))
        assert link.draw.inputs[link.place].shape == (2, 3, 4)
    assert onto("DepthToSpace", rng, (2, 3, 4), "float32") is None


def test_what_is_near_differs_in_one_thing():
    graph = pairs_of("Relu", 0)
    link, *_ = start(graph, "DequantizeLinear")
    other = near(rng_of("near"), link)
    pairs = zip(link.draw.inputs[1:], other.draw.inputs[1:], strict=True)
    changed = sum((one != two).any() for one, two in pairs)
    assert changed + (link.draw.attributes != other.draw.attributes) == 1


@pytest.mark.parametrize("name", PATTERNS)
def test_each_choice_of_a_pattern_has_a_variant(name):
    sample, words = pattern(name)
    assert len(words) == len(sample.proto.graph.output) == len(set(words))
    assert words[0].endswith("as it is known")
    for slot, choices in PATTERNS[name].slots.items():
        texts = [choice for choice in choices[1:] if isinstance(choice, str)]
        assert [text for text in texts if not any(f"{slot} {text}" in word for word in words)] == []


@pytest.mark.parametrize("op", ["Pad", "GatherND", "Attention", "Slice", "Einsum", "LSTM"])
def test_draws_stand_behind_others_and_ahead_of_others(op):
    graph = around(op, 0)
    onnx.shape_inference.infer_shapes(graph.model(), check_type=True, strict_mode=True)
    places = [path.index(op) for path in paths(graph) if op in path]
    assert sum(place > 0 for place in places) > len(places) / 2
    assert any(path[-1] != op for path in paths(graph))


def test_what_is_made_ahead_moves_elements_as_they_are():
    rng = rng_of("ahead")
    array = np.arange(24).reshape(2, 3, 4)
    made = set()
    for _ in range(60):
        found = ahead(rng, array)
        if found is not None:
            op, drawn = found
            feeds = {f"in{i}": array for i, array in enumerate(drawn.inputs) if array is not None}
            proto, _ = model_of(op, drawn)
            inputs = {name: feeds[name] for name in (v.name for v in proto.graph.input)}
            assert (ReferenceEvaluator(proto).run(None, inputs)[0] == array).all()
            made.add(op)
    assert len(made) > 6


def test_every_attribute_and_optional_input_stands_between_others():
    met = {op: {} for op in OPERATORS}
    for graph in (around(op, number) for op in OPERATORS for number in (0, 1)):
        for node in graph.nodes:
            note(met, node, graph.opset)
    told = {
        (op, name)
        for op, names in met.items()
        for name, values in names.items()
        if len(values) < 2 and name not in UNREAD.get(op, {}).keys() | UNREAD["*"].keys()
    } - {("QuantizeLinear", "saturate")}  # of floats of eight bits, which are not numbers here
    assert told == set()


def note(met, node, opset):
    """Remembers with which attributes and optional inputs an operator was met."""
    schema = schema_of(node.op_type, opset)
    if node.op_type not in met or schema is None:
        return
    found = met[node.op_type]
    given = {one.name: one.SerializeToString() for one in node.attribute}
    for name in schema.attributes:
        found.setdefault(name, set()).add(given.get(name, b""))
    for i in range(schema.min_input, min(schema.max_input, 9)):
        there = len(node.input) > i and node.input[i] != ""
        found.setdefault(f"input {schema.inputs[i].name}" if i < len(schema.inputs) else "more",
                         set()).add(there)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_bodies_are_valid_and_run_in_several_ways(family):
    sample = drawn(family, 0)
    onnx.shape_inference.infer_shapes(sample.proto, check_type=True)
    assert len(list(turns(sample))) == 4
    assert len(sample.proto.graph.output) == FAMILIES[family].count
