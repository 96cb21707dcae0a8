"""Compiled models and runners of the OPENCL devices."""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from partita import CompiledModel, Model, Port, ProfilingInfo, Runner, Tensor
from partita.contract.profiling import Status
from partita.contract.query import QueryResult
from partita.errors import CompileError, DeviceMemoryError, InferError
from partita.lowering import (
    Array,
    Graph,
    Node,
    OpRecord,
    Program,
    Specialiser,
    Target,
    fold_constants,
    fuse,
    fuse_residuals,
    lower,
)
from partita.lowering.nhwc.conversion import Shapes
from partita.tensors.layout import Layout
from partita_opencl.device.buffer_pool import runtime_error
from partita_opencl.device.device import Device, find_device
from partita_opencl.device.device_tensor import as_agreed, in_memory
from partita_opencl.drivers.fork_guard import refuse_after_fork
from partita_opencl.emitters.operator_table import TABLE, emitter_for, family_of
from partita_opencl.launches.steps import Chain
from partita_opencl.launches.work_sizes import Tuning
from partita_opencl.passes.half_precision import (
    CASTS,
    HALF,
    cast_name,
    casts,
    compute_in_half,
    half_ports,
)
from partita_opencl.passes.nhwc import channels_last
from partita_opencl.passes.stream_fusion import Merger
from partita_opencl.properties import OpenClProperties, Precision
from partita_opencl.query import refusals, takes
from partita_opencl.runtime.bound_plan import BoundPlan, StalledError
from partita_opencl.runtime.execution_plan import Constants, Plan
from partita_opencl.runtime.host_folding import fold
from partita_opencl.trials.kernel_trial import Fitness, fitness, mode_of, objection
from partita_opencl.trials.matrix_unit_checks import Units

_log = logging.getLogger(__name__)

_PLANS = 32
"""Shapes whose plans a compiled model keeps."""

_BOUND = 8
"""Shapes for which a request keeps kernels and memory."""

Spec = tuple[tuple[int, ...], np.dtype[Any]]


