"""Shapes that several tensors are broadcast to."""

from __future__ import annotations

from collections.abc import Sequence

from partita.lowering.shapes.symbolic_size import Size


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


def is_repeated_to(size: int, whole: int) -> bool:
    """Whether an axis of this size is broadcast to `whole`: it is as large, or 1."""
    return _is_one(size) or size == whole or size == 1


def _is_one(size: int) -> bool:
    """Whether a size is 1 by itself, and not one that varies."""
    return not isinstance(size, Size) and size == 1
