"""Output arrays: which ones steps can write to directly, and copies to the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.lowering import Array, Operand
from partita.tensors.array_state import data_address
from partita.tensors.sequence_values import boxed, copied, unboxed


def span_of(array: Array) -> tuple[int, int]:
    """The address of a contiguous array, and that behind its last byte."""
    start = data_address(array)
    return start, start + array.nbytes


def fits_output(
    array: Array, operand: Operand, read: Sequence[tuple[int, int]], source: int | None
) -> bool:
    """Whether steps can write an output to an array: none that shares memory with an input.

    Args:
        array: The array.
        operand: The output.
        read: Of each input the addresses where its memory begins and ends.
        source: Index of the one input that the output may be written over: the array must then be
            that input's memory, all of it.
    """
    if array.shape != operand.shape or array.dtype != operand.dtype or not array.flags.carray:
        return False
    start, end = span = span_of(array)
    shared = [i for i, (low, high) in enumerate(read) if max(low, start) < min(high, end)]
    return not shared or (shared == [source] and read[shared[0]] == span)


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
