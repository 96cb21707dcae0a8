"""Core: the application's entry to models, devices and properties."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.contract.query import QueryResult
from partita.errors import (
    BlobError,
    CompileError,
    DeviceError,
    PartitaError,
    PluginError,
    PropertyError,
)
from partita.properties.values import Config, normalise
from partita.runtime import device_string
from partita.runtime.registry import Failure, Registry, describe, join, unavailable_beside
from partita.runtime.settings import Settings

if TYPE_CHECKING:
    import numpy as np

    from partita.model.model import Model
    from partita.properties import CoreProperties, DeviceProperties
    from partita.runtime.compiled_model import CompiledModel
    from partita.storage.model_cache import ModelCache
    from partita.tensors.tensor import Tensor

_log = logging.getLogger("partita")

_FACTS = ("AVAILABLE_DEVICES", "FULL_DEVICE_NAME", "DEVICE_TYPE", "SUPPORTED_PROPERTIES")


@dataclass(frozen=True, slots=True)
class Version:
    """What OpenVINO's samples print about a device.

    Attributes:
        description: What a person calls the device.
        build_number: Its driver or library, with version.
    """

    description: str
    build_number: str


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
        self._own_set: CoreProperties | None = None
        self._settings = Settings()
        self._registry = Registry(self)

    @property
    def _own(self) -> CoreProperties:
        """Core's own properties; checked settings are imported with the first question for one."""
        from partita.properties.schema import CoreProperties

        return self._own_set or CoreProperties()

    # ---------------------------------------------------------------------- models

    def read_model(self, model: Any, weights: Any = None, isolate: bool = False) -> Model:
        """Reads a model: ONNX from a path, bytes or an ``onnx.ModelProto``, or an OpenVINO IR.

        Args:
            model: The source; of an IR the ``.xml`` file, as a path or bytes.
            weights: The ``.bin`` file of an IR (path, bytes or array), if it is not beside the
                ``.xml``; ONNX models name their own files.
            isolate: For files of strangers: what of reading is C++ and trusts what it reads (ONNX's
                shape inference) runs in a process of its own, with limits of time and memory.

        Raises:
            ModelNotFoundError: The path does not exist.
            ModelFormatError: It is neither, damaged, or holds what is not known.
        """
        from partita.frontends.reader import read_model

        return read_model(model, weights=weights, isolate=isolate)

    def query_model(self, model: Any, device_name: str, config: Config = None) -> QueryResult:
        """Asks a device which operations it takes; affinities in the model are ignored.

        Args:
            model: A ``Model``, or whatever :meth:`read_model` takes.
            device_name: E.g. ``"CPU"`` or ``"HETERO:GPU,CPU"``.
            config: Properties for this question only.

        Returns:
            A dict from operation name to device, with a reason for every other operation.
        """
        plugin, properties = self._target(device_name, config)
        model = self.read_model(model)
        try:
            result = plugin.query_model(model, properties)
        except PartitaError:
            raise
        except Exception as error:
            raise PluginError(
                f"Device '{plugin.device_name}' failed to answer query_model for model "
                f"'{model.name}': {type(error).__name__}: {error}"
            ) from error
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
            model: A ``Model``, of which a copy is compiled (weights are shared), or whatever
                :meth:`read_model` takes.
            device_name: E.g. ``"CPU"``, ``"OPENCL.1"`` or ``"HETERO:GPU,CPU"``.
            config: Properties for this model only; they override :meth:`set_property`.

        Raises:
            DeviceError: The device does not exist or cannot be used.
            PropertyError: A property is unknown or wrong.
            UnsupportedOpError: The device does not take an operation; lists them with reasons.
            CompileError: The device failed.
        """
        from partita.storage.model_cache import ModelCache

        plugin, properties = self._target(device_name, config)
        folder = properties.CACHE_DIR
        if "CACHE_DIR" not in properties.model_fields_set:
            folder = self._own.CACHE_DIR
        if folder:
            return self._cached(plugin, properties, ModelCache(folder), model)
        return self._compile(plugin, properties, model)

    def _compile(
        self, plugin: DevicePlugin, properties: DeviceProperties, model: Any
    ) -> CompiledModel:
        from partita.model.model import Model

        own = model.clone() if isinstance(model, Model) else self.read_model(model)
        return self._compiled(
            plugin, properties, own.name, lambda: plugin.compile_model(own, properties)
        )

    def _cached(
        self, plugin: DevicePlugin, properties: DeviceProperties, cache: ModelCache, model: Any
    ) -> CompiledModel:
        """The compiled model out of the cache, or a new one that is put there."""
        from partita.storage.model_cache import key_of

        key = key_of(plugin.identity(properties), model)
        try:
            found = cache.load(key)
            if found is not None:
                compiled = self._import(plugin, found, properties)
                compiled.loaded_from_cache = True
                return compiled
        except PartitaError as error:
            _log.warning("A cached model is not used and compiled again: %s", error)
        compiled = self._compile(plugin, properties, model)
        try:
            cache.store(key, compiled.export_model())
        except PartitaError as error:
            _log.warning("The compiled model is not cached: %s", error)
        return compiled

    def import_model(self, model: Any, device_name: str, config: Config = None) -> CompiledModel:
        """Restores what ``CompiledModel.export_model`` wrote, from bytes or a binary stream.

        Raises:
            BlobError: Not a blob, damaged, of another version or device.
        """
        plugin, properties = self._target(device_name, config)
        data = model.read() if hasattr(model, "read") else model
        return self._import(plugin, data, properties)

    def _import(
        self, plugin: DevicePlugin, data: Any, properties: DeviceProperties
    ) -> CompiledModel:
        from partita.properties.schema import validate
        from partita.storage import exported_model as blobs
        from partita.storage.model_cache import stamp

        if type(plugin).import_model is not DevicePlugin.import_model:
            return self._compiled(
                plugin, properties, "", lambda: plugin.import_model(data, properties)
            )
        blob = blobs.unpack(data, plugin.device_name)
        header, model = blob.header, blob.model
        try:
            stored = validate(
                plugin.properties_type, normalise(header.get("properties")), "The blob"
            )
        except PropertyError as error:
            raise BlobError(f"The exported model does not fit its device: {error}") from error
        merged = validate(
            plugin.properties_type, properties.model_dump(exclude_unset=True), "The blob", stored
        )
        same = header.get("made_by") == stamp(plugin.identity(merged))
        state = blob.arrays if same else {}
        return self._compiled(
            plugin, merged, model.name, lambda: plugin.restore_model(model, merged, state)
        )

    def restore_model(
        self, model: Model, device_name: str, config: Config, state: Mapping[str, Any]
    ) -> CompiledModel:
        """Compiles a model by the state that :meth:`CompiledModel.export_state` gave earlier.

        For plugins that are made of other devices. The state must come from the same model and the
        same version of the device's plugin.
        """
        plugin, properties = self._target(device_name, config)
        return self._compiled(
            plugin, properties, model.name, lambda: plugin.restore_model(model, properties, state)
        )

    def identity(self, device_name: str, config: Config = None) -> str:
        """What compiled models of a device depend on besides the model, as a key for caches."""
        plugin, properties = self._target(device_name, config)
        return plugin.identity(properties)

    def _compiled(
        self,
        plugin: DevicePlugin,
        properties: DeviceProperties,
        model: str,
        make: Callable[[], CompiledModel],
    ) -> CompiledModel:
        """Calls a plugin's compile or import, and blames it for what it should not do."""
        from partita.runtime.compiled_model import CompiledModel

        start = time.perf_counter()
        try:
            compiled = make()
        except PartitaError:
            raise
        except Exception as error:
            raise CompileError(
                f"Device '{plugin.device_name}' failed to compile model '{model}': "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(compiled, CompiledModel):
            raise PluginError(
                f"Device '{plugin.device_name}' answered compile_model with "
                f"{type(compiled).__name__}; a CompiledModel is due."
            )
        compiled.made_by = lambda: plugin.identity(properties)
        elapsed = (time.perf_counter() - start) * 1e3
        _log.info("compiled for %s in %.0f ms: %s", compiled.device, elapsed, compiled.model.name)
        return compiled

    # --------------------------------------------------------------------- devices

    @property
    def available_devices(self) -> list[str]:
        """Names of all devices that can be used, with ids where the plugin has them."""
        names = []
        for name in self._registry.names:
            try:
                names += [join(name, device_id) for device_id in self._registry.ids(name)]
            except DeviceError as error:
                _log.info("%s", error)
        return names

    def get_available_devices(self) -> list[str]:
        """The same (OpenVINO's spelling)."""
        return self.available_devices

    @property
    def unavailable_devices(self) -> dict[str, str]:
        """Device, driver or plugin name to the reason why it cannot be used."""
        reasons = {failure.plugin: failure.cause for failure in self._registry.failures}
        for name in self._registry.names:
            try:
                self._registry.ids(name)
                reasons.update(unavailable_beside(self._registry.plugin(name)))
            except DeviceError as error:
                reasons[name] = str(error)
        return reasons

    @property
    def aliases(self) -> list[str]:
        """Other names that plugins have, e.g. ``"GPU"``; :meth:`resolve_device` says for what."""
        names = self._registry.names
        return sorted({alias for name in names for alias in self._registry.plugin(name).aliases})

    @property
    def plugin_failures(self) -> list[Failure]:
        """Plugins that did not load."""
        return list(self._registry.failures)

    def register_plugin(self, plugin: str | DevicePlugin, device_name: str | None = None) -> None:
        """Adds a plugin to this Core.

        Args:
            plugin: An entry-point name or module (its plugin is made once more, so that one plugin
                can serve under two device names), or a ``DevicePlugin`` object.
            device_name: The device name; ``None`` keeps the plugin's own. An object is copied
                (shallow) before it is renamed.

        Raises:
            PluginError: It provides no plugin, breaks the contract, or the name is taken.
        """
        if not isinstance(plugin, str):
            self._registry.add(plugin, type(plugin).__module__, device_name)
        elif device_name is None:
            raise PluginError(f"Give the device name under which '{plugin}' is registered.")
        else:
            self._registry.add_again(plugin, device_name)

    def device_info(self, device: str) -> DeviceInfo:
        """Describes a device.

        Raises:
            DeviceError: It does not exist, or its driver fails to describe it.
        """
        named = self._registry.resolve(device)
        return describe(named.plugin, named.ids[0])

    def resolve_device(self, device: str) -> str:
        """The canonical name of a device: aliases followed, ids checked, existence assured."""
        return self._registry.resolve(device).device

    def fingerprint(self, device: str, config: Config = None) -> dict[str, str]:
        """What decides how fast a device is: equal answers mean that times can be shared.

        Args:
            device: E.g. ``"CPU"`` or ``"OPENCL.1"``.
            config: Properties of the compile in question.

        Returns:
            ``device`` (its full name), ``driver``, ``plugin`` (distribution and version), every
            detail that it tells, and ``properties`` as JSON, without those that change no speed.
        """
        plugin, properties = self._target(device, config)
        info = describe(plugin, properties.DEVICE_ID)
        settings = properties.model_dump(mode="json", exclude={"DEVICE_ID", "PERF_COUNT"})
        return {
            "device": info.full_name,
            "driver": info.driver,
            "plugin": self._registry.release(plugin.device_name),
            **{f"detail {key}": value for key, value in info.details.items()},
            "properties": json.dumps(settings, sort_keys=True),
        }

    def get_versions(self, device_name: str) -> dict[str, Version]:
        """Device to its version, for the device and those listed behind a colon."""
        parsed = device_string.parse(device_name)
        names = (parsed.device, *(parsed.priorities or ()))
        infos = {name: self.device_info(name) for name in names}
        return {name: Version(info.full_name, info.driver) for name, info in infos.items()}

    # ------------------------------------------------------------------ properties

    def set_property(self, device_name: str | Config, properties: Config = None) -> None:
        """Sets properties of a device for all later compiles; or of Core, if no device is named.

        ``set_property("OPENCL", ...)`` is for all devices of the plugin, ``"OPENCL.1"`` for that
        one and stronger, and an alias for all devices that it stands for.

        Raises:
            PropertyError: Unknown or read-only key, or a wrong value; nothing is changed then.
        """
        if not isinstance(device_name, str):
            from partita.properties.schema import CoreProperties, validate

            values = normalise(device_name)
            self._own_set = validate(CoreProperties, values, "Core", self._own_set)
            _log.setLevel(self._own_set.LOG_LEVEL)
            return
        known = self._registry.property_names()
        self._settings.set(self._registry.resolve(device_name), normalise(properties), known)

    def get_property(self, device_name: str, name: str | None = None) -> Any:
        """A property of a device (or, with one argument, of Core).

        Besides the settable ones: ``AVAILABLE_DEVICES``, ``FULL_DEVICE_NAME``, ``DEVICE_TYPE``,
        ``SUPPORTED_PROPERTIES`` (name to ``"RO"`` or ``"RW"``).

        Raises:
            PropertyError: Unknown; the message lists the known ones.
        """
        if name is None:
            known = type(self._own).model_fields
            if device_name not in known:
                raise PropertyError(
                    f"Core has no property '{device_name}'; it has {', '.join(known)}."
                )
            return getattr(self._own, device_name)
        plugin, properties = self._target(device_name, None)
        fields = type(properties).model_fields
        match name:
            case "AVAILABLE_DEVICES":
                return [i for i in self._registry.ids(plugin.device_name) if i]
            case "FULL_DEVICE_NAME":
                return describe(plugin, properties.DEVICE_ID).full_name
            case "DEVICE_TYPE":
                return describe(plugin, properties.DEVICE_ID).kind
            case "SUPPORTED_PROPERTIES":
                from partita.properties.schema import writable

                kinds = dict.fromkeys((*_FACTS, *fields), "RO")
                return kinds | dict.fromkeys(writable(type(properties)), "RW")
        if name not in fields:
            raise PropertyError(
                f"Device '{plugin.device_name}' has no property '{name}'; it has "
                f"{', '.join([*_FACTS, *fields])}."
            )
        return getattr(properties, name)

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name."""
        from partita.properties.schema import is_read_only

        schema = self._registry.resolve(device).plugin.properties_type
        return key in schema.model_fields and not is_read_only(schema, key)

    def writable_properties(self, device: str) -> list[str]:
        """Names of the properties that can be set on a device."""
        from partita.properties.schema import writable

        return writable(self._registry.resolve(device).plugin.properties_type)

    # --------------------------------------------------------------------- tensors

    def can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads tensors of a memory in place."""
        named = self._registry.resolve(device)
        return named.plugin.can_share(memory, named.ids[0])

    def transfer_to(self, device: str, tensor: Tensor) -> Tensor:
        """Brings a tensor into a device's memory."""
        named = self._registry.resolve(device)
        return named.plugin.transfer_to(tensor, named.ids[0])

    def host_memory(self, device: str, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Host memory that a device copies from and to quickly; ``None`` if any will do."""
        named = self._registry.resolve(device)
        return named.plugin.host_memory(nbytes, named.ids[0])

    # ------------------------------------------------------------------- internals

    def _target(self, device_name: str, config: Config) -> tuple[DevicePlugin, DeviceProperties]:
        """The plugin and the complete properties for one call."""
        named = self._registry.resolve(device_name)
        return named.plugin, self._settings.of_call(named, config)


def compile_model(model: Any, device_name: str = "HETERO", config: Config = None) -> CompiledModel:
    """Compiles a model with a Core made for it; see :meth:`Core.compile_model`."""
    return Core().compile_model(model, device_name, config)
