"""Layout negotiation: a layout for each crossing tensor that its writer and all readers support."""

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


def offers_of(device_model: DeviceModel) -> Offers:
    """What a compiled submodel names."""
    takes: dict[str, Sequence[MemoryLayout]] = {}
    gives: dict[str, Sequence[MemoryLayout]] = {}
    for port, layouts in device_model.layouts().items():
        (takes if port.is_input else gives)[port.name] = layouts
    return takes, gives


def agree(
    submodels: Sequence[Submodel], offers: Sequence[Offers], plain: Collection[str]
) -> dict[str, MemoryLayout]:
    """The layout of every value that crosses in one; all others stay plain.

    A value has the first layout of its writer's that each of its readers takes.

    Args:
        submodels: The submodels.
        offers: What each of them names.
        plain: Values that applications see.
    """
    readers: dict[str, list[Mapping[str, Sequence[MemoryLayout]]]] = {}
    for submodel, (takes, _) in zip(submodels, offers, strict=True):
        for name in submodel.inputs:
            readers.setdefault(name, []).append(takes)
    agreed: dict[str, MemoryLayout] = {}
    for submodel, (_, gives) in zip(submodels, offers, strict=True):
        for name in submodel.outputs:
            if name in plain or name not in readers:
                continue
            for layout in gives.get(name, ()):
                if all(layout in takes.get(name, ()) for takes in readers[name]):
                    agreed[name] = layout
                    break
    return agreed


def ports_of(
    device_model: DeviceModel, agreed: Mapping[str, MemoryLayout]
) -> dict[Port, MemoryLayout]:
    """The ports of a submodel that have an agreed layout.

    An input that is passed through is computed nowhere; then no layout was agreed for it.
    """
    return {
        port: agreed[port.name]
        for port in (*device_model.inputs, *device_model.outputs)
        if port.name in agreed
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
        submodels: Sequence[Submodel],
        compiled: Sequence[DeviceModel],
        plain: Collection[str],
    ) -> Settlement:
        """Agrees on layouts; with one submodel there is nothing to agree on.

        Args:
            submodels: The submodels.
            compiled: The compiled model of each, with plain ports.
            plain: Values that applications see.
        """
        if len(submodels) < 2:
            return Settlement({}, list(compiled), [])
        failures: list[tuple[Submodel, PartitaError]] = []
        offers = []
        for submodel, device_model in zip(submodels, compiled, strict=True):
            try:
                offers.append(self._offers_of(device_model))
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                failures.append((submodel, _as_compile_error(submodel, error)))
        if failures:
            return Settlement({}, list(compiled), failures)
        agreed = agree(submodels, offers, plain)
        result = []
        for submodel, device_model in zip(submodels, compiled, strict=True):
            try:
                result.append(self._with(device_model, ports_of(device_model, agreed)))
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                failures.append((submodel, _as_compile_error(submodel, error)))
        casts = _casts(submodels, compiled, offers, agreed)
        return Settlement(agreed, result, failures, casts)

    def _offers_of(self, device_model: DeviceModel) -> Offers:
        if device_model not in self._offers:
            self._offers[device_model] = offers_of(device_model)
        return self._offers[device_model]

    def _with(self, device_model: DeviceModel, layouts: Mapping[Port, MemoryLayout]) -> DeviceModel:
        if not layouts:
            return device_model
        made = self._laid_out.setdefault(device_model, {})
        key = frozenset(layouts.items())
        if key not in made:
            made[key] = device_model.with_layouts(layouts)
        return made[key]


def _casts(
    submodels: Sequence[Submodel],
    compiled: Sequence[DeviceModel],
    offers: Sequence[Offers],
    agreed: Mapping[str, MemoryLayout],
) -> dict[tuple[int, str], str]:
    """A device names its own element type first."""
    found = {}
    for submodel, device_model, (takes, gives) in zip(submodels, compiled, offers, strict=True):
        for port in (*device_model.inputs, *device_model.outputs):
            layouts = (takes if port.is_input else gives).get(port.name)
            if not layouts or port.name in agreed or layouts[0].dtype == port.dtype:
                continue
            types = [str(port.dtype), str(layouts[0].dtype)]
            way = " to ".join(types if port.is_input else reversed(types))
            found[submodel.number, port.name] = f"{way} on {submodel.device}"
    return found


def _as_compile_error(submodel: Submodel, error: BaseException) -> PartitaError:
    if isinstance(error, PartitaError):
        return error
    return CompileError(f"Device '{submodel.device}' failed to lay out ports: {in_words(error)}")
