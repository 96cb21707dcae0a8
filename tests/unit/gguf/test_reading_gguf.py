"""From a GGUF file to a model: wiring, options, and what is refused."""

import os
import tracemalloc

import numpy as np
import pytest
from gguf_files import (
    decoder_metadata,
    decoder_tensors,
    gguf_bytes,
    latent_metadata,
    stored,
    write_gguf,
    write_parts,
)

from partita import Core, DecoderOptions
from partita.errors import ModelFormatError, ModelNotFoundError
from partita.frontends.gguf import open_file, part_paths
from partita.storage.model_cache import content_of


def tiny(kind="Q4_0", architecture="llama", **changes):
    metadata = decoder_metadata(architecture, block_count=1, **changes)
    return metadata, decoder_tensors(metadata, kind, vocabulary=32)


def refusal(metadata, tensors, **options):
    with pytest.raises(ModelFormatError) as caught:
        Core().read_model(gguf_bytes(metadata, tensors), decoder=DecoderOptions(**options))
    return str(caught.value)


def test_inputs_outputs_and_variables(tmp_path):
    model = Core().read_model(write_gguf(tmp_path / "tiny.gguf", *tiny()))
    described = {port.name: port.describe() for port in (*model.inputs, *model.outputs)}
    cache = "float32[batch, 2, 64, 32]"
    assert described == {
        "input_ids": "int64[batch, sequence]",
        "seqlens_k": "int32[batch]",
        "total_sequence_length": "int32[]",
        "past_key_values.0.key": cache,
        "past_key_values.0.value": cache,
        "logits": "float32[batch, 1, 32]",
        "present.0.key": cache,
        "present.0.value": cache,
    }
    pairs = [(variable.name, variable.read, variable.written) for variable in model.variables]
    assert pairs == [
        ("0.key", "past_key_values.0.key", "present.0.key"),
        ("0.value", "past_key_values.0.value", "present.0.value"),
    ]
    assert model.metadata["gguf.general.architecture"] == "llama"


def test_a_model_that_is_saved_as_onnx(tmp_path):
    model = Core().read_model(gguf_bytes(*tiny("Q4_1")))
    model.save(tmp_path / "tiny.onnx")
    again = Core().read_model(tmp_path / "tiny.onnx")
    assert again.variables == model.variables and again.inputs == model.inputs
    for name, value in model.ir.graph.initializers.items():
        kept = again.ir.graph.initializers[name].const_value
        np.testing.assert_array_equal(kept.numpy(), value.const_value.numpy())


