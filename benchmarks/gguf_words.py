"""Tokens of hostile random texts by each way to cut words that GGUF files name, beside llama.cpp's.

    NODE_LLAMA_CPP=FOLDER python benchmarks/gguf_words.py [--texts 300] [WAY ...]

The byte pairs of the vocabulary are learnt from such texts without any cut, so that another cut
makes other tokens. Printed is for each way how many texts have other tokens, and the shortest. Of
names that stand for the same way the first is tried, unless others are asked for.

Tokens are the models' own where llama.cpp's pattern is another than theirs: it takes marks behind
letters for no part of a word (tekken, gpt-4o, tiny_aya), counts digits of other scripts as none
(superbpe), and takes all spaces for one sign (deepseek-coder, deepseek-llm).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from generate_peers import LlamaCpp, Setting

import partita
from partita.frontends.gguf import open_file
from partita.generate.text.gguf_tokenizer import from_metadata
from partita.generate.text.pre_tokenizers import WORD_CUTS

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

PIECES = (
    *(
        " ",
        " ",
        "  ",
        "   ",
        "\t",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        " \n ",
        "\u00a0",
        "\u3000",
        "\u2028",
    ),
    *("a", "b", "Hello", "WORLD", "camelCase", "ABCdef", "ǅ", "ŉ", "naïve", "ß", "ſ", "ª", "ʰ"),
    *("'s", "'S", "'t", "'re", "'VE", "'m", "'ll", "'d", "'", "\u2019s", "''s", "'x", "'\u017f"),
    *("0", "7", "12", "345", "6789", "1234567", "٣٤", "१२३", "²", "½", "Ⅷ", "①", "1.5", "1,000"),
    *(
        "东京",
        "漢字",
        "ひらがな",
        "カタカナ",
        "한국어",
        "ไทย",
        "हिन्दी",
        "العربية",
        "עברית",
        "ქართული",
        "Ელ",
    ),
    *(
        "e\u0301",
        "\u0301",
        "\u200d",
        "\u200b",
        "\ufeff",
        "\U0001f642",
        "\U0001f468\u200d\U0001f469",
    ),
    *(
        "!",
        "?!",
        "...",
        "…",
        "。",
        "，",
        "！",
        "«",
        "—",
        "-",
        "_",
        "/",
        "//",
        "\\",
        "#",
        "$",
        "+",
        "`",
    ),
    *("<", ">", "<=", "|", "~", "^", "(", ")", "[]", "{}", '"', "€", "©", "×", "\u20e3", "\x7f"),
    *("<|im_end|>", "<|im_start|>", "<|im_", "im_end|>", "\ue000", "\U00010400", "\U0001d400"),
)
"""What texts are made of."""

_SIZE = 3000
_CONTROLS = ("<|im_start|>", "<|im_end|>")


def texts_of(seed: int, count: int) -> list[str]:
    """Random texts."""
    rng = random.Random(seed)
    return ["".join(rng.choices(PIECES, k=rng.randint(1, 14))) for _ in range(count)]


def learnt_pairs(seed: int) -> tuple[list[str], list[str]]:
    """Tokens and merges of byte pairs of such texts."""
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    engine = Tokenizer(BPE())
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=_SIZE, initial_alphabet=alphabet, show_progress=False)
    texts = (text.replace("<|", "") for text in texts_of(seed, 6000))  # no control tokens
    engine.train_from_iterator(texts, trainer)
    model = json.loads(engine.to_str())["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].get), merges


def compare(path: Path, texts: list[str]) -> list[str]:
    """Texts of which the tokens differ."""
    tokenizer = from_metadata(open_file(path).metadata, "the file")
    model = partita.Core().read_model(path, decoder=partita.DecoderOptions(context=32))
    peer = LlamaCpp(Setting(path, model, 32, 1, path.parent))
    found = [
        text for text in texts if tokenizer.encode(text) != peer.ask("tokens", text=text)["tokens"]
    ]
    peer.end()
    return found


def different_ways() -> list[str]:
    """Names, one for each way."""
    return list({cut: way for way, cut in reversed(WORD_CUTS.items())}.values())


def main() -> int:
    """Compares; returns how many ways have texts of other tokens."""
    from gguf_files import decoder_tensors, narrow_decoder_metadata, write_gguf

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="*", default=different_ways(), metavar="WAY")
    parser.add_argument("--texts", type=int, default=300)
    arguments = parser.parse_args()
    tokens, merges = learnt_pairs(1)
    wrong = 0
    metadata = narrow_decoder_metadata(context_length=64) | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, *_CONTROLS],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3, 3],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
        "tokenizer.ggml.add_bos_token": False,
    }
    tensors = decoder_tensors(metadata, "Q4_0", vocabulary=len(tokens) + len(_CONTROLS))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        for way in arguments.ways:
            write_gguf(path, metadata | {"tokenizer.ggml.pre": way}, tensors)
            found = sorted(compare(path, texts_of(2, arguments.texts)), key=len)
            wrong += bool(found)
            shown = ", ".join(map(ascii, found[:3]))
            sys.stdout.write(f"{way:20} {len(found):5} of {arguments.texts}  {shown}\n")
            sys.stdout.flush()
    return wrong


if __name__ == "__main__":
    sys.exit(main())
