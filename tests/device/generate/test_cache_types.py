"""Keys and values of other types: tokens beside float64, bytes, states that are kept, refusals."""

import itertools
import json

import numpy as np
import pytest
import tiny_decoder as tiny
from gguf_files import decoder_metadata, decoder_tensors, gguf_bytes
from growing_decoder import LAYERS, Form, decoder
from llm_reference import ReferenceDecoder
from onnx import parser

import partita
from partita.cli.main import main
from partita.errors import InputError, UnsupportedOpError
from partita.generate import Generator
from partita.generate.caches.cache_types import with_cache_type
from partita.generate.decoder import Decoder, prepare
from partita.generate.decoder_ports import DecoderPorts

ADDS = (
    '<ir_version: 10, opset_import: ["" : 18]> adds (float[2] x) => (float[2] y) { y = Add(x, x) }'
)
KINDS = {"float16": np.float16, "int8": np.int8}
EVERYONE = np.ones(1, bool)


def gguf(**changes):
    """A decoder of random weights, and the same in float64."""
    metadata = decoder_metadata(block_count=3, **changes)
    tensors = decoder_tensors(metadata, "F32")
    weights = {name: one.numbers() for name, one in tensors.items()}
    return gguf_bytes(metadata, tensors), metadata, weights


def prepared(data, cache_type, device="CPU", context=128):
    core = partita.Core()
    model = prepare(core.read_model(data), 1, context, core, device, cache_type)
    config = {"STRICT": True} if device.startswith("HETERO") else None
    return core.compile_model(model, device, config)


def logits_of(running, tokens):
    """Those behind a prompt, then token by token."""
    found = [running.run(np.array([tokens[:9]]), np.zeros(1, np.int64), EVERYONE)[0].copy()]
    for place, token in enumerate(tokens[9:], 9):
        found.append(running.run(np.array([[token]]), np.array([place]), EVERYONE)[0].copy())
    return np.array(found)


@pytest.mark.parametrize(
    ("device", "cache_type"),
    [
        *itertools.product(["CPU", "HETERO:CPU,REFERENCE"], KINDS),
        *(("OPENCL", "int8"), ("HETERO:OPENCL,CPU", "int8")),
    ],
)
def test_logits_are_those_of_rounded_caches_in_float64(device, cache_type):
    """And off from those of exact caches by little: less than a step in 127 of keys makes."""
    data, metadata, weights = gguf()
    tokens = np.random.default_rng(3).integers(0, 90, 40).tolist()
    found = logits_of(Decoder(prepared(data, cache_type, device)), tokens)
    rounded = ReferenceDecoder(metadata, weights, KINDS[cache_type]).run(tokens)[8:]
    exact = ReferenceDecoder(metadata, weights).run(tokens)[8:]
    spread = exact.std()
    np.testing.assert_allclose(found, rounded, rtol=0, atol=spread * 1e-2)
    assert np.sqrt(np.mean((found - exact) ** 2)) < spread * 1e-2


def test_a_token_takes_half_as_many_bytes():
    data, *_ = gguf()
    bytes_of = {}
    for cache_type in ("float16", "int8"):
        generator = Generator(partita.Core().read_model(data), "CPU", cache_type=cache_type)
        bytes_of[cache_type] = generator.place_bytes
        states = Decoder(generator.compiled_model).request.query_state()
        assert {str(one.state.dtype) for one in states} == {cache_type}
        held = sum(one.state.nbytes for one in states)
        assert held == generator.place_bytes * generator.context
    size = partita.Core().read_model(data).inputs[3].shape[3]
    assert bytes_of["int8"] / bytes_of["float16"] == (size + 4) / (2 * size)


def test_states_are_saved_and_loaded(tmp_path):
    data, *_ = gguf()
    compiled = prepared(data, "int8")
    tokens = np.random.default_rng(4).integers(0, 90, 30).tolist()
    first, second = Decoder(compiled), Decoder(compiled)
    whole = logits_of(first, tokens)
    logits_of(second, tokens[:20])
    second.request.save_state(tmp_path / "state.safetensors")
    third = Decoder(compiled)
    third.request.load_state(tmp_path / "state.safetensors")
    for place in range(20, 30):
        step = np.array([tokens[place : place + 1]]), np.array([place]), EVERYONE
        np.testing.assert_array_equal(third.run(*step)[0], whole[place - 8])


