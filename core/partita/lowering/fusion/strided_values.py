"""Strided views of values: what Reshape, Transpose, Split and the like make without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from partita.lowering.geometry.slices import taken
from partita.lowering.graph import Node, Value
from partita.lowering.shapes.symbolic_size import always_equal, found_equal

Dims = tuple[int, ...]
Shapes = Mapping[Value, Dims]


@dataclass(frozen=True)
class Strided:
    """Elements of a value, as an array.

    Attributes:
        base: The value.
        shape: Of the array.
        strides: Elements of the base from one neighbour to the next.
        start: The element of the base that the first one is.
    """

    base: Value
    shape: Dims
    strides: Dims
    start: int = 0

    @classmethod
    def whole(cls, value: Value, shape: Dims) -> Strided:
        """All of a value."""
        return cls(value, shape, tuple(math.prod(shape[n + 1 :]) for n in range(len(shape))))

    def transposed(self, order: Sequence[int]) -> Strided:
        """With its axes in another order."""
        shape = tuple(self.shape[axis] for axis in order)
        return replace(self, shape=shape, strides=tuple(self.strides[axis] for axis in order))

    def part(self, axis: int, first: int, size: int) -> Strided:
        """So many neighbours along an axis."""
        shape = (*self.shape[:axis], size, *self.shape[axis + 1 :])
        return replace(self, shape=shape, start=self.start + first * self.strides[axis])

    def reshaped(self, shape: Dims) -> Strided | None:
        """In another shape; ``None`` where that takes a copy.

        Sizes are asked whether they are 1 only where it takes a copy if they are not.
        """
        strides = self._strides_in(shape, always_equal)
        if strides is None:
            strides = self._strides_in(shape, found_equal)
        return None if strides is None else replace(self, shape=shape, strides=strides)

    def _strides_in(self, shape: Dims, same: Callable[[int, int], bool]) -> Dims | None:
        """The strides in another shape; ``None`` if there are none as far as numbers are told."""
        runs: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if same(size, 1):
                continue
            if runs and same(runs[-1][1], size * stride):
                runs[-1] = runs[-1][0] * size, stride
            else:
                runs.append((size, stride))
        left, stride, strides = 1, 1, []
        for size in reversed(shape):
            if not same(size, 1) and same(left, 1):
                if not runs:
                    return None
                left, stride = runs.pop()
            if not size or not same(left // size * size, left):
                return None
            strides.append(stride)
            left, stride = left // size, stride * size
        if runs or not same(left, 1):
            return None
        return tuple(reversed(strides))


_RESHAPES = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


def is_reshape(node: Node) -> bool:
    """Whether a node gives its input another shape, and does nothing else."""
    return node.kind in _RESHAPES


def seen_through(node: Node, result: Value, view: Strided, shapes: Shapes) -> Strided | None:
    """What a node makes of an array; ``None`` where it computes or copies.

    Args:
        node: The node.
        result: Which of its outputs.
        view: Its first input.
        shapes: Of all values that nodes compute.
    """
    follow = _TAKEN.get(node.kind)
    return None if follow is None else follow(node, result, view, shapes[result])


def takes_elements(node: Node) -> bool:
    """Whether a node does nothing but take elements of its first input."""
    return node.kind in _TAKEN


def _reshaped(node: Node, result: Value, view: Strided, shape: Dims) -> Strided | None:
    return view.reshaped(shape)


def _transposed(node: Node, result: Value, view: Strided, shape: Dims) -> Strided | None:
    return view.transposed(node.attrs.get("perm") or range(len(shape))[::-1])


def _gathered(node: Node, result: Value, view: Strided, shape: Dims) -> Strided | None:
    index = node.input(1)
    if index is None or index.const is None or index.const.size != 1:
        return None
    axis, first = int(node.attrs.get("axis", 0)) % len(view.shape), int(index.const.reshape(-1)[0])
    size = view.shape[axis]
    if first >= size or -first > size:
        return None  # the Gather itself refuses it
    return view.part(axis, first % size, 1).reshaped(shape)


def _split(node: Node, result: Value, view: Strided, shape: Dims) -> Strided | None:
    axis, place = int(node.attrs.get("axis", 0)) % len(shape), node.outputs.index(result)
    counts, lengths = node.input(1), node.attrs.get("split")
    if counts is not None:
        if counts.const is None:
            return None
        lengths = counts.const.tolist()
    each = -(-view.shape[axis] // int(node.attrs.get("num_outputs", len(node.outputs))))
    first = sum(lengths[:place]) if lengths else place * each
    return view.part(axis, first, shape[axis])


def _sliced(node: Node, result: Value, view: Strided, shape: Dims) -> Strided | None:
    given = [node.input(n) for n in range(1, 5)]
    if any(value is not None and value.const is None for value in given):
        return None
    starts, ends, axes, steps = (
        node.attrs.get(name) if value is None or value.const is None else value.const.tolist()
        for name, value in zip(("starts", "ends", "axes", "steps"), given, strict=True)
    )
    if starts is None or ends is None or any(step != 1 for step in steps or ()):
        return None
    for axis, start, end in zip(axes or range(len(starts)), starts, ends, strict=True):
        place = axis % len(shape)
        view = view.part(place, *taken(view.shape[place], start, end, 1))
    return view


_TAKEN: Mapping[str, Callable[[Node, Value, Strided, Dims], Strided | None]] = {
    **dict.fromkeys(_RESHAPES, _reshaped),
    "Transpose": _transposed,
    "Gather": _gathered,
    "Slice": _sliced,
    "Split": _split,
}
