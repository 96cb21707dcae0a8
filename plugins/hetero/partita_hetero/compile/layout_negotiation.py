"""Layouts of tensors that cross: what the device that writes and all that read have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from partita.contract.device_model import DeviceModel
from partita.errors import PLUGIN_FAILURES, CompileError, PartitaError, in_words
from partita.model.model import Port
from partita.tensors.layout import MemoryLayout
from partita_hetero.partition.submodels import Submodel

Offers = tuple[Mapping[str, Sequence[MemoryLayout]], Mapping[str, Sequence[MemoryLayout]]]
"""By value, best first: the layouts that a submodel takes, and those that it gives."""


def offers_of(part: DeviceModel) -> Offers:
    """What a compiled submodel names."""
    takes: dict[str, Sequence[MemoryLayout]] = {}
    gives: dict[str, Sequence[MemoryLayout]] = {}
    for port, layouts in part.layouts().items():
        (takes if port.is_input else gives)[port.name] = layouts
    return takes, gives


def agree(
    pieces: Sequence[Submodel], offers: Sequence[Offers], plain: Collection[str]
) -> dict[str, MemoryLayout]:
    """The layout of every value that crosses in one; all others stay plain.

    A value has the first layout of its writer's that each of its readers takes.

    Args:
        pieces: The submodels.
        offers: What each of them names.
        plain: Values that applications see.
    """
    readers: dict[str, list[Mapping[str, Sequence[MemoryLayout]]]] = {}
    for piece, (takes, _) in zip(pieces, offers, strict=True):
        for name in piece.inputs:
            readers.setdefault(name, []).append(takes)
    agreed: dict[str, MemoryLayout] = {}
    for piece, (_, gives) in zip(pieces, offers, strict=True):
        for name in piece.outputs:
            if name in plain or name not in readers:
                continue
            for layout in gives.get(name, ()):
                if all(layout in takes.get(name, ()) for takes in readers[name]):
                    agreed[name] = layout
                    break
    return agreed


def ports_of(part: DeviceModel, agreed: Mapping[str, MemoryLayout]) -> dict[Port, MemoryLayout]:
    """The ports of a submodel that have an agreed layout.

    An input that is passed through is computed nowhere; then no layout was agreed for it.
    """
    return {
        port: agreed[port.name] for port in (*part.inputs, *part.outputs) if port.name in agreed
    }


@dataclass(frozen=True)
class Settlement:
    """What all submodels of an assembly have agreed on.

    Attributes:
        layouts: The layout of every value that crosses in one.
        compiled: The compiled model of each submodel, with ports in these layouts.
        failures: Submodels whose devices could not do what they had named, with their errors.
        casts: By submodel and value: what its device does to the elements' type where they enter
            or leave it, since the other side was not for the type that it computes in.
    """

    layouts: dict[str, MemoryLayout]
    compiled: list[DeviceModel]
    failures: list[tuple[Submodel, PartitaError]]
    casts: dict[tuple[int, str], str] = field(default_factory=dict)


class Negotiation:
    """Asks compiled submodels for layouts and gives them those that were agreed on.

    What a compiled model named or became is kept as long as the model, since most submodels stay
    when a failure moves one of them.
    """

    def __init__(self) -> None:
        self._offers: WeakKeyDictionary[DeviceModel, Offers] = WeakKeyDictionary()
        self._laid_out: WeakKeyDictionary[
            DeviceModel, dict[frozenset[tuple[Port, MemoryLayout]], DeviceModel]
        ] = WeakKeyDictionary()

    def settle(
        self,
        pieces: Sequence[Submodel],
        compiled: Sequence[DeviceModel],
        plain: Collection[str],
    ) -> Settlement:
        """Agrees on layouts; with one submodel there is nothing to agree on.

        Args:
            pieces: The submodels.
            compiled: The compiled model of each, with plain ports.
            plain: Values that applications see.
        """
        if len(pieces) < 2:
            return Settlement({}, list(compiled), [])
        failures: list[tuple[Submodel, PartitaError]] = []
        offers = []
        for piece, part in zip(pieces, compiled, strict=True):
            try:
                offers.append(self._offers_of(part))
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                failures.append((piece, _as_compile_error(piece, error)))
        if failures:
            return Settlement({}, list(compiled), failures)
        agreed = agree(pieces, offers, plain)
        result = []
        for piece, part in zip(pieces, compiled, strict=True):
            try:
                result.append(self._with(part, ports_of(part, agreed)))
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                failures.append((piece, _as_compile_error(piece, error)))
        casts = _casts(pieces, compiled, offers, agreed)
        return Settlement(agreed, result, failures, casts)

    def _offers_of(self, part: DeviceModel) -> Offers:
        if part not in self._offers:
            self._offers[part] = offers_of(part)
        return self._offers[part]

    def _with(self, part: DeviceModel, layouts: Mapping[Port, MemoryLayout]) -> DeviceModel:
        if not layouts:
            return part
        made = self._laid_out.setdefault(part, {})
        key = frozenset(layouts.items())
        if key not in made:
            made[key] = part.with_layouts(layouts)
        return made[key]


def _casts(
    pieces: Sequence[Submodel],
    compiled: Sequence[DeviceModel],
    offers: Sequence[Offers],
    agreed: Mapping[str, MemoryLayout],
) -> dict[tuple[int, str], str]:
    """A device names its own element type first."""
    found = {}
    for piece, part, (takes, gives) in zip(pieces, compiled, offers, strict=True):
        for port in (*part.inputs, *part.outputs):
            layouts = (takes if port.is_input else gives).get(port.name)
            if not layouts or port.name in agreed or layouts[0].dtype == port.dtype:
                continue
            types = [str(port.dtype), str(layouts[0].dtype)]
            way = " to ".join(types if port.is_input else reversed(types))
            found[piece.number, port.name] = f"{way} on {piece.device}"
    return found


def _as_compile_error(piece: Submodel, error: BaseException) -> PartitaError:
    if isinstance(error, PartitaError):
        return error
    return CompileError(f"Device '{piece.device}' failed to lay out ports: {in_words(error)}")
