"""The contest: candidate placements run for real, correct the costs, and the fastest is kept."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.contract.explanation import Candidate, Decision
from partita.contract.query import Reason
from partita.errors import PLUGIN_FAILURES, InferError, PartitaError, in_words
from partita_hetero.compile.replicas import ReplicaSet, replicas_name, replicated
from partita_hetero.cost.cost_table import CostTable, DeviceCosts
from partita_hetero.cost.machine_load import LoadWatch, busy_note, is_quieter
from partita_hetero.placement.by_priority import Placement, PreferredDevices
from partita_hetero.placement.decision import ChosenPlacement
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.simulation.plan import Objective, Plan
from partita_hetero.tuning.assignments import Assignments
from partita_hetero.tuning.chosen_placement import explained_choice
from partita_hetero.tuning.contestant import PLAN, Entry, best
from partita_hetero.tuning.interference import slowdowns
from partita_hetero.tuning.profiler import Profile
from partita_hetero.tuning.race import race
from partita_hetero.tuning.replication import (
    Replication,
    alike,
    is_possible,
    plan_of_one,
    replications,
    shares_of,
)
from partita_hetero.tuning.trial_run import Counters, Trial

if TYPE_CHECKING:
    from partita_hetero.compile.executable import Assembly
    from partita_hetero.compile.pipeline import Compilation
    from partita_hetero.tuning.sample_inputs import Samples

_log = logging.getLogger("partita.hetero")

UNFIT = (
    "Candidates ran on made-up inputs, which may be impossible for the model: name real ones with "
    "HETERO_SAMPLE_INPUTS."
)
"""Said where a candidate failed."""


@dataclass(frozen=True)
class Outcome:
    """What a contest found.

    Attributes:
        problem: The costs, as all runs corrected them.
        assignment: Device index of each task, in the placement that was fastest.
        replicas: The same of each further replica, if it has some.
        shares: The share of the requests of each, the first one's first.
        kept: That placement, as it raced.
        decision: What raced.
    """

    problem: Problem
    assignment: tuple[int, ...]
    replicas: Sequence[tuple[int, ...]]
    shares: Sequence[float]
    kept: Candidate
    decision: Decision


class Contest:
    """Runs placements, corrects costs by what it sees, and lets the best ones race.

    Args:
        compilation: Compiles placements.
        out: What devices failed to compile; what fails here is added.
        remarks: Notes for the explanation; what fails here is added.
        table: The costs.
        profile: Fills the table.
        objective: What is minimized.
        samples: What everything runs on.
    """

    def __init__(
        self,
        compilation: Compilation,
        out: dict[tuple[int, str], Reason],
        remarks: list[str],
        table: CostTable,
        profile: Profile,
        objective: Objective,
        samples: Samples,
    ) -> None:
        self._compilation = compilation
        self._out = out
        self._remarks = remarks
        self._table = table
        self._profile = profile
        self._objective = objective
        self._assignments = Assignments(table, objective)
        self._inputs = samples.tensors()
        self._synthetic = samples.synthetic
        self._entries: dict[tuple[tuple[str | None, ...], ...], Entry] = {}
        self._present: Entry | None = None
        self._seen_together: set[frozenset[str]] = set()
        self.scales: dict[tuple[int, str], float] = {}
        self._overhead = 0.0
        self._busy = 0.0

    def problem(self) -> Problem:
        """The placement problem, with all that was learned so far."""
        return self._table.problem(self.scales, self._overhead)

    def enter_device(self, device: DeviceCosts) -> None:
        """Everything on one device that it takes, the rest by priority; fills in its costs."""
        order = [device.name, *(n for n in self._compilation.devices.names if n != device.name)]
        unmeasured, busy = self._profile.missing(device), self._profile.busy(device)
        entry = self._enter("", lambda: self._placed({}, order))
        if entry is None or entry.trial is None or entry.run is None:
            return
        if unmeasured or is_quieter(entry.run.busy, busy):
            counters = self._counters(entry.placement)
            self._profile.learn(device, entry.trial.assembly.submodels, entry.run, counters)
        self.correct_entry(entry)

    def enter_plan(self, assignment: Sequence[int]) -> bool:
        """What the planner found; whether that is new, so that another round may find more.

        Args:
            assignment: Device index of each task.
        """
        preferred = self._assignments.preferred(assignment)
        entry = self._enter(PLAN, lambda: self._placed(preferred))
        if entry is not None:
            self.correct_entry(entry)
        return entry is not None

    def enter_replicas(self, solve: Callable[[Problem], Plan]) -> None:
        """What has run on one of several devices that compute alike, now on each of them.

        Requests then stay on one replica, so that nothing crosses between these devices.

        Args:
            solve: Makes a plan of costs: for one of the devices, beside those of other kinds.
        """
        if self._objective != "THROUGHPUT":
            return
        groups = alike(self.problem())
        for group in groups:
            assignment = plan_of_one(self.problem(), group, solve)
            if assignment is not None:
                self.enter_plan(assignment)
        able = [entry.placement for entry in self._entries.values() if entry.trial is not None]
        homes = [
            {op: home for op in self._table.home if (home := placement.device[op]) is not None}
            for placement in able
        ]
        for found in replications(homes, groups):
            self._enter("", functools.partial(self._replicated, found))

    def enter_present(self, name: str, choice: ChosenPlacement) -> None:
        """A placement that the model has already, for other shapes; others must beat it surely."""

        def place() -> ReplicaSet:
            return self._compilation.replica_set(choice, self._out)

        entry = self._enter(name, place)
        if entry is None:
            entry = self._entries[place().key]
        else:
            self.correct_entry(entry)
        self._present = self._present or entry

    def note(self, text: str) -> None:
        """Adds to what the decision tells."""
        self._profile.notes.append(text)

    def close(self) -> None:
        """Frees what requests hold."""
        for entry in self._entries.values():
            entry.close()

    def settle(self, plan: Plan | None) -> ChosenPlacement:
        """Lets all that work race, and keeps the fastest."""
        chosen, decision = self._raced(plan)
        self.close()
        if chosen is None:
            return ChosenPlacement({}, decision)
        problem, costs = self._corrected(chosen), (self._table, self._assignments)
        return explained_choice(chosen, decision, problem, *costs, self._objective)

    def outcome(self, plan: Plan | None) -> Outcome:
        """The same as numbers: the fastest placement, and the costs as all runs corrected them.

        Raises:
            InferError: No placement could be run.
        """
        chosen, decision = self._raced(plan)
        if chosen is None:
            failures = "; ".join(f"{one.name}: {one.failure}" for one in self._entries.values())
            raise InferError(f"No placement could be run. {failures}")
        problem = self._corrected(chosen)
        kept = decision.candidates[list(self._entries.values()).index(chosen)]
        first, *others = (tuple(self._assignments.of(one)) for one in chosen.replica_set.placements)
        return Outcome(problem, first, others, chosen.replica_set.shares, kept, decision)

    def _raced(self, plan: Plan | None) -> tuple[Entry | None, Decision]:
        """The fastest of all that work, after a race."""
        able = [entry for entry in self._entries.values() if entry.trial is not None]
        load = LoadWatch()
        race(able, self._objective)
        self._busy = load.share()
        if self._synthetic and any(entry.failure for entry in self._entries.values()):
            self.note(UNFIT)
        chosen = best(able, self._present)
        if chosen is not None:
            self._time_again(chosen)
        return chosen, self._decision(chosen, plan)

    def _corrected(self, chosen: Entry) -> Problem:
        """The problem with costs as the chosen placement's runs corrected them."""
        return self._table.problem({**self.scales, **chosen.scales}, chosen.overhead)

    def _placed(
        self, preferred: PreferredDevices, order: Sequence[str] | None = None
    ) -> ReplicaSet:
        return ReplicaSet.single(self._compilation.placer.place(self._out, preferred, order))

    def _replicated(self, found: Replication) -> ReplicaSet | None:
        """The placement on each device that it can be had on; ``None`` if that is less than two."""
        placer, problem = self._compilation.placer, self.problem()
        placements = []
        reason = replicated(found.interchangeable)
        for homes in found.every():
            preferred = {op: (home, reason) for op, home in homes.items()}
            try:
                placement = placer.place(self._out, preferred)
            except PartitaError as error:
                _log.info("no replica: %s", error)
                continue
            if placement.follows(preferred) and is_possible(
                problem, self._assignments.of(placement)
            ):
                placements.append(placement)
        if len(placements) < 2:
            return None
        shares = shares_of(problem, [self._assignments.of(one) for one in placements])
        return ReplicaSet(placements, range(len(placements)), shares)

    def _enter(self, name: str, place: Callable[[], ReplicaSet | None]) -> Entry | None:
        """Compiles and runs a placement; ``None`` if there is none, or it was entered before."""
        while True:
            replica_set = place()
            if replica_set is None or replica_set.key in self._entries:
                return None
            assembly = self._compilation.build_replicas(replica_set, self._out, self._remarks)
            if assembly is not None:
                break
            self._table.refuse(self._out)
        entry = self._entries[replica_set.key] = Entry(name or self._name(replica_set), replica_set)
        entry.submodels = sum(len(one.submodels) for one in assembly.every())
        if not any(map(self._profile.missing, self._table.devices)):
            entry.foreseen_us = self._assignments.value_us(self.problem(), replica_set)
        try:
            trial = Trial(self._compilation, assembly, self._inputs)
            if entry.is_replicated:  # what each submodel takes is known of it alone
                entry.predicted_us = entry.foreseen_us
            else:
                entry.run = trial.measure()
                self._look_at_neighbours(assembly)
            entry.trial = trial
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            entry.failure = f"it failed: {in_words(error)}"
            _log.warning("Candidate '%s' failed: %s", entry.name, in_words(error))
        return entry

    def _look_at_neighbours(self, assembly: Assembly) -> None:
        """Notes devices that slow each other down; of the same devices once."""
        devices = frozenset(submodel.device for submodel in assembly.submodels)
        if len(devices) < 2 or devices in self._seen_together:
            return
        self._seen_together.add(devices)
        core = self._compilation.devices.core
        try:
            for found in slowdowns(self._compilation, assembly, self._inputs):
                self.note(found.describe(core))
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("how devices run beside each other is not known: %s", in_words(error))

    def _counters(self, placement: Placement) -> dict[int, Counters]:
        """What devices count by themselves in a placement; empty if they fail at it."""
        assembly = self._compilation.build(placement, self._out, self._remarks, counted=True)
        if assembly is None:
            return {}
        trial = Trial(self._compilation, assembly, self._inputs)
        try:
            return trial.count()
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("no counters: %s", in_words(error))
            return {}
        finally:
            trial.close()

    def correct_entry(self, entry: Entry) -> None:
        """Scales costs so that the entry's submodels take what they took."""
        if entry.trial is None or entry.run is None:
            return
        submodels = entry.trial.assembly.submodels
        entry.scales = self._for_twins(self._profile.scales(submodels, entry.run))
        without_overhead = self._table.problem(entry.scales, 0.0)
        expected = self._assignments.value_us(without_overhead, entry.replica_set)
        if self._objective != "THROUGHPUT" and submodels:
            entry.overhead = max(0.0, entry.run.seconds - expected * 1e-6) / len(submodels)
        self.scales |= entry.scales
        if len(submodels) > 1:  # of one submodel it is the request's own, and noise
            self._overhead = entry.overhead
        entry.predicted_us = self._assignments.value_us(
            self._table.problem(entry.scales, entry.overhead), entry.replica_set
        )

    def _for_twins(self, scales: Mapping[tuple[int, str], float]) -> dict[tuple[int, str], float]:
        """The factors for all devices that are the same, so that noise makes none seem faster."""
        devices = self._table.devices
        key_of = {device.name: device.key for device in devices}
        found = {
            (index, device.name): factor
            for (index, name), factor in scales.items()
            for device in devices
            if device.key == key_of[name] and device.name not in self._table.refusals[index]
        }
        return {**found, **scales}

    def _time_again(self, entry: Entry) -> None:
        """Corrects its costs by what it takes now: a machine's speed drifts while others run."""
        if entry.trial is None:
            return
        try:
            entry.run = entry.trial.measure()
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("%s is not timed again: %s", entry.name, in_words(error))
        self.correct_entry(entry)

    def _decision(self, chosen: Entry | None, plan: Plan | None) -> Decision:
        entries = list(self._entries.values())
        candidates = [
            Candidate(
                entry.name,
                self._assignments.op_counts(entry.replica_set),
                entry.submodels,
                entry.foreseen_us,
                entry.predicted_us,
                entry.median * 1e6 if entry.times else None,
                entry.failure,
                None if entry.noise is None else entry.noise * 1e6,
            )
            for entry in entries
        ]
        busy = max([self._busy, *(entry.run.busy for entry in entries if entry.run is not None)])
        notes = [*self._profile.notes, *self._profile.busy_notes()]
        note = busy_note("Placements", busy)
        return Decision(
            self._objective,
            chosen.name if chosen else "priority",
            candidates,
            None if plan is None else plan.gap,
            False,
            [*notes, note] if note else notes,
            busy=busy,
        )

    def _name(self, replica_set: ReplicaSet) -> str:
        placements = replica_set.placements
        if len(placements) > 1:
            return replicas_name(
                [[one.device[op] or "-" for op in self._table.home] for one in placements]
            )
        (placement,) = placements
        used = dict.fromkeys(placement.device[op] for op in self._table.home)
        if len(used) == 1:
            return f"only {next(iter(used))}"
        if placement.device == self._compilation.placer.place(self._out, {}).device:
            return "priority"
        return f"{placement.device[min(self._table.home)]} first"
