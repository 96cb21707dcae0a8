"""Random models of several operators: which there are, and that they are valid."""

from __future__ import annotations

import onnx
import pytest

from partita_conformance.draws.graphs.bodies import FAMILIES, drawn, turns
from partita_conformance.draws.graphs.onto import onto
from partita_conformance.draws.graphs.pairs import near, pairs_of, readers_of, rng_of, start
from partita_conformance.draws.graphs.patterns import PATTERNS
from partita_conformance.draws.graphs.variants import pattern


def paths(graph):
    return {value.path for value in graph.outputs}


def test_most_operators_stand_behind_one_of_elements():
    seconds = {path[1] for path in paths(pairs_of("Relu", 0)) if len(path) > 1}
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
    link, _ = start(graph, "DequantizeLinear")
    other = near(rng_of("near"), link)
    pairs = zip(link.draw.inputs[1:], other.draw.inputs[1:], strict=True)
    changed = sum((one != two).any() for one, two in pairs)
    assert changed + (link.draw.attributes != other.draw.attributes) == 1


@pytest.mark.parametrize("name", PATTERNS)
def test_each_choice_of_a_pattern_has_a_variant(name):
    sample, words = pattern(name)
    assert len(words) == len(sample.proto.graph.output)
    others = sum(len(choices) - 1 for choices in PATTERNS[name].slots.values())
    assert len(set(words)) > others
    assert words[0].endswith("as it is known")


@pytest.mark.parametrize("family", FAMILIES)
def test_bodies_are_valid_and_run_in_several_ways(family):
    sample = drawn(family, 0)
    onnx.shape_inference.infer_shapes(sample.proto, check_type=True)
    assert len(list(turns(sample))) == 4
    assert len(sample.proto.graph.output) == FAMILIES[family].count
