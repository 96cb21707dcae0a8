"""Files of ``benchmarks/random_gguf.py`` carry a vocabulary that tokenizers take."""

from random_decoders import SIZES
from random_gguf import write_random_gguf

from partita.frontends.gguf import GgufFile
from partita.generate.text.gguf_tokenizer import from_metadata


def test_any_text_is_encoded_and_comes_back(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_random_gguf(path, SIZES["tiny"], "Q4_0")
    tokenizer = from_metadata(GgufFile.open(path).metadata, "the file")
    for text in ("Once upon a time", "t0 t1", "naïve 東京 🙂\n\t\0"):
        tokens = tokenizer.encode(text)
        assert tokens and max(tokens) < SIZES["tiny"].vocabulary
        assert tokenizer.decode(tokens) == text
