"""An assembly bound to one request: its runners and tensors, its runs, and checks after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.execution import Execution
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import counters_of
from partita.errors import PLUGIN_FAILURES, InferCancelledError
from partita.tensors.tensor import HOST, Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.transfer_plan import OwnCopies, PermuteStep, RunStep, own_copies
from partita_hetero.cost import clock
from partita_hetero.executors import DEFAULT, Cancelled, Executor
from partita_hetero.partition.submodels import Submodel
from partita_hetero.runtime.bound_steps import BoundSteps, StopFlag
from partita_hetero.runtime.drift import Paces
from partita_hetero.runtime.failover import Failover
from partita_hetero.runtime.nan_check import NanWatch, nan_from_finite
from partita_hetero.runtime.output_checks import OutputChecks
from partita_hetero.runtime.request_tensors import RequestTensors
from partita_hetero.runtime.run_timeline import RunTimeline, profiling_info
from partita_hetero.runtime.step_runner import StepRunner, new_runners
from partita_hetero.runtime.whole_model import RUN, whole_model


class BoundRequest:
    """An assembly with one request's runners and tensors.

    Args:
        failover: What requests of the model share.
        assembly: The assembly; the model's present one, or one that is to be tried.
        executor: Runs the steps (defaults to the one that the model has).

    Attributes:
        paces: How long steps take, if drifting devices are to be found.
        times: When steps ran, if requests note that.

    Raises:
        SubmodelFailedError: A device makes no runner.
    """

    def __init__(
        self, failover: Failover, assembly: Assembly, executor: Executor | None = None
    ) -> None:
        properties, model = failover.properties, failover.compilation.model
        self.assembly = assembly
        self._failover = failover
        self._executor = executor or properties.executor
        runners = new_runners(assembly)
        self._lends = failover.watchdog is None  # who is given up might write to it later
        self._nan = NanWatch()
        self._inputs = len(model.inputs)
        self._checks = OutputChecks(assembly, failover.expected_shapes, properties.REJECT_NAN)
        self.times = RunTimeline(assembly) if properties.PERF_COUNT else None
        self.paces = Paces(properties.HETERO_DRIFT_FACTOR, failover.running)
        self._note_pace = self.paces.note if self.paces.watching else None
        # Where steps are timed, copies are steps of their own.
        copies = own_copies(assembly.plan) if self.times is None else OwnCopies({}, {})
        self._tensors = RequestTensors(model, assembly, failover.compilation.devices.core, copies)
        self._steps = StepRunner(
            assembly, runners, self._tensors, self._checks, failover.watchdog, self._note_pace
        )
        can_bind = not properties.REJECT_NAN and failover.watchdog is None
        self._can_bind = can_bind and self.times is None
        if can_bind:
            self._steps.binds = True
            self._steps.scratch = assembly.scratch(self._executor.one_at_a_time)
        self._whole = whole_model(model, assembly) if self._can_bind else None

    @property
    def abandoned(self) -> bool:
        """Whether a runner was given up while it ran, so that none must be closed."""
        return self._steps.abandoned

    def run(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        cancelled: Cancelled,
    ) -> Sequence[Tensor]:
        """Runs all steps and returns the model's outputs.

        Args:
            inputs: One tensor per input of the model.
            outputs: Where results should go, as runners take it.
            cancelled: Whether the request is to stop.

        Raises:
            SubmodelFailedError: A device failed.
            InferCancelledError: The request was cancelled.
        """
        self._steps.take_failures()
        inputs = [
            tensor if tensor.memory == HOST else self._tensors.reachable(index, tensor)
            for index, tensor in enumerate(inputs)
        ]
        self.paces.begin(self._checks.expect(inputs))
        try:
            if self._whole is not None:
                return self._run_whole(self._whole, inputs, outputs)
            return self._run_steps(inputs, outputs, cancelled)
        finally:
            self.paces.end()

    def _run_steps(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        cancelled: Cancelled,
    ) -> Sequence[Tensor]:
        tensors = self._tensors
        tensors.begin(inputs, outputs, self._lends)
        try:
            run = self._steps.run_step if self.times is None else self._timed_step
            self._executor.run(self.assembly.schedule, run, cancelled)
            self._steps.binds = False
            results = tensors.results()
            looks = self._nan.is_due() and not self._failover.nan_reported
            if looks and nan_from_finite(tensors.inputs(), results) is not None:
                self._find_nan(cancelled)
            return results
        finally:
            tensors.end()

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None,
        stop: StopFlag,
    ) -> BoundCall | None:
        """One call for a run on these tensors, if devices' runners do all of it.

        Where one submodel is the whole model, that is its device's own.

        Args:
            inputs: One tensor per input of the model.
            outputs: One tensor per output.
            scratch: Memory that the call may use while it runs, if there is some.
            stop: Set by who cancels the request.

        Returns:
            The call; ``None`` if a run makes copies of its own.
        """
        if self._whole is not None:
            return self._steps.runners[self._whole.number].bind(inputs, outputs, scratch)
        runs = self._steps.runs_to_bind(self._inputs) if self._can_bind else None
        tensors = self._tensors.tensors_to_bind(inputs, outputs)
        if runs is None or tensors is None:
            return None
        executor, schedule = self._executor, self.assembly.schedule
        return BoundSteps(runs, tensors, executor, schedule, stop, self._note_pace)

    def cancel(self) -> None:
        """Asks all runners to stop."""
        for runner in self._steps.runners.values():
            runner.cancel()

    def close(self) -> None:
        """Closes all runners."""
        for runner in self._steps.runners.values():
            runner.close()

    def _run_whole(
        self, whole: Submodel, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None
    ) -> Sequence[Tensor]:
        try:
            start = 0.0 if self._note_pace is None else clock.seconds()
            results = self._steps.runners[whole.number].run(inputs, outputs)
            if self._note_pace is not None:
                self._note_pace(RUN, clock.seconds() - start)
            if not self._checks.are_plain(whole.number, results):
                self._checks.check(whole.number, results, (), ())
                # A download that fails moves the model to another device; later it could not.
                given = {id(tensor) for tensor in outputs or ()}
                results = [
                    t if t.memory == HOST or id(t) in given else self._tensors.downloaded(index, t)
                    for index, t in enumerate(results)
                ]
            self.look_for_nan(inputs, results)
            return results
        except InferCancelledError:
            raise
        except PLUGIN_FAILURES as error:
            raise self._steps.failed(whole, error) from error

    def _timed_step(self, index: int) -> None:
        start = clock.seconds()
        self._steps.run_step(index)
        end = clock.seconds()
        step = self.assembly.plan.steps[index]
        copied = self._tensors.slots[step.writes[0]] if isinstance(step, PermuteStep) else None
        if self.times is not None:
            self.times.note(index, start, end, 0 if copied is None else copied.nbytes)

    def explain_execution(self) -> Execution:
        """What each step is executed by, where host tensors lie, and how each runner works."""
        return self._steps.explain_execution()

    def take_failures(self) -> list[tuple[Submodel, BaseException]]:
        """What failed in the last run; see `StepRunner.take_failures`."""
        return self._steps.take_failures()

    def look_for_nan(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Looks at a run of the whole model, or at a bound call, if it is due."""
        if not self._nan.is_due() or self._failover.nan_reported:
            return
        if self._whole is not None:
            self._tell_of_nan(self._whole, inputs, outputs)
        elif nan_from_finite(inputs, outputs) is not None:
            self._tensors.set_inputs(inputs)
            self._find_nan(lambda: False)

    def _find_nan(self, cancelled: Cancelled) -> None:
        """Runs the steps once more, one by one, and tells of the first that makes NaN."""

        def look(index: int) -> None:
            self._steps.run_step(index)
            step = self.assembly.plan.steps[index]
            if isinstance(step, RunStep):
                reads = [self._tensors.read(slot) for slot in step.reads]
                writes = [self._tensors.read(slot) for slot in step.writes]
                self._tell_of_nan(self._steps.submodels[step.submodel], reads, writes)

        DEFAULT.run(self.assembly.schedule, look, cancelled)

    def _tell_of_nan(
        self, submodel: Submodel, reads: Sequence[Tensor], writes: Sequence[Tensor]
    ) -> None:
        if not self._failover.nan_reported:
            output = nan_from_finite(reads, writes)
            if output is not None:
                self._failover.report_nan(submodel, output)

    def slow_submodels(self, slowest: int) -> list[Submodel]:
        """The submodels to blame for a slow step, all of its device; a race has the last word.

        Args:
            slowest: The step, which comes first; or one that stands for all steps.
        """
        if self._whole is not None:
            return [self._whole]
        devices = self.assembly.schedule.devices
        return [
            self._steps.submodels[step.submodel]
            for index in dict.fromkeys([slowest, *self.paces.slow_steps()])
            if isinstance(step := self.assembly.plan.steps[index], RunStep)
            and devices[index] == devices[slowest]
        ]

    def device_spans(self) -> tuple[DeviceSpan, ...]:
        """When each step was run, if requests note that, and what devices tell beside it."""
        if self.times is None:
            return ()
        spans = (span for runner in self._steps.runners.values() for span in runner.device_spans())
        return (*self.times.device_spans(), *spans)

    def counters(self) -> dict[int, Sequence[ProfilingInfo]]:
        """The devices' own counters of the last run, by submodel."""
        return {
            number: counters_of(runner, self._steps.submodels[number].device)
            for number, runner in self._steps.runners.items()
        }

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of all submodels that keep any, and of the Permute steps if HETERO counts."""
        return profiling_info(self.assembly, self.counters(), self.times)
