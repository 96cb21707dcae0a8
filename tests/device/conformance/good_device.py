"""A correct device over the reference evaluator, with a hook wherever a fault can be put in."""

from __future__ import annotations

import threading
import time
from typing import Literal

import numpy as np
from pydantic import Field

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.contract.profiling import ProfilingInfo
from partita.errors import CompileError
from partita.frontends.reader import read_model
from partita.properties import DeviceProperties, read_only
from partita.tensors.sequence_values import boxed, unboxed
from partita_reference.evaluator import ReferenceModel, ReferenceRunner, missing


class GoodProperties(DeviceProperties):
    """Some of every sort."""

    LEVEL: int = Field(1, ge=0, description="A number.")
    MODE: Literal["ONE", "TWO"] = Field("ONE", description="A choice.")
    RELEASE: str = read_only("1.0", "A fact.")


class GoodRunner(ReferenceRunner):
    """Computes, and hands on what the device's hooks make of it."""

    def __init__(self, compiled):
        super().__init__(compiled)
        self.compiled = compiled
        self.elapsed_us = 0.0

    def run(self, inputs, outputs=None):
        start = time.perf_counter()
        arrays = self.compiled.plugin.compute(self, [tensor.numpy() for tensor in inputs])
        self.elapsed_us = 1e6 * (time.perf_counter() - start)
        return self.compiled.plugin.deliver(self, arrays, outputs)

    def take_over(self, evaluator):
        """Compute with another evaluator, as faults do that confuse programs."""
        self._evaluator = evaluator

    def evaluate(self, arrays):
        """The right answers."""
        results = super().run([partita.HostTensor(array) for array in arrays])
        return [tensor.numpy() for tensor in results]

    def profiling_info(self):
        return self.compiled.plugin.counters(self) if self.compiled.properties.PERF_COUNT else ()


class GoodCompiled(ReferenceModel):
    """Compiles a copy of the model, so that later edits do not matter."""

    def __init__(self, plugin, model, properties):
        self.plugin = plugin
        own = model.clone()
        prepares = type(plugin).prepare is not Good.prepare  # else the copy is what comes of it
        computed = read_model(plugin.prepare(model.to_onnx())) if prepares else own
        super().__init__(computed, properties, plugin.device_name)
        self.model = own
        self.inputs, self.outputs = model.inputs, model.outputs

    def create_runner(self):
        return self.plugin.runner_type(self)


class Good(DevicePlugin):
    """A device that does everything right, and takes all that REFERENCE takes except Tanh.

    A broken device derived from it names in ``suites`` where its fault shows.
    """

    device_name = "GOOD"
    suites = ("*",)
    properties_type = GoodProperties
    compiled_type = GoodCompiled
    runner_type = GoodRunner

    def __init__(self):
        self.lock = threading.Lock()

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "A good device")

    def verdict(self, op):
        if op.op_type == "Tanh":
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "no Tanh")
        return missing(op.node)

    def query_model(self, model, properties):
        verdicts = {op.name: self.verdict(op) for op in model.ops}
        return partita.QueryResult.of(self.device_name, verdicts)

    def compile_model(self, model, properties):
        for op in model.ops:
            reason = self.verdict(op)
            if reason is not None:
                raise CompileError(f"'{op.name}' is not taken: {reason}")
        return self.compiled_type(self, model, properties)

    def prepare(self, proto):
        """The model that is really computed."""
        return proto

    def compute(self, runner, arrays):
        """The outputs for inputs."""
        return runner.evaluate(arrays)

    def deliver(self, runner, arrays, outputs):
        """The outputs as tensors."""
        if outputs is None:
            return [partita.HostTensor(array) for array in arrays]
        result = []
        for array, given in zip(arrays, outputs, strict=True):
            if given is None:
                result.append(partita.HostTensor(array))
            else:
                given.numpy()[...] = array
                result.append(given)
        return result

    def counters(self, runner):
        """Counters of the last run."""
        names = [op.name for op in runner.compiled.model.ops]
        us = runner.elapsed_us
        return [
            ProfilingInfo(name, "Model", "reference", real_time_us=us, cpu_time_us=us)
            for name in names[:1]
        ]


class Two(Good):
    """Right, and two devices of one kind."""

    device_name = "TWO"

    def device_ids(self):
        return ("0", "1")

    def device_info(self, device_id):
        return DeviceInfo(f"{self.device_name}.{device_id or 0}", f"A good device, {device_id}")

    def compile_model(self, model, properties):
        made = super().compile_model(model, properties)
        made.device = f"{self.device_name}.{properties.DEVICE_ID or 0}"
        return made


class Null(Good):
    """Right in form, and nothing but zeros."""

    device_name = "NULL"

    def compute(self, runner, arrays):
        return [boxed(zeros(unboxed(array))) for array in super().compute(runner, arrays)]


def zeros(value):
    """Zeros of a tensor's form, empty texts for texts, a sequence of them for a sequence."""
    if value is None or isinstance(value, list):
        return value and [zeros(item) for item in value]
    return np.full(value.shape, "", object) if value.dtype == object else np.zeros_like(value)


class Picky(Good):
    """Right, and takes nothing but Relu and Add of float32."""

    device_name = "PICKY"

    def verdict(self, op):
        if op.domain or op.op_type not in ("Relu", "Add"):
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, f"no {op.op_type}")
        for value in op.node.inputs:
            if value is None or value.dtype is None or value.dtype.name != "FLOAT":
                return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, "takes float32")
        return None
