"""Inputs of MoE and QMoE for all back-ends: which nodes are refused, and where the weights are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering.graph import Node
from partita.lowering.kernel_table import refused_attribute, refused_choice
from partita.lowering.program import Array, Operand
from partita.lowering.shapes.mixture_layers import Layer, layers_of

_ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")
_NEVER = {"use_sparse_mixer": 0, "swiglu_limit_after_activation": 0}
_BITS = (4, 8)

_ROW_BLOCKS = (32, 128)
"""Terms of a block where a column has one scale: of short columns, and of others."""


class Source(NamedTuple):
    """Where numbers of experts are.

    Attributes:
        operands: A constant for each expert, or one for all, along whose first axis experts lie.
        stacked: Whether it is one for all.
        first: Of an expert's rows (columns of the product) the first that counts.
        step: From one of them to the next.
        flipped: Whether rows are the second axis of an expert's matrix.
    """

    operands: tuple[Operand, ...]
    stacked: bool
    first: int = 0
    step: int = 1
    flipped: bool = False

    def arrays(
        self,
        count: int,
        value: Callable[[Operand], Array],
        read: Callable[[Array], None] = lambda _: None,
    ) -> Iterator[Array]:
        """Expert by expert its rows, (count, ...).

        Args:
            count: How many count.
            value: Gives the elements of a constant.
            read: Called with each constant when all of it was read.
        """
        for operand in self.operands:
            whole = value(operand)
            for one in whole if self.stacked else (whole,):
                rows = one.T if self.flipped else one
                yield rows[self.first : self.first + (count - 1) * self.step + 1 : self.step]
            read(whole)


class FoundPart(NamedTuple):
    """One product of the experts of a ``partita::Mixture``.

    Attributes:
        terms: Of a sum.
        columns: Of the product.
        size: Terms of a block; of no meaning without bits.
        bits: Of a weight; 0 for floats.
        weights: Where they are.
        scales: Where scales of blocks are; nowhere without bits.
        zeros: Where zero points of blocks are; ``None`` for none.
        biases: Where biases are; ``None`` for none.
    """

    terms: int
    columns: int
    size: int
    bits: int
    weights: Source
    scales: Source
    zeros: Source | None
    biases: Source | None


def found_parts(node: Node, weights: Sequence[Operand | None]) -> list[FoundPart]:
    """Gate, factor and result of a ``partita::Mixture``, by what follows its first three inputs."""
    parts, count = [], node.attrs["experts"]
    for number, (terms, columns, size, bits) in enumerate(node.attrs["parts"]):
        own = weights[4 * count * number : 4 * count * (number + 1)]
        w, scales, zeros, biases = (
            tuple(operand for operand in own[kind::4] if operand is not None) for kind in range(4)
        )
        points, rows = (Source(found, False) if found else None for found in (zeros, biases))
        sources = Source(w, False, flipped=not bits), Source(scales, False), points, rows
        parts.append(FoundPart(terms, columns, size, bits, *sources))
    return parts


class GateColumns(NamedTuple):
    """Which columns of a first product are gates, and which their factors.

    Attributes:
        gates: How many gates there are.
        step: From one of them to the next.
        others: The first factor; 0 if the product has none.
    """

    gates: int
    step: int
    others: int

    @classmethod
    def of(cls, node: Node, columns: int) -> GateColumns:
        """Those of MoE or QMoE whose first product has so many columns."""
        name = node.attrs.get("activation_type", "relu")
        if name != "swiglu" or layers_of(node)[2].is_given(node):
            return cls(columns, 1, 0)
        interleaved = node.attrs.get("swiglu_fusion", 0) == 1
        return cls(columns // 2, 2, 1) if interleaved else cls(columns // 2, 1, columns // 2)


def refused(detail: str) -> Reason:
    """The reason for an attribute, or for an input that takes the place of one."""
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, detail)


def refused_mixture(node: Node) -> Reason | None:
    """Why a MoE is refused: a choice or an activation that no device has, weights of a run."""
    if reason := refused_attribute(node, _NEVER):
        return reason
    if reason := refused_choice(node, "activation_type", *_ACTIVATIONS):
        return reason
    layers = layers_of(node)
    swiglu = node.attrs.get("activation_type", "relu") == "swiglu"
    fusion = node.attrs.get("swiglu_fusion", 0)
    if swiglu and fusion not in ((0,) if layers[2].is_given(node) else (1, 2)):
        third = "given" if layers[2].is_given(node) else "left out"
        return refused(f"swiglu_fusion is {fusion} with fc3_experts_weights {third}")
    for layer in layers:
        for place in layer.places:
            value = node.input(place)
            if value is not None and value.const is None:
                return refused(f"input {place} is not a constant")
    return None


def refused_quantized_mixture(node: Node) -> Reason | None:
    """The same of a QMoE, and of numbers that have neither 4 nor 8 bits; blocks are of any size."""
    if reason := refused_choice(node, "quant_type", "int"):
        return reason
    if reason := refused_choice(node, "weights_prepacked", -1, 0):
        return reason
    for layer in layers_of(node):
        if layer.is_given(node) and layer.bits not in _BITS:
            return refused(f"weights have {layer.bits} bits; takes 4, 8")
        if layer.is_given(node) and node.input(layer.scales) is None:
            return refused(f"input {layer.scales}, scales, is left out")
    return refused_mixture(node)


def given_weights(layer: Layer, operand: Operand | None) -> Operand:
    """The weights of a product.

    Raises:
        ValueError: They are left out.
    """
    if operand is None:
        raise ValueError(f"{layer.name}_experts_weights is left out")
    return operand


def block_of(node: Node, terms: int, scales: Operand) -> int:
    """Terms of a block of QMoE; where a column has one scale, blocks repeat it."""
    by_column = scales.ndim == 2
    size: int = node.attrs.get("block_size", 0)
    return _ROW_BLOCKS[terms >= _ROW_BLOCKS[1]] if by_column else size


def nibbles(array: Array) -> Array:
    """Both halves of each byte along the last axis, the low one first."""
    both = np.stack([array & 15, array >> 4], axis=-1)
    return both.reshape(*array.shape[:-1], -1)
