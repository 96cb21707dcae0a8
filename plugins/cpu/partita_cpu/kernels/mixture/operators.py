"""MoE and QMoE of onnxruntime, and the mixtures that fusion finds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from partita.contract.query import Reason
from partita.lowering import Builder, Node, Operand
from partita.lowering.shapes.mixture_inputs import (
    FoundPart,
    GateColumns,
    Source,
    block_of,
    found_parts,
    given_weights,
    refused,
    refused_mixture,
    refused_quantized_mixture,
)
from partita.lowering.shapes.mixture_layers import Layer, layers_of
from partita_cpu.kernels.half import float32_of, narrow
from partita_cpu.kernels.mixture.experts import Experts, Part, SwiGlu, mixture
from partita_cpu.kernels.mixture.routing import choose_experts, routes
from partita_cpu.kernels.mixture.weights import BlockWeights, PlainWeights
from partita_cpu.kernels.operator_table import F32, HALVES, INT64, kernel
from partita_cpu.kernels.quantized_weights.matmul_nbits import BLOCKS
from partita_cpu.kernels.quantized_weights.panels import BlockSizes

_TAKEN = F32 | HALVES
_BYTES = frozenset({np.dtype(np.uint8)})


def _check_quantized(node: Node) -> Reason | None:
    size = node.attrs.get("block_size", 0)
    if size > 0 and size not in BLOCKS:
        return refused(f"block_size is {size}; takes {', '.join(map(str, BLOCKS))}")
    return refused_quantized_mixture(node)


@kernel(
    "MoE",
    domain="com.microsoft",
    dtypes=dict.fromkeys(range(8), _TAKEN),
    check=refused_mixture,
    folds=False,
)
@kernel(
    "QMoE",
    domain="com.microsoft",
    dtypes={**dict.fromkeys((0, 1, 3, 4, 6, 7, 9, 10, 14), _TAKEN)}
    | dict.fromkeys((2, 5, 8, 11, 12, 13), _BYTES),
    check=_check_quantized,
    folds=False,
)
def moe(b: Builder, node: Node, x: Operand, logits: Operand, *others: Operand | None) -> Operand:
    """Experts whose weights are (experts, columns, terms), chosen by the largest logits.

    Shares are divided by their sum where the attribute says so. (onnxruntime's QMoE on processors
    does it in any case, its MoE and its other devices do not.)
    """
    operands = [x, logits, *others, *(None,) * 15][:15]
    first, second, third = layers_of(node)
    experts, hidden = logits.shape[-1], x.shape[-1]
    wide, step, others_at = GateColumns.of(node, given_weights(first, operands[first.w]).shape[1])
    gate = _part(node, operands, first, hidden, (0, step, wide))
    up = None
    if others_at:
        up = _part(node, operands, first, hidden, (others_at, step, wide))
    elif operands[third.w] is not None:
        up = _part(node, operands, third, hidden, (0, 1, wide))
    down = _part(node, operands, second, wide, (0, 1, hidden))
    chosen, shares = _choice(b, node, logits, operands[14])
    found = routes(b, chosen, shares, experts)
    y = mixture(b, float32_of(b, x), found, Experts(gate, up, down, _activation(node)))
    return y if x.dtype == np.float32 else narrow(b, y, x.dtype)


def _choice(
    b: Builder, node: Node, logits: Operand, given: Operand | None
) -> tuple[Operand, Operand]:
    """The experts of each token, and their parts."""
    used, experts = node.attrs.get("k", 1), logits.shape[-1]
    wide = float32_of(b, logits)
    parts = wide if given is None else float32_of(b, given)
    tokens = math.prod(logits.shape[:-1])
    chosen, shares = b.empty((tokens, used), np.int64), b.empty((tokens, used), np.float32)
    normalized = int(bool(node.attrs.get("normalize_routing_weights", 0)))
    results = b.flat(chosen), b.flat(shares)
    if chosen.size:
        numbers = experts, int(given is not None), normalized
        b.call(choose_experts, b.flat(wide), b.flat(parts), *results, *numbers)
    return chosen, shares


def _activation(node: Node) -> str | SwiGlu:
    name = node.attrs.get("activation_type", "relu")
    if name != "swiglu":
        return str(name)
    limit = node.attrs.get("swiglu_limit", math.inf)
    numbers = (node.number("activation_alpha", 1.0), node.number("activation_beta", 0.0))
    return SwiGlu(*numbers, float(limit))


def _part(
    node: Node,
    operands: Sequence[Operand | None],
    layer: Layer,
    terms: int,
    rows: tuple[int, int, int],
) -> Part:
    """One product; rows: the first column of it, from one to the next, how many."""
    first, step, columns = rows
    w, bias = given_weights(layer, operands[layer.w]), operands[layer.bias]
    experts = w.shape[0]

    def source(operand: Operand, whole: bool = False) -> Source:
        return Source((operand,), True) if whole else Source((operand,), True, first, step)

    biases = None if bias is None else source(bias)
    if not layer.bits:
        return Part(PlainWeights(terms, columns, experts, source(w)), biases)
    scales, zeros = operands[layer.scales], operands[layer.zeros]
    if scales is None:
        raise ValueError("scales are left out")
    sizes, by_rows = (
        BlockSizes(terms, columns, block_of(node, terms, scales), layer.bits),
        scales.ndim == 2,
    )
    points = None if zeros is None else source(zeros)
    weights = BlockWeights(sizes, experts, source(w), source(scales), points, not by_rows)
    return Part(weights, biases)


@kernel("Mixture", domain="partita", dtypes={0: F32, 1: INT64, 2: F32}, folds=False)
def found_mixture(
    b: Builder, node: Node, x: Operand, chosen: Operand, shares: Operand, *weights: Operand | None
) -> Operand:
    """Experts that :mod:`partita.lowering.fusion.mixture` has found, each with its own weights."""
    count = node.attrs["experts"]
    gate, up, down = (_found(part, count) for part in found_parts(node, weights))
    found = routes(b, chosen, shares, count)
    swiglu = node.attrs.get("swiglu")
    activation = "silu" if swiglu is None else SwiGlu(*swiglu)
    return mixture(b, x, found, Experts(gate, up, down, activation))


def _found(part: FoundPart, experts: int) -> Part:
    if not part.bits:
        weights = PlainWeights(part.terms, part.columns, experts, part.weights)
        return Part(weights, part.biases)
    sizes = BlockSizes(part.terms, part.columns, part.size, part.bits)
    return Part(BlockWeights(sizes, experts, part.weights, part.scales, part.zeros), part.biases)
