"""Estimates how many operations folding a node takes, from shapes alone.

For `fold_allowance`; by the slowest algorithm in use. An operator that is not listed here reads its
inputs once and writes its results once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError
from partita.function_table import entered_in
from partita.lowering.geometry.broadcasting import broadcast
from partita.lowering.geometry.windows import resolve
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.model.einsum_labels import labels_of

Operands = Sequence[Operand | None]
Estimate = Callable[[Node, Any, int], float]
"""Operations of a node by its inputs and the number of elements of its results."""

INTERPRETED_OPERATIONS = 1 << 13
"""As how many operations one turn of a loop in Python counts: some microseconds of calls."""

_ESTIMATES: dict[str, Estimate] = {}

_RESULTS_ALONE = frozenset({
    *("Gather", "GatherElements", "GatherND", "Identity", "Shape", "Size", "Slice", "Split"),
    *("Flatten", "Reshape", "Squeeze", "Unsqueeze", "ConstantOfShape", "Expand"),
})  # fmt: skip
"""Operators that look at no more elements of their inputs than they return."""

_BY_ELEMENTS = frozenset({
    *("AveragePool", "Col2Im", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GatherND"),
    *("GridSample", "LpPool", "LRN", "MaxPool", "MaxUnpool", "NonMaxSuppression", "QLinearConv"),
    *("Resize", "RoiAlign", "ScatterElements", "ScatterND", "Upsample"),
})  # fmt: skip
"""Operators that ONNX's reference evaluator computes by a loop in Python."""


def operations(
    node: Node, operands: Operands, result_elements: int, interpreted: bool = False
) -> float:
    """How many operations a node takes.

    Args:
        node: The node.
        operands: Its inputs; those whose elements decide the work may be constants.
        result_elements: How many elements its results have, as far as that is known.
        interpreted: Whether ONNX's reference evaluator computes it, which takes
            :data:`INTERPRETED_OPERATIONS` for each step of its loops in Python.

    Returns:
        A number of multiplications and additions; infinitely many if that is no float.
    """
    given = [operand for operand in operands if operand is not None]
    work: float = result_elements
    if node.op_type not in _RESULTS_ALONE:
        work += sum(operand.size for operand in given)
    estimate = _ESTIMATES.get(node.op_type)
    try:
        if estimate is not None:
            work += estimate(node, operands, result_elements)
        if interpreted and node.op_type in _BY_ELEMENTS:
            work += INTERPRETED_OPERATIONS * _turns(node, operands, result_elements)
    except OverflowError:
        return math.inf
    except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, CompileError):
        return work  # it does not fit, as its emitter will say
    return work


def _turns(node: Node, operands: Any, results: int) -> float:
    """How often a loop in Python turns."""
    if node.op_type == "NonMaxSuppression":
        return _pairs_of_boxes(node, operands, results)
    if node.op_type == "RoiAlign":
        return _regions(node, operands, results)
    if node.op_type in ("ScatterElements", "ScatterND"):
        return float(operands[1].size)
    if "Conv" in node.op_type:
        weights = operands[3 if node.op_type == "QLinearConv" else 1]
        return float(_pixels(node, operands, results) * max(weights.shape[1], 1))
    return results


_estimate = functools.partial(entered_in, _ESTIMATES)


@_estimate("MatMul", "MatMulInteger", "QLinearMatMul")
def _product(node: Node, operands: Any, results: int) -> float:
    a = operands[0].shape
    b = operands[3 if node.op_type == "QLinearMatMul" else 1].shape
    rows = 1 if len(a) < 2 else a[-2]
    columns = 1 if len(b) < 2 else b[-1]
    batch = math.prod(broadcast((1, *a[:-2]), (1, *b[:-2])))
    return float(batch * rows * columns * a[-1])


@_estimate("Gemm")
def _gemm(node: Node, operands: Any, results: int) -> float:
    a, b = operands[0].shape, operands[1].shape
    columns = b[0] if node.attrs.get("transB", 0) else b[1]
    return float(a[0] * a[1] * columns)


@_estimate("MatMulNBits")
def _product_of_packed(node: Node, operands: Any, results: int) -> float:
    return float(operands[0].size * node.attrs["N"])


