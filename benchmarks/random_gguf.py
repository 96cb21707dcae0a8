"""GGUF files of known architectures with random weights, for speed alone.

    python benchmarks/random_gguf.py --size 1.5B --kind Q4_0 [--family qwen3] model.gguf

The sizes are those of ``random_decoders.py``, the rest is llama's or another family's; norms are
ones, all else is random of a deviation that keeps what passes about the same. Tensors are written
one after another, so that a file may be larger than memory. The vocabulary is made up: three
control tokens, a token for each byte, by which any text can be written, and ``t0``, ``t1``, ...
"""

from __future__ import annotations

import argparse
import functools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from random_decoders import EXPERTS_USED, SIZES, Architecture

Array = np.ndarray[Any, Any]

ALIGNMENT = 32
TYPES = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144),
    "Q6_K": (14, 256, 210),
    "BF16": (30, 1, 2),
    "MXFP4": (39, 32, 17),
}
"""Kind to its number in files, weights of a block, and bytes of a block."""

FILE_TYPES = {
    "MXFP4": 38,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q4_K": 14,
    "Q6_K": 18,
    "BF16": 32,
}
"""Numbers that files give the kind of most of their tensors."""

_SCALES = {
    "Q4_0": (0, (1 / 4.61,)),
    "Q4_1": (0, (1 / 4.61, -7.5 / 4.61)),
    "Q8_0": (0, (1 / 73.9,)),
    "Q4_K": (0, (1 / 258.3, 7.5 / 258.3)),
    "Q6_K": (208, (1 / 1365.0,)),
}
"""Where a block has scales in float16, and what they are where its numbers have a deviation of 1,
their other bytes being random: 4.61 is that of whole numbers from 0 to 15."""


@dataclass(frozen=True)
class Family:
    """What decoders of a name have, beside llama's tensors.

    Attributes:
        biases: Queries, keys and values have biases.
        head_norms: So do queries and keys norms for each head.
        post_norms: What blocks add to the residual stream is normalized.
        tied: The embedding is the last product's weight, too.
        window: Positions that some layers attend to; 0 for all.
        is_oss: All is as in GPT-OSS: sinks, biases everywhere, experts in MXFP4.
        is_latent: Attention is over short vectors, and experts are chosen by sigmoid, beside one
            for all tokens, as in DeepSeek-V3; the first block has no experts.
    """

    biases: bool = False
    head_norms: bool = False
    post_norms: bool = False
    tied: bool = False
    window: int = 0
    is_oss: bool = False
    is_latent: bool = False


FAMILIES = {
    "llama": Family(),
    "smollm3": Family(tied=True),
    "qwen2": Family(biases=True),
    "qwen3": Family(head_norms=True, tied=True),
    "gemma": Family(tied=True),
    "gemma2": Family(post_norms=True, tied=True, window=4096),
    "gemma3": Family(head_norms=True, post_norms=True, tied=True, window=512),
    "gpt-oss": Family(biases=True, window=128, is_oss=True),
    "deepseek2": Family(is_latent=True),
}
"""The names; a mixture of qwen3's family is qwen3moe."""

_LATENT = {
    "attention.head_count_kv": 1,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "attention.kv_lora_rank": 512,
    "attention.q_lora_rank": 768,
    "rope.dimension_count": 64,
    "leading_dense_block_count": 1,
    "expert_gating_func": 2,
    "expert_shared_count": 1,
}
"""What files of DeepSeek-V2-Lite say, but for V3's way to choose experts."""

_MXFP4_DEVIATION = 2.926
"""Of the sixteen numbers from -6 to 6 that four bits stand for."""

_PERIOD = 262139
"""Blocks after which they are the same again: a prime, so that no rows are alike."""

_NORMAL, _CONTROL = 1, 3
"""Kinds of tokens."""

_CONTROLS = {"unknown": "<unk>", "bos": "<s>", "eos": "</s>"}
"""Their texts by their purposes."""

_UINT32, _FLOAT32, _STRING, _ARRAY, _INT32 = 4, 6, 8, 9, 5
Shape = tuple[int, ...]


