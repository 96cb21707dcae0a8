"""Placements that compete: each is run for real, and the fastest one is kept."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from partita.contract.explanation import Candidate, Decision
from partita.contract.query import Reason, ReasonCode
from partita.errors import PLUGIN_FAILURES, InferError, PartitaError, in_words
from partita_hetero.compile.replicas import ReplicaSet, replicas_name, replicated
from partita_hetero.cost import clock
from partita_hetero.cost.cost_table import CostTable, DeviceCosts
from partita_hetero.placement.by_priority import Placement, Wishes
from partita_hetero.placement.decision import Choice, Elsewhere, Replica
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.report.reasons import TaskReason, reasons
from partita_hetero.planner.simulation.plan import Objective, Plan
from partita_hetero.planner.simulation.simulate import objective_value, simulate
from partita_hetero.tuning.contestant import PLAN, Entry, best, decided
from partita_hetero.tuning.interference import slowdowns
from partita_hetero.tuning.profiler import Profile
from partita_hetero.tuning.replication import (
    FREE,
    Replication,
    alike,
    interval_us,
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

RACE_SECONDS = 2.0
LEAST_ROUNDS, MOST_ROUNDS = 7, 201
"""The candidates run in turns for so long, at least and at most so many times."""

HOPELESS = 1.3
"""A candidate that was so much slower than the best one in all three first rounds runs no more."""

IN_FLIGHT = 4
"""Requests for each that is in flight at a time, when throughput is measured."""

UNFIT = (
    "Candidates ran on made-up inputs, which may be impossible for the model: name real ones with "
    "HETERO_SAMPLE_INPUTS."
)
"""Said where a candidate failed."""

EXPLAINING_SECONDS = 1.0
"""For finding out what each operation would cost elsewhere."""

RUNS_DECIDED = "by its costs alone; runs decided otherwise"
"""Said of another device that would be faster by the costs, in a placement that won its race."""

_PLANNED = Reason(ReasonCode.MERGED, "planned")


@dataclass(frozen=True)
class Outcome:
    """What a contest found.

    Attributes:
        problem: The costs, as all runs corrected them.
        assignment: Device index of each task, in the placement that was fastest.
        replicas: The same of each further replica, if it has some.
        shares: The part of the requests of each, the first one's first.
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
        self._inputs = samples.tensors()
        self._synthetic = samples.synthetic
        self._entries: dict[tuple[tuple[str | None, ...], ...], Entry] = {}
        self._present: Entry | None = None
        self._seen_together: set[frozenset[str]] = set()
        self.scales: dict[tuple[int, str], float] = {}
        self._overhead = 0.0

    def problem(self) -> Problem:
        """The placement problem, with all that was learned so far."""
        return self._table.problem(self.scales, self._overhead)

    def enter_device(self, device: DeviceCosts) -> None:
        """Everything on one device that it takes, the rest by priority; fills in its costs."""
        order = [device.name, *(n for n in self._compilation.devices.names if n != device.name)]
        unmeasured = self._profile.missing(device)
        entry = self._enter("", lambda: self._placed({}, order))
        if entry is None or entry.trial is None or entry.run is None:
            return
        if unmeasured:
            counters = self._counters(entry.placement)
            self._profile.learn(device, entry.trial.assembly.submodels, entry.run, counters)
        self.correct_entry(entry)

    def enter_plan(self, assignment: Sequence[int]) -> bool:
        """What the planner found; whether that is new, so that another round may find more.

        Args:
            assignment: Device index of each task.
        """
        wishes = self._wishes(assignment)
        entry = self._enter(PLAN, lambda: self._placed(wishes))
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

    def enter_present(self, name: str, choice: Choice) -> None:
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

    def settle(self, plan: Plan | None) -> Choice:
        """Lets all that work race, and keeps the fastest."""
        chosen, decision = self._raced(plan)
        self.close()
        return Choice({}, decision) if chosen is None else self._choice(chosen, decision)

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
        first, *others = (tuple(self._assignment(one)) for one in chosen.replica_set.placements)
        return Outcome(problem, first, others, chosen.replica_set.shares, kept, decision)

    def _raced(self, plan: Plan | None) -> tuple[Entry | None, Decision]:
        """The fastest of all that work, after a race."""
        able = [entry for entry in self._entries.values() if entry.trial is not None]
        self._race(able)
        if self._synthetic and any(entry.failure for entry in self._entries.values()):
            self.note(UNFIT)
        chosen = best(able, self._present)
        if chosen is not None:
            self._time_again(chosen)
        return chosen, self._decision(chosen, plan)

    def _corrected(self, chosen: Entry) -> Problem:
        """The problem with costs as the chosen placement's runs corrected them."""
        return self._table.problem({**self.scales, **chosen.scales}, chosen.overhead)

    def _choice(self, chosen: Entry, decision: Decision) -> Choice:
        """The kept placement, with a reason for each operation and the run that is foreseen."""
        problem = self._corrected(chosen)
        assignment = self._assignment(chosen.placement)
        timeline = simulate(problem, assignment, self._objective)
        value = objective_value(problem, assignment, self._objective, timeline)
        order = tuple(range(len(assignment)))
        plan = Plan(tuple(assignment), self._objective, value, 0.0, chosen.name, order, timeline)
        why = reasons(problem, plan, EXPLAINING_SECONDS, RUNS_DECIDED)
        wishes = self._wishes(assignment, [one.reason for one in why])
        elsewhere = self._elsewhere(problem, why)
        if not chosen.is_replicated:
            return Choice(wishes, decision, timeline, elsewhere)
        return self._replicated_choice(chosen, Choice(wishes, decision, timeline, elsewhere))

    def _replicated_choice(self, chosen: Entry, first: Choice) -> Choice:
        """The choice of the first replica with the others; for what each has, one reason."""
        every = [self._wishes(self._assignment(one)) for one in chosen.replica_set.placements]
        names = {op: dict.fromkeys(wishes[op][0] for wishes in every) for op in self._table.home}
        moved = {op: replicated(where) for op, where in names.items() if len(where) > 1}
        told = [
            {op: (device, moved.get(op, first.wishes[op][1])) for op, (device, _) in one.items()}
            for one in every
        ]
        elsewhere = {
            op: replace(there, device="", extra_us=None, change=FREE) if op in moved else there
            for op, there in first.elsewhere.items()
        }
        shares = chosen.replica_set.shares
        others = [Replica(*pair) for pair in zip(told[1:], shares[1:], strict=True)]
        return replace(first, wishes=told[0], elsewhere=elsewhere, replicas=others)

    def _elsewhere(self, problem: Problem, why: Sequence[TaskReason]) -> dict[int, Elsewhere]:
        """What each operation, with those that share its device, would cost on the next one."""
        found: dict[int, Elsewhere] = {}
        for group, one in zip(self._table.groups, why, strict=True):
            other = one.alternative
            name = "" if other is None else problem.devices[other.device].name
            extra = None if other is None else other.extra_us
            there = Elsewhere(one.own_us, name, extra, one.change)
            found |= dict.fromkeys(group.ops, there)
        return found

    # ---------------------------------------------------------------------------- entering

    def _placed(self, wishes: Wishes, order: Sequence[str] | None = None) -> ReplicaSet:
        return ReplicaSet.single(self._compilation.placer.place(self._out, wishes, order))

    def _replicated(self, found: Replication) -> ReplicaSet | None:
        """The placement on each device that it can be had on; ``None`` if that is less than two."""
        placer, problem = self._compilation.placer, self.problem()
        placements = []
        reason = replicated(found.twins)
        for homes in found.every():
            wishes = {op: (home, reason) for op, home in homes.items()}
            try:
                placement = placer.place(self._out, wishes)
            except PartitaError as error:
                _log.info("no replica: %s", error)
                continue
            if placement.follows(wishes) and is_possible(problem, self._assignment(placement)):
                placements.append(placement)
        if len(placements) < 2:
            return None
        shares = shares_of(problem, [self._assignment(one) for one in placements])
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
            entry.foreseen_us = self._value(self.problem(), replica_set)
        try:
            trial = Trial(self._compilation, assembly, self._inputs)
            if entry.is_replicated:  # what each part takes is known of it alone
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
        devices = frozenset(piece.device for piece in assembly.submodels)
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
        pieces = entry.trial.assembly.submodels
        entry.scales = self._for_twins(self._profile.scales(pieces, entry.run))
        expected = self._value(self._table.problem(entry.scales, 0.0), entry.replica_set)
        if self._objective != "THROUGHPUT" and pieces:
            entry.overhead = max(0.0, entry.run.seconds - expected * 1e-6) / len(pieces)
        self.scales |= entry.scales
        if len(pieces) > 1:  # of one submodel it is the request's own, and noise
            self._overhead = entry.overhead
        entry.predicted_us = self._value(
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

    # ------------------------------------------------------------------------------ racing

    def _race(self, entries: Sequence[Entry]) -> None:
        """Runs the entries in turns; those far behind drop out."""
        racing = list(entries)
        start = clock.seconds()
        for number in range(MOST_ROUNDS):
            if number >= LEAST_ROUNDS and (
                clock.seconds() - start > RACE_SECONDS or decided(racing)
            ):
                break
            for entry in list(racing):
                try:
                    entry.times.append(self._once(entry))
                except PLUGIN_FAILURES as error:  # whatever a broken device raises
                    entry.failure = f"it failed: {in_words(error)}"
                    entry.times.clear()
                    racing.remove(entry)
            if number == 2:
                best = min((entry.median for entry in racing), default=0.0)
                racing = [entry for entry in racing if min(entry.times) <= HOPELESS * best]

    def _time_again(self, entry: Entry) -> None:
        """Corrects its costs by what it takes now: a machine's speed drifts while others run."""
        if entry.trial is None:
            return
        try:
            entry.run = entry.trial.measure()
        except PLUGIN_FAILURES as error:  # whatever a broken device raises
            _log.info("%s is not timed again: %s", entry.name, in_words(error))
        self.correct_entry(entry)

    def _once(self, entry: Entry) -> float:
        if entry.trial is None:
            raise ValueError(f"Candidate '{entry.name}' has nothing to run.")
        if self._objective != "THROUGHPUT":
            return entry.trial.take_turn()
        at_once = entry.trial.requests_at_once
        return entry.trial.seconds_per_request(IN_FLIGHT * at_once, at_once)

    def _decision(self, chosen: Entry | None, plan: Plan | None) -> Decision:
        entries = list(self._entries.values())
        candidates = [
            Candidate(
                entry.name,
                self._counts(entry.replica_set),
                entry.submodels,
                entry.foreseen_us,
                entry.predicted_us,
                entry.median * 1e6 if entry.times else None,
                entry.failure,
                None if entry.noise is None else entry.noise * 1e6,
            )
            for entry in entries
        ]
        return Decision(
            self._objective,
            chosen.name if chosen else "priority",
            candidates,
            None if plan is None else plan.gap,
            False,
            list(self._profile.notes),
        )

    # ---------------------------------------------------------------------------- internals

    def _counts(self, replica_set: ReplicaSet) -> dict[str, int]:
        """Device to how many operations it runs; one that replicas share has them once."""
        placed = {
            (one.device[op] or "-", op) for one in replica_set.placements for op in self._table.home
        }
        counts = Counter(device for device, _ in placed)
        order = dict.fromkeys(
            one.device[op] or "-" for one in replica_set.placements for op in self._table.home
        )
        return {device: counts[device] for device in order}

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

    def _value(self, problem: Problem, replica_set: ReplicaSet) -> float:
        assignment, *others = (self._assignment(one) for one in replica_set.placements)
        if others:
            return interval_us(problem, [assignment, *others], replica_set.shares)
        timeline = simulate(problem, assignment, self._objective)
        return objective_value(problem, assignment, self._objective, timeline)

    def _assignment(self, placement: Placement) -> list[int]:
        number = self._numbers
        return [number[placement.device[one.ops[-1]] or ""] for one in self._table.groups]

    @property
    def _numbers(self) -> dict[str, int]:
        """Device to its index in problems."""
        return {device.name: index for index, device in enumerate(self._table.devices)}

    def _wishes(self, assignment: Sequence[int], why: Sequence[Reason] = ()) -> Wishes:
        return {
            op: (self._table.devices[number].name, why[index] if why else _PLANNED)
            for index, number in enumerate(assignment)
            for op in self._table.groups[index].ops
        }
