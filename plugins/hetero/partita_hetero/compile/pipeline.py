"""Compiling one model: place, cut, compile the parts side by side, and again where one fails."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.contract.device_model import DeviceModel
from partita.contract.explanation import Boundary, Explanation
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import (
    CompileError,
    DeviceError,
    InfeasiblePlanError,
    PartitaError,
    PluginError,
    UnsupportedOpError,
)
from partita.model.model import Model, is_static, numpy_dtype, value_shape
from partita.system.processors import usable_processors
from partita.tensors.layout import Layout
from partita.tensors.tensor import HOST
from partita_hetero.compile import transfer_plan
from partita_hetero.compile.executable import Assembly, plan_arena
from partita_hetero.compile.layout_negotiation import Negotiation, Settlement
from partita_hetero.partition import op_graph, partitioner, submodels
from partita_hetero.partition.submodels import Submodel
from partita_hetero.placement import by_priority, constraints, explanation_rows, memory_limits
from partita_hetero.placement.by_priority import Placement
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.reports import graphviz
from partita_hetero.runtime.executor import Schedule

if TYPE_CHECKING:
    from partita_hetero.placement.decision import Choice

_log = logging.getLogger("partita.hetero")

SPARE_SUBMODELS = 64
"""So many compiled submodels are kept that no assembly uses, for failures that come back."""

Exclusions = Mapping[tuple[int, str], Reason]
"""Operations that a device took and then failed on, with the reason."""


class Compilation:
    """One model on one device list; can be assembled again with more exclusions.

    Submodels that do not change between assemblies are compiled once.

    Args:
        model: The model; affinities in it are pins.
        devices: The device list.
        pins: Operation name to device, instead of affinities, pins and lock file.

    Raises:
        DeviceNotFoundError: A pin names a device that does not exist.
        PlanError: A pin or the lock file cannot be used.
    """

    def __init__(
        self, model: Model, devices: DeviceList, pins: Mapping[str, str] | None = None
    ) -> None:
        self.model = model
        self.devices = devices
        self.wiring = op_graph.build(model)
        self.sizes = _sizes(model, {})
        self._answers: dict[str, QueryResult] = {}
        if pins is None:
            self.wanted = constraints.gather(model, self.wiring, devices, self.ask)
        else:
            self.wanted = constraints.by_name(pins, self.wiring, devices)
        self.pins = {op: pin.device for op, pin in self.wanted.pins.items()}
        self.wanted.notes.extend(self._unknown_sizes())
        self.choice: Choice | None = None
        self.inexact: dict[tuple[int, str], Reason] | None = None
        self._done: dict[Any, DeviceModel] = {}
        self._memories: dict[str, str] = {}
        self._states: Mapping[str, Mapping[str, Any]] = {}
        self._negotiation = Negotiation()
        self._lock = threading.Lock()

    def _unknown_sizes(self) -> list[str]:
        """A note on what memory limits cannot count.

        Raises:
            InfeasiblePlanError: ``STRICT`` is set: nobody can promise that such limits are kept.
        """
        unknown = (
            memory_limits.uncounted(self.wiring, self.sizes) if self.devices.memory_limits else []
        )
        if not unknown:
            return []
        note = (
            f"Memory limits count {len(unknown)} values by their known dimensions alone, since "
            f"their shapes are not fixed, '{unknown[0]}' first; a run may need more."
        )
        if self.devices.properties.STRICT:
            raise InfeasiblePlanError(
                f"{note} Fix the shapes of the inputs with model.reshape(...), or set STRICT=NO."
            )
        _log.warning("%s", note)
        return [note]

    def assemble(self, excluded: Exclusions, notes: Sequence[str] = ()) -> Assembly:
        """Places and compiles.

        A device that claims operations and then fails to compile them loses them to the next
        device of the list, with the reason recorded; with ``STRICT`` its error is raised.

        Args:
            excluded: What failed before.
            notes: What to say of it in the explanation.

        Raises:
            UnsupportedOpError: No device takes an operation.
            CompileError: ``STRICT`` is set and a device failed.
        """
        with self._lock:  # requests that failed at the same time come one after another
            standing = [note for note in self.wanted.notes if note not in notes]
            return self._assemble(dict(excluded), [*standing, *notes])

    def _assemble(self, out: dict[tuple[int, str], Reason], remarks: list[str]) -> Assembly:
        if self.choice is None and self.devices.properties.HETERO_SCHEDULE == "COST":
            self.choice = self._choose(out, remarks)
        if self.inexact is None and self.devices.properties.HETERO_ACCURACY_BUDGET:
            self.inexact = self._within_budget(out, remarks)
        out |= self.inexact or {}
        choice = self.choice
        while True:
            placement = self.place(out, choice.wishes if choice else {})
            assembly = self.build(placement, out, remarks, choice)
            if assembly is not None:
                self._forget_old(assembly.submodels)
                self._report(assembly)
                return assembly

    def _choose(self, out: dict[tuple[int, str], Reason], remarks: list[str]) -> Choice:
        from partita_hetero.tuning.scheduler import Scheduler

        return Scheduler(self, out, remarks).choose()

    def _within_budget(
        self, out: Mapping[tuple[int, str], Reason], remarks: list[str]
    ) -> dict[tuple[int, str], Reason]:
        """What devices must lose for the accuracy budget; where times decide, they decide anew."""
        from partita_hetero.tuning.accuracy_budget import Accuracy

        accuracy = Accuracy(self)
        inexact: dict[tuple[int, str], Reason] = {}
        for decisions_left in (2, 1, 0):
            wishes = self.choice.wishes if self.choice else {}
            found = accuracy.fit(wishes, {**out, **inexact})
            inexact |= found.excluded
            remarks += [note for note in found.notes if note not in remarks]
            if self.choice is None or not found.changes or not decisions_left:
                break
            self.choice = self._choose({**out, **inexact}, remarks)
        return inexact

    def restore(
        self,
        placement: Placement,
        states: Mapping[str, Mapping[str, Any]],
        notes: Sequence[str] = (),
    ) -> Assembly:
        """Compiles a placement that an earlier compile found; asks no device what it takes.

        Args:
            placement: The placement.
            states: Device to what its compiled submodels had exported.
            notes: What to say in the explanation.
        """
        with self._lock:
            self._states = states
            excluded: dict[tuple[int, str], Reason] = {}
            remarks = list(notes)
            assembly = self.build(placement, excluded, remarks)
            self._states = {}
            if assembly is None:
                return self._assemble(excluded, remarks)
            self._forget_old(assembly.submodels)
            self._report(assembly)
            return assembly

    def place(
        self,
        out: Exclusions,
        wishes: by_priority.Wishes,
        order: Sequence[str] | None = None,
    ) -> Placement:
        """A device for every operation: pins first, then wishes, then the devices in order."""
        properties, pins = self.devices.properties, self.wanted.pins
        names = self.devices.names if order is None else order

        def place(full: Exclusions) -> Placement:
            every = {**full, **out}
            return by_priority.place(
                *(self.wiring, names, pins, self.ask, self.devices.welcomes),
                *(every, properties.STRICT, wishes),
            )

        if not self.devices.memory_limits:
            return place({})
        return memory_limits.enforce(
            memory_limits.MemoryModel(
                self.wiring,
                self.sizes,
                lambda device: self.devices.core.device_info(device).memory == HOST,
                "PARALLEL" if properties.HETERO_EXECUTOR == "PARALLEL" else "LATENCY",
            ),
            self.devices.memory_limits,
            lambda op, device: op in pins and pins[op].hard and pins[op].device == device,
            self.wiring.names(),
            place,
        )

    def pieces(self, placement: Placement) -> list[Submodel]:
        """The submodels of a placement."""
        parts = partitioner.partition(
            self.wiring.preds,
            self.wiring.succs,
            placement.device,
            merge_islands=self.devices.properties.HETERO_EXECUTOR != "PARALLEL",
        )
        pieces = submodels.describe(self.wiring, parts)
        if len(pieces) > 1:
            return pieces
        order = [port.name for port in self.model.inputs]
        return [replace(p, inputs=tuple(sorted(p.inputs, key=order.index))) for p in pieces]

    def build(
        self,
        placement: Placement,
        out: dict[tuple[int, str], Reason],
        remarks: list[str],
        choice: Choice | None = None,
        counted: bool = False,
    ) -> Assembly | None:
        """Compiles a placement.

        Args:
            placement: Where everything goes.
            out: Exclusions; those of submodels that cannot be compiled are added.
            remarks: Notes for the explanation; what failed is added.
            choice: What the placement comes from, if measurements decided it.
            counted: Let devices measure every operation.

        Returns:
            The assembly, or ``None`` if a device failed.

        Raises:
            CompileError: ``STRICT`` is set and a device failed.
        """
        pieces = self.pieces(placement)
        failures = self._compile(pieces, counted)
        if not failures:
            settlement = self._negotiation.settle(
                pieces,
                [self._done[piece.key, counted] for piece in pieces],
                {port.name for port in self.model.outputs},
            )
            if not settlement.failures:
                return self._join(placement, pieces, settlement, remarks, choice)
            failures = settlement.failures
        for piece, error in failures:
            if self.devices.properties.STRICT:
                raise CompileError(
                    f"Device '{piece.device}' claimed {len(piece.ops)} operations and failed "
                    f"to compile them: {error}"
                ) from error
            remarks.append(self.remark(piece, "failed to compile", error))
            _log.warning("%s. They go to the next device.", remarks[-1])
            out |= self.exclude(piece, ReasonCode.COMPILE_FAILED, error)
        return None

    def exclude(
        self, piece: Submodel, code: ReasonCode, error: Exception
    ) -> dict[tuple[int, str], Reason]:
        """The exclusions that keep a submodel's operations off its device.

        All of them, unless the device names those that it refuses.
        """
        refused = error.reasons if isinstance(error, UnsupportedOpError) else {}
        named = {
            (op, piece.device): reason
            for op in piece.ops
            if (reason := refused.get(self.wiring.nodes[op].name or ""))
        }
        return named or dict.fromkeys(
            ((op, piece.device) for op in piece.ops), Reason(code, str(error))
        )

    def exclude_device(self, device: str, reason: Reason) -> dict[tuple[int, str], Reason]:
        """The exclusions that leave a device alone altogether."""
        return {(op, device): reason for op in range(len(self.wiring.nodes))}

    def remark(self, piece: Submodel, what: str, error: Exception) -> str:
        """A sentence for the explanation's notes."""
        first = self.wiring.nodes[piece.ops[0]].name
        return (
            f"{piece.device} claimed {len(piece.ops)} operations (from '{first}') and {what} "
            f"them: {error}"
        )

    def compile_anew(self, device: str) -> None:
        """Forgets what was compiled for a device, whose properties have changed."""
        self._done = {key: done for key, done in self._done.items() if key[0][0] != device}

    def forget(self, device: str) -> None:
        """Asks a device anew when it is needed next."""
        with self._lock:
            self._answers.pop(device, None)

    def ask(self, device: str) -> QueryResult:
        """A device's answer; one that cannot answer takes nothing, with its error as the reason."""
        if device not in self._answers:
            try:
                self._answers[device] = self.devices.ask(self.model, device)
            except (DeviceError, PluginError) as error:
                if self.devices.properties.STRICT:
                    raise
                _log.warning("%s could not be asked and gets nothing to do: %s", device, error)
                reason = Reason(ReasonCode.QUERY_FAILED, str(error))
                refusals = {op.name: reason for op in self.model.ops}
                self._answers[device] = QueryResult.of(device, refusals)
        return self._answers[device]

    def _can_share(self, device: str, memory: str) -> bool:
        """Whether a device reads a memory; one that fails to answer is given copies."""
        try:
            return self.devices.core.can_share(device, memory)
        except Exception as error:  # noqa: BLE001  # whatever a broken plugin raises
            _log.warning("%s cannot say what it shares: %s", device, error)
            return False

    def _forget_old(self, pieces: Sequence[Submodel]) -> None:
        """Bounds what failures leave behind; submodels in use are held by their assembly."""
        for piece in pieces:
            self._done[piece.key, False] = self._done.pop((piece.key, False))
        for key in list(self._done)[: -2 * len(pieces) - SPARE_SUBMODELS]:
            del self._done[key]

    def _compile(
        self, pieces: Sequence[Submodel], counted: bool
    ) -> list[tuple[Submodel, PartitaError]]:
        """Compiles what is not done yet, side by side; returns what failed."""
        waiting = [piece for piece in pieces if (piece.key, counted) not in self._done]
        models = [submodels.cut(self.model, self.wiring, piece) for piece in waiting]

        def compile_one(index: int) -> PartitaError | None:
            piece = waiting[index]
            try:
                core = self.devices.core
                if piece.device not in self._memories:  # asking takes some devices a millisecond
                    self._memories[piece.device] = core.device_info(piece.device).memory
                config = self.devices.config(piece.device)
                if counted:
                    config["PERF_COUNT"] = True
                state = self._states.get(piece.device)
                self._done[piece.key, counted] = (
                    core.restore_model(models[index], piece.device, config, state)
                    if state
                    else core.compile_model(models[index], piece.device, config)
                )
            except PartitaError as error:
                return error
            return None

        if len(waiting) <= 1:
            errors = [compile_one(index) for index in range(len(waiting))]
        else:
            workers = min(len(waiting), usable_processors())
            with ThreadPoolExecutor(workers, thread_name_prefix="partita-compile") as pool:
                errors = list(pool.map(compile_one, range(len(waiting))))
        return [(p, e) for p, e in zip(waiting, errors, strict=True) if e is not None]

    def _join(
        self,
        placement: Placement,
        pieces: Sequence[Submodel],
        settlement: Settlement,
        notes: Sequence[str],
        choice: Choice | None,
    ) -> Assembly:
        properties = self.devices.properties
        compiled = settlement.compiled
        outputs = [port.name for port in self.model.outputs]
        plan = transfer_plan.plan(
            pieces,
            [port.name for port in self.model.inputs],
            outputs,
            self._memories.__getitem__,
            self._can_share,
            _sizes(self.model, settlement.layouts),
            settlement.layouts,
            settlement.casts,
        )
        initializers = self.model.ir.graph.initializers
        constants = {
            name: initializers[name].const_value.numpy()  # type: ignore[union-attr]  # has a value
            for name, slot in zip(outputs, plan.outputs, strict=True)
            if slot is None
        }
        told = [*notes, *_notes_of_devices(pieces, compiled)]
        explanation = self._explain(placement, pieces, plan.boundaries, told, choice)
        linear = properties.HETERO_EXECUTOR == "LINEAR"
        arena_bytes, places = plan_arena(plan, pieces, compiled, settlement.layouts, reuse=linear)
        return Assembly(
            pieces,
            compiled,
            plan,
            _schedule(plan, pieces, compiled),
            constants,
            explanation,
            arena_bytes,
            places,
        )

    def _report(self, assembly: Assembly) -> None:
        """Tells of the assembly that will run, in the log and in files if they are wanted."""
        _log.info("%s", assembly.explanation.summary())
        if self.devices.properties.HETERO_DUMP_GRAPH_DOT or graphviz.wanted(os.environ):
            paths = graphviz.write(
                *(Path.cwd(), self.model.name, self.wiring),
                *(assembly.submodels, assembly.explanation),
            )
            _log.info("wrote %s and %s", *paths)

    def _explain(
        self,
        placement: Placement,
        pieces: Sequence[Submodel],
        boundaries: Sequence[Boundary],
        notes: Sequence[str],
        choice: Choice | None,
    ) -> Explanation:
        rows = explanation_rows.rows(
            self.wiring, placement, pieces, choice, self.devices.names, self._answers
        )
        devices = [piece.device for piece in pieces]
        decision = choice.decision if choice else None
        return Explanation(self.model.name, rows, devices, boundaries, list(notes), decision)


