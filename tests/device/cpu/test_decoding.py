"""Decoding is one program for ever: no compiling, and no walk in Python, for a new length."""

from __future__ import annotations

from unittest import mock

import numpy as np
from decoders import WIDTH, grouped_decoder
from tiny_gguf import write_tiny_gguf

import partita
from partita.lowering import Specializer
from partita.lowering.emission.walk import Walk
from partita_cpu.runtime.device_model import CpuRunner


def step(tokens, at):
    return {
        "x": np.ones((1, tokens, 2 * WIDTH), np.float32),
        "seqlens_k": np.array([at + tokens - 1], np.int32),
        "total_sequence_length": np.array(at + tokens, np.int32),
    }


def test_programs_that_a_decoder_is_made_ready_by_are_dropped_one_by_one():
    kept = []
    program = Specializer.program

    def counted(self, specs, value_of):
        kept.append(len(self.programs))
        return program(self, specs, value_of)

    core = partita.Core()
    model = core.read_model(grouped_decoder().SerializeToString())
    with mock.patch.object(Specializer, "program", counted):
        core.compile_model(model, "CPU")
    assert len(kept) > 2 and not any(kept)


def test_steps_of_all_lengths_are_one_bound_call():
    core = partita.Core()
    model = core.read_model(grouped_decoder().SerializeToString())
    request = core.compile_model(model, "CPU").create_infer_request()
    request.infer(step(7, 0))
    for at in (7, 8):  # the second time tensors come again, they are bound
        request.infer(step(1, at))
    kernels = request.explain_execution()
    with (
        mock.patch.object(CpuRunner, "run", side_effect=AssertionError("walked")),
        mock.patch.object(Specializer, "program", side_effect=AssertionError("compiled")),
    ):
        for at in range(9, 64):
            request.infer(step(1, at))
    assert request.explain_execution() == kernels


def test_numbers_of_tokens_that_never_came_before_are_filled_into_recorded_programs():
    """Emitters, which take many times as long, are done when the model is compiled."""
    core = partita.Core()
    model = core.read_model(grouped_decoder().SerializeToString())
    request = core.compile_model(model, "CPU").create_infer_request()
    judge = core.compile_model(model, "REFERENCE").create_infer_request()
    with mock.patch.object(Walk, "run", side_effect=AssertionError("emitted")):
        found = {n: request.infer(step(n, 0))["logits"] for n in (1, 3, 5, 12, 33)}
    for tokens, logits in found.items():
        wanted = judge.infer(step(tokens, 0))["logits"]
        np.testing.assert_allclose(logits, wanted, rtol=1e-5, atol=1e-5)


def test_programs_that_a_decoder_is_made_ready_by_are_not_kept():
    """They are filled in again when such a number of tokens comes; few ever do."""
    core = partita.Core()
    model = core.read_model(grouped_decoder().SerializeToString())
    compiled = core.compile_model(model, "CPU")
    assert not len(compiled.device_model.specializer.programs)


def test_tensors_of_512_tokens_lie_as_if_there_were_no_other_number_of_tokens(tmp_path):
    """Where they lie is planned once; most memory is taken by many tokens."""
    path = tmp_path / "decoder.gguf"
    sizes = {"embedding_length": 128, "feed_forward_length": 352, "context_length": 512}
    write_tiny_gguf(path, **{f"llama.{name}": size for name, size in sizes.items()})
    tokens, bytes_of = 512, []
    for fixed in (False, True):
        core = partita.Core()
        model = core.read_model(path, decoder=partita.DecoderOptions(context=512))
        shapes = {port.name: port.shape for port in model.inputs if port.shape}
        shapes = {name: (1, *shape[1:]) for name, shape in shapes.items()}
        if fixed:
            shapes["input_ids"] = (1, tokens)
        compiled = core.compile_model(model.reshape(shapes), "CPU", {"INFERENCE_NUM_THREADS": 2})
        feeds = {
            "input_ids": np.full((1, tokens), 5),
            "seqlens_k": np.array([tokens - 1], np.int32),
            "total_sequence_length": np.array(tokens, np.int32),
        }
        states = {
            port.name: np.zeros(port.shape, port.dtype)
            for port in compiled.inputs
            if port.name not in feeds
        }
        arrays = [(feeds | states)[port.name] for port in compiled.inputs]
        program = compiled.device_model.specializer.program_for(arrays)
        bytes_of.append(program.arena_bytes)
    assert bytes_of[0] == bytes_of[1]
