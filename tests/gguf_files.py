"""Writes GGUF files for tests, and unpacks their blocks in float64, byte by byte of a block.

The formulas are those of ``ggml-quants.c`` of https://github.com/ggml-org/ggml, written down once
more, element by element, to judge the vectorised ones of the reader. Each is computed for all
blocks of a tensor at once: their ``data`` holds, for each byte of a block, that of all blocks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "BF16": 30,
    "MXFP4": 39,
}
ELEMENTS = dict.fromkeys(("F32", "F16", "BF16"), 1)
ELEMENTS |= dict.fromkeys(("Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), 256)
BYTES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "Q4_0": 18,
    "Q4_1": 20,
    "Q5_0": 22,
    "Q5_1": 24,
    "Q8_0": 34,
    "Q4_K": 144,
    "Q5_K": 176,
    "Q6_K": 210,
    "IQ4_NL": 18,
    "IQ4_XS": 136,
    "MXFP4": 17,
}
QUANTISED = [name for name in TYPES if name not in ("F32", "F16", "BF16")]


@dataclass
class Stored:
    """A tensor as a file holds it: its type, its shape (slowest size first) and its bytes."""

    type: str
    shape: tuple[int, ...]
    data: bytes

    def numbers(self):
        """The elements in float64."""
        if self.type in _PLAIN:
            return (
                np.frombuffer(self.data, _PLAIN[self.type]).astype(np.float64).reshape(self.shape)
            )
        blocks = np.frombuffer(self.data, np.uint8).reshape(-1, BYTES[self.type])
        numbers = globals()[f"_unpack_{self.type.lower()}"](blocks.T.astype(np.int64))
        return np.array(numbers, np.float64).T.reshape(self.shape)


_PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def stored(kind, array):
    """Numbers as a tensor of plain type."""
    array = np.asarray(array)
    return Stored(kind, array.shape, array.astype(_PLAIN[kind]).tobytes())


def random_tensor(rng, kind, shape, spread=None):
    """Random elements of mean zero; of quantised types random blocks with sound scales."""
    spread = shape[-1] ** -0.5 if spread is None else spread
    if kind in _PLAIN:
        return stored(kind, rng.normal(0, spread, shape))
    count = int(np.prod(shape)) // ELEMENTS.get(kind, 32)
    parts = _random_blocks(rng, kind, spread * rng.uniform(0.5, 1.5, count))
    return Stored(kind, tuple(shape), np.concatenate(parts, axis=1).tobytes())


def _random_blocks(rng, kind, step):
    """Parts of blocks, bytes of each in a row; values of a block are so many steps apart."""
    half = lambda numbers: numbers.astype(np.float16)[:, None].view(np.uint8)  # noqa: E731
    body = lambda size: rng.integers(0, 256, (len(step), size), np.uint8)  # noqa: E731
    match kind:
        case "Q4_0":
            return half(step / 4), body(16)
        case "Q4_1":
            return half(step / 4), half(-step / 4 * rng.uniform(6, 9, len(step))), body(16)
        case "Q5_0":
            return half(step / 8), body(20)
        case "Q5_1":
            return half(step / 8), half(-step / 8 * rng.uniform(14, 17, len(step))), body(20)
        case "Q8_0":
            return half(step / 64), body(32)
        case "Q4_K":
            return half(step / 128), half(step / 16), body(140)
        case "Q5_K":
            return half(step / 256), half(step / 16), body(172)
        case "Q6_K":
            scales = rng.integers(-64, 64, (len(step), 16), np.int8)
            return body(192), scales.view(np.uint8), half(step / 512)
        case "IQ4_NL":
            return half(step / 64), body(16)
        case "IQ4_XS":
            return half(step / 1024), body(134)
        case "MXFP4":
            exponents = np.rint(np.log2(step / 3) + 127).astype(np.uint8)
            return exponents[:, None], body(16)
    raise AssertionError(kind)


def _half(data, at):
    """Two bytes as a number."""
    return (data[at] | data[at + 1] << 8).astype(np.uint16).view(np.float16).astype(np.float64)


def _signed(byte):
    return (byte ^ 128) - 128


def _four_bits(data, at):
    """Sixteen bytes: their low halves, then their high ones."""
    return [b & 15 for b in data[at : at + 16]] + [b >> 4 for b in data[at : at + 16]]


def _five_bits(data, at):
    high = data[at] | data[at + 1] << 8 | data[at + 2] << 16 | data[at + 3] << 24
    return [q | (high >> i & 1) << 4 for i, q in enumerate(_four_bits(data, at + 4))]


def _unpack_q4_0(data):
    return [_half(data, 0) * (q - 8) for q in _four_bits(data, 2)]


def _unpack_q4_1(data):
    return [_half(data, 0) * q + _half(data, 2) for q in _four_bits(data, 4)]


def _unpack_q5_0(data):
    return [_half(data, 0) * (q - 16) for q in _five_bits(data, 2)]


def _unpack_q5_1(data):
    return [_half(data, 0) * q + _half(data, 2) for q in _five_bits(data, 4)]


def _unpack_q8_0(data):
    return [_half(data, 0) * _signed(q) for q in data[2:34]]


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])


def _unpack_iq4_nl(data):
    return [_half(data, 0) * _IQ4[q] for q in _four_bits(data, 2)]


def _unpack_iq4_xs(data):
    numbers, high = [], data[2] | data[3] << 8
    for group in range(8):
        low = data[4 + group // 2] >> 4 * (group % 2) & 15
        scale = (low | (high >> 2 * group & 3) << 4) - 32
        numbers += [_half(data, 0) * scale * _IQ4[q] for q in _four_bits(data, 8 + 16 * group)]
    return numbers


def _unpack_mxfp4(data):
    """OCP's Microscaling formats: a power of two times sign, two bits of exponent, one of 1/2."""
    scale = 2.0 ** (data[0] - 127.0)
    numbers = []
    for q in _four_bits(data, 1):
        exponent, half = q >> 1 & 3, q & 1
        size = np.where(exponent == 0, half / 2, 2.0 ** (exponent - 1.0) * (1 + half / 2))
        numbers.append(np.where(q & 8, -1, 1) * size * scale)
    return numbers


