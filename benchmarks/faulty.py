"""Devices that fail on schedule, in every way that a device can, for the fault campaign."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.errors import CompileError, DeviceUnavailableError, InferError
from partita.lowering import lower
from partita.properties import DeviceProperties

Array = np.ndarray[Any, Any]

KINDS = (
    "none",
    "query",  # query_model raises
    "compile",  # compile_model raises
    "runner",  # create_runner raises
    "first run",  # the first run raises
    "n-th run",  # a later run raises, once or from then on
    "wrong shape",
    "wrong dtype",
    "wrong count",
    "no tensor",  # something that is not a tensor comes back
    "NaN",
    "hang",
    "upload",  # transfer_to raises
    "download",  # reading a result raises
    "vanish",  # from the n-th run on everything raises and the device is in no list
)

HAPPENS_AT_RUN = ("first run", "n-th run", "wrong shape", "wrong dtype", "wrong count", "no tensor")
HAPPENS_AT_RUN += ("NaN", "hang")

OPS: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": np.maximum,
    "Relu": lambda a: np.maximum(a, np.float32(0)),
    "Neg": np.negative,
    "Abs": np.abs,
    "Tanh": np.tanh,
}


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    Attributes:
        kind: One of :data:`KINDS`.
        at: The number of the call that goes wrong first, from 1.
        lasting: Whether all later ones go wrong too.
    """

    kind: str = "none"
    at: int = 1
    lasting: bool = True


class FaultyDevice(DevicePlugin):
    """Computes elementwise operations with numpy, until its fault happens.

    Args:
        name: Device name.
        fault: What goes wrong, and when.
        memory: Where its tensors lie: ``"host"``, or a memory of its own.
    """

    device_name = "FAULTY"
    properties_type = DeviceProperties
    runners: ClassVar[weakref.WeakSet[FaultyRunner]] = weakref.WeakSet()

    def __init__(self, name: str, fault: Fault, memory: str = "host") -> None:
        self.device_name = name
        self.fault, self.memory = fault, memory
        self.fired = 0
        self.lost = False
        self.release = threading.Event()
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def happens(self, *kinds: str) -> bool:
        """Counts a call that faults of these kinds concern; whether it goes wrong."""
        if self.lost:
            raise DeviceUnavailableError(f"'{self.device_name}' is gone")
        if self.fault.kind not in kinds:
            return False
        with self._lock:
            number = self._calls[kinds[0]] = self._calls.get(kinds[0], 0) + 1
            due = number >= self.fault.at if self.fault.lasting else number == self.fault.at
            self.fired += due
        return due

    def device_ids(self) -> Sequence[str]:
        """None once the device is gone."""
        return () if self.lost else ("",)

    def device_info(self, device_id: str) -> DeviceInfo:
        """Describes the device."""
        self.happens()
        return DeviceInfo(self.device_name, "fails on schedule", memory=self.memory)

    def query_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.QueryResult:
        """Takes everything."""
        if self.happens("query"):
            raise RuntimeError("the driver does not answer")
        return partita.QueryResult.of(self.device_name, {op.name: None for op in model.ops})

    def compile_model(
        self, model: partita.Model, properties: DeviceProperties
    ) -> partita.DeviceModel:
        """Keeps the lowered graph."""
        if self.happens("compile"):
            raise (CompileError, RuntimeError, MemoryError)[self.fired % 3]("the compiler gave up")
        return FaultyCompiled(model, properties, self)

    def can_share(self, memory: str, device_id: str = "") -> bool:
        """Its own memory only."""
        self.happens()
        return memory == self.memory

    def transfer_to(self, tensor: partita.Tensor, device_id: str = "") -> partita.Tensor:
        """Copies."""
        if self.happens("upload"):
            raise RuntimeError("the bus is dead")
        return self.tensor(tensor.numpy().copy())

    def tensor(self, array: Array) -> partita.Tensor:
        """A tensor of this device."""
        if self.memory == "host":
            return partita.HostTensor(array)
        return FarTensor(array, self)


