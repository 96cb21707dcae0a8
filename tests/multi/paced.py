"""Devices whose speed is known: each operation takes its time, a virtual one."""

from __future__ import annotations

import math

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.errors import InferError

from .fakes import FakeCompiled, FakeDevice, FakeRunner, FakeTensor
from .virtual_time import TIME


class PacedDevice(FakeDevice):
    """Computes with the reference evaluator and takes the time it is told to.

    Args:
        name: Device name, part of the full name too: costs of two of them are never shared.
        times: Operator to seconds.
        per_element: Operator to seconds for each element of the submodel's first input, on top.
        launch: Seconds of each run on top.
        copy: Seconds of each tensor that is brought here or away; needs a memory of its own.
        parts: Seconds of each run on top, for submodels that hold some but not all of the
            operators it has times for: what makes every plan a lie.
        counts: Whether it has counters.
        fuses: Whether it counts all as its first operation, as one kernel would.
        spins: Seconds for which its idle threads look for work after a run.
        driver: Its version.
        breaks_on: Operators that it claims and cannot compile.
        fails_on: Operators that it claims, compiles and cannot run.
    """

    def __init__(
        self,
        name,
        times=None,
        launch=0.0,
        copy=0.0,
        parts=0.0,
        counts=False,
        fuses=False,
        driver="1",
        fails_on=(),
        per_element=None,
        spins=0.0,
        **options,
    ):
        super().__init__(name, **options)
        self.times, self.launch, self.copy = times or {}, launch, copy
        self.parts, self.counts, self.driver = parts, counts, driver
        self.fuses, self.fails_on = fuses, set(fails_on)
        self.per_element, self.spins = per_element or {}, spins

    def device_info(self, device_id):
        return DeviceInfo(
            self.device_name,
            f"paced {self.device_name}",
            kind=self.kind,
            memory=self.memory,
            driver=self.driver,
        )

    def compile_model(self, model, properties):
        super().compile_model(model, properties)
        return PacedCompiled(model, properties, self.device_name, self)

    def transfer_to(self, tensor, device_id=""):
        TIME.sleep(self.copy)
        self.uploads += 1
        return PacedTensor(tensor.numpy().copy(), self.device_name, self.memory, self.copy)


class PacedTensor(FakeTensor):
    def __init__(self, array, device, memory, copy):
        super().__init__(array, device, memory)
        self.copy = copy

    def numpy(self):
        TIME.sleep(self.copy)
        return super().numpy()


class PacedCompiled(FakeCompiled):
    def create_runner(self):
        return PacedRunner(self)


class PacedRunner(FakeRunner):
    def __init__(self, compiled):
        super().__init__(compiled)
        self._ops = [(op.name, op.op_type) for op in compiled.model.ops]
        self._counts = self.plugin.counts and compiled.properties.PERF_COUNT

    def run(self, inputs, outputs=None):
        plugin = self.plugin
        if any(op_type in plugin.fails_on for _, op_type in self._ops):
            raise InferError(f"{plugin.device_name} cannot run it after all")
        inputs = [
            tensor if plugin.can_share(tensor.memory) else plugin.transfer_to(tensor)
            for tensor in inputs
        ]
        timed = [plugin.times[op_type] for _, op_type in self._ops if op_type in plugin.times]
        partial = 0 < len(timed) < len(plugin.times)
        seconds = plugin.launch + sum(timed) + partial * plugin.parts
        growing = (plugin.per_element.get(op_type, 0.0) for _, op_type in self._ops)
        seconds += sum(growing) * math.prod(inputs[0].shape)
        TIME.sleep(seconds, plugin.device_name)
        if plugin.spins:
            TIME.spin(plugin.spins, plugin.device_name)
        results = super().run(inputs)
        if plugin.memory == "host":
            return results
        return [
            PacedTensor(tensor.array, plugin.device_name, plugin.memory, plugin.copy)
            for tensor in results
        ]

    def profiling_info(self):
        if not self._counts:
            return ()
        times = [self.plugin.times.get(op_type, 0.0) * 1e6 for _, op_type in self._ops]
        covers = ()
        if self.plugin.fuses:
            times = [sum(times)] + [0.0] * (len(times) - 1)
            covers = tuple(name for name, _ in self._ops[1:])
        return [
            partita.ProfilingInfo(
                *(name, op_type, "sleep"), real_time_us=time, covers=() if number else covers
            )
            for number, ((name, op_type), time) in enumerate(zip(self._ops, times, strict=True))
        ]


class PacedTwins(FakeDevice):
    """One plugin with several devices.

    Args:
        name: Device name; the devices are ``NAME.0``, ``NAME.1``, ...
        members: The devices in order, which are given these names.
    """

    def __init__(self, name, *members):
        super().__init__(name)
        self.members = {str(number): member for number, member in enumerate(members)}
        for number, member in self.members.items():
            member.device_name = f"{name}.{number}"

    def device_ids(self):
        return list(self.members)

    def device_info(self, device_id):
        return self.members[device_id or "0"].device_info(device_id)

    def query_model(self, model, properties):
        return self.members[properties.DEVICE_ID or "0"].query_model(model, properties)

    def compile_model(self, model, properties):
        return self.members[properties.DEVICE_ID or "0"].compile_model(model, properties)

    def can_share(self, memory, device_id=""):
        return self.members[device_id or "0"].can_share(memory)

    def transfer_to(self, tensor, device_id=""):
        return self.members[device_id or "0"].transfer_to(tensor)
