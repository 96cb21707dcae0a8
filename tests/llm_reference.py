"""Decoders of GGUF files in float64, position by position: the judge of every device's answer.

Written after the models' own descriptions, for reading, not for speed: keys and values of all
positions are kept in lists, and each position looks at all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class ReferenceDecoder:
    """A decoder that takes a token at a time.

    Attributes:
        metadata: The file's, with the architecture under ``general.architecture``.
        weights: Tensor name to its elements in float64.
        cache_type: To which keys and values are rounded; int8 has a scale for each head and token.
    """

    metadata: dict
    weights: dict[str, np.ndarray]
    cache_type: type = np.float64
    keys: list = field(default_factory=list)
    values: list = field(default_factory=list)
    position: int = 0

    def __post_init__(self):
        self.name = self.metadata["general.architecture"]
        self.layers = self.get("block_count")
        self.heads = self.get("attention.head_count")
        self.kv_heads = self.get("attention.head_count_kv", self.heads)
        hidden = self.get("embedding_length")
        self.size = self.get("attention.key_length", hidden // self.heads)
        self.gemma = self.name.startswith("gemma")
        attention, logits = (50.0, 30.0) if self.name == "gemma2" else (0.0, 0.0)
        self.attention_bound = self.get("attn_logit_softcapping", attention)
        self.logit_bound = self.get("final_logit_softcapping", logits)
        self.reset()

    def get(self, key, default=None):
        """An entry of the architecture."""
        return self.metadata.get(f"{self.name}.{key}", default)

    def reset(self):
        """Forgets all positions."""
        self.keys = [[] for _ in range(self.layers)]
        self.values = [[] for _ in range(self.layers)]
        self.position = 0

    def run(self, tokens):
        """Logits [tokens, vocabulary] of tokens that follow those before."""
        return np.array([self.step(token) for token in tokens])

    def greedy(self, tokens, count):
        """The ``count`` likeliest tokens, one after the other, behind a prompt."""
        self.reset()
        logits, found = self.run(tokens)[-1], []
        for _ in range(count):
            found.append(int(logits.argmax()))
            logits = self.step(found[-1])
        return found

    def step(self, token):
        """Logits behind one more token."""
        x = self.weights["token_embd.weight"][token].copy()
        if self.gemma:
            x *= math.sqrt(len(x))
        for layer in range(self.layers):
            x = x + self._attention(self._norm(x, f"blk.{layer}.attn_norm"), layer)
            x = x + self._feed_forward(self._norm(x, f"blk.{layer}.ffn_norm"), layer)
        self.position += 1
        last = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return _capped(last @ self._norm(x, "output_norm"), self.logit_bound)

    def _norm(self, x, name):
        epsilon = self.get("attention.layer_norm_rms_epsilon")
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + epsilon) * self.weights[f"{name}.weight"]

    def _norm_if_there(self, x, name):
        return self._norm(x, name) if f"{name}.weight" in self.weights else x

    def _linear(self, x, name):
        return self.weights[f"{name}.weight"] @ x + self.weights.get(f"{name}.bias", 0)

    def _window(self, layer):
        """Positions that a layer sees."""
        every = {"gemma2": 2, "gemma3": 6}.get(self.name, 0)
        every = self.get("attention.sliding_window_pattern", every)
        local = every[layer] if isinstance(every, list) else every and (layer + 1) % every
        return self.get("attention.sliding_window", math.inf) if local else math.inf

    def _attention(self, x, layer):
        block = f"blk.{layer}."
        q = self._linear(x, f"{block}attn_q").reshape(self.heads, self.size)
        k = self._linear(x, f"{block}attn_k").reshape(self.kv_heads, self.size)
        v = self._linear(x, f"{block}attn_v").reshape(self.kv_heads, self.size)
        q = self._norm_if_there(q, f"{block}attn_q_norm")
        k = self._norm_if_there(k, f"{block}attn_k_norm")
        local = self._window(layer) < math.inf
        if self.name != "smollm3" or (layer + 1) % 4:  # of which each fourth layer turns nothing
            q, k = self._rotated(q, local), self._rotated(k, local)
        self.keys[layer].append(self._rounded(k))
        self.values[layer].append(self._rounded(v))
        first = max(0, self.position + 1 - self._window(layer))
        keys = np.array(self.keys[layer][int(first) :])
        values = np.array(self.values[layer][int(first) :])
        heads = []
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads
            scores = keys[:, group] @ q[head] / math.sqrt(self.size)
            scores = _capped(scores, self.attention_bound)
            shares = np.exp(scores - scores.max())
            heads.append(shares / shares.sum() @ values[:, group])
        result = self._linear(np.concatenate(heads), f"{block}attn_output")
        return self._norm_if_there(result, f"{block}post_attention_norm")

    def _rounded(self, x):
        if self.cache_type == np.int8:
            scale = np.abs(x).max(-1, keepdims=True) / 127
            return np.rint(x / scale) * scale
        return x.astype(self.cache_type).astype(np.float64)

    def _rotated(self, x, local):
        """Pairs of elements of each head as complex numbers, turned by the position."""
        half = self.size // 2
        angles = self.position * self._frequencies(local and self.name == "gemma3")
        turn = np.exp(1j * angles) * self._magnitude()
        if self.name in ("llama", "smollm3"):  # their pairs lie side by side
            turned = (x[:, 0::2] + 1j * x[:, 1::2]) * turn
            return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
        turned = (x[:, :half] + 1j * x[:, half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _magnitude(self):
        told = self.get("rope.scaling.attn_factor", 1.0)
        if self.get("rope.scaling.type") != "yarn":
            return told
        return told * (0.1 * math.log(self.get("rope.scaling.factor")) + 1)

    def _frequencies(self, plain):
        base = 10000.0 if plain else self.get("rope.freq_base", 10000.0)
        found = []
        for pair in range(self.size // 2):
            frequency = base ** (-2 * pair / self.size)
            if "rope_freqs.weight" in self.weights:
                frequency /= self.weights["rope_freqs.weight"][pair]
            found.append(frequency if plain else self._scaled(frequency, pair, base))
        return np.array(found)

    def _scaled(self, frequency, pair, base):
        factor = self.get("rope.scaling.factor", 1.0)
        if self.get("rope.scaling.type") == "linear":
            return frequency / factor
        if self.get("rope.scaling.type") != "yarn":
            return frequency
        length = self.get("rope.scaling.original_context_length", self.get("context_length"))

        def pair_with(turns):  # the pair that turns so often in the original context
            return self.size / 2 * math.log(length / (turns * 2 * math.pi), base)

        low = max(math.floor(pair_with(32)), 0)
        high = min(math.ceil(pair_with(1)), self.size - 1)
        share = min(max((pair - low) / max(high - low, 1e-3), 0), 1)
        return frequency * (1 - share) + frequency / factor * share

    def _feed_forward(self, x, layer):
        block = f"blk.{layer}."
        if f"{block}ffn_gate_inp.weight" in self.weights:
            return self._experts(x, block)
        gate, up = self._linear(x, f"{block}ffn_gate"), self._linear(x, f"{block}ffn_up")
        result = self._linear(self._active(gate) * up, f"{block}ffn_down")
        return self._norm_if_there(result, f"{block}post_ffw_norm")

    def _experts(self, x, block):
        """The likeliest experts, each by its part of what these have of the probability.

        Of qwen2moe parts are of the probability of all, and one expert is for all tokens.
        """
        scores = self._linear(x, f"{block}ffn_gate_inp")
        probable = np.exp(scores - scores.max())
        chosen = np.argsort(-probable)[: self.get("expert_used_count")]
        result = 0
        for expert in chosen:
            gate, up, down = (
                self.weights[f"{block}ffn_{part}_exps.weight"][expert]
                for part in ("gate", "up", "down")
            )
            of = probable if self.name == "qwen2moe" else probable[chosen]
            share = probable[expert] / of.sum()
            result = result + share * (down @ (self._active(gate @ x) * (up @ x)))
        if self.name != "qwen2moe":
            return result
        gate, up = (
            self._linear(x, f"{block}ffn_gate_shexp"),
            self._linear(x, f"{block}ffn_up_shexp"),
        )
        shared = self._linear(self._active(gate) * up, f"{block}ffn_down_shexp")
        score = self.weights[f"{block}ffn_gate_inp_shexp.weight"] @ x
        return result + shared / (1 + np.exp(-score))

    def _active(self, gate):
        if self.gemma:
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            return gate * (1 + np.tanh(inner)) / 2
        return gate / (1 + np.exp(-gate))


def _capped(numbers, bound):
    return numbers if not bound else bound * np.tanh(numbers / bound)