def write_random_gguf(
    path: Path, sizes: Architecture, kind: str, family: str = "llama", context: int = 8192
) -> None:
    """Writes a file.

    Args:
        path: Where to.
        sizes: Of the decoder.
        kind: A key of :data:`TYPES`, of all matrices.
        family: A key of :data:`FAMILIES`.
        context: That the model says it was made for.
    """
    tensors = list(_tensors(sizes, kind, FAMILIES[family]))
    metadata = _metadata(sizes, kind, family, context)
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
            file.write(random_weight(name, shape, stored).tobytes())
            _pad(file)


def _tensors(sizes: Architecture, kind: str, family: Family) -> Iterator[tuple[str, Shape, str]]:
    """Name, shape (rows of the product first) and kind of each tensor."""
    hidden, wide = sizes.hidden, sizes.intermediate
    queries, narrow = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    yield "token_embd.weight", (sizes.vocabulary, hidden), kind
    yield "output_norm.weight", (hidden,), "F32"
    if not family.tied:
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
    dense = dict(fed)
    if sizes.experts:
        fed = {f"{name}_exps": (sizes.experts, *shape) for name, shape in fed.items()}
    before = "post_attention_norm" if family.is_oss else "ffn_norm"
    vectors = {"attn_norm.weight": hidden, f"{before}.weight": hidden}
    if family.biases:
        vectors |= {f"attn_{part}.bias": matrices[f"attn_{part}"][0] for part in "qkv"}
    if family.is_oss:
        vectors |= {"attn_output.bias": hidden, "attn_sinks.weight": sizes.heads}
    if family.is_oss and sizes.experts:
        vectors["ffn_gate_inp.bias"] = sizes.experts
    if family.head_norms:
        vectors |= {f"attn_{part}_norm.weight": sizes.head_size for part in "qk"}
    if family.post_norms:
        vectors |= {f"post_{part}_norm.weight": hidden for part in ("attention", "ffw")}
    if family.is_latent:
        matrices = _latent_matrices(sizes)
        vectors["attn_kv_a_norm.weight"] = _LATENT["attention.kv_lora_rank"]
        vectors["attn_q_a_norm.weight"] = _LATENT["attention.q_lora_rank"]
    for layer in range(sizes.layers):
        block, own = f"blk.{layer}", fed
        is_mixed = sizes.experts > 0 and not (family.is_latent and layer == 0)
        if not is_mixed:
            own = dense
        for name, count in vectors.items():
            yield f"{block}.{name}", (count,), "F32"
        for name, shape in {**matrices, **own}.items():
            small = shape[-1] % TYPES[kind][1] > 0
            stored = "MXFP4" if family.is_oss and "exps" in name else "Q8_0" if small else kind
            yield f"{block}.{name}.weight", shape, stored
            if family.is_oss and "exps" in name:
                yield f"{block}.{name}.bias", shape[:2], "F32"
        if is_mixed:
            yield f"{block}.ffn_gate_inp.weight", (sizes.experts, hidden), "F32"
        if is_mixed and family.is_latent:
            yield f"{block}.exp_probs_b.bias", (sizes.experts,), "F32"
            for name, shape in dense.items():
                yield f"{block}.{name}_shexp.weight", shape, kind


def _latent_matrices(sizes: Architecture) -> dict[str, Shape]:
    """The weights of attention over short vectors."""
    rank, turned = _LATENT["attention.kv_lora_rank"], _LATENT["rope.dimension_count"]
    query_rank = _LATENT["attention.q_lora_rank"]
    key, value = _LATENT["attention.key_length_mla"], _LATENT["attention.value_length_mla"]
    return {
        "attn_q_a": (query_rank, sizes.hidden),
        "attn_q_b": (sizes.heads * key, query_rank),
        "attn_kv_a_mqa": (rank + turned, sizes.hidden),
        "attn_k_b": (sizes.heads, rank, key - turned),
        "attn_v_b": (sizes.heads, value, rank),
        "attn_output": (sizes.hidden, sizes.heads * value),
    }