class OpenClCompiledModel(CompiledModel):
    """A model lowered, folded and fused; each set of shapes gets a plan when it occurs.

    Raises:
        UnsupportedOpError: An operation is not taken.
        CompileError: The driver refuses a kernel, or the model is too large for the device.
        DeviceUnavailableError: The device cannot be opened.
    """

    def __init__(self, model: Model, properties: OpenClProperties, device: str) -> None:
        super().__init__(model, properties, device)
        self.target: Device = find_device(properties.DEVICE_ID)
        self.fuse_chains = properties.FUSE_ELEMENTWISE
        graph = lower(model)
        own_halves = any(v.dtype == HALF for n in graph.nodes for v in n.outputs if v)
        precision = properties.INFERENCE_PRECISION_HINT
        half = precision in (Precision.F16, Precision.BF16)
        triples = precision is Precision.BF16X3
        tuning = Tuning.of(self.target.limits, properties.TILING, half=half)
        bfloat = precision is Precision.BF16 and not own_halves
        self._tuning = replace(tuning, device=self.target.identity, bfloat=bfloat, triples=triples)
        self.objection = ""
        halves = half or own_halves
        if halves or triples:
            self._tuning, self.objection = _tried(self._tuning, self.target)
        if not halves or properties.PERF_COUNT:
            # Of a kernel that computes many operations, no clock tells how long each takes.
            self._tuning = replace(self._tuning, resident_groups=0)
        self._merger = Merger() if half and self._tuning.matrix_units else None
        self._mode = mode_of(self.target, properties, graph)
        reasons = refusals(graph, lambda _, families: fitness(self.target, self._mode, families))
        answer = QueryResult.of(device, {op.name: reasons.get(op.name) for op in model.ops})
        answer.require_all(model)
        self._tuning = replace(self._tuning, form=self._fitness("elementwise").form)
        toolkit = Target(
            emitter_for(self._tuning, device, self._fitness),
            allow_split=False,
            fold=fold,
            refine=self._refine if halves and self._tuning.matrix_units else None,
        )
        fold_constants(graph, toolkit)
        fuse(graph, accepts=self._accepts)
        self._half = half
        self._graph = graph
        self.laid_out: Mapping[Port, Layout] = {}
        self.specialiser = self._specialiser(toolkit)
        self._weights = Constants(self.target)
        self._plans: OrderedDict[int, Plan] = OrderedDict()
        self._lock = threading.Lock()
        self._prepare()

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """Two where host and device work side by side, so that copies overlap computing."""
        return 1 if self.target.limits.is_cpu else 2

    def layouts(self) -> Mapping[Port, Sequence[Layout]]:
        """Halves, where the model is computed in them."""
        return (
            half_ports(self._graph, self.inputs, self.outputs)
            if self._half and not self._tuning.bfloat
            else {}
        )

    def with_layouts(self, layouts: Mapping[Port, Layout]) -> OpenClCompiledModel:
        """The same with halves at some ports; weights are shared."""
        other = copy.copy(self)
        CompiledModel.__init__(other, self.model, self.properties, self.device)
        other.laid_out = dict(layouts)
        other.specialiser = other._specialiser(self.specialiser.target)
        other._plans = OrderedDict()
        other._lock = threading.Lock()
        other._prepare()
        return other

    def _specialiser(self, toolkit: Target) -> Specialiser:
        """Programs of the graph in the precision that was asked for."""
        graph = self._graph
        if self._half:
            graph = graph.copy()
            compute_in_half(
                graph,
                [port.index for port in self.laid_out if port.is_input],
                [port.index for port in self.laid_out if not port.is_input],
            )
        return Specialiser(graph, toolkit)

    def create_runner(self) -> Runner:
        """A runner with a queue and kernels of its own."""
        return OpenClRunner(self)

    def plan(self, program: Program) -> Plan:
        """The plan of a program; made once, kept for the shapes used last."""
        with self._lock:
            # A plan holds its program, so that no other program can have the same id.
            found = self._plans.get(id(program))
            if found is None:
                self._require_chains(program)
                found = Plan(program, self.target, self._tuning, self._weights, self.fuse_chains)
                self._plans[id(program)] = found
                if len(self._plans) > _PLANS:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(id(program))
            return found

    def _fitness(self, family: str) -> Fitness:
        """What the device can do with a family of kernels."""
        return fitness(self.target, self._mode, [family])[family]

    def _require_chains(self, program: Program) -> None:
        """Raises if a program has element-wise steps and the device does not compute such."""
        reason = self._fitness("elementwise").reason
        if reason and any(isinstance(step.fn, Chain) for step in program.steps):
            raise CompileError(
                f"Model '{self.model.name}' has element-wise steps, which device '{self.device}' "
                f"does not compute: {reason}. Run it on another device."
            )

    def stop_waiting(self) -> None:
        """From now on, no kernel's groups wait for one another."""
        _log.warning(
            "Device '%s' did not hold all groups of a kernel at a time; model '%s' is computed "
            "by a kernel per operation from now on.",
            self.device,
            self.model.name,
        )
        with self._lock:
            self._tuning = replace(self._tuning, resident_groups=0)
            self._plans.clear()

    def _refine(self, graph: Graph, shapes: Shapes) -> None:
        """What is done to the graph when its shapes are known."""
        fuse_residuals(graph, shapes, self._accepts)
        if self._merger is not None:
            self._merger.run(graph, shapes, self._accepts)
        channels_last(graph, shapes, narrowed=self._tuning.half)

    def _accepts(self, node: Node) -> bool:
        """Whether there is a kernel for a node that fusion wants to make."""
        if node.kind == "partita::Attention" and self._merger is None:
            return False
        entry = TABLE.find(node.domain, node.op_type, node.version)
        return (
            takes(node) and entry is not None and not self._fitness(family_of(node, entry)).reason
        )

    def _memory_dtype(self, port: Port) -> np.dtype[Any] | None:
        layout = self.laid_out.get(port)
        return port.dtype if layout is None else layout.dtype

    def _prepare(self) -> None:
        """Plans and builds now, if the shapes are known now."""
        specs: list[Spec] = [
            (port.shape, self._memory_dtype(port))  # type: ignore[misc]  # static
            for port in self.inputs
            if port.is_static and port.dtype is not None
        ]
        if len(specs) < len(self.inputs):
            return
        try:
            self.plan(self.specialiser.program(specs, _not_yet))
        except _NeedsInput:
            return
        except DeviceMemoryError as error:
            raise CompileError(f"Model '{self.model.name}' is too large: {error}") from error


