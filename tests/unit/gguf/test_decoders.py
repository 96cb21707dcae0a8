"""Decoders of GGUF files, computed by onnxruntime, against float64."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from gguf_files import (
    decoder_metadata,
    decoder_tensors,
    gguf_bytes,
    latent_metadata,
    narrow_decoder_metadata,
    stored,
)
from llm_reference import ReferenceDecoder

from partita import Core, DecoderOptions


class OnnxDecoder:
    """A model that was read, as onnxruntime runs it, with caches handed on from run to run."""

    def __init__(self, data, **options):
        self.model = Core().read_model(data, decoder=DecoderOptions(**options))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        content = ir.to_proto(for_onnxruntime(self.model.ir.clone()))
        self.session = onnxruntime.InferenceSession(content.SerializeToString(), settings)
        self.reset()

    def reset(self):
        self.length = 0
        self.caches = {
            port.name: np.zeros((1, *port.shape[1:]), port.dtype)
            for port in (self.model.input(variable.read) for variable in self.model.variables)
        }

    def run(self, tokens):
        """Logits [positions, vocabulary]."""
        self.length += len(tokens)
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "seqlens_k": np.array([self.length - 1], np.int32),
            "total_sequence_length": np.array(self.length, np.int32),
        }
        logits, *caches = self.session.run(None, feeds | self.caches)
        self.caches = dict(zip(self.caches, caches, strict=True))
        return logits[0]

    def greedy(self, tokens, count):
        self.reset()
        logits, found = self.run(tokens)[-1], []
        for _ in range(count):
            found.append(int(logits.argmax()))
            logits = self.run(found[-1:])[-1]
        return found


def for_onnxruntime(model):
    """The model with plain products for those that onnxruntime has no kernel for on processors.

    These are products of eight bits with zero points between whole numbers.
    """
    for node in list(model.graph):
        sizes = {name: found.value for name, found in node.attributes.items()}
        if node.op_type != "MatMulNBits" or sizes["bits"] != 8 or node.inputs[3:4] in ((), (None,)):
            continue
        quants, scales, zero_points = (v.const_value.numpy() for v in node.inputs[1:4])
        weight = scales[..., None] * (quants.astype(np.float32) - zero_points[..., None])
        held = ir.tensor(weight.reshape(sizes["N"], sizes["K"]).T.copy(), name=f"{node.name}.plain")
        held = ir.Value(name=held.name, const_value=held)
        model.graph.register_initializer(held)
        product = ir.node("MatMul", [node.inputs[0], held])
        ir.convenience.replace_nodes_and_values(
            model.graph, node, [node], [product], node.outputs, product.outputs
        )
    return model


def both(metadata, tensors, **options):
    """The decoder under test, and the judge."""
    weights = {name: tensor.numbers() for name, tensor in tensors.items()}
    return (
        OnnxDecoder(gguf_bytes(metadata, tensors), **options),
        ReferenceDecoder(metadata, weights, context=options.get("context", 0)),
    )


PROMPT = [5, 17, 80, 3, 3, 41]


def check(metadata, tensors, **options):
    """All positions of a prompt, then sixteen tokens, one by one, with the caches."""
    found, judge = both(metadata, tensors, all_logits=True, **options)
    due = judge.run(PROMPT)
    np.testing.assert_allclose(found.run(PROMPT), due, rtol=0, atol=1e-3)
    assert np.ptp(due, axis=1).min() > 1  # there is something to tell apart
    assert found.greedy(PROMPT, 16) == judge.greedy(PROMPT, 16)
    return found, judge


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_llama_of_each_type_of_weights(kind):
    wide = kind in ("Q4_K", "Q5_K", "Q6_K")
    metadata = (decoder_metadata if wide else narrow_decoder_metadata)()
    check(metadata, decoder_tensors(metadata, kind))


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q5_K"])
def test_five_bits_become_eight(kind):
    metadata = decoder_metadata(block_count=1)
    found, _ = check(metadata, decoder_tensors(metadata, kind))
    products = [op for op in found.model.ops if op.op_type == "MatMulNBits"]
    assert {op.node.attributes["bits"].as_int() for op in products} == {8}


ARCHITECTURES = (
    *("smollm3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "granite", "olmo2"),
    *("glm4", "ernie4_5", "exaone", "internlm2", "command-r", "cohere2", "starcoder2", "stablelm"),
    *("phi2", "falcon", "mistral3", "exaone4", "seed_oss"),
)
WINDOWED = ("gemma2", "gemma3", "phi3", "olmo2", "cohere2", "exaone4")
GRANITE = {
    "embedding_scale": 3.0,
    "residual_scale": 0.22,
    "logit_scale": 0.5,
    "attention__scale": 0.1,
}
"""Factors of those files; logits are divided by the third."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
def test_architectures(architecture, kind):
    changes = {}
    if architecture == "gemma2":
        changes = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 20.0}
    if architecture == "granite":
        changes = GRANITE
    if architecture in ("command-r", "cohere2"):
        changes = {"logit_scale": 0.5}
    if architecture in WINDOWED:
        changes |= {"attention__sliding_window": 4}
    layers = {"gemma3": 6, "smollm3": 5, "olmo2": 5, "cohere2": 5, "exaone4": 5}.get(
        architecture, 2
    )
    metadata = narrow_decoder_metadata(architecture, block_count=layers, **changes)
    check(metadata, decoder_tensors(metadata, kind))


