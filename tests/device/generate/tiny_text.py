"""Words for the tokens of the tiny decoder, and the files that tell them."""

from __future__ import annotations

import json

import onnx
import tiny_decoder as tiny
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [f"w{number}" for number in range(tiny.VOCABULARY)]


def text_of(tokens):
    return " ".join(WORDS[token] for token in tokens)


def write_tokenizer(folder, template=None):
    """Writes a tokenizer of the words, and a chat template if there is one."""
    engine = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, WORDS[0]))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.save(str(folder / "tokenizer.json"))
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def write_model(folder, weights, template):
    """Writes a language model as onnxruntime-genai has it."""
    onnx.save(tiny.fixed(weights), folder / "decoder.onnx")
    decoder = {"decoder": {"filename": "decoder.onnx"}, "context_length": 48}
    (folder / "genai_config.json").write_text(json.dumps({"model": decoder}))
    write_tokenizer(folder, template)
