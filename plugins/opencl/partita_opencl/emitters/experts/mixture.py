"""MoE and QMoE of onnxruntime, and the mixtures that fusion finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason
from partita.lowering import NO_ACTIVATION, Activation, ActivationCode, Node, Operand
from partita.lowering.kernel_table import INT64
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
from partita_opencl.emitters.elementwise import convert
from partita_opencl.emitters.experts.products import (
    Gate,
    Routes,
    gate_rows,
    product,
    routes,
    sums_of_rows,
)
from partita_opencl.emitters.experts.weights import Matrices, on_device
from partita_opencl.emitters.gemm.block_weights import BlockForm
from partita_opencl.emitters.operator_table import FLOATS, DTypes, operator
from partita_opencl.emitters.ranking import largest
from partita_opencl.launches.emitter_kit import Kit, i32

_BYTES: DTypes = frozenset({np.dtype(np.uint8)})
_ACTIVATIONS = {
    "relu": ActivationCode.RELU,
    "gelu": ActivationCode.GELU_TANH,
    "silu": ActivationCode.SILU,
    "swiglu": ActivationCode.SILU,
    "identity": ActivationCode.NONE,
}
_MOST_EXPERTS = 1024
"""Experts that the kernel which sorts rows counts in local memory."""

_LARGE = 2**31 - 1


def _check(node: Node) -> Reason | None:
    w = node.input(layers_of(node)[0].w)
    shape = None if w is None else w.shape
    if shape and isinstance(shape[0], int) and shape[0] > _MOST_EXPERTS:
        return refused(f"{shape[0]} experts; takes {_MOST_EXPERTS}")
    return refused_mixture(node)


def _check_quantized(node: Node) -> Reason | None:
    size = node.attrs.get("block_size", 0)
    if size > 0 and (size < 16 or size > _LARGE or size & (size - 1)):
        return refused(f"block_size is {size}; takes powers of two from 16")
    return refused_quantized_mixture(node) or _check(node)


@operator("MoE", domain="com.microsoft", types=dict.fromkeys(range(8), FLOATS), check=_check)
@operator(
    "QMoE",
    domain="com.microsoft",
    types={**dict.fromkeys((0, 1, 3, 4, 6, 7, 9, 10, 14), FLOATS)}
    | dict.fromkeys((2, 5, 8, 11, 12, 13), _BYTES),
    check=_check_quantized,
)
def moe(k: Kit, node: Node, x: Operand, logits: Operand, *others: Operand | None) -> Operand:
    """Experts whose weights are (experts, columns, terms), chosen by the largest logits.

    Shares are divided by their sum where the attribute says so.
    """
    operands = [x, logits, *others, *(None,) * 15][:15]
    first, second, third = layers_of(node)
    experts, hidden = logits.shape[-1], x.shape[-1]
    wide, step, others_at = GateColumns.of(node, given_weights(first, operands[first.w]).shape[1])
    given = _Given(k, node, operands)
    up = None
    if others_at:
        up = given.matrices(first, hidden, wide, others_at, step)
    elif operands[third.w] is not None:
        up = given.matrices(third, hidden, wide)
    gate = given.matrices(first, hidden, wide, 0, step)
    parts = _Experts(gate, up, given.matrices(second, wide, hidden), _gate(node))
    y = k.empty((*x.shape[:-1], parts.down.form.columns), x.dtype)
    if y.size:
        chosen, shares = _choice(k, node, convert_to(k, logits, x), operands[14])
        _mixture(k, x, routes(k, chosen, shares, experts), parts, y)
    return y


@operator("Mixture", domain="partita", types={0: FLOATS, 1: INT64, 2: FLOATS})
def found_mixture(
    k: Kit, node: Node, x: Operand, chosen: Operand, shares: Operand, *weights: Operand | None
) -> Operand:
    """Experts that :mod:`partita.lowering.fusion.mixture` has found, each with its own weights."""
    gate, up, down = (_matrices(part, x.dtype.itemsize) for part in found_parts(node, weights))
    y = k.empty((*x.shape[:-1], down.form.columns), x.dtype)
    if y.size:
        found = routes(k, chosen, convert_to(k, shares, x), node.attrs["experts"])
        _mixture(k, x, found, _Experts(gate, up, down, _found_gate(node)), y)
    return y


def _found_gate(node: Node) -> Gate:
    swiglu = node.attrs.get("swiglu")
    if swiglu is None:
        return Gate(Activation(ActivationCode.SILU))
    alpha, beta, limit = swiglu
    return Gate(Activation(ActivationCode.SILU, alpha, beta), limit)


def _matrices(part: FoundPart, item_bytes: int) -> Matrices:
    """The matrices of a product; floats take so many bytes."""
    if not part.bits:
        form = BlockForm.of_floats(part.columns, part.terms, item_bytes)
        return Matrices(form, part.weights, bias=part.biases)
    form = BlockForm(part.columns, part.terms, part.bits, part.size)
    return Matrices(form, part.weights, part.scales, part.zeros, part.biases)


def convert_to(k: Kit, x: Operand, like: Operand) -> Operand:
    """The tensor in the type of another."""
    return x if x.dtype == like.dtype else convert(k, x, like.dtype)


class _Experts(NamedTuple):
    """What an expert computes: ``down(activation(gate(x)) * up(x))``.

    Attributes:
        gate: A product.
        up: Another of the same columns; ``None`` for no factor.
        down: A product of what comes of both.
        activation: Of the gate.
    """

    gate: Matrices
    up: Matrices | None
    down: Matrices
    activation: Gate


def _mixture(k: Kit, x: Operand, found: Routes, experts: _Experts, y: Operand) -> None:
    """Records the sum of what the experts of each token make of it, each by its share."""
    gate, up, activation = experts.gate, experts.up, experts.activation
    plain = Gate(NO_ACTIVATION)
    if up is not None and up.like != gate.like:
        gates, factors = (
            product(k, x, found, on_device(k, [m], found.experts, x.dtype), plain, of_tokens=True)
            for m in (gate, up)
        )
        inner = gate_rows(k, gates, factors, activation)
    else:
        weights = on_device(k, [gate] if up is None else [gate, up], found.experts, x.dtype)
        inner = product(k, x, found, weights, activation, of_tokens=True, gated=up is not None)
    down = on_device(k, [experts.down], found.experts, x.dtype)
    sums_of_rows(k, product(k, inner, found, down, plain, of_tokens=False), found, y)


def _choice(k: Kit, node: Node, logits: Operand, given: Operand | None) -> tuple[Operand, Operand]:
    """The experts of each token, and their parts."""
    used, experts = int(node.attrs.get("k", 1)), logits.shape[-1]
    _, chosen = largest(k, logits, used)
    shares = k.empty(chosen.shape, logits.dtype)
    flags = {"GIVEN": given is not None, "NORMALIZED": node.attrs.get("normalize_routing_weights")}
    tokens = chosen.size // used
    k.launch(
        "mixture_rows.cl",
        "shares_of",
        k.tuning.flat(tokens),
        logits,
        logits if given is None else convert_to(k, given, logits),
        chosen,
        shares,
        i32(tokens),
        i32(used),
        EXPERTS=experts,
        **{name: None for name, on in flags.items() if on},
    )
    return chosen, shares


def _gate(node: Node) -> Gate:
    name = node.attrs.get("activation_type", "relu")
    if name != "swiglu":
        return Gate(Activation(_ACTIVATIONS[name]))
    numbers = node.number("activation_alpha", 1.0), node.number("activation_beta", 0.0)
    return Gate(Activation(_ACTIVATIONS[name], *numbers), node.number("swiglu_limit", math.inf))


class _Given(NamedTuple):
    """The inputs of MoE or QMoE."""

    k: Kit
    node: Node
    operands: Sequence[Operand | None]

    def matrices(
        self, layer: Layer, terms: int, columns: int, first: int = 0, step: int = 1
    ) -> Matrices:
        """One product, of which some columns count: the first one, and from one to the next."""
        w, x = given_weights(layer, self.operands[layer.w]), self.operands[0]

        def source(place: int) -> Source | None:
            found = self.operands[place] if place else None
            return None if found is None else Source((found,), True, first, step)

        own, bias = Source((w,), True, first, step), source(layer.bias)
        if not layer.bits:
            itemsize = 4 if x is None else x.dtype.itemsize
            return Matrices(BlockForm.of_floats(columns, terms, itemsize), own, bias=bias)
        scales: Any = self.operands[layer.scales]
        size = block_of(self.node, terms, scales)
        form = BlockForm(columns, terms, layer.bits, size)
        return Matrices(form, own, source(layer.scales), source(layer.zeros), bias)
