"""What a request runs: the compiled submodels and the plan that joins them. Never changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.compiled_model import CompiledModel
from partita.explain import Explanation
from partita.lowering import memory
from partita.model import is_static
from partita.tensor import HostTensor, Tensor
from partita_hetero.executor import Schedule
from partita_hetero.submodels import Submodel
from partita_hetero.transfer import Plan, RunStep

Layout = dict[int, tuple[int, np.dtype[Any], tuple[int, ...]]]
"""For each slot that lies in the arena: offset, dtype and shape."""


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
        layout: Where they lie in it.
    """

    submodels: Sequence[Submodel]
    compiled: Sequence[CompiledModel]
    plan: Plan
    schedule: Schedule
    constants: dict[str, np.ndarray[Any, Any]]
    explanation: Explanation
    arena_bytes: int
    layout: Layout

    def prepare(self) -> list[Tensor | None]:
        """Allocates one request's intermediate host tensors, per slot, as views of one block."""
        block = np.empty(self.arena_bytes + memory.ALIGNMENT, np.uint8)
        start = -block.ctypes.data % memory.ALIGNMENT
        prepared: list[Tensor | None] = [None] * self.plan.slots
        for slot, (offset, dtype, shape) in self.layout.items():
            nbytes = dtype.itemsize * math.prod(shape)
            view = block[start + offset : start + offset + nbytes]
            prepared[slot] = HostTensor(view.view(dtype).reshape(shape))
        return prepared


def plan_arena(
    plan: Plan,
    submodels: Sequence[Submodel],
    compiled: Sequence[CompiledModel],
    reuse: bool,
) -> tuple[int, Layout]:
    """Places host tensors of known shape that cross; with ``reuse`` dead ones share memory.

    Reuse is right only where steps run in the plan's order, one at a time.
    """
    ports = {
        (submodel.number, i): port
        for submodel, part in zip(submodels, compiled, strict=True)
        for i, port in enumerate(part.outputs)
    }
    host = set(plan.host_slots)
    end = len(plan.steps)
    known: dict[int, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        for slot in step.reads:
            last[slot] = index
        if not isinstance(step, RunStep):
            continue
        for i, slot in enumerate(step.writes):
            port = ports[step.submodel, i]
            if slot not in host or port.dtype is None or port.dtype.hasobject:
                continue
            if is_static(port.shape):
                known[slot] = port.dtype, port.shape
                first[slot] = index
    for output in plan.outputs:
        if output is not None:
            last[output] = end
    intervals = [
        (
            dtype.itemsize * math.prod(shape),
            first[slot] if reuse else 0,
            last.get(slot, first[slot]) if reuse else end,
        )
        for slot, (dtype, shape) in known.items()
    ]
    offsets, size = memory.plan(intervals)
    return size, {
        slot: (offset, dtype, shape)
        for (slot, (dtype, shape)), offset in zip(known.items(), offsets, strict=True)
    }