def _tried(tuning: Tuning, device: Device) -> tuple[Tuning, str]:
    """The tuning without those matrix units that do not compute rightly, and why they do not."""
    why = ""
    if tuning.matrix_units and (why := objection(device)):
        tuning = replace(tuning, matrix_units=False, warpgroups=False)
    if tuning.warpgroups and (why := objection(device, Units.WARPGROUP)):
        tuning = replace(tuning, warpgroups=False)
    if not tuning.warpgroups or (
        tuning.copy_engine and (why := objection(device, Units.COPY_ENGINE))
    ):
        tuning = replace(tuning, copy_engine=False)
    if not tuning.matrix_units or objection(device, Units.RESIDENT):
        tuning = replace(tuning, resident_groups=0)
    return tuning, why


class _NeedsInput(Exception):  # noqa: N818  # a signal, not an error
    """The program hangs on the elements of an input."""


def _not_yet(index: int) -> Array:
    raise _NeedsInput


class OpenClRunner(Runner):
    """One request: an in-order queue, and per set of shapes the kernels with their arguments."""

    def __init__(self, compiled: OpenClCompiledModel) -> None:
        import pyopencl as cl

        self._compiled = compiled
        self._device = compiled.target
        self._profiles = compiled.properties.PERF_COUNT
        flags: Any = cl.command_queue_properties.PROFILING_ENABLE if self._profiles else 0
        self._queue = cl.CommandQueue(self._device.context, self._device.handle, flags)
        self._bound: OrderedDict[int, BoundPlan] = OrderedDict()
        self._slots: list[Any] = []
        self._outgrown: list[Any] = []
        self._times: list[tuple[OpRecord, str, float]] = []

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Computes the outputs; see :class:`~partita.Runner`. Host tensors are uploaded."""
        import pyopencl as cl

        refuse_after_fork(InferError)
        layouts, wanted = self._compiled.laid_out, outputs
        if layouts:
            inputs, outputs = self._as_in_memory(inputs, outputs)
        specs = [(tensor.shape, tensor.dtype) for tensor in inputs]
        program = self._compiled.specialiser.program(specs, lambda i: inputs[i].numpy())
        plan = self._compiled.plan(program)
        events: list[tuple[OpRecord, str, Any]] | None = [] if self._profiles else None
        try:
            try:
                results = self._bind(plan).run(self._queue, inputs, outputs, events)
            except StalledError:
                self._bound.clear()
                self._compiled.stop_waiting()
                plan = self._compiled.plan(program)
                results = self._bind(plan).run(self._queue, inputs, outputs, events)
        except cl.Error as error:
            raise runtime_error(error, self._compiled.device, plan.nbytes) from error
        if events is not None:
            self._times = [
                (op, kernel, (event.profile.end - event.profile.start) / 1e3)
                for op, kernel, event in events
            ]
        return results if not layouts else self._as_agreed(results, outputs, wanted)

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

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """One record per operation of the model: kernel time on the device, by its own clock.

        Products that stepped back to portable kernels say why.
        """
        if not self._profiles:
            return ()
        ops = [(op.name, op.op_type) for op in self._compiled.model.ops]
        ops += [(name, "Permute") for name in casts(self._compiled.specialiser.graph)]
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
                *(name, kind, "+".join(kernels[name]), Status.EXECUTED, spent[name]),
                covers=tuple(covers[name]),
            )
            if name in spent
            else ProfilingInfo(name, kind, status=Status.OPTIMIZED_OUT)
            for name, kind in ops
        ]

    def close(self) -> None:
        """Gives the buffers back and drops kernels and outputs."""
        self._bound.clear()
        for buffer in (*self._slots, *self._outgrown):
            self._device.pool.give(buffer)
        self._slots, self._outgrown = [], []

    def _bind(self, plan: Plan) -> BoundPlan:
        found = self._bound.get(id(plan))
        if found is None:
            if len(self._bound) >= _BOUND:
                self._bound.popitem(last=False)
            found = BoundPlan(plan, self._device, self._compiled.device, self._take_slot)
            self._bound[id(plan)] = found
        self._bound.move_to_end(id(plan))
        return found

    def _take_slot(self, number: int, nbytes: int) -> Any:
        """The buffer that all shapes of this request share; a larger one if it is too small."""
        while number >= len(self._slots):
            self._slots.append(self._device.pool.take(nbytes))
        if self._slots[number].size < nbytes:
            self._outgrown.append(self._slots[number])
            self._slots[number] = self._device.pool.take(nbytes)
        return self._slots[number]
