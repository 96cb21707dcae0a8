"""Einsum by the products, sums and moves of this device."""

from __future__ import annotations

from collections.abc import Sequence

from partita.lowering import Node, Operand
from partita.lowering.emission.einsum import emit_einsum
from partita.lowering.geometry.boxes import Box, strides_of
from partita_opencl.emitters.elementwise import apply
from partita_opencl.emitters.gemm.matmul import multiplied_matrices
from partita_opencl.emitters.operator_table import FLOATS, operator
from partita_opencl.emitters.reduction import sum_over
from partita_opencl.launches.emitter_kit import Kit
from partita_opencl.launches.tensor_moves import copy_box, expand, transpose


@operator("Einsum", types=FLOATS, since=12)
def einsum(k: Kit, node: Node, *operands: Operand) -> Operand:
    """Any equation: ellipses, repeated labels, implicit output."""
    return emit_einsum(_Steps(k, node), node, operands)


class _Steps:
    """See :class:`partita.lowering.emission.einsum.EinsumSteps`."""

    def __init__(self, k: Kit, node: Node) -> None:
        self._k = k
        self._node = node

    def view(self, x: Operand, shape: Sequence[int]) -> Operand:
        return self._k.view(x, shape)

    def transposed(self, x: Operand, order: Sequence[int]) -> Operand:
        return transpose(self._k, x, order)

    def expanded(self, x: Operand, shape: Sequence[int]) -> Operand:
        return expand(self._k, x, shape)

    def strided(self, x: Operand, steps: Sequence[int], shape: Sequence[int]) -> Operand:
        y = self._k.empty(shape, x.dtype)
        copy_box(self._k, Box(x, steps), Box(y, strides_of(shape)), shape)
        return y

    def summed(self, x: Operand, axes: tuple[int, ...]) -> Operand:
        return sum_over(self._k, x, axes)

    def multiplied(self, x: Operand, y: Operand) -> Operand:
        return apply(self._k, "{0} * {1}", x.dtype, x, y)

    def product(self, x: Operand, y: Operand, flip_x: bool, flip_y: bool) -> Operand:
        left = transpose(self._k, x, (0, 2, 1)) if flip_x else x
        right = transpose(self._k, y, (0, 2, 1)) if flip_y else y
        return multiplied_matrices(self._k, self._node, left, right)
