"""Shape and type inference for nodes of the lowered graph, by rules (`results/`), without emitters.

The emitters have the last word: a graph is rewritten by the inferred shapes, and the walk that
makes the program of it compares them with what emitters make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.errors import CompileError
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.results.decoders import DECODER_RESULTS
from partita.lowering.shapes.results.elementwise import ELEMENTWISE_RESULTS
from partita.lowering.shapes.results.fillings import FILLING_RESULTS
from partita.lowering.shapes.results.fourier import FOURIER_RESULTS
from partita.lowering.shapes.results.images import IMAGE_RESULTS
from partita.lowering.shapes.results.movement import MOVEMENT_RESULTS
from partita.lowering.shapes.results.products import PRODUCT_RESULTS
from partita.lowering.shapes.results.quantized import QUANTIZED_RESULTS
from partita.lowering.shapes.results.recurrent import RECURRENT_RESULTS
from partita.lowering.shapes.results.reduction import REDUCTION_RESULTS
from partita.lowering.shapes.results.rule import Operands, Rule, RuleOfSeveral
from partita.lowering.shapes.results.windows import WINDOW_RESULTS

_FAMILIES = (
    DECODER_RESULTS,
    ELEMENTWISE_RESULTS,
    FILLING_RESULTS,
    FOURIER_RESULTS,
    IMAGE_RESULTS,
    MOVEMENT_RESULTS,
    PRODUCT_RESULTS,
    QUANTIZED_RESULTS,
    RECURRENT_RESULTS,
    REDUCTION_RESULTS,
    WINDOW_RESULTS,
)
_RULES: dict[str, Rule] = {kind: rule for one in _FAMILIES for kind, rule in one.shapes.items()}
_RULES_OF_SEVERAL: dict[str, RuleOfSeveral] = {
    kind: rule for one in _FAMILIES for kind, rule in one.several.items()
}
"""By operator; the families have none in common."""

_BOOL = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not"})
_BOOL |= {"IsInf", "IsNaN", "Xor"}
_CONVERTING = frozenset(
    {"Cast", "CastLike", "DequantizeLinear", "Narrow", "QuantizeLinear", "Widen"}
)
"""Their results are of the type that the model says."""
_INT64 = np.dtype(np.int64)

TOLD_BY_THE_RUN = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique", "Loop", "Scan"})
"""Operators whose results have shapes that depend on the elements of inputs."""

TOLD_BY_ELEMENTS: dict[str, range] = {
    **dict.fromkeys(("ConstantOfShape",), range(1)),
    **dict.fromkeys(("Expand", "Reshape", "Tile", "TopK"), range(1, 2)),
    **dict.fromkeys(("Pad", "Resize", "Slice"), range(1, 5)),
    "Range": range(3),
}
"""By operator the inputs whose elements tell the shapes of its results, if they are known."""


def predicted(node: Node, operands: Operands) -> Sequence[Operand] | None:
    """Predicts the outputs of a node: operands that have shape and type, but no memory.

    Their type is the first input's, but for operators that say otherwise.

    Returns:
        An operand per output; ``None`` if only the emitter of the node knows them, or if inputs
        and attributes do not fit, as it will say.
    """
    if not operands or operands[0] is None:
        return None
    try:
        several = _RULES_OF_SEVERAL.get(node.kind)
        if several is not None:
            return several(node, operands)
        rule = _RULES.get(node.kind)
        if rule is None or any(value is not None for value in node.outputs[1:]):
            return None
        shape = rule(node, operands)
    except (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, CompileError):
        return None  # it does not fit, as its emitter will say
    dtype = _type(node, operands)
    return None if shape is None or dtype is None else [Operand(tuple(shape), dtype)]


def _type(node: Node, operands: Any) -> np.dtype[Any] | None:
    if node.op_type in _BOOL:
        return np.dtype(np.bool_)
    if node.op_type in _CONVERTING:
        return None if node.outputs[0] is None else node.outputs[0].dtype
    if node.op_type in ("ArgMax", "ArgMin"):
        return _INT64
    if node.op_type in ("LevelTable", "Where"):
        return operands[1].dtype  # type: ignore[no-any-return]  # of an operand
    if node.op_type == "ConstantOfShape":
        return np.asarray(node.attrs.get("value", np.float32(0))).dtype
    return operands[0].dtype  # type: ignore[no-any-return]
