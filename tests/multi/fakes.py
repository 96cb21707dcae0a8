"""Devices for tests: the reference evaluator behind memories, refusals and faults of choice."""

from __future__ import annotations

import threading
import time

import numpy as np
from pydantic import Field

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.errors import CompileError, InferError
from partita.properties import DeviceProperties
from partita_reference.evaluator import ReferenceModel, ReferenceRunner


class FakeProperties(DeviceProperties):
    FLAVOUR: str = Field("plain", description="Only fake devices have this.")


class FakeTensor(partita.Tensor):
    """An array that claims to lie in another memory, and counts its downloads."""

    def __init__(self, array, device, memory):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.device, self.memory = device, memory
        self.downloads = 0

    def numpy(self):
        self.downloads += 1
        return self.array.copy()


class FakeDevice(DevicePlugin):
    """Computes with the reference evaluator.

    Args:
        name: Device name.
        refuses: Operators that ``query_model`` refuses.
        breaks_on: Operators that it claims and cannot compile.
        memory: Where its tensors lie; anything but ``"host"`` makes HETERO insert permutes.
        delay_s: How long each run takes on top.
        fails_at_run: Numbers of the runs that raise, from 1.
        fault: What every run does wrong: shape, dtype, count, nan, crash or hang, until `answers`
            is set.
        meet: A barrier that each run waits at, so that it only ends if others run beside it.
    """

    properties_type = FakeProperties
    device_name = "FAKE"

    def __init__(
        self,
        name,
        refuses=(),
        breaks_on=(),
        memory="host",
        delay_s=0.0,
        fails_at_run=(),
        kind="accelerator",
        meet=None,
        fault="",
        memory_bytes=None,
    ):
        self.device_name, self.memory_bytes = name, memory_bytes
        self.refuses, self.breaks_on, self.memory = set(refuses), set(breaks_on), memory
        self.delay_s, self.fails_at_run, self.kind = delay_s, fails_at_run, kind
        self.meet, self.fault, self.answers = meet, fault, threading.Event()
        self.compiled, self.seen_properties, self.queries, self.uploads, self.runs = [], [], 0, 0, 0

    def device_info(self, device_id):
        return DeviceInfo(
            self.device_name,
            "fake",
            kind=self.kind,
            memory=self.memory,
            memory_bytes=self.memory_bytes,
        )

    def query_model(self, model, properties):
        self.queries += 1
        reasons = {
            op.name: partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, f"no {op.op_type}")
            if op.op_type in self.refuses
            else None
            for op in model.ops
        }
        return partita.QueryResult.of(self.device_name, reasons)

    def compile_model(self, model, properties):
        for op in model.ops:
            if op.op_type in self.breaks_on:
                raise CompileError(f"cannot compile {op.op_type} after all")
            if op.op_type in self.refuses:
                raise AssertionError(f"{self.device_name} was given {op.op_type}, which it refused")
        self.compiled.append(model)
        self.seen_properties.append(properties)
        return FakeCompiled(model, properties, self.device_name, self)

    def can_share(self, memory, device_id=""):
        return memory == self.memory

    def transfer_to(self, tensor, device_id=""):
        self.uploads += 1
        return FakeTensor(tensor.numpy().copy(), self.device_name, self.memory)


class FakeCompiled(ReferenceModel):
    def __init__(self, model, properties, device, plugin):
        super().__init__(model, properties, device)
        self.plugin = plugin

    def create_runner(self):
        return FakeRunner(self)


class FakeRunner(ReferenceRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self.plugin = compiled.plugin

    def run(self, inputs, outputs=None):
        plugin = self.plugin
        plugin.runs += 1
        if plugin.runs in plugin.fails_at_run:
            raise InferError("the device fell over")
        for tensor in inputs:
            if tensor.memory != partita.tensors.tensor.HOST and not plugin.can_share(tensor.memory):
                raise AssertionError(f"{plugin.device_name} was given a tensor in {tensor.memory}")
        if plugin.meet is not None:
            plugin.meet.wait()
        if plugin.delay_s:
            time.sleep(plugin.delay_s)
        host = [
            partita.HostTensor(t.array if isinstance(t, FakeTensor) else t.numpy()) for t in inputs
        ]
        results = spoil(plugin.fault, super().run(host))
        if plugin.fault == "hang":
            plugin.answers.wait(60)
        if plugin.memory == "host":
            return results
        return [FakeTensor(t.numpy(), plugin.device_name, plugin.memory) for t in results]


def spoil(fault, results):
    if fault == "crash":
        raise KeyError("lost")
    if fault == "count":
        return []
    changes = {
        "shape": lambda a: a[:1].copy(),
        "dtype": lambda a: a.astype(np.float64),
        "nan": lambda a: a * np.float32("nan"),
    }
    change = changes.get(fault)
    return [partita.HostTensor(change(t.numpy())) for t in results] if change else results


def core_with(*devices):
    core = partita.Core()
    for device in devices:
        core.register_plugin(device)
    return core


def evaluate(proto, feeds):
    """The whole model in the reference evaluator, as the answer to compare with."""
    from onnx.reference import ReferenceEvaluator

    return [np.asarray(x) for x in ReferenceEvaluator(proto).run(None, feeds)]
