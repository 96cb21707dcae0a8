"""A device for tests of the framework: it computes what it is told to, and can wait or fail."""

from __future__ import annotations

import threading

import numpy as np
from pydantic import Field

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.properties import DeviceProperties, read_only


class ToyProperties(DeviceProperties):
    LEVEL: int = Field(1, ge=0, le=9, description="A number.")
    FLAVOUR: str = Field("plain", description="A text.")
    SERIAL: str = read_only("none", "Set by nobody.")


class ToyTensor(partita.Tensor):
    """Elements in a memory that is not the host's."""

    def __init__(self, array, memory="toy"):
        self._array = array
        self.shape, self.dtype, self.device, self.memory = array.shape, array.dtype, "TOY", memory

    def numpy(self):
        return self._array.copy()


class ToyDevice(DevicePlugin):
    """Computes ``compute(*arrays)`` whatever the model says.

    Args:
        name: Device name.
        compute: From input arrays to a list of output arrays.
        kinds: Kind of each device; several give ids 0, 1, ...
        aliases: As a plugin declares them.
        gate: Runs wait for it, if given.
    """

    device_name = "TOY"
    properties_type = ToyProperties

    def __init__(
        self, name="TOY", compute=lambda x: [-x], kinds=("accelerator",), aliases=None, gate=None
    ):
        self.device_name = name
        self.compute, self.kinds, self.gate = compute, kinds, gate
        self.aliases = aliases or {}
        self.seen, self.cancels, self.started = [], 0, threading.Event()

    def device_ids(self):
        return [str(i) for i in range(len(self.kinds))] if len(self.kinds) > 1 else [""]

    def device_info(self, device_id):
        return DeviceInfo(
            self.device_name, f"toy {device_id}", self.kinds[int(device_id or 0)], driver="toy 1"
        )

    def query_model(self, model, properties):
        self.seen.append(properties)
        return partita.QueryResult.of(self.device_name, {op.name: None for op in model.ops})

    def compile_model(self, model, properties):
        self.seen.append(properties)
        return ToyCompiled(model, properties, self)


class ToyCompiled(partita.DeviceModel):
    def __init__(self, model, properties, plugin):
        super().__init__(model, properties, plugin.device_name)
        self.plugin = plugin

    def create_runner(self):
        return ToyRunner(self.plugin)

    def takes_memory(self, memory):
        return memory in ("host", "toy")


class ToyRunner(partita.Runner):
    """Keeps its output buffers from run to run, as real devices do."""

    def __init__(self, plugin):
        self.plugin = plugin
        self.buffers = []
        self.inputs = []

    def run(self, inputs, outputs=None):
        self.inputs = list(inputs)
        self.plugin.started.set()
        if self.plugin.gate is not None:
            self.plugin.gate.wait(60)
        arrays = [tensor.numpy() for tensor in inputs]
        shapes = [array.shape for array in self.plugin.compute(*arrays)]
        if [buffer.shape for buffer in self.buffers] != shapes:
            self.buffers = [np.empty_like(array) for array in self.plugin.compute(*arrays)]
        for buffer in self.buffers:
            buffer.fill(0)  # a runner may write to its outputs before it has read all inputs
        for buffer, array in zip(self.buffers, self.plugin.compute(*arrays), strict=True):
            buffer[...] = array
        return [partita.HostTensor(buffer) for buffer in self.buffers]

    def cancel(self):
        self.plugin.cancels += 1


class LateToListen(ToyDevice):
    """Is asked to stop before its run listens, and computes until it is asked then."""

    def __init__(self):
        super().__init__(compute=self._compute)
        self.asked, self.asked_again = threading.Event(), threading.Event()

    def compile_model(self, model, properties):
        compiled = super().compile_model(model, properties)
        runner = compiled.create_runner()
        runner.cancel = lambda: (self.asked_again if self.asked.is_set() else self.asked).set()
        compiled.create_runner = lambda: runner
        return compiled

    def _compute(self, x):
        assert self.asked.wait(60)
        assert self.asked_again.wait(60), "nobody asked again"
        return [-x]


def core_with(*plugins):
    core = partita.Core()
    for plugin in plugins:
        core.register_plugin(plugin)
    return core
