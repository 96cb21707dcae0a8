"""The devices of a Core, as plugins that are made of other devices see them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.contract.query import QueryResult, Reason
from partita.devices.device_string import join
from partita.devices.plugin_checks import describe
from partita.devices.registry import Registry
from partita.devices.settings import Settings
from partita.errors import (
    CompileError,
    DeviceError,
    InferError,
    PluginError,
    raised_as,
    shown,
    wrong_answer,
)
from partita.printable import is_encodable
from partita.properties.values import Config

if TYPE_CHECKING:
    import numpy as np

    from partita.contract.device_model import DeviceModel
    from partita.extensions import Extensions
    from partita.model.model import Model
    from partita.properties import DeviceProperties
    from partita.tensors.tensor import Tensor

_log = logging.getLogger("partita")


class PluginCore:
    """A :class:`~partita.contract.core_api.CoreAPI` over a registry of plugins.

    Attributes:
        registry: The plugins.
        settings: What properties were set for all later compiles.
        extensions: The application's own operators; ``None`` if it has none.
    """

    def __init__(self) -> None:
        self.extensions: Extensions | None = None
        self.settings = Settings()
        self.registry = Registry(self)

    @property
    def available_devices(self) -> list[str]:
        """Names of all devices that can be used, with ids where the plugin has them."""
        names = []
        for name in self.registry.names:
            try:
                names += [join(name, device_id) for device_id in self.registry.ids(name)]
            except DeviceError as error:
                _log.info("%s", error)
        return names

    @property
    def reference_device(self) -> str:
        """The device that others are compared with where none is named for that."""
        return self.registry.reference

    def target(self, device_name: str, config: Config) -> tuple[DevicePlugin, DeviceProperties]:
        """The plugin and the complete properties for one call."""
        named = self.registry.resolve(device_name)
        return named.plugin, self.settings.of_call(named, config)

    def query_model(self, model: Model, device_name: str, config: Config = None) -> QueryResult:
        """Asks one device which operations it takes."""
        plugin, properties = self.target(device_name, config)
        return query_with(plugin, properties, self.with_extensions(model))

    def with_extensions(self, model: Model) -> Model:
        """The model itself, in which operations know the application's own operators."""
        if self.extensions is not None and self.extensions.attach(model.ir.graph):
            from partita.model.inference.shape_inference import infer_shapes

            infer_shapes(model.ir)
        return model

    def compile_model(self, model: Model, device_name: str, config: Config = None) -> DeviceModel:
        """Compiles a copy of a model, which shares its weights, for one device.

        A device that leaves models alone gets the model itself, which must stay what it is.

        Raises:
            CompileError: The device failed.
        """
        plugin, properties = self.target(device_name, config)
        own = self.with_extensions(model if plugin.leaves_models_alone else model.clone())
        return compile_with(plugin, own.name, lambda: plugin.compile_model(own, properties))

    def restore_model(
        self, model: Model, device_name: str, config: Config, state: Mapping[str, Any]
    ) -> DeviceModel:
        """Compiles a model by the state that ``DeviceModel.export_state`` gave earlier.

        The state must come from the same model and the same version of the device's plugin.

        Args:
            model: The model, read anew: the device gets it itself, not a copy.
            device_name: The device.
            config: Properties to compile with; ``None`` for the device's own.
            state: By name, the arrays that were exported.

        Raises:
            CompileError: The device failed.
        """
        plugin, properties = self.target(device_name, config)
        if self.extensions is not None:
            self.extensions.attach(model.ir.graph)  # all else was inferred before it was exported
        return compile_with(
            plugin, model.name, lambda: plugin.restore_model(model, properties, state)
        )

    def identity(self, device_name: str, config: Config = None) -> str:
        """What compiled models of a device depend on besides the model, as a key for caches."""
        plugin, properties = self.target(device_name, config)
        return identity_with(plugin, properties)

    def device_info(self, device: str) -> DeviceInfo:
        """Describes a device.

        Raises:
            DeviceError: It does not exist, or its driver fails to describe it.
        """
        named = self.registry.resolve(device)
        return describe(named.plugin, named.ids[0])

    def resolve_device(self, device: str) -> str:
        """The canonical name of a device: aliases followed, ids checked, existence assured."""
        return self.registry.resolve(device).device

    def fingerprint(self, device: str, config: Config = None) -> dict[str, str]:
        """What decides how fast a device is: equal answers mean that times can be shared.

        Args:
            device: E.g. ``"CPU"`` or ``"OPENCL.1"``.
            config: Properties of the compile in question.

        Returns:
            ``device`` (its full name), ``driver``, ``plugin`` (distribution and version), every
            detail that it tells, and ``properties`` as JSON, without those that change no speed.
        """
        plugin, properties = self.target(device, config)
        info = describe(plugin, properties.DEVICE_ID)
        settings = properties.model_dump(mode="json", exclude={"DEVICE_ID", "PERF_COUNT"})
        return {
            "device": info.full_name,
            "driver": info.driver,
            "plugin": self.registry.release(plugin.device_name),
            **{f"detail {key}": value for key, value in info.details.items()},
            "properties": json.dumps(settings, sort_keys=True),
        }

    def accepts_property(self, device: str, key: str) -> bool:
        """Whether a device has a writable property of that name."""
        from partita.properties.schema import is_read_only

        schema = self.registry.resolve(device).plugin.properties_type
        return key in schema.model_fields and not is_read_only(schema, key)

    def can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads tensors of a memory in place."""
        named = self.registry.resolve(device)
        with raised_as(PluginError, f"Device '{named.device}' failed to answer can_share"):
            return bool(named.plugin.can_share(memory, named.ids[0]))

    def transfer_to(self, device: str, tensor: Tensor) -> Tensor:
        """Brings a tensor into a device's memory."""
        named = self.registry.resolve(device)
        from partita.tensors.tensor import Tensor as AnyTensor

        what = f"Device '{named.device}' failed to take over a tensor"
        with raised_as(InferError, what):
            taken = named.plugin.transfer_to(tensor, named.ids[0])
        if not isinstance(taken, AnyTensor):
            raise wrong_answer(named.device, "transfer_to", taken, "a tensor")
        if (taken.shape, taken.dtype) != (tensor.shape, tensor.dtype):
            raise PluginError(f"{what}: it made {taken!r} of {tensor!r}. Tell its author.")
        return taken

    def host_memory(self, device: str, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Host memory that a device copies from and to quickly; ``None`` if any will do."""
        named = self.registry.resolve(device)
        return named.plugin.host_memory(nbytes, named.ids[0])


def identity_with(plugin: DevicePlugin, properties: DeviceProperties) -> str:
    """What a plugin answers to ``identity``.

    Raises:
        PluginError: It failed, or answered with something else.
    """
    with raised_as(PluginError, f"Device '{plugin.device_name}' failed to give its identity"):
        answer = plugin.identity(properties)
    if not (isinstance(answer, str) and is_encodable(answer)):
        raise wrong_answer(plugin.device_name, "identity", answer, "a text in Unicode")
    return answer


def query_with(plugin: DevicePlugin, properties: DeviceProperties, model: Model) -> QueryResult:
    """What a plugin answers to ``query_model``.

    Raises:
        PluginError: It failed, or answered with something else.
    """
    what = f"Device '{plugin.device_name}' failed to answer query_model for model '{model.name}'"
    with raised_as(PluginError, what):
        result = plugin.query_model(model, properties)
    if not isinstance(result, QueryResult):
        raise wrong_answer(plugin.device_name, "query_model", result, "a QueryResult")
    if not isinstance(result.reasons, Mapping):
        expected = "a dict of operation to Reason"
        raise wrong_answer(
            plugin.device_name, "the reasons of query_model", result.reasons, expected
        )
    for op, reason in result.reasons.items():
        if not isinstance(reason, Reason):
            expected = "a Reason, or nothing for what it takes"
            asked = f"the reasons of query_model for {shown(op)}"
            raise wrong_answer(plugin.device_name, asked, reason, expected)
    return result


def compile_with(plugin: DevicePlugin, model: str, make: Callable[[], DeviceModel]) -> DeviceModel:
    """Calls a plugin's compile or import, and blames it for what it should not do.

    Args:
        plugin: Who is blamed.
        model: The model's name, for messages.
        make: Has the plugin compile or import.

    Raises:
        CompileError: It failed.
        PluginError: It answered with something else than a ``DeviceModel`` with the model's ports.
    """
    from partita.contract.device_model import DeviceModel

    start = time.perf_counter()
    what = f"Device '{plugin.device_name}' failed to compile model '{model}'"
    with raised_as(CompileError, what):
        made = make()
    if not isinstance(made, DeviceModel):
        raise wrong_answer(plugin.device_name, "compile_model", made, "a DeviceModel")
    with raised_as(CompileError, what):
        complete = _is_complete(made)
    if not complete:
        expected = (
            "one that is complete: its __init__ must call "
            "super().__init__(model, properties, device)"
        )
        raise wrong_answer(plugin.device_name, "compile_model", made, expected)
    _require_ports(plugin, made)
    elapsed = (time.perf_counter() - start) * 1e3
    _log.info("compiled for %s in %.0f ms: %s", made.device, elapsed, made.model.name)
    return made


def _require_ports(plugin: DevicePlugin, made: DeviceModel) -> None:
    """Checks that a device model has the ports of its model, in their order.

    Raises:
        PluginError: It has others: results would be taken for those of other ports.
    """
    for kind, ports, due in (
        ("inputs", made.inputs, made.model.inputs),
        ("outputs", made.outputs, made.model.outputs),
    ):
        names, expected = [port.name for port in ports], [port.name for port in due]
        if names != expected:
            raise PluginError(
                f"Device '{plugin.device_name}' compiled model '{made.model.name}' to one whose "
                f"{kind} are {names}; expected those of the model, {expected}, in their order. "
                "Tell its author."
            )


def _is_complete(made: DeviceModel) -> bool:
    """Whether a device model has what ``DeviceModel.__init__`` gives it."""
    from partita.model.model import Model, Port
    from partita.properties import DeviceProperties

    return (
        isinstance(getattr(made, "device", None), str)
        and isinstance(made.model, Model)
        and isinstance(made.properties, DeviceProperties)
        and isinstance(made.inputs, list | tuple)
        and isinstance(made.outputs, list | tuple)
        and all(isinstance(port, Port) for port in (*made.inputs, *made.outputs))
    )
