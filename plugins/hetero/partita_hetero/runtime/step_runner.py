"""Runs the steps of one request: submodels, by runners or bound calls, and permutes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.device_model import DeviceModel, new_runner
from partita.contract.execution import ExecutedStep, Execution, MemoryRange
from partita.contract.runner import Runner, execution_of
from partita.errors import PLUGIN_FAILURES, InferCancelledError, in_words
from partita.tensors.tensor import HostTensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.transfer_plan import PermuteStep, RunStep
from partita_hetero.cost import clock
from partita_hetero.partition.submodels import Submodel
from partita_hetero.runtime.bound_steps import SubmodelRun
from partita_hetero.runtime.call_timeout import TimeoutExceededError, Watchdog
from partita_hetero.runtime.output_checks import OutputChecks
from partita_hetero.runtime.request_tensors import RequestTensors
from partita_hetero.runtime.submodel_failure import SubmodelFailedError

_log = logging.getLogger("partita.hetero")


class StepRunner:
    """Runs the steps of an assembly's plan on a request's tensors.

    In its first run each submodel whose tensors are all planned is bound by its device; from then
    on its step is one call.

    Args:
        assembly: Submodels and plan.
        runners: What runs each submodel, by its number.
        tensors: What they read and write.
        checks: What is asked of results.
        watchdog: Limits how long a device may take, if there is a limit.
        note_pace: Called with the time of each step, if drift is watched.

    Attributes:
        runners: What runs each submodel, by its number.
        submodels: The submodels, by number.
        binds: Whether steps are bound once they have run; until a run has ended well.
        scratch: By step, memory that bound calls may use while they run.
        abandoned: Whether a runner was given up while it ran, so that none must be closed.
    """

    def __init__(
        self,
        assembly: Assembly,
        runners: Mapping[int, Runner],
        tensors: RequestTensors,
        checks: OutputChecks,
        watchdog: Watchdog | None,
        note_pace: Callable[[int, float], None] | None,
    ) -> None:
        self._assembly = assembly
        self._steps = assembly.plan.steps
        self._tensors, self._checks = tensors, checks
        self._watchdog, self._note_pace = watchdog, note_pace
        self.submodels = {submodel.number: submodel for submodel in assembly.submodels}
        self.runners = runners
        self.binds = False
        self.scratch: Mapping[int, np.ndarray[Any, Any]] = {}
        self.abandoned = False
        self._calls: dict[int, BoundCall] = {}
        self._failures: list[tuple[Submodel, BaseException]] = []

    def run_step(self, index: int) -> None:
        """Runs a step of the plan.

        Raises:
            SubmodelFailedError: A device failed.
            InferCancelledError: The request was cancelled.
        """
        step = self._steps[index]
        if isinstance(step, PermuteStep):
            self._run_permute(step)
            return
        start = 0.0 if self._note_pace is None else clock.seconds()
        call = self._calls.get(index)
        if call is None or not self._make(call, step):
            self._run_submodel(step)
            if self.binds:
                self._bind_step(index, step)
        if self._note_pace is not None:
            self._note_pace(index, clock.seconds() - start)

    def _bind_step(self, index: int, step: RunStep) -> None:
        """Has the device bind a call for a step that has just run, if all its tensors are planned.

        That is right after its own run, since a call may be made for the elements of an input (a
        shape that crosses), and later steps may write over them. A tensor that the device has
        written elsewhere is not planned any more.
        """
        slots, prepared = self._tensors.slots, self._tensors.prepared
        for slot in step.writes:
            if slots[slot] is not prepared[slot]:
                prepared[slot] = None
        reads = [tensor for slot in step.reads if (tensor := prepared[slot]) is not None]
        writes = [tensor for slot in step.writes if (tensor := prepared[slot]) is not None]
        if len(reads) < len(step.reads) or len(writes) < len(step.writes):
            return
        runner = self.runners[step.submodel]
        try:
            call = runner.bind(reads, writes, self.scratch.get(index))
        except PLUGIN_FAILURES as error:
            raise self.failed(self.submodels[step.submodel], error) from error
        if call is not None:
            self._calls[index] = call

    def _make(self, call: BoundCall, step: RunStep) -> bool:
        """Makes a bound call; ``False`` if the step is to be run as any other.

        That is the case if an input lies elsewhere this time, if an output shall, and after a
        failure: the inputs are still there, so the run shows the failure again.
        """
        slots, prepared = self._tensors.slots, self._tensors.prepared
        for slot in step.reads:
            if slots[slot] is not prepared[slot]:
                return False
        for slot in step.writes:
            if prepared[slot] is None:
                return False
        try:
            call()
        except InferCancelledError:
            raise
        except PLUGIN_FAILURES as error:  # raised again by the run, with its name
            _log.info(
                "running a submodel as any other, since its bound call failed: %s",
                in_words(error),
            )
            return False
        for slot in step.writes:
            slots[slot] = prepared[slot]
        return True

    def _run_submodel(self, step: RunStep) -> None:
        slots, submodel = self._tensors.slots, self.submodels[step.submodel]
        inputs = [slots[slot] for slot in step.reads]
        outputs = self._tensors.targets(step.writes)
        run = self.runners[step.submodel].run
        try:
            if self._watchdog is not None:
                results = self._watchdog.run(submodel.device, run, inputs, outputs)
            else:
                results = run(inputs, outputs)  # type: ignore[arg-type]  # all were written
            self._checks.check(step.submodel, results, outputs, inputs)
        except InferCancelledError:
            raise
        except PLUGIN_FAILURES as error:
            self.abandoned |= isinstance(error, TimeoutExceededError)
            raise self.failed(submodel, error) from error
        for slot, tensor in zip(step.writes, results, strict=True):
            slots[slot] = tensor

    def _run_permute(self, step: PermuteStep) -> None:
        try:
            self._tensors.slots[step.writes[0]] = self._tensors.permuted(step)
        except PLUGIN_FAILURES as error:
            raise self.failed(self._end_of(step), error) from error

    def _end_of(self, permute: PermuteStep) -> Submodel:
        """The submodel, on the Permute's device, that the tensor comes from or goes to."""
        touched = {*permute.reads, *permute.writes}
        ends = [
            self.submodels[step.submodel]
            for step in self._steps
            if isinstance(step, RunStep) and not touched.isdisjoint((*step.reads, *step.writes))
        ]
        return next((submodel for submodel in ends if submodel.device == permute.device), ends[0])

    def failed(self, submodel: Submodel, error: BaseException) -> SubmodelFailedError:
        """Notes a failure; of those that happen at the same time, only one is raised."""
        self._failures.append((submodel, error))
        return SubmodelFailedError(submodel, error)

    def take_failures(self) -> list[tuple[Submodel, BaseException]]:
        """What failed in the last run, where submodels run at the same time; not kept any longer.

        An error holds the frames that it came through, and these the caller's arrays.
        """
        taken, self._failures = self._failures, []
        return taken

    def runs_to_bind(self, inputs: int) -> list[SubmodelRun] | None:
        """The runs of submodels; ``None`` if there are copies that these cannot make.

        Args:
            inputs: How many inputs the model has; they are the first slots.
        """
        host = {*self._assembly.plan.host_slots, *range(inputs)}
        uploads, downloads = self._tensors.uploads, self._tensors.downloads
        runs = []
        for index, step in enumerate(self._steps):
            if isinstance(step, PermuteStep):
                (source,), (target,) = step.reads, step.writes
                if uploads.get(target) != source and downloads.get(source) != target:
                    return None
                continue
            reads = [uploads.get(slot, slot) for slot in step.reads]
            writes = [downloads.get(slot, slot) for slot in step.writes]
            if not host.issuperset(reads) or not host.issuperset(writes):
                return None
            runner, scratch = self.runners[step.submodel], self.scratch.get(index)
            runs.append(SubmodelRun(index, runner, reads, writes, scratch))
        return runs

    def explain_execution(self) -> Execution:
        """What each step is executed by, where host tensors lie, and how each runner works."""
        steps = []
        for index, step in enumerate(self._steps):
            tensors = [self._tensors.slots[slot] for slot in step.writes]
            writes = tuple(
                MemoryRange(tensor.numpy().ctypes.data, tensor.nbytes)
                for tensor in tensors
                if isinstance(tensor, HostTensor)
            )
            if isinstance(step, RunStep):
                name = f"subgraph{step.submodel}"
                how = "bound call" if index in self._calls else "run"
            else:
                name, how = step.name, step.kind
            steps.append(ExecutedStep(name, how, writes=writes))
        submodels = {
            number: execution_of(runner, self.submodels[number].device)
            for number, runner in self.runners.items()
        }
        return Execution(tuple(steps), submodels=submodels)


def new_runners(assembly: Assembly) -> dict[int, Runner]:
    """What runs each submodel, by its number.

    Raises:
        SubmodelFailedError: A device makes none.
    """
    return {
        submodel.number: _new_runner(submodel, device_model)
        for submodel, device_model in zip(assembly.submodels, assembly.compiled, strict=True)
    }


def _new_runner(submodel: Submodel, device_model: DeviceModel) -> Runner:
    try:
        return new_runner(device_model)
    except PLUGIN_FAILURES as error:
        raise SubmodelFailedError(submodel, error) from error
