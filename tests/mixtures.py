"""Mixtures of experts as onnxruntime has them, with random weights, and float64 for them."""

from __future__ import annotations

import numpy as np


class Mixture:
    """Inputs of MoE or, with bits, of QMoE.

    Args:
        seed: Of the random numbers.
        sizes: Terms of a token, of the experts' inner rows, and the number of experts.
        bits: Of a weight; 0 for floats.
        block: Terms that share a scale; 0 for all of a column.
        zeros: Whether there are zero points.
        third: Whether a gate has its factor from weights of its own.
        bias: Whether there are biases.
        kind: Element type of floats.
        spread: Of levels, on both sides of the middle of their range; 0 for the whole range.
        attributes: Of the operation.
    """

    def __init__(
        self,
        seed,
        sizes=(64, 48, 4),
        bits=0,
        block=0,
        zeros=False,
        third=False,
        bias=True,
        kind=np.float32,
        spread=0,
        **attributes,
    ):
        self.rng = np.random.default_rng(seed)
        self.bits, self.block, self.kind, self.attributes = bits, block, kind, attributes
        self.spread = spread
        self.op_type = "QMoE" if bits else "MoE"
        hidden, inner, self.experts = sizes
        self.hidden = hidden
        self.fused = attributes.get("activation_type") == "swiglu" and not third
        layers = [(inner * (1 + self.fused), hidden), (hidden, inner)]
        self.layers = [self._layer(*shape, zeros, bias) for shape in layers]
        self.layers += [self._layer(inner, hidden, zeros, bias)] if third else []

    def _layer(self, columns, terms, zeros, bias):
        """Weights in float64, then inputs: weights, scales, biases, zero points."""
        rng, count = self.rng, self.experts
        b = rng.normal(0, 1, (count, columns)).astype(self.kind) if bias else None
        if not self.bits:
            w = rng.normal(0, max(terms, 1) ** -0.5, (count, columns, terms)).astype(self.kind)
            return w.astype(np.float64), w, None, b, None
        size = self.block or terms
        blocks = -(-terms // size)
        levels = rng.integers(0, 1 << self.bits, (count, columns, terms))
        if self.spread:
            middle = 1 << (self.bits - 1)
            levels = rng.integers(middle - self.spread, middle + self.spread, levels.shape)
        scales = rng.uniform(0.5, 1.5, (count, columns, blocks)) * terms**-0.5 * 2.0**-self.bits
        scales = (4 * scales).astype(self.kind)
        points = np.full((count, columns, blocks), 1 << (self.bits - 1))
        if zeros:
            points = rng.integers(0, 1 << self.bits, points.shape)
        spread = lambda x: np.repeat(x, size, axis=-1)[..., :terms]  # noqa: E731
        w = (levels - spread(points)) * spread(scales.astype(np.float64))
        if not self.block:
            scales, points = scales[..., 0], points[..., 0]
        return w, self._packed(levels), scales, b, self._packed(points) if zeros else None

    def _packed(self, numbers):
        if self.bits == 8:
            return numbers.astype(np.uint8)
        odd = numbers.shape[-1] % 2
        numbers = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, odd)])
        return (numbers[..., ::2] | numbers[..., 1::2] << 4).astype(np.uint8)

    def node_attributes(self):
        """Attributes of the node."""
        found = dict(self.attributes)
        if self.bits:
            found["expert_weight_bits"] = self.bits
        return found | ({"block_size": self.block} if self.block else {})

    def inputs(self, x, logits, weights=None):
        """Of the node, in order, ``None`` for those left out."""
        given = [layer[1:] for layer in self.layers]
        given += [(None,) * 4] * (3 - len(given))
        if not self.bits:
            return _cut([x, logits, *(one for layer in given for one in (layer[0], layer[2]))])
        parts = [one for layer in given for one in layer[:3]]
        return _cut([x, logits, *parts, *(layer[3] for layer in given), weights])

    def tokens(self, *shape):
        """Random tokens (*shape, hidden), and a row of logits for each of them."""
        x = self.rng.normal(0, 1, (*shape, self.hidden)).astype(self.kind)
        return x, self.rng.normal(0, 2, (int(np.prod(shape)), self.experts)).astype(self.kind)

    def evaluate(self, x, logits, weights=None):
        """The result in float64."""
        rows = x.reshape(len(logits), self.hidden).astype(np.float64)
        get, y = self.attributes.get, np.zeros(rows.shape)
        for token, row in enumerate(rows):
            powers = np.exp(logits[token].astype(np.float64))
            shares = powers / powers.sum() if weights is None else weights[token].astype(float)
            chosen = np.argsort(-powers, kind="stable")[: get("k", 1)]
            total = shares[chosen].sum() if get("normalize_routing_weights", 0) else 1.0
            for expert in chosen:
                y[token] += shares[expert] / total * self._expert(expert, row)
        return y.reshape(x.shape)

    def _expert(self, expert, row):
        products = [lambda v, at=n: self._product(at, expert, v) for n in range(len(self.layers))]
        gate = products[0](row)
        other = products[2](row) if len(products) > 2 else 1.0
        if self.fused:
            halves = np.split(gate, 2)
            pairs = gate[::2], gate[1::2]
            gate, other = pairs if self.attributes["swiglu_fusion"] == 1 else halves
        return products[1](self._activated(gate, other))

    def _product(self, number, expert, row):
        w, _, _, bias, _ = self.layers[number]
        return w[expert] @ row + (0 if bias is None else bias[expert].astype(np.float64))

    def _activated(self, x, other):
        get = self.attributes.get
        match get("activation_type", "relu"):
            case "relu":
                return np.maximum(x, 0) * other
            case "gelu":
                return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2 * other
            case "silu":
                return x / (1 + np.exp(-x)) * other
            case "swiglu":
                limit = get("swiglu_limit", np.inf)
                x, other = np.minimum(x, limit), np.clip(other, -limit, limit)
                through = other + get("activation_beta", 0.0)
                return x / (1 + np.exp(-get("activation_alpha", 1.0) * x)) * through
        return x * other


def _cut(inputs):
    """Without those at the end that are left out."""
    while inputs[-1] is None:
        inputs.pop()
    return inputs


REFUSED = [
    ({"use_sparse_mixer": 1}, "use_sparse_mixer is 1"),
    ({"activation_type": "relu2"}, "activation_type is 'relu2'"),
    ({"activation_type": "swiglu"}, "swiglu_fusion is 0 with fc3_experts_weights left out"),
    ({"expert_weight_bits": 2}, "weights have 2 bits"),
    ({"quant_type": "fp4"}, "quant_type is 'fp4'"),
    ({"weights_prepacked": 1}, "weights_prepacked is 1"),
    ({"block_size": 48}, "block_size is 48"),
]
"""Attributes of QMoE that no device takes, and what the reason says of each."""
