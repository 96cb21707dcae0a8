"""The process on a node that runs one submodel; everything here happens on that node."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.query import QueryResult
from partita.errors import CompileError
from partita.tensors.tensor import HostTensor
from partita_ray.call_messages import Array, CallMessages

if TYPE_CHECKING:
    from partita.contract.device_model import DeviceModel
    from partita.contract.runner import Runner
    from partita_ray.model_parcel import ModelParcel

_DISABLED = "PARTITA_DISABLE_PLUGINS"
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node says of itself.

    Attributes:
        version: Of Partita there.
        devices: All that it has.
        info: The one where none is named.
    """

    version: str
    devices: tuple[str, ...]
    info: DeviceInfo


class NodeActor:
    """Devices of one node; one model at a time is compiled for one of them.

    Each of the actor's threads has a runner of its own: Ray stores what a call returns on the
    thread that made it, before that thread makes another one, so that results need no copy.
    """

    def __init__(self) -> None:
        self._model: DeviceModel | None = None
        self._messages = CallMessages((), ())
        self._of_thread = threading.local()
        others = os.environ.get(_DISABLED, "")
        os.environ[_DISABLED] = f"{others},ray" if others else "ray"  # a node has no nodes
        if os.environ.get(_GPUS) == "":
            del os.environ[_GPUS]  # Ray hides GPUs from actors that reserve none
        self._core = partita.Core()

    def facts(self) -> NodeFacts:
        """What the node has."""
        core = self._core
        info = core.device_info(core.default_device)
        return NodeFacts(partita.__version__, tuple(core.available_devices), info)

    def clock(self) -> float:
        """The node's clock in seconds, by which runs are timed."""
        return time.perf_counter()

    def hold(self, array: Array) -> Array:
        """Puts an array into the node's object store."""
        return array

    def query(self, parcel: ModelParcel, device: str, config: Mapping[str, Any]) -> QueryResult:
        """Asks a device of the node which operations it takes."""
        return self._core.query_model(
            parcel.unpack(), device or self._core.default_device, dict(config)
        )

    def load(self, parcel: ModelParcel, device: str, config: Mapping[str, Any]) -> list[str]:
        """Compiles a model in place of the one before; returns the devices that execute it."""
        self.unload()
        model, device = parcel.unpack(), device or self._core.default_device
        made = self._core.device_api.compile_model(model, device, dict(config))
        self._messages = CallMessages(made.inputs, made.outputs)
        self._model = made
        return made.execution_devices

    def unload(self) -> None:
        """Lets go of the model; threads keep a runner of it until they run another one."""
        self._model = None
        self._of_thread = threading.local()

    def run(self, message: bytes, *large: Array) -> Any:
        """Computes the outputs.

        Args:
            message: The inputs that cross so, by name (:mod:`partita_ray.call_messages`).
            large: The other inputs, in order.

        Returns:
            A :class:`~partita_ray.call_messages.RunAnswer` as a message, and behind it each output
            that may be large.

        Raises:
            InferError: The message cannot be read, or the device fails.
        """
        runner = self._runner()
        messages = self._messages
        inputs = [HostTensor(x) for x in messages.read_inputs(message, large)]
        start = time.perf_counter()
        outputs = [tensor.numpy() for tensor in runner.run(inputs)]
        end = time.perf_counter()
        answer, objects = messages.write_answer(start, end, outputs, runner.profiling_info())
        return (answer, *objects) if objects else answer

    def _runner(self) -> Runner:
        """The runner of this thread."""
        runner: Runner | None = getattr(self._of_thread, "runner", None)
        if runner is None:
            if self._model is None:
                raise CompileError("The process on the node holds no model.")
            runner = self._of_thread.runner = self._model.create_runner()
        return runner
