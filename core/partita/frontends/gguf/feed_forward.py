"""A block's feed-forward part: one set of weights for all tokens, or experts that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.gguf.container import GgufTensor
from partita.frontends.gguf.expert_routing import choose_experts
from partita.frontends.gguf.graph_writer import GraphWriter
from partita.frontends.gguf.hyperparameters import Hyperparameters
from partita.frontends.gguf.weight_operators import linear, linear_parts, multiply

if TYPE_CHECKING:
    import onnx_ir as ir

_PARTS = ("gate", "up", "down")


def feed_forward(
    writer: GraphWriter, sizes: Hyperparameters, normal: ir.Value, layer: int
) -> ir.Value:
    """What the second half of a block adds.

    Args:
        writer: Writes the operations.
        sizes: The decoder's.
        normal: The normalized stream [batch, sequence, hidden].
        layer: The block's number.
    """
    block = f"blk.{layer}"
    if sizes.routing.is_mixture(layer):
        return _mixture(writer, sizes, normal, block)
    hidden = sizes.hidden
    if not sizes.architecture.gated:
        inner = writer.rows_of(f"{block}.ffn_up.weight", hidden)
        up = linear(writer, normal, f"{block}.ffn_up", inner, hidden)
        active = _activated(writer, sizes, up, block)
        return linear(writer, active, f"{block}.ffn_down", hidden, inner)
    inner, gate, up = _gate_and_up(writer, normal, block, hidden)
    product = _gated(writer, sizes, gate, up, block)
    return linear(writer, product, f"{block}.ffn_down", hidden, inner)


def _gate_and_up(
    writer: GraphWriter, normal: ir.Value, block: str, hidden: int
) -> tuple[int, ir.Value, ir.Value]:
    """The size of what is between a block's products, and its first two products.

    Files of Phi have both weights in one tensor, the gate's before the other.
    """
    name = f"{block}.ffn_up"
    if writer.has(f"{block}.ffn_gate.weight"):
        inner = writer.rows_of(f"{block}.ffn_gate.weight", hidden)
        gate = linear(writer, normal, f"{block}.ffn_gate", inner, hidden)
        return inner, gate, linear(writer, normal, name, inner, hidden)
    rows = writer.rows_of(f"{name}.weight", hidden)
    if rows % 2:
        raise ModelFormatError(
            f"{writer.origin}: tensor '{name}.weight' has {rows} rows; of a gate and of what it "
            "lets through there are equally many."
        )
    parts = {f"{block}.ffn_gate": rows // 2, name: rows // 2}
    gate, up = linear_parts(writer, normal, name, parts, hidden)
    return rows // 2, gate, up


def _gated(
    writer: GraphWriter, sizes: Hyperparameters, gate: ir.Value, up: ir.Value, name: str
) -> ir.Value:
    """The activated gate times what it lets through."""
    if sizes.architecture.activation == "swiglu":
        return _swiglu(writer, gate, up, name)
    active = _activated(writer, sizes, gate, name)
    return writer.apply("Mul", [active, up], f"{name}.gated", writer.dims(gate))


def _swiglu(writer: GraphWriter, gate: ir.Value, up: ir.Value, name: str) -> ir.Value:
    """The gate of GPT-OSS: both are bounded, and 1 is added to what it lets through."""
    shape = writer.dims(gate)
    most, least, alpha, one = (
        writer.constant(f"swiglu_{key}", np.array(number, np.float32))
        for key, number in (("most", 7.0), ("least", -7.0), ("alpha", 1.702), ("one", 1.0))
    )
    bounded = writer.apply("Min", [gate, most], f"{name}.gate_bounded", shape)
    through = writer.apply("Clip", [up, least, most], f"{name}.up_bounded", shape)
    steep = writer.apply("Mul", [bounded, alpha], f"{name}.steep", shape)
    sigmoid = writer.apply("Sigmoid", [steep], f"{name}.sigmoid", shape)
    active = writer.apply("Mul", [bounded, sigmoid], f"{name}.swish", shape)
    more = writer.apply("Add", [through, one], f"{name}.up_more", shape)
    return writer.apply("Mul", [active, more], f"{name}.gated", shape)


def _activated(writer: GraphWriter, sizes: Hyperparameters, value: ir.Value, name: str) -> ir.Value:
    shape = writer.dims(value)
    kind = sizes.architecture.activation
    if kind != "silu":
        way = "tanh" if kind == "gelu" else "none"
        return writer.apply("Gelu", [value], f"{name}.gelu", shape, approximate=way)
    sigmoid = writer.apply("Sigmoid", [value], f"{name}.sigmoid", shape)
    return writer.apply("Mul", [value, sigmoid], f"{name}.silu", shape)


def _mixture(writer: GraphWriter, sizes: Hyperparameters, normal: ir.Value, block: str) -> ir.Value:
    """The sum of what experts make, each by its share; those that no token chose are left out.

    An expert is an ``If`` of its own, so that placements can pin it to a device. All that chooses
    experts is called after them too: pinned together, they can become one node.
    """
    count, hidden = sizes.routing.experts, sizes.hidden
    inner = writer.rows_of_experts(f"{block}.ffn_gate_exps.weight", count, hidden)
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    parts = {
        part: writer.tensor(f"{block}.ffn_{part}_exps.weight", (count, *shapes[part]))
        for part in _PARTS
    }
    biases = {
        part: _biases(writer, f"{block}.ffn_{part}_exps.bias", count, shapes[part][0])
        for part in _PARTS
    }
    shares, chosen = choose_experts(writer, sizes.routing, normal, block)
    results = []
    for number in range(count):
        products = [(parts[part].part(number), biases[part][number]) for part in _PARTS]
        choice = shares[number], chosen[number]
        results.append(
            _expert(writer, sizes, normal, products, choice, f"{block}.experts.{number}")
        )
    total = writer.apply("Sum", results, f"{block}.ffn_experts", writer.dims(normal))
    kind = sizes.architecture.shared_expert
    there = writer.has(f"{block}.ffn_gate_shexp.weight")
    if kind == "none" or (kind == "plain" and not there):
        return total
    shared = _shared_expert(writer, sizes, normal, block)
    return writer.apply("Add", [total, shared], f"{block}.ffn_sum", writer.dims(normal))


def _biases(writer: GraphWriter, name: str, count: int, columns: int) -> Sequence[ir.Value | None]:
    """What is added to a product of each of so many experts, if the file has that."""
    if not writer.has(name):
        return [None] * count
    rows = writer.plain_numbers(name, [count, columns])
    return [writer.constant(f"{name}.{number}", row.copy()) for number, row in enumerate(rows)]


def _shared_expert(
    writer: GraphWriter, sizes: Hyperparameters, normal: ir.Value, block: str
) -> ir.Value:
    """What the expert of all tokens adds, as far as its gate lets it through if it has one."""
    hidden, name, shape = sizes.hidden, f"{block}.ffn_gate_inp_shexp", writer.dims(normal)
    inner = writer.rows_of(f"{block}.ffn_gate_shexp.weight", hidden)
    gate = linear(writer, normal, f"{block}.ffn_gate_shexp", inner, hidden)
    up = linear(writer, normal, f"{block}.ffn_up_shexp", inner, hidden)
    product = _gated(writer, sizes, gate, up, f"{block}.shexp")
    whole = linear(writer, product, f"{block}.ffn_down_shexp", hidden, inner)
    if sizes.architecture.shared_expert == "plain":
        return whole
    column = writer.constant(
        f"{name}.weight", writer.numbers(f"{name}.weight", hidden).reshape(hidden, 1)
    )
    single = (*shape[:-1], 1)
    score = writer.apply("MatMul", [normal, column], f"{name}.score", single)
    share = writer.apply("Sigmoid", [score], f"{name}.share", single)
    return writer.apply("Mul", [whole, share], f"{block}.ffn_shared_expert", shape)


def _expert(
    writer: GraphWriter,
    sizes: Hyperparameters,
    normal: ir.Value,
    products: Sequence[tuple[GgufTensor, ir.Value | None]],
    choice: tuple[ir.Value, ir.Value],
    name: str,
) -> ir.Value:
    """What one expert adds: its share of its products, or zeros.

    Args:
        writer: The graph.
        sizes: The decoder's.
        normal: Normalized rows (token, hidden).
        products: The expert's gate, up and down projections, and their biases.
        choice: The expert's share of each token, and whether any token chose it.
        name: Of the expert.
    """
    share, chosen = choice
    shape = writer.dims(normal)
    with writer.branch(f"{name}.computed") as computed:
        gate, up = (
            multiply(writer, normal, tensor, f"{name}.ffn_{part}", bias)
            for part, (tensor, bias) in zip(_PARTS, products[:2], strict=False)
        )
        product = _gated(writer, sizes, gate, up, name)
        whole = multiply(writer, product, products[2][0], f"{name}.ffn_down", products[2][1])
        computed.append(writer.apply("Mul", [whole, share], f"{name}.shared", shape))
    with writer.branch(f"{name}.left_out") as left_out:
        row = writer.constant("zero_row", np.zeros(sizes.hidden, np.float32))
        left_out.append(writer.apply("Mul", [share, row], f"{name}.zeros", shape))
    return writer.choose(chosen, computed, left_out, name, shape)
