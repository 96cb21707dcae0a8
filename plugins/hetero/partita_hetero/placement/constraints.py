"""Placement constraints of the user by operation: affinities, pins and the lock file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partita.contract.query import QueryResult
from partita.errors import DeviceError, PlanError, UnsupportedOpError
from partita.model.model import Model
from partita_hetero.options.pins import OpFacts, Pin, resolve
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement import lock_file as locks
from partita_hetero.placement.device_list import DeviceList

_log = logging.getLogger("partita.hetero")


@dataclass(frozen=True)
class Constraints:
    """Wishes that go before priorities and plans.

    Attributes:
        pins: Operation to its pin; devices are named as in the device list, if they are there.
        notes: What of a lock file no longer holds.
        replicas: For each replica that a lock file has, operation to device; and its share.
    """

    pins: Mapping[int, Pin]
    notes: list[str] = field(default_factory=list)
    replicas: Sequence[tuple[Mapping[int, str], float]] = ()


def gather(
    model: Model,
    op_graph: OpGraph,
    devices: DeviceList,
    ask: Callable[[str], QueryResult],
    affinities: Mapping[str, str],
) -> Constraints:
    """Collects wishes; of several for one operation the strongest counts.

    From weak to strong: soft pins, affinities, the lock file, hard pins.

    Args:
        model: Names, types and metadata of its operations are what rules go by.
        op_graph: Its operations.
        devices: The device list with its properties.
        ask: What a device says of the model.
        affinities: Device by operation name.

    Raises:
        PlanError: A pin or the lock cannot be used; with STRICT also if the lock does not hold.
        DeviceError: A pin names a device that cannot be used, or with STRICT an affinity does.
    """
    properties = devices.properties
    spelling = Spelling(devices)
    facts = [OpFacts(op.name, op.op_type, op.domain, op.node.metadata_props) for op in model.ops]
    ruled = {
        op: Pin(spelling.of(pin.device, f"The {pin.why}"), pin.why, pin.hard)
        for op, pin in resolve(properties.HETERO_PINS, facts).items()
    }
    pins = {op: pin for op, pin in ruled.items() if not pin.hard}
    named = by_name(affinities, op_graph, devices)
    pins |= named.pins
    notes = named.notes
    replicas: Sequence[tuple[Mapping[int, str], float]] = ()
    if properties.HETERO_PLACEMENT_LOCK:
        path = Path(properties.HETERO_PLACEMENT_LOCK)
        locked = _from_lock(path, model, op_graph, devices, ask)
        free = {op for preferred, _ in locked.replicas for op in preferred}
        pins = {op: pin for op, pin in pins.items() if op not in free} | {**locked.pins}
        notes += locked.notes
        replicas = locked.replicas
    pins |= {op: pin for op, pin in ruled.items() if pin.hard}
    return Constraints(pins, notes, replicas)


def by_name(pins: Mapping[str, str], op_graph: OpGraph, devices: DeviceList) -> Constraints:
    """Affinities: device by operation name; one on a device that cannot be used is ignored.

    Raises:
        UnsupportedOpError: The model has no such operation.
        DeviceError: A device cannot be used, and ``STRICT`` is set.
    """
    spelling = Spelling(devices)
    names = {name: index for index, name in enumerate(op_graph.names())}
    result: dict[int, Pin] = {}
    lost: dict[str, tuple[str, list[str]]] = {}
    for name, device in pins.items():
        if name not in names:
            raise UnsupportedOpError(f"A pin names operation '{name}', which the model lacks.")
        try:
            known = spelling.of(device, f"Operation '{name}' has the affinity '{device}', which")
        except DeviceError as error:
            if devices.properties.STRICT:
                raise
            lost.setdefault(device, (str(error), []))[1].append(name)
            continue
        result[names[name]] = Pin(known, f"affinity '{device}'", hard=False, loud=True)
    notes = []
    for error_text, ops in lost.values():
        more = f" So {len(ops)} operations have it." if len(ops) > 1 else ""
        notes.append(
            f"{error_text}{more} Such affinities are ignored; with STRICT they are an error."
        )
        _log.warning("%s", notes[-1])
    return Constraints(result, notes)


class Spelling:
    """Finds the name that a device has in the list, whatever it is called."""

    def __init__(self, devices: DeviceList) -> None:
        self._core = devices.core
        self._listed = {self._core.resolve_device(name): name for name in devices.names}
        self._known: dict[str, str] = {}

    def of(self, device: str, subject: str) -> str:
        """The name in the list; a device that is not in the list keeps its own.

        Raises:
            DeviceError: There is no such device; the message begins with the subject.
        """
        if device not in self._known:
            try:
                canonical = self._core.resolve_device(device)
            except DeviceError as error:
                which = "" if subject.endswith("which") else f" names '{device}', which"
                raise type(error)(f"{subject}{which} is not a usable device. {error}") from error
            self._known[device] = self._listed.get(canonical, device)
        return self._known[device]

    def in_list(self, device: str) -> str | None:
        """The name in the list, or ``None`` if the device is not there or does not exist."""
        try:
            return self._listed.get(self._core.resolve_device(device))
        except DeviceError:
            return None


def _from_lock(
    path: Path,
    model: Model,
    op_graph: OpGraph,
    devices: DeviceList,
    ask: Callable[[str], QueryResult],
) -> Constraints:
    """Pins and replicas of a lock file, and what of it no longer holds."""
    lock = locks.load(path)
    locks.check_model(lock, model, path)
    spelling = Spelling(devices)
    spelled = {device: spelling.in_list(device) for device in lock.devices}
    placed = [
        name
        for index, name in enumerate(op_graph.names())
        if op_graph.live[index] and not op_graph.constant[index]
    ]

    def refusal(device: str, op: str) -> str | None:
        answer = ask(spelled[device] or device)
        return None if op in answer else str(answer.reasons.get(op, "the device gave no reason"))

    listed = {name: driver_of(devices, here) for name, here in spelled.items() if here}
    lines = locks.compare(lock, model, placed, listed, refusal).lines()
    if lines:
        message = f"The placement lock '{path}' does not hold any more. {' '.join(lines)}"
        if devices.properties.STRICT:
            raise PlanError(f"{message} Write it anew with 'partita plan', or set STRICT=NO.")
        _log.warning("%s", message)
    names = {name: index for index, name in enumerate(op_graph.names())}
    pins = {}
    replicas: list[tuple[dict[int, str], float]] = [({}, share) for share in lock.shares]
    for op in lock.ops:
        here = [spelled[device] for device in lock.devices_of(op)]
        known = [device for device in here if device is not None]
        if op in names and len(known) > 1:
            for (preferred, _), device in zip(replicas, here, strict=True):
                if device is not None:
                    preferred[names[op]] = device
        elif op in names and known:
            pins[names[op]] = Pin(known[0], f"placement lock '{path.name}'", hard=False)
    notes = [f"Placement lock '{path.name}': {line}" for line in lines]
    return Constraints(pins, notes, [one for one in replicas if one[0]])


def driver_of(devices: DeviceList, device: str) -> str:
    """What stands for a device's hardware and driver in a lock file."""
    info = devices.core.device_info(device)
    return ", ".join(text for text in (info.full_name, info.driver) if text)
