"""Layouts of tensors that cross: what the device that writes and all that read have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from partita.compiled_model import CompiledModel
from partita.layout import Layout
from partita.model import Port
from partita_hetero.submodels import Submodel

Offers = tuple[Mapping[str, Sequence[Layout]], Mapping[str, Sequence[Layout]]]
"""By value, best first: the layouts that a submodel takes, and those that it gives."""


def offers_of(part: CompiledModel) -> Offers:
    """What a compiled submodel names."""
    takes: dict[str, Sequence[Layout]] = {}
    gives: dict[str, Sequence[Layout]] = {}
    for port, layouts in part.layouts().items():
        (takes if port.is_input else gives)[port.name] = layouts
    return takes, gives


def agree(
    pieces: Sequence[Submodel], offers: Sequence[Offers], plain: Collection[str]
) -> dict[str, Layout]:
    """The layout of every value that crosses in one; all others stay plain.

    A value has the first layout of its writer's that each of its readers takes.

    Args:
        pieces: The submodels.
        offers: What each of them names.
        plain: Values that applications see.
    """
    readers: dict[str, list[Mapping[str, Sequence[Layout]]]] = {}
    for piece, (takes, _) in zip(pieces, offers, strict=True):
        for name in piece.inputs:
            readers.setdefault(name, []).append(takes)
    agreed: dict[str, Layout] = {}
    for piece, (_, gives) in zip(pieces, offers, strict=True):
        for name in piece.outputs:
            if name in plain or name not in readers:
                continue
            for layout in gives.get(name, ()):
                if all(layout in takes.get(name, ()) for takes in readers[name]):
                    agreed[name] = layout
                    break
    return agreed


def ports_of(part: CompiledModel, agreed: Mapping[str, Layout]) -> dict[Port, Layout]:
    """The ports of a submodel that have an agreed layout.

    An input that is passed through is computed nowhere; then no layout was agreed for it.
    """
    return {
        port: agreed[port.name] for port in (*part.inputs, *part.outputs) if port.name in agreed
    }
