"""Linear models of ai.onnx.ml: sums of a row's numbers by coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Builder, Node, Operand
from partita.lowering.kernel_table import refused_attribute
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.classical.scores import emit_scores, refused_labels
from partita_cpu.kernels.operator_table import FLOATS, kernel
from partita_cpu.scalar.instructions import like

DOMAIN = "ai.onnx.ml"


@jit(reassociate=True)
def sum_rows(x: Any, factors: Any, added: Any, y: Any, width: int, tid: int, nt: int) -> None:
    """``y = x @ factors.T + added``, of matrices that are small.

    Args:
        x: Rows of `width` numbers, flat.
        factors: As many for each result, flat.
        added: To each result.
        y: Output: the results of each row, flat.
        width: Numbers of a row.
        tid: This thread.
        nt: All threads; they share rows.
    """
    results = added.size
    rows = y.size // results
    for row in range(rows * tid // nt, rows * (tid + 1) // nt):
        own = x[row * width : (row + 1) * width]
        for i in range(results):
            line = factors[i * width : (i + 1) * width]
            total = like(x[0], 0)
            for k in range(width):
                total += own[k] * line[k]
            y[row * results + i] = total + added[i]


def _refused_classifier(node: Node) -> Reason | None:
    labels = node.attrs.get("classlabels_ints") or ()
    return refused_labels(node, labels) or _refused_numbers(node, len(labels))


def _refused_regressor(node: Node) -> Reason | None:
    reason = refused_attribute(node, {"post_transform": "NONE"})
    return reason or _refused_numbers(node, node.attrs.get("targets", 1))


def _refused_numbers(node: Node, results: int) -> Reason | None:
    factors, added = node.attrs["coefficients"], node.attrs.get("intercepts") or ()
    if results < 1 or not factors or len(factors) % results or len(added) not in (0, results):
        text = f"{len(factors)} coefficients, {len(added)} intercepts for {results} results"
        return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, text)
    return None


@kernel("LinearClassifier", domain=DOMAIN, dtypes=FLOATS, check=_refused_classifier)
def linear_classifier(b: Builder, node: Node, x: Operand) -> tuple[Operand, Operand]:
    """Labels of the largest sums, and the sums."""
    labels: Sequence[int] = node.attrs["classlabels_ints"]
    sums = _emit_sums(b, node, x, len(labels))
    return emit_scores(b, node, sums, np.zeros(0, x.dtype), labels, False)


@kernel("LinearRegressor", domain=DOMAIN, dtypes=FLOATS, check=_refused_regressor)
def linear_regressor(b: Builder, node: Node, x: Operand) -> Operand:
    """Sums in float32."""
    return _emit_sums(b, node, x, node.attrs.get("targets", 1), np.float32)


def _emit_sums(b: Builder, node: Node, x: Operand, results: int, dtype: Any = None) -> Operand:
    factors = np.array(node.attrs["coefficients"], x.dtype)
    added = np.zeros(results, x.dtype)
    added[:] = node.attrs.get("intercepts") or 0
    rows, width = (1, *x.shape)[-2:]
    if x.ndim not in (1, 2) or width * results != factors.size:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has {factors.size} coefficients for "
            f"{results} results; its input has shape {list(x.shape)}."
        )
    y = b.empty((rows, results), dtype or x.dtype)
    if y.size:
        constants = b.constant(factors), b.constant(added)
        b.call(sum_rows, b.flat(x), *constants, b.flat(y), width, work=y.size * width)
    return y
