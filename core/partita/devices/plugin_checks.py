"""Validation of device plugins and of what they return, with errors that name the plugin."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping

from partita.contract.device_plugin import API_VERSION, DeviceInfo, DevicePlugin
from partita.devices.device_string import is_device_id, is_device_name, join
from partita.errors import (
    DeviceError,
    DeviceUnavailableError,
    PluginError,
    raised_as,
    shown,
    wrong_answer,
)
from partita.properties.deferred import DeferredProperties

_MOST_DEVICES = 1 << 12
"""Ids that a plugin is asked for; it may answer with an iterator without end."""


def check_plugin(plugin: object, origin: str) -> None:
    """Checks what a package provides as a device plugin.

    Raises:
        PluginError: It is no plugin, or violates the contract; says how.
    """
    if not isinstance(plugin, DevicePlugin):
        raise PluginError(
            f"'{origin}' provides {shown(plugin)}, which is not a partita.DevicePlugin."
        )
    name = getattr(plugin, "device_name", None)
    if not isinstance(name, str) or not is_device_name(name):
        raise PluginError(
            f"'{origin}' names its device {shown(name)}; a device name is capitals, digits and "
            "'_', e.g. 'MYDEV'."
        )
    with raised_as(PluginError, f"Device '{name}' of '{origin}' failed to answer api_version"):
        version = plugin.api_version
    if not isinstance(version, int):
        raise wrong_answer(name, "api_version", version, "a number")
    if version != API_VERSION:
        raise PluginError(
            f"Device '{name}' of '{origin}' is made for plugin interface {version}; "
            f"this Partita has {API_VERSION}. Install a matching version."
        )
    if isinstance(inspect.getattr_static(plugin, "properties_type", None), DeferredProperties):
        return  # checked as it is imported
    from partita.properties.schema import DeviceProperties

    schema = getattr(plugin, "properties_type", None)
    if not (isinstance(schema, type) and issubclass(schema, DeviceProperties)):
        raise PluginError(
            f"Device '{name}' of '{origin}' needs 'properties_type', a subclass of "
            f"partita.DeviceProperties; found {shown(schema)}."
        )


def usable_ids(plugin: DevicePlugin) -> list[str]:
    """The ids of a plugin's devices; whatever the plugin raises becomes a DeviceError.

    Raises:
        DeviceUnavailableError: The plugin has no usable device.
    """
    what = f"Device '{plugin.device_name}' cannot be used"
    with raised_as(DeviceUnavailableError, what, DeviceError):
        ids = list(itertools.islice(plugin.device_ids(), _MOST_DEVICES))
    if not ids:
        raise DeviceUnavailableError(
            f"Device '{plugin.device_name}' found no hardware. Install its driver, or use another "
            "device: 'partita devices' lists them."
        )
    if not all(isinstance(i, str) and is_device_id(i) for i in ids) or len(set(ids)) < len(ids):
        expected = "different strings of letters, digits, '_' and '-'"
        raise wrong_answer(plugin.device_name, "device_ids", ids, expected, DeviceUnavailableError)
    return ids


def unavailable_beside(plugin: DevicePlugin) -> Mapping[str, str]:
    """Devices and drivers that a plugin found but cannot use, with the reasons.

    Raises:
        DeviceError: The plugin failed.
    """
    what = f"Device '{plugin.device_name}' cannot say what is unavailable"
    with raised_as(DeviceUnavailableError, what, DeviceError):
        return {str(name): str(why) for name, why in plugin.unavailable_devices().items()}


def describe(plugin: DevicePlugin, device_id: str) -> DeviceInfo:
    """Describes one device.

    Raises:
        DeviceError: Its driver failed, or the plugin returned something else.
    """
    what = f"Device '{join(plugin.device_name, device_id)}' cannot be described"
    with raised_as(DeviceUnavailableError, what, DeviceError):
        info = plugin.device_info(device_id)
    if not isinstance(info, DeviceInfo):
        found = type(info).__name__
        raise DeviceUnavailableError(
            f"{what}: device_info returned {found}; expected a DeviceInfo."
        )
    for field, (expected, fits) in _EXPECTED.items():
        value = getattr(info, field)
        if not fits(value):
            asked = f"{field} of device_info"
            raise wrong_answer(plugin.device_name, asked, value, expected, DeviceUnavailableError)
    return info


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bytes_or_none(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 <= value < _MOST_BYTES
    return value is None


def _are_texts_by_name(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in value.items()
    )


_MOST_BYTES = 1 << 63
_EXPECTED: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("device", "full_name", "kind", "driver"), ("a text", _is_text)),
    "memory": ("the name of a memory", _is_text),
    "memory_bytes": ("a number of bytes, or None", _is_bytes_or_none),
    "details": ("a dict from names to texts", _are_texts_by_name),
}
"""By field of a DeviceInfo what is expected, for a message, and whether a value is that."""
