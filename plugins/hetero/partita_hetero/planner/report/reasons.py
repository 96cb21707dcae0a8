"""Why a plan puts each task where it is: the next best device, what it would cost, what decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.contract.query import Reason, ReasonCode
from partita_hetero.planner.arrays import search_clock
from partita_hetero.planner.problem.problem import Problem
from partita_hetero.planner.problem.records import HOST, Value
from partita_hetero.planner.simulation.feasible import broken_rules
from partita_hetero.planner.simulation.plan import Plan
from partita_hetero.planner.simulation.simulate import objective_value, simulate

_BARELY_US = 1e-6


@dataclass(frozen=True, slots=True)
class Alternative:
    """A task on another device.

    Attributes:
        device: Its index.
        extra_us: What the objective loses by that (gains, if negative); ``None`` if the device
            refuses the task or one that shares its device.
        own_us: Time of the task itself there.
        exact: Whether it was simulated, or only the task and its own values were looked at.
        obstacle: Which rule forbids it.
    """

    device: int
    extra_us: float | None
    own_us: float | None
    exact: bool = True
    obstacle: str = ""


@dataclass(frozen=True, slots=True)
class TaskReason:
    """Why a task is where it is.

    Attributes:
        reason: Code and sentence.
        alternative: The next best device, or ``None`` if no other takes the task.
        change: What would change it.
        own_us: Time of the task itself.
    """

    reason: Reason
    alternative: Alternative | None
    change: str
    own_us: float


IMPROVABLE = "the plan is not the optimum"
"""Said of another device that would be faster by the costs, in a plan."""


def reasons(
    problem: Problem, plan: Plan, time_limit_s: float = 5.0, doubt: str = IMPROVABLE
) -> list[TaskReason]:
    """A reason for every task.

    Each task, with those that share its device, is moved to each other device, and the run is
    simulated; when the time is up, only the task and its own values are looked at.

    Args:
        problem: What everything costs.
        plan: The placement.
        time_limit_s: How long runs may be simulated for it.
        doubt: What to say of a task that would be faster elsewhere by the costs.
    """
    deadline = search_clock.seconds() + time_limit_s
    found: list[TaskReason | None] = [None] * len(problem.tasks)
    trials = _Trials(problem, plan)
    for members in problem.groups:
        here = plan.assignment[members[0]]
        others = [
            trials.alternative(members, device, search_clock.seconds() < deadline)
            for device in range(len(problem.devices))
            if device != here
        ]
        for member in members:
            found[member] = _explain(problem, plan, member, members, others, doubt)
    return [one for one in found if one is not None]


class _Trials:
    """A plan with some of its tasks elsewhere.

    Args:
        problem: What everything costs.
        plan: The placement.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem, self._plan = problem, plan
        self._values: list[list[Value]] = [[] for _ in problem.tasks]  # that a task reads or writes
        for value in problem.values:
            for task in {*value.consumers, *([] if value.producer is None else [value.producer])}:
                self._values[task].append(value)

    def alternative(self, members: Sequence[int], device: int, exactly: bool) -> Alternative:
        """Some tasks on another device.

        Args:
            members: The tasks, which share a device.
            device: The other one.
            exactly: Whether the run is simulated; else the tasks and their values are counted.
        """
        problem, plan = self._problem, self._plan
        times = [problem.tasks[member].costs[device].us for member in members]
        if any(us is None for us in times):
            refuser = next(m for m in members if problem.tasks[m].costs[device].us is None)
            why = problem.tasks[refuser].costs[device].reason or "no reason given"
            return Alternative(device, None, None, obstacle=why)
        own = sum(us for us in times if us is not None)
        moved = list(plan.assignment)
        for member in members:
            moved[member] = device
        if not exactly:
            extra = self._local_us(moved, members) - self._local_us(plan.assignment, members)
            return Alternative(device, extra, own, False, self._no_room(members, device))
        timeline = simulate(problem, moved, plan.objective)
        extra = objective_value(problem, moved, plan.objective, timeline) - plan.value_us
        name = problem.devices[device].name
        limits = [
            rule for rule in broken_rules(problem, moved, timeline) if rule.startswith("Device '")
        ]
        limits.sort(key=lambda rule: f"'{name}'" not in rule)
        return Alternative(device, extra, own, obstacle=limits[0] if limits else "")

    def _no_room(self, members: Sequence[int], device: int) -> str:
        """Why a device has no room for more weights; empty if it has."""
        there = self._problem.devices[device]
        held = self._plan.timeline.peak_bytes.get(there.name, 0)
        more = sum(self._problem.tasks[member].weight_bytes for member in members)
        if there.memory_bytes is None or held + more <= there.memory_bytes:
            return ""
        return (
            f"Device '{there.name}' holds {held} bytes already, and the limit of "
            f"{there.memory_bytes} leaves no room for {more} more."
        )

    def _local_us(self, assignment: Sequence[int], members: Sequence[int]) -> float:
        """Time of some tasks and of the moves of their own values."""
        problem = self._problem
        total = sum(problem.tasks[m].costs[assignment[m]].us or 0.0 for m in members)
        values = {value.name: value for member in members for value in self._values[member]}
        for value in values.values():
            source = HOST if value.producer is None else assignment[value.producer]
            targets = {assignment[task] for task in value.consumers}
            targets |= {HOST} if value.is_output else set()
            for target in targets - {source}:
                direct = problem.link(source, target)
                ways = [direct] if direct else [problem.need_link(source, HOST)]
                ways += [] if direct else [problem.need_link(HOST, target)]
                total += sum(way.time_us(value) for way in ways)
        return total


