"""Decoders of GGUF files whose experts are branches: one node of device CPU, against float64."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gguf_files import decoder_tensors, gguf_bytes, latent_metadata
from gguf_files import narrow_decoder_metadata as narrow
from llm_reference import ReferenceDecoder

from partita import Core, DecoderOptions
from partita.lowering import fuse, lower
from partita_cpu.query import takes

KINDS = ["Q4_0", "Q4_1", "Q8_0", "MXFP4", "F32", "F16", "BF16"]


def decoder(kind, architecture="qwen3moe", **changes):
    """A model, and what judges it."""
    made = latent_metadata if architecture == "deepseek2" else partial(narrow, architecture)
    metadata = made(**{"expert_count": 5, "expert_used_count": 2} | changes)
    tensors = decoder_tensors(metadata, kind)
    options = DecoderOptions(all_logits=True)
    model = Core().read_model(gguf_bytes(metadata, tensors), decoder=options)
    model.reshape({port.name: [1, *port.shape[1:]] for port in model.inputs if port.shape})
    judge = ReferenceDecoder(metadata, {name: one.numbers() for name, one in tensors.items()})
    return model, judge


@pytest.mark.parametrize("kind", KINDS)
def test_experts_become_one_node(kind):
    graph = lower(decoder(kind)[0])
    fuse(graph, accepts=takes)
    kinds = [node.kind for node in graph.nodes]
    assert kinds.count("partita::Mixture") == 2
    assert not {"If", "Split", "ReduceMax", "ScatterElements", "ConstantOfShape"} & {*kinds}


@pytest.mark.parametrize("kind", ["MXFP4", "Q4_1", "Q8_0"])
def test_experts_with_biases_and_bounded_gates_become_one_node(kind):
    graph = lower(decoder(kind, "gpt-oss")[0])
    fuse(graph, accepts=takes)
    found = [node for node in graph.nodes if node.kind == "partita::Mixture"]
    assert [node.attrs["swiglu"] for node in found] == [pytest.approx((1.702, 1.0, 7.0))] * 2
    assert not {"If", "Split", "ReduceMax", "ScatterElements"} & {node.kind for node in graph.nodes}


@pytest.mark.parametrize("name", ["swiglu_most", "swiglu_least"])
def test_gates_that_are_bounded_otherwise_stay_as_they_are(name):
    model, _ = decoder("Q4_0", "gpt-oss")
    model.ir.graph.initializers[name].const_value.numpy()[...] = 3
    graph = lower(model)
    fuse(graph, accepts=takes)
    assert "partita::Mixture" not in {node.kind for node in graph.nodes}


@pytest.mark.parametrize(
    "changes", [{}, {"expert_group_count": 4, "expert_group_used_count": 2}], ids=str
)
def test_experts_chosen_by_more_than_their_scores_become_one_node(changes):
    changes = {"expert_count": 8} | changes
    model, judge = decoder("Q8_0", "deepseek2", **changes)
    graph = lower(model)
    fuse(graph, accepts=takes)
    kinds = [node.kind for node in graph.nodes]
    assert kinds.count("partita::Mixture") == 1 and "If" not in kinds
    check(model, judge, 5e-4)


def test_experts_of_which_others_are_read_stay_as_they_are():
    model, _ = decoder("Q4_0")
    graph = lower(model)
    graph.outputs += [node.outputs[0] for node in graph.nodes if node.kind == "If"][:1]
    fuse(graph, accepts=takes)
    assert [node.kind for node in graph.nodes].count("partita::Mixture") == 1


def test_a_choice_that_is_read_too_is_computed():
    graph = lower(decoder("Q4_0")[0])
    shares = next(node for node in graph.nodes if node.kind == "ScatterElements").outputs[0]
    graph.outputs.append(shares)
    fuse(graph, accepts=takes)
    kinds = [node.kind for node in graph.nodes]
    assert kinds.count("partita::Mixture") == 2 and kinds.count("ScatterElements") == 1


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("ScatterElements", "reduction", "add"),
        ("ScatterElements", "axis", 1),
        ("TopK", "axis", 1),
        ("Split", "axis", 1),
    ],
)
def test_other_choices_stay_as_they_are(kind, name, value):
    graph = lower(decoder("Q4_0")[0])
    for node in graph.nodes:
        if node.kind == kind:
            node.attrs[name] = value
    fuse(graph, accepts=takes)
    assert "partita::Mixture" not in {node.kind for node in graph.nodes}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["llama", "qwen2moe", "qwen3moe", "gpt-oss", "deepseek2"])
def test_a_prompt_in_parts_and_tokens_behind_it(kind, architecture):
    model, judge = decoder(kind, architecture)
    check(model, judge, 5e-4 if kind[0] in "QM" else 1e-5)


def check(model, judge, error):
    """Logits of a prompt in parts, and of tokens behind it, up to a share of the largest."""
    request = Core().compile_model(model, "CPU").create_infer_request()
    length = 0
    for tokens in ([7, 3, 90], [3, 41], [5], [5], [*range(60, 75)], [9]):
        length += len(tokens)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "seqlens_k": np.array([length - 1], np.int32),
            "total_sequence_length": np.array(length, np.int32),
        }
        logits, expected = np.asarray(request.infer(feeds)["logits"])[0], judge.run(tokens)
        most = error * np.abs(expected).max()
        np.testing.assert_allclose(logits, expected, rtol=0, atol=most)


def test_a_single_expert():
    model, judge = decoder("Q4_0", expert_count=1, expert_used_count=1)
    request = Core().compile_model(model, "CPU").create_infer_request()
    feeds = {
        "input_ids": np.array([[7, 3, 90]], np.int64),
        "seqlens_k": np.array([2], np.int32),
        "total_sequence_length": np.array(3, np.int32),
    }
    logits, expected = np.asarray(request.infer(feeds)["logits"])[0], judge.run([7, 3, 90])
    np.testing.assert_allclose(logits, expected, rtol=0, atol=5e-4 * np.abs(expected).max())
