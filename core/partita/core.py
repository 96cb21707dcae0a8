"""Core: the application's entry to models, devices and properties."""

from __future__ import annotations

import copy
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.contract.query import QueryResult
from partita.devices import device_string
from partita.devices.plugin_checks import describe, unavailable_beside
from partita.devices.registry import Failure
from partita.errors import DeviceError, PluginError, PropertyError, UnsupportedOpError
from partita.frontends.tflite import one_runtime
from partita.printable import shown
from partita.properties.values import Config, check_name, normalize
from partita.runtime.plugin_core import PluginCore, query_with
from partita.system.gc_pause import few_collections
from partita.system.threads.fork_order import forks_wait
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.version import __version__

if TYPE_CHECKING:
    from partita.frontends.gguf import DecoderOptions
    from partita.model.model import Model
    from partita.properties import CoreProperties
    from partita.runtime.compiled_model import CompiledModel

_log = logging.getLogger("partita")


def _release() -> tuple[int, int, int]:
    """The numbers of Partita's version."""
    major, minor, patch = __version__.split(".")[:3]
    return int(major), int(minor), int(patch)


_FACTS = ("AVAILABLE_DEVICES", "FULL_DEVICE_NAME", "DEVICE_TYPE", "SUPPORTED_PROPERTIES")


@dataclass(frozen=True, slots=True)
class Version:
    """The name and version of a device, as OpenVINO's samples print them.

    Attributes:
        description: The device's full name.
        build_number: Its driver or library, with version.
    """

    description: str
    build_number: str

    @property
    def major(self) -> int:
        """The first number of Partita's own version."""
        return _release()[0]

    @property
    def minor(self) -> int:
        """The second number."""
        return _release()[1]

    @property
    def patch(self) -> int:
        """The third number."""
        return _release()[2]


