"""Decoders of known architectures with random weights, which are made when somebody reads them.

    python benchmarks/random_decoders.py [--size 8B] [--weights q4] [--save decoder.onnx]

Prints what a decoder holds; ``--save`` writes it for other engines. The form is the one that
onnxruntime-genai writes: ``GroupQueryAttention`` with past and present of one fixed capacity,
``MatMulNBits`` for weights of 4 and 8 bits. The same name makes the same weights, in every process.
"""

from __future__ import annotations

import argparse
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

import partita
from partita.frontends.reader import read_model
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita_hetero.cost.token_work import DecoderWork, TokenWork
from partita_hetero.partition.op_graph import OpGraph

Array = np.ndarray[Any, Any]
Weights = Literal["q4", "q8", "f16", "f32"]
WEIGHTS: tuple[Weights, ...] = ("q4", "q8", "f16", "f32")

BLOCK = 32
"""Weights that share a scale."""

EXPERTS_USED = 2
"""Experts of a mixture that a token is sent to."""

PERIOD = 1_000_003
"""Numbers after which those of a large matrix come again: a prime, so that no rows are alike."""

CONTRIB = "com.microsoft"
FLOAT, HALF, INT32, INT64, UINT8 = (
    *(ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT32, ir.DataType.INT64),
    ir.DataType.UINT8,
)


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder.

    Attributes:
        layers: How many layers.
        hidden: Width of the residual stream.
        intermediate: Width of the gated part (of each expert, if there are experts).
        heads: Query heads.
        kv_heads: Heads of keys and values.
        head_size: Width of a head.
        vocabulary: Tokens.
        experts: Experts of each layer's mixture; 0 for one gated part.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    experts: int = 0


SIZES = {
    "tiny": Architecture(4, 64, 160, 4, 2, 16, 320),
    "tiny-mixture": Architecture(4, 64, 160, 4, 2, 16, 320, experts=4),
    "40M": Architecture(6, 512, 1536, 8, 2, 64, 16384),
    "40M-wide-heads": Architecture(6, 512, 1536, 4, 1, 256, 16384),
    "4x10M": Architecture(4, 512, 768, 8, 2, 64, 16384, experts=4),
    "135M": Architecture(30, 576, 1536, 9, 3, 64, 49152),
    "0.2B": Architecture(12, 1024, 2816, 16, 4, 64, 32000),
    "0.2B-long-heads": Architecture(8, 1024, 3072, 16, 8, 128, 65536),
    "0.2B-wide-heads": Architecture(16, 768, 2048, 4, 1, 256, 65536),
    "8x20M": Architecture(8, 768, 1024, 12, 4, 64, 32000, experts=8),
    "0.5B": Architecture(24, 896, 4864, 14, 2, 64, 151936),
    "1B": Architecture(16, 2048, 8192, 32, 8, 64, 128256),
    "1.5B": Architecture(28, 1536, 8960, 12, 2, 128, 151936),
    "3B": Architecture(28, 3072, 8192, 24, 8, 128, 128256),
    "8B": Architecture(32, 4096, 14336, 32, 8, 128, 128256),
    "8x0.1B": Architecture(16, 1024, 1792, 16, 4, 64, 32000, experts=8),
    "8x7B": Architecture(32, 4096, 14336, 32, 8, 128, 32000, experts=8),
    "70B": Architecture(80, 8192, 28672, 64, 8, 128, 128256),
}
"""Architectures that people run, by their usual names (SmolLM2, Qwen 2.5, Llama 3, Mixtral)."""


def decoder(
    size: str | Architecture, weights: Weights = "q4", context: int | None = None
) -> partita.Model:
    """A decoder as a model whose weights are made when they are read, and not kept.

    Args:
        size: A key of :data:`SIZES`, or sizes of one's own.
        weights: How matrices are stored; embedding and head too.
        context: Tokens that the cache holds; ``None`` leaves it open.
    """
    name = size if isinstance(size, str) else "custom"
    architecture = SIZES[size] if isinstance(size, str) else size
    return read_model(_Builder(architecture, weights, context).build(f"decoder-{name}-{weights}"))


def work_of_a_token(model: partita.Model, context: int, past: int) -> TokenWork:
    """What one more token takes, with weights as the model stores them.

    Args:
        model: A decoder.
        context: Tokens that its cache holds.
        past: Tokens that are in it.
    """
    op_graph = OpGraph.of(model)
    live = [op for op, constant in enumerate(op_graph.constant) if not constant]
    return DecoderWork(model, op_graph, context).work(live, 1, past)


