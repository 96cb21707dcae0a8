"""Determinants: elimination with the largest pivot of each column, one matrix after another."""

from __future__ import annotations

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, kernel


@jit
def eliminate(x: Array, y: Array, rooms: Array, n: int, tid: int, nt: int) -> None:
    """``y[i] = det(x[i])`` for matrices of (n, n), flat; sums are float64.

    Args:
        x: The matrices.
        y: Takes their determinants.
        rooms: Room for the matrices, float64.
        n: Rows of a matrix.
        tid: This thread.
        nt: All threads; they share the matrices.
    """
    count = n * n
    for matrix in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        a = rooms[matrix * count : (matrix + 1) * count]
        for i in range(count):
            a[i] = x[matrix * count + i]
        product = 1.0
        steps = 0  # of 2**200 that are taken out, so that no part of the product overflows
        for k in range(n):
            pivot = k
            largest = abs(a[k * n + k])
            for row in range(k + 1, n):
                size = abs(a[row * n + k])
                if size > largest or size != size:  # a NaN stays in the result
                    largest = size
                    pivot = row
            if pivot != k:
                product = -product
                for column in range(k, n):
                    kept = a[k * n + column]
                    a[k * n + column] = a[pivot * n + column]
                    a[pivot * n + column] = kept
            head = a[k * n + k]
            product *= head
            if head == 0:
                product = 0.0
                break
            while abs(product) > 2.0**200 and product - product == 0:  # which infinities fail
                product *= 2.0**-200
                steps += 1
            while abs(product) < 2.0**-200:
                if product == 0:
                    break
                product *= 2.0**200
                steps -= 1
            for row in range(k + 1, n):
                factor = a[row * n + k] / head
                for column in range(k + 1, n):
                    a[row * n + column] -= factor * a[k * n + column]
        for _ in range(steps):
            product *= 2.0**200
        for _ in range(-steps):
            product *= 2.0**-200
        y[matrix] = product


@kernel("Det", dtypes=ALL_FLOATS)
@through_float32
def determinant(b: Builder, node: Node, x: Operand) -> Operand:
    """Of the matrices in the last two dimensions."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise OperandError(
            f"Operation '{node.name}' (Det) has an input of shape {list(x.shape)}; its last two "
            "dimensions must be equal, those of square matrices."
        )
    n = x.shape[-1]
    y = b.empty(x.shape[:-2], x.dtype)
    if y.size:
        rooms = b.empty((x.size,), np.float64)
        b.call(eliminate, b.flat(x), b.flat(y), rooms, n, work=x.size * n)
    return y
