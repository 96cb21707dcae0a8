"""The devices that a virtual device runs models on: asked, compiled for, described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from partita.contract.core_api import CoreAPI
from partita.contract.device_model import DeviceModel, exported_state
from partita.contract.explanation import Explanation
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.devices import member_devices
from partita.devices.device_string import parse, parse_entry, parse_list
from partita.errors import DeviceError, OperandError, UnsupportedOpError, in_words
from partita.model.model import Model
from partita.properties import DeviceProperties
from partita_virtual.properties import VirtualProperties


class Members:
    """The devices of one compile, in order of priority.

    Args:
        core: What is seen of the devices.
        own_name: The name that the virtual device is registered under.
        properties: Validated properties.

    Attributes:
        core: What is seen of the devices.
        own_name: The name that the virtual device is registered under.
        names: The devices.
        is_listed: Whether they were named.
        counts: Device to the number behind it in the list, where there is one.
        properties: The properties, with the list filled in.

    Raises:
        DeviceError: A device does not exist, is listed twice, or is not written as it is due.
        PropertyError: A property fits none of the devices.
    """

    def __init__(self, core: CoreAPI, own_name: str, properties: DeviceProperties) -> None:
        if not isinstance(properties, VirtualProperties):
            raise TypeError(f"{own_name} does not take {type(properties).__name__}.")
        listed = properties.MULTI_DEVICE_PRIORITIES
        entries = [parse_entry(entry) for entry in parse_list(listed)] if listed else []
        properties.check_entries(own_name, entries)
        self.core = core
        self.own_name = own_name
        self.is_listed = bool(entries)
        self.names = [entry.device for entry in entries if not entry.is_excluded]
        excluded = {core.resolve_device(one.device) for one in entries if one.is_excluded}
        if not self.names or excluded:
            offered = self.names or _default(core, own_name)
            self.names = [one for one in offered if core.resolve_device(one) not in excluded]
        if not self.names:
            raise DeviceError(
                f"{own_name} found no device to run on; 'partita devices' says why others cannot "
                "be used."
            )
        member_devices.check_devices(core, self.names, own_name)
        own_keys = type(properties).model_fields
        nested = properties.DEVICE_PROPERTIES
        member_devices.check_properties(core, own_name, own_keys, self.names, nested)
        self.counts = {entry.device: entry.count for entry in entries if entry.count is not None}
        shown = [f"{name}({self.counts[name]})" if name in self.counts else name for name in self]
        self.properties = properties.model_copy(update={"MULTI_DEVICE_PRIORITIES": ",".join(shown)})

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def kind(self, device: str) -> str:
        """What kind of device it is."""
        return self.core.device_info(device).kind

    def config(self, device: str) -> dict[str, Any]:
        """The properties that a device is compiled for with; one with a list hands theirs on."""
        nested, passed_on = self.properties.DEVICE_PROPERTIES, self.properties.passed_on()
        listed = parse(device).priorities
        if listed is not None:
            nested = {}
            passed_on["DEVICE_PROPERTIES"] = {name: self.config(name) for name in listed}
        config = member_devices.config_of(self.core, device, nested, passed_on)
        return {"CACHE_DIR": "", **config}  # what is cached is the whole model

    def ask(self, model: Model, device: str) -> QueryResult:
        """What one device says of the model."""
        return self.core.query_model(model, device, self.config(device))

    def compile(
        self, model: Model, device: str, state: Mapping[str, Any] | None = None
    ) -> DeviceModel:
        """Compiles the model for a device, by what an earlier compile left of it if there is any.

        Raises:
            PartitaError: The device cannot.
        """
        config = self.config(device)
        own = state_of(device, state or {})
        if own:
            return self.core.restore_model(model.clone(), device, config, own)
        return self.core.compile_model(model, device, config)

    def query(self, model: Model) -> QueryResult:
        """What that device takes which takes most; for the rest, why none takes it.

        Not what all take together: models are not split here.
        """
        answers = {device: self.ask(model, device) for device in self}
        best = max(answers, key=lambda device: len(answers[device]))  # the first of equals
        reasons = {
            op.name: Reason(
                ReasonCode.UNSUPPORTED_OP,
                "; ".join(f"not {name}: {said.reasons.get(op.name)}" for name, said in refusals),
            )
            for op in model.ops
            if op.name not in answers[best]
            and (refusals := [(n, said) for n, said in answers.items() if op.name not in said])
        }
        whole = f"{self.own_name}:{self.properties.MULTI_DEVICE_PRIORITIES}"
        return QueryResult(whole, dict.fromkeys(answers[best], best), reasons)

    def identities(self) -> list[str]:
        """What compiled models of the devices depend on besides the model."""
        return [self.core.identity(device, self.config(device)) for device in self]


def _default(core: CoreAPI, own_name: str) -> list[str]:
    """Every GPU and accelerator, one CPU, and one reference for what they do not take."""
    names: list[str] = []
    kinds: set[str] = set()
    for device in member_devices.default_devices(core, own_name):
        kind = core.device_info(device).kind
        if kind not in kinds or kind not in ("cpu", "reference"):
            names.append(device)
        kinds.add(kind)
    return names


def unsupported_by_all(
    own_name: str, model: Model, causes: Mapping[str, BaseException]
) -> UnsupportedOpError | OperandError:
    """The error of a model that no device of the list takes as a whole.

    Where a device says that an operation does not fit what it reads, no other device could.

    Args:
        own_name: The virtual device.
        model: The model.
        causes: Device to what it said.
    """
    for cause in causes.values():
        if isinstance(cause, OperandError):
            return OperandError(in_words(cause))
    error = UnsupportedOpError(
        f"No device of {own_name}:{','.join(causes)} takes model '{model.name}' as a whole; a "
        "device that splits models could."
    )
    return error.with_lines(
        f"{device}: {line}" for device, cause in causes.items() for line in str(cause).split("\n")
    )


def explained(
    base: Explanation, reason: Reason, refused: Mapping[str, QueryResult], notes: Sequence[str]
) -> Explanation:
    """The explanation of the device that runs a model, with why it is this one.

    Args:
        base: What the device says.
        reason: Why the device.
        refused: Answers of devices that do not take the model as a whole.
        notes: What else a person should know.
    """
    ops = []
    for op in base.ops:
        others = {
            d: said.reasons[op.name] for d, said in refused.items() if op.name in said.reasons
        }
        why = op.reason if op.reason.code is not ReasonCode.PINNED else reason
        ops.append(replace(op, reason=why, refused={**op.refused, **others}))
    return replace(base, ops=ops, notes=[*base.notes, *notes])


def state_of(device: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """What is of one device in what :func:`states` made."""
    prefix = f"{device}/"
    return {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}


def states(compiled: Mapping[str, DeviceModel]) -> dict[str, Any]:
    """What compiled models keep for later compiles, by names that begin with their devices'."""
    return {
        f"{device}/{name}": array
        for device, one in compiled.items()
        for name, array in exported_state(one).items()
    }
