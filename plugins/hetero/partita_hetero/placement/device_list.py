"""The device list of one compile, with the properties that go to each device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from partita.contract.core_api import CoreAPI
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.devices import member_devices
from partita.devices.device_string import parse_list
from partita.errors import DeviceError, PropertyError
from partita.model.model import Model
from partita_hetero.options.pins import Pin
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement import by_priority, data_movement
from partita_hetero.properties import HeteroProperties

_ALSO_FOR_DEVICES = {"PERFORMANCE_HINT"}
"""Keys that HETERO has itself and passes on."""


class DeviceList:
    """The devices in order of priority.

    Args:
        core: What HETERO sees of the devices.
        own_name: The name that HETERO is registered under.
        properties: Validated properties.

    Raises:
        DeviceError: A device of the list does not exist, is listed twice, or is HETERO itself.
        PropertyError: A property fits none of the devices.
    """

    def __init__(self, core: CoreAPI, own_name: str, properties: HeteroProperties) -> None:
        listed = properties.MULTI_DEVICE_PRIORITIES
        self.core = core
        self.own_name = own_name
        self.names = (
            list(parse_list(listed)) if listed else member_devices.default_devices(core, own_name)
        )
        if not self.names:
            raise DeviceError(
                f"{own_name} found no device to run on; 'partita devices' says why others cannot "
                "be used."
            )
        member_devices.check_devices(core, self.names, own_name)
        self.properties = properties.model_copy(
            update={"MULTI_DEVICE_PRIORITIES": ",".join(self.names)}
        )
        member_devices.check_properties(
            core, own_name, HeteroProperties.model_fields, self.names, properties.DEVICE_PROPERTIES
        )
        self.memory_limits = self._memory_limits()
        self._overrides: dict[str, dict[str, Any]] = {}
        self._kinds: dict[str, str | None] = {}

    def ask(self, model: Model, device: str) -> QueryResult:
        """What one device says of the model."""
        return self.core.query_model(model, device, self.config(device))

    def query(self, model: Model, op_graph: OpGraph, pins: Mapping[int, Pin]) -> QueryResult:
        """Who would take what; not by affinities, so that the answer can be edited into them.

        ``pins`` tells of operations (of ``op_graph``) where properties want them.
        """
        names = op_graph.names()
        pinned = {names[op]: pin for op, pin in pins.items()}
        supported: dict[str, str] = {}
        reasons: dict[str, Reason] = {}
        answers: dict[str, QueryResult] = {}
        for op in model.ops:
            refused = []
            pin = pinned.get(op.name)
            for device in dict.fromkeys([*([pin.device] if pin else []), *self.names]):
                if device not in answers:
                    answers[device] = self.ask(model, device)
                if op.name in answers[device]:
                    supported[op.name] = device
                    break
                refused.append(f"not {device}: {answers[device].reasons.get(op.name)}")
            else:
                reasons[op.name] = Reason(ReasonCode.UNSUPPORTED_OP, "; ".join(refused))
                continue
            if refused:
                reasons[op.name] = Reason(ReasonCode.FALLBACK, "; ".join(refused))
            elif pin:
                reasons[op.name] = Reason(ReasonCode.PINNED, pin.why)
        moved = data_movement.follow(
            op_graph,
            [supported.get(name) for name in names],
            [op not in pins for op in range(len(names))],
            lambda op, device: self.welcomes(device) and names[op] in answers[device],
            self.names,
        )
        for index, device in moved.items():
            reasons[names[index]] = by_priority.follows(supported[names[index]])
            supported[names[index]] = device
        return QueryResult(f"{self.own_name}:{','.join(self.names)}", supported, reasons)

    def welcomes(self, device: str) -> bool:
        """Whether operations may move here from another device: a reference is a last resort."""
        return self._kind(device) not in (None, "reference")

    def is_reference(self, device: str) -> bool:
        """Whether it is a last resort, and can be used."""
        return self._kind(device) == "reference"

    def _kind(self, device: str) -> str | None:
        """The kind of a device; ``None`` if it cannot be used."""
        if device not in self._kinds:
            try:
                self._kinds[device] = self.core.device_info(device).kind
            except DeviceError:
                self._kinds[device] = None
        return self._kinds[device]

    def config(self, device: str) -> dict[str, Any]:
        """The properties for a device's submodels: its own, and those common keys that it has."""
        properties = self.properties
        keys = _ALSO_FOR_DEVICES & properties.model_fields_set
        passed_on = {key: getattr(properties, key) for key in keys}
        if properties.PERF_COUNT:
            passed_on["PERF_COUNT"] = True
        config = member_devices.config_of(
            self.core, device, properties.DEVICE_PROPERTIES, passed_on
        )
        config |= self._overrides.get(device, {})
        return {"CACHE_DIR": "", **config}  # what is cached is the whole model

    def override(self, device: str, key: str, value: Any) -> None:
        """Sets a property of a device, over what the user set, for what is compiled from now on."""
        self._overrides.setdefault(device, {})[key] = value

    def drop_override(self, device: str, key: str) -> None:
        """Takes back what :meth:`override` set."""
        self._overrides.get(device, {}).pop(key, None)

    @property
    def overrides(self) -> dict[str, dict[str, Any]]:
        """The values given to :meth:`override`, by device."""
        return {device: dict(values) for device, values in self._overrides.items()}

    def room(self, device: str) -> int | None:
        """Bytes for weights and values on a device: its limit, or else the memory that it tells of.

        ``None`` for no limit, and for a device that cannot be used.
        """
        if device in self.memory_limits:
            return self.memory_limits[device]
        try:
            return self.core.device_info(device).memory_bytes
        except DeviceError:
            return None

    def _memory_limits(self) -> dict[str, int]:
        """Limits by the name that each device has in the list."""
        listed = {self.core.resolve_device(name): name for name in self.names}
        limits: dict[str, int] = {}
        for name, limit in self.properties.HETERO_MEMORY_LIMITS.items():
            try:
                canonical = self.core.resolve_device(name)
            except DeviceError as error:
                raise PropertyError(f"HETERO_MEMORY_LIMITS names '{name}': {error}") from error
            limits[listed.get(canonical, name)] = limit
        return limits
