"""What follows a convolution or matrix product: bias, residual and activation in one pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.errors import OperandError
from partita.lowering import NO_ACTIVATION, Activation, Array, Builder, Operand
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.record_arguments import KernelArray
from partita_cpu.scalar.activations import ActivationFields, activate
from partita_cpu.scalar.instructions import like

BIAS_PER_ROW = 1
BIAS_PER_COLUMN = 2


class RowEpilogue(NamedTuple):
    """What is added to rows.

    Attributes:
        bias: One value per channel or per column; not read with mode 0.
        residual: As many elements as y; not read unless has_residual.
        bias_mode: 0 for none, `BIAS_PER_ROW` (of channel row % channels) or `BIAS_PER_COLUMN`.
        has_residual: 0 or 1.
        channels: Rows after which the bias repeats.
    """

    bias: KernelArray
    residual: KernelArray
    bias_mode: int
    has_residual: int
    channels: int


@jit
def finish_rows(
    y: Array, terms: RowEpilogue, inner: int, activation: ActivationFields, tid: int, nt: int
) -> None:
    """``y = activation(y + bias + residual)`` for y of (rows, inner) elements; threads share rows.

    Args:
        y: The result so far, flat; overwritten.
        terms: Bias and residual.
        inner: Length of a row.
        activation: What comes last.
        tid: This thread.
        nt: All threads.
    """
    bias, residual, bias_mode, has_residual, channels = terms
    code, a, b = activation.code, like(y[0], activation.alpha), like(y[0], activation.beta)
    rows = y.size // inner
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        start = row * inner
        if bias_mode == 1:
            value = bias[row % channels]
            for i in range(inner):
                y[np.uint64(start + i)] += value
        elif bias_mode == 2:
            for i in range(inner):
                y[np.uint64(start + i)] += bias[i]
        if has_residual:
            for i in range(inner):
                y[np.uint64(start + i)] += residual[np.uint64(start + i)]
        if code:
            activate(y[start : start + inner], code, a, b)


def finish(
    b: Builder,
    y: Operand,
    inner: int,
    bias: Operand | None,
    bias_mode: int,
    residual: Operand | None,
    activation: Activation | None,
) -> None:
    """Record the pass over `y` where there is anything to do; `residual` has y's shape.

    Args:
        b: Records it.
        y: The sums [..., inner], which become the results.
        inner: Columns.
        bias: What is added, if anything is.
        bias_mode: `BIAS_PER_ROW` or `BIAS_PER_COLUMN`.
        residual: What is added besides, if anything is.
        activation: What is applied at last, if anything is.

    Raises:
        OperandError: There is not one bias for each of `inner` columns, where that is wanted.
    """
    if bias is not None and bias_mode == BIAS_PER_COLUMN and bias.size != inner:
        raise OperandError(
            f"Operation '{b.node.name}' ({b.node.model_kind}) has a bias of shape "
            f"{list(bias.shape)} for {inner} columns."
        )
    act = activation or NO_ACTIVATION
    mode = bias_mode if bias is not None else 0
    if y.size == 0 or (not mode and residual is None and not act.code):
        return
    flat = b.flat(y)
    terms = RowEpilogue(
        flat if bias is None else b.flat(bias),
        flat if residual is None else b.flat(residual),
        mode,
        int(residual is not None),
        1 if bias is None else bias.size,
    )
    fields = ActivationFields(int(act.code), float(act.alpha), float(act.beta))
    b.call(finish_rows, flat, terms, inner, fields)
