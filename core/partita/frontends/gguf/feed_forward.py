"""A block's feed-forward part: one set of weights for all tokens, or experts that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.gguf.container import GgufTensor
from partita.frontends.gguf.graph_writer import GraphWriter
from partita.frontends.gguf.hyperparameters import Hyperparameters
from partita.frontends.gguf.weight_operators import linear, linear_parts, multiply

if TYPE_CHECKING:
    import onnx_ir as ir

_PARTS = ("gate", "up", "down")


def feed_forward(
    writer: GraphWriter, sizes: Hyperparameters, normal: ir.Value, block: str
) -> ir.Value:
    """What the second half of a block adds.

    Args:
        writer: Writes the operations.
        sizes: The decoder's.
        normal: The normalized stream [batch, sequence, hidden].
        block: The block's name, e.g. ``"blk.0"``.
    """
    if sizes.experts:
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
    active = _activated(writer, sizes, gate, name)
    return writer.apply("Mul", [active, up], f"{name}.gated", writer.dims(gate))


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
    count, hidden = sizes.experts, sizes.hidden
    inner = writer.rows_of_experts(f"{block}.ffn_gate_exps.weight", count, hidden)
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    parts = {
        part: writer.tensor(f"{block}.ffn_{part}_exps.weight", (count, *shapes[part]))
        for part in _PARTS
    }
    shares, chosen = _choice(writer, sizes, normal, block)
    results = []
    for number in range(count):
        tensors = [parts[part].part(number) for part in _PARTS]
        results.append(
            _expert(writer, sizes, normal, tensors, (shares[number], chosen[number]), block, number)
        )
    total = writer.apply("Sum", results, f"{block}.ffn_experts", writer.dims(normal))
    kind = sizes.architecture.shared_expert
    there = writer.has(f"{block}.ffn_gate_shexp.weight")
    if kind == "none" or (kind == "plain" and not there):
        return total
    shared = _shared_expert(writer, sizes, normal, block)
    return writer.apply("Add", [total, shared], f"{block}.ffn_sum", writer.dims(normal))


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


def _choice(
    writer: GraphWriter, sizes: Hyperparameters, normal: ir.Value, block: str
) -> tuple[list[ir.Value], list[ir.Value]]:
    """The share of each expert in each token, and whether any token chose the expert."""
    import onnx_ir as ir

    name, count = f"{block}.experts", sizes.experts
    scores = linear(writer, normal, f"{block}.ffn_gate_inp", count, sizes.hidden)
    everywhere = writer.dims(scores)
    of_all = sizes.architecture.shares_of_all
    if of_all:
        scores = writer.apply("Softmax", [scores], f"{name}.softmax", everywhere, axis=-1)
    few = (*everywhere[:-1], sizes.experts_used)
    best = writer.value(f"{name}.best", few)
    places = writer.value(f"{name}.places", few, ir.DataType.INT64)
    number = writer.constant("experts_used", np.array([sizes.experts_used], np.int64))
    writer.write("TopK", [scores, number], [best, places], axis=-1)
    of_best = best
    if not of_all:
        of_best = writer.apply("Softmax", [best], f"{name}.softmax", few, axis=-1)
    dims = writer.value(f"{name}.shape", (len(everywhere),), ir.DataType.INT64)
    writer.write("Shape", [scores], [dims])
    zeros = writer.apply("ConstantOfShape", [dims], f"{name}.zeros", everywhere)
    spread = [zeros, places, of_best]
    shares = writer.apply("ScatterElements", spread, f"{name}.shares", everywhere, axis=-1)
    axes = writer.constant("token_axes", np.array([0, 1], np.int64))
    most = writer.apply("ReduceMax", [shares, axes], f"{name}.most", (count,), keepdims=0)
    chosen = writer.value(f"{name}.chosen", (count,), ir.DataType.BOOL)
    nothing = writer.constant("no_share", np.array(0, np.float32))
    writer.write("Greater", [most, nothing], [chosen])
    return writer.split(shares, count), writer.split(chosen, count)


def _expert(
    writer: GraphWriter,
    sizes: Hyperparameters,
    normal: ir.Value,
    tensors: Sequence[GgufTensor],
    choice: tuple[ir.Value, ir.Value],
    block: str,
    number: int,
) -> ir.Value:
    """What one expert adds: its share of its products, or zeros.

    Args:
        writer: The graph.
        sizes: The decoder's.
        normal: Normalized rows (token, hidden).
        tensors: The expert's gate, up and down projections.
        choice: The expert's share of each token, and whether any token chose it.
        block: The name of the layer.
        number: The expert's.
    """
    share, chosen = choice
    name, shape = f"{block}.experts.{number}", writer.dims(normal)
    with writer.branch(f"{name}.computed") as computed:
        gate, up = (
            multiply(writer, normal, tensor, f"{name}.ffn_{part}")
            for part, tensor in zip(_PARTS, tensors[:2], strict=False)
        )
        product = _gated(writer, sizes, gate, up, name)
        whole = multiply(writer, product, tensors[2], f"{name}.ffn_down")
        computed.append(writer.apply("Mul", [whole, share], f"{name}.shared", shape))
    with writer.branch(f"{name}.left_out") as left_out:
        row = writer.constant("zero_row", np.zeros(sizes.hidden, np.float32))
        left_out.append(writer.apply("Mul", [share, row], f"{name}.zeros", shape))
    return writer.choose(chosen, computed, left_out, name, shape)
