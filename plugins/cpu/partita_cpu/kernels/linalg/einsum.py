"""Einsum by the products, sums and moves of this device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.emission.einsum import emit_einsum
from partita.lowering.geometry.boxes import Box, strides_of
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.matmul import product
from partita_cpu.kernels.movement.rearrange import expanded, transposed
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.operator_table import ALL_FLOATS, NUMBERS, kernel


@kernel("Einsum", dtypes=NUMBERS | ALL_FLOATS)
@through_float32
def einsum(b: Builder, node: Node, *operands: Operand) -> Operand:
    """Any equation: ellipses, repeated labels, implicit output."""
    return emit_einsum(_Steps(b), node, operands)


class _Steps:
    """See :class:`partita.lowering.emission.einsum.EinsumSteps`."""

    def __init__(self, b: Builder) -> None:
        self._b = b

    def view(self, x: Operand, shape: Sequence[int]) -> Operand:
        return self._b.view(x, shape)

    def transposed(self, x: Operand, order: Sequence[int]) -> Operand:
        return transposed(self._b, x, order)

    def expanded(self, x: Operand, shape: Sequence[int]) -> Operand:
        return expanded(self._b, x, shape)

    def strided(self, x: Operand, steps: Sequence[int], shape: Sequence[int]) -> Operand:
        y = self._b.empty(shape, x.dtype)
        copy_box(self._b, Box(x, steps), Box(y, strides_of(shape)), shape)
        return y

    def summed(self, x: Operand, axes: tuple[int, ...]) -> Operand:
        y = self._b.empty([n for axis, n in enumerate(x.shape) if axis not in axes], x.dtype)
        self._b.call_numpy(_sum_axes, x, y, axes)
        return y

    def multiplied(self, x: Operand, y: Operand) -> Operand:
        result = self._b.empty((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
        self._b.call_numpy(np.multiply, x, y, result)
        return result

    def product(self, x: Operand, y: Operand, flip_x: bool, flip_y: bool) -> Operand:
        return product(self._b, x, y, flip_x, flip_y)


def _sum_axes(x: Array, y: Array, axes: tuple[int, ...]) -> None:
    np.sum(x, axis=axes, dtype=y.dtype, out=y)
