"""The devices that a device is made of: which, in what order, and with what properties."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from partita.contract.core_api import CoreAPI
from partita.errors import (
    PLUGIN_FAILURES,
    DeviceError,
    DeviceNotFoundError,
    PropertyError,
    in_words,
)
from partita.suggestions import guess

_log = logging.getLogger("partita")

_KIND_ORDER = ("gpu", "accelerator", "cpu", "reference")

EVERY_DEVICE = "*"
"""Stands in ``DEVICE_PROPERTIES`` for every device that has the property."""


def default_devices(core: CoreAPI, own_name: str) -> list[str]:
    """All devices that are not made of others: GPUs, other accelerators, CPUs, then references.

    A device that cannot say what it is, is left out.
    """
    ranked = []
    for device in core.available_devices:
        if device.partition(".")[0] == own_name:
            continue
        try:
            kind = core.device_info(device).kind
        except PLUGIN_FAILURES as error:  # whatever a broken plugin raises
            _log.warning(
                "Device '%s' is left out: it cannot be described: %s", device, in_words(error)
            )
            continue
        if kind != "virtual":
            order = _KIND_ORDER.index(kind) if kind in _KIND_ORDER else 1
            ranked.append((order, "." in device, device))  # those without a driver first
    return [device for _, _, device in sorted(ranked)]


def check_devices(core: CoreAPI, devices: Sequence[str], own_name: str) -> None:
    """Every device must exist and be listed once, whatever name it goes by.

    Raises:
        DeviceError: One does not exist, cannot be used, is the list's owner, or is listed twice.
    """
    seen: dict[str, str] = {}
    for device in devices:
        if device.partition(".")[0] == own_name:
            raise DeviceNotFoundError(f"{own_name} cannot be one of its own devices ('{device}').")
        try:
            canonical = core.resolve_device(device)
        except DeviceError as error:
            raise type(error)(f"{own_name}:{','.join(devices)} cannot be used. {error}") from error
        if canonical in seen:
            raise DeviceNotFoundError(
                f"'{device}' and '{seen[canonical]}' are the same device ({canonical}); "
                "list it once."
            )
        seen[canonical] = device


def check_properties(
    core: CoreAPI,
    own_name: str,
    own_keys: Collection[str],
    devices: Sequence[str],
    nested: Mapping[str, Mapping[str, Any]],
) -> None:
    """Every property that is for devices must be one that such a device has.

    Args:
        core: Knows the devices.
        own_name: The list's owner.
        own_keys: The properties that it has itself.
        devices: The list.
        nested: ``DEVICE_PROPERTIES``: device to properties, ``"*"`` for all.

    Raises:
        PropertyError: It fits none of the devices.
    """
    for name, settings in nested.items():
        if name == EVERY_DEVICE:
            continue
        try:
            core.resolve_device(name)
            unknown = [key for key in settings if not core.accepts_property(name, key)]
        except DeviceError as error:
            raise PropertyError(f"DEVICE_PROPERTIES names '{name}': {error}") from error
        if unknown:
            raise PropertyError(
                f"DEVICE_PROPERTIES sets '{unknown[0]}' for '{name}', which has no such "
                "property that can be set; see core.get_property(device, "
                "'SUPPORTED_PROPERTIES')."
            )
    for key in nested.get(EVERY_DEVICE, {}):
        if not any(core.accepts_property(device, key) for device in devices):
            raise PropertyError(
                f"Neither {own_name} nor any of {', '.join(devices)} has a property "
                f"'{key}'.{guess(key, own_keys)} {own_name} accepts {', '.join(own_keys)}, "
                "and every key of its devices."
            )


def config_of(
    core: CoreAPI,
    device: str,
    nested: Mapping[str, Mapping[str, Any]],
    passed_on: Mapping[str, Any],
) -> dict[str, Any]:
    """The properties that a device of a list is compiled for with: its own, and those for all.

    Args:
        core: Knows the devices.
        device: The device.
        nested: ``DEVICE_PROPERTIES``: device to properties, ``"*"`` for all.
        passed_on: The list's owner's own, for those that have them too.
    """
    canonical = core.resolve_device(device)
    common = {**nested.get(EVERY_DEVICE, {}), **passed_on}
    config = {key: value for key, value in common.items() if core.accepts_property(device, key)}
    families = {device.partition(".")[0], canonical.partition(".")[0]}
    for name, settings in nested.items():
        if name != EVERY_DEVICE and (name in families or core.resolve_device(name) == canonical):
            config |= settings
    return config
