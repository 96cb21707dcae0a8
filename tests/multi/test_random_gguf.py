"""Files of ``benchmarks/random_gguf.py``: vocabularies for tokenizers, and weights of each kind."""

import numpy as np
import pytest
from generate_results import element_blocks, float64_decoder, model_of
from gguf_files import Stored
from random_decoders import SIZES
from random_gguf import FAMILIES, TYPES, random_weight, write_random_gguf

import partita
from partita.frontends.gguf import open_file
from partita.generate.text.gguf_tokenizer import from_metadata


def test_any_text_is_encoded_and_comes_back(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_random_gguf(path, SIZES["tiny"], "Q4_0")
    tokenizer = from_metadata(open_file(path).metadata, "the file")
    for text in ("Once upon a time", "t0 t1", "naïve 東京 🙂\n\t\0"):
        tokens = tokenizer.encode(text)
        assert tokens and max(tokens) < SIZES["tiny"].vocabulary
        assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize("kind", TYPES)
def test_weights_have_their_deviation_and_are_unpacked_right(kind):
    data = random_weight("blk.0.attn_q.weight", (64, 256), kind).tobytes()
    numbers = Stored(kind, (64, 256), data).numbers()
    np.testing.assert_array_equal(element_blocks(data, kind).reshape(64, 256), numbers)
    assert abs(numbers.std() * 16 - 1) < 0.05 and abs(numbers.mean() * 16) < 0.2


MIXTURES = [(name, "tiny-mixture") for name in ("llama", "qwen3", "deepseek2")]


@pytest.mark.parametrize(("family", "size"), [*((name, "tiny") for name in FAMILIES), *MIXTURES])
def test_decoders_of_each_family_are_read(tmp_path, family, size):
    path = tmp_path / "tiny.gguf"
    write_random_gguf(path, SIZES[size], "F16", family)
    compiled = partita.Core().compile_model(model_of(path, 64), "CPU")
    tokens = [5, 17, 300, 42]
    feeds = {
        "input_ids": np.array([tokens], np.int64),
        "seqlens_k": np.array([3], np.int32),
        "total_sequence_length": np.array(4, np.int32),
    }
    found = np.asarray(compiled.create_infer_request().infer(feeds)["logits"]).reshape(-1, 320)[-1]
    expected = float64_decoder(path).run(tokens)[-1]
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