def test_the_content_of_a_file_is_the_file(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", *tiny())
    before = content_of(path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert content_of(path) != before
    metadata, tensors = tiny()
    *_, last = parts = write_parts(tmp_path, metadata, tensors, 3)
    before = content_of(parts[0])
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    assert content_of(parts[0]) != before


def test_every_value_has_a_type_and_a_shape():
    model = Core().read_model(gguf_bytes(*tiny("Q4_1", "qwen3")))
    for op in model.ops:
        for value in op.node.outputs:
            assert not value.name or (value.shape is not None and value.dtype is not None), value


def test_the_room_of_caches():
    content = gguf_bytes(*tiny(context_length=8192))
    rooms = {
        asked: Core().read_model(content, decoder=DecoderOptions(context=asked)).inputs[3].shape[2]
        for asked in (None, 100, 8192)
    }
    assert rooms == {None: 4096, 100: 100, 8192: 8192}


@pytest.mark.parametrize("context", [0, -1, 65, "32", 32.0])
def test_a_context_that_the_model_does_not_have(context):
    message = refusal(*tiny(), context=context)
    assert f"a context of {context!r} positions; 1 to 64 are possible" in message


def test_tables_of_long_contexts_are_not_made_while_reading():
    data = gguf_bytes(*tiny(context_length=1 << 24))
    tracemalloc.start()
    try:
        model = Core().read_model(data, decoder=DecoderOptions(context=1 << 24))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert model.ir.graph.initializers["cos_cache"].shape == (1 << 24, 16)
    assert peak < 1 << 24


@pytest.mark.parametrize("context", [1, 1023, 1024, 2500])
def test_tables_of_turns_of_all_positions(context):
    data = gguf_bytes(*tiny(context_length=4096, rope__freq_base=500.0))
    model = Core().read_model(data, decoder=DecoderOptions(context=context))
    angles = np.arange(context)[:, None] * 500.0 ** (-np.arange(16) / 16)
    for name, due in (("cos_cache", np.cos(angles)), ("sin_cache", np.sin(angles))):
        table = model.ir.graph.initializers[name].const_value.numpy()
        assert table.dtype == np.float32
        np.testing.assert_allclose(table, due, rtol=0, atol=2**-24)


def test_a_type_of_caches_that_is_not_known():
    message = refusal(*tiny(), cache_type="int3")
    assert "type 'int3' are not known; these are: float32, float16, bfloat16" in message


def test_a_window_of_unknown_layers_bounds_the_context():
    metadata, tensors = tiny(attention__sliding_window=16)
    assert "1 to 16 are possible" in refusal(metadata, tensors, context=17)


def test_others_take_no_decoder_options(tmp_path):
    with pytest.raises(ModelFormatError, match="does not accept 'decoder'"):
        Core().read_model(b"no model", decoder=DecoderOptions())
    with pytest.raises(ModelFormatError, match="does not accept 'weights'"):
        Core().read_model(gguf_bytes(*tiny()), weights=b"")


def test_what_is_no_file_is_not_waited_for(tmp_path):
    for path in (tmp_path, os.devnull):
        with pytest.raises(ModelFormatError, match="it is a folder, pipe or device"):
            open_file(path)
        with pytest.raises(ModelFormatError, match="it is a folder, pipe or device"):
            Core().read_model(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ModelNotFoundError):
        open_file(tmp_path / "none.gguf")


@pytest.mark.parametrize(("number", "part"), [(0, "part 1 of 3"), (2, "part 3 of 3")])
def test_a_part_of_a_model_without_a_path_is_told_how_others_are_found(number, part):
    metadata = {"split.count": 3, "split.no": number}
    assert f"is {part} of a model" in (message := refusal(metadata, {}))
    assert "NAME-00001-of-00003.gguf" in message and "llama-gguf-split --merge" in message
    metadata, tensors = tiny()
    Core().read_model(gguf_bytes(metadata | {"split.count": 1, "split.no": 0}, tensors))


@pytest.mark.parametrize("given", [0, 2])
def test_a_model_in_parts_is_that_of_one_file(tmp_path, given):
    metadata, tensors = tiny("Q4_1")
    whole = Core().read_model(gguf_bytes(metadata, tensors))
    path = write_parts(tmp_path, metadata, tensors, 3)[given]
    model = Core().read_model(path)
    assert open_file(path).tensors.keys() == tensors.keys()
    assert model.inputs == whole.inputs
    assert model.ir.graph.initializers.keys() == whole.ir.graph.initializers.keys()
    for name, value in whole.ir.graph.initializers.items():
        found = model.ir.graph.initializers[name].const_value
        np.testing.assert_array_equal(found.numpy(), value.const_value.numpy())


def test_parts_that_are_not_there_or_do_not_belong_together(tmp_path):
    metadata, tensors = tiny()
    first, second, third = write_parts(tmp_path, metadata, tensors, 3)
    renamed = first.rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFormatError, match="give the path of a file NAME-00001-of-00003"):
        Core().read_model(renamed)
    with pytest.raises(ModelNotFoundError, match="Part 1 of 3 of the model is not there: "):
        Core().read_model(second)
    renamed.rename(first)
    content = third.read_bytes()
    third.write_bytes(second.read_bytes())
    with pytest.raises(ModelFormatError, match="says that it is part 2 of 3, and its name that"):
        Core().read_model(first)
    split = {"split.no": 2, "split.count": 3}
    write_gguf(third, split, {"blk.0.attn_norm.weight": stored("F32", np.ones(256))})
    write_gguf(second, split | {"split.no": 1}, tensors)
    with pytest.raises(ModelFormatError, match=r"'blk\.0\.attn_norm\.weight' of another part"):
        Core().read_model(first)
    write_gguf(second, split | {"split.no": 1}, {})
    third.write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"parts have \d+ tensors; expected \d+"):
        Core().read_model(first)


