"""Einsum as transpositions, sums and matrix products, two operands at a time, for any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from partita.errors import OperandError
from partita.lowering.geometry.boxes import strides_of
from partita.lowering.geometry.broadcasting import sizes_of_labels
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.symbolic_size import always_equal
from partita.model.einsum_labels import Labels, labels_of


class EinsumSteps(Protocol):
    """What a device records for an Einsum; each returns the tensor that is made."""

    def view(self, x: Operand, shape: Sequence[int]) -> Operand:
        """The same elements with other dimensions."""

    def transposed(self, x: Operand, order: Sequence[int]) -> Operand:
        """The tensor with its dimensions permuted."""

    def expanded(self, x: Operand, shape: Sequence[int]) -> Operand:
        """The tensor repeated along dimensions of one."""

    def strided(self, x: Operand, steps: Sequence[int], shape: Sequence[int]) -> Operand:
        """Elements from the first on, so many steps apart along each dimension."""

    def summed(self, x: Operand, axes: tuple[int, ...]) -> Operand:
        """Sums over some axes, without these."""

    def multiplied(self, x: Operand, y: Operand) -> Operand:
        """Products of elements of (batches, rows, 1) and (batches, 1, columns)."""

    def product(self, x: Operand, y: Operand, flip_x: bool, flip_y: bool) -> Operand:
        """Products of matrices (batches, rows, depth) and (batches, depth, columns).

        Flipped ones are (batches, depth, rows) and (batches, columns, depth).
        """


def emit_einsum(steps: EinsumSteps, node: Node, operands: Sequence[Operand]) -> Operand:
    """Records any equation: ellipses, repeated labels, implicit output.

    Args:
        steps: What the device records.
        node: The Einsum.
        operands: Its inputs.

    Raises:
        OperandError: The equation does not fit the operands' shapes.
    """
    whole = f"Operation '{node.name}' (Einsum '{node.attrs['equation']}')"
    try:
        terms, output = labels_of(node.attrs["equation"], [x.shape for x in operands])
        sizes = sizes_of_labels(terms, [x.shape for x in operands])
    except ValueError as error:
        raise OperandError(f"{whole}: {error}.") from error
    parts = [_distinct(steps, x, ls, sizes) for x, ls in zip(operands, terms, strict=True)]
    y, labels = parts[0]
    for position, (other, other_labels) in enumerate(parts[1:], 1):
        later = {label for _, ls in parts[position + 1 :] for label in ls} | set(output)
        y, labels = _combined(steps, y, labels, other, other_labels, later)
    y, labels = _summed(steps, y, labels, set(output))
    missing = [label for label in output if label not in labels]
    y = steps.view(y, (1,) * len(missing) + y.shape)
    labels = missing + labels
    y = steps.transposed(y, [labels.index(label) for label in output])
    return steps.expanded(y, [sizes[label] for label in output])


def _distinct(
    steps: EinsumSteps, x: Operand, labels: Labels, sizes: dict[str, int]
) -> tuple[Operand, Labels]:
    """Only the diagonal over repeated labels, and without dimensions that others broadcast."""
    kept = [
        (label, size)
        for label, size in zip(labels, x.shape, strict=True)
        if always_equal(size, sizes[label]) or size != 1
    ]
    x = steps.view(x, [size for _, size in kept])
    labels = [label for label, _ in kept]
    unique = list(dict.fromkeys(labels))
    if len(unique) == len(labels):
        return x, labels
    strides = dict.fromkeys(unique, 0)
    for label, stride in zip(labels, strides_of(x.shape), strict=True):
        strides[label] += stride
    return steps.strided(x, list(strides.values()), [sizes[label] for label in unique]), unique


def _summed(
    steps: EinsumSteps, x: Operand, labels: Labels, keep: set[str]
) -> tuple[Operand, Labels]:
    """Summed over all labels that are not kept."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in keep)
    if not axes:
        return x, labels
    return steps.summed(x, axes), [label for label in labels if label in keep]


def _combined(
    steps: EinsumSteps, x: Operand, lx: Labels, y: Operand, ly: Labels, later: set[str]
) -> tuple[Operand, Labels]:
    """The product of two operands, summed over what nobody needs later.

    Args:
        steps: Records it.
        x: An operand.
        lx: The labels of its dimensions, each of them once.
        y: The other one.
        ly: Its labels.
        later: Labels that the result or operands to come have.

    Returns:
        The product and its labels.
    """
    x, lx = _summed(steps, x, lx, later | set(ly))
    y, ly = _summed(steps, y, ly, later | set(lx))
    batch = [label for label in lx if label in ly and label in later]
    contracted = [label for label in lx if label in ly and label not in later]
    rows = [label for label in lx if label not in ly]
    columns = [label for label in ly if label not in lx]
    sizes: dict[str, int] = {**dict(zip(ly, y.shape, strict=True))}
    sizes |= dict(zip(lx, x.shape, strict=True))
    flip_x = lx == batch + contracted + rows and bool(contracted)
    flip_y = ly == batch + columns + contracted and bool(contracted)
    x_groups = [batch, contracted, rows] if flip_x else [batch, rows, contracted]
    y_groups = [batch, columns, contracted] if flip_y else [batch, contracted, columns]
    left, right = _ordered(steps, x, lx, x_groups), _ordered(steps, y, ly, y_groups)
    if contracted:
        result = steps.product(left, right, flip_x, flip_y)
    else:
        result = steps.multiplied(left, right)
    labels = batch + rows + columns
    return steps.view(result, [sizes[label] for label in labels]), labels


def _ordered(steps: EinsumSteps, x: Operand, labels: Labels, groups: Sequence[Labels]) -> Operand:
    """`x` as three dimensions, one per group of labels."""
    order = [labels.index(label) for group in groups for label in group]
    y = steps.transposed(x, order)
    shape, at = [], 0
    for group in groups:
        size = 1
        for _ in group:
            size *= y.shape[at]
            at += 1
        shape.append(size)
    return steps.view(y, shape)
