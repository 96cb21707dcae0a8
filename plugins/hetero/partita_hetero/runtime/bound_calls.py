"""Runs of submodels whose tensors are all planned: bound once, and joined where devices can."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import InferCancelledError
from partita.runtime.compiled_model import BoundCall, Runner
from partita.tensors.tensor import Tensor
from partita_hetero.compile.transfer_plan import RunStep, Step
from partita_hetero.cost import clock
from partita_hetero.runtime.executor import Schedule


class BoundCallFailedError(Exception):
    """A device failed in joined runs; step by step the request shows which of them it was."""


@dataclass(frozen=True)
class Link:
    """Steps that follow one another in the plan.

    Attributes:
        first: The first step.
        last: The last step.
        call: Runs them all, or ``None`` for one step that is run as any other.
    """

    first: int
    last: int
    call: BoundCall | None


class Linker:
    """Binds what can be bound, for requests that run the plan's steps in order.

    Each step is bound right after its own run: a bound call may depend on the elements of an input
    (a shape that crosses), and later steps write over tensors that nobody reads any more.

    Args:
        steps: The plan's steps.
        runners: By number of the submodel.
        prepared: By slot, the tensors that were allocated for the request.
        blame: Makes the error to raise of a device's error.
        scratch: Memory that all may work in while they run, since they run one after another.
        joined: Submodels that have nothing to do if what they join was written in its place.

    Attributes:
        links: So far; what follows one another on one device family is one link.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        runners: Mapping[int, Runner],
        prepared: Sequence[Tensor | None],
        blame: Callable[[RunStep, Exception], Exception],
        scratch: np.ndarray[Any, Any] | None = None,
        joined: Collection[int] = (),
    ) -> None:
        self._steps, self._runners, self._prepared = steps, runners, prepared
        self._blame, self._scratch, self._joined = blame, scratch, joined
        self.links: list[Link] = []

    def add(self, index: int) -> None:
        """Takes the step that has just run, the next one of the plan."""
        step, links = self._steps[index], self.links
        if _is_idle(step, self._joined) and all(
            self._prepared[slot] is not None for slot in step.reads
        ):
            return
        try:
            call = _bound_call(step, self._runners, self._prepared, self._scratch)
            before = links[-1].call if links else None
            both = None if call is None or before is None else before.followed_by(call)
        except Exception as error:
            raise self._blame(step, error) from error  # type: ignore[arg-type]  # only runs are bound
        if both is not None:
            links[-1] = Link(links[-1].first, index, both)
        else:
            links.append(Link(index, index, call))


def bind_each(
    steps: Sequence[Step],
    runners: Mapping[int, Runner],
    prepared: Sequence[Tensor | None],
    blame: Callable[[RunStep, Exception], Exception],
    scratch: Mapping[int, np.ndarray[Any, Any]] | None = None,
    idle: Collection[int] = (),
) -> dict[int, BoundCall]:
    """Binds what can be bound, each step by itself, for requests that run steps in any order.

    Args:
        steps: The plan's steps.
        runners: By number of the submodel.
        prepared: By slot, the tensors that were allocated for the request.
        blame: Makes the error to raise of a device's error.
        scratch: By step, memory that it may work in; those that share it never run at once.
        idle: Steps that have nothing to do.
    """
    calls: dict[int, BoundCall] = {}
    for index, step in enumerate(steps):
        if index in idle:
            continue
        try:
            call = _bound_call(step, runners, prepared, (scratch or {}).get(index))
        except Exception as error:
            raise blame(step, error) from error  # type: ignore[arg-type]  # only runs are bound
        if call is not None:
            calls[index] = call
    return calls


def join_lanes(
    calls: Mapping[int, BoundCall], schedule: Schedule, idle: Collection[int] = ()
) -> BoundCall | None:
    """One call for all steps, in lanes that run at the same time; ``None`` if devices have none.

    Args:
        calls: What is bound, by step.
        schedule: Which step waits for which, and the device that it occupies.
        idle: Steps that have nothing to do; the call leaves them out.
    """
    steps = [index for index in range(schedule.count) if index not in idle]
    if not all(index in calls for index in steps):
        return None
    lanes = list(dict.fromkeys(schedule.lanes[index] for index in steps))
    if len(lanes) < 2 or any(room != 1 for room in schedule.capacity.values()):
        return None
    waits: list[set[int]] = []
    for others in schedule.waits:
        through = set().union(*(waits[other] for other in others if other in idle))
        waits.append(through | {other for other in others if other not in idle})
    place = {index: number for number, index in enumerate(steps)}
    ordered = [calls[index] for index in steps]
    return ordered[0].together(
        ordered,
        [{place[other] for other in waits[index]} for index in steps],
        [lanes.index(schedule.lanes[index]) for index in steps],
    )


def idle_steps(steps: Sequence[Step], joined: Collection[int]) -> list[int]:
    """The steps of submodels that have nothing to do."""
    return [index for index, step in enumerate(steps) if _is_idle(step, joined)]


def _is_idle(step: Step, joined: Collection[int]) -> bool:
    return isinstance(step, RunStep) and step.submodel in joined


def run_links(
    links: Sequence[Link],
    run: Callable[[int], None],
    cancelled: Callable[[], bool],
    note: Callable[[int, int, float], None] | None = None,
) -> None:
    """Runs all steps.

    Args:
        links: What is bound.
        run: Runs a step that is not.
        cancelled: Whether to stop.
        note: Takes the first and the last step of a bound call, and the seconds that it took.

    Raises:
        BoundCallFailedError: A device failed in a call of several steps.
        InferCancelledError: The request was cancelled.
    """
    for one in links:
        if cancelled():
            raise InferCancelledError("The request was cancelled.")
        if one.call is None:
            run(one.first)
            continue
        start = 0.0 if note is None else clock.seconds()
        try:
            one.call()
        except InferCancelledError:
            raise
        except Exception as error:
            raise BoundCallFailedError from error
        if note is not None:
            note(one.first, one.last, clock.seconds() - start)


def _bound_call(
    step: Step,
    runners: Mapping[int, Runner],
    prepared: Sequence[Tensor | None],
    scratch: np.ndarray[Any, Any] | None,
) -> BoundCall | None:
    if not isinstance(step, RunStep):
        return None
    reads = [tensor for slot in step.reads if (tensor := prepared[slot]) is not None]
    writes = [tensor for slot in step.writes if (tensor := prepared[slot]) is not None]
    if len(reads) < len(step.reads) or len(writes) < len(step.writes):
        return None
    return runners[step.submodel].bind(reads, writes, scratch)