@pytest.mark.parametrize("count", ["3", 2.0, [2, 2], True])
def test_counts_of_parts_that_are_none(count):
    assert "has split.count" in refusal({"split.no": 0, "split.count": count}, {})


def test_names_of_parts(tmp_path):
    assert part_paths(tmp_path / "a-00002-of-00002.gguf") == [
        tmp_path / "a-00001-of-00002.gguf",
        tmp_path / "a-00002-of-00002.gguf",
    ]
    for name in ("a.gguf", "a-00001-of-00000.gguf", "a-00001-of-99999.gguf", "a-1-of-2.gguf"):
        assert part_paths(tmp_path / name) == [tmp_path / name]


def test_unknown_architectures_are_named():
    message = refusal(*tiny() and ({"general.architecture": "mamba"}, {}))
    assert "'mamba', which is not read; these are: llama, smollm3, qwen2" in message
    assert "architecture None" in refusal({}, {})


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"expert_used_count": 9}, "9 of 8 experts cannot be used"),
        ({"expert_used_count": None}, "'llama.expert_used_count' is missing"),
        ({"expert_shared_count": 1}, "experts that all tokens share"),
        ({"expert_gating_func": 2}, "not chosen by softmax"),
        ({"expert_weights_scale": 2.5}, "of which the sum is scaled"),
        ({"expert_count": 4097}, "there are 4097 experts; 4096 are read at most"),
        ({"leading_dense_block_count": 2}, "2 of 1 layers cannot be without experts"),
        ({"interleave_moe_layer_step": 0}, "'interleave_moe_layer_step' is 0; expected a number"),
        ({}, "no tensor 'blk.0.ffn_gate_exps.weight'"),
    ],
)
def test_mixtures_of_experts_that_are_not_read(changes, part):
    metadata, tensors = tiny()
    changes = {"expert_count": 8, "expert_used_count": 2} | changes
    metadata |= decoder_metadata(block_count=1, **changes)
    assert part in refusal(metadata, tensors)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("block_count", None, "'llama.block_count' is missing"),
        ("block_count", 0, "'block_count' is 0"),
        ("block_count", 2**31, "'block_count' is 2147483648"),
        ("block_count", "two", "'block_count' is 'two'"),
        ("block_count", True, "'block_count' is True"),
        ("block_count", 2, "no tensor 'blk.1."),
        ("embedding_length", 128, "'token_embd.weight' has shape [32, 256]"),
        ("attention.head_count", 3, "3 heads of 32 elements do not share 2"),
        ("attention.head_count", 4, "'blk.0.attn_q.weight' has shape [256, 256]"),
        ("attention.head_count_kv", [2, 1], "'attention.head_count_kv' is array"),
        ("attention.key_length", 33, "heads of 33 elements"),
        ("attention.key_length", 1 << 20, "heads have 1048576 elements; 4096 are read at most"),
        ("attention.value_length", 16, "of another size than keys"),
        ("rope.dimension_count", 34, "turns 34 elements of heads of 32; expected pairs"),
        ("rope.dimension_count", 15, "turns 15 elements of heads of 32; expected pairs"),
        ("rope.dimension_sections", [8, 8, 8, 8], "by time and place ('rope.dimension_sections')"),
        ("attention.layer_norm_rms_epsilon", None, "rms_epsilon' is missing"),
        ("rope.freq_base", float("nan"), "'rope.freq_base' is nan"),
        ("rope.freq_base", "10000", "expected a number from 2 to 1e+12"),
        ("rope.scaling.type", "dynamic", "is 'dynamic', which is not read; none, linear, yarn and"),
        (
            "rope.scaling.attn_factor",
            0.0,
            "'rope.scaling.attn_factor' is 0.0; expected a number from",
        ),
        (
            "attention.causal",
            False,
            "embeds texts instead of continuing them; only decoders are read",
        ),
        ("attention.causal", 1, "'attention.causal' is 1; expected true or false"),
        ("rope.scaling.type", 3, "expected a text"),
        ("rope.freq_base", 0.0, "'rope.freq_base' is 0.0; expected a number from 2 to 1e+12"),
        (
            "rope.scaling.factor",
            -2.0,
            "'rope.scaling.factor' is -2.0; expected a number from 9.53674e-07",
        ),
        ("rope.scaling.factor", 1e30, "'rope.scaling.factor' is 1.0000000150474662e+30"),
        (
            "attention.layer_norm_rms_epsilon",
            -1.0,
            "rms_epsilon' is -1.0; expected a number from 0 to 1",
        ),
        ("attn_logit_softcapping", float("inf"), "'attn_logit_softcapping' is inf"),
        ("context_length", None, "'llama.context_length' is missing"),
    ],
)
def test_metadata_that_makes_no_sense(key, value, part):
    metadata, tensors = tiny()
    metadata[f"llama.{key}"] = value
    if value is None:
        del metadata[f"llama.{key}"]
    assert part in refusal(metadata, tensors)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("attention.key_length_mla", None, "files of this architecture from before April 2025"),
        ("attention.value_length_mla", 0, "files of this architecture from before April 2025"),
        ("attention.kv_lora_rank", None, "'deepseek2.attention.kv_lora_rank' is missing"),
        ("attention.kv_lora_rank", 63, "vectors of 63 do not make 1 heads of 96"),
        ("attention.kv_lora_rank", 0, "'attention.kv_lora_rank' is 0"),
        ("attention.head_count_kv", 2, "vectors of 64 do not make 2 heads of 96"),
        ("attention.head_count", 8, "'blk.0.attn_q_b.weight' has shape [256, 96]; its metadata"),
        ("attention.head_count", 1 << 20, "there are more than 4096 heads"),
        ("attention.key_length_mla", 32, "heads of 32 elements, of which 32 are turned"),
        ("attention.key_length_mla", 48, "'blk.0.attn_q_b.weight' has shape [256, 96]"),
        ("attention.value_length_mla", 16, "'blk.0.attn_v_b.weight' has shape [4, 32, 64]"),
        ("attention.q_lora_rank", 0, "no tensor 'blk.0.attn_q.weight'"),
        ("attention.q_lora_rank", 32, "'blk.0.attn_q_a.weight' has shape [96, 64]"),
        ("rope.dimension_count", 16, "vectors of 64 do not make 1 heads of 96"),
        ("expert_count", 0, "no tensor 'blk.1.ffn_up.weight'"),
        ("expert_count", 7, "'blk.1.ffn_gate_exps.weight' has shape [8, 96, 64]"),
        ("expert_used_count", 0, "'expert_used_count' is 0"),
        ("expert_gating_func", 4, "'expert_gating_func' is 4; 1, 2 and 3 are read"),
        ("expert_weights_norm", 1, "'expert_weights_norm' is 1; expected true or false"),
        ("expert_weights_scale", -1.0, "'expert_weights_scale' is -1.0; expected a number"),
        ("expert_group_count", 3, "8 experts are not of 3 groups"),
        ("expert_group_used_count", 2, "are not of 1 groups, of which a token chooses 2"),
        ("leading_dense_block_count", 3, "3 of 2 layers cannot be without experts"),
        ("nextn_predict_layers", 2, "2 of 2 blocks guess further tokens; none is left"),
        ("rope.scaling.yarn_log_multiplier", float("nan"), "'rope.scaling.yarn_log_multiplier' is"),
        ("rope.scaling.yarn_beta_fast", 0.0, "'rope.scaling.yarn_beta_fast' is 0.0"),
        ("attention.temperature_scale", -1.0, "'attention.temperature_scale' is -1.0"),
        ("attention.temperature_length", -1.0, "'attention.temperature_length' is -1.0"),
    ],
)
def test_short_vectors_and_choices_that_make_no_sense(key, value, part):
    metadata = latent_metadata()
    tensors = decoder_tensors(metadata, "F32", vocabulary=32)
    metadata[f"deepseek2.{key}"] = value
    if value is None:
        del metadata[f"deepseek2.{key}"]
    assert part in refusal(metadata, tensors)