class _Builder:
    def __init__(self, sizes: Architecture, weights: Weights, context: int | None) -> None:
        self.sizes, self.weights = sizes, weights
        self.context: int | str = "context" if context is None else context
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.inputs: list[ir.Value] = []
        self.states: list[tuple[ir.Value, ir.Value]] = []

    def build(self, name: str) -> ir.Model:
        sizes = self.sizes
        ids = self._input("input_ids", INT64, ("batch", "sequence"))
        lengths = self._input("seqlens_k", INT32, ("batch",))
        total = self._input("total_sequence_length", INT32, ())
        stream = self._embed(ids)
        normed = self._op(
            "/model/layers.0/input_layernorm/LayerNorm",
            "SimplifiedLayerNormalization",
            [stream, self._ones("model.layers.0.input_layernorm.weight", sizes.hidden)],
            {"axis": -1, "epsilon": 1e-5},
            domain="",
        )
        rotary = [self._rotary("cos_cache", np.cos), self._rotary("sin_cache", np.sin)]
        for layer in range(sizes.layers):
            attended = self._attention(layer, normed, [lengths, total, *rotary])
            path = f"/model/layers.{layer}/post_attention_layernorm"
            weight = f"model.layers.{layer}"
            normed, stream = self._skip(
                path, f"{weight}.post_attention_layernorm", stream, attended
            )
            fed = self._experts(layer, normed) if sizes.experts else self._gated(layer, normed)
            path = f"/model/layers.{layer + 1}/input_layernorm"
            weight = f"model.layers.{layer + 1}.input_layernorm"
            if layer + 1 == sizes.layers:
                path, weight = f"/model/layers.{layer + 1}/final_norm_layernorm", "model.norm"
            normed, stream = self._skip(path, weight, stream, fed)
        last = self._constant("last", np.array([-1], np.int64))
        normed = self._op("/model/last/Gather", "Gather", [normed, last], {"axis": 1}, domain="")
        logits = self._product("/lm_head", "lm_head", normed, sizes.hidden, sizes.vocabulary)
        logits.name, logits.shape = "logits", ir.Shape(["batch", 1, sizes.vocabulary])
        logits.dtype = FLOAT
        variables = [
            Variable((past.name or "").removeprefix("past_key_values."), past.name, present.name)
            for past, present in self.states
        ]
        graph = ir.Graph(
            [*self.inputs, *(past for past, _ in self.states)],
            [logits, *(present for _, present in self.states)],
            nodes=self.nodes,
            initializers=self.initializers,
            opset_imports={"": 21, CONTRIB: 1},
            name=name,
        )
        model = ir.Model(graph, ir_version=10)
        model.metadata_props[METADATA_KEY] = to_metadata(variables)
        return model

    # ---------------------------------------------------------------------------- parts

    def _embed(self, ids: ir.Value) -> ir.Value:
        rows, width = self.sizes.vocabulary, self.sizes.hidden
        name, path = "model.embed_tokens.weight", "/model/embed_tokens"
        if self.weights in ("q4", "q8"):
            bits = int(self.weights[1])
            packed = (rows, width * bits // 8)
            inputs = [
                self._lazy(f"{name}_quant", UINT8, packed, _random_bytes),
                ids,
                self._lazy(f"{name}_scales", FLOAT, (rows, width // BLOCK), _scales(bits, width)),
            ]
            attributes = {"bits": bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
            kind = "GatherBlockQuantized"
            return self._op(f"{path}/{kind}", kind, inputs, attributes)
        table = self._lazy(name, self._stored, (rows, width), _normal(1.0))
        gathered = self._op(f"{path}/Gather", "Gather", [table, ids], {"axis": 0}, domain="")
        return self._as_float(f"{path}/Cast", gathered)

    def _attention(self, layer: int, normed: ir.Value, shared: Sequence[ir.Value]) -> ir.Value:
        sizes, path = self.sizes, f"/model/layers.{layer}/attn"
        weight = f"model.layers.{layer}.attn"
        widths = {"q": sizes.heads, "k": sizes.kv_heads, "v": sizes.kv_heads}
        parts = [
            self._product(
                f"{path}/{part}_proj",
                f"{weight}.{part}_proj",
                normed,
                sizes.hidden,
                heads * sizes.head_size,
            )
            for part, heads in widths.items()
        ]
        shape = ("batch", sizes.kv_heads, self.context, sizes.head_size)
        past = [
            ir.Value(
                name=f"past_key_values.{layer}.{part}", shape=ir.Shape(shape), type=_tensor(FLOAT)
            )
            for part in ("key", "value")
        ]
        node = ir.node(
            "GroupQueryAttention",
            [*parts, *past, *shared],
            attributes={
                "num_heads": sizes.heads,
                "kv_num_heads": sizes.kv_heads,
                "do_rotary": 1,
                "scale": sizes.head_size**-0.5,
            },
            domain=CONTRIB,
            num_outputs=3,
            name=f"{path}/GroupQueryAttention",
        )
        self.nodes.append(node)
        attended, *present = node.outputs
        attended.name = f"{path}/GroupQueryAttention/output_0"
        attended.shape = ir.Shape(["batch", "sequence", sizes.heads * sizes.head_size])
        attended.dtype = FLOAT
        for before, after, part in zip(past, present, ("key", "value"), strict=True):
            after.name, after.shape = f"present.{layer}.{part}", ir.Shape(shape)
            after.dtype = FLOAT
            self.states.append((before, after))
        width = sizes.heads * sizes.head_size
        return self._product(f"{path}/o_proj", f"{weight}.o_proj", attended, width, sizes.hidden)

    def _gated(self, layer: int, normed: ir.Value) -> ir.Value:
        sizes, path = self.sizes, f"/model/layers.{layer}/mlp"
        weight = f"model.layers.{layer}.mlp"
        wide = sizes.intermediate
        gate = self._product(f"{path}/gate_proj", f"{weight}.gate_proj", normed, sizes.hidden, wide)
        up = self._product(f"{path}/up_proj", f"{weight}.up_proj", normed, sizes.hidden, wide)
        sigmoid = self._op(f"{path}/act_fn/Sigmoid", "Sigmoid", [gate], domain="")
        active = self._op(f"{path}/act_fn/Mul", "Mul", [gate, sigmoid], domain="")
        both = self._op(f"{path}/Mul", "Mul", [active, up], domain="")
        return self._product(f"{path}/down_proj", f"{weight}.down_proj", both, wide, sizes.hidden)

    def _experts(self, layer: int, normed: ir.Value) -> ir.Value:
        """A mixture; its weights are float32, whatever those of other products are."""
        sizes, path = self.sizes, f"/model/layers.{layer}/moe"
        weight = f"model.layers.{layer}.moe"
        flat = self._constant(f"{weight}.rows", np.array([-1, sizes.experts], np.int64))
        router = self._product(
            f"{path}/router", f"{weight}.router", normed, sizes.hidden, sizes.experts
        )
        rows = self._op(f"{path}/router/Reshape", "Reshape", [router, flat], domain="")
        count, wide, hidden = sizes.experts, sizes.intermediate, sizes.hidden
        first = self._lazy(
            f"{weight}.experts.fc1", FLOAT, (count, wide, hidden), _normal(hidden**-0.5)
        )
        second = self._lazy(
            f"{weight}.experts.fc2", FLOAT, (count, hidden, wide), _normal(wide**-0.5)
        )
        inputs: list[ir.Value | None] = [normed, rows, first, None, second]
        attributes = {"k": EXPERTS_USED, "activation_type": "silu", "normalize_routing_weights": 1}
        return self._op(f"{path}/experts/MoE", "MoE", inputs, attributes)

    def _skip(
        self, path: str, weight: str, stream: ir.Value, added: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """The sum of both, normed and as it is."""
        node = ir.node(
            "SkipSimplifiedLayerNormalization",
            [stream, added, self._ones(f"{weight}.weight", self.sizes.hidden)],
            attributes={"epsilon": 1e-5},
            domain=CONTRIB,
            num_outputs=4,
            name=f"{path}/SkipLayerNorm",
        )
        self.nodes.append(node)
        normed, mean, deviation, total = node.outputs
        normed.name, total.name = f"{path}/output_0", f"{path}/output_3"
        mean.name = deviation.name = ""
        for value in (normed, total):
            value.shape = ir.Shape(["batch", "sequence", self.sizes.hidden])
            value.dtype = FLOAT
        return normed, total

    def _product(self, path: str, name: str, left: ir.Value, rows: int, columns: int) -> ir.Value:
        """``left`` times a matrix of ``rows`` x ``columns``."""
        if self.weights in ("q4", "q8"):
            bits = int(self.weights[1])
            blocks = -(-rows // BLOCK)
            packed = (columns, blocks, BLOCK * bits // 8)
            inputs = [
                left,
                self._lazy(f"{name}.weight_quant", UINT8, packed, _random_bytes),
                self._lazy(
                    f"{name}.weight_scales", FLOAT, (columns * blocks,), _scales(bits, rows)
                ),
            ]
            attributes = {"K": rows, "N": columns, "bits": bits, "block_size": BLOCK}
            result = self._op(f"{path}/MatMulNBits", "MatMulNBits", inputs, attributes)
        else:
            shape = (rows, columns)
            matrix = self._lazy(f"{name}.weight", self._stored, shape, _normal(rows**-0.5))
            matrix = self._as_float(f"{path}/Cast", matrix)
            result = self._op(f"{path}/MatMul", "MatMul", [left, matrix], domain="")
        result.shape, result.dtype = ir.Shape(["batch", "sequence", columns]), FLOAT
        return result

    # --------------------------------------------------------------------------- pieces

    @property
    def _stored(self) -> ir.DataType:
        return HALF if self.weights == "f16" else FLOAT

    def _as_float(self, path: str, value: ir.Value) -> ir.Value:
        if self.weights != "f16":
            return value
        return self._op(path, "Cast", [value], {"to": int(FLOAT)}, domain="")

    def _input(self, name: str, dtype: ir.DataType, dims: Sequence[int | str]) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(dims), type=_tensor(dtype))
        self.inputs.append(value)
        return value

    def _op(
        self,
        name: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        domain: str = CONTRIB,
    ) -> ir.Value:
        node = ir.node(op_type, inputs, attributes=attributes or {}, domain=domain, name=name)
        self.nodes.append(node)
        node.outputs[0].name = f"{name}/output_0"
        return node.outputs[0]

    def _constant(self, name: str, array: Array) -> ir.Value:
        return self._stored_as(name, ir.tensor(array, name=name))

    def _ones(self, name: str, width: int) -> ir.Value:
        return self._constant(name, np.ones(width, np.float32))

    def _rotary(self, name: str, function: Callable[[Array], Array]) -> ir.Value:
        """Cosines or sines, for positions up to the context (8192 where that is open)."""
        length = self.context if isinstance(self.context, int) else 8192
        half = self.sizes.head_size // 2
        known = next((v for v in self.initializers if v.name == name), None)
        if known is not None:
            return known

        def table(_: str) -> Array:
            speeds = 10000.0 ** (-np.arange(half) / half)
            return function(np.arange(length)[:, None] * speeds).astype(np.float32)

        return self._lazy(name, FLOAT, (length, half), lambda key, _: table(key))

    def _lazy(
        self,
        name: str,
        dtype: ir.DataType,
        shape: Sequence[int],
        make: Callable[[str, Sequence[int]], Array],
    ) -> ir.Value:
        def made() -> ir.Tensor:
            numbers = make(name, shape).astype(dtype.numpy(), copy=False)
            return ir.Tensor(np.resize(numbers, tuple(shape)), name=name)

        return self._stored_as(name, ir.LazyTensor(made, dtype, ir.Shape(shape), name=name))

    def _stored_as(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(
            name=name, shape=ir.Shape(tensor.shape), type=_tensor(tensor.dtype), const_value=tensor
        )
        self.initializers.append(value)
        return value


def _tensor(dtype: ir.DataType) -> ir.TensorType:
    return ir.TensorType(dtype)


def _generator(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


def _random_bytes(name: str, shape: Sequence[int]) -> Array:
    return _generator(name).integers(0, 256, tuple(shape), np.uint8)


def _scales(bits: int, rows: int) -> Callable[[str, Sequence[int]], Array]:
    """Scales that keep the size of what passes: a product has about the variance of its input.

    They are exact in float16, as those of GGUF files are.
    """
    deviation = np.sqrt(((1 << bits) ** 2 - 1) / 12)

    def make(name: str, shape: Sequence[int]) -> Array:
        spread = _generator(name).uniform(0.8, 1.2, tuple(shape))
        return (spread / (deviation * np.sqrt(rows))).astype(np.float16).astype(np.float32)

    return make


def _normal(deviation: float) -> Callable[[str, Sequence[int]], Array]:
    def make(name: str, shape: Sequence[int]) -> Array:
        count = min(PERIOD, math.prod(shape))
        return _generator(name).standard_normal(count, np.float32) * np.float32(deviation)

    return make


def main() -> None:
    """Prints what a decoder holds, and writes it if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="8B")
    parser.add_argument("--weights", choices=WEIGHTS, default="q4")
    parser.add_argument("--context", type=int)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    model = decoder(args.size, args.weights, args.context)
    print(
        f"{model.name}: {len(model.ops)} operations, {model.weight_bytes / 1e9:.3f} GB of weights"
    )
    if args.save:
        model.save(args.save)
        print(f"wrote {args.save}")


if __name__ == "__main__":
    main()
