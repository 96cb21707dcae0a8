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
    *("command-r", "cohere2", "mistral3", "deepseek", "deepseek2", "ernie4_5-moe"),
)
"""Those of which pairs that rotary embedding turns lie side by side."""


PRE_NORMS = ("gpt-oss", "glm4moe", "seed_oss")
"""Those that call the normalization before the feed-forward part as others call that behind
attention."""

WHOLE_NORMS = ("olmo2", "olmoe", "minimax-m2")
"""Those that normalize queries and keys of all heads together."""


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
            if self.name in ("olmo2", "exaone4"):
                read = x
            elif self.name in PRE_NORMS:
                read = self._norm(x, f"blk.{layer}.post_attention_norm")
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
        every = {"gemma2": 2, "gemma3": 6, "olmo2": 4, "cohere2": 4, "gpt-oss": 2, "exaone4": 4}
        every = every.get(self.name, 0)
        if self.name == "phi3":  # a window for all layers
            return self.get("attention.sliding_window", 0) or math.inf
        every = self.get("attention.sliding_window_pattern", every)
        local = every[layer] if isinstance(every, list) else every and (layer + 1) % every
        return self.get("attention.sliding_window", math.inf) if local else math.inf

    def _attention(self, x, layer):
        if self.name == "deepseek2":
            return self._latent_attention(x, layer)
        block = f"blk.{layer}."
        q, k, v = self._queries_keys_values(x, block)
        local = self._window(layer) < math.inf
        turns = {"smollm3": (layer + 1) % 4 > 0, "cohere2": local}  # some layers turn nothing
        if self.get("attention.sliding_window"):
            turns["exaone4"] = local
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
            scores = keys[:, group] @ q[head] * scale * self._sharpness()
            scores = _capped(scores, self.attention_bound)
            if f"{block}attn_sinks.weight" in self.weights:
                scores = np.append(scores, self.weights[f"{block}attn_sinks.weight"][head])
            shares = np.exp(scores - scores.max())
            shares = (shares / shares.sum())[: len(values)]
            heads.append(shares @ values[:, group])
        result = self._linear(np.concatenate(heads), f"{block}attn_output")
        if self.name in PRE_NORMS:
            return result
        return self._norm_if_there(result, f"{block}post_attention_norm")

    def _sharpness(self):
        """What products of queries and keys are multiplied by at this position."""
        scale = self.get("attention.temperature_scale", 0.0)
        step = self.get("rope.scaling.original_context_length", self.get("context_length"))
        return 1 + scale * math.log(1 + self.position // step)

    def _latent_attention(self, x, layer):
        """Of DeepSeek, with keys and values of each head made from all vectors so far."""
        block = f"blk.{layer}."
        rank, turned = self.get("attention.kv_lora_rank"), self.rotated
        read = x
        if self.get("attention.q_lora_rank"):
            read = self._norm(self._linear(x, f"{block}attn_q_a"), f"{block}attn_q_a_norm")
            queries = self._linear(read, f"{block}attn_q_b").reshape(self.heads, -1)
        else:
            queries = self._linear(x, f"{block}attn_q").reshape(self.heads, -1)
        vector, own = np.split(self._linear(x, f"{block}attn_kv_a_mqa"), [rank])
        vector = self._norm(vector, f"{block}attn_kv_a_norm")
        self.keys[layer].append(self._rounded(self._rotated(own[None], False))[0])
        self.values[layer].append(self._rounded(vector[None])[0])
        plain = queries.shape[1] - turned
        turns = self._rotated(queries[:, plain:], False)
        vectors = np.array(self.values[layer])
        stretched = 1.0
        if self.get("rope.scaling.type") == "yarn":  # mscale_all_dim of DeepSeek's own code
            multiplier = 10 * self.get("rope.scaling.yarn_log_multiplier", 0.0)
            stretched = 1 + 0.1 * multiplier * math.log(self.get("rope.scaling.factor"))
        heads = []
        for head in range(self.heads):
            keys = vectors @ self.weights[f"{block}attn_k_b.weight"][head]
            values = vectors @ self.weights[f"{block}attn_v_b.weight"][head].T
            scores = keys @ queries[head, :plain] + np.array(self.keys[layer]) @ turns[head]
            scores = scores / math.sqrt(queries.shape[1]) * stretched**2 * self._sharpness()
            shares = np.exp(scores - scores.max())
            heads.append(shares / shares.sum() @ values)
        return self._linear(np.concatenate(heads), f"{block}attn_output")

    def _queries_keys_values(self, x, block):
        """Each [heads, size]; norms are of a head or, in OLMo 2, of all heads together."""
        if f"{block}attn_qkv.weight" in self.weights:
            queries, narrow = self.heads * self.size, self.kv_heads * self.size
            joined = self._linear(x, f"{block}attn_qkv")
            q, k, v = np.split(joined, [queries, queries + narrow])
        else:
            q, k, v = (self._linear(x, f"{block}attn_{part}") for part in "qkv")
        if self.name in WHOLE_NORMS:
            q, k = self._norm(q, f"{block}attn_q_norm"), self._norm(k, f"{block}attn_k_norm")
        q, k, v = (part.reshape(-1, self.size) for part in (q, k, v))
        if self.name in WHOLE_NORMS:
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
        logarithm = math.log(self.get("rope.scaling.factor"))
        multiplier = self.get("rope.scaling.yarn_log_multiplier", 0.0)
        if multiplier and self.name == "deepseek2":
            return told
        return told * (0.1 * logarithm + 1) / (0.1 * multiplier * logarithm + 1)

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

        low = pair_with(self.get("rope.scaling.yarn_beta_fast", 32))
        high = pair_with(self.get("rope.scaling.yarn_beta_slow", 1))
        if self.name != "gpt-oss":  # whose configuration says "truncate": false
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.rotated - 1)
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
        result = self._linear(self._gated(gate, up), f"{block}ffn_down")
        return self._norm_if_there(result, f"{block}post_ffw_norm")

    def _experts(self, x, block):
        """What the chosen experts make of it, each by its share, and an expert for all tokens."""
        result = 0
        for expert, share in self._choice(x, block).items():
            gate, up, down = (
                self._of_expert(f"{block}ffn_{part}_exps", expert)
                for part in ("gate", "up", "down")
            )
            result = result + share * down(self._gated(gate(x), up(x)))
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

    def _of_expert(self, name, expert):
        """The product of one expert."""
        bias = self.weights.get(f"{name}.bias")
        added = 0 if bias is None else bias[expert]
        return lambda x: self.weights[f"{name}.weight"][expert] @ x + added

    def _gated(self, gate, up):
        if self.name != "gpt-oss":
            return self._active(gate) * up
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)

    def _choice(self, x, block):
        """Experts that a token chooses, with their shares.

        Mostly parts of what these have of the probability; of others what the file says.
        """
        scores = self._linear(x, f"{block}ffn_gate_inp")
        powers = np.exp(scores - scores.max())
        used, kind = self.get("expert_used_count"), self.get("expert_gating_func", 1)
        probable = 1 / (1 + np.exp(-scores)) if kind == 2 else powers / powers.sum()
        wishes = probable + self.weights.get(f"{block}exp_probs_b.bias", 0)
        groups = self.get("expert_group_count", 1)
        if groups > 1:
            parts = np.sort(wishes.reshape(groups, -1), axis=1)[:, -2 if kind == 2 else -1 :]
            out = np.argsort(-parts.sum(1))[self.get("expert_group_used_count") :]
            wishes = wishes.reshape(groups, -1).copy()
            wishes[out] = -np.inf
            wishes = wishes.reshape(-1)
        chosen = np.argsort(-wishes)[:used]
        shares = probable[chosen]
        of_all = self.name in ("qwen2moe", "olmoe")
        if self.get("expert_weights_norm", self.name not in ("deepseek", "deepseek2")):
            shares = shares if of_all else shares / shares.sum()
        return dict(zip(chosen, shares * self.get("expert_weights_scale", 1.0), strict=True))

    def _active(self, gate):
        if self.name == "falcon":
            return gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2))) / 2
        if self.gemma or self.name in ("starcoder2", "phi2"):
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            return gate * (1 + np.tanh(inner)) / 2
        return gate / (1 + np.exp(-gate))


def _capped(numbers, bound):
    return numbers if not bound else bound * np.tanh(numbers / bound)
