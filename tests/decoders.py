"""Small decoders whose cache is state: written row by row, at places that an input names."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from partita.model.variables import METADATA_KEY, Variable, to_metadata

WIDTH, WORDS = 16, 32


def decoder(layers: int = 2, context: int = 64, state: bool = True) -> onnx.ModelProto:
    """A decoder of one head per layer, over caches of a fixed number of tokens.

    Inputs are ``input_ids`` and ``positions`` [1, S], ``at`` [1] and per layer ``past.N.key`` and
    ``past.N.value`` [1, context, WIDTH]; outputs ``logits`` and ``present.N.key``,
    ``present.N.value``.

    Args:
        layers: How many.
        context: Tokens that the caches have room for.
        state: Whether its metadata names pasts and presents as variables.
    """
    make = _Maker(layers)
    x = make.op("Gather", make.weight((WORDS, WIDTH), "embedding"), "input_ids")
    columns = make.const(np.arange(context).reshape(1, 1, context))
    rows = make.op("Unsqueeze", "positions", make.const(np.array([2])))
    hidden = make.op("Greater", columns, rows)
    for layer in range(layers):
        x = make.layer(layer, x, hidden)
    make.op("MatMul", x, make.weight((WIDTH, WORDS)), output="logits")
    of = helper.make_tensor_value_info
    names = [f"{layer}.{what}" for layer in range(layers) for what in ("key", "value")]
    cache = (1, context, WIDTH)
    graph = helper.make_graph(
        make.nodes,
        "decoder",
        [
            of("input_ids", TensorProto.INT64, (1, "S")),
            of("positions", TensorProto.INT64, (1, "S")),
            of("at", TensorProto.INT64, (1,)),
            *(of(f"past.{name}", TensorProto.FLOAT, cache) for name in names),
        ],
        [
            of("logits", TensorProto.FLOAT, (1, "S", WORDS)),
            *(of(f"present.{name}", TensorProto.FLOAT, cache) for name in names),
        ],
        make.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    if state:
        pairs = [Variable(f"cache.{name}", f"past.{name}", f"present.{name}") for name in names]
        helper.set_model_props(model, {METADATA_KEY: to_metadata(pairs)})
    return model


def grouped_decoder(context: int = 64) -> onnx.ModelProto:
    """A layer of ``GroupQueryAttention``, as onnxruntime-genai writes it, between two products.

    Inputs are ``x`` [1, S, 2 WIDTH], ``seqlens_k`` [1], ``total_sequence_length`` and ``past.key``,
    ``past.value`` [1, 1, context, WIDTH], of which there are two heads of queries.

    Args:
        context: Tokens that the cache has room for.
    """
    make = _Maker(7)
    q, k, v = (
        make.op("MatMul", "x", make.weight((2 * WIDTH, heads * WIDTH))) for heads in (2, 1, 1)
    )
    inputs = [q, k, v, "past.key", "past.value", "seqlens_k", "total_sequence_length"]
    outputs = ["mixed", "present.key", "present.value"]
    make.nodes.append(
        helper.make_node(
            "GroupQueryAttention", inputs, outputs, "attention", domain="com.microsoft",
            num_heads=2, kv_num_heads=1,
        )
    )  # fmt: skip
    make.op("MatMul", "mixed", make.weight((2 * WIDTH, WORDS)), output="logits")
    of = helper.make_tensor_value_info
    cache = (1, 1, context, WIDTH)
    graph = helper.make_graph(
        make.nodes,
        "grouped",
        [
            of("x", TensorProto.FLOAT, (1, "S", 2 * WIDTH)),
            of("seqlens_k", TensorProto.INT32, (1,)),
            of("total_sequence_length", TensorProto.INT32, ()),
            *(of(f"past.{what}", TensorProto.FLOAT, cache) for what in ("key", "value")),
        ],
        [
            of("logits", TensorProto.FLOAT, (1, "S", WORDS)),
            *(of(f"present.{what}", TensorProto.FLOAT, cache) for what in ("key", "value")),
        ],
        make.weights,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    pairs = [Variable(what, f"past.{what}", f"present.{what}") for what in ("key", "value")]
    helper.set_model_props(model, {METADATA_KEY: to_metadata(pairs)})
    return model


def step(tokens: list[int], at: int) -> dict[str, np.ndarray]:
    """Inputs for some tokens whose first one has a place in the text."""
    places = np.arange(at, at + len(tokens))
    return {
        "input_ids": np.array([tokens], np.int64),
        "positions": places[None].astype(np.int64),
        "at": np.array([at], np.int64),
    }


class _Maker:
    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def const(self, array: np.ndarray, name: str = "") -> str:
        name = name or f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, shape: tuple[int, ...], name: str = "") -> str:
        drawn = self._random.standard_normal(shape) / np.sqrt(shape[0])
        return self.const(drawn.astype(np.float32), name)

    def op(self, op_type: str, *inputs: str, output: str = "", name: str = "", **attrs) -> str:
        output = output or f"v{len(self.nodes)}"
        name = name or f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attrs))
        return output

    def layer(self, number: int, x: str, hidden: str) -> str:
        """Attention over the cache, and what it adds to the text's vectors."""
        nodes = len(self.nodes)
        q, k, v = (self.op("MatMul", x, self.weight((WIDTH, WIDTH))) for _ in range(3))
        keys, values = (
            self.op(
                "TensorScatter", f"past.{number}.{what}", new, "at",
                output=f"present.{number}.{what}", axis=1,
            )
            for what, new in (("key", k), ("value", v))
        )  # fmt: skip
        scores = self.op("MatMul", q, self.op("Transpose", keys, perm=[0, 2, 1]))
        least = self.const(np.array(-1e9, np.float32))
        weights = self.op("Softmax", self.op("Where", hidden, least, scores))
        mixed = self.op("MatMul", weights, values)
        y = self.op("Add", x, self.op("MatMul", mixed, self.weight((WIDTH, WIDTH))))
        for node in self.nodes[nodes:]:
            node.name = f"layer{number}/{node.name}"
        return y