def _nbytes(shape: Shape, kind: str) -> int:
    _, block, nbytes = TYPES[kind]
    return int(np.prod(shape)) // block * nbytes


def random_weight(name: str, shape: Shape, kind: str) -> Array:
    """A tensor as a file has it: norms are ones, and the same name has the same numbers."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) == 1 or name.endswith(".bias"):
        return np.ones(shape, np.float32) if "norm" in name else rng.random(shape, np.float32) - 0.5
    deviation = shape[-1] ** -0.5
    if kind not in _SCALES and kind != "MXFP4":
        numbers: Array = rng.standard_normal(shape, np.float32) * deviation
        if kind == "BF16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16)
        return numbers.astype(np.float16 if kind == "F16" else np.float32, copy=False)
    count = int(np.prod(shape)) // TYPES[kind][1]
    if kind == "MXFP4":
        blocks: Array = np.resize(_blocks(kind), (count, TYPES[kind][2])).copy()
        blocks[:, 0] = _exponents(deviation, count)
        return blocks
    blocks = np.resize(
        np.roll(_blocks(kind), int(rng.integers(_PERIOD)), 0), (count, TYPES[kind][2])
    )
    at, factors = _SCALES[kind]
    scales = np.frombuffer((np.array(factors) * deviation).astype("<f2").tobytes(), np.uint8)
    blocks[:, at : at + len(scales)] = scales
    return blocks


def _exponents(deviation: float, count: int) -> Array:
    """Those of blocks of MXFP4, of two scales, so many of each that all numbers deviate so."""
    square = (deviation / _MXFP4_DEVIATION) ** 2
    low = int(np.floor(np.log2(square) / 2))
    share = (square / 4.0**low - 1) / 3
    places = np.arange(count) * 0.6180339887 % 1
    return (low + 127 + (places < share)).astype(np.uint8)


@functools.cache
def _blocks(kind: str) -> Array:
    """Blocks that all tensors of a kind repeat, from a place of their own on."""
    return np.random.default_rng(0).integers(0, 256, (_PERIOD, TYPES[kind][2]), np.uint8)


def _metadata(
    sizes: Architecture, kind: str, family: str, context: int
) -> dict[str, tuple[int, bytes]]:
    plain = family in ("llama", "gpt-oss", "deepseek2")
    name = f"{family}moe" if sizes.experts and not plain else family
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
        numbers["expert_feed_forward_length"] = sizes.intermediate
    if FAMILIES[family].window:
        numbers["attention.sliding_window"] = FAMILIES[family].window
    if FAMILIES[family].is_latent:
        numbers |= _LATENT
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}
    return {
        "general.architecture": (_STRING, _text(name)),
        "general.name": (_STRING, _text("random")),
        "general.file_type": (_UINT32, struct.pack("<I", FILE_TYPES[kind])),
        **{f"{name}.{key}": (_UINT32, struct.pack("<I", n)) for key, n in numbers.items()},
        **{f"{name}.{key}": (_FLOAT32, struct.pack("<f", x)) for key, x in floats.items()},
        "tokenizer.ggml.model": (_STRING, _text("gpt2")),
        "tokenizer.ggml.tokens": (_ARRAY, _texts(tokens)),
        "tokenizer.ggml.token_type": (
            _ARRAY,
            struct.pack(f"<IQ{len(kinds)}i", _INT32, len(kinds), *kinds),
        ),
        "tokenizer.ggml.merges": (_ARRAY, _texts(["t 0"])),
        "tokenizer.ggml.pre": (_STRING, _text("smollm")),
        **{
            f"tokenizer.ggml.{use}_token_id": (_UINT32, struct.pack("<I", tokens.index(text)))
            for use, text in (*_CONTROLS.items(), ("padding", _CONTROLS["eos"]))
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
    parser.add_argument("--family", choices=FAMILIES, default="llama")
    args = parser.parse_args()
    write_random_gguf(args.path, SIZES[args.size], args.kind, args.family)
    print(f"wrote {args.path}, {args.path.stat().st_size / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
