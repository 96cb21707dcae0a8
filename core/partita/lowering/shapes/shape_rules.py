"""Checks that input shapes fit each other, and that attributes which name dimensions fit them.

The conditions of each operator are in `demands/`, by family. They are checked once, when a node
gets its shapes, for all back-ends. Kernels rely on them: with a scale or a permutation that does
not fit, they would read or write out of bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import OperandError
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.demands.arithmetic import ARITHMETIC_DEMANDS
from partita.lowering.shapes.demands.attention import ATTENTION_DEMANDS
from partita.lowering.shapes.demands.demand import Demand
from partita.lowering.shapes.demands.fourier import FOURIER_DEMANDS
from partita.lowering.shapes.demands.images import IMAGE_DEMANDS
from partita.lowering.shapes.demands.mixture import MIXTURE_DEMANDS
from partita.lowering.shapes.demands.movement import MOVEMENT_DEMANDS
from partita.lowering.shapes.demands.normalization import NORMALIZATION_DEMANDS
from partita.lowering.shapes.demands.quantized import QUANTIZED_DEMANDS
from partita.lowering.shapes.demands.quantized_weights import QUANTIZED_WEIGHTS_DEMANDS
from partita.lowering.shapes.demands.recurrent import RECURRENT_DEMANDS
from partita.lowering.shapes.demands.windows import WINDOW_DEMANDS
from partita.lowering.shapes.type_rules import check_types

_DEMANDS: dict[str, Demand] = {
    **ARITHMETIC_DEMANDS,
    **ATTENTION_DEMANDS,
    **FOURIER_DEMANDS,
    **IMAGE_DEMANDS,
    **MIXTURE_DEMANDS,
    **MOVEMENT_DEMANDS,
    **NORMALIZATION_DEMANDS,
    **QUANTIZED_DEMANDS,
    **QUANTIZED_WEIGHTS_DEMANDS,
    **RECURRENT_DEMANDS,
    **WINDOW_DEMANDS,
}


def check_demands(node: Node, operands: Sequence[Operand | None]) -> None:
    """Refuses a node whose inputs do not fit each other, in type or shape, or its attributes.

    Raises:
        OperandError: They do not.
    """
    check_types(node, operands)
    demand = _DEMANDS.get(node.kind)
    if demand is None:
        return
    shapes = [None if operand is None else operand.shape for operand in operands]
    try:
        fault = next(iter(demand(node, [*shapes, *[None] * 12])), None)
    except (IndexError, KeyError, ValueError) as error:  # too few inputs, dimensions, attributes
        fault = f"its inputs or attributes are incomplete ({type(error).__name__}: {error})"
    if fault is not None:
        listed = ", ".join("none" if shape is None else str(list(shape)) for shape in shapes)
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}): {fault}; its inputs have shapes "
            f"{listed}."
        )
