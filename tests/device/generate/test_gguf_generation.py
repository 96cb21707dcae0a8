"""Generating from GGUF files on device CPU, compared with the decoder in float64."""

from unittest import mock

import pytest
from llm_reference import ReferenceDecoder
from tiny_gguf import write_tiny_gguf

import partita
from partita.errors import ContextLengthError, ModelFormatError, TokenizerError
from partita.generate import Generator
from partita.generate.decoder import Decoder
from partita.lowering.emission.walk import Walk
from partita.tensors.tensor import HostTensor

TEXTS = ["The capital of France is", "Caf\u00e9 \U0001f389", "x"]


def reference(metadata, tensors):
    weights = {name: tensor.numbers() for name, tensor in tensors.items()}
    return ReferenceDecoder(metadata, weights)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Type of weights to the path of a file, and its decoder in float64."""
    folder = tmp_path_factory.mktemp("gguf")
    found = {}
    for kind in ("F32", "F16", "Q4_1", "Q8_0"):
        path = folder / f"{kind}.gguf"
        found[kind] = path, reference(*write_tiny_gguf(path, kind))
    return found


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_1", "Q8_0"])
def test_64_greedy_tokens_are_those_of_float64(files, kind):
    path, expected = files[kind]
    generator = Generator(path, "CPU", 128)
    for text in TEXTS:
        prompt = generator.tokenizer.encode(text)
        pieces = [*generator.generate(prompt, max_new_tokens=64)]
        wanted = expected.greedy(prompt, 64)
        wanted = wanted[: wanted.index(258) + 1] if 258 in wanted else wanted
        assert [piece.token for piece in pieces] == wanted


def test_texts_beside_each_other_are_as_if_alone(files):
    path, expected = files["Q4_1"]
    generator = Generator(path, "CPU", 128, batch=2, chunk=8)
    found = [[], [], []]
    for piece in generator.generate_batch(TEXTS, max_new_tokens=20):
        found[piece.sequence].append(piece.token)
    for tokens, text in zip(found, TEXTS, strict=True):
        wanted = expected.greedy(generator.tokenizer.encode(text), 20)
        assert tokens == wanted[: len(tokens)]
        assert len(tokens) == 20 or tokens[-1] == 258


def test_by_default_prompts_of_a_small_model_are_read_by_128_tokens(files, monkeypatch):
    runs = []
    run = Decoder.run

    def note(decoder, tokens, lengths, taking_part):
        runs.append(tokens.shape[1])
        return run(decoder, tokens, lengths, taking_part)

    monkeypatch.setattr(Decoder, "run", note)
    path, expected = files["Q4_1"]
    prompt = [7, 42] * 100
    for chunk, sizes in ((None, [128, 64, 8]), (200, [200])):
        generator = Generator(path, "CPU", 256, chunk=chunk)
        assert generator.chunk == sizes[0]
        runs.clear()
        [piece] = generator.generate(prompt, max_new_tokens=1)
        assert runs == sizes
        assert piece.token == expected.greedy(prompt, 1)[0]
    assert Generator(path, "CPU", 64).chunk == 64


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_1", "Q8_0"])
def test_prompts_of_any_length_are_programs_that_are_there_already(files, kind):
    path, expected = files[kind]
    generator = Generator(path, "CPU", 128)
    with mock.patch.object(Walk, "run", side_effect=AssertionError("emitted")):
        for count in (2, 5, 9, 31, 47, 63, 80):
            prompt = [65 + number for number in range(count)]
            (piece,) = generator.generate(prompt, max_new_tokens=1)
            assert piece.token == expected.greedy(prompt, 1)[0]


def test_text_is_that_of_the_tokens(files):
    generator = Generator(files["Q4_1"][0], "CPU", 128)
    pieces = [*generator.generate(TEXTS[0], max_new_tokens=30)]
    tokens = [piece.token for piece in pieces]
    assert "".join(piece.text for piece in pieces) == generator.tokenizer.decode(tokens)


def test_a_file_is_known_by_its_first_bytes_too(files, tmp_path):
    (tmp_path / "sha256-0a1b").write_bytes(files["F32"][0].read_bytes())
    named, other = (
        Generator(path, "CPU", 64) for path in (files["F32"][0], tmp_path / "sha256-0a1b")
    )
    texts = [
        [piece.text for piece in one.generate("x", max_new_tokens=4)] for one in (named, other)
    ]
    assert texts[0] == texts[1]


def test_text_continues_that_of_the_prompt(tmp_path):
    words = ["<unk>", "<s>", "</s>", *(f"\u2581w{number}" for number in range(256))]
    vocabulary = {"tokens": words, "scores": [0.0] * 259, "token_type": [2, 3, 3] + [1] * 256}
    vocabulary |= {"model": "llama", "bos_token_id": 1, "eos_token_id": 2}
    entries = {f"tokenizer.ggml.{key}": value for key, value in vocabulary.items()}
    write_tiny_gguf(tmp_path / "m.gguf", "F32", **entries)
    generator = Generator(tmp_path / "m.gguf", "CPU", 64)
    prompt = [1, 40, 50]
    pieces = [*generator.generate(prompt, max_new_tokens=9)]
    whole = generator.tokenizer.decode(prompt + [piece.token for piece in pieces])
    assert whole == "w37 w47" + "".join(piece.text for piece in pieces)
    assert " " in pieces[0].text


def test_a_conversation_is_formatted_by_the_file(files):
    path, expected = files["F32"]
    generator = Generator(path, "CPU", 128)
    prompt = generator.chat_prompt([{"role": "user", "content": "Hi"}])
    assert prompt[0] == 257
    assert prompt.count(258) == 1
    assert next(generator.generate(prompt)).token == expected.greedy(prompt, 1)[0]


def test_the_context_is_the_file_s_unless_less_is_asked_for(files):
    path = files["F32"][0]
    generator = Generator(path, "CPU")
    assert (generator.context, generator.longest) == (256, 256)
    with pytest.raises(ContextLengthError, match="made for texts of up to 256 tokens, and a cont"):
        Generator(path, "CPU", 257)
    with pytest.raises(ContextLengthError, match=r"at most 26 new tokens fit, and the model takes"):
        Generator(path, "CPU", 32).generate([1] * 6, max_new_tokens=27)


def test_a_window_of_unknown_layers_is_the_longest_context(tmp_path):
    write_tiny_gguf(tmp_path / "m.gguf", **{"llama.attention.sliding_window": 20})
    assert Generator(tmp_path / "m.gguf", "CPU").longest == 20
    with pytest.raises(ContextLengthError, match="texts of up to 20 tokens, and a context of 21"):
        Generator(tmp_path / "m.gguf", "CPU", 21)


@pytest.mark.parametrize("value", ["4096", float("nan"), [1, 2], ["a"]], ids=repr)
def test_a_context_that_is_no_number_is_refused(tmp_path, value):
    write_tiny_gguf(tmp_path / "m.gguf", **{"llama.context_length": value})
    with pytest.raises(
        ModelFormatError, match=r"'context_length' is .*; expected a number from 1 to"
    ):
        Generator(tmp_path / "m.gguf", "CPU")


def test_weights_that_a_token_reads_are_counted_as_stored(files):
    path = files["Q4_1"][0]
    generator = Generator(path, "CPU", 32)
    stored = sum(
        tensor.data.nbytes for tensor in partita.frontends.gguf.open_file(path).tensors.values()
    )
    assert generator.weight_bytes == stored  # the embedding is the table of the output too
    assert generator.place_bytes == 2 * 2 * 2 * 16 * 4


def test_tokens_need_no_vocabulary(tmp_path, caplog):
    path = tmp_path / "m.gguf"
    metadata, tensors = write_tiny_gguf(path, "F32", **{"tokenizer.ggml.model": "bert"})
    generator = Generator(path, "CPU", 32)
    with pytest.raises(TokenizerError, match="a vocabulary of kind 'bert'"):
        generator.generate("text")
    tokens = [piece.token for piece in generator.generate([3, 1, 4], max_new_tokens=5)]
    assert tokens == reference(metadata, tensors).greedy([3, 1, 4], 5)
    assert "Pieces have no text, and no token ends a text" in caplog.text


def test_caches_of_fixed_capacity_are_not_written_to_before_tokens_come(files, monkeypatch):
    path, expected = files["Q8_0"]
    monkeypatch.setattr(HostTensor, "clear", lambda _: pytest.fail("a cache was cleared"))
    generator = Generator(path, "CPU", 128)
    tokens = [piece.token for piece in generator.generate([7, 42, 3], max_new_tokens=9)]
    assert tokens == expected.greedy([7, 42, 3], 9)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelFormatError, match="goes beyond its end"):
        Generator(path, "CPU")
