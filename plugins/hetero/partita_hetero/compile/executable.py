"""The executable: the compiled submodels, and the plan of steps that a request runs; immutable."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from partita.contract.core_api import CoreAPI
from partita.contract.device_model import DeviceModel, scratch_bytes_of
from partita.contract.explanation import Explanation
from partita.errors import PLUGIN_FAILURES, in_words
from partita.lowering import memory_plan
from partita.model.expected_shapes import InputShapes
from partita.model.model import Port, is_static
from partita.tensors.layout import MemoryLayout
from partita.tensors.layout_tensor import LaidOutTensor
from partita.tensors.tensor import HostTensor, Tensor
from partita_hetero.compile.transfer_plan import PermuteKind, PermuteStep, Plan, RunStep, own_copies
from partita_hetero.executors import Schedule
from partita_hetero.partition.submodels import Submodel

_log = logging.getLogger("partita.hetero")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in the arena, and what it is.

    Attributes:
        offset: Bytes from the arena's start.
        dtype: Element type.
        shape: Dimensions.
        layout: The layout that its devices have agreed on, or ``None`` for C order.
    """

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    layout: MemoryLayout | None

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        if self.layout is not None:
            return self.layout.nbytes(self.shape)
        return self.dtype.itemsize * math.prod(self.shape)

    def tensor(self, arena: np.ndarray[Any, Any]) -> Tensor:
        """The tensor, as a view of an arena's bytes."""
        raw = arena[self.offset : self.offset + self.nbytes]
        if self.layout is None:
            return HostTensor(raw.view(self.dtype).reshape(self.shape))
        array = raw.view(self.layout.dtype).reshape(self.layout.shape_in_memory(self.shape))
        return LaidOutTensor(array, self.dtype, self.layout)


@dataclass(frozen=True)
class Assembly:
    """Submodels on their devices, joined.

    Attributes:
        submodels: In the order of their numbers.
        compiled: The compiled model of each.
        plan: What a request does.
        schedule: Which step waits for which.
        constants: Outputs of the model that are weights: name to array.
        explanation: What ``explain`` returns.
        arena_bytes: Size of the block for intermediate host tensors.
        places: Where they lie in it, by slot.
        planned_for: Input shapes that measurements chose it at, where input shapes vary.
        variants: What requests run whose inputs are nearer to shapes that these were chosen at.
        replicas: The same model on other devices, for some of the requests.
        seats: By seat that a request can have, the replica that runs it; 0 is this assembly.
        shares: By seat, the share of the requests that should have it.
    """

    submodels: Sequence[Submodel]
    compiled: Sequence[DeviceModel]
    plan: Plan
    schedule: Schedule
    constants: dict[str, np.ndarray[Any, Any]]
    explanation: Explanation
    arena_bytes: int
    places: dict[int, Place]
    planned_for: Sequence[InputShapes] = ()
    variants: Sequence[Assembly] = ()
    replicas: Sequence[Assembly] = ()
    seats: Sequence[int] = (0,)
    shares: Sequence[float] = (1.0,)

    def every(self) -> Iterator[Assembly]:
        """All that requests may run: this one, its variants, and the replicas of each."""
        for one in (self, *self.variants):
            yield one
            yield from one.replicas

    def prepare(self, core: CoreAPI) -> list[Tensor | None]:
        """Allocates one request's intermediate host tensors, per slot, as views of one block.

        The block is such that the first device to or from which tensors are copied, if it has
        anything to say, copies them quickly.
        """
        block = self._block(core, self.arena_bytes + memory_plan.ALIGNMENT)
        start = -block.ctypes.data % memory_plan.ALIGNMENT
        prepared: list[Tensor | None] = [None] * self.plan.slots
        for slot, place in self.places.items():
            prepared[slot] = place.tensor(block[start:])
        return prepared

    def scratch(self, one_at_a_time: bool) -> dict[int, np.ndarray[Any, Any]]:
        """Memory to work in, by step; steps that never run at the same time share a block.

        Args:
            one_at_a_time: Whether all steps run one after another; otherwise those of a device do
                that has room for one.
        """
        needed = {
            submodel.number: scratch_bytes_of(device_model)
            for submodel, device_model in zip(self.submodels, self.compiled, strict=True)
        }
        steps: dict[str, list[int]] = {}
        most: dict[str, int] = {}
        for index, step in enumerate(self.plan.steps):
            device = self.schedule.devices[index]
            if isinstance(step, RunStep) and (one_at_a_time or self.schedule.capacity[device] == 1):
                block = "" if one_at_a_time else device
                steps.setdefault(block, []).append(index)
                most[block] = max(most.get(block, 0), needed[step.submodel])
        blocks = {block: np.empty(nbytes, np.uint8) for block, nbytes in most.items() if nbytes}
        return {index: array for block, array in blocks.items() for index in steps[block]}

    def _block(self, core: CoreAPI, nbytes: int) -> np.ndarray[Any, Any]:
        permutes = [step for step in self.plan.steps if isinstance(step, PermuteStep)]
        for device in dict.fromkeys(step.device for step in permutes):
            try:
                block = core.host_memory(device, nbytes)
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                _log.info("%s has no host memory to offer: %s", device, in_words(error))
                continue
            if block is not None:
                return block
        return np.empty(nbytes, np.uint8)


def plan_arena(
    plan: Plan,
    submodels: Sequence[Submodel],
    compiled: Sequence[DeviceModel],
    layouts: Mapping[str, MemoryLayout],
    reuse: bool,
) -> tuple[int, dict[int, Place]]:
    """Places host tensors of known shape that cross; with ``reuse`` dead ones share memory.

    Args:
        plan: Steps with the slots that they read and write.
        submodels: In the order of their numbers.
        compiled: The compiled model of each.
        layouts: By value, those that were agreed on.
        reuse: Right only where steps run in the plan's order, one at a time.
    """
    ports = {
        (submodel.number, i): port
        for submodel, device_model in zip(submodels, compiled, strict=True)
        for i, port in enumerate(device_model.outputs)
    }
    host = set(plan.host_slots)
    uploads, downloads = own_copies(plan)
    computed = {target: source for source, target in downloads.items()}
    end = len(plan.steps)
    port_of: dict[int, Port] = {}
    known: dict[int, Place] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    writer = {slot: index for index, step in enumerate(plan.steps) for slot in step.writes}
    for index, step in enumerate(plan.steps):
        for slot in step.reads:
            last[slot] = last[uploads.get(slot, slot)] = index
        for i, slot in enumerate(step.writes):
            if isinstance(step, RunStep):
                port_of[slot] = ports[step.submodel, i]
            elif step.kind is PermuteKind.DOWNLOAD:
                port_of[slot] = port_of[step.reads[0]]
            port = port_of.get(slot)
            if slot not in host or port is None or port.dtype is None or port.dtype.hasobject:
                continue
            if is_static(port.shape):
                layout = layouts.get(plan.slot_values[slot])
                known[slot] = Place(0, port.dtype, port.shape, layout)
                first[slot] = writer.get(computed.get(slot, slot), index)
    for output in plan.outputs:
        if output is not None:
            last[output] = end
    intervals = [
        (
            place.nbytes,
            first[slot] if reuse else 0,
            last.get(slot, first[slot]) if reuse else end,
        )
        for slot, place in known.items()
    ]
    offsets, size = memory_plan.plan(intervals)
    return size, {
        slot: replace(place, offset=offset)
        for (slot, place), offset in zip(known.items(), offsets, strict=True)
    }
