"""Einsum as transpositions, sums and matrix products, two operands at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.errors import OperandError
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.model.einsum_labels import Labels, labels_of
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.linalg.matmul import product
from partita_cpu.kernels.movement.rearrange import expanded, transposed
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.operator_table import ALL_FLOATS, NUMBERS, kernel


@kernel("Einsum", dtypes=NUMBERS | ALL_FLOATS)
@through_float32
def einsum(b: Builder, node: Node, *operands: Operand) -> Operand:
    """Any equation: ellipses, repeated labels, implicit output."""
    whole = f"Operation '{node.name}' (Einsum '{node.attrs['equation']}')"
    try:
        terms, output = labels_of(node.attrs["equation"], [x.shape for x in operands])
    except ValueError as error:
        raise OperandError(f"{whole}: {error}.") from error
    sizes: dict[str, int] = {}
    for labels, x in zip(terms, operands, strict=True):
        for label, size in zip(labels, x.shape, strict=True):
            if sizes.setdefault(label, size) == 1:
                sizes[label] = size
            elif size not in (1, sizes[label]):
                raise OperandError(f"{whole}: a label has sizes {sizes[label]} and {size}.")
    parts = [_distinct(b, x, ls, sizes) for x, ls in zip(operands, terms, strict=True)]
    y, labels = parts[0]
    for position, (other, other_labels) in enumerate(parts[1:], 1):
        later = {label for _, ls in parts[position + 1 :] for label in ls} | set(output)
        y, labels = _combined(b, y, labels, other, other_labels, later)
    y, labels = _summed(b, y, labels, set(output))
    missing = [label for label in output if label not in labels]
    y = b.view(y, (1,) * len(missing) + y.shape)
    labels = missing + labels
    y = transposed(b, y, [labels.index(label) for label in output])
    return expanded(b, y, [sizes[label] for label in output])


def _distinct(
    b: Builder, x: Operand, labels: Labels, sizes: dict[str, int]
) -> tuple[Operand, Labels]:
    """Only the diagonal over repeated labels, and without dimensions that others broadcast."""
    kept = [
        (label, size)
        for label, size in zip(labels, x.shape, strict=True)
        if size == sizes[label] or size != 1
    ]
    x = b.view(x, [size for _, size in kept])
    labels = [label for label, _ in kept]
    unique = list(dict.fromkeys(labels))
    if len(unique) == len(labels):
        return x, labels
    steps = dict.fromkeys(unique, 0)
    for label, step in zip(labels, strides_of(x.shape), strict=True):
        steps[label] += step
    shape = [sizes[label] for label in unique]
    y = b.empty(shape, x.dtype)
    copy_box(b, Box(x, list(steps.values())), Box(y, strides_of(shape)), shape)
    return y, unique


def _summed(b: Builder, x: Operand, labels: Labels, keep: set[str]) -> tuple[Operand, Labels]:
    """Summed over all labels that are not kept."""
    axes = tuple(axis for axis, label in enumerate(labels) if label not in keep)
    if not axes:
        return x, labels
    y = b.empty([n for axis, n in enumerate(x.shape) if axis not in axes], x.dtype)
    b.call_numpy(_sum_axes, x, y, axes)
    return y, [label for label in labels if label in keep]


def _sum_axes(x: Array, y: Array, axes: tuple[int, ...]) -> None:
    np.sum(x, axis=axes, dtype=y.dtype, out=y)


def _combined(
    b: Builder, x: Operand, lx: Labels, y: Operand, ly: Labels, later: set[str]
) -> tuple[Operand, Labels]:
    """The product of two operands, summed over what nobody needs later."""
    x, lx = _summed(b, x, lx, later | set(ly))
    y, ly = _summed(b, y, ly, later | set(lx))
    batch = [label for label in lx if label in ly and label in later]
    contracted = [label for label in lx if label in ly and label not in later]
    rows = [label for label in lx if label not in ly]
    columns = [label for label in ly if label not in lx]
    sizes: dict[str, int] = {**dict(zip(ly, y.shape, strict=True))}
    sizes |= dict(zip(lx, x.shape, strict=True))
    flip_x = lx == batch + contracted + rows and bool(contracted)
    flip_y = ly == batch + columns + contracted and bool(contracted)
    left = _ordered(b, x, lx, [batch, contracted, rows] if flip_x else [batch, rows, contracted])
    right = _ordered(
        b, y, ly, [batch, columns, contracted] if flip_y else [batch, contracted, columns]
    )
    if contracted:
        result = product(b, left, right, flip_x, flip_y)
    else:
        result = b.empty((left.shape[0], left.shape[1], right.shape[2]), x.dtype)
        b.call_numpy(np.multiply, left, right, result)
    labels = batch + rows + columns
    return b.view(result, [sizes[label] for label in labels]), labels


def _ordered(b: Builder, x: Operand, labels: Labels, groups: Any) -> Operand:
    """`x` as three dimensions, one per group of labels."""
    order = [labels.index(label) for group in groups for label in group]
    y = transposed(b, x, order)
    shape, at = [], 0
    for group in groups:
        size = 1
        for _ in group:
            size *= y.shape[at]
            at += 1
        shape.append(size)
    return b.view(y, shape)
