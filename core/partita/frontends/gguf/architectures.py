"""What the decoders of a GGUF file's architecture have in common, a line for each name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Architecture:
    """What decoders of one name have in common.

    Attributes:
        rotary_interleaved: Rotary embedding turns elements 2 i and 2 i + 1 of a head, not i and
            i + half: converters have reordered the weights of queries and keys so.
        activation: Of the gate in the feed-forward part; ``"gelu"`` is the one by tanh, and
            ``"swiglu"`` bounds gates and what they let through, as GPT-OSS does.
        gated: The feed-forward part has a gate; else what is between its products is activated.
        centered: Normalizations subtract the mean, and may add a bias.
        parallel: Attention and the feed-forward part read the same normalized stream.
        scales_embedding: Embeddings are multiplied by the root of their size.
        multipliers: The file has factors of embeddings and of what blocks add to the residual
            stream, and what logits are divided by.
        logit_factor: The file has a factor of logits.
        global_every: Every so many layers, the last of them, one attends to all positions and the
            others to a window; 0 where all layers attend to all.
        window_everywhere: All layers attend to the window of the file, if it has one.
        local_rope_base: Base of the rotary frequencies in layers with a window; 0 for the same.
        stretches_global: The file stretches rotary frequencies in layers without a window alone.
        window: Positions that such layers attend to where the file does not say; 0 for all.
        attention_softcap: Bound of products of queries and keys where the file does not say; 0 for
            none.
        logit_softcap: The same for logits.
        shares: Of the experts that a token chose: softmax of their scores alone; parts of the
            softmax of all scores, as they are; these divided by their sum; or what the file says.
        unrotated_every: Every so many layers, the last of them, one has no rotary embedding; 0
            where all have it.
        rotates_windows: Only layers with a window have it.
        shared_expert: Beside the experts that tokens choose from there is one for all, which a gate
            of its own lets through; or there may be one that is added as it is.
        normalizes_results: Blocks normalize what they add to the residual stream instead of what
            they read of it.
        feed_forward_norm: Name of the normalization before the feed-forward part.
        latent: Keys and values are products of one short vector for each token, which the caches
            hold instead.
        untruncated_yarn: Frequencies that yarn stretches begin and end between whole pairs.
        reads_sections: The file gives parts of heads to time, height and width of pictures; of
            texts, which are what is read here, all of these are the position.
    """

    rotary_interleaved: bool = False
    activation: Literal["silu", "gelu", "gelu by erf", "swiglu"] = "silu"
    gated: bool = True
    centered: bool = False
    parallel: bool = False
    scales_embedding: bool = False
    multipliers: bool = False
    logit_factor: bool = False
    global_every: int = 0
    window_everywhere: bool = False
    local_rope_base: float = 0.0
    stretches_global: bool = False
    window: int = 0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    shares: Literal["of chosen", "of all", "of all, normalized", "by file"] = "of chosen"
    shared_expert: Literal["none", "gated", "plain"] = "none"
    normalizes_results: bool = False
    unrotated_every: int = 0
    rotates_windows: bool = False
    feed_forward_norm: str = "ffn_norm"
    latent: bool = False
    untruncated_yarn: bool = False
    reads_sections: bool = False


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(rotary_interleaved=True),
    "smollm3": Architecture(rotary_interleaved=True, unrotated_every=4),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "qwen2moe": Architecture(shares="of all", shared_expert="gated"),
    "qwen3moe": Architecture(),
    "qwen2vl": Architecture(reads_sections=True),
    "qwen3vl": Architecture(reads_sections=True),
    "qwen3vlmoe": Architecture(reads_sections=True),
    "gpt-oss": Architecture(
        activation="swiglu",
        global_every=2,
        feed_forward_norm="post_attention_norm",
        untruncated_yarn=True,
    ),
    "mistral3": Architecture(rotary_interleaved=True),
    "deepseek": Architecture(rotary_interleaved=True, shares="by file", shared_expert="plain"),
    "deepseek2": Architecture(
        rotary_interleaved=True, shares="by file", shared_expert="plain", latent=True
    ),
    "gemma": Architecture(activation="gelu", scales_embedding=True),
    "gemma2": Architecture(
        activation="gelu",
        scales_embedding=True,
        global_every=2,
        window=4096,
        attention_softcap=50.0,
        logit_softcap=30.0,
    ),
    "gemma3": Architecture(
        activation="gelu", scales_embedding=True, global_every=6, local_rope_base=10000.0
    ),
    "phi3": Architecture(window_everywhere=True),
    "granite": Architecture(rotary_interleaved=True, multipliers=True),
    "granitemoe": Architecture(rotary_interleaved=True, multipliers=True, shared_expert="plain"),
    "glm4": Architecture(rotary_interleaved=True),
    "glm4moe": Architecture(
        shares="by file", shared_expert="plain", feed_forward_norm="post_attention_norm"
    ),
    "ernie4_5": Architecture(rotary_interleaved=True),
    "ernie4_5-moe": Architecture(
        rotary_interleaved=True, shares="of all, normalized", shared_expert="plain"
    ),
    "exaone": Architecture(),
    "exaone4": Architecture(global_every=4, rotates_windows=True, normalizes_results=True),
    "seed_oss": Architecture(feed_forward_norm="post_attention_norm"),
    "bailingmoe2": Architecture(shares="by file", shared_expert="plain"),
    "dots1": Architecture(shares="by file", shared_expert="plain"),
    "minimax-m2": Architecture(shares="by file"),
    "olmoe": Architecture(shares="of all"),
    "internlm2": Architecture(rotary_interleaved=True),
    "olmo2": Architecture(global_every=4, stretches_global=True, normalizes_results=True),
    "command-r": Architecture(
        rotary_interleaved=True, centered=True, parallel=True, logit_factor=True
    ),
    "cohere2": Architecture(
        rotary_interleaved=True,
        centered=True,
        parallel=True,
        logit_factor=True,
        global_every=4,
        rotates_windows=True,
    ),
    "starcoder2": Architecture(activation="gelu", gated=False, centered=True),
    "stablelm": Architecture(centered=True),
    "phi2": Architecture(activation="gelu", gated=False, centered=True, parallel=True),
    "falcon": Architecture(activation="gelu by erf", gated=False, centered=True, parallel=True),
}
"""The decoders that are read; files of SmolLM, SmolLM2 and Mistral say "llama", those of
Phi-4 "phi3", of OLMo 3 "olmo2"."""
