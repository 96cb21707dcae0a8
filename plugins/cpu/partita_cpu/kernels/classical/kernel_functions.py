"""How alike a row and the support vectors of a machine are, by one of four functions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.kernel_table import refused_attribute, refused_choice
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.int8.product import threads_of
from partita_cpu.kernels.linalg.matmul import product
from partita_cpu.scalar.instructions import like
from partita_cpu.scalar.math import exp, tanh

LINEAR, POLYNOMIAL, RADIAL, SIGMOID = 0, 1, 2, 3
FUNCTIONS = {"LINEAR": LINEAR, "POLY": POLYNOMIAL, "RBF": RADIAL, "SIGMOID": SIGMOID}
CUBE = 3
"""The degree that tools take by default."""
MOST_DEGREE = 64
WIDE = 32
"""Inputs from which on one product of matrices is faster than rows one by one."""
MOST_PRODUCTS = 1 << 24
"""Numbers that a product may make; of more rows each is multiplied by itself."""
STEPS = 20
"""Of an exponential or hyperbolic tangent, for what a row costs."""


class KernelFunction(NamedTuple):
    """A function of a row and a support vector.

    Attributes:
        kind: One of `FUNCTIONS`.
        width: Numbers of a row: of an input, or of its products with all support vectors.
        multiplied: Whether rows are those of products.
        vectors: How many support vectors there are.
        gamma: Factor of the product, or of the squared distance.
        offset: What is added to that.
        degree: Its power, if it is a polynomial.
    """

    kind: int
    width: int
    multiplied: int
    vectors: int
    gamma: float
    offset: float
    degree: int


@jit(reassociate=True, inline=True, counts=False)
def compare_row(x: Any, vectors: Any, out: Any, function: KernelFunction) -> None:
    """The function's values of a row and all support vectors.

    Args:
        x: The row, or its products with all support vectors.
        vectors: Support vectors side by side: the first number of each, then the second ...
        out: Output: a number for each support vector.
        function: Which it is.
    """
    kind, width, multiplied, count, factor, added, degree = function
    gamma, offset = like(x[0], factor), like(x[0], added)
    for v in range(count):
        out[v] = x[v] if multiplied else like(x[0], 0)
    for k in range(0 if multiplied else width):
        own, column = x[k], vectors[k * count : (k + 1) * count]
        if kind == RADIAL:
            for v in range(count):
                away = own - column[v]
                out[v] += away * away
        else:
            for v in range(count):
                out[v] += own * column[v]
    if kind == RADIAL:
        for v in range(count):
            out[v] = exp(-gamma * out[v])
    elif kind == SIGMOID:
        for v in range(count):
            out[v] = tanh(gamma * out[v] + offset)
    elif kind == POLYNOMIAL and degree == CUBE:
        for v in range(count):
            base = gamma * out[v] + offset
            out[v] = base * base * base
    elif kind == POLYNOMIAL:
        for v in range(count):
            base, power = gamma * out[v] + offset, like(x[0], 1)
            for _ in range(degree):
                power *= base
            out[v] = power


def vectors_of(node: Node, count: int) -> Array:
    """Support vectors side by side, (width, count) in float32.

    Raises:
        ValueError: Their numbers are not those of `count` vectors.
    """
    return np.array(node.attrs["support_vectors"], np.float32).reshape(count, -1).T.copy()


def function_of(node: Node, vectors: Array) -> KernelFunction:
    """The kernel function of an SVMClassifier or SVMRegressor with these support vectors."""
    gamma, offset, degree = node.attrs.get("kernel_params") or (0.0, 0.0, 0.0)
    kind = FUNCTIONS[node.attrs.get("kernel_type", "LINEAR")]
    width, count = vectors.shape
    return KernelFunction(kind, width, 0, count, float(gamma), float(offset), int(degree))


def refused_function(node: Node) -> Reason | None:
    """Why the function of a support vector machine, or what becomes of scores, is not computed."""
    if reason := refused_attribute(node, {"post_transform": "NONE"}):
        return reason
    if reason := refused_choice(node, "kernel_type", *FUNCTIONS):
        return reason
    parameters = node.attrs.get("kernel_params") or (0.0, 0.0, 0.0)
    if len(parameters) == 3 and parameters[2] in range(MOST_DEGREE + 1):
        return None
    text = f"kernel_params is {list(parameters)}; takes three, of which the degree is whole"
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, text)


def checked_rows(node: Node, x: Operand, width: int) -> int:
    """How many rows an input has.

    Raises:
        OperandError: They are not of this width.
    """
    rows, found = (1, *x.shape)[-2:]
    if x.ndim not in (1, 2) or found != width:
        raise OperandError(
            f"Operation '{node.name}' ({node.model_kind}) has support vectors of {width} numbers; "
            f"its input has shape {list(x.shape)}."
        )
    return rows


def multiplied_rows(
    b: Builder, x: Operand, vectors: Array, function: KernelFunction
) -> tuple[Operand, Operand, KernelFunction]:
    """What `compare_row` compares: rows and support vectors, or where that is faster products.

    Args:
        b: Records the product.
        x: Rows of inputs.
        vectors: Support vectors, (width, count).
        function: What compares them.

    Returns:
        The rows and vectors, each flat, and the function of these.
    """
    rows = x.size // function.width
    wide = function.kind in (POLYNOMIAL, SIGMOID) and function.width >= WIDE
    if not wide or rows * function.vectors > MOST_PRODUCTS:
        return b.flat(x), b.constant(vectors.ravel()), function
    products = product(b, b.view(x, (rows, function.width)), b.constant(vectors))
    unread = b.constant(np.zeros(1, np.float32))
    changed = function._replace(width=function.vectors, multiplied=1)
    return b.flat(products), unread, changed


def scratch_of(b: Builder, count: int, dtype: Any = np.float32) -> Operand:
    """So many numbers for each thread."""
    return b.empty((threads_of(b) * count,), dtype)


def work_of(function: KernelFunction, rows: int) -> int:
    """Operations of comparing rows with all support vectors."""
    return rows * function.vectors * (function.width + STEPS * (function.kind >= RADIAL))