def test_a_gemma2_whose_file_leaves_out_bounds_and_window_has_those_of_all_others():
    metadata = narrow_decoder_metadata("gemma2")
    found, _ = check(metadata, decoder_tensors(metadata, "F32"))
    attention = [op.node.attributes for op in found.model.ops if "Attention" in op.op_type]
    assert [one["softcap"].as_float() for one in attention] == [50.0, 50.0]
    assert [one.get_int("local_window_size", 0) for one in attention] == [4096, 0]


def test_layers_of_a_gemma3_without_a_window_turn_by_one_base():
    metadata = narrow_decoder_metadata("gemma3", rope__freq_base=1e6)
    check(metadata, decoder_tensors(metadata, "F32"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
@pytest.mark.parametrize("pattern", [1, 3, [True, True, False, True]], ids=str)
def test_layers_that_the_file_gives_a_window(architecture, pattern):
    changes = {"attention__sliding_window": 3, "attention__sliding_window_pattern": pattern}
    metadata = narrow_decoder_metadata(architecture, block_count=4, rope__freq_base=1e6, **changes)
    check(metadata, decoder_tensors(metadata, "F32"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "architecture",
    ["llama", "qwen2moe", "qwen3moe", "qwen3vlmoe", "granitemoe", "olmoe", "mistral3", "gpt-oss"],
)
@pytest.mark.parametrize("kind", ["F16", "Q4_0"])
def test_mixtures_of_experts(architecture, kind):
    changes = GRANITE if architecture == "granitemoe" else {}
    metadata = narrow_decoder_metadata(architecture, expert_count=5, expert_used_count=2, **changes)
    found, _ = check(metadata, decoder_tensors(metadata, kind))
    experts = [op.name for op in found.model.ops if op.op_type == "If"]
    assert experts[:2] == ["blk.0.experts.0", "blk.0.experts.1"] and len(experts) == 10


BY_FILE = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ["glm4moe", "bailingmoe2", "dots1", "minimax-m2"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_mixtures_of_which_the_file_says_how_tokens_choose(architecture, kind):
    changes = {} if architecture == "minimax-m2" else {"leading_dense_block_count": 1}
    changes |= {"attention__key_length": 32, "attention__value_length": 32}
    changes |= {"expert_count": 8, "expert_used_count": 3}
    metadata = narrow_decoder_metadata(architecture, block_count=3, **changes | BY_FILE)
    check(metadata, decoder_tensors(metadata, kind))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"expert_gating_func": 2, "expert_weights_norm": True},
        {"expert_gating_func": 1, "expert_weights_norm": True},
        {"expert_gating_func": 1, "expert_weights_norm": False, "expert_weights_scale": 4.0},
        {"expert_gating_func": 2, "expert_weights_norm": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (4, 4), (8, 5)], ids=str)
def test_shares_and_groups_of_experts(changes, groups):
    count, used = groups
    changes |= {"expert_group_count": count, "expert_group_used_count": used}
    metadata = latent_metadata(block_count=3, **changes)
    check(metadata, decoder_tensors(metadata, "F32"))


def test_experts_of_an_older_deepseek():
    experts = {"expert_count": 5, "expert_used_count": 2, "leading_dense_block_count": 1}
    for name in ("deepseek", "ernie4_5-moe"):
        metadata = narrow_decoder_metadata(name, block_count=3, expert_shared_count=2, **experts)
        check(metadata, decoder_tensors(metadata, "F32"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("query_rank", [0, 96])
def test_attention_over_short_vectors(kind, query_rank):
    metadata = latent_metadata(attention__q_lora_rank=query_rank)
    found, _ = check(metadata, decoder_tensors(metadata, kind))
    shapes = {port.name: port.shape for port in found.model.inputs}
    assert shapes["past_key_values.0.key"] == ("batch", 1, 64, 96)


def test_short_vectors_in_a_stretched_context():
    scaling = {"type": "yarn", "factor": 40.0, "original_context_length": 16}
    scaling |= {"yarn_log_multiplier": 0.0707}
    changes = {f"rope__scaling__{key}": value for key, value in scaling.items()}
    metadata = latent_metadata(expert_group_count=4, expert_group_used_count=2, **changes)
    check(metadata, decoder_tensors(metadata, "F32"))


@pytest.mark.parametrize("kind", ["MXFP4", "BF16", "Q8_0", "IQ4_NL"])
def test_gpt_oss(kind):
    scaling = {"type": "yarn", "factor": 32.0, "original_context_length": 16}
    changes = {f"rope__scaling__{key}": value for key, value in scaling.items()}
    changes |= {"expert_count": 5, "expert_used_count": 2, "attention__sliding_window": 4}
    changes |= {"rope__freq_base": 150000.0, "block_count": 4}
    metadata = narrow_decoder_metadata("gpt-oss", **changes)
    tensors = decoder_tensors(metadata, kind)
    for name in tensors:  # so large that bounds of gates count
        if name.endswith("_exps.bias"):
            tensors[name] = stored("F32", 40 * tensors[name].numbers())
    found, _ = check(metadata, tensors)
    attention = [op.node for op in found.model.ops if "Attention" in op.op_type]
    assert [one.attributes.get_int("local_window_size", 0) for one in attention] == [4, 0, 4, 0]
    assert all(len(one.inputs) == 12 for one in attention)


@pytest.mark.parametrize("context", [64, 16])
@pytest.mark.parametrize("kind", ["F32", "Q4_0"])
def test_mistral3_becomes_sharper_behind_its_original_context(context, kind):
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 16}
    scaling |= {"yarn_log_multiplier": 1.0, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}
    changes = {f"rope__scaling__{key}": value for key, value in scaling.items()}
    metadata = narrow_decoder_metadata("mistral3", attention__temperature_scale=0.4, **changes)
    found, judge = both(metadata, decoder_tensors(metadata, kind), all_logits=True, context=context)
    tokens = PROMPT * (context // 6 - 1)
    np.testing.assert_allclose(found.run(tokens), judge.run(tokens), rtol=0, atol=1e-3)
    for token in PROMPT:
        np.testing.assert_allclose(found.run([token]), judge.run([token]), rtol=0, atol=1e-3)
    assert any(op.op_type == "Log" for op in found.model.ops) == (context > 16)


@pytest.mark.parametrize("architecture", ["qwen2vl", "qwen3vl"])
def test_texts_of_models_that_see(architecture):
    sections = {"rope__dimension_sections": [3, 3, 2, 0]}
    metadata = narrow_decoder_metadata(architecture, **sections)
    check(metadata, decoder_tensors(metadata, "Q4_0"))


def test_blocks_that_guess_further_tokens_are_left_out():
    changes = {"expert_count": 4, "expert_used_count": 2, "block_count": 3} | BY_FILE
    metadata = narrow_decoder_metadata("glm4moe", **changes)
    tensors = decoder_tensors(metadata, "Q8_0")
    tensors["blk.2.nextn.eh_proj.weight"] = stored("F32", np.ones((64, 128)))
    metadata["glm4moe.nextn_predict_layers"] = 1
    judged = metadata | {"glm4moe.block_count": 2}
    found = OnnxDecoder(gguf_bytes(metadata, tensors), all_logits=True)
    judge = ReferenceDecoder(judged, {name: one.numbers() for name, one in tensors.items()})
    np.testing.assert_allclose(found.run(PROMPT), judge.run(PROMPT), rtol=0, atol=1e-3)


def test_experts_of_a_fixed_batch(caplog):
    metadata = narrow_decoder_metadata("qwen3moe", expert_count=3, expert_used_count=2)
    model = Core().read_model(gguf_bytes(metadata, decoder_tensors(metadata, "Q4_0")))
    model.reshape({port.name: [1, *port.shape[1:]] for port in model.inputs if port.shape})
    shapes = {op.name: op.node.outputs[0].shape for op in model.ops}
    assert list(shapes["blk.1.experts.2"])[::2] == [1, 64]
    assert not caplog.records


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_last_weight_and_an_embedding_of_their_own(architecture):
    metadata = narrow_decoder_metadata(architecture)
    check(metadata, decoder_tensors(metadata, "Q4_0", embedding="Q8_0", tied=False))


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_context_length": 16},
    ],
    ids=["linear", "yarn"],
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_stretched_rotary_frequencies(architecture, scaling):
    changes = {f"rope__scaling__{key}": value for key, value in scaling.items()}
    metadata = narrow_decoder_metadata(architecture, **changes)
    check(metadata, decoder_tensors(metadata, "F32"))


@pytest.mark.parametrize(
    "scaling",
    [{}, {"type": "linear", "factor": 4.0}, {"type": "yarn", "factor": 4.0}],
    ids=["none", "linear", "yarn of the whole context"],
)
def test_cosines_and_sines_that_the_file_multiplies(scaling):
    changes = {f"rope__scaling__{key}": value for key, value in scaling.items()}
    metadata = narrow_decoder_metadata("qwen2", rope__scaling__attn_factor=0.75, **changes)
    check(metadata, decoder_tensors(metadata, "F32"))


def test_rotary_frequencies_that_the_file_divides():
    metadata = narrow_decoder_metadata()
    tensors = decoder_tensors(metadata, "F32")
    tensors["rope_freqs.weight"] = stored("F32", np.linspace(1, 8, 8))
    check(metadata, tensors)


@pytest.mark.parametrize("context", [16, 24])
@pytest.mark.parametrize("architecture", ["phi3", "granite", "llama"])
def test_longrope_divides_by_other_numbers_in_a_longer_context(architecture, context):
    scaling = {"type": "longrope", "original_context_length": 16, "attn_factor": 1.19}
    changes = {f"rope__scaling__{key}": value for key, value in scaling.items()}
    metadata = narrow_decoder_metadata(architecture, context_length=64, **changes)
    tensors = decoder_tensors(metadata, "F32")
    tensors["rope_factors_short.weight"] = stored("F32", np.linspace(1, 2, 8))
    tensors["rope_factors_long.weight"] = stored("F32", np.linspace(1, 30, 8))
    found, judge = both(metadata, tensors, all_logits=True, context=context)
    np.testing.assert_allclose(found.run(PROMPT), judge.run(PROMPT), rtol=0, atol=1e-3)


@pytest.mark.parametrize("architecture", ["phi3", "llama"])
@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_heads_of_which_a_part_is_turned(architecture, scaling):
    metadata = decoder_metadata(
        architecture,
        rope__dimension_count=16,
        rope__scaling__type=scaling,
        rope__scaling__factor=4.0,
    )
    check(metadata, decoder_tensors(metadata, "F32"))


def test_olmo3_turns_layers_with_a_window_as_if_nothing_was_stretched():
    changes = {"type": "yarn", "factor": 4.0, "original_context_length": 16, "attn_factor": 0.9}
    scaling = {f"rope__scaling__{key}": value for key, value in changes.items()}
    metadata = narrow_decoder_metadata(
        "olmo2", block_count=4, attention__sliding_window=3, rope__freq_base=5e5, **scaling
    )
    check(metadata, decoder_tensors(metadata, "F32"))


def test_a_falcon_whose_attention_has_a_normalization_of_its_own():
    metadata = narrow_decoder_metadata("falcon")
    tensors = decoder_tensors(metadata, "F32")
    rng = np.random.default_rng(1)
    for layer in range(2):
        own = f"blk.{layer}.attn_norm_2"
        tensors[f"{own}.weight"] = stored("F32", rng.uniform(0.5, 1.5, 64))
        tensors[f"{own}.bias"] = stored("F32", rng.normal(0, 0.3, 64))
    check(metadata, tensors)


def test_a_stablelm_whose_blocks_read_the_stream_once():
    metadata = narrow_decoder_metadata("stablelm")
    tensors = decoder_tensors(metadata, "F32")
    check(metadata, {name: one for name, one in tensors.items() if "ffn_norm" not in name})


def test_biases_of_products_that_lie_in_one_tensor():
    metadata = narrow_decoder_metadata("phi3")
    tensors = decoder_tensors(metadata, "Q4_1")
    rng = np.random.default_rng(1)
    for name, size in (("attn_qkv", 128), ("ffn_up", 192), ("attn_output", 64)):
        tensors[f"blk.1.{name}.bias"] = stored("F32", rng.normal(0, 0.3, size))
    check(metadata, tensors)


def test_logits_of_the_last_position_alone():
    metadata = narrow_decoder_metadata()
    tensors = decoder_tensors(metadata, "Q8_0")
    found, judge = both(metadata, tensors)
    logits = found.run(PROMPT)
    assert logits.shape == (1, 96)
    np.testing.assert_allclose(logits[0], judge.run(PROMPT)[-1], rtol=0, atol=1e-3)


def test_a_prompt_in_parts_is_the_prompt():
    metadata = narrow_decoder_metadata()
    found, judge = both(metadata, decoder_tensors(metadata, "Q4_1"), all_logits=True)
    parts = np.concatenate([found.run(PROMPT[:2]), found.run(PROMPT[2:])])
    np.testing.assert_allclose(parts, judge.run(PROMPT), rtol=0, atol=1e-3)


def test_caches_of_float16():
    metadata = narrow_decoder_metadata()
    options = {"all_logits": True, "cache_type": "float16"}
    found, judge = both(metadata, decoder_tensors(metadata, "F32"), **options)
    assert {cache.dtype for cache in found.caches.values()} == {np.dtype(np.float16)}
    for tokens in (PROMPT, [7], [7]):  # logits of about 10, of keys rounded to 2**-11 of themselves
        np.testing.assert_allclose(found.run(tokens), judge.run(tokens), rtol=0, atol=10 * 2**-11)
