"""Axes of a tensor by name: what ``NCHW`` says of it, and the way from one order to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partita.errors import ModelError
from partita.shapes.layout import Layout

Axes = tuple[str, ...]
"""A name for each axis, as ``("N", "C", "H", "W")``; ``"?"`` where it has none."""


def parse_axes(layout: Any, rank: int | None) -> Axes:
    """The axes of a layout such as ``"NCHW"``, ``"[N, C, H, W]"`` or ``"N...C"``.

    Args:
        layout: The layout, or its text.
        rank: How many axes the tensor has, if that is known.

    Raises:
        ModelError: It names an axis twice, or not as many as the tensor has.
    """
    found = layout if isinstance(layout, Layout) else Layout(layout)
    names = list(found.names)
    if "..." in names:
        if rank is None or rank < len(names) - 1:
            raise ModelError(f"Layout '{found}' does not fit a tensor of {rank} dimensions.")
        place = names.index("...")
        names[place : place + 1] = ["?"] * (rank - len(names) + 1)
    if rank is not None and len(names) != rank:
        raise ModelError(f"Layout '{found}' does not fit a tensor of {rank} dimensions.")
    return tuple(names)


def written(axes: Axes | None) -> str:
    """The axes for people."""
    return "without layout" if axes is None else "".join(axes)


def permutation(source: Axes, target: Axes) -> list[int]:
    """For each axis of the target its place in the source.

    Raises:
        ModelError: They do not have the same axes.
    """
    unnamed = iter([place for place, name in enumerate(source) if name == "?"])
    places = [
        next(unnamed, -1) if name == "?" else source.index(name) if name in source else -1
        for name in target
    ]
    if sorted(places) != list(range(len(source))):
        raise ModelError(
            f"A tensor '{written(source)}' cannot become '{written(target)}': they do not have "
            "the same axes."
        )
    return places


def place_of(axes: Axes | None, name: str, what: str) -> int:
    """Where an axis stands.

    Raises:
        ModelError: There is no such axis, or no layout is known.
    """
    if axes is None or name not in axes:
        raise ModelError(
            f"{what} takes a layout with axis '{name}'; the tensor is {written(axes)} here. Give "
            "one with set_layout('NCHW') of the tensor or the model."
        )
    return axes.index(name)


def permuted(entries: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """The entries in the order of the places.

    Raises:
        ModelError: There are not as many places as entries.
    """
    if len(places) != len(entries):
        raise ModelError(
            f"convert_layout({list(places)}): the tensor has {len(entries)} dimensions."
        )
    return [entries[place] for place in places]
