"""Decoders of GGUF files in float64, position by position: the judge of every device's answer.

Written after the models' own descriptions, for reading, not for speed: keys and values of all
positions are kept in lists, and each position looks at all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

CENTERED = ("command-r", "cohere2", "starcoder2", "stablelm", "phi2", "falcon")
"""Architectures whose normalizations subtract the mean."""

INTERLEAVED = (
    *("llama", "smollm3", "granite", "granitemoe", "glm4", "ernie4_5", "internlm2"),
    *("command-r", "cohere2"),
)
"""Those of which pairs that rotary embedding turns lie side by side."""


@dataclass
class ReferenceDecoder:
    """A decoder that takes a token at a time.

    Attributes:
        metadata: The file's, with the architecture under ``general.architecture``.
        weights: Tensor name to its elements in float64.
        context: Room of the caches; longrope divides frequencies by other numbers in a long one.
        cache_type: To which keys and values are rounded; int8 has a scale for each head and token.
    """

    metadata: dict
    weights: dict[str, np.ndarray]
    cache_type: type = np.float64
    context: int = 0
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
        self.rotated = self.get("rope.dimension_count", self.size)
        self.gemma = self.name.startswith("gemma")
        self.granite = self.name.startswith("granite")
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
        x *= self._factor("embedding_scale")
        share = self._factor("residual_scale")
        for layer in range(self.layers):
            read = self._norm_if_there(x, f"blk.{layer}.attn_norm")
            own = f"blk.{layer}.attn_norm_2"  # of Falcon 40B
            attended = self._norm(x, own) if f"{own}.weight" in self.weights else read
            x = x + share * self._attention(attended, layer)
            if self.name == "olmo2":
                read = x
            elif f"blk.{layer}.ffn_norm.weight" in self.weights:
                read = self._norm(x, f"blk.{layer}.ffn_norm")
            # else both halves of the block read the same
            x = x + share * self._feed_forward(read, layer)
        self.position += 1
        last = self.weights.get("output.weight", self.weights["token_embd.weight"])
        logits = last @ self._norm(x, "output_norm") + self.weights.get("output.bias", 0)
        logits = logits / self._factor("logit_scale")
        if self.name in ("command-r", "cohere2"):
            logits = logits * self.get("logit_scale")
        return _capped(logits, self.logit_bound)

    def _factor(self, key):
        """One of those that files of Granite have."""
        return self.get(key, 1.0) if self.granite else 1.0

    def _norm(self, x, name):
        epsilon = self.get("attention.layer_norm_rms_epsilon")
        if self.name in CENTERED:
            epsilon = self.get("attention.layer_norm_epsilon")
            x = x - np.mean(x, axis=-1, keepdims=True)
        mean = np.mean(x * x, axis=-1, keepdims=True)
        normal = x / np.sqrt(mean + epsilon) * self.weights[f"{name}.weight"]
        return normal + self.weights.get(f"{name}.bias", 0)

    def _norm_if_there(self, x, name):
        return self._norm(x, name) if f"{name}.weight" in self.weights else x

    def _linear(self, x, name):
        return self.weights[f"{name}.weight"] @ x + self.weights.get(f"{name}.bias", 0)

    def _window(self, layer):
        """Positions that a layer sees."""
        every = {"gemma2": 2, "gemma3": 6, "olmo2": 4, "cohere2": 4}.get(self.name, 0)
        if self.name == "phi3":  # a window for all layers
            return self.get("attention.sliding_window", 0) or math.inf
        every = self.get("attention.sliding_window_pattern", every)
        local = every[layer] if isinstance(every, list) else every and (layer + 1) % every
        return self.get("attention.sliding_window", math.inf) if local else math.inf

    def _attention(self, x, layer):
        block = f"blk.{layer}."
        q, k, v = self._queries_keys_values(x, block)
        local = self._window(layer) < math.inf
        turns = {"smollm3": (layer + 1) % 4 > 0, "cohere2": local}  # some layers turn nothing
        if turns.get(self.name, True):
            q, k = self._rotated(q, local), self._rotated(k, local)
        self.keys[layer].append(self._rounded(k))
        self.values[layer].append(self._rounded(v))
        first = max(0, self.position + 1 - self._window(layer))
        keys = np.array(self.keys[layer][int(first) :])
        values = np.array(self.values[layer][int(first) :])
        heads = []
        for head in range(self.heads):
            group = head * self.kv_heads // self.heads
            scale = self.get("attention.scale", 1 / math.sqrt(self.size))
            scores = keys[:, group] @ q[head] * scale
            scores = _capped(scores, self.attention_bound)
            shares = np.exp(scores - scores.max())
            heads.append(shares / shares.sum() @ values[:, group])
        result = self._linear(np.concatenate(heads), f"{block}attn_output")
        return self._norm_if_there(result, f"{block}post_attention_norm")

    def _queries_keys_values(self, x, block):
        """Each [heads, size]; norms are of a head or, in OLMo 2, of all heads together."""
        if f"{block}attn_qkv.weight" in self.weights:
            queries, narrow = self.heads * self.size, self.kv_heads * self.size
            joined = self._linear(x, f"{block}attn_qkv")
            q, k, v = np.split(joined, [queries, queries + narrow])
        else:
            q, k, v = (self._linear(x, f"{block}attn_{part}") for part in "qkv")
        if self.name == "olmo2":
            q, k = self._norm(q, f"{block}attn_q_norm"), self._norm(k, f"{block}attn_k_norm")
        q, k, v = (part.reshape(-1, self.size) for part in (q, k, v))
        if self.name == "olmo2":
            return q, k, v
        q = self._norm_if_there(q, f"{block}attn_q_norm")
        return q, self._norm_if_there(k, f"{block}attn_k_norm"), v

    def _rounded(self, x):
        if self.cache_type == np.int8:
            scale = np.abs(x).max(-1, keepdims=True) / 127
            return np.rint(x / scale) * scale
        return x.astype(self.cache_type).astype(np.float64)

    def _rotated(self, x, local):
        """Pairs of elements of each head as complex numbers, turned by the position."""
        x, kept = x[:, : self.rotated], x[:, self.rotated :]
        half = self.rotated // 2
        plain = local and self.name in ("gemma3", "olmo2")
        angles = self.position * self._frequencies(plain)
        magnitude = 1 if plain and self.name == "olmo2" else self._magnitude()
        turn = np.exp(1j * angles) * magnitude
        if self.name in INTERLEAVED:
            turned = (x[:, 0::2] + 1j * x[:, 1::2]) * turn
            turned = np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
        else:
            turned = (x[:, :half] + 1j * x[:, half:]) * turn
            turned = np.concatenate([turned.real, turned.imag], axis=-1)
        return np.concatenate([turned, kept], axis=-1)

    def _magnitude(self):
        told = self.get("rope.scaling.attn_factor", 1.0)
        if self.get("rope.scaling.type") != "yarn":
            return told
        return told * (0.1 * math.log(self.get("rope.scaling.factor")) + 1)

    def _frequencies(self, plain):
        base = self.get("rope.freq_base", 10000.0)
        if plain and self.name == "gemma3":
            base = 10000.0
        original = self.get("rope.scaling.original_context_length", math.inf)
        factors = "long" if self.context > original else "short"
        found = []
        for pair in range(self.rotated // 2):
            frequency = base ** (-2 * pair / self.rotated)
            for name in ("rope_freqs.weight", f"rope_factors_{factors}.weight"):
                if name in self.weights:
                    frequency /= self.weights[name][pair]
            found.append(frequency if plain else self._scaled(frequency, pair, base))
        return np.array(found)

    def _scaled(self, frequency, pair, base):
        factor = self.get("rope.scaling.factor", 1.0)
        if self.get("rope.scaling.type") in ("linear", "longrope"):
            return frequency / factor
        if self.get("rope.scaling.type") != "yarn":
            return frequency
        length = self.get("rope.scaling.original_context_length", self.get("context_length"))

        def pair_with(turns):  # the pair that turns so often in the original context
            return self.rotated / 2 * math.log(length / (turns * 2 * math.pi), base)

        low = max(math.floor(pair_with(32)), 0)
        high = min(math.ceil(pair_with(1)), self.rotated - 1)
        share = min(max((pair - low) / max(high - low, 1e-3), 0), 1)
        return frequency * (1 - share) + frequency / factor * share

    def _feed_forward(self, x, layer):
        block = f"blk.{layer}."
        if f"{block}ffn_gate_inp.weight" in self.weights:
            return self._experts(x, block)
        up = self._linear(x, f"{block}ffn_up")
        if f"{block}ffn_gate.weight" in self.weights:
            gate = self._linear(x, f"{block}ffn_gate")
        elif self.name in ("starcoder2", "phi2", "falcon"):
            return self._linear(self._active(up), f"{block}ffn_down")
        else:
            gate, up = np.split(up, 2)
        result = self._linear(self._active(gate) * up, f"{block}ffn_down")
        return self._norm_if_there(result, f"{block}post_ffw_norm")

    def _experts(self, x, block):
        """The likeliest experts, each by its part of what these have of the probability.

        Of qwen2moe parts are of the probability of all. One expert may be for all tokens.
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
        if f"{block}ffn_up_shexp.weight" not in self.weights:
            return result
        gate, up = (
            self._linear(x, f"{block}ffn_gate_shexp"),
            self._linear(x, f"{block}ffn_up_shexp"),
        )
        shared = self._linear(self._active(gate) * up, f"{block}ffn_down_shexp")
        if self.name != "qwen2moe":
            return result + shared
        score = self.weights[f"{block}ffn_gate_inp_shexp.weight"] @ x
        return result + shared / (1 + np.exp(-score))

    def _active(self, gate):
        if self.name == "falcon":
            return gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2
        if self.gemma or self.name in ("starcoder2", "phi2"):
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            return gate * (1 + np.tanh(inner)) / 2
        return gate / (1 + np.exp(-gate))


def _capped(numbers, bound):
    return numbers if not bound else bound * np.tanh(numbers / bound)
