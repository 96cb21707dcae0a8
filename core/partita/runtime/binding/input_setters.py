"""Input setters: how a bound call reads an application's arrays, in place or by copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partita.runtime.binding.input_conversion import Array
from partita.tensors.array_state import ArrayState

InputSetter = Callable[[Array], bool]
"""Lets bound calls read an array, if it is like the one before; whether they do."""


def setter_by_copy(staged: Array, written: Mapping[int, object]) -> InputSetter:
    """Copies elements to where bound calls read them.

    Not those of an array that a run would copy first, or that the calls write to: it would hold
    other elements after them.
    """
    dtype, shape = staged.dtype, staged.shape

    def set_elements(array: Array) -> bool:
        owner = array.base
        if (
            array.dtype is dtype
            and array.shape == shape
            and array.flags.carray
            and id(array if owner is None else owner) not in written
        ):
            staged[...] = array
            return True
        return False

    return set_elements


def setter_in_place(state: ArrayState) -> InputSetter:
    """Changes nothing: bound calls read the one array that they were made for."""

    def set_elements(array: Array) -> bool:
        return array is state.array and state.holds()

    return set_elements


def no_setter(array: Array) -> bool:
    """Sets nothing: an input that is state is copied to it when it is given."""
    return False
