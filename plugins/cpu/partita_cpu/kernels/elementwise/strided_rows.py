"""Arithmetic and comparisons of parts of tensors, read where they lie, in domain `STRIDED`."""

from __future__ import annotations

import numpy as np

from partita.errors import CompileError
from partita.lowering import Builder, Node, Operand
from partita_cpu.kernels.elementwise.combined_rows import RowOperand, emit_rows
from partita_cpu.kernels.operator_table import F32, kernel
from partita_cpu.llvm.elementwise_rows import COMPARISONS

STRIDED = "partita.strided"
"""Domain of operators that `passes.strided_operands` makes, where there are native kernels."""

OPERATORS = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "greater",
    "LessOrEqual": "greater_equal",
}
"""What the kernels compute, with operands the other way round for Less and LessOrEqual."""


@kernel(*OPERATORS, domain=STRIDED, dtypes=F32, folds=False)
def combine_strided(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """``x + y``, or what else is done with two numbers.

    Attributes: `shape` of the result; `first` and `second`, elements of x and y from one to the
    next along its axes; `starts`, the first ones that are read.

    Raises:
        CompileError: There are no loops for it.
    """
    verb, attrs = OPERATORS[node.op_type], node.attrs
    pair = (
        RowOperand(x, attrs["first"], attrs["starts"][0]),
        RowOperand(y, attrs["second"], attrs["starts"][1]),
    )
    if node.op_type in ("Less", "LessOrEqual"):
        pair = pair[1], pair[0]
    result = b.empty(attrs["shape"], np.bool_ if verb in COMPARISONS else np.float32)
    if not emit_rows(b, verb, pair, result):
        raise CompileError(
            f"Operation '{node.name}' ({node.model_kind}): parts of tensors that make "
            f"{list(attrs['shape'])} are not combined by four loops."
        )
    return result