def test_few_groups_that_have_fewer_experts_than_a_token_chooses():
    changes = {"expert_group_count": 4, "expert_group_used_count": 1}
    metadata = latent_metadata(**changes)
    message = refusal(metadata, decoder_tensors(metadata, "F32", vocabulary=32))
    assert "3 experts cannot be chosen among 1 of 4 groups of 8" in message


def test_an_architecture_whose_file_does_not_say_how_tokens_choose():
    metadata = decoder_metadata("glm4moe", block_count=1, expert_count=4, expert_used_count=2)
    message = refusal(metadata, decoder_tensors(metadata, "F32", vocabulary=32))
    assert "'expert_gating_func' is 0; 1, 2 and 3 are read" in message


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_sinks.weight", (7,)),
        ("blk.0.ffn_gate_exps.bias", (4, 255)),
        ("blk.0.ffn_down_exps.bias", (256,)),
        ("blk.0.ffn_gate_inp.bias", (5,)),
        ("blk.0.post_attention_norm.weight", (255,)),
        ("blk.0.attn_output.bias", (1, 256)),
    ],
)
def test_tensors_of_gpt_oss_of_another_shape(name, shape):
    metadata = decoder_metadata("gpt-oss", block_count=1, expert_count=4, expert_used_count=2)
    tensors = decoder_tensors(metadata, "MXFP4", vocabulary=32)
    tensors[name] = stored("F32", np.zeros(shape))
    message = refusal(metadata, tensors)
    assert f"tensor '{name}' has shape {list(shape)}; its metadata asks for" in message


