"""Settings: the values given to ``set_property``, merged for each call."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from partita.devices.device_string import join
from partita.devices.registry import Named
from partita.errors import PropertyError
from partita.properties.values import Config, merge, normalize

if TYPE_CHECKING:
    from partita.contract.device_plugin import DevicePlugin
    from partita.properties import DeviceProperties

_DEVICE_PROPERTIES = "DEVICE_PROPERTIES"


class Settings:
    """The properties set so far, by plugin (``"OPENCL"``) and by device (``"OPENCL.1"``)."""

    def __init__(self) -> None:
        self._of: dict[str, DeviceProperties] = {}

    def set(self, named: Named, values: Mapping[str, Any], known: Container[str]) -> None:
        """Sets properties for a plugin, or for the devices that are named; all or none.

        Args:
            named: Whose they are.
            values: What to set.
            known: Names of properties that some plugin has; others are refused at once.

        Raises:
            PropertyError: Unknown or read-only key, or a wrong value.
        """
        values = merge(values, named.settings)
        self._validated(named.plugin, {key: values[key] for key in values if key not in known})
        values = _own_keys(named, values)
        if "DEVICE_ID" in values:
            values["DEVICE_ID"] = _device_id(named, values)
        keys = [join(named.name, i) for i in named.ids] if named.explicit else [named.name]
        found = {key: self._validated(named.plugin, values, key) for key in keys}
        self._of = {**self._of, **found}  # another thread may be going through the one before

    def forget(self, plugin: str) -> None:
        """Forgets what was set for a plugin and each of its devices."""
        kept = {key: one for key, one in self._of.items() if key.partition(".")[0] != plugin}
        self._of = kept

    def of_call(self, named: Named, config: Config) -> DeviceProperties:
        """The complete properties for one call.

        Each overrides the ones before: what is set for the plugin, what is set for the device, the
        configuration of the call, the device string itself.
        """
        call = _own_keys(named, merge(normalize(config), named.settings))
        common = self._stored(named.name)
        device_id = _device_id(named, merge(common, call) if not named.explicit else call)
        values = merge(common, self._stored(join(named.name, device_id)), call)
        if device_id:
            values["DEVICE_ID"] = device_id
        return self._validated(named.plugin, values)

    def _stored(self, key: str) -> dict[str, Any]:
        """The values given to :meth:`set_property` for a plugin, or for a device."""
        properties = self._of.get(key)
        return {} if properties is None else properties.model_dump(exclude_unset=True)

    def _validated(
        self, plugin: DevicePlugin, values: dict[str, Any], base: str = ""
    ) -> DeviceProperties:
        from partita.properties.schema import validate

        owner = f"Device '{plugin.device_name}'"
        return validate(plugin.properties_type, values, owner, self._of.get(base))


def _device_id(named: Named, values: dict[str, Any]) -> str:
    """The one device that is meant, by its string or by DEVICE_ID.

    Raises:
        PropertyError: DEVICE_ID names none, or another one than the string.
    """
    wanted = str(values.get("DEVICE_ID", "")) or named.ids[0]
    if wanted not in named.ids:
        raise PropertyError(
            f"DEVICE_ID of device '{named.name}' cannot be '{wanted}' here; it can be "
            f"{', '.join(map(repr, named.ids))}."
        )
    return wanted


def _own_keys(named: Named, values: dict[str, Any]) -> dict[str, Any]:
    """Moves keys to where the plugin looks for them.

    A device that is made of others looks for theirs in ``DEVICE_PROPERTIES``, any other one for its
    own beside that.

    Raises:
        PropertyError: Properties of other devices are set for a device that is made of none.
    """
    own = named.plugin.properties_type.model_fields
    if _DEVICE_PROPERTIES not in own:
        return _taken_out(named, values)
    foreign = {key: value for key, value in values.items() if key not in own}
    rest = {key: value for key, value in values.items() if key in own}
    return merge(rest, {_DEVICE_PROPERTIES: {"*": foreign}}) if foreign else rest


def _taken_out(named: Named, values: dict[str, Any]) -> dict[str, Any]:
    """Properties, with those that ``DEVICE_PROPERTIES`` holds for this device on top."""
    of_devices = values.get(_DEVICE_PROPERTIES)
    if not isinstance(of_devices, Mapping):
        return values
    rest = {key: value for key, value in values.items() if key != _DEVICE_PROPERTIES}
    for device, settings in of_devices.items():
        if device not in (named.name, named.device, *named.plugin.aliases):
            raise PropertyError(
                f"DEVICE_PROPERTIES sets properties of '{device}', and '{named.device}' is another "
                "device, which has none below it; leave them out, or name both in a list."
            )
        if not isinstance(settings, Mapping):
            raise PropertyError(
                f"DEVICE_PROPERTIES has {settings!r} for '{device}'; expected a dict of properties."
            )
        rest = merge(rest, settings)
    return rest