def _notes_of_devices(pieces: Sequence[Submodel], compiled: Sequence[DeviceModel]) -> list[str]:
    """What devices tell of their submodels, once each."""
    found = (
        f"{piece.device}: {note}"
        for piece, part in zip(pieces, compiled, strict=True)
        for note in part.explain().notes
    )
    return list(dict.fromkeys(found))


def _schedule(
    plan: transfer_plan.Plan, pieces: Sequence[Submodel], compiled: Sequence[DeviceModel]
) -> Schedule:
    """What waits for what, and for room on its device."""
    device_of = {piece.number: piece.device for piece in pieces}
    capacity: dict[str, int] = {}
    for piece, part in zip(pieces, compiled, strict=True):
        room = max(1, part.optimal_number_of_infer_requests)
        capacity[piece.device] = min(room, capacity.get(piece.device, room))
    lanes = {
        index: device_of[step.submodel]
        for index, step in enumerate(plan.steps)
        if isinstance(step, transfer_plan.RunStep)
    }
    return Schedule(plan.steps, lanes=lanes, capacity=capacity)


def _sizes(model: Model, layouts: Mapping[str, Layout]) -> dict[str, int | None]:
    """Bytes of every value whose type and shape are known, in the layout that it crosses in."""
    sizes: dict[str, int | None] = {}
    graph = model.ir.graph
    for value in [*graph.inputs, *(v for node in graph for v in node.outputs)]:
        dtype, shape = numpy_dtype(value.dtype), value_shape(value)
        if value.name and dtype is not None and is_static(shape):
            layout = layouts.get(value.name)
            sizes[value.name] = (layout.dtype if layout else dtype).itemsize * math.prod(shape)
    return sizes
