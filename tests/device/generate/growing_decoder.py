"""Random decoders whose caches grow by Concat, with attention spelled as exporters do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from models import node, value, weight
from onnx import TensorProto, helper

WORDS, LAYERS = 50, 2


@dataclass(frozen=True)
class Form:
    """How a decoder is written.

    Attributes:
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        size: Elements of a head.
        mask: "added", "chosen" (Where), "padding" (a row for all tokens), "window", "distances"
            (causal, and less the farther a key is), "triangle" (of the size of tokens by keys, as
            torch writes it) or "joined" (zeros for what is past, and a triangle).
        scale: "scores", "divided", "queries" or "both" (the root of it to queries and to keys, of
            the size of queries).
        guard: Whether shares that are not numbers become 0.
        half: Whether all is in float16, but for the softmax.
        opset: Of ONNX.
        extra: "mean" reads a cache beside attention, "cap" bounds scores through tanh.
        positions: Whether positions are an input; else they follow from the cache's length.
    """

    heads: int = 2
    kv_heads: int = 2
    size: int = 8
    mask: str = "added"
    scale: str = "scores"
    guard: bool = False
    half: bool = False
    opset: int = 17
    extra: str = ""
    positions: bool = True


def decoder(form: Form, seed: int = 3):
    """The model."""
    return _Maker(form, seed).made()


class _Maker:
    def __init__(self, form, seed):
        self.form = form
        self.rng = np.random.default_rng(seed)
        self.kind = TensorProto.FLOAT16 if form.half else TensorProto.FLOAT
        self.type = np.float16 if form.half else np.float32
        self.nodes, self.weights, self.count = [], [], 0

    def const(self, array, dtype=None):
        self.count += 1
        self.weights.append(weight(f"c{self.count}", np.asarray(array, dtype)))
        return f"c{self.count}"

    def floats(self, *shape):
        return self.const(self.rng.standard_normal(shape) / np.sqrt(shape[-1]), self.type)

    def op(self, op_type, *inputs, output=None, **attributes):
        self.count += 1
        output = output or f"t{self.count}"
        self.nodes.append(node(op_type, list(inputs), output, **attributes))
        return output

    def size_of(self, x, axis):
        return self.op("Gather", self.op("Shape", x), self.const(axis), axis=0)

    def made(self):
        form, width = self.form, self.form.heads * self.form.size
        past = self.size_of("past_key_values.0.key", 2)
        new = self.size_of("input_ids", 1)
        total = self.op("Add", past, new)
        zero, one, last = self.const(0), self.const(1), self.const([1])
        places = self.op("Range", past, total, one)
        keys = self.op("Range", zero, total, one)
        column = self.op("Unsqueeze", places, last)
        seen = self.op("LessOrEqual", keys, column)
        if form.mask == "window":
            near = self.op("Greater", keys, self.op("Sub", column, self.const(5)))
            seen = self.op("And", seen, near)
        there = self.op("Cast", "attention_mask", to=TensorProto.BOOL)
        there = self.op("Unsqueeze", there, self.const([1, 2]))
        seen = there if form.mask == "padding" else self.op("And", seen, there)
        low = np.finfo(self.type).min
        self.mask = self.op("Where", seen, self.const(0, self.type), self.const(low, self.type))
        self.seen = seen
        if form.mask == "distances":
            far = self.op("Cast", self.op("Sub", keys, column), to=self.kind)
            slopes = self.const([[[0.5]], [[0.1]]] * (form.heads // 2), self.type)
            self.mask = self.op("Add", self.op("Mul", far, slopes), self.mask)
        if form.mask in ("triangle", "joined"):
            self.mask = self.triangle(past, new, total, there)
        at = "position_ids" if form.positions else self.op("Unsqueeze", places, self.const([0]))
        words = self.op("Gather", self.floats(WORDS, width), "input_ids")
        x = self.op("Add", words, self.op("Gather", self.floats(600, width), at))
        ints = TensorProto.INT64
        inputs = [
            value("input_ids", ["batch", "sequence"], ints),
            value("attention_mask", ["batch", "total"], ints),
        ]
        if form.positions:
            inputs.append(value("position_ids", ["batch", "sequence"], ints))
        outputs = [value("logits", ["batch", "sequence", WORDS], self.kind)]
        cache = (
            ["batch", form.kv_heads, "past", form.size],
            ["batch", form.kv_heads, "all", form.size],
        )
        for layer in range(LAYERS):
            for kind in ("key", "value"):
                inputs.append(value(f"past_key_values.{layer}.{kind}", cache[0], self.kind))
                outputs.append(value(f"present.{layer}.{kind}", cache[1], self.kind))
            x = self.op("Add", x, self.layer(layer, x, width), output=f"layer{layer}")
        self.op("MatMul", x, self.floats(width, WORDS), output="logits")
        return helper.make_model(
            helper.make_graph(self.nodes, "growing", inputs, outputs, self.weights),
            opset_imports=[helper.make_opsetid("", form.opset)],
            ir_version=8,
        )

    def triangle(self, past, new, total, there):
        """What is added to scores, as older exports compute it: (batch, 1, tokens, keys)."""
        batch = self.size_of("input_ids", 0)
        first, one = self.const([0]), self.const(1)
        batch, new, past, total = (
            self.op("Unsqueeze", n, first) for n in (batch, new, past, total)
        )
        low = np.finfo(self.type).min
        full = weight("low", np.array([low], self.type))
        keys = new if self.form.mask == "joined" else total
        full = self.op("ConstantOfShape", self.op("Concat", new, keys, axis=0), value=full)
        if self.form.mask == "joined":
            later = self.op("Trilu", full, one, upper=1)
            before = self.op(
                "Expand", self.const(0, self.type), self.op("Concat", new, past, axis=0)
            )
            later = self.op("Concat", before, later, axis=1)
        else:
            begin = self.op("Add", self.op("Squeeze", past, first), one)
            later = self.op("Trilu", full, begin, upper=1)
        shape = self.op("Concat", batch, self.const([1]), new, total, axis=0)
        minus = self.op("Equal", shape, self.const([-1]))
        ones = self.op("ConstantOfShape", self.const([4]), value=weight("one", np.array([1])))
        shape = self.op("Where", minus, ones, shape)
        wide = self.op("Expand", self.op("Unsqueeze", later, self.const([0, 1])), shape)
        part = self.op("Slice", wide, self.const([0]), total, self.const([3]), self.const([1]))
        away = self.op("Where", there, self.const(0, self.type), self.const(low / 2, self.type))
        return self.op("Max", self.op("Add", part, away), self.const(low, self.type))

    def layer(self, layer, x, width):
        form = self.form
        q = self.heads(x, width, form.heads)
        k, v = (self.heads(x, width, form.kv_heads) for _ in range(2))
        pasts = (f"past_key_values.{layer}.{kind}" for kind in ("key", "value"))
        keys, values = (
            self.op("Concat", past, new, output=past.replace("past_key_values", "present"), axis=-2)
            for past, new in zip(pasts, (k, v), strict=True)
        )
        mean = None
        if form.extra == "mean":
            mean = self.op("ReduceMean", values, axes=[2], keepdims=1)
        if form.heads != form.kv_heads:
            keys, values = self.repeated(keys), self.repeated(values)
        turned = self.op("Transpose", keys, perm=[0, 1, 3, 2])
        scores = self.scores(q, turned, f"layer{layer}/scores")
        if form.extra == "cap":
            bounded = self.op("Tanh", self.op("Div", scores, self.const(3, self.type)))
            scores = self.op("Mul", bounded, self.const(3, self.type))
        if form.mask == "chosen":
            scores = self.op("Where", self.seen, scores, self.const(-60000, self.type))
        else:
            scores = self.op("Add", scores, self.mask)
        if form.half:
            scores = self.op("Cast", scores, to=TensorProto.FLOAT)
        shares = self.op("Softmax", scores, axis=-1)
        if form.guard:
            zero = self.const(0, np.float32)
            shares = self.op("Where", self.op("IsNaN", shares), zero, shares)
        if form.half:
            shares = self.op("Cast", shares, to=self.kind)
        mixed = self.op("MatMul", shares, values, output=f"layer{layer}/mixed")
        if mean is not None:
            mixed = self.op("Add", mixed, mean)
        mixed = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = self.op("Reshape", mixed, self.const([0, 0, width]))
        return self.op("MatMul", joined, self.floats(width, width))

    def heads(self, x, width, count):
        flat = self.op("MatMul", x, self.floats(width, count * self.form.size))
        apart = self.op("Reshape", flat, self.const([0, 0, count, self.form.size]))
        return self.op("Transpose", apart, perm=[0, 2, 1, 3])

    def repeated(self, x):
        form = self.form
        batch, length = (self.op("Unsqueeze", self.size_of(x, n), self.const([0])) for n in (0, 2))
        group, size = self.const([form.heads // form.kv_heads]), self.const([form.size])
        wide = [batch, self.const([form.kv_heads]), group, length, size]
        apart = self.op("Unsqueeze", x, self.const([2]))
        apart = self.op("Expand", apart, self.op("Concat", *wide, axis=0))
        side = [batch, self.const([form.heads]), length, size]
        return self.op("Reshape", apart, self.op("Concat", *side, axis=0))

    def scores(self, q, turned, name):
        scale = self.form.size**-0.5
        match self.form.scale:
            case "scores":
                return self.op(
                    "Mul", self.op("MatMul", q, turned), self.const(scale, self.type), output=name
                )
            case "divided":
                product = self.op("MatMul", q, turned)
                return self.op("Div", product, self.const(1 / scale, self.type), output=name)
            case "queries":
                return self.op(
                    "MatMul", self.op("Mul", q, self.const(scale, self.type)), turned, output=name
                )
            case _:
                last = self.op("Slice", self.op("Shape", q), self.const([3]), self.const([4]))
                root = self.op("Sqrt", self.op("Cast", last, to=self.kind))
                half = self.op("Sqrt", self.op("Div", self.const([1], self.type), root))
                return self.op(
                    "MatMul", self.op("Mul", q, half), self.op("Mul", turned, half), output=name
                )
