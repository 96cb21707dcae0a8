"""Generating with an OpenVINO IR that keeps its cache as state, as optimum writes decoders.

OpenVINO 2026.4.1 read the file of :mod:`stateful_ir` once and made the same tokens.
"""

import json

import pytest
import stateful_ir
import tiny_decoder as tiny
from tiny_text import write_tokenizer

import partita
from partita.cli.main import main
from partita.generate import Generator
from partita.generate.caches import empty_beginnings
from partita.generate.decoder_ports import SEQUENCE_AXIS

WEIGHTS = tiny.weights()
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [27, 18], [11]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as optimum writes it."""
    path = tmp_path_factory.mktemp("model")
    stateful_ir.write(path, WEIGHTS)
    write_tokenizer(path)
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": tiny.LONGEST}))
    return path


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
@pytest.mark.parametrize("batch", [1, 2])
def test_tokens_are_those_of_float64(folder, batch, device):
    generator = Generator(folder, device, batch=batch)
    assert generator.longest == tiny.LONGEST
    for _ in range(2):  # the second time rows begin anew
        found = {}
        for piece in generator.generate_batch(PROMPTS, max_new_tokens=9):
            found.setdefault(piece.sequence, []).append(piece.token)
        for number, prompt in enumerate(PROMPTS):
            assert found[number] == tiny.expected_tokens(prompt, 9, WEIGHTS)


def test_the_command_takes_the_folder(folder, capsys):
    options = ["-d", "CPU", "--prompt", "w27 w18", "--max-new-tokens", "6"]
    assert main(["generate", str(folder), *options]) == 0
    expected = tiny.expected_tokens(PROMPTS[1], 6, WEIGHTS)
    assert capsys.readouterr().out == "".join(f" w{token}" for token in expected) + "\n"


def test_empty_beginnings_and_beams_are_left_out(folder):
    given = partita.Core().read_model(folder / "openvino_model.xml")
    model = Generator(given, "CPU").compiled_model.model
    kinds = [op.op_type for op in model.ops]
    assert "If" not in kinds
    assert kinds.count("GroupQueryAttention") == tiny.LAYERS
    assert kinds.count("Expand") == 1  # of the mask
    names = {port.name for port in model.inputs} - {one.read for one in model.variables}
    lengths = {"seqlens_k", "total_sequence_length"}
    assert names == {"input_ids", "attention_mask", "position_ids"} | lengths
    assert not any(one.begun for one in model.variables)
    assert "If" in [op.op_type for op in given.ops]  # the application's model stays


def test_layers_of_a_stateful_decoder_are_placed_one_by_one(folder):
    compiled = Generator(folder, "HETERO:CPU").compiled_model
    placed, *_ = compiled.explain().decision.notes  # a busy machine adds one
    assert placed.startswith("CPU embedding, layers 0-1, head (")


def test_caches_that_begin_without_being_told_how_begin_empty(tmp_path):
    stateful_ir.write(tmp_path, WEIGHTS, begins=False)
    generator = Generator(tmp_path, "CPU", 32, batch=1)
    assert "beam_idx" not in {port.name for port in generator.compiled_model.model.inputs}
    tokens = [piece.token for piece in generator.generate(PROMPTS[0], max_new_tokens=9)]
    assert tokens == tiny.expected_tokens(PROMPTS[0], 9, WEIGHTS)


def test_a_beginning_that_is_not_empty_stays(tmp_path):
    stateful_ir.write(tmp_path, WEIGHTS, length=1)
    model = partita.Core().read_model(tmp_path / "openvino_model.xml")
    before = [op.name for op in model.ops]
    empty_beginnings.simplify(model, SEQUENCE_AXIS)
    assert [op.name for op in model.ops] == before
    assert all(one.begun for one in model.variables)
    assert "beam_idx" in {port.name for port in model.inputs}