class Core:
    """Finds device plugins, reads models and compiles them for devices.

    Creating one loads no driver and no model code; plugins do that when they are used. A Core may
    be used from several threads. Whether a compile sees properties that another thread sets at the
    same time is undefined.

    Example:
        >>> core = Core()
        >>> "CPU" in core.available_devices
        True
    """

    def __init__(self) -> None:
        self._own_set: CoreProperties | None = None
        self._devices = PluginCore()
        self._lock = InterruptSafeLock()

    @property
    def device_api(self) -> PluginCore:
        """The interface of this Core for devices that are made of others, and for tools."""
        return self._devices

    @property
    def _own(self) -> CoreProperties:
        """Core's own properties; pydantic is imported when they are first used."""
        from partita.properties.schema import CoreProperties

        return self._own_set or CoreProperties()

    # ---------------------------------------------------------------------- models

    @few_collections()
    @forks_wait
    def read_model(
        self,
        model: Any,
        weights: Any = None,
        isolate: bool = False,
        decoder: DecoderOptions | None = None,
        signature: str | None = None,
    ) -> Model:
        """Reads a model: ONNX (a path, bytes, an ``onnx.ModelProto``), OpenVINO IR, GGUF or TFLite.

        An ONNX input that also has an initializer becomes a constant, as in OpenVINO. ONNX calls
        the initializer a default that callers may override; models of older exporters list all
        weights so, which could then not be packed. To have it as an input, remove the initializer
        from the graph before.

        Args:
            model: A path, bytes, or a binary stream; for an IR the ``.xml`` file. Also
                ``"zoo:NAME"``, ``"light:NAME"`` or ``"builtin:NAME"`` (:mod:`partita.zoo.naming`).
            weights: The ``.bin`` file of an IR (path, bytes, stream, array or tensor), if it is not
                beside the ``.xml``; ONNX models name their own files.
            isolate: Run ONNX's shape inference, which is C++ code that trusts its input, in a
                process of its own with limits of time and memory; for files from untrusted sources.
            decoder: Options for the decoder of a GGUF file, such as the capacity of its caches.
            signature: The signature of a TFLite or circle file to read; by default its first
                subgraph, with inputs and outputs named after tensors.

        Raises:
            ModelNotFoundError: The path does not exist.
            ModelFormatError: It has another format, is damaged, or has unsupported content.
            ZooError: There is no such model in the zoo, or it cannot be fetched.
        """
        from partita.frontends.reader import read_model

        source, weights = _content(_source(model)), _content(weights)
        read = read_model(
            source,
            weights=weights,
            isolate=isolate,
            decoder=decoder,
            signature=signature,
            extensions=self._devices.extensions,
        )
        return self._devices.with_extensions(read)

    def add_extension(self, extension: Any) -> None:
        """Adds an operator written in Python for all later calls of this Core.

        Models may use it by its domain and name. Devices that run Python compute it, as REFERENCE
        does; with ``"HETERO:CPU,REFERENCE"`` the rest of the model runs on CPU. A later operator of
        the same domain and name replaces it. Importing an exported model needs it again.

        Args:
            extension: A :class:`partita.CustomOperator` (a function of numpy arrays), a subclass of
                :class:`partita.Op` as in OpenVINO, or a list of these.

        Raises:
            ModelError: It is none of these, or ONNX or Partita already uses its name.
        """
        from partita.extensions import Extensions

        with self._lock:
            if self._devices.extensions is None:
                self._devices.extensions = Extensions()
        self._devices.extensions.add(extension)

    @few_collections()
    @forks_wait
    def query_model(self, model: Any, device_name: str, config: Config = None) -> QueryResult:
        """Asks a device which operations it supports; affinities in the model are ignored.

        Args:
            model: A ``Model``, or anything that :meth:`read_model` accepts.
            device_name: E.g. ``"CPU"`` or ``"HETERO:GPU,CPU"``.
            config: Properties for this query only.

        Returns:
            A dict from operation name to device, with a reason for every other operation.

        Raises:
            ModelError: The model cannot be read; see :meth:`read_model`.
            DeviceError: The device does not exist or cannot be used.
            PropertyError: A property is unknown, or has a wrong value.
        """
        plugin, properties = self._devices.target(device_name, config)
        return query_with(plugin, properties, self.read_model(model))

    @few_collections()  # garbage is collected once, at the end
    @forks_wait
    def compile_model(
        self,
        model: Any,
        device_name: str | None = None,
        config: Config = None,
        *,
        weights: Any = None,
    ) -> CompiledModel:
        """Compiles a model for a device.

        Args:
            model: A ``Model``, of which a copy is compiled (weights are shared), or anything that
                :meth:`read_model` accepts.
            device_name: E.g. ``"CPU"``, ``"OPENCL.1"`` or ``"HETERO:GPU,CPU"``; by default
                :attr:`default_device`, or for a TFLite or circle file the device that ONE Runtime's
                environment variables name.
            config: Properties for this model only; they override :meth:`set_property`.
            weights: As for :meth:`read_model`.

        Raises:
            ModelError: The model cannot be read; see :meth:`read_model`.
            DeviceError: The device does not exist or cannot be used.
            PropertyError: A property is unknown, or has a wrong value.
            UnsupportedOpError: The device does not support an operation; lists all with reasons.
            OperandError: What an operation reads does not fit it.
            CompileError: The device failed to compile the model.
        """
        from partita.runtime import compiling

        if device_name is None and one_runtime.is_set(os.environ):
            model = self.read_model(model)
            if model.ir.producer_name == one_runtime.PRODUCER:
                device_name, wanted = one_runtime.placement(os.environ)
                config = {**wanted, **normalize(config)}
        device = device_name or self.default_device
        if weights is not None:
            model = self.read_model(model, weights)
        plugin, properties = self._devices.target(device, config)
        folder = properties.CACHE_DIR
        if "CACHE_DIR" not in properties.model_fields_set:
            folder = self._own.CACHE_DIR
        try:
            source = _content(_source(model))
            return compiling.compile_or_load(
                plugin, properties, source, folder, self._devices.extensions
            )
        except UnsupportedOpError as error:
            several = self._devices.registry.with_fallback(device)
            if several:
                error.lines += (f"Put other devices behind it: '{several}'.",)
            raise

    @few_collections()
    @forks_wait
    def import_model(self, model: Any, device_name: str, config: Config = None) -> CompiledModel:
        """Imports a model that ``CompiledModel.export_model`` wrote: bytes, a stream or a tensor.

        Args:
            model: What was written; of a stream all, from its start where it can be told that.
            device_name: The device that the model was compiled for.
            config: Properties for this model only.

        Raises:
            BlobError: It is not an exported model, is damaged, or of another version or device.
            DeviceError: The device does not exist or cannot be used.
            PropertyError: A property is unknown, or has a wrong value.
        """
        from partita.runtime import compiling

        plugin, properties = self._devices.target(device_name, config)
        extensions = self._devices.extensions
        return compiling.load_exported(plugin, properties, _content(model), extensions)

    # --------------------------------------------------------------------- devices

    @property
    def available_devices(self) -> list[str]:
        """Names of all devices that can be used, with ids where a plugin has several."""
        return self._devices.available_devices

    def get_available_devices(self) -> list[str]:
        """The same (OpenVINO's spelling)."""
        return self.available_devices

    @property
    def default_device(self) -> str:
        """The device that a model is compiled for if none is named.

        Raises:
            DeviceNotFoundError: No plugin is ``is_default``.
        """
        return self._devices.registry.default

    @property
    def reference_device(self) -> str:
        """The device that others are compared with by default.

        Raises:
            DeviceNotFoundError: No plugin is ``is_reference``.
        """
        return self._devices.registry.reference

    @property
    def unavailable_devices(self) -> dict[str, str]:
        """By device, driver or plugin the reason why it cannot be used."""
        reasons = {failure.plugin: failure.cause for failure in self._devices.registry.failures}
        for name in self._devices.registry.names:
            try:
                self._devices.registry.ids(name)
                reasons.update(unavailable_beside(self._devices.registry.plugin(name)))
            except DeviceError as error:
                reasons[name] = str(error)
        return reasons

    @property
    def aliases(self) -> list[str]:
        """Other names for devices, e.g. ``"GPU"``; :meth:`resolve_device` resolves them."""
        names = self._devices.registry.names
        return sorted(
            {alias for name in names for alias in self._devices.registry.plugin(name).aliases}
        )

    @property
    def plugin_failures(self) -> list[Failure]:
        """Plugins that did not load."""
        return list(self._devices.registry.failures)

    def register_plugin(self, plugin: str | DevicePlugin, device_name: str | None = None) -> None:
        """Adds a plugin to this Core.

        Args:
            plugin: The name of an entry point or module, whose plugin is instantiated once more so
                that it can serve under two device names; or a ``DevicePlugin`` object.
            device_name: The device name; ``None`` keeps the plugin's own. An object is copied
                (shallow) before it is renamed.

        Raises:
            PluginError: It provides no plugin, violates the contract, or the name is in use.
        """
        if not isinstance(plugin, str):
            self._devices.registry.add(plugin, type(plugin).__module__, device_name)
        elif device_name is None:
            raise PluginError(f"Give the device name under which '{plugin}' is registered.")
        else:
            self._devices.registry.add_again(plugin, device_name)

    def unload_plugin(self, device_name: str) -> None:
        """Forgets the properties and the list of a plugin's devices; the list is queried again.

        Compiled models are not affected.

        Raises:
            DeviceNotFoundError: No plugin has the name.
        """
        name = self._devices.registry.plugin(device_name).device_name
        self._devices.registry.forget(name)
        self._devices.settings.forget(name)

    def device_info(self, device: str) -> DeviceInfo:
        """Describes a device.

        Raises:
            DeviceError: The device does not exist, or its driver fails.
        """
        return self._devices.device_info(device)

    def resolve_device(self, device: str) -> str:
        """The canonical name of a device, of which aliases are resolved.

        Raises:
            DeviceNotFoundError: There is no such device.
        """
        return self._devices.resolve_device(device)

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name.

        Raises:
            DeviceNotFoundError: There is no such device.
        """
        return self._devices.accepts_property(device, key)

    def get_versions(self, device_name: str) -> dict[str, Version]:
        """By device its version: of the device, and of those listed after a colon.

        Raises:
            DeviceError: One does not exist, or its driver fails.
        """
        parsed = device_string.parse(device_name)
        listed = map(device_string.parse_entry, parsed.priorities or ())
        names = (parsed.device, *(one.device for one in listed if not one.is_excluded))
        infos = {name: self.device_info(name) for name in names}
        return {name: Version(info.full_name, info.driver) for name, info in infos.items()}

    # ------------------------------------------------------------------ properties

    def set_property(self, device_name: str | Config, properties: Config = None) -> None:
        """Sets properties of a device for all later compiles; or of Core, if no device is named.

        ``set_property("OPENCL", ...)`` sets them for all devices of the plugin; ``"OPENCL.1"`` sets
        them for that device, with precedence; an alias sets them for all devices that it names.

        Raises:
            DeviceNotFoundError: There is no such device.
            PropertyError: An unknown or read-only key, or a wrong value; nothing is changed.
        """
        if not isinstance(device_name, str):
            from partita.properties.schema import CoreProperties, validate

            values = normalize(device_name)
            self._own_set = validate(CoreProperties, values, "Core", self._own_set)
            _log.setLevel(self._own_set.LOG_LEVEL)
            return
        known = self._devices.registry.property_names()
        self._devices.settings.set(
            self._devices.registry.resolve(device_name), normalize(properties), known
        )

    def get_property(self, device_name: str, name: str | None = None) -> Any:
        """A property of a device (or, with one argument, of Core).

        Besides the settable ones: ``AVAILABLE_DEVICES``, ``FULL_DEVICE_NAME``, ``DEVICE_TYPE``,
        ``SUPPORTED_PROPERTIES`` (name to ``"RO"`` or ``"RW"``).

        Raises:
            DeviceNotFoundError: There is no such device.
            PropertyError: Unknown; the message lists the known ones.
        """
        if name is None:
            check_name(device_name)
            known = type(self._own).model_fields
            if device_name not in known:
                raise PropertyError(
                    f"Core has no property {shown(device_name)}; it has {', '.join(known)}."
                )
            return getattr(self._own, device_name)
        check_name(name)
        plugin, properties = self._devices.target(device_name, None)
        fields = type(properties).model_fields
        match name:
            case "AVAILABLE_DEVICES":
                return [i for i in self._devices.registry.ids(plugin.device_name) if i]
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
                f"Device '{plugin.device_name}' has no property {shown(name)}; it has "
                f"{', '.join([*_FACTS, *fields])}."
            )
        return copy.deepcopy(getattr(properties, name))  # a list is the caller's

    def writable_properties(self, device: str) -> list[str]:
        """Names of the properties that can be set on a device.

        Raises:
            DeviceNotFoundError: There is no such device.
        """
        from partita.properties.schema import writable

        return writable(self._devices.registry.resolve(device).plugin.properties_type)


def _content(source: Any) -> Any:
    """The bytes of a stream, from its start where possible, or a tensor; all else unchanged."""
    from partita.tensors.tensor import Tensor

    if isinstance(source, Tensor):
        return source.numpy().tobytes()
    if hasattr(source, "getvalue"):
        return source.getvalue()
    return source.read() if hasattr(source, "read") else source


def get_version() -> str:
    """Partita's version (OpenVINO's spelling of ``partita.__version__``)."""
    return __version__


def _source(model: Any) -> Any:
    """The model of a name with a prefix, e.g. ``"zoo:magika"``; all else unchanged."""
    if not isinstance(model, str) or ":" not in model:
        return model
    from partita.zoo.naming import is_name, resolve

    return resolve(model).source if is_name(model) else model


def compile_model(
    model: Any, device_name: str | None = None, config: Config = None
) -> CompiledModel:
    """Compiles a model with a new Core; see :meth:`Core.compile_model`.

    Args:
        model: As :meth:`Core.compile_model` takes it.
        device_name: The device; the one that :meth:`Core.compile_model` takes by itself where there
            is none.
        config: Properties by name.
    """
    return Core().compile_model(model, device_name, config)
