"""Runs of a compiled model: a queue, kernels, and per set of shapes what is launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from partita import BoundCall, DeviceProperties, Model, Port, ProfilingInfo, Runner, Tensor
from partita.contract.execution import Execution
from partita.contract.profiling import Status
from partita.errors import DeviceMemoryError, InferCancelledError, InferError
from partita.lowering import Array, Graph, OpRecord
from partita.lowering.program import Spec
from partita.lowering.recently_used import RecentlyUsed
from partita.tensors.layout import MemoryLayout
from partita_opencl.cuda.cuda_driver import CudaError
from partita_opencl.device.buffer_pool import runtime_error
from partita_opencl.device.device import Device
from partita_opencl.device.device_tensor import as_agreed, in_memory
from partita_opencl.device.host_buffers import copied_array
from partita_opencl.drivers.fork_guard import refuse_after_fork
from partita_opencl.drivers.process_end import end_waits, refuse_at_end
from partita_opencl.launches.steps import REPORTS
from partita_opencl.passes.half_precision import CASTS, cast_name, casts
from partita_opencl.runtime.binding.bound_call import OpenClBoundCall
from partita_opencl.runtime.binding.bound_plan import BoundPlan, StalledError
from partita_opencl.runtime.binding.request_buffers import RequestBuffers, grown
from partita_opencl.runtime.commands import RequestQueue
from partita_opencl.runtime.execution_plan import Plan
from partita_opencl.runtime.shared_kernels import SharedKernels


class PlannedModel(Protocol):
    """What a runner needs of the compiled model that it runs.

    Attributes:
        target: The OpenCL device.
        objection: Why products stepped back to portable kernels; empty if they did not.
        laid_out: Ports whose tensors lie in memory otherwise than they say.
    """

    target: Device
    objection: str
    laid_out: Mapping[Port, MemoryLayout]

    @property
    def device(self) -> str:
        """The device's name, for messages."""

    @property
    def model(self) -> Model:
        """What was compiled."""

    @property
    def graph(self) -> Graph:
        """What it was lowered to."""

    @property
    def inputs(self) -> Sequence[Port]:
        """The input ports."""

    @property
    def outputs(self) -> Sequence[Port]:
        """The output ports."""

    @property
    def properties(self) -> DeviceProperties:
        """The properties it was compiled with."""

    @property
    def shape_cache_bytes(self) -> int:
        """What each request may keep for shapes that it has seen."""

    def plan(self, specs: Sequence[Spec], value: Callable[[int], Array]) -> Plan:
        """The plan for inputs of these shapes and types."""

    def in_place_outputs(self) -> Mapping[int, int]:
        """By output the input that a run can write it over."""

    def stop_waiting(self) -> None:
        """From now on, no kernel's groups wait for one another."""