def _scale_and_offset(packed, group):
    """Six bits each: of groups 0 to 3 in bytes of their own, of 4 to 7 in what those leave."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4
    return scale, (packed[group + 4] >> 4) | (packed[group] >> 6) << 4


def _unpack_k(data, quants_at, high_at=None):
    d, dmin, packed = _half(data, 0), _half(data, 2), data[4:16]
    numbers = []
    for group in range(8):
        scale, offset = _scale_and_offset(packed, group)
        for i in range(32):
            byte = data[quants_at + group // 2 * 32 + i]
            q = byte >> 4 if group % 2 else byte & 15
            if high_at is not None:
                q += 16 * (data[high_at + i] >> group & 1)
            numbers.append(d * scale * q - dmin * offset)
    return numbers


def _unpack_q4_k(data):
    return _unpack_k(data, 16)


def _unpack_q5_k(data):
    return _unpack_k(data, 48, 16)


def _unpack_q6_k(data):
    scales, d = _signed(data[192:208]), _half(data, 208)
    numbers = []
    for i in range(256):
        part, within = divmod(i, 128)
        quarter, column = divmod(within, 32)
        low = data[part * 64 + quarter % 2 * 32 + column]
        low = low >> 4 if quarter >= 2 else low & 15
        high = data[128 + part * 32 + column] >> 2 * quarter & 3
        numbers.append(d * scales[i // 16] * ((low | high << 4) - 32))
    return numbers


# ------------------------------------------------------------------------------------ files

_INT, _SIGNED, _REAL, _BOOL, _TEXT, _ARRAY = 4, 5, 6, 7, 8, 9


def text(value):
    """A text as files hold it."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value):
    """A value of the metadata, behind the number of its type."""
    kind = _type_of(value)
    return struct.pack("<I", kind) + _payload(kind, value)