def _explain(
    problem: Problem,
    plan: Plan,
    task: int,
    members: Sequence[int],
    others: Sequence[Alternative],
    doubt: str,
) -> TaskReason:
    """Why a task is where it is.

    Args:
        problem: What everything costs.
        plan: The placement.
        task: The task.
        members: Tasks that share its device, itself included.
        others: They on each other device.
        doubt: What to say if it would be faster on another one by the costs.
    """
    here = plan.assignment[task]
    own = problem.tasks[task].costs[here].us or 0.0
    together = sum(problem.tasks[member].costs[here].us or 0.0 for member in members)
    possible = [other for other in others if other.extra_us is not None]
    best = min(possible, key=_extra, default=None)
    pins = [pin for pin in problem.pins if pin.task in members]
    for pin in pins:
        if pin.device == here:
            kind = "pinned" if pin.hard else "softly pinned"
            detail = f"{kind} to {problem.devices[here].name}"
            change = "drop the pin" + ("" if best is None else f": {_gain(problem, best)}")
            return TaskReason(Reason(ReasonCode.PINNED, detail), best, change, own)
    if best is None:
        return _only_one(problem, others, own)
    blocked = [o for o in possible if o.obstacle and _extra(o) < -_BARELY_US]
    if blocked:
        best = min(blocked, key=_extra)
        name = problem.devices[best.device].name
        detail = f"{name} would be {_us(-_extra(best))} faster, but: {best.obstacle}"
        return TaskReason(
            Reason(ReasonCode.MEMORY_LIMIT, detail), best, f"a higher limit for {name}", own
        )
    extra, name = _extra(best), problem.devices[best.device].name
    about = "" if best.exact else "about "
    if extra < -_BARELY_US:
        detail = f"{name} would be {about}{_us(-extra)} faster; {doubt}"
        return TaskReason(Reason(ReasonCode.MERGED, detail), best, "more time for the planner", own)
    if together > (best.own_us or 0.0) + _BARELY_US:
        saved = together - (best.own_us or 0.0)
        detail = (
            f"by itself {_us(saved)} faster on {name}, but going there costs "
            f"{about}{_us(saved + extra)}"
        )
        change = f"moves to {name} that cost {_us(extra)} less"
        return TaskReason(Reason(ReasonCode.MERGED, detail), best, change, own)
    detail = f"{about}{_us(extra)} less than on {name}"
    change = f"{name} being {_us(extra)} faster here"
    return TaskReason(Reason(ReasonCode.CHEAPER_BY, detail), best, change, own)


def _only_one(problem: Problem, others: Sequence[Alternative], own: float) -> TaskReason:
    """For a task that every other device refuses."""
    if not others:
        reason = Reason(ReasonCode.PRIORITY, "the only device")
        return TaskReason(reason, None, "a second device", own)
    code = _code(others[0].obstacle)
    detail = "; ".join(
        f"{problem.devices[other.device].name}: {other.obstacle}" for other in others
    )
    change = f"{problem.devices[others[0].device].name} taking it"
    return TaskReason(Reason(code, f"no other device takes it; {detail}"), None, change, own)


def _code(text: str) -> ReasonCode:
    """The code that a refusal begins with."""
    head = text.partition(":")[0]
    return ReasonCode(head) if head in ReasonCode.__members__ else ReasonCode.UNSUPPORTED_OP


def _gain(problem: Problem, other: Alternative) -> str:
    extra, name = _extra(other), problem.devices[other.device].name
    if extra < 0:
        return f"{name} is {_us(-extra)} faster"
    return f"{name} is {_us(extra)} slower"


def _extra(other: Alternative) -> float:
    return other.extra_us if other.extra_us is not None else float("inf")


def _us(us: float) -> str:
    return f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.3g} us"
