"""The compiled HETERO model: submodels, the plan that joins them, and the runner of one request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita import blob
from partita.compiled_model import CompiledModel, Runner
from partita.explain import Explanation
from partita.lowering import memory
from partita.model import Model, is_static
from partita.plugin import CoreAPI
from partita.profiling import ProfilingInfo
from partita.tensor import HostTensor, Tensor
from partita_hetero.executor import EXECUTORS, Schedule, timed
from partita_hetero.properties import HeteroProperties
from partita_hetero.submodels import Submodel
from partita_hetero.transfer import PermuteKind, PermuteStep, Plan, RunStep


class HeteroCompiledModel(CompiledModel):
    """Submodels on their devices, joined by a plan.

    Args:
        model: The whole model.
        properties: HETERO's properties, with the final device list.
        device: HETERO's own name.
        core: For moving tensors.
        submodels: In the order of their numbers.
        compiled: The compiled model of each.
        plan: What a request does.
        constants: Outputs of the model that are weights: name to array.
        explanation: What ``explain`` returns.
    """

    properties: HeteroProperties

    def __init__(
        self,
        model: Model,
        properties: HeteroProperties,
        device: str,
        core: CoreAPI,
        submodels: Sequence[Submodel],
        compiled: Sequence[CompiledModel],
        plan: Plan,
        constants: dict[str, np.ndarray[Any, Any]],
        explanation: Explanation,
    ) -> None:
        super().__init__(model, properties, device)
        self.core = core
        self.submodels = submodels
        self.compiled = compiled
        self.plan = plan
        self.constants = constants
        self._explanation = explanation
        linear = properties.HETERO_EXECUTOR == "LINEAR"
        self.arena = _plan_arena(plan, submodels, compiled, reuse=linear)
        self.schedule = Schedule(plan.steps)

    def create_runner(self) -> Runner:
        """A runner with runners of its own on every device."""
        return HeteroRunner(self)

    def explain(self) -> Explanation:
        """Where every operation runs and why, what crosses, and what went wrong on the way."""
        return self._explanation

    @property
    def execution_devices(self) -> list[str]:
        """The devices that run something, in order of first use."""
        return list(dict.fromkeys(submodel.device for submodel in self.submodels))

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """One per device, so that each can work on another request."""
        return max(1, len(self.execution_devices))

    def extra_properties(self) -> dict[str, Any]:
        """``HETERO_NUMBER_OF_SUBMODELS``."""
        return {"HETERO_NUMBER_OF_SUBMODELS": len(self.submodels)}

    def export_model(self) -> bytes:
        """The model with its placement; importing compiles the same submodels again."""
        return blob.pack(
            device=self.device,
            header={
                "properties": self.properties.model_dump(mode="json", exclude_unset=True),
                "placement": {
                    op.name: op.device for op in self._explanation.ops if op.subgraph is not None
                },
            },
            model=self.model,
        )


class HeteroRunner(Runner):
    """One request: a slot per tensor that crosses, filled step by step."""

    def __init__(self, compiled: HeteroCompiledModel) -> None:
        self._core = compiled.core
        self._steps = compiled.plan.steps
        self._values = compiled.plan.slot_values
        self._schedule = compiled.schedule
        self._execute = EXECUTORS[compiled.properties.HETERO_EXECUTOR]
        self._inputs = len(compiled.inputs)
        self._runners = {
            submodel.number: part.create_runner()
            for submodel, part in zip(compiled.submodels, compiled.compiled, strict=True)
        }
        self._slots: list[Tensor | None] = [None] * compiled.plan.slots
        self._prepared = _prepare(compiled.arena, compiled.plan.slots)
        self._outputs = [
            (slot, None if slot is not None else HostTensor(compiled.constants[port.name]))
            for slot, port in zip(compiled.plan.outputs, compiled.outputs, strict=True)
        ]
        self._count = compiled.properties.PERF_COUNT
        self._times = [0.0] * len(self._steps)
        self._cancelled = False

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs all steps with the chosen executor."""
        self._cancelled = False
        self._slots[: self._inputs] = inputs
        step = self._timed_step if self._count else self._step
        self._execute(self._schedule, step, lambda: self._cancelled)
        results: list[Tensor] = []
        for slot, constant in self._outputs:
            tensor = constant if slot is None else self._slots[slot]
            if tensor is None:
                raise AssertionError("a slot of an output was not written")  # the plan is broken
            if slot is not None and slot < self._inputs:
                tensor = HostTensor(np.array(tensor.numpy()))  # an input that is an output
            results.append(tensor)
        self._slots[: self._inputs] = [None] * self._inputs
        return results

    def _step(self, index: int) -> None:
        step = self._steps[index]
        slots = self._slots
        if isinstance(step, RunStep):
            results = self._runners[step.submodel].run(
                [slots[slot] for slot in step.reads],  # type: ignore[misc]  # all were written
                [self._prepared[slot] for slot in step.writes],
            )
            for slot, tensor in zip(step.writes, results, strict=True):
                slots[slot] = tensor
            return
        source = slots[step.reads[0]]
        if source is None:
            raise AssertionError("a slot was read before it was written")  # the plan is broken
        if step.kind is PermuteKind.DOWNLOAD:
            slots[step.writes[0]] = HostTensor(source.numpy())
        else:
            slots[step.writes[0]] = self._core.transfer_to(step.device, source)

    def _timed_step(self, index: int) -> None:
        self._times[index] = timed(self._step, index)

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of all submodels that keep any, and of the Permute steps if HETERO counts."""
        infos: list[ProfilingInfo] = []
        for index, step in enumerate(self._steps):
            if isinstance(step, RunStep):
                for number, info in enumerate(self._runners[step.submodel].profiling_info(), 1):
                    infos.append(
                        ProfilingInfo(
                            f"subgraph{step.submodel}: {number}. {info.node_name}",
                            info.node_type,
                            info.exec_type,
                            info.status,
                            info.real_time_us,
                            info.cpu_time_us,
                        )
                    )
            elif self._count:
                infos.append(_permute_info(step, self._times[index]))
        return infos

    def cancel(self) -> None:
        """Stops after the steps that are running."""
        self._cancelled = True
        for runner in self._runners.values():
            runner.cancel()

    def close(self) -> None:
        """Closes the submodels' runners."""
        for runner in self._runners.values():
            runner.close()