def _type_of(value):
    if isinstance(value, bool):
        return _BOOL
    kinds = ((int, _INT), (float, _REAL), ((str, bytes), _TEXT), (list, _ARRAY))
    return next(number for kind, number in kinds if isinstance(value, kind))


def _payload(kind, value):
    if kind == _ARRAY:
        inner = _type_of(value[0])
        if inner == _INT and max(value) < 1 << 31:
            inner = _SIGNED  # as llama.cpp wants the kinds of tokens
        parts = [_payload(inner, one) for one in value]
        return struct.pack("<IQ", inner, len(value)) + b"".join(parts)
    if kind == _TEXT:
        return text(value)
    return struct.pack({_INT: "<I", _SIGNED: "<i", _REAL: "<f", _BOOL: "<?"}[kind], value)


def gguf_bytes(metadata, tensors, alignment=32, version=3):
    """A whole file: metadata by key, ``Stored`` tensors by name."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key) + typed(value)
    body = b""
    for name, tensor in tensors.items():
        sizes = tensor.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", TYPES[tensor.type], len(body))
        body += tensor.data + bytes(-len(tensor.data) % alignment)
    return head + bytes(-len(head) % alignment) + body


def write_gguf(path, metadata, tensors):
    """Writes a file; returns its path."""
    path = Path(path)
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def write_parts(folder, metadata, tensors, count):
    """Writes a model as so many files, as ``llama-gguf-split --no-tensor-first-split`` does.

    The first one has the metadata and no tensors. Returns the paths.
    """
    names = [*tensors]
    own = [{}, *({n: tensors[n] for n in names[i :: count - 1]} for i in range(count - 1))]
    return [
        write_gguf(
            Path(folder) / f"model-{number + 1:05}-of-{count:05}.gguf",
            (metadata if number == 0 else {})
            | {"split.no": number, "split.count": count, "split.tensors.count": len(names)},
            part,
        )
        for number, part in enumerate(own)
    ]


# -------------------------------------------------------------------------------- decoders


def decoder_metadata(architecture="llama", **changes):
    """Metadata of a very small decoder; ``changes`` replace entries, ``None`` takes one out."""
    entries = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 256,
        "feed_forward_length": 256,
        "attention.head_count": 8,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_count": 32,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    entries.update({key.replace("__", "."): value for key, value in changes.items()})
    found = {"general.architecture": architecture, "general.name": "tiny"}
    found |= {f"{architecture}.{k}": v for k, v in entries.items() if v is not None}
    return found


def narrow_decoder_metadata(architecture="llama", **changes):
    """The same for rows too short for blocks of 256."""
    sizes = {"embedding_length": 64, "feed_forward_length": 96, "attention__head_count": 4}
    parts = ("attention__key_length", "attention__value_length", "rope__dimension_count")
    return decoder_metadata(architecture, **sizes | dict.fromkeys(parts, 16) | changes)


_QKV = {"attn_qkv": ("attn_q", "attn_k", "attn_v")}
_GATE_AND_UP = {"ffn_up": ("ffn_gate", "ffn_up")}
_JOINED = {
    "phi3": _QKV | _GATE_AND_UP,
    "glm4": _GATE_AND_UP,
    "phi2": _QKV,
    "falcon": _QKV,
    "bailingmoe2": _QKV,
}
"""Architecture to its tensors in which others lie, one behind the other."""

_CENTERED = ("command-r", "cohere2", "starcoder2", "stablelm", "phi2", "falcon")
_BIASED = ("starcoder2", "phi2")
_BIASED_QUERIES = ("qwen2", "qwen2moe", "qwen2vl", "glm4moe", "seed_oss", "gpt-oss")
_PARALLEL = ("command-r", "cohere2", "phi2", "falcon")
_NORMS = {
    **dict.fromkeys(("olmo2", "exaone4"), ()),
    **dict.fromkeys(("gpt-oss", "glm4moe", "seed_oss"), ("attn_norm", "post_attention_norm")),
}
"""Architecture to its normalizations of what blocks read, where they are not those of llama."""

_POST_NORMS = ("gemma2", "gemma3", "olmo2", "glm4", "exaone4")
_HEAD_NORMS = (
    *("qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "gemma3", "glm4moe", "exaone4", "dots1"),
    "bailingmoe2",
)
_WHOLE_NORMS = ("olmo2", "olmoe", "minimax-m2")
"""Of queries and keys, across all heads."""

_SHARED = (
    *("qwen2moe", "granitemoe", "deepseek", "deepseek2", "glm4moe", "ernie4_5-moe", "bailingmoe2"),
    "dots1",
)
_WISHED = ("glm4moe", "ernie4_5-moe", "bailingmoe2", "dots1", "minimax-m2", "deepseek2")
"""What is added to scores of experts for the choice alone."""


def _gamma(rng, count):
    """Factors of a normalization."""
    return stored("F32", rng.uniform(0.5, 1.5, count))


def _latent_tensors(rng, kind, get, block):
    """Of attention by short vectors."""
    hidden, heads = get("embedding_length"), get("attention.head_count")
    rank, query_rank = get("attention.kv_lora_rank"), get("attention.q_lora_rank")
    key, value = get("attention.key_length_mla"), get("attention.value_length_mla")
    turned = get("rope.dimension_count")

    def matrix(*shape):
        return random_tensor(rng, kind, shape)

    queries = {"attn_q.weight": matrix(heads * key, hidden)}
    if query_rank:
        queries = {
            "attn_q_a.weight": matrix(query_rank, hidden),
            "attn_q_a_norm.weight": _gamma(rng, query_rank),
            "attn_q_b.weight": matrix(heads * key, query_rank),
        }
    found = queries | {
        "attn_kv_a_mqa.weight": matrix(rank + turned, hidden),
        "attn_kv_a_norm.weight": _gamma(rng, rank),
        "attn_k_b.weight": matrix(heads, rank, key - turned),
        "attn_v_b.weight": matrix(heads, value, rank),
        "attn_output.weight": matrix(hidden, heads * value),
    }
    return {f"{block}{name}": one for name, one in found.items()}


def latent_metadata(**changes):
    """Metadata of a very small decoder of DeepSeek's kind."""
    sizes = {"key_length": 96, "value_length": 64, "key_length_mla": 64, "value_length_mla": 32}
    sizes |= {"kv_lora_rank": 64, "q_lora_rank": 96, "head_count_kv": 1}
    given = {f"attention__{key}": value for key, value in sizes.items()}
    given |= {"rope__dimension_count": 32, "leading_dense_block_count": 1, "expert_count": 8}
    given |= {"expert_used_count": 3, "expert_gating_func": 2, "expert_weights_norm": True}
    given |= {"expert_weights_scale": 1.5, "expert_shared_count": 1}
    return narrow_decoder_metadata("deepseek2", **given | changes)