class FarTensor(partita.Tensor):
    """An array in a device's own memory."""

    def __init__(self, array: Array, plugin: FaultyDevice) -> None:
        self.array, self.plugin = array, plugin
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = plugin.device_name, plugin.memory

    def numpy(self) -> Array:
        """A copy."""
        if self.plugin.happens("download"):
            raise RuntimeError("the bus is dead")
        return self.array.copy()


class FaultyCompiled(partita.DeviceModel):
    """See :class:`FaultyDevice`."""

    def __init__(
        self, model: partita.Model, properties: DeviceProperties, plugin: FaultyDevice
    ) -> None:
        super().__init__(model, properties, plugin.device_name)
        self.plugin = plugin
        self.graph = lower(model)

    def create_runner(self) -> partita.Runner:
        """One request."""
        if self.plugin.happens("runner"):
            raise RuntimeError("no queue left")
        return FaultyRunner(self)


class FaultyRunner(partita.Runner):
    """See :class:`FaultyDevice`."""

    def __init__(self, compiled: FaultyCompiled) -> None:
        self.plugin, self.graph = compiled.plugin, compiled.graph
        self._running = threading.Lock()
        FaultyDevice.runners.add(self)

    def run(
        self,
        inputs: Sequence[partita.Tensor],
        outputs: Sequence[partita.Tensor | None] | None = None,
    ) -> Sequence[partita.Tensor]:
        """Computes, or does what the fault wants."""
        if not self._running.acquire(blocking=False):
            raise AssertionError("two runs on one runner at the same time")
        try:
            return self._run(inputs, outputs or [None] * len(self.graph.outputs))
        finally:
            self._running.release()

    def _run(
        self, inputs: Sequence[partita.Tensor], outputs: Sequence[partita.Tensor | None]
    ) -> Sequence[partita.Tensor]:
        plugin = self.plugin
        if plugin.happens("vanish"):
            plugin.lost = True
            raise DeviceUnavailableError(f"'{plugin.device_name}' fell off the bus")
        wrong = plugin.fault.kind if plugin.happens(*HAPPENS_AT_RUN) else ""
        if wrong == "hang":
            plugin.release.wait()
        if wrong in ("first run", "n-th run"):
            raise (InferError, RuntimeError, MemoryError)[plugin.fired % 3]("the device fell over")
        values: dict[int, Array] = {}
        for value, tensor in zip(self.graph.inputs, inputs, strict=True):
            values[id(value)] = tensor.array if isinstance(tensor, FarTensor) else tensor.numpy()
        for node in self.graph.nodes:
            args = [
                values[id(v)] if v.const is None else v.const  # type: ignore[union-attr]  # given
                for v in node.inputs
            ]
            values[id(node.outputs[0])] = OPS[node.op_type](*args)
        arrays = [values[id(v)] if v.const is None else v.const for v in self.graph.outputs]
        return self._answer(wrong, arrays, outputs)

    def _answer(
        self, wrong: str, arrays: list[Array], outputs: Sequence[partita.Tensor | None]
    ) -> Sequence[partita.Tensor]:
        match wrong:
            case "wrong shape":
                arrays[-1] = arrays[-1][:1].copy()
            case "wrong dtype":
                arrays[-1] = arrays[-1].astype(np.float64)
            case "NaN":
                arrays[-1] = np.where(np.arange(arrays[-1].shape[-1]) == 1, np.nan, arrays[-1])
                arrays[-1] = arrays[-1].astype(np.float32)
            case "wrong count":
                arrays.append(arrays[-1])
            case "no tensor":
                return arrays  # type: ignore[return-value]  # that is the fault
        answer = [self.plugin.tensor(array) for array in arrays]
        if wrong in ("", "NaN", "hang"):
            for index, given in enumerate(outputs):
                if isinstance(given, partita.HostTensor) and self.plugin.memory == "host":
                    np.copyto(given.numpy(), arrays[index])
                    answer[index] = given
        return answer