def test_a_norm_of_heads_of_neither_one_nor_all():
    metadata, tensors = tiny("F32", "qwen3")
    tensors["blk.0.attn_q_norm.weight"] = stored("F32", np.ones(64))
    assert "'blk.0.attn_q_norm.weight' has shape [64]; its metadata" in refusal(metadata, tensors)


@pytest.mark.parametrize("sections", [[8, 8, 8, 0], [16, 0, 0, 1], [20, -4, 0, 0], [8, 7]], ids=str)
def test_sections_that_are_not_the_pairs_of_a_head(sections):
    metadata, tensors = tiny("F32", "qwen3vl", rope__dimension_sections=sections)
    assert "expected three that share 16 pairs" in refusal(metadata, tensors)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ([True, False], "'attention.sliding_window_pattern' is for 2 layers; the model has 1"),
        ([1, 2], "'attention.sliding_window_pattern' is array([1, 2], dtype=int32)"),
        (0, "'attention.sliding_window_pattern' is 0; expected a number from 1 to"),
    ],
    ids=str,
)
def test_windows_of_other_layers_than_there_are(pattern, part):
    assert part in refusal(*tiny("F32", "gemma2", attention__sliding_window_pattern=pattern))


def test_a_gate_and_what_it_lets_through_in_one_tensor_of_an_odd_number_of_rows():
    metadata, tensors = tiny("F32", "phi3")
    up = tensors["blk.0.ffn_up.weight"].numbers()
    tensors["blk.0.ffn_up.weight"] = stored("F32", up[:-1])
    assert "'blk.0.ffn_up.weight' has 511 rows; of a gate" in refusal(metadata, tensors)


def test_tensors_that_are_missing_or_not_used():
    metadata, tensors = tiny()
    del tensors["blk.0.ffn_up.weight"]
    assert "no tensor 'blk.0.ffn_up.weight'" in refusal(metadata, tensors)
    metadata, tensors = tiny()
    tensors["blk.0.adapter.weight"] = stored("F32", np.zeros(4))
    assert "a tensor 'blk.0.adapter.weight' that decoders of 'llama'" in refusal(metadata, tensors)


@pytest.mark.parametrize("number", [0, -1, np.inf, np.nan])
def test_divisors_of_frequencies(number):
    metadata, tensors = tiny()
    tensors["rope_freqs.weight"] = stored("F32", np.full(16, number))
    assert "numbers that no frequency can be divided by" in refusal(metadata, tensors)


def test_a_normalization_must_not_be_quantised():
    metadata, tensors = tiny()
    tensors["blk.0.attn_norm.weight"] = tensors["blk.0.attn_q.weight"]
    tensors["blk.0.attn_norm.weight"].shape = (256,)
    tensors["blk.0.attn_norm.weight"].data = tensors["blk.0.attn_norm.weight"].data[: 8 * 18]
    del tensors["blk.0.attn_q.weight"]
    assert "is of type Q4_0; expected one of F32, F16 and BF16" in refusal(metadata, tensors)
