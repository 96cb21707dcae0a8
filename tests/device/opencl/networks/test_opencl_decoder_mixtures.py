"""Decoders of GGUF files with experts on device OPENCL, alone and beside another device."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from gguf_files import decoder_tensors, gguf_bytes, narrow_decoder_metadata
from llm_reference import ReferenceDecoder

from partita import Core, DecoderOptions
from partita.lowering import fuse, lower
from partita.lowering.fusion.mixture import compute_both_branches
from partita_opencl.query import takes

PARTS = [7, 3, 90], [41], [*range(60, 75)], [9]
"""Tokens of runs one behind the other."""


def decoder(kind, architecture="qwen3moe"):
    """A model, and what judges it."""
    metadata = narrow_decoder_metadata(architecture, expert_count=5, expert_used_count=2)
    tensors = decoder_tensors(metadata, kind)
    options = DecoderOptions(all_logits=True)
    model = Core().read_model(gguf_bytes(metadata, tensors), decoder=options)
    model.reshape({port.name: [1, *port.shape[1:]] for port in model.inputs if port.shape})
    judge = ReferenceDecoder(metadata, {name: one.numbers() for name, one in tensors.items()})
    return model, judge


def error(compiled, judge):
    """The largest, in parts of the largest logit."""
    request, length, found = compiled.create_infer_request(), 0, []
    for tokens in PARTS:
        length += len(tokens)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "seqlens_k": np.array([length - 1], np.int32),
            "total_sequence_length": np.array(length, np.int32),
        }
        logits, due = np.asarray(request.infer(feeds)["logits"])[0], judge.run(tokens)
        found.append(np.abs(logits - due).max() / np.abs(due).max())
    return max(found)


def kinds_of(model):
    graph = lower(model)
    fuse(graph, accepts=takes)
    compute_both_branches(graph)
    return [node.kind for node in graph.nodes]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F32", "F16", "BF16"])
def test_experts_become_one_node(kind):
    kinds = kinds_of(decoder(kind)[0])
    assert kinds.count("partita::Mixture") == 2
    assert not {"If", "Split", "Where", "ScatterElements", "ConstantOfShape"} & {*kinds}


@pytest.mark.parametrize(
    ("kind", "architecture", "tiling"),
    [("Q4_1", "qwen2moe", "LOCAL"), ("Q8_0", "qwen3moe", "REGISTERS"), ("F16", "llama", "LOCAL")],
)
def test_a_prompt_in_parts_and_tokens_behind_it(kind, architecture, tiling):
    model, judge = decoder(kind, architecture)
    assert not Core().query_model(model, "OPENCL").reasons
    # A weight with a minimum is scale * number - offset: two sums that cancel, twice the roundings.
    bound = 4e-6 if kind == "Q4_1" else 2e-6
    assert error(Core().compile_model(model, "OPENCL", {"TILING": tiling}), judge) < bound


@pytest.mark.parametrize("kind", ["Q4_0", "BF16"])
def test_a_decoder_in_halves(kind):
    model, judge = decoder(kind)
    config = {"INFERENCE_PRECISION_HINT": "f16"}
    assert error(Core().compile_model(model, "OPENCL", config), judge) < 4e-3


def test_experts_of_which_some_are_elsewhere():
    """Those that are left are no mixture, and no If either."""
    model, judge = decoder("Q4_0")
    experts = [op.name for op in model.ops if op.op_type == "If"]
    pins = [f"{name}=CPU" for name in experts[1:3]]
    compiled = Core().compile_model(model, "HETERO:OPENCL,CPU", {"HETERO_PINS": pins})
    assert error(compiled, judge) < 2e-4


def test_experts_apart_from_what_chose_them():
    """Neither their shares nor whether they were chosen is computed where they are."""
    model, judge = decoder("Q4_0", "qwen2moe")
    config = {"HETERO_PINS": ["type:Split=CPU"]}
    compiled = Core().compile_model(model, "HETERO:OPENCL,CPU", config)
    homes = {op.name: compiled.explain()[op.name].device for op in model.ops}
    assert {homes[op.name] for op in model.ops if op.op_type == "Split"} == {"CPU"}
    assert all(homes[op.name] != "CPU" for op in model.ops if op.op_type == "If")
    assert error(compiled, judge) < 2e-4


def test_a_mixture_that_a_limit_of_memory_cuts():
    model, judge = decoder("Q4_0", "qwen2moe")
    config = {"HETERO_MEMORY_LIMITS": {"CPU": "100KiB"}}
    compiled = Core().compile_model(model, "HETERO:CPU,OPENCL", config)
    homes = {compiled.explain()[op.name].device for op in model.ops if op.op_type == "If"}
    assert len(homes) == 2
    assert error(compiled, judge) < 2e-4


@pytest.mark.parametrize(("first", "other"), [("OPENCL", "CPU"), ("CPU", "OPENCL")])
def test_experts_beside_the_device_of_all_else(first, other):
    """Pinned by their name, with their choice and sum: one node there, and one cut around it."""
    model, judge = decoder("Q4_0", "qwen2moe")
    config = {"HETERO_PINS": [f"re:experts={other}"]}
    compiled = Core().compile_model(model, f"HETERO:{first},{other}", config)
    explained = compiled.explain()
    assert [device.partition(".")[0] for device in explained.subgraph_devices] == [
        *(first, other, first, other, first)
    ]
    kinds = {op.op_type for op in model.ops if explained[op.name].device.startswith(other)}
    assert {"TopK", "ScatterElements", "Split", "If", "Sum"} <= kinds
    assert not {"MatMul", "MatMulNBits", "Add", "GroupQueryAttention"} & kinds
    assert error(compiled, judge) < 2e-4


def test_an_expert_whose_branch_is_refused_is_refused():
    model, _ = decoder("Q4_0")
    name = next(op.name for op in model.ops if op.op_type == "If")
    node = next(node for node in model.ir.graph if node.name == name)
    for one in node.attributes["then_branch"].value:
        if one.op_type == "MatMulNBits":
            one.attributes["weight_prepacked"] = ir.AttrInt64("weight_prepacked", 1)
    reason = Core().query_model(model, "OPENCL").reasons[name]
    assert "its body holds" in reason.detail and "weight_prepacked" in reason.detail