@_estimate("Conv", "ConvInteger", "QLinearConv", "DeformConv")
def _convolution(node: Node, operands: Any, results: int) -> float:
    w = operands[3 if node.op_type == "QLinearConv" else 1]
    return float(_pixels(node, operands, results) * math.prod(w.shape[1:]))


def _pixels(node: Node, operands: Any, results: int) -> float:
    """The elements of a convolution's result."""
    if node.op_type == "ConvTranspose":
        return _transposed_convolution(node, operands, results)
    x, w = operands[0].shape, operands[3 if node.op_type == "QLinearConv" else 1].shape
    return float(x[0] * w[0] * math.prod(resolve(node, x[2:], w[2:]).out_shape))


@_estimate("ConvTranspose")
def _transposed_convolution(node: Node, operands: Any, results: int) -> float:
    return float(operands[0].size * math.prod(operands[1].shape[1:]))


@_estimate("AveragePool", "LpPool", "MaxPool")
def _pool(node: Node, operands: Any, results: int) -> float:
    taps = math.prod(node.attrs["kernel_shape"])
    return float(max(results, operands[0].size) * taps)


@_estimate("LRN")
def _response(node: Node, operands: Any, results: int) -> float:
    return float(operands[0].size * min(node.attrs["size"], operands[0].shape[1]))


@_estimate("Einsum")
def _einsum(node: Node, operands: Any, results: int) -> float:
    """The sum over all labels at once, as numpy does it."""
    equation = node.attrs["equation"]
    equation = equation.decode() if isinstance(equation, bytes) else equation
    shapes = [operand.shape for operand in operands]
    try:
        terms, _ = labels_of(equation, shapes)
    except ValueError:
        return 0.0  # whoever computes it says why
    sizes: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    return float(math.prod(sizes.values()) * len(terms))


@_estimate("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM")
def _recurrent(node: Node, operands: Any, results: int) -> float:
    steps = operands[0].shape
    interpreted = float(steps[0]) * INTERPRETED_OPERATIONS
    return float(steps[0] * steps[1] * (operands[1].size + operands[2].size)) + interpreted


@_estimate("NonMaxSuppression")
def _pairs_of_boxes(node: Node, operands: Any, results: int) -> float:
    return float(operands[1].size * operands[0].shape[1])


@_estimate("Attention", "MultiHeadAttention", "GroupQueryAttention")
def _attention(node: Node, operands: Any, results: int) -> float:
    keys = operands[1]
    return float(2.0 * operands[0].size * (keys.size / max(keys.shape[-1], 1)))


@_estimate("MoE", "QMoE")
def _experts(node: Node, operands: Any, results: int) -> float:
    rows = operands[0].size / max(operands[0].shape[-1], 1)
    return float(rows * sum(o.size for o in operands[1:] if o is not None))


@_estimate("Det")
def _determinant(node: Node, operands: Any, results: int) -> float:
    return float(operands[0].size * operands[0].shape[-1])


@_estimate("DFT", "STFT", "TopK", "Unique")
def _by_logarithm(node: Node, operands: Any, results: int) -> float:
    return float(64.0 * (operands[0].size + results))


@_estimate("GridSample", "Resize", "Upsample")
def _sampled(node: Node, operands: Any, results: int) -> float:
    """Cubic in three dimensions; smoothed by all elements of the input if it becomes smaller."""
    return float(64.0 * (operands[0].size + results))


@_estimate("RoiAlign")
def _regions(node: Node, operands: Any, results: int) -> float:
    """Samples of all regions; as many as pixels may lie in them if their number is not given."""
    attrs = node.attrs
    rows, columns = attrs.get("output_height", 1), attrs.get("output_width", 1)
    samples = float(max(attrs.get("sampling_ratio", 0), 0)) ** 2
    if not samples:
        ends = operands[1].const
        far = np.nan_to_num(np.abs(ends.astype(np.float64)), nan=math.inf).max(initial=0.0)
        extent = 2.0 * float(far) * abs(attrs.get("spatial_scale", 1.0))
        samples = (extent / rows + 1) * (extent / columns + 1)
    return float(4.0 * samples * rows * columns * operands[1].shape[0] * operands[0].shape[1])
