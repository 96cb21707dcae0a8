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
from partita.devices.registry import Failure, describe, unavailable_beside
from partita.errors import DeviceError, PluginError, PropertyError, UnsupportedOpError
from partita.frontends.tflite import one_runtime
from partita.printable import shown
from partita.properties.values import Config, check_name, normalize
from partita.runtime.plugin_core import PluginCore, query_with
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
    """What OpenVINO's samples print about a device.

    Attributes:
        description: What a person calls the device.
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
        self._devices = PluginCore()

    @property
    def device_api(self) -> PluginCore:
        """The devices as plugins that are made of other devices see them."""
        return self._devices

    @property
    def _own(self) -> CoreProperties:
        """Core's own properties; checked settings are imported with the first question for one."""
        from partita.properties.schema import CoreProperties

        return self._own_set or CoreProperties()

    # ---------------------------------------------------------------------- models

    def read_model(
        self,
        model: Any,
        weights: Any = None,
        isolate: bool = False,
        decoder: DecoderOptions | None = None,
        signature: str | None = None,
    ) -> Model:
        """Reads a model: ONNX (a path, bytes, an ``onnx.ModelProto``), OpenVINO IR, GGUF or TFLite.

        An input of an ONNX model that has an initializer, too, becomes a constant, as OpenVINO has
        it, and is no input of the compiled model: what ONNX calls a default that callers may
        override (onnxruntime lets them) would keep every weight of an older exporter from being
        packed. To have it as an input, take its tensor out of the graph's initializers before, and
        hand it over with each request.

        Args:
            model: The source: a path, bytes, or a binary stream; of an IR the ``.xml`` file.
                As text also ``"zoo:NAME"``, ``"light:NAME"`` or ``"builtin:NAME"``
                (:mod:`partita.zoo.naming`).
            weights: The ``.bin`` file of an IR (path, bytes, stream, array or tensor), if it is not
                beside the ``.xml``; ONNX models name their own files.
            isolate: For files of strangers: what of reading is C++ and trusts what it reads (ONNX's
                shape inference) runs in a process of its own, with limits of time and memory.
            decoder: How a GGUF file becomes a model: the room of its caches and the like.
            signature: Which signature of a TFLite or circle file; by default its first subgraph,
                with inputs and outputs called after tensors.

        Raises:
            ModelNotFoundError: The path does not exist.
            ModelFormatError: It is none of these, damaged, or holds what is not known.
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
        """Adds an operator of your own, written in Python, for all later calls of this Core.

        Models may hold it under its domain and name. It is computed by devices that run Python,
        as REFERENCE does, and ``"HETERO:CPU,REFERENCE"`` leaves the rest of the model to others.
        Of two for one domain and name the last counts. A file that ``export_model`` wrote needs
        it again where it is imported.

        Args:
            extension: A :class:`partita.CustomOperator`, which is a function of numpy arrays; a
                subclass of :class:`partita.Op`, as OpenVINO has them; or a list of these.

        Raises:
            ModelError: It is none of these, or its name is ONNX's or Partita's.
        """
        if self._devices.extensions is None:
            from partita.extensions import Extensions

            self._devices.extensions = Extensions()
        self._devices.extensions.add(extension)

    def query_model(self, model: Any, device_name: str, config: Config = None) -> QueryResult:
        """Asks a device which operations it takes; affinities in the model are ignored.

        Args:
            model: A ``Model``, or whatever :meth:`read_model` takes.
            device_name: E.g. ``"CPU"`` or ``"HETERO:GPU,CPU"``.
            config: Properties for this question only.

        Returns:
            A dict from operation name to device, with a reason for every other operation.
        """
        plugin, properties = self._devices.target(device_name, config)
        return query_with(plugin, properties, self.read_model(model))

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
            model: A ``Model``, of which a copy is compiled (weights are shared), or whatever
                :meth:`read_model` takes.
            device_name: E.g. ``"CPU"``, ``"OPENCL.1"`` or ``"HETERO:GPU,CPU"``; by default the
                device whose plugin offers itself for that, or for a TFLite or circle file what
                ONE Runtime's environment variables say.
            config: Properties for this model only; they override :meth:`set_property`.
            weights: As for :meth:`read_model`.

        Raises:
            DeviceError: The device does not exist or cannot be used.
            PropertyError: A property is unknown or wrong.
            UnsupportedOpError: The device does not take an operation; lists them with reasons.
            CompileError: The device failed.
        """
        from partita.runtime import compiling

        if device_name is None and one_runtime.is_set(os.environ):
            model = self.read_model(model)
            if model.ir.producer_name == one_runtime.PRODUCER:
                device_name, wanted = one_runtime.placement(os.environ)
                config = {**wanted, **normalize(config)}
        device = device_name or self.default_device
        if weights is not None or hasattr(model, "getvalue"):
            model = self.read_model(model, weights)
        plugin, properties = self._devices.target(device, config)
        folder = properties.CACHE_DIR
        if "CACHE_DIR" not in properties.model_fields_set:
            folder = self._own.CACHE_DIR
        try:
            source = _source(model)
            return compiling.compiled(plugin, properties, source, folder, self._devices.extensions)
        except UnsupportedOpError as error:
            several = self._devices.registry.with_fallback(device)
            if several:
                error.lines += (f"Put another device behind it: '{several}'.",)
            raise

    def import_model(self, model: Any, device_name: str, config: Config = None) -> CompiledModel:
        """Restores what ``CompiledModel.export_model`` wrote, from bytes, a stream or a tensor.

        Raises:
            BlobError: Not a blob, damaged, of another version or device.
        """
        from partita.runtime import compiling

        plugin, properties = self._devices.target(device_name, config)
        extensions = self._devices.extensions
        return compiling.imported(plugin, properties, _content(model), extensions)

    # --------------------------------------------------------------------- devices

    @property
    def available_devices(self) -> list[str]:
        """Names of all devices that can be used, with ids where the plugin has them."""
        return self._devices.available_devices

    def get_available_devices(self) -> list[str]:
        """The same (OpenVINO's spelling)."""
        return self.available_devices

    @property
    def default_device(self) -> str:
        """The device that a model is compiled for if none is named.

        Raises:
            DeviceNotFoundError: No plugin offers itself for that.
        """
        return self._devices.registry.default

    @property
    def reference_device(self) -> str:
        """The device that others are compared with if none is named for that.

        Raises:
            DeviceNotFoundError: No plugin offers itself for that.
        """
        return self._devices.registry.reference

    @property
    def unavailable_devices(self) -> dict[str, str]:
        """Device, driver or plugin name to the reason why it cannot be used."""
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
        """Other names that plugins have, e.g. ``"GPU"``; :meth:`resolve_device` says for what."""
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
            plugin: An entry-point name or module (its plugin is made once more, so that one plugin
                can serve under two device names), or a ``DevicePlugin`` object.
            device_name: The device name; ``None`` keeps the plugin's own. An object is copied
                (shallow) before it is renamed.

        Raises:
            PluginError: It provides no plugin, breaks the contract, or the name is taken.
        """
        if not isinstance(plugin, str):
            self._devices.registry.add(plugin, type(plugin).__module__, device_name)
        elif device_name is None:
            raise PluginError(f"Give the device name under which '{plugin}' is registered.")
        else:
            self._devices.registry.add_again(plugin, device_name)

    def unload_plugin(self, device_name: str) -> None:
        """Forgets what was set for a plugin's devices, and which there are; both are asked anew.

        Compiled models stay as they are.

        Raises:
            DeviceNotFoundError: No plugin has the name.
        """
        name = self._devices.registry.plugin(device_name).device_name
        self._devices.registry.forget(name)
        self._devices.settings.forget(name)

    def device_info(self, device: str) -> DeviceInfo:
        """Describes a device.

        Raises:
            DeviceError: It does not exist, or its driver fails to describe it.
        """
        return self._devices.device_info(device)

    def resolve_device(self, device: str) -> str:
        """The canonical name of a device: aliases followed, ids checked, existence assured."""
        return self._devices.resolve_device(device)

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name."""
        return self._devices.accepts_property(device, key)

    def get_versions(self, device_name: str) -> dict[str, Version]:
        """Device to its version, for the device and those listed behind a colon."""
        parsed = device_string.parse(device_name)
        listed = map(device_string.parse_entry, parsed.priorities or ())
        names = (parsed.device, *(one.device for one in listed if not one.is_excluded))
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
        """Names of the properties that can be set on a device."""
        from partita.properties.schema import writable

        return writable(self._devices.registry.resolve(device).plugin.properties_type)


def _content(source: Any) -> Any:
    """The bytes that a stream, wherever it stands, or a tensor holds; all else as it is."""
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
    """What a name with a prefix stands for; whatever is none stays as it is."""
    if not isinstance(model, str) or ":" not in model:
        return model
    from partita.zoo.naming import is_name, resolve

    return resolve(model).source if is_name(model) else model


def compile_model(
    model: Any, device_name: str | None = None, config: Config = None
) -> CompiledModel:
    """Compiles a model with a Core made for it; see :meth:`Core.compile_model`."""
    return Core().compile_model(model, device_name, config)
