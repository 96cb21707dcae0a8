"""GGUF files that were changed: metadata, tables of tensors, and bytes anywhere."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np

from .cores import guarded_core
from .numbers import FLOATS, hostile_integer

sys.path.append(str(Path(__file__).parents[1]))

_KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "IQ4_NL")
_OTHERS = ("phi3", "granite", "olmo2", "command-r", "falcon", "exaone4", "mistral3", "gpt-oss")
_TEXTS = ("", "none", "linear", "yarn", "longrope", "llama", "qwen2", "\0", "a" * 70000)


def case(seed):
    """Reads one file, compiles it for device CPU, and runs a prompt."""
    rng = np.random.default_rng(seed)
    data = changed(rng)
    yield f"{len(data)} bytes"
    model = guarded_core().read_model(data)
    yield "read"
    model.reshape({port.name: _fixed(port.shape) for port in model.inputs})
    request = guarded_core().compile_model(model, "CPU").create_infer_request()
    yield "compiled"
    feeds = {"input_ids": rng.integers(-2, 18, (1, 3)), "seqlens_k": np.array([2], np.int32)}
    request.infer(feeds | {"total_sequence_length": np.array(3, np.int32)})


def _fixed(shape):
    return [1 if dim == "batch" else dim for dim in shape]


def changed(rng):
    """A file with entries of the metadata, tensors or bytes changed."""
    from gguf_files import Stored, gguf_bytes

    metadata, tensors = (dict(part) for part in files()[rng.integers(len(files()))])
    kind = rng.integers(4)
    if kind == 0:
        keys = list(metadata)
        for _ in range(rng.integers(1, 3)):
            metadata[keys[rng.integers(len(keys))]] = _hostile_entry(rng)
    if kind == 1:
        names = list(tensors)
        name, other = (names[i] for i in rng.integers(len(names), size=2))
        shape = list(tensors[name].shape)
        shape[rng.integers(len(shape))] = abs(hostile_integer(rng)) % 2**63
        swapped = tensors[other]
        again = Stored(tensors[name].type, tuple(shape), tensors[name].data)
        tensors[name] = swapped if rng.random() < 0.5 else again
    data = bytearray(gguf_bytes(metadata, tensors))
    if kind >= 2:
        end = len(data) if kind == 2 else data.rindex([*tensors][-1].encode()) + 60
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(end)] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
    if rng.random() < 0.1:
        del data[rng.integers(len(data)) :]
    return bytes(data)


def _hostile_entry(rng):
    match rng.integers(4):
        case 0:
            return abs(hostile_integer(rng)) % 2**32
        case 1:
            return float(np.float32(np.clip(FLOATS[rng.integers(len(FLOATS))], -3e38, 3e38)))
        case 2:
            return _TEXTS[rng.integers(len(_TEXTS))]
        case _:
            return [abs(hostile_integer(rng)) % 2**32 for _ in range(rng.integers(1, 4))]


@functools.cache
def files():
    """Metadata and tensors of sound files."""
    from gguf_files import decoder_tensors, latent_metadata, narrow_decoder_metadata, stored

    made = []
    for number, kind in enumerate(_KINDS):
        name = ("llama", "qwen2", "qwen3", "gemma2")[number % 4]
        experts = {"expert_count": 3, "expert_used_count": 2} if kind == "Q8_0" else {}
        window = {"attention__sliding_window": 2} if name == "gemma2" else {}
        scaling = {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0}
        scaling["rope__scaling__original_context_length"] = 32
        metadata = narrow_decoder_metadata(
            "llama" if experts else name, block_count=1, **experts, **window, **scaling
        )
        made.append((metadata, decoder_tensors(metadata, kind, vocabulary=16)))
    for name, kind in zip(_OTHERS, _KINDS, strict=False):
        factors = {"logit_scale": 0.5, "residual_scale": 0.2, "attention__sliding_window": 2}
        if name == "mistral3":
            factors = {"attention__temperature_scale": 0.1, "rope__scaling__type": "yarn"}
            factors["rope__scaling__original_context_length"] = 16
        if name == "gpt-oss":
            factors |= {"expert_count": 3, "expert_used_count": 2}
        metadata = narrow_decoder_metadata(name, block_count=1, **factors)
        tensors = decoder_tensors(metadata, kind, vocabulary=16)
        if name == "phi3":
            for length in ("short", "long"):
                divisors = stored("F32", np.linspace(1, 9, 8))
                tensors[f"rope_factors_{length}.weight"] = divisors
        made.append((metadata, tensors))
    groups = {"expert_group_count": 4, "expert_group_used_count": 2}
    for changes in (groups, {"attention__q_lora_rank": 0, "nextn_predict_layers": 0}):
        metadata = latent_metadata(**changes)
        made.append((metadata, decoder_tensors(metadata, "Q8_0", vocabulary=16)))
    return made
