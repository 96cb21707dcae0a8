"""Results of convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.lowering.geometry.windows import resolve, resolve_transposed
from partita.lowering.graph import Node
from partita.lowering.shapes.results.rule import ResultRules

WINDOW_RESULTS = ResultRules()


@WINDOW_RESULTS.shape("Conv", "DeformConv", "partita::Conv")
def _conv(node: Node, operands: Any) -> Sequence[int]:
    x, w = operands[0].shape, operands[1].shape
    return x[0], w[0], *resolve(node, x[2:], w[2:]).out_shape


@WINDOW_RESULTS.shape("AveragePool", "MaxPool")
def _pool(node: Node, operands: Any) -> Sequence[int]:
    shape, kernel = operands[0].shape, node.attrs["kernel_shape"]
    ceil_mode = bool(node.attrs.get("ceil_mode", 0))
    return *shape[:2], *resolve(node, shape[2:], kernel, ceil_mode=ceil_mode).out_shape


@WINDOW_RESULTS.shape("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(node: Node, operands: Any) -> Sequence[int]:
    shape = operands[0].shape
    return (*shape[:2], *[1] * (len(shape) - 2))


@WINDOW_RESULTS.shape("ConvTranspose", "partita::ConvTranspose")
def _conv_transpose(node: Node, operands: Any) -> Sequence[int]:
    x, w = operands[0].shape, operands[1].shape
    window = resolve_transposed(node, x[2:], w[2:])
    return x[0], w[1] * node.attrs.get("group", 1), *window.size[3 - window.rank :]
