"""The scheduler of HETERO_SCHEDULE=COST: measures, plans, tries plans, and keeps the fastest."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import partita
from partita.contract.explanation import Decision
from partita.contract.query import Reason, ReasonCode
from partita.errors import InfeasiblePlanError, InferError, PlanError
from partita.progress import Advance, progress
from partita.shapes.sample_shapes import describe
from partita_hetero.cost.cost_table import LAST_RESORT, CostTable, DeviceCosts
from partita_hetero.cost.database import Database
from partita_hetero.cost.fusion_groups import group
from partita_hetero.cost.launch_cost import launch_cost
from partita_hetero.cost.link_cost import direct_cost, link_costs, works_on_host
from partita_hetero.cost.machine_load import MachineLoad
from partita_hetero.cost.signature import Signatures
from partita_hetero.placement.decision import ChosenPlacement, restore, store
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.search.solve import solve
from partita_hetero.planner.simulation.plan import Objective, Plan
from partita_hetero.properties import HeteroProperties
from partita_hetero.tuning.contest import Contest, Outcome
from partita_hetero.tuning.profiler import Profile
from partita_hetero.tuning.replication import interchangeable_devices
from partita_hetero.tuning.sample_inputs import Samples
from partita_hetero.tuning.sized_model import SizedModel

if TYPE_CHECKING:
    from partita_hetero.compile.pipeline import Compilation

_log = logging.getLogger("partita.hetero")

ROUNDS = 3
"""How often a plan is run, its costs are corrected by that, and a new one is made."""

PLANNING_SECONDS = 2.0
"""Limit of one round's planning, for models of a hundred tasks and more."""

Excluded = dict[tuple[int, str], Reason]


