"""Logits of small random decoders of each architecture of GGUF files, beside llama.cpp's.

    NODE_LLAMA_CPP=FOLDER python benchmarks/gguf_peers.py [CASE ...]

Each case is a file that is written for it, of weights in float32. Both engines read the same
tokens; printed is how far the logits behind the last one lie apart at most, in shares of their
range, and whether both find the same token likeliest. llama.cpp keeps its cache in float16.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from generate_peers import LlamaCpp, Setting

import partita

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

CONTEXT = 256
TOKENS = np.random.default_rng(7).integers(0, 256, 90).tolist()
"""More than the windows and original contexts below."""

_SCALING = {"original_context_length": 64, "factor": 4.0}
_YARN = {"type": "yarn", **_SCALING}
_LONGROPE = {"type": "longrope", "original_context_length": 64, "attn_factor": 1.19}
_SHORT = {"type": "longrope", "original_context_length": 4096, "attn_factor": 1.19}
_GRANITE = {
    "embedding_scale": 12.0,
    "residual_scale": 0.22,
    "logit_scale": 8.0,
    "attention.scale": 0.0625,
}
_WINDOW = {"attention.sliding_window": 16}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 256}
_CHOICES = {
    **_EXPERTS,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
}
_LATENT = {
    **_CHOICES,
    "attention.head_count_kv": 1,
    "attention.key_length": 96,
    "attention.value_length": 64,
    "attention.key_length_mla": 64,
    "attention.value_length_mla": 32,
    "attention.kv_lora_rank": 64,
    "attention.q_lora_rank": 96,
}


def _scaled(scaling: dict[str, Any]) -> dict[str, Any]:
    return {f"rope.scaling.{key}": value for key, value in scaling.items()}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, linear": ("llama", _scaled({"type": "linear", "factor": 4.0})),
    "llama, yarn": ("llama", _scaled(_YARN)),
    "llama, longrope": ("llama", _scaled(_LONGROPE)),
    "llama, experts": ("llama", _EXPERTS),
    "smollm3": ("smollm3", {"block_count": 5}),
    "qwen2": ("qwen2", {}),
    "qwen2, yarn": ("qwen2", _scaled(_YARN)),
    "qwen3": ("qwen3", {}),
    "qwen2moe": ("qwen2moe", {**_EXPERTS, "expert_shared_feed_forward_length": 256}),
    "qwen3moe": ("qwen3moe", _EXPERTS),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {**_WINDOW, "block_count": 4}),
    "gemma2, caps": (
        "gemma2",
        {**_WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    ),
    "gemma3": ("gemma3", {**_WINDOW, "block_count": 7, "rope.freq_base": 1e6}),
    "gemma3, linear": (
        "gemma3",
        {**_WINDOW, "block_count": 7, **_scaled({"type": "linear", "factor": 8.0})},
    ),
    "phi3": ("phi3", {}),
    "phi3, part of a head": ("phi3", {"rope.dimension_count": 24}),
    "phi3, longrope": ("phi3", _scaled(_LONGROPE)),
    "phi3, longrope in a short context": ("phi3", _scaled(_SHORT)),
    "granite": ("granite", _GRANITE),
    "granite, logits alone": ("granite", {"logit_scale": 8.0}),
    "granitemoe": ("granitemoe", {**_GRANITE, **_EXPERTS}),
    "granitemoe, shared": (
        "granitemoe",
        {**_GRANITE, **_EXPERTS, "expert_shared_feed_forward_length": 256},
    ),
    "glm4": ("glm4", {"rope.dimension_count": 16}),
    "ernie4_5": ("ernie4_5", {}),
    "exaone": ("exaone", {}),
    "internlm2": ("internlm2", {}),
    "command-r": ("command-r", {"logit_scale": 0.0625}),
    "cohere2": ("cohere2", {**_WINDOW, "logit_scale": 0.25, "block_count": 5}),
    "starcoder2": ("starcoder2", {}),
    "stablelm": ("stablelm", {"rope.dimension_count": 8, "use_parallel_residual": False}),
    "phi2": ("phi2", {"rope.dimension_count": 8}),
    "falcon": ("falcon", {}),
    "gpt-oss": (
        "gpt-oss",
        {**_EXPERTS, "attention.sliding_window": 16, "block_count": 4},
    ),
    "mistral3": (
        "mistral3",
        {**_scaled({**_YARN, "yarn_log_multiplier": 1.0}), "attention.temperature_scale": 0.1},
    ),
    "deepseek2": ("deepseek2", _LATENT),
    "deepseek2, yarn": (
        "deepseek2",
        {**_LATENT, **_scaled({**_YARN, "yarn_log_multiplier": 0.1})},
    ),
    "deepseek2, softmax": ("deepseek2", {**_LATENT, "expert_gating_func": 1}),
    "deepseek": (
        "deepseek",
        {**_EXPERTS, "leading_dense_block_count": 1, "expert_shared_count": 1}
        | {"expert_weights_scale": 1.0},
    ),
    "glm4moe": ("glm4moe", {**_CHOICES, "block_count": 3, "rope.dimension_count": 16}),
    "bailingmoe2": ("bailingmoe2", {**_CHOICES, "block_count": 3}),
    "dots1": ("dots1", {**_CHOICES, "block_count": 3}),
    "minimax-m2": ("minimax-m2", {**_EXPERTS, "expert_gating_func": 2}),
    "olmoe": ("olmoe", {**_EXPERTS, "attention.head_count_kv": 8}),
    "ernie4_5-moe": (
        "ernie4_5-moe",
        {**_EXPERTS, "leading_dense_block_count": 1, "block_count": 3}
        | {"expert_shared_count": 1, "interleave_moe_layer_step": 1}
        | {"expert_shared_feed_forward_length": 256},
    ),
    "exaone4": ("exaone4", {}),
    "seed_oss": ("seed_oss", {}),
    "qwen2vl": ("qwen2vl", {"rope.dimension_sections": [6, 5, 5, 0]}),
    "qwen3vl": ("qwen3vl", {"rope.dimension_sections": [6, 5, 5, 0]}),
    "qwen3vlmoe": (
        "qwen3vlmoe",
        {**_EXPERTS, "rope.dimension_sections": [6, 5, 5, 0]},
    ),
    "olmo2": ("olmo2", {}),
    "olmo2, yarn and windows": ("olmo2", {**_WINDOW, "block_count": 4, **_scaled(_YARN)}),
}
"""Name to the architecture, and to what its metadata has beside that of all."""


def write_case(path: Path, name: str) -> None:
    """Writes a case's file."""
    from gguf_files import decoder_metadata, decoder_tensors, stored, write_gguf
    from tiny_gguf import VOCABULARY, write_tiny_gguf

    architecture, changes = CASES[name]
    metadata = decoder_metadata(architecture, context_length=512)
    metadata |= {f"{architecture}.{key}": value for key, value in changes.items()}
    tied = architecture.startswith("gemma") or architecture in ("command-r", "cohere2")
    tensors = decoder_tensors(metadata, "F32", vocabulary=VOCABULARY, tied=tied)
    if architecture == "granitemoe" and "expert_shared_feed_forward_length" not in changes:
        tensors = {key: one for key, one in tensors.items() if "shexp" not in key}
    if "longrope" in name:
        pairs = metadata[f"{architecture}.rope.dimension_count"] // 2
        tensors["rope_factors_short.weight"] = stored("F32", np.linspace(1, 2, pairs))
        tensors["rope_factors_long.weight"] = stored("F32", np.linspace(1, 30, pairs))
    plain, _ = write_tiny_gguf(path)  # for its tokens
    vocabulary = {key: value for key, value in plain.items() if key.startswith("tokenizer.")}
    write_gguf(path, metadata | vocabulary, tensors)


