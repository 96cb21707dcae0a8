"""Output arrays: which ones steps can write to directly, and copies to the others."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from partita.lowering import Array
from partita.lowering.program import Spec
from partita.tensors.array_state import data_address
from partita.tensors.sequence_values import boxed, copied, unboxed


class Spans:
    """Where the memory of contiguous arrays begins and ends, to find those that others overlap.

    Args:
        arrays: The arrays.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._spans = sorted((*span_of(array), index) for index, array in enumerate(arrays))
        self._starts = [start for start, _, _ in self._spans]
        self._longest = max((end - start for start, end, _ in self._spans), default=0)

    def overlapping(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Those that share bytes with a span: where they begin and end, and which array it is."""
        first = bisect.bisect_right(self._starts, start - self._longest)
        behind = bisect.bisect_left(self._starts, end)
        return [
            span for span in self._spans[first:behind] if max(span[0], start) < min(span[1], end)
        ]


def span_of(array: Array) -> tuple[int, int]:
    """The address of a contiguous array, and that behind its last byte."""
    start = data_address(array)
    return start, start + array.nbytes


def fits_output(array: Array, spec: Spec, read: Spans, source: int | None) -> bool:
    """Whether steps can write an output to an array: none that shares memory with an input.

    Args:
        array: The array.
        spec: Shape and type of the output.
        read: Where the inputs lie.
        source: Index of the one input that the output may be written over: the array must then be
            that input's memory, all of it.
    """
    if (array.shape, array.dtype) != spec or not array.flags.carray:
        return False
    start, end = span_of(array)
    shared = read.overlapping(start, end)
    return not shared or shared == [(start, end, source)]


def deliver(source: Array | None, target: Array | None) -> Array:
    """Copies an output to the array that the caller gave for it.

    Args:
        source: The output.
        target: The caller's array, of the output's shape, or ``None`` if any will do.

    Returns:
        The array that holds the output now: the target, or the source itself.

    Raises:
        RuntimeError: The output has no memory.
    """
    if source is None:
        raise RuntimeError("an output has no memory")
    if target is None or target is source:
        return source
    if target.dtype.hasobject and target.ndim == 0:  # perhaps a sequence, whose arrays are copied
        source = np.asarray(boxed(copied(unboxed(source))))
    np.copyto(target, source.reshape(target.shape))
    return target
