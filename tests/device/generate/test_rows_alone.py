"""Runs of one of a decoder's rows, without padding for the others, on device CPU."""

import numpy as np
import pytest
from gguf_files import decoder_metadata, decoder_tensors, gguf_bytes
from llm_reference import ReferenceDecoder

import partita
from partita.errors import InputError
from partita.generate import Generator
from partita.generate.decoder import Decoder, prepare
from partita.lowering.recording import class_programs

ROWS = 3
EVERYONE = np.ones(ROWS, bool)
TEXTS = [np.random.default_rng(seed).integers(0, 90, 24).tolist() for seed in range(ROWS)]


@pytest.fixture(scope="module")
def made():
    """A decoder of random weights as bytes, and what makes the same in float64."""
    metadata = decoder_metadata(block_count=2)
    tensors = decoder_tensors(metadata, "F32")
    weights = {name: one.numbers() for name, one in tensors.items()}
    return gguf_bytes(metadata, tensors), lambda: ReferenceDecoder(metadata, weights)


def warm(data, cache_type=None):
    core = partita.Core()
    model = prepare(core.read_model(data), ROWS, 64, core, "CPU", cache_type)
    decoder = Decoder(core.compile_model(model, "CPU"))
    decoder.warm_up()
    return decoder


@pytest.mark.parametrize(("cache_type", "tolerance"), [(None, 1e-4), ("int8", 2e-2)])
def test_logits_of_rows_alone_and_together_are_those_of_float64(made, cache_type, tolerance):
    data, judge = made
    decoder = warm(data, cache_type)
    assert decoder.takes_rows
    due = [judge().run(tokens) for tokens in TEXTS]
    close = {"rtol": 0, "atol": tolerance * due[0].std()}
    held = np.zeros(ROWS, np.int64)
    for row, count in ((1, 9), (0, 5), (1, 2), (2, 7), (0, 6), (0, 1)):
        tokens = np.array(TEXTS[row][held[row] : held[row] + count])
        found = decoder.run_row(row, tokens, int(held[row])).copy()
        held[row] += count
        np.testing.assert_allclose(found, due[row][held[row] - 1], **close)
        tokens = np.array([[text[at]] for text, at in zip(TEXTS, held, strict=True)])
        found = decoder.run(tokens, held, EVERYONE)
        held += 1
        for each, (logits, at) in enumerate(zip(found, held, strict=True)):
            np.testing.assert_allclose(logits, due[each][at - 1], **close)


def test_a_lone_prompt_of_a_batch_is_no_run_of_all_rows(made, monkeypatch):
    def refuse(decoder, tokens, lengths, taking_part):
        raise AssertionError("all rows were computed")

    data, judge = made
    generator = Generator(partita.Core().read_model(data), "CPU", 64, batch=ROWS)
    monkeypatch.setattr(Decoder, "run", refuse)
    pieces = generator.generate(TEXTS[0], max_new_tokens=5)
    assert [piece.token for piece in pieces] == judge().greedy(TEXTS[0], 5)


def test_several_generators_have_one_compiled_model_of_several_rows(made):
    data, judge = made
    first = Generator(partita.Core().read_model(data), "CPU", 64, batch=ROWS)
    second = Generator(first.compiled_model)
    for generator in (first, second):
        found = [[] for _ in TEXTS]
        for piece in generator.generate_batch(TEXTS, max_new_tokens=4):
            found[piece.sequence].append(piece.token)
        assert found == [judge().greedy(tokens, 4) for tokens in TEXTS]


def test_a_request_of_some_rows_reads_and_writes_no_others(made):
    whole = warm(made[0]).request
    part = whole.compiled_model.create_infer_request(whole, 2)
    part.select_state_rows(1)
    all_keys, keys = whole.query_state()[0], part.query_state()[0]
    keys.state = np.full(keys.state.shape, 7, np.float32)
    found = all_keys.state.numpy()
    assert (found[1:] == 7).all()
    assert (found[0] == 0).any() and not (found[0] == 7).any()
    part.select_state_rows(0)
    assert not (keys.state.numpy()[0] == 7).any()
    keys.reset()
    assert [(row == 0).all() for row in all_keys.state.numpy()] == [True, True, False]


def test_rows_that_are_not_there(made):
    whole = warm(made[0]).request
    model = whole.compiled_model
    for count in (0, ROWS + 1):
        with pytest.raises(InputError, match=f"rows 0 to 2; {count} from row 0 on"):
            model.create_infer_request(whole, count)
    part = model.create_infer_request(whole, 2)
    for first in (-1, 2):
        with pytest.raises(InputError, match=f"2 from row {first} on are not"):
            part.select_state_rows(first)
    keys = part.query_state()[0]
    with pytest.raises(InputError, match="give the request with all rows another shape"):
        keys.state = np.zeros((1, *keys.state.shape[1:]), np.float32)


def test_programs_of_prompts_are_there_before_the_first_one(made, monkeypatch):
    """The first prompts of a batch waited for recordings, which took as long as ten of them."""
    generator = Generator(partita.Core().read_model(made[0]), "CPU", 64, batch=ROWS)
    recorded = []
    record = class_programs.RecordedProgram

    def counted(*args):
        recorded.append(args)
        return record(*args)

    monkeypatch.setattr(class_programs, "RecordedProgram", counted)
    for count in (9, 2, 20, 1):
        assert len(list(generator.generate(TEXTS[0][:count], max_new_tokens=2))) == 2
    for count in (4, 24):  # of few tokens all rows are read at once
        prompts = [text[:count] for text in TEXTS]
        assert len(list(generator.generate_batch(prompts, max_new_tokens=2))) == 2 * ROWS
    assert recorded == []
