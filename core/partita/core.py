"""Core: the application's entry to models, devices and properties."""

from __future__ import annotations

import logging
import time
from typing import Any

from partita import blob as blobs
from partita import device_string
from partita.compiled_model import CompiledModel
from partita.device_string import DeviceString
from partita.errors import (
    CompileError,
    DeviceError,
    DeviceNotFoundError,
    DeviceStringError,
    DeviceUnavailableError,
    PartitaError,
    PluginError,
    PropertyError,
)
from partita.model import Model
from partita.plugin import DeviceInfo, DevicePlugin
from partita.properties import (
    Config,
    CoreProperties,
    DeviceProperties,
    is_read_only,
    normalise,
    validate,
    writable,
)
from partita.query import QueryResult
from partita.registry import Failure, Registry, usable_ids
from partita.tensor import Tensor

_log = logging.getLogger("partita")

_PRIORITIES = "MULTI_DEVICE_PRIORITIES"
_DEVICE_PROPERTIES = "DEVICE_PROPERTIES"


class Core:
    """Finds device plugins, reads models, compiles them for devices.

    Making one loads no driver and no model code; plugins do that when they are used. A Core may be
    used from several threads; setting properties while another thread compiles is not ordered.

    Example:
        >>> core = Core()
        >>> "CPU" in core.available_devices
        True
    """

    def __init__(self) -> None:
        self._own = CoreProperties()
        self._settings: dict[str, DeviceProperties] = {}
        self._ids: dict[str, list[str]] = {}
        self._registry = Registry(self)

    # ---------------------------------------------------------------------- models

    def read_model(self, model: Any, weights: Any = None) -> Model:
        """Reads an ONNX model from a path, bytes or an ``onnx.ModelProto``.

        Args:
            model: The source.
            weights: Accepted for OpenVINO's sake; must be ``None``, as ONNX names its own files.

        Raises:
            ModelNotFoundError: The path does not exist.
            ModelFormatError: It is no ONNX model, damaged, or of an unknown opset.
        """
        from partita.reading import read_model

        if weights is not None:
            raise PropertyError(
                "'weights' must be None: an ONNX model names its external files itself."
            )
        return read_model(model)

    def query_model(
        self, model: Model, device_name: str, config: Config = None
    ) -> QueryResult:
        """Asks a device which operations it takes; affinities in the model are ignored.

        Returns:
            A mapping from operation name to device, with a reason for every other operation.
        """
        plugin, properties = self._target(device_name, config)
        result = plugin.query_model(model, properties)
        if not isinstance(result, QueryResult):
            raise PluginError(
                f"Device '{plugin.device_name}' answered query_model with "
                f"{type(result).__name__}; a QueryResult is due."
            )
        return result

    def compile_model(
        self, model: Any, device_name: str = "HETERO", config: Config = None
    ) -> CompiledModel:
        """Compiles a model for a device.

        Args:
            model: A ``Model``, or whatever :meth:`read_model` takes.
            device_name: E.g. ``"CPU"``, ``"OPENCL.1"`` or ``"HETERO:GPU,CPU"``.
            config: Properties for this model only; they override :meth:`set_property`.

        Raises:
            DeviceError: The device does not exist or cannot be used.
            PropertyError: A property is unknown or wrong.
            UnsupportedOpError: The device does not take an operation; lists them with reasons.
            CompileError: The device failed.
        """
        from partita.reading import read_model

        plugin, properties = self._target(device_name, config)
        model = read_model(model)
        start = time.perf_counter()
        try:
            compiled = plugin.compile_model(model, properties)
        except PartitaError:
            raise
        except Exception as error:
            raise CompileError(
                f"Device '{plugin.device_name}' failed to compile model '{model.name}': "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(compiled, CompiledModel):
            raise PluginError(
                f"Device '{plugin.device_name}' answered compile_model with "
                f"{type(compiled).__name__}; a CompiledModel is due."
            )
        _log.info(
            "compiled for %s in %.0f ms: %s",
            device_name,
            (time.perf_counter() - start) * 1e3,
            model.name,
        )
        return compiled

    def import_model(
        self, model: bytes, device_name: str, config: Config = None
    ) -> CompiledModel:
        """Restores what ``CompiledModel.export_model`` wrote.

        Raises:
            BlobError: Not a blob, damaged, of another version or device.
        """
        plugin, properties = self._target(device_name, config)
        if type(plugin).import_model is not DevicePlugin.import_model:
            return plugin.import_model(model, properties)
        header, restored = blobs.unpack(model, plugin.device_name)
        stored = validate(plugin.properties_type, header.get("properties", {}), "The exported model")
        merged = {**stored.model_dump(exclude_unset=True), **properties.model_dump(exclude_unset=True)}
        return self.compile_model(restored, properties_device(plugin, properties), merged)

    # --------------------------------------------------------------------- devices

    @property
    def available_devices(self) -> list[str]:
        """Names of all devices that can be used, with ids where the plugin has them."""
        names = []
        for name in self._registry.names:
            try:
                names += [_join(name, device_id) for device_id in self._device_ids(name)]
            except DeviceError as error:
                _log.info("%s", error)
        return names

    def get_available_devices(self) -> list[str]:
        """The same (OpenVINO's spelling)."""
        return self.available_devices

    @property
    def unavailable_devices(self) -> dict[str, str]:
        """Device or plugin name to the reason why it cannot be used."""
        reasons = {failure.plugin: failure.cause for failure in self._registry.failures}
        for name in self._registry.names:
            try:
                self._device_ids(name)
            except DeviceError as error:
                reasons[name] = str(error)
        return reasons

    @property
    def plugin_failures(self) -> list[Failure]:
        """Plugins that did not load."""
        return list(self._registry.failures)

    def register_plugin(self, plugin: str | DevicePlugin, device_name: str | None = None) -> None:
        """Adds a plugin to this Core.

        Args:
            plugin: An entry-point name or module (its plugin is made once more, so that one plugin
                can serve under two device names), or a ``DevicePlugin`` object.
            device_name: The device name; ``None`` keeps the plugin's own.

        Raises:
            PluginError: It provides no plugin, breaks the contract, or the name is taken.
        """
        if isinstance(plugin, str):
            if device_name is None:
                raise PluginError(f"Give the device name under which '{plugin}' is registered.")
            self._registry.add_again(plugin, device_name)
            return
        if device_name is not None and isinstance(plugin, DevicePlugin):
            plugin.device_name = device_name  # type: ignore[misc]  # this instance is renamed
        self._registry.add(plugin, type(plugin).__module__)

    def device_info(self, device: str) -> DeviceInfo:
        """Describes a device."""
        plugin, device_id, _ = self._resolve(device_string.parse(device))
        return plugin.device_info(device_id)

    def resolve_device(self, device: str) -> str:
        """The canonical name of a device: aliases followed, ids checked, existence assured."""
        plugin, device_id, _ = self._resolve(device_string.parse(device))
        return _join(plugin.device_name, device_id)

    # ------------------------------------------------------------------ properties

    def set_property(self, device_name: str | Config, config: Config = None) -> None:
        """Sets properties of a device for all later compiles; or of Core, if no device is named.

        Raises:
            PropertyError: Unknown or read-only key, or a wrong value; nothing is changed then.
        """
        if not isinstance(device_name, str):
            self._own = validate(CoreProperties, normalise(device_name), "Core", self._own)
            _log.setLevel(self._own.LOG_LEVEL)
            return
        parsed = device_string.parse(device_name)
        plugin, device_id, settings = self._resolve(parsed)
        settings |= normalise(config)
        key = _join(plugin.device_name, device_id if parsed.device_id or plugin.device_name != parsed.name else "")
        if "DEVICE_ID" in settings and settings["DEVICE_ID"] not in self._device_ids(plugin.device_name):
            raise PropertyError(
                f"Device '{plugin.device_name}' has no id '{settings['DEVICE_ID']}'; it has "
                f"{', '.join(self._device_ids(plugin.device_name))}."
            )
        self._settings[key] = validate(
            plugin.properties_type, settings, f"Device '{plugin.device_name}'", self._settings.get(key)
        )

    def get_property(self, device_name: str, name: str | None = None) -> Any:
        """A property of a device (or, with one argument, of Core).

        Besides the settable ones: ``AVAILABLE_DEVICES``, ``FULL_DEVICE_NAME``, ``DEVICE_TYPE``,
        ``SUPPORTED_PROPERTIES``.

        Raises:
            PropertyError: Unknown; the message lists the known ones.
        """
        if name is None:
            if device_name not in CoreProperties.model_fields:
                raise PropertyError(
                    f"Core has no property '{device_name}'; it has {', '.join(CoreProperties.model_fields)}."
                )
            return getattr(self._own, device_name)
        plugin, properties = self._target(device_name, None)
        if name == "AVAILABLE_DEVICES":
            return [device_id for device_id in self._device_ids(plugin.device_name) if device_id]
        if name == "FULL_DEVICE_NAME":
            return plugin.device_info(properties.DEVICE_ID).full_name
        if name == "DEVICE_TYPE":
            return plugin.device_info(properties.DEVICE_ID).kind
        facts = ("AVAILABLE_DEVICES", "FULL_DEVICE_NAME", "DEVICE_TYPE", "SUPPORTED_PROPERTIES")
        fields = type(properties).model_fields
        if name == "SUPPORTED_PROPERTIES":
            return [*facts, *fields]
        if name not in fields:
            raise PropertyError(
                f"Device '{plugin.device_name}' has no property '{name}'; it has "
                f"{', '.join([*facts, *fields])}."
            )
        return getattr(properties, name)

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name."""
        plugin, _, _ = self._resolve(device_string.parse(device))
        schema = plugin.properties_type
        return key in schema.model_fields and not is_read_only(schema, key)

    def writable_properties(self, device: str) -> list[str]:
        """Names of the properties that can be set on a device."""
        plugin, _, _ = self._resolve(device_string.parse(device))
        return writable(plugin.properties_type)

    # --------------------------------------------------------------------- tensors

    def can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads tensors of a memory in place."""
        plugin, device_id, _ = self._resolve(device_string.parse(device))
        return plugin.can_share(memory, device_id)

    def transfer_to(self, device: str, tensor: Tensor) -> Tensor:
        """Brings a tensor into a device's memory."""
        plugin, device_id, _ = self._resolve(device_string.parse(device))
        return plugin.transfer_to(tensor, device_id)

    # ------------------------------------------------------------------- internals

    def _device_ids(self, name: str) -> list[str]:
        if name not in self._ids:
            self._ids[name] = usable_ids(self._registry.plugin(name))
        return self._ids[name]

    def _resolve(self, parsed: DeviceString) -> tuple[DevicePlugin, str, dict[str, Any]]:
        """The plugin, the id, and the settings that the string itself carries."""
        alias = self._registry.owner_of_alias(parsed.name)
        if alias is not None and parsed.name not in self._registry.names:
            plugin, kind = alias
            device_id = self._id_of_kind(parsed, plugin, kind)
        else:
            plugin = self._registry.plugin(parsed.name)
            ids = self._device_ids(plugin.device_name)
            device_id = parsed.device_id or ids[0]
            if device_id not in ids:
                shown = ", ".join(_join(plugin.device_name, known) for known in ids)
                raise DeviceNotFoundError(
                    f"There is no device '{parsed.device}'; '{plugin.device_name}' has {shown}."
                )
        settings: dict[str, Any] = {}
        if parsed.priorities is not None:
            if _PRIORITIES not in plugin.properties_type.model_fields:
                raise DeviceStringError(
                    f"Device '{plugin.device_name}' takes no device list; write "
                    f"'HETERO:{parsed.device},{','.join(parsed.priorities)}' for several devices."
                )
            settings[_PRIORITIES] = ",".join(parsed.priorities)
        return plugin, device_id, settings

    def _id_of_kind(self, parsed: DeviceString, plugin: DevicePlugin, kind: str) -> str:
        try:
            ids = self._device_ids(plugin.device_name)
        except DeviceError as error:
            raise DeviceUnavailableError(f"Device '{parsed.name}' is unavailable: {error}") from error
        fitting = [i for i in ids if plugin.device_info(i).kind == kind]
        index = int(parsed.device_id or 0) if (parsed.device_id or "0").isdigit() else -1
        if not 0 <= index < len(fitting):
            shown = ", ".join(
                f"{_join(plugin.device_name, i)} ({plugin.device_info(i).kind}, "
                f"{plugin.device_info(i).full_name})"
                for i in ids
            )
            raise DeviceNotFoundError(
                f"There is no device '{parsed.device}': '{plugin.device_name}' has {len(fitting)} "
                f"of kind '{kind}'. It has {shown}."
            )
        return fitting[index]

    def _target(self, device_name: str, config: Config) -> tuple[DevicePlugin, DeviceProperties]:
        """The plugin and the complete properties for one call."""
        plugin, device_id, settings = self._resolve(device_string.parse(device_name))
        values: dict[str, Any] = {}
        for key in (plugin.device_name, _join(plugin.device_name, device_id)):
            if key in self._settings:
                values |= self._settings[key].model_dump(exclude_unset=True)
        if device_id:
            values.setdefault("DEVICE_ID", device_id)
            if "." in device_name or plugin.device_name != device_name:
                values["DEVICE_ID"] = device_id
        values |= normalise(config)
        values |= settings
        if _DEVICE_PROPERTIES in plugin.properties_type.model_fields:
            values = self._route_to_devices(plugin, values)
        return plugin, validate(plugin.properties_type, values, f"Device '{plugin.device_name}'")

    def _route_to_devices(self, plugin: DevicePlugin, values: dict[str, Any]) -> dict[str, Any]:
        """Moves keys that a plugin of plugins does not know itself to where it looks for them."""
        own = plugin.properties_type.model_fields
        foreign = {key: value for key, value in values.items() if key not in own}
        if not foreign:
            return values
        nested = dict(values.get(_DEVICE_PROPERTIES, {}))
        nested["*"] = {**nested.get("*", {}), **foreign}
        rest = {key: value for key, value in values.items() if key in own}
        return {**rest, _DEVICE_PROPERTIES: nested}


def properties_device(plugin: DevicePlugin, properties: DeviceProperties) -> str:
    """The device string for a plugin and the id in its properties."""
    return _join(plugin.device_name, properties.DEVICE_ID)


def _join(name: str, device_id: str) -> str:
    return f"{name}.{device_id}" if device_id else name