def own_logits(model: partita.Model) -> np.ndarray[Any, Any]:
    """Device CPU's, in float32."""
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    request.infer(
        {
            "input_ids": np.array([TOKENS], np.int64),
            "seqlens_k": np.array([len(TOKENS) - 1], np.int32),
            "total_sequence_length": np.array(len(TOKENS), np.int32),
        }
    )
    return np.array(request.get_tensor("logits").data, np.float64).reshape(-1)


def compare(path: Path) -> tuple[float, bool]:
    """How far logits lie apart at most, in shares of their range; whether the best is the same."""
    options = partita.DecoderOptions(context=CONTEXT)
    model = partita.Core().read_model(path, decoder=options)
    peer = LlamaCpp(Setting(path, model, CONTEXT, 1, path.parent))
    due = np.array(peer.ask("logits", logits=TOKENS)["logits"])
    peer.end()
    found = own_logits(model)
    return float(np.abs(found - due).max() / np.ptp(due)), found.argmax() == due.argmax()


def main() -> int:
    """Compares; returns how many cases differ by more than a hundredth of the logits' range."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in parser.parse_args().cases:
            path = Path(folder) / "tiny.gguf"
            write_case(path, name)
            apart, same = compare(path)
            wrong += apart > 0.01
            sys.stdout.write(f"{name:40} {apart:8.1e}  {'same' if same else 'other'} token\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
