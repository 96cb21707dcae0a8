"""Shapes that several tensors are broadcast to."""

from __future__ import annotations

from collections.abc import Sequence

from partita.lowering.shapes.symbolic_size import Size, always_equal


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """What shapes become together by ONNX's rules; as numpy's, and a tenth of its time.

    Raises:
        ValueError: They do not fit.
    """
    first = shapes[0]
    if all(shape is first for shape in shapes):
        return tuple(first)
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            # Sizes that vary are compared last, and with 1 only if they are not equal: that they
            # are is true of all sizes.
            if _is_one(size):
                continue
            if _is_one(result[axis]):
                result[axis] = size
            elif result[axis] != size and size != 1:
                if result[axis] != 1:
                    raise ValueError(f"shapes {shapes} do not fit each other")
                result[axis] = size
    return tuple(result)


def sizes_of_labels(
    terms: Sequence[Sequence[str]], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    """The sizes that the labels of an Einsum have, of which some dimensions are repeated.

    Args:
        terms: For each operand a label for each of its dimensions.
        shapes: Of the operands.

    Raises:
        ValueError: A label has two sizes, of which neither is 1.
    """
    sizes: dict[str, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            before = sizes.get(label, 1)
            try:
                (sizes[label],) = broadcast((before,), (size,))
            except ValueError as error:
                raise ValueError(f"a label has sizes {before} and {size}") from error
    return sizes


def is_repeated_to(size: int, whole: int) -> bool:
    """Whether an axis of this size is broadcast to `whole`: it is as large, or 1."""
    return _is_one(size) or size == whole or size == 1


def repeating_strides(
    shape: Sequence[int], strides: Sequence[int], whole: Sequence[int]
) -> list[int]:
    """Elements from one to the next along the axes that a shape is broadcast to.

    A size that varies is asked whether it is 1 only if it is not the one that it meets.

    Args:
        shape: What is broadcast.
        strides: Elements from one to the next along its axes.
        whole: What it is broadcast to; it has as many axes, or more in front of them.

    Returns:
        One for each axis of `whole`; 0 where an element is repeated.
    """
    lead = len(whole) - len(shape)
    axes = zip(shape, strides, whole[lead:], strict=True)
    own = [0 if _is_repeated(size, out) else step for size, step, out in axes]
    return [0] * lead + own


def _is_repeated(size: int, whole: int) -> bool:
    if isinstance(size, Size) and always_equal(size, whole):
        return False
    return size == 1


def _is_one(size: int) -> bool:
    """Whether a size is 1 by itself, and not one that varies."""
    return not isinstance(size, Size) and size == 1
