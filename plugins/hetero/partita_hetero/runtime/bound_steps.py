"""Steps bound to fixed tensors: the bound calls of all submodels, one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.runner import Runner
from partita.errors import BoundCallEndedError
from partita.tensors.allocation import host_zeros
from partita.tensors.tensor import Tensor
from partita_hetero.cost import clock
from partita_hetero.executors import Executor, Schedule
from partita_hetero.executors.executor import check_cancelled


class StopFlag:
    """Whether what a request runs now is to stop.

    Attributes:
        is_set: Whether it is; each run begins without.
    """

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False

    def __call__(self) -> bool:
        """Whether it is to stop."""
        return self.is_set


@dataclass(frozen=True, slots=True)
class SubmodelRun:
    """What one step of a plan runs.

    Attributes:
        index: The step's.
        runner: That of the submodel.
        reads: Slots of its inputs.
        writes: Slots of its outputs.
        scratch: Memory that its calls may use while they run.
    """

    index: int
    runner: Runner
    reads: Sequence[int]
    writes: Sequence[int]
    scratch: np.ndarray[Any, Any] | None


class BoundSteps(BoundCall):
    """The calls of all submodels.

    The first call runs the submodels instead, and binds each right after its own run: a device may
    bind for the elements of an input, and later steps may write over them. Tensors that cross and
    that nobody has planned, as their shapes vary from request to request, are allocated then.

    Args:
        runs: What is run, in the order of the plan.
        tensors: By slot what is read and written; not those that are yet to be allocated.
        executor: Says whether submodels run at the same time.
        schedule: Which step waits for which.
        stop: Set while it is to stop.
        note: Told what each step took, if that is watched.
    """

    def __init__(
        self,
        runs: Sequence[SubmodelRun],
        tensors: Mapping[int, Tensor],
        executor: Executor,
        schedule: Schedule,
        stop: StopFlag,
        note: Callable[[int, float], None] | None,
    ) -> None:
        self._tensors = dict(tensors)
        self._executor, self._schedule = executor, schedule
        self._stop = stop
        self._note = note
        self._in_turn = executor.one_at_a_time
        self._calls: dict[int, Callable[[], None]] = {
            run.index: partial(self._run_and_bind, run) for run in runs
        }

    def __call__(self) -> None:
        """Makes the calls.

        Raises:
            BoundCallEndedError: A tensor has another shape now.
            InferCancelledError: The request was cancelled.
        """
        stop = self._stop
        stop.is_set = False
        if not self._in_turn:
            self._executor.run(self._schedule, self._step, stop)
            return
        for index in self._calls:
            check_cancelled(stop)
            self._step(index)

    def _step(self, index: int) -> None:
        call = self._calls.get(index)
        if call is None:
            return  # a copy that runs make
        if self._note is None:
            call()
            return
        start = clock.seconds()
        call()
        self._note(index, clock.seconds() - start)

    def _run_and_bind(self, run: SubmodelRun) -> None:
        inputs = [self._tensors[slot] for slot in run.reads]
        targets = [self._tensors.get(slot) for slot in run.writes]
        for slot, result in zip(run.writes, run.runner.run(inputs, targets), strict=True):
            if slot not in self._tensors:
                self._tensors[slot] = host_zeros(result.shape, result.dtype)
            _deliver(result, self._tensors[slot])
        outputs = [self._tensors[slot] for slot in run.writes]
        call = run.runner.bind(inputs, outputs, run.scratch)
        self._calls[run.index] = call or partial(_run_into, run.runner, inputs, outputs)


def _run_into(runner: Runner, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Runs a submodel that its device does not bind."""
    for result, output in zip(runner.run(inputs, outputs), outputs, strict=True):
        _deliver(result, output)


def _deliver(result: Tensor, output: Tensor) -> None:
    """Brings a result to its tensor, if it is not there.

    Raises:
        BoundCallEndedError: It has another shape.
    """
    if result is output:
        return
    if result.shape != output.shape:
        raise BoundCallEndedError(
            f"A tensor has shape {list(result.shape)} now; it was bound as {list(output.shape)}."
        )
    output.copy_from(result)