class Scheduler:
    """Finds the placement of one model, at one set of input shapes.

    Args:
        compilation: The model, its devices, and what compiles placements.
        sized: The model at the shapes in question.
        out: What devices failed to compile; what fails here is added.
        remarks: Notes for the explanation; what fails here is added.
        present: What was found for other shapes; another placement must be surely faster.
    """

    def __init__(
        self,
        compilation: Compilation,
        sized: SizedModel,
        out: Excluded,
        remarks: list[str],
        present: Sequence[ChosenPlacement] = (),
    ) -> None:
        self._compilation = compilation
        self._sized = sized
        self._present = present
        self._out = out
        self._remarks = remarks
        self._devices = compilation.devices
        self._core = compilation.devices.core
        self._objective = objective_of(self._devices.properties)
        self._load = MachineLoad()
        self._signatures = Signatures(sized.op_graph, varies=bool(sized.shapes))

    @functools.cached_property
    def _samples(self) -> Samples:
        return Samples(self._sized.model, self._devices.properties.HETERO_SAMPLE_INPUTS)

    def choose(self) -> ChosenPlacement:
        """The placement that is fastest, from the database if it was found before."""
        return replace(self._chosen(), shapes=self._sized.shapes)

    def _chosen(self) -> ChosenPlacement:
        obstacle = self._obstacle()
        if obstacle:
            _log.warning("%s", obstacle)
            return ChosenPlacement(
                {}, Decision(self._objective, "priority", [], None, False, [obstacle])
            )
        self._samples.tensors()  # wrong ones are an error now, not only when they are needed
        with Database() as database:
            devices = self._describe(database)
            key = self._key(devices)
            known = database.decision(key)
            before = restore(known, len(self._sized.op_graph.nodes)) if known else None
            if before is not None and not self._load.is_quieter_than(before.busy):
                return before
            table = self._table(devices)
            if all(
                index in table.pins or len(devices) - len(refusals) <= 1
                for index, refusals in enumerate(table.refusals)
            ):
                note = f"COST has nothing to decide: {_settled_by(table)}."
                return ChosenPlacement(
                    {}, Decision(self._objective, "priority", [], None, False, [note])
                )
            with progress(self._doing, len(devices) + ROUNDS + 1) as advance:
                choice = self._decide(table, database, advance)
            if before is not None and before.busy <= choice.busy:
                return before
            database.add_decision(key, store(choice))
            return choice

    def problem(self) -> Problem:
        """The placement problem of the model, with costs as they are measured now.

        Raises:
            PlanError: Nothing can be measured.
        """
        with self._measuring(0) as (contest, _):
            return contest.problem()

    def race(self, solve: Callable[[Problem], Plan]) -> Outcome:
        """What is fastest of the plans and of what needs none, by runs in turns.

        Args:
            solve: Makes a plan of costs; called again with those that its run corrected.

        Raises:
            PlanError: Nothing can be measured.
            InfeasiblePlanError: There is no plan.
            InferError: No placement could be run.
        """
        with self._measuring(ROUNDS) as (contest, advance):
            for _ in range(ROUNDS):
                advance()
                plan = solve(contest.problem())
                if not contest.enter_plan(plan.assignment):
                    break
            contest.enter_replicas(solve)
            try:
                return contest.outcome(plan)
            except InferError as error:
                if not self._sized.is_guess:
                    raise
                raise InferError(
                    f"Nothing runs at {self._sized}, sizes that are assumed: name some that the "
                    "model takes with HETERO_SAMPLE_SHAPES (of commands also with --shape "
                    f"{next(iter(self._sized.shapes))}=...). {error}"
                ) from error

    @contextlib.contextmanager
    def _measuring(self, rounds: int) -> Iterator[tuple[Contest, Callable[[], None]]]:
        """A contest in which each device has run what it takes, and what counts further steps."""
        obstacle = self._obstacle()
        if obstacle:
            raise PlanError(f"Nothing can be measured. {obstacle}")
        with Database() as database:
            table = self._table(self._describe(database))
            with progress(self._doing, len(table.devices) + rounds) as advance:
                steps = itertools.count(1)
                contest = self._contest(table, database, advance, steps)
                try:
                    yield contest, lambda: advance(next(steps))
                finally:
                    contest.close()

    def _obstacle(self) -> str:
        """Why nothing can be measured; empty if it can."""
        for port in self._sized.model.inputs:
            if port.dtype is None:
                return (
                    f"COST cannot make up input '{port.name}', which is not a tensor: placed by "
                    "priority."
                )
            if port.shape is None:
                return (
                    f"COST needs to know how many axes input '{port.name}' has: placed by "
                    "priority. Tell it with model.reshape(...) before compiling."
                )
        return ""

    @property
    def _doing(self) -> str:
        """What takes the time, for the progress line."""
        where = f" at {self._sized}" if self._sized.shapes else ""
        return f"measuring {self._sized.model.name}{where} on {', '.join(self._devices.names)}"

    # -------------------------------------------------------------------------- the model

    def _describe(self, database: Database) -> list[DeviceCosts]:
        """All devices that can get something: those of the list, and those of pins."""
        names = dict.fromkeys([*self._devices.names, *self._compilation.placer.pins.values()])
        alike = {
            name: group[0]
            for group in interchangeable_devices(self._devices, names)
            for name in group
        }
        described = []
        for name in names:
            info = self._core.device_info(name)
            key = database.add_device(self._core.fingerprint(name, self._devices.config(name)))
            room = self._devices.room(name)
            described.append(DeviceCosts(name, key, info.kind, room, alike=alike.get(name, "")))
        return described

    def _key(self, devices: Sequence[DeviceCosts]) -> str:
        """What two compiles must agree in to have the same placement."""
        properties = self._devices.properties
        facts = {
            "partita": partita.__version__,
            "model": self._signatures.of_model,
            "varies": [*self._sized.shapes],
            "present": [
                {str(op): device for op, (device, _) in preferred.items()}
                for one in self._present
                for preferred in one.every
            ],
            "devices": [device.key for device in devices],
            "executor": properties.HETERO_EXECUTOR,
            "objective": self._objective,
            "pins": {str(op): device for op, device in self._compilation.placer.pins.items()},
            "memory": self._devices.memory_limits,
            "out": sorted(f"{op} {device}" for op, device in self._out),
            "samples": self._samples.key,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def _table(self, devices: Sequence[DeviceCosts]) -> CostTable:
        compilation, op_graph = self._compilation, self._sized.op_graph
        names = op_graph.names()
        answers = {device.name: compilation.placer.ask(device.name) for device in devices}

        def refusals(op: int) -> dict[str, Reason]:
            found = {}
            for name, answer in answers.items():
                if (op, name) in self._out:
                    found[name] = self._out[op, name]
                elif names[op] not in answer:
                    unknown = Reason(ReasonCode.UNSUPPORTED_OP, "the device gave no reason")
                    found[name] = answer.reasons.get(names[op], unknown)
            others = [d for d in devices if d.name not in found and d.kind != "reference"]
            if others:
                pinned = compilation.placer.pins.get(op)
                spared = [d for d in devices if d.kind == "reference" and d.name != pinned]
                found |= {d.name: LAST_RESORT for d in spared} | found
            return found

        groups = group(
            op_graph,
            lambda op: (frozenset(refusals(op)), compilation.placer.pins.get(op)),
        )
        refused = [refusals(one.ops[-1]) for one in groups]
        pins = {
            index: compilation.placer.pins[one.ops[0]]
            for index, one in enumerate(groups)
            if one.ops[0] in compilation.placer.pins
            and compilation.placer.pins[one.ops[0]] not in refused[index]
        }
        shared = [
            (source.name, target.name)
            for source, target in self._sharing(devices)
            if self._memory(source) == self._memory(target)
        ]
        return CostTable(
            op_graph,
            groups,
            devices,
            refused,
            pins,
            self._sized.value_bytes,
            shared,
            compilation.model.name,
            [i for i in pins if not compilation.placer.constraints.pins[groups[i].ops[0]].hard],
        )

    def _memory(self, device: DeviceCosts) -> str:
        return self._core.device_info(device.name).memory

    def _sharing(self, devices: Sequence[DeviceCosts]) -> Iterator[tuple[DeviceCosts, DeviceCosts]]:
        """Devices with memories of their own, of which the second reads that of the first."""
        apart = [device for device in devices if not works_on_host(self._core, device.name)]
        for source, target in itertools.permutations(apart, 2):
            if self._core.can_share(target.name, self._memory(source)):
                yield source, target

    # ----------------------------------------------------------------------- the decision

    def _decide(self, table: CostTable, database: Database, advance: Advance) -> ChosenPlacement:
        steps = itertools.count(1)
        contest = self._contest(table, database, advance, steps)
        plan: Plan | None = None
        limit = PLANNING_SECONDS * min(1.0, 0.25 + len(table.groups) / 100)

        def planned(problem: Problem) -> Plan:
            return solve(problem, self._objective, limit)

        for _ in range(ROUNDS):
            advance(next(steps))
            try:
                plan = planned(contest.problem())
            except InfeasiblePlanError as error:
                contest.note(f"There is no plan: {error}")
                break
            if not contest.enter_plan(plan.assignment):
                break
        contest.enter_replicas(planned)
        return contest.settle(plan)

    def _contest(
        self, table: CostTable, database: Database, advance: Advance, steps: Iterator[int]
    ) -> Contest:
        """Fills the table; each device that can has run what it takes of the model."""
        profile = Profile(self._compilation, self._sized, table, database, self._signatures)
        profile.notes += _notes_on_sizes(self._sized)
        load = self._load
        for device in table.devices:
            launch = launch_cost(self._devices, device.name, device.key, database, load)
            if launch is None:
                profile.notes.append(f"What a launch on {device.name} takes is not known.")
            device.launch = launch.seconds if launch else 0.0
            if not works_on_host(self._core, device.name):
                device.links = link_costs(self._core, device.name, device.key, database, load)
            profile.recall(device)
        for source, target in self._sharing(table.devices):
            if self._memory(source) != self._memory(target):
                keys = source.key, target.key
                found = direct_cost(self._core, source.name, target.name, keys, database, load)
                source.direct[target.name] = found
        contest = Contest(
            self._compilation,
            self._out,
            self._remarks,
            table,
            profile,
            self._objective,
            self._samples,
        )
        for device in table.devices:
            advance(next(steps))
            if device.kind != "reference":
                profile.recall(device)  # what the one before took, if they are alike
                contest.enter_device(device)
        for one in self._present:
            contest.enter_present(f"as at {describe(one.shapes)}", one)
        return contest


def _notes_on_sizes(sized: SizedModel) -> list[str]:
    """A note on the sizes that stand for those of requests."""
    if not sized.shapes:
        return []
    if sized.is_guess:
        return [
            f"Measured at {sized}, sizes that are assumed: name those of requests with "
            "HETERO_SAMPLE_SHAPES."
        ]
    return [f"Measured at {sized}."]


def _settled_by(table: CostTable) -> str:
    """Why each operation has its device before anything is measured."""
    references = [device.name for device in table.devices if device.kind == "reference"]
    if table.pins:
        return "each operation is pinned, or one device alone takes it"
    if references and len(table.devices) > len(references):
        return (
            f"each operation has one device that takes it; {', '.join(references)}, a reference, "
            "gets what no other takes"
        )
    return "only one device can take each operation"


def objective_of(properties: HeteroProperties) -> Objective:
    """What is minimized, from the hint and the executor."""
    if properties.PERFORMANCE_HINT.is_throughput:
        return "THROUGHPUT"
    return properties.executor.objective