def _permute_info(step: PermuteStep, microseconds: float) -> ProfilingInfo:
    return ProfilingInfo(
        step.name, "Permute", step.kind, real_time_us=microseconds, cpu_time_us=microseconds
    )


Arena = tuple[int, dict[int, tuple[int, np.dtype[Any], tuple[int, ...]]]]
"""Size in bytes, and for each slot that lies in it: offset, dtype and shape."""


def _plan_arena(
    plan: Plan,
    submodels: Sequence[Submodel],
    compiled: Sequence[CompiledModel],
    reuse: bool,
) -> Arena:
    """Places host tensors of known shape that cross; with ``reuse`` dead ones share memory."""
    ports = {
        (submodel.number, i): port
        for submodel, part in zip(submodels, compiled, strict=True)
        for i, port in enumerate(part.outputs)
    }
    host = set(plan.host_slots)
    known: dict[int, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        for slot in step.reads:
            last[slot] = index
        if isinstance(step, RunStep):
            for i, slot in enumerate(step.writes):
                port = ports[step.submodel, i]
                if (
                    slot in host
                    and is_static(port.shape)
                    and port.dtype is not None
                    and not port.dtype.hasobject
                ):
                    known[slot] = (0, port.dtype, port.shape)
                    first[slot] = index
    for output in plan.outputs:
        if output is not None:
            last[output] = len(plan.steps)
    order = list(known)
    end = len(plan.steps)
    intervals = [
        (
            known[slot][1].itemsize * math.prod(known[slot][2]),
            first[slot] if reuse else 0,
            last.get(slot, first[slot]) if reuse else end,
        )
        for slot in order
    ]
    offsets, size = memory.plan(intervals)
    return size, {
        slot: (offset, known[slot][1], known[slot][2])
        for slot, offset in zip(order, offsets, strict=True)
    }


def _prepare(arena: Arena, slots: int) -> list[Tensor | None]:
    """The tensors of one request, as views of one block."""
    size, layout = arena
    block = np.empty(size + memory.ALIGNMENT, np.uint8)
    start = -block.ctypes.data % memory.ALIGNMENT
    prepared: list[Tensor | None] = [None] * slots
    for slot, (offset, dtype, shape) in layout.items():
        nbytes = dtype.itemsize * math.prod(shape)
        view = block[start + offset : start + offset + nbytes]
        prepared[slot] = HostTensor(view.view(dtype).reshape(shape))
    return prepared
