"""Makes an assembly of compiled submodels: plans transfers and memory, and explains the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.contract.device_model import DeviceModel, explanation_of, requests_at_once
from partita.contract.explanation import Explanation
from partita.contract.query import QueryResult
from partita.model.model import Model
from partita_hetero.compile import transfer_plan
from partita_hetero.compile.executable import Assembly, plan_arena
from partita_hetero.compile.layout_negotiation import Settlement
from partita_hetero.compile.submodel_compiler import SubmodelCompiler
from partita_hetero.executors import Executor, Schedule
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel
from partita_hetero.placement import explanation_rows
from partita_hetero.placement.by_priority import Placement
from partita_hetero.placement.decision import ChosenPlacement
from partita_hetero.placement.value_sizes import sizes_of


@dataclass(frozen=True)
class Placed:
    """A placement and where it comes from, for the explanation.

    Attributes:
        placement: A device for every operation.
        submodels: Its submodels.
        choice: What the placement comes from, if measurements decided it.
        answers: What devices have said they take.
        order: The devices, preferred ones first.
        notes: What went wrong, and what applications are to know.
    """

    placement: Placement
    submodels: Sequence[Submodel]
    choice: ChosenPlacement | None
    answers: Mapping[str, QueryResult]
    order: Sequence[str]
    notes: Sequence[str]


def assemble(
    model: Model,
    op_graph: OpGraph,
    placed: Placed,
    settlement: Settlement,
    compiler: SubmodelCompiler,
    executor: Executor,
) -> Assembly:
    """Joins compiled submodels.

    Args:
        model: The whole model.
        op_graph: Its operations.
        placed: Its submodels and where they come from.
        settlement: Their compiled models, with the layouts that they have agreed on.
        compiler: What compiled them; knows which memories devices share.
        executor: How requests will run.
    """
    submodels, compiled = placed.submodels, settlement.compiled
    outputs = [port.name for port in model.outputs]
    plan = transfer_plan.plan(
        submodels,
        [port.name for port in model.inputs],
        outputs,
        compiler.memory_of,
        compiler.can_share,
        sizes_of(model, settlement.layouts),
        settlement.layouts,
        settlement.casts,
    )
    initializers = model.ir.graph.initializers
    constants = {
        name: initializers[name].const_value.numpy()  # type: ignore[union-attr]  # has a value
        for name, slot in zip(outputs, plan.outputs, strict=True)
        if slot is None
    }
    explanation = Explanation(
        model.name,
        explanation_rows.rows(
            op_graph, placed.placement, submodels, placed.choice, placed.order, placed.answers
        ),
        [submodel.device for submodel in submodels],
        plan.boundaries,
        [*placed.notes, *_notes_of_devices(submodels, compiled)],
        placed.choice.decision if placed.choice else None,
    )
    arena_bytes, places = plan_arena(
        plan, submodels, compiled, settlement.layouts, reuse=executor.keeps_order
    )
    return Assembly(
        submodels=submodels,
        compiled=compiled,
        plan=plan,
        schedule=_schedule(plan, submodels, compiled),
        constants=constants,
        explanation=explanation,
        arena_bytes=arena_bytes,
        places=places,
    )


def _notes_of_devices(submodels: Sequence[Submodel], compiled: Sequence[DeviceModel]) -> list[str]:
    """What devices tell of their submodels, once each."""
    found = (
        f"{submodel.device}: {note}"
        for submodel, device_model in zip(submodels, compiled, strict=True)
        for note in explanation_of(device_model).notes
    )
    return list(dict.fromkeys(found))


def _schedule(
    plan: transfer_plan.Plan, submodels: Sequence[Submodel], compiled: Sequence[DeviceModel]
) -> Schedule:
    """What waits for what, and for room on its device."""
    device_of = {submodel.number: submodel.device for submodel in submodels}
    capacity: dict[str, int] = {}
    for submodel, device_model in zip(submodels, compiled, strict=True):
        room = requests_at_once(device_model)
        capacity[submodel.device] = min(room, capacity.get(submodel.device, room))
    devices = {
        index: device_of[step.submodel]
        for index, step in enumerate(plan.steps)
        if isinstance(step, transfer_plan.RunStep)
    }
    return Schedule(plan.steps, devices=devices, capacity=capacity)
