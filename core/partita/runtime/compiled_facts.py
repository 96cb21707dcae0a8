"""The facts of a compiled model: ports, properties, where it runs and why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

from partita.contract.device_model import (
    DeviceModel,
    devices_of,
    explanation_of,
    exported_state,
    requests_at_once,
)
from partita.contract.explanation import Explanation
from partita.contract.identity import stamp
from partita.errors import BlobError, PluginError, PropertyError, raised_as, wrong_answer
from partita.model.model import Model, Port, find_port
from partita.properties.values import Config, check_name, normalize
from partita.storage import exported_model
from partita.system.own_process import ProcessBound

_LOADED = "LOADED_FROM_CACHE"


class CompiledFacts(ProcessBound):
    """A compiled model without the methods that create requests; requests refer to it.

    Arguments and attributes are those of :class:`~partita.CompiledModel`.
    """

    def __init__(
        self,
        device_model: DeviceModel,
        made_by: Callable[[], str] = str,
        loaded_from_cache: bool = False,
    ) -> None:
        self.device_model = device_model
        self.model = device_model.model
        self.properties = device_model.properties
        self.device = device_model.device
        self.inputs: tuple[Port, ...] = device_model.inputs
        self.outputs: tuple[Port, ...] = device_model.outputs
        self.loaded_from_cache = loaded_from_cache
        self._made_by = made_by

    @property
    def execution_devices(self) -> list[str]:
        """The devices that compute parts of the model."""
        return devices_of(self.device_model)

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """How many requests keep the device busy."""
        return requests_at_once(self.device_model)

    @property
    def computing_devices(self) -> list[str]:
        """The devices beneath a device that is made of others; none beneath other ones."""
        return [name for name in self.execution_devices if name != self.device]

    def explain(self) -> Explanation:
        """Where every operation runs, and why."""
        return explanation_of(self.device_model)

    def export_model(self, stream: BinaryIO | None = None) -> bytes:
        """The compiled model as bytes for ``Core.import_model``, also written to a stream if given.

        Raises:
            BlobError: The model is too large for one protobuf (2 GiB), or ``stream`` is no stream.
            PluginError: The device gave something else than bytes.
        """
        if stream is not None and not hasattr(stream, "write"):
            raise BlobError(
                f"A model is exported to a stream; found {type(stream).__name__}. Open the file "
                "with open(path, 'wb'), or write the bytes that export_model() returns."
            )
        with self._blamed("export_model"):
            blob = self.device_model.export_model()
            if blob is None:
                blob = self._packed()
        if not isinstance(blob, bytes):
            raise wrong_answer(self.device, "export_model", blob, "bytes, or None")
        if stream is not None:
            stream.write(blob)
        return blob

    def _packed(self) -> bytes:
        """The model with its properties and the device's exported state."""
        return exported_model.pack(
            device=self.device.partition(".")[0],
            header={
                "properties": self.device_model.exported_properties(),
                "made_by": stamp(self._made_by()),
            },
            model=self.model,
            arrays=exported_state(self.device_model),
        )

    def get_property(self, name: str) -> Any:
        """A setting that the model was compiled with, or a fact about it.

        Raises:
            PropertyError: Unknown name; the message lists the known ones.
        """
        check_name(name)
        if name == _LOADED:
            return self.loaded_from_cache
        if name == "EXECUTION_DEVICES":
            return self.execution_devices
        if name == "OPTIMAL_NUMBER_OF_INFER_REQUESTS":
            return self.optimal_number_of_infer_requests
        with self._blamed("get_property"):
            found = self.device_model.get_property(name)
        if name != "SUPPORTED_PROPERTIES":
            return found
        if isinstance(found, dict):
            return {**found, _LOADED: "RO"}
        raise wrong_answer(self.device, name, found, 'a dict from names to "RO"')

    def set_property(self, properties: Config) -> None:
        """Always raises: the properties of a compiled model cannot be changed.

        Raises:
            PropertyError: Always; says what to do instead.
        """
        names = ", ".join(f"'{name}'" for name in normalize(properties)) or "nothing"
        raise PropertyError(
            f"{self!r} keeps the properties that it was compiled with; {names} cannot be set. Give "
            "them to compile_model."
        )

    def get_runtime_model(self) -> Model:
        """A copy of the model in which each operation's ``rt_info`` has its device.

        ``rt_info["runtime_device"]`` is the device's name.
        """
        model = self.model.clone()
        where = {op.name: op.device for op in self.explain().ops}
        for op in model.ops:
            if op.name in where:
                op.rt_info["runtime_device"] = where[op.name]
        return model

    def input(self, key: Any = None) -> Port:
        """The input port for an index, name or port; the key may be omitted if there is one."""
        return find_port(self.inputs, key, f"Compiled model '{self.model.name}'")

    def output(self, key: Any = None) -> Port:
        """The output port for an index, name or port; the key may be omitted if there is one."""
        return find_port(self.outputs, key, f"Compiled model '{self.model.name}'")

    def _blamed(self, member: str) -> AbstractContextManager[None]:
        """Has the device blamed for what its half of the model raises in the block."""
        return raised_as(PluginError, f"Device '{self.device}' failed to answer {member}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model.name!r} on {self.device}>"