@pytest.mark.parametrize(("before", "after"), [("OPENCL", "CPU"), ("CPU", "OPENCL")])
def test_states_go_from_device_to_device(before, after, tmp_path):
    data, *_ = gguf()
    tokens = np.random.default_rng(5).integers(0, 90, 30).tolist()
    whole, first = Decoder(prepared(data, "int8", after)), Decoder(prepared(data, "int8", before))
    due = logits_of(whole, tokens)
    logits_of(first, tokens[:20])
    first.request.save_state(tmp_path / "state.safetensors")
    second = Decoder(whole.request.compiled_model)
    second.request.load_state(tmp_path / "state.safetensors")
    for place in range(20, 30):
        step = np.array([tokens[place : place + 1]]), np.array([place]), EVERYONE
        np.testing.assert_allclose(
            second.run(*step)[0], due[place - 8], rtol=0, atol=due.std() * 1e-2
        )


def test_generators_of_all_models_take_the_type():
    arrays = tiny.weights()
    for model in (tiny.growing(arrays), tiny.fixed(arrays)):
        generator = Generator(
            partita.Core().read_model(model), "CPU", 48, batch=2, cache_type="int8"
        )
        prompts = [[3, 7, 1], [9]]
        found = [[], []]
        for piece in generator.generate_batch(prompts, max_new_tokens=6):
            found[piece.sequence].append(piece.token)
        assert found == [tiny.expected_tokens(prompt, 6, arrays) for prompt in prompts]


def test_opencl_computes_no_attention_over_bfloat16():
    data, *_ = gguf()
    with pytest.raises(
        UnsupportedOpError, match="input 3 is bfloat16; takes float16, float32, int8"
    ):
        prepared(data, "bfloat16", "OPENCL")
    explained = prepared(data, "bfloat16", "HETERO:OPENCL,CPU").explain()
    homes = [op.device for op in explained.ops if op.op_type == "GroupQueryAttention"]
    assert homes == ["CPU"] * 3


def test_a_type_that_is_not_known_is_refused():
    with pytest.raises(InputError, match=r"'int3' are not known; these are: float32, float16, "):
        Generator("no file", cache_type="int3")


def test_a_cache_that_is_read_otherwise_keeps_its_type():
    core = partita.Core()
    model = core.read_model(decoder(Form(extra="mean")))
    with pytest.raises(InputError, match=r"'past_key_values.0.key' cannot be of type int8: it is "):
        prepare(model, 1, 64, core, "CPU", "int8")


def test_int8_becomes_nothing_else():
    options = partita.DecoderOptions(cache_type="int8")
    model = partita.Core().read_model(gguf()[0], decoder=options)
    with pytest.raises(InputError, match="cannot be of type float16: it is INT8 of"):
        with_cache_type(model, DecoderPorts.of(model).caches, "float16")


def test_a_compiled_model_has_its_type_already():
    compiled = prepared(gguf()[0], "int8")
    with pytest.raises(InputError, match="compiled already; give no device, type of caches"):
        Generator(compiled, cache_type="int8")
    assert str(compiled.inputs[3].dtype) == "int8"


def test_the_command_takes_the_type(tmp_path, capsys):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf()[0])
    needs = {}
    for cache_type in ("float32", "int8"):
        argv = ["plan", str(path), "-d", "HETERO:CPU", "--context", "64", "--json"]
        assert main([*argv, "--cache-type", cache_type]) == 0
        needs[cache_type] = capsys.readouterr().out
    assert needs["int8"] != needs["float32"]


def test_the_command_gives_caches_that_grow_a_type(tmp_path, capsys):
    """Caches are counted as they are where text is made: with room for all tokens."""
    path, form = tmp_path / "growing.onnx", Form(heads=4, kv_heads=2, mask="window")
    path.write_bytes(decoder(form).SerializeToString())
    elements = 2 * LAYERS * form.kv_heads * 64
    for cache_type, row in (("float32", 4 * form.size), ("float16", 2 * form.size), ("int8", 12)):
        argv = ["plan", str(path), "-d", "HETERO:CPU", "--context", "64", "--json"]
        assert main([*argv, "--cache-type", cache_type]) == 0
        (device,) = json.loads(capsys.readouterr().out)["devices"]
        assert device["cache_bytes"] == elements * row


def test_the_command_says_which_cache_keeps_its_type(tmp_path, capsys):
    path = tmp_path / "growing.onnx"
    path.write_bytes(decoder(Form(extra="mean")).SerializeToString())
    argv = ["plan", str(path), "-d", "HETERO:CPU", "--cache-type", "int8"]
    assert main(argv) == 1
    assert "'past_key_values.0.key' cannot be of type int8" in capsys.readouterr().err


def test_the_command_refuses_types_of_no_caches(tmp_path, capsys):
    path = tmp_path / "adds.onnx"
    path.write_bytes(parser.parse_model(ADDS).SerializeToString())
    argv = ["plan", str(path), "-d", "HETERO:CPU", "--cache-type", "int8"]
    assert main(argv) == 1
    assert "--cache-type is for decoders; 'adds' has no cache" in capsys.readouterr().err
