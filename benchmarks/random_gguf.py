"""GGUF files of known architectures with random weights, for speed alone.

    python benchmarks/random_gguf.py --size 1.5B --kind Q4_0 model.gguf

The sizes are those of ``random_decoders.py``, the architecture is llama's; norms are ones, all else
is random of a deviation that keeps what passes about the same. Tensors are written one after
another, so that a file may be larger than memory. The vocabulary is made up: three control tokens,
a token for each byte, by which any text can be written, and ``t0``, ``t1``, ...
"""

from __future__ import annotations

import argparse
import functools
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from random_decoders import EXPERTS_USED, SIZES, Architecture

Array = np.ndarray[Any, Any]

ALIGNMENT = 32
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34)}
"""Kind to its number in files, weights of a block, and bytes of a block."""

FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7}
"""Numbers that files give the kind of most of their tensors."""

_PERIOD = 262139
"""Blocks after which they are the same again: a prime, so that no rows are alike."""

_NORMAL, _CONTROL = 1, 3
"""Kinds of tokens."""

_CONTROLS = {"unknown": "<unk>", "bos": "<s>", "eos": "</s>"}
"""Their texts by their purposes."""

_UINT32, _FLOAT32, _STRING, _ARRAY, _INT32 = 4, 6, 8, 9, 5
Shape = tuple[int, ...]


def write_random_gguf(path: Path, sizes: Architecture, kind: str, context: int = 8192) -> None:
    """Writes a file.

    Args:
        path: Where to.
        sizes: Of the decoder.
        kind: A key of :data:`TYPES`, of all matrices.
        context: That the model says it was made for.
    """
    tensors = list(_tensors(sizes, kind))
    metadata = _metadata(sizes, kind, context)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        for key, (number, payload) in metadata.items():
            file.write(_text(key) + struct.pack("<I", number) + payload)
        offset = 0
        for name, shape, stored in tensors:
            dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            file.write(_text(name) + dims + struct.pack("<IQ", TYPES[stored][0], offset))
            offset += -(-_nbytes(shape, stored) // ALIGNMENT) * ALIGNMENT
        _pad(file)
        for name, shape, stored in tensors:
            file.write(_random(name, shape, stored).tobytes())
            _pad(file)


def _tensors(sizes: Architecture, kind: str) -> Iterator[tuple[str, Shape, str]]:
    """Name, shape (rows of the product first) and kind of each tensor."""
    hidden, wide = sizes.hidden, sizes.intermediate
    queries, narrow = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    yield "token_embd.weight", (sizes.vocabulary, hidden), kind
    yield "output_norm.weight", (hidden,), "F32"
    yield "output.weight", (sizes.vocabulary, hidden), kind
    matrices = {
        "attn_q": (queries, hidden),
        "attn_k": (narrow, hidden),
        "attn_v": (narrow, hidden),
        "attn_output": (hidden, queries),
    }
    fed: dict[str, Shape] = {
        "ffn_gate": (wide, hidden),
        "ffn_up": (wide, hidden),
        "ffn_down": (hidden, wide),
    }
    if sizes.experts:
        fed = {f"{name}_exps": (sizes.experts, *shape) for name, shape in fed.items()}
    for layer in range(sizes.layers):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", (hidden,), "F32"
        for name, shape in {**matrices, **fed}.items():
            yield f"blk.{layer}.{name}.weight", shape, kind
        if sizes.experts:
            yield f"blk.{layer}.ffn_gate_inp.weight", (sizes.experts, hidden), "F32"


def _nbytes(shape: Shape, kind: str) -> int:
    _, block, nbytes = TYPES[kind]
    return int(np.prod(shape)) // block * nbytes


def _random(name: str, shape: Shape, kind: str) -> Array:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    deviation = shape[-1] ** -0.5
    if kind in ("F32", "F16"):
        numbers: Array = rng.standard_normal(shape, np.float32) * deviation
        return numbers.astype(np.float16 if kind == "F16" else np.float32, copy=False)
    count = int(np.prod(shape)) // TYPES[kind][1]
    blocks: Array = np.resize(
        np.roll(_blocks(kind), int(rng.integers(_PERIOD)), 0), (count, TYPES[kind][2])
    )
    largest = 16 if kind == "Q4_0" else 256
    scale = np.float16(deviation * 12**0.5 / largest)
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks


@functools.cache
def _blocks(kind: str) -> Array:
    """Blocks that all tensors of a kind repeat, from a place of their own on."""
    return np.random.default_rng(0).integers(0, 256, (_PERIOD, TYPES[kind][2]), np.uint8)


def _metadata(sizes: Architecture, kind: str, context: int) -> dict[str, tuple[int, bytes]]:
    tokens = _vocabulary(sizes.vocabulary)
    kinds = [_CONTROL if text in _CONTROLS.values() else _NORMAL for text in tokens]
    numbers = {
        "block_count": sizes.layers,
        "context_length": context,
        "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.intermediate,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.head_size,
        "attention.value_length": sizes.head_size,
        "rope.dimension_count": sizes.head_size,
        "vocab_size": sizes.vocabulary,
    }
    if sizes.experts:
        numbers |= {"expert_count": sizes.experts, "expert_used_count": EXPERTS_USED}
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}
    return {
        "general.architecture": (_STRING, _text("llama")),
        "general.name": (_STRING, _text("random")),
        "general.file_type": (_UINT32, struct.pack("<I", FILE_TYPES[kind])),
        **{f"llama.{key}": (_UINT32, struct.pack("<I", n)) for key, n in numbers.items()},
        **{f"llama.{key}": (_FLOAT32, struct.pack("<f", x)) for key, x in floats.items()},
        "tokenizer.ggml.model": (_STRING, _text("gpt2")),
        "tokenizer.ggml.tokens": (_ARRAY, _texts(tokens)),
        "tokenizer.ggml.token_type": (
            _ARRAY,
            struct.pack(f"<IQ{len(kinds)}i", _INT32, len(kinds), *kinds),
        ),
        "tokenizer.ggml.merges": (_ARRAY, _texts(["t 0"])),
        "tokenizer.ggml.pre": (_STRING, _text("smollm")),
        **{
            f"tokenizer.ggml.{name}_token_id": (_UINT32, struct.pack("<I", tokens.index(text)))
            for name, text in (*_CONTROLS.items(), ("padding", _CONTROLS["eos"]))
        },
    }


def _vocabulary(count: int) -> list[str]:
    """So many texts; bytes are spelled as GPT-2 spells them, by a visible character each."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    visible += range(ord("®"), ord("ÿ") + 1)
    others = range(256, 512 - len(visible))
    alphabet = [chr(code) for code in (*visible, *others)]
    first = [*_CONTROLS.values(), *alphabet]
    return [*first, *(f"t{number}" for number in range(count - len(first)))]


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _texts(values: list[str]) -> bytes:
    return struct.pack("<IQ", _STRING, len(values)) + b"".join(map(_text, values))


def _pad(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))


def main() -> None:
    """Writes a file and says how large it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--size", choices=SIZES, default="1.5B")
    parser.add_argument("--kind", choices=[kind for kind in TYPES if kind != "F32"], default="Q4_0")
    args = parser.parse_args()
    write_random_gguf(args.path, SIZES[args.size], args.kind)
    print(f"wrote {args.path}, {args.path.stat().st_size / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
