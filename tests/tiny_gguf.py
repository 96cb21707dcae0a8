"""A GGUF file of a very small decoder, with a byte-level vocabulary and a chat template."""

from __future__ import annotations

from gguf_files import decoder_tensors, narrow_decoder_metadata, write_gguf

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
VOCABULARY = 259


def byte_letters():
    """The letters that stand for bytes 0 to 255 in byte-level vocabularies (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def write_tiny_gguf(path, kind="Q4_1", seed=0, **changes):
    """Writes it; returns the metadata and tensors that it holds.

    Args:
        path: Where to.
        kind: Type of the weights.
        seed: Of their random numbers.
        changes: Entries of the metadata to replace.
    """
    metadata = narrow_decoder_metadata(context_length=256)
    metadata |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*byte_letters(), "\u0120t", "<|im_start|>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1] * 257 + [3, 3],
        "tokenizer.ggml.merges": ["\u0120 t"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    metadata |= changes
    tensors = decoder_tensors(metadata, kind, seed, VOCABULARY)
    write_gguf(path, metadata, tensors)
    return metadata, tensors