class OpenClRunner(Runner):
    """One request: an in-order queue, kernels, and per set of shapes what is launched.

    Attributes:
        bound_plans: Those of the shapes seen last.
    """

    def __init__(self, compiled: PlannedModel) -> None:
        import pyopencl as cl

        self._compiled = compiled
        self._device = compiled.target
        self._profiles = compiled.properties.PERF_COUNT
        flags: Any = cl.command_queue_properties.PROFILING_ENABLE if self._profiles else 0
        queue = cl.CommandQueue(self._device.context, self._device.handle, flags)
        side = None if self._profiles else self._device.cuda  # whose kernels report no times
        self._queue = RequestQueue(queue, None if side is None else side.stream())
        self.bound_plans: RecentlyUsed[int, BoundPlan] = RecentlyUsed(
            compiled.shape_cache_bytes, lambda bound: bound.kept_bytes
        )
        self._kernels = SharedKernels()
        self._own = RequestBuffers(self._device)
        self._slots: list[Any] = []
        self._outgrown: list[Any] = []  # what shapes seen before are bound to in place of slots
        self._times: list[tuple[OpRecord, str, float]] = []
        self._reports = copied_array(self._device, (REPORTS,), np.dtype(np.int32))

    @end_waits
    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Computes the outputs; see :class:`~partita.Runner`. Host tensors are uploaded."""
        import pyopencl as cl

        refuse_after_fork(InferError)
        refuse_at_end(InferCancelledError)  # no fault of the device
        layouts, wanted = self._compiled.laid_out, outputs
        if layouts:
            inputs, outputs = self._as_in_memory(inputs, outputs)
        specs = [(tensor.shape, tensor.dtype) for tensor in inputs]
        plan = self._compiled.plan(specs, lambda i: inputs[i].numpy())
        events: list[tuple[OpRecord, str, Any]] | None = [] if self._profiles else None
        try:
            try:
                results = self._bound_plan(plan).run(self._queue, inputs, outputs, events)
            except StalledError:
                self.bound_plans.clear()
                self._compiled.stop_waiting()
                plan = self._compiled.plan(specs, lambda i: inputs[i].numpy())
                results = self._bound_plan(plan).run(self._queue, inputs, outputs, events)
        except (cl.Error, CudaError) as error:
            raise runtime_error(error, self._compiled.device, plan.nbytes) from error
        if events is not None:
            self._times = [
                (op, kernel, (event.profile.end - event.profile.start) / 1e3)
                for op, kernel, event in events
            ]
        return results if not layouts else self._as_agreed(results, outputs, wanted)

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: Array | None = None,
    ) -> BoundCall | None:
        """The launches of a run on these tensors; none where it is timed or elements decide it."""
        if self._profiles or self._compiled.laid_out:
            return None
        specs = [(tensor.shape, tensor.dtype) for tensor in inputs]
        try:
            plan = self._compiled.plan(specs, _no_elements)
        except _ElementsNeededError:
            return None
        name = self._compiled.device
        return OpenClBoundCall(self, self._queue, self._bound_plan, plan, inputs, outputs, name)

    def _as_in_memory(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None
    ) -> tuple[list[Tensor], list[Tensor | None] | None]:
        """The tensors with the types that they have in memory."""
        ports, layouts = self._compiled.inputs, self._compiled.laid_out
        stored = [
            in_memory(tensor, layouts.get(port)) for port, tensor in zip(ports, inputs, strict=True)
        ]
        if outputs is None:
            return stored, None
        targets = [
            None if tensor is None else in_memory(tensor, layouts.get(port))
            for port, tensor in zip(self._compiled.outputs, outputs, strict=True)
        ]
        return stored, targets

    def _as_agreed(
        self,
        results: Sequence[Tensor],
        given: Sequence[Tensor | None] | None,
        wanted: Sequence[Tensor | None] | None,
    ) -> list[Tensor]:
        """The tensors with the types of their ports, in their layouts; those given as given."""
        agreed = []
        for port, tensor in zip(self._compiled.outputs, results, strict=True):
            if given is not None and wanted is not None and tensor is given[port.index]:
                agreed.append(wanted[port.index] or tensor)
            else:
                layout = self._compiled.laid_out.get(port)
                agreed.append(as_agreed(tensor, port.dtype, layout))
        return agreed

    def explain_execution(self) -> Execution:
        """The kernels for the shapes of the last run."""
        if not self.bound_plans:
            return Execution()
        return self.bound_plans.values()[-1].explain_execution()

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """One record per operation of the model: kernel time on the device, by its own clock.

        Products that stepped back to portable kernels say why.
        """
        if not self._profiles:
            return ()
        ops = [(op.name, op.op_type) for op in self._compiled.model.ops]
        ops += [(name, "Permute") for name in casts(self._compiled.graph)]
        known = {name for name, _ in ops}
        spent: dict[str, float] = {}
        kernels: dict[str, dict[str, None]] = {}
        covers: dict[str, dict[str, None]] = {}
        for op, kernel, time in self._times:
            if op.op_type in CASTS:
                name = cast_name(op.op_type, op.name)
            else:
                name = next((n for n in (op.name, *op.origins) if n in known), "")
            spent[name] = spent.get(name, 0.0) + time
            if kernel.startswith("product") and self._compiled.objection:
                kernel += f" (stepped back: {self._compiled.objection})"
            kernels.setdefault(name, {})[kernel] = None
            others = (n for n in op.origins if n in known and n != name)
            covers.setdefault(name, {}).update(dict.fromkeys(others))
        return [
            ProfilingInfo(
                node_name=name,
                node_type=kind,
                exec_type="+".join(kernels[name]),
                status=Status.EXECUTED,
                real_time_us=spent[name],
                covers=tuple(covers[name]),
            )
            if name in spent
            else ProfilingInfo(name, kind, status=Status.OPTIMIZED_OUT)
            for name, kind in ops
        ]

    def close(self) -> None:
        """Gives the buffers back and drops kernels and outputs."""
        self.bound_plans.clear()
        self._kernels = SharedKernels()
        self._own.clear()
        for buffer in (*self._slots, *self._outgrown):
            self._device.pool.give(buffer)
        self._slots, self._outgrown = [], []

    def _bound_plan(self, plan: Plan) -> BoundPlan:
        found = self.bound_plans.get(id(plan))
        if found is None:
            self._grow(plan.sizes)
            name = self._compiled.device
            in_place = self._compiled.in_place_outputs()
            found = BoundPlan(
                plan=plan,
                device=self._device,
                name=name,
                slots=self._slots,
                kernels=self._kernels,
                own=self._own,
                in_place=in_place,
                reports=self._reports,
                varies=bool(self.bound_plans),
            )
            self.bound_plans.add(id(plan), found)
        return found

    def _grow(self, sizes: Sequence[int]) -> None:
        """Makes the buffers that all shapes of this request share large enough.

        One that is too small grows to the double at least, so that it seldom happens. Shapes that
        were bound to it stay so, which takes less than the new one does, as long as their buffers
        are within the bound of what is kept for shapes and there is room.
        """
        for number, size in enumerate(sizes):
            before = self._slots[number].size if number < len(self._slots) else 0
            if number == len(self._slots) or before < size:
                try:
                    made = self._larger(size, before)
                except DeviceMemoryError:
                    if not self._outgrown:
                        raise
                    self._forget_outgrown(0)
                    made = self._larger(size, before)
                self._outgrown += self._slots[number : number + 1]
                self._slots[number : number + 1] = [made]
        self._forget_outgrown(self._compiled.shape_cache_bytes)

    def _larger(self, nbytes: int, before: int) -> Any:
        device = self._device
        return grown(device.pool.take, nbytes, before, device.limits.allocation_bytes)

    def _forget_outgrown(self, most: int) -> None:
        """Gives outgrown buffers back until they have at most so many bytes.

        Shapes that are bound to them are forgotten, those used least recently first.
        """
        outgrown = {id(buffer): buffer for buffer in self._outgrown}
        held: dict[int, Any] = {}
        kept = list(zip(self.bound_plans, self.bound_plans.values(), strict=True))
        for key, bound in reversed(kept):
            also = {**held, **{id(one): one for one in bound.slots if id(one) in outgrown}}
            if sum(buffer.size for buffer in also.values()) > most:
                self.bound_plans.discard(key)
            else:
                held = also
        for key, buffer in outgrown.items():
            if key not in held:
                self._device.pool.give(buffer)
        self._outgrown = list(held.values())


class _ElementsNeededError(Exception):
    """What is launched depends on the elements of an input."""


def _no_elements(index: int) -> Array:
    raise _ElementsNeededError