def decoder_tensors(metadata, kind="F32", seed=0, vocabulary=96, embedding=None, tied=True):
    """Random tensors for metadata of a decoder.

    Args:
        metadata: What :func:`decoder_metadata` made.
        kind: Type of the weights.
        seed: Of the random numbers.
        vocabulary: Number of tokens.
        embedding: Type of the embedding, if it is another.
        tied: The last product shares the embedding's weight.
    """
    rng = np.random.default_rng(seed)
    name = metadata["general.architecture"]
    get = lambda key: metadata[f"{name}.{key}"]  # noqa: E731
    hidden, inner = get("embedding_length"), get("feed_forward_length")
    size, heads = get("attention.key_length"), get("attention.head_count")
    narrow = size * get("attention.head_count_kv")
    bias = lambda n: stored("F32", rng.normal(0, 0.3, n))  # noqa: E731
    table = random_tensor(rng, embedding or kind, (vocabulary, hidden), 0.6)
    tensors = {"token_embd.weight": table, "output_norm.weight": _gamma(rng, hidden)}
    if not tied:
        tensors["output.weight"] = random_tensor(rng, kind, (vocabulary, hidden))
    if name in _CENTERED and name not in ("command-r", "cohere2"):
        tensors["output_norm.bias"] = bias(hidden)
    if name == "phi2":
        tensors["output.bias"] = bias(vocabulary)
    experts = metadata.get(f"{name}.expert_count", 0)
    first = metadata.get(f"{name}.leading_dense_block_count", 0)
    for layer in range(get("block_count")):
        block = f"blk.{layer}."
        shapes = {
            "attn_q": (heads * size, hidden),
            "attn_k": (narrow, hidden),
            "attn_v": (narrow, hidden),
            "attn_output": (hidden, heads * size),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        if name == "deepseek2":
            tensors |= _latent_tensors(rng, kind, lambda key: metadata.get(f"{name}.{key}"), block)
            for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
                del shapes[part]
        mixed = experts and layer >= first
        if mixed:
            for part in ("ffn_gate", "ffn_up", "ffn_down"):
                shape = (experts, *shapes.pop(part))
                tensors[f"{block}{part}_exps.weight"] = random_tensor(rng, kind, shape)
                if name == "gpt-oss":
                    tensors[f"{block}{part}_exps.bias"] = bias(shape[:2])
            gate = random_tensor(rng, "F32", (experts, hidden), 0.3)
            tensors[f"{block}ffn_gate_inp.weight"] = gate
            if name in _WISHED:
                tensors[f"{block}exp_probs_b.bias"] = bias(experts)
        for part, shape in shapes.items():
            tensors[f"{block}{part}.weight"] = random_tensor(rng, kind, shape)
        if name in ("starcoder2", "phi2", "falcon"):
            del shapes["ffn_gate"], tensors[f"{block}ffn_gate.weight"]
        for joined, parts in _JOINED.get(name, {}).items():
            rows = sum(shapes[part][0] for part in parts)
            for part in parts:
                del shapes[part], tensors[f"{block}{part}.weight"]
            shapes[joined] = rows, hidden
            tensors[f"{block}{joined}.weight"] = random_tensor(rng, kind, shapes[joined])
        if name in _BIASED:
            for part, shape in shapes.items():
                tensors[f"{block}{part}.bias"] = bias(shape[0])
        norms = _NORMS.get(name, ("attn_norm", "ffn_norm"))
        for part in norms[:1] if name in _PARALLEL else norms:
            tensors[f"{block}{part}.weight"] = _gamma(rng, hidden)
            if name in _CENTERED and name not in ("command-r", "cohere2"):
                tensors[f"{block}{part}.bias"] = bias(hidden)
        if name in _SHARED and mixed:
            for part in ("gate", "up", "down"):
                shape = (hidden, inner) if part == "down" else (inner, hidden)
                tensors[f"{block}ffn_{part}_shexp.weight"] = random_tensor(rng, kind, shape)
        if name == "qwen2moe":
            tensors[f"{block}ffn_gate_inp_shexp.weight"] = stored("F32", rng.normal(0, 0.3, hidden))
        if name == "gpt-oss":
            tensors[f"{block}attn_sinks.weight"] = bias(heads)
            tensors[f"{block}attn_output.bias"] = bias(hidden)
            if experts:
                tensors[f"{block}ffn_gate_inp.bias"] = bias(experts)
        if name in _BIASED_QUERIES:
            for part in ("attn_q", "attn_k", "attn_v"):
                tensors[f"{block}{part}.bias"] = bias(shapes[part][0])
        if name in _HEAD_NORMS:
            for part in ("attn_q_norm", "attn_k_norm"):
                tensors[f"{block}{part}.weight"] = _gamma(rng, size)
        if name in _WHOLE_NORMS:
            tensors[f"{block}attn_q_norm.weight"] = _gamma(rng, heads * size)
            tensors[f"{block}attn_k_norm.weight"] = _gamma(rng, narrow)
        if name in _POST_NORMS:
            for part in ("post_attention_norm", "post_ffw_norm"):
                tensors[f"{block}{part}.weight"] = _gamma(rng, hidden)
    return tensors
