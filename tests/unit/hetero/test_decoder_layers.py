"""The layers of a decoder, in the forms that exporters write; and what runs of them read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from random_decoders import SIZES, Architecture, decoder

from partita import DecoderOptions
from partita.errors import PlanError
from partita.frontends.reader import read_model
from partita_hetero.cost.token_work import DecoderWork, WeightFormat
from partita_hetero.partition.decoder_layers import (
    cache_inputs,
    decoder_layers,
    model_context,
)
from partita_hetero.partition.op_graph import OpGraph
from tests.gguf_files import decoder_metadata, decoder_tensors, narrow_decoder_metadata, write_gguf

TINY = SIZES["tiny"]


def layers_of(model):
    """Layer to the names of its operations."""
    op_graph = OpGraph.of(model)
    names = op_graph.names()
    return {one.name: [names[op] for op in one.ops] for one in decoder_layers(model, op_graph)}


@pytest.mark.parametrize("weights", ["q4", "f16"])
def test_each_layer_holds_its_attention_and_what_follows(weights):
    layers = layers_of(decoder("tiny", weights))
    assert list(layers) == ["embedding", *(f"layer {i}" for i in range(4)), "head"]
    for number in range(4):
        inside = layers[f"layer {number}"]
        for part in ("q_proj", "v_proj", "o_proj"):
            assert sum(f"layers.{number}/attn/{part}" in name for name in inside) == 1
        for part in ("gate_proj", "down_proj"):
            assert sum(f"layers.{number}/mlp/{part}" in name for name in inside) == 1
    assert all("embed_tokens" in name for name in layers["embedding"])
    assert "/lm_head/" in layers["head"][-1]


def test_every_operation_is_in_one_layer():
    model = decoder("tiny", "q4")
    inside = [name for names in layers_of(model).values() for name in names]
    assert sorted(inside) == sorted(op.name for op in model.ops)


def test_experts_are_told_apart():
    model = decoder("tiny-mixture", "q4")
    op_graph = OpGraph.of(model)
    for one in decoder_layers(model, op_graph):
        types = [op_graph.nodes[op].op_type for op in one.experts]
        assert types == (["MoE"] if one.name.startswith("layer") else [])


def growing_decoder(depth=3, width=8, experts=0):
    """Optimum's form: keys and values grow by Concat, attention is made of products, a mask.

    With experts, a layer ends in a QMoE of so many, of which a token has two.
    """
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def weight(name, *shape):
        weights.append(numpy_helper.from_array(rng.random(shape, np.float32), name))
        return name

    def node(op_type, name, inputs, **attributes):
        nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    node("Gather", "embed", [weight("table", 32, width), "input_ids"])
    node("Cast", "mask_float", ["attention_mask"], to=TensorProto.FLOAT)
    node("Unsqueeze", "mask", ["mask_float", weight_axes(weights)])
    stream = "embed"
    ports = []
    for n in range(depth):
        q, k, v = (
            node("MatMul", f"{n}.{part}", [stream, weight(f"w{n}{part}", width, width)])
            for part in "qkv"
        )
        keys = node("Concat", f"present.{n}.key", [f"past_key_values.{n}.key", k], axis=1)
        values = node("Concat", f"present.{n}.value", [f"past_key_values.{n}.value", v], axis=1)
        turned = node("Transpose", f"{n}.turned", [keys], perm=[0, 2, 1])
        scores = node("MatMul", f"{n}.scores", [q, turned])
        masked = node("Add", f"{n}.masked", [scores, "mask"])
        attended = node("MatMul", f"{n}.attended", [node("Softmax", f"{n}.p", [masked]), values])
        added = node("Add", f"{n}.added", [stream, attended])
        fed = f"{n}.down"
        if experts:
            probs = node("MatMul", f"{n}.router", [added, weight(f"w{n}router", width, experts)])
            flat = node("Reshape", f"{n}.probs", [probs, weight_shape(weights, experts)])
            parts = [*few_bits(weights, n, "in", experts, width), ""]
            parts += few_bits(weights, n, "out", experts, width)
            given = {"k": 2, "expert_weight_bits": 4, "block_size": 16, "domain": "com.microsoft"}
            node("QMoE", fed, [added, flat, *parts], **given)
        else:
            node("MatMul", fed, [added, weight(f"w{n}down", width, width)])
        stream = node("Add", f"{n}.stream", [added, fed])
        ports += [f"{n}.key", f"{n}.value"]
    node("MatMul", "logits", [stream, weight("head", width, 32)])

    def info(name, dims, kind=TensorProto.FLOAT):
        return helper.make_tensor_value_info(name, kind, dims)

    graph = helper.make_graph(
        nodes,
        "growing",
        [
            info("input_ids", ["batch", "sequence"], TensorProto.INT64),
            info("attention_mask", ["batch", "total"], TensorProto.INT64),
            *(info(f"past_key_values.{port}", ["batch", "past", width]) for port in ports),
        ],
        [
            info("logits", ["batch", "sequence", 32]),
            *(info(f"present.{port}", ["batch", "total", width]) for port in ports),
        ],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def few_bits(weights, layer, name, experts, width):
    """Names of the numbers, and of the scales, of a square product of all experts."""
    names = f"w{layer}{name}", f"s{layer}{name}"
    shape = [experts, width, width // 2]
    weights.append(numpy_helper.from_array(np.zeros(shape, np.uint8), names[0]))
    shape = [experts, width, width // 16]
    weights.append(numpy_helper.from_array(np.ones(shape, np.float32), names[1]))
    return names


def weight_shape(weights, columns):
    name = f"rows of {columns}"
    if all(one.name != name for one in weights):
        weights.append(numpy_helper.from_array(np.array([-1, columns], np.int64), name))
    return name


def weight_axes(weights):
    weights.append(numpy_helper.from_array(np.array([1], np.int64), "axes"))
    return "axes"


def test_a_cache_that_grows_is_found_by_the_names_of_its_ports():
    model = read_model(growing_decoder())
    assert cache_inputs(model)["past_key_values.1.value"] == "present.1.value"
    layers = layers_of(model)
    assert list(layers) == ["embedding", "layer 0", "layer 1", "layer 2", "head"]
    assert set(layers["embedding"]) == {"embed", "mask_float", "mask"}  # masks are for all layers
    for number in range(2):
        parts = ("q", "k", "scores", "attended", "down", "stream")
        assert {f"{number}.{part}" for part in parts} <= set(layers[f"layer {number}"])
    assert {"2.q", "2.down"} <= set(layers["layer 2"])
    assert "logits" in layers["head"]


def test_a_model_without_a_cache_has_no_layers():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert layers_of(model) == {}
    assert model_context(model) == 0


def work_of(size, weights, context=64):
    model = decoder(size, weights)
    op_graph = OpGraph.of(model)
    return DecoderWork(model, op_graph, context), decoder_layers(model, op_graph)


@pytest.mark.parametrize(
    ("weights", "kind", "bits"),
    [("q4", WeightFormat(4, 32), 5), ("q8", WeightFormat(8, 32), 9), ("f16", WeightFormat(16), 16)],
)
def test_a_token_reads_all_weights_of_a_layer_and_its_cache(weights, kind, bits):
    work, layers = work_of("tiny", weights)
    layer = layers[2]
    done = work.work(layer.ops, 1, past=63)
    wide = TINY.heads * TINY.head_size
    narrow = TINY.kv_heads * TINY.head_size
    products = TINY.hidden * (2 * wide + 2 * narrow + 3 * TINY.intermediate)
    assert done.products == {kind: products}
    assert done.weight_bytes[kind] == products * bits / 8  # a float32 scale for 32 weights
    assert done.cache_bytes == 2 * narrow * 64 * 4
    norms = 2 * TINY.hidden * 4
    assert work.stored_bytes(layer.ops) == products * bits / 8 + norms
    assert work.cache_bytes(layer.caches) == 2 * narrow * 64 * 4


def test_half_of_all_weights_are_in_matrices_as_large_as_the_typical_one():
    work, layers = work_of("tiny", "q4")
    gated = TINY.hidden * TINY.intermediate  # three of them; the others have 10,240 elements
    assert work.matrix_side(layers[2].ops) == math.isqrt(gated)
    assert work.matrix_side([]) == 0


def test_a_prompt_reads_weights_once_and_multiplies_for_every_token():
    work, layers = work_of("tiny", "q4")
    one, many = (work.work(layers[1].ops, tokens, 0) for tokens in (1, 16))
    kind = WeightFormat(4, 32)
    assert many.weight_bytes[kind] == one.weight_bytes[kind]
    assert many.products[kind] == 16 * one.products[kind]


def test_the_embedding_reads_rows_and_the_head_works_on_the_last_position():
    work, layers = work_of("tiny", "q4")
    stored = work.stored_bytes(layers[0].ops)
    assert stored == TINY.vocabulary * TINY.hidden * 5 / 8
    assert work.work(layers[0].ops, 2, 0).bytes_read == stored * 2 / TINY.vocabulary
    head = work.work(layers[-1].ops, 16, 0)
    assert head.products[WeightFormat(4, 32)] == TINY.hidden * TINY.vocabulary


def test_of_a_mixture_two_experts_are_read_for_a_token():
    work, layers = work_of("tiny-mixture", "f32")
    done = work.work(layers[1].experts, 1, 0)
    stored = work.stored_bytes(layers[1].experts)
    assert stored == 4 * 2 * TINY.hidden * TINY.intermediate * 4
    assert done.bytes_read == stored / 2
    many = work.work(layers[1].experts, 1000, 0)
    assert many.bytes_read == pytest.approx(stored)


def test_tables_of_angles_are_counted_once_for_all_layers():
    work, _ = work_of("tiny", "q4", context=64)
    assert work.shared_bytes == 2 * 8192 * TINY.head_size // 2 * 4


def test_a_context_beyond_the_cache_of_the_model_is_refused():
    model = decoder("tiny", "q4", context=32)
    assert model_context(model) == 32
    with pytest.raises(PlanError, match=r"context of 33 tokens is asked for.*holds 32"):
        DecoderWork(model, OpGraph.of(model), 33)


def test_weights_are_not_made_for_planning():
    sizes = Architecture(2, 64, 160, 4, 2, 16, 1 << 40)  # a table that no machine could hold
    model = decoder(sizes, "q8")
    op_graph = OpGraph.of(model)
    work = DecoderWork(model, op_graph, 64)
    layers = decoder_layers(model, op_graph)
    assert work.stored_bytes(layers[0].ops) == (1 << 40) * 64 * 9 / 8


def test_experts_of_a_gguf_file_are_read_by_the_share_of_tokens_that_choose_them(tmp_path):
    metadata = narrow_decoder_metadata(expert_count=4, expert_used_count=1)
    path = tmp_path / "mixture.gguf"
    write_gguf(path, metadata, decoder_tensors(metadata, "Q8_0"))
    model = read_model(path, decoder=DecoderOptions(context=32))
    op_graph = OpGraph.of(model)
    work = DecoderWork(model, op_graph, 32)
    layers = decoder_layers(model, op_graph)
    assert [len(one.experts) > 4 for one in layers] == [False, *[True] * (len(layers) - 2), False]
    layer = layers[1]
    names = [op_graph.names()[op] for op in layer.experts]
    assert names[-5:] == [*(f"blk.0.experts.{n}" for n in range(4)), "blk.0.ffn_experts"]
    types = {op_graph.nodes[op].op_type for op in layer.experts[:-5]}
    choice = {"TopK", "Softmax", "ScatterElements", "ReduceMax", "Greater", "Split"}
    assert types == {*choice, "Shape", "ConstantOfShape"}
    hidden, wide = metadata["llama.embedding_length"], metadata["llama.feed_forward_length"]
    stored = 4 * 3 * hidden * wide * 9 / 8  # a float32 scale for 32 weights
    zeros = 4 * hidden  # what an expert adds that no token chose
    assert stored <= work.stored_bytes(layer.experts) <= stored + 5 * zeros
    done = work.work(layer.experts, 1, 0)
    kind = WeightFormat(8, 32)
    assert stored <= 4 * done.weight_bytes[kind] <= stored + 4 * zeros
    assert done.products == {kind: 3 * hidden * wide}
    assert done.ops == 1  # a device that has all of them makes one node of them
    assert work.work(layer.experts[:-2], 1, 0).ops == len(layer.experts) - 2


def test_a_mixture_of_few_bits_reads_the_experts_of_a_token():
    width, experts = 64, 8
    model = read_model(growing_decoder(2, width, experts).SerializeToString())
    op_graph = OpGraph.of(model)
    work = DecoderWork(model, op_graph, 32)
    for layer in decoder_layers(model, op_graph)[1:-1]:
        assert [op_graph.nodes[op].op_type for op in layer.experts] == ["QMoE"]
        done = work.work(layer.experts, 1, 0)
        kind = WeightFormat(4, 16)
        assert done.products == {kind: 2 * 2 * width * width}
        stored = 2 * experts * width * (width // 2 + width // 16 * 4)
        assert done.weight_bytes == {kind: stored * 2 / experts}


def test_layers_of_a_gguf_file_and_its_head_of_one_row(tmp_path):
    metadata = decoder_metadata()
    path = tmp_path / "tiny.gguf"
    write_gguf(path, metadata, decoder_tensors(metadata, "Q4_1"))
    model = read_model(path, decoder=DecoderOptions(context=32))
    assert model_context(model) == 32
    layers = layers_of(model)
    depth = metadata["llama.block_count"]
    assert list(layers) == ["embedding", *(f"layer {i}" for i in range(depth)), "head"]
    for number in range(depth):
        assert f"blk.{number}.attn_q" in layers[f"layer {number}"]
        assert f"blk.{number}.ffn_down" in layers[f"layer {number}"]
    op_graph = OpGraph.of(model)
    work = DecoderWork(model, op_graph, 32)
    head = decoder_layers(model, op_graph)[-1].ops
    assert work.work(head, 16, 0).products == work.work(head, 1, 0).products
