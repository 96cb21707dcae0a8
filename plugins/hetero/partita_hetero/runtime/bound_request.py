"""An assembly with one request's runners and tensors: what runs, step by step."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.device_model import DeviceModel, new_runner
from partita.contract.execution import ExecutedStep, Execution, MemoryRange
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import Runner
from partita.errors import PLUGIN_FAILURES, InferCancelledError, InferError, in_words
from partita.tensors.layout_tensor import LaidOutTensor
from partita.tensors.tensor import HOST, HostTensor, Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.in_place import in_place_pairs
from partita_hetero.compile.transfer_plan import (
    OwnCopies,
    PermuteKind,
    PermuteStep,
    RunStep,
    own_copies,
)
from partita_hetero.cost import clock
from partita_hetero.executors import DEFAULT, Cancelled, Executor
from partita_hetero.partition.submodels import Submodel
from partita_hetero.runtime.bound_steps import BoundSteps, StopFlag, SubmodelRun
from partita_hetero.runtime.call_timeout import TimeoutExceededError
from partita_hetero.runtime.drift import Paces
from partita_hetero.runtime.failover import Failover
from partita_hetero.runtime.nan_check import NanWatch, out_of_nothing
from partita_hetero.runtime.output_checks import OutputChecks
from partita_hetero.runtime.part_failure import PartFailedError
from partita_hetero.runtime.run_timeline import RunTimeline, profiling_info
from partita_hetero.runtime.whole_model import RUN, whole_model

_log = logging.getLogger("partita.hetero")


class BoundRequest:
    """An assembly with one request's runners and tensors.

    In its first run each submodel whose tensors are all planned is bound by its device; from then
    on its step is one call.

    Args:
        failover: What requests of the model share.
        assembly: The assembly; the model's present one, or one that is to be tried.
        executor: Runs the steps (defaults to the one that the model has).

    Attributes:
        abandoned: Whether a runner was given up while it ran, so that none must be closed.
        paces: How long steps take, if drifting devices are to be found.
        times: When steps ran, if requests note that.
    """

    def __init__(
        self, failover: Failover, assembly: Assembly, executor: Executor | None = None
    ) -> None:
        properties, model = failover.properties, failover.compilation.model
        self.assembly = assembly
        self._failover = failover
        self._core = failover.compilation.devices.core
        self._executor = executor or properties.executor
        self._watchdog = failover.watchdog
        self._nan = NanWatch()
        self._steps = assembly.plan.steps
        self._inputs = len(model.inputs)
        self._pieces = {piece.number: piece for piece in assembly.submodels}
        self._runners = {
            piece.number: _new_runner(piece, part)
            for piece, part in zip(assembly.submodels, assembly.compiled, strict=True)
        }
        self.abandoned = False
        self._failures: list[tuple[Submodel, BaseException]] = []
        self._slots: list[Tensor | None] = [None] * assembly.plan.slots
        self._prepared = assembly.prepare(self._core)
        self._planned = {slot: x for slot, x in enumerate(self._prepared) if x is not None}
        pairs = in_place_pairs(assembly, self._inputs)
        self._finals = {pair.written: pair.final for pair in pairs}
        self._state_of = {pair.input: pair.device for pair in pairs}
        self._outputs = [
            (slot, None if slot is not None else assembly.constants[port.name])
            for slot, port in zip(assembly.plan.outputs, model.outputs, strict=True)
        ]
        self._checks = OutputChecks(assembly, failover.expected_shapes, properties.REJECT_NAN)
        self.times = RunTimeline(assembly) if properties.PERF_COUNT else None
        self.paces = Paces(properties.HETERO_DRIFT_FACTOR, failover.running)
        # Where steps are timed, copies are steps of their own.
        copies = own_copies(assembly.plan) if self.times is None else OwnCopies({}, {})
        self._uploads, self._downloads = copies
        inputs = range(self._inputs)
        self._borrowing = [*inputs, *(to for to, of in copies.uploads.items() if of in inputs)]
        self._note_pace = self.paces.note if self.paces.watching else None
        can_bind = not properties.REJECT_NAN and self._watchdog is None
        self._can_bind = can_bind and self.times is None
        self._binds = can_bind  # until a run has ended well
        self._scratch = assembly.scratch(self._executor.one_at_a_time) if can_bind else {}
        self._calls: dict[int, BoundCall] = {}
        self._whole = whole_model(model, assembly) if can_bind and self.times is None else None
        self._given: dict[int, Tensor] = {}
        uses = Counter(slot for slot, _ in self._outputs)
        self._lendable = {slot for slot in assembly.plan.host_slots if uses[slot] == 1}

    # --------------------------------------------------------------------------- runs

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
            PartFailedError: A device failed.
            InferCancelledError: The request was cancelled.
        """
        self._failures = []
        inputs = [self._reachable(index, tensor) for index, tensor in enumerate(inputs)]
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
        self._slots[: self._inputs] = inputs
        if outputs is not None or self._given:
            self._lend(outputs or ())
        try:
            run = self._step if self.times is None else self._timed_step
            self._executor.run(self.assembly.schedule, run, cancelled)
            self._binds = False
            results = self._results()
            if self._nan.is_due() and not self._failover.told_of_nan:
                read = [self._read(slot) for slot in range(self._inputs)]
                if out_of_nothing(read, results) is not None:
                    self._find_nan(cancelled)
            return results
        finally:
            for slot in self._borrowing:
                self._slots[slot] = None  # the caller's arrays may go

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None,
        stop: StopFlag,
    ) -> BoundCall | None:
        """All calls of a run on these tensors, if it is nothing but calls of the devices' runners.

        Where one submodel is the whole model that is the device's own.
        """
        if self._whole is not None:
            return self._runners[self._whole.number].bind(inputs, outputs, scratch)
        steps = self._steps_to_bind() if self._can_bind else None
        tensors = self._tensors_to_bind(inputs, outputs)
        if steps is None or tensors is None:
            return None
        executor, schedule = self._executor, self.assembly.schedule
        return BoundSteps(steps, tensors, executor, schedule, stop, self._note_pace)

    def _steps_to_bind(self) -> list[SubmodelRun] | None:
        """The runs of submodels; ``None`` if there are copies that these cannot make."""
        host = {*self.assembly.plan.host_slots, *range(self._inputs)}
        steps = []
        for index, step in enumerate(self._steps):
            if isinstance(step, PermuteStep):
                (source,), (target,) = step.reads, step.writes
                if self._uploads.get(target) != source and self._downloads.get(source) != target:
                    return None
                continue
            reads = [self._uploads.get(slot, slot) for slot in step.reads]
            writes = [self._downloads.get(slot, slot) for slot in step.writes]
            if not host.issuperset(reads) or not host.issuperset(writes):
                return None
            runner, scratch = self._runners[step.submodel], self._scratch.get(index)
            steps.append(SubmodelRun(index, runner, reads, writes, scratch))
        return steps

    def _tensors_to_bind(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> dict[int, Tensor] | None:
        """By slot what calls are to read and write; ``None`` if an output is no submodel's."""
        tensors = {**self._planned, **dict(enumerate(inputs))}
        for (slot, _), tensor in zip(self._outputs, outputs, strict=True):
            if slot is None or slot not in self._lendable:
                return None
            tensors[slot] = tensor
        return tensors

    def cancel(self) -> None:
        """Asks all runners to stop."""
        for runner in self._runners.values():
            runner.cancel()

    def close(self) -> None:
        """Closes all runners."""
        for runner in self._runners.values():
            runner.close()

    def _run_whole(
        self, whole: Submodel, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None
    ) -> Sequence[Tensor]:
        try:
            start = 0.0 if self._note_pace is None else clock.seconds()
            results = self._runners[whole.number].run(inputs, outputs)
            if self._note_pace is not None:
                self._note_pace(RUN, clock.seconds() - start)
            if not self._checks.are_plain(whole.number, results):
                self._checks.check(whole.number, results, ())
                # A download that fails moves the model to another device; later it could not.
                given = {id(tensor) for tensor in outputs or ()}
                results = [
                    t if t.memory == HOST or id(t) in given else self._downloaded(index, t)
                    for index, t in enumerate(results)
                ]
            self.look_for_nan(inputs, results)
            return results
        except InferCancelledError:
            raise
        except PLUGIN_FAILURES as error:
            raise self._failed(whole, error) from error

    def _downloaded(self, index: int, result: Tensor) -> Tensor:
        """An output in host memory: where it is planned, which its device copies to quickly.

        Calls that are bound later write to the same place.
        """
        slot, _ = self._outputs[index]
        planned = None if slot is None else self._prepared[slot]
        if planned is None or (planned.shape, planned.dtype) != (result.shape, result.dtype):
            return HostTensor(result.numpy())
        result.copy_to(planned)
        return planned

    def _results(self) -> list[Tensor]:
        """The outputs; copies of those that are inputs or weights as they are."""
        results: list[Tensor] = []
        for slot, constant in self._outputs:
            if slot is None:
                results.append(HostTensor(np.array(constant)))
            elif slot < self._inputs:
                results.append(HostTensor(np.array(self._read(slot).numpy())))
            else:
                results.append(self._read(slot))
        return results

    def _lend(self, outputs: Sequence[Tensor | None]) -> None:
        """Has submodels write the model's outputs to tensors of the caller where they can.

        Calls that were bound to other memory for them are made no more. With a time limit nothing
        of the caller's is handed out: who is given up might write to it later.
        """
        if self._watchdog is not None:
            return
        self._given = {
            slot: tensor
            for (slot, _), tensor in zip(self._outputs, outputs, strict=False)
            if tensor is not None and slot in self._lendable and self._can_lend(tensor)
        }
        for slot in self._given:
            self._prepared[slot] = None

    def _can_lend(self, tensor: Tensor) -> bool:
        """Whether submodels can write an output to a tensor: of the host, or state of theirs."""
        return tensor.memory == HOST or any(tensor is x for x in self._slots[: self._inputs])

    def _reachable(self, index: int, tensor: Tensor) -> Tensor:
        """An input where its submodel reads it; state of a device that lost it is brought here."""
        if tensor.memory == HOST:
            return tensor
        device = self._state_of.get(index)
        if device is not None and self._core.can_share(device, tensor.memory):
            return tensor
        return HostTensor(tensor.numpy())

    def _target(self, slot: int) -> Tensor | None:
        """What a submodel is to write an output to; state, wherever that lies."""
        final = self._finals.get(slot)
        if final is not None and final in self._given:
            return self._given[final]
        slot = self._downloads.get(slot, slot)
        return self._given.get(slot, self._prepared[slot])

    # -------------------------------------------------------------------------- steps

    def _timed_step(self, index: int) -> None:
        start = clock.seconds()
        self._step(index)
        end = clock.seconds()
        step = self._steps[index]
        copied = self._slots[step.writes[0]] if isinstance(step, PermuteStep) else None
        if self.times is not None:
            self.times.note(index, start, end, 0 if copied is None else copied.nbytes)

    def explain_execution(self) -> Execution:
        """What each step is executed by, where host tensors lie, and how each runner works."""
        steps = []
        for index, step in enumerate(self._steps):
            tensors = [self._slots[slot] for slot in step.writes]
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
        parts = {number: runner.explain_execution() for number, runner in self._runners.items()}
        return Execution(tuple(steps), parts=parts)

    def _step(self, index: int) -> None:
        step = self._steps[index]
        if isinstance(step, PermuteStep):
            self._run_permute(step)
            return
        start = 0.0 if self._note_pace is None else clock.seconds()
        call = self._calls.get(index)
        if call is None or not self._make(call, step):
            self._run_submodel(step)
            if self._binds:
                self._bind_step(index, step)
        if self._note_pace is not None:
            self._note_pace(index, clock.seconds() - start)

    def _bind_step(self, index: int, step: RunStep) -> None:
        """Has the device bind a call for a step that has just run, if all its tensors are planned.

        That is right after its own run, since a call may be made for the elements of an input (a
        shape that crosses), and later steps may write over them. A tensor that the device has
        written elsewhere is not planned any more.
        """
        slots, prepared = self._slots, self._prepared
        for slot in step.writes:
            if slots[slot] is not prepared[slot]:
                prepared[slot] = None
        reads = [tensor for slot in step.reads if (tensor := prepared[slot]) is not None]
        writes = [tensor for slot in step.writes if (tensor := prepared[slot]) is not None]
        if len(reads) < len(step.reads) or len(writes) < len(step.writes):
            return
        runner = self._runners[step.submodel]
        try:
            call = runner.bind(reads, writes, self._scratch.get(index))
        except PLUGIN_FAILURES as error:
            raise self._failed(self._pieces[step.submodel], error) from error
        if call is not None:
            self._calls[index] = call

    def _make(self, call: BoundCall, step: RunStep) -> bool:
        """Makes a bound call; ``False`` if the step is to be run as any other.

        That is the case if an input lies elsewhere this time, if an output shall, and after a
        failure: the inputs are still there, so the run shows the failure again.
        """
        slots, prepared = self._slots, self._prepared
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
        slots, piece = self._slots, self._pieces[step.submodel]
        inputs = [slots[slot] for slot in step.reads]
        outputs = [self._target(slot) for slot in step.writes]
        run = self._runners[step.submodel].run
        try:
            if self._watchdog is not None:
                results = self._watchdog.run(piece.device, run, inputs, outputs)
            else:
                results = run(inputs, outputs)  # type: ignore[arg-type]  # all were written
            self._checks.check(step.submodel, results, outputs)
        except InferCancelledError:
            raise
        except PLUGIN_FAILURES as error:
            self.abandoned |= isinstance(error, TimeoutExceededError)
            raise self._failed(piece, error) from error
        for slot, tensor in zip(step.writes, results, strict=True):
            slots[slot] = tensor

    def _run_permute(self, step: PermuteStep) -> None:
        try:
            self._slots[step.writes[0]] = self._permuted(step)
        except PLUGIN_FAILURES as error:
            raise self._failed(self._end_of(step), error) from error

    def _permuted(self, step: PermuteStep) -> Tensor:
        source = self._read(step.reads[0])
        (slot,) = step.writes
        if step.kind is PermuteKind.UPLOAD:
            left = slot in self._uploads
            return source if left else self._core.transfer_to(step.device, source)
        target = self._given.get(slot, self._prepared[slot])
        if target is source:
            return target
        if target is not None:
            source.copy_to(target)
            return target
        if source.layout is not None:
            return LaidOutTensor(source.stored(), source.dtype, source.layout)
        return HostTensor(source.numpy())

    def _end_of(self, permute: PermuteStep) -> Submodel:
        """The submodel, on the Permute's device, that the tensor comes from or goes to."""
        touched = {*permute.reads, *permute.writes}
        ends = [
            self._pieces[step.submodel]
            for step in self._steps
            if isinstance(step, RunStep) and not touched.isdisjoint((*step.reads, *step.writes))
        ]
        return next((piece for piece in ends if piece.device == permute.device), ends[0])

    def _read(self, slot: int) -> Tensor:
        tensor = self._slots[slot]
        if tensor is None:
            raise InferError("The plan reads a tensor before it is written; please report this.")
        return tensor

    def _failed(self, piece: Submodel, error: BaseException) -> PartFailedError:
        """Notes a failure; of those that happen at the same time, only one is raised."""
        self._failures.append((piece, error))
        return PartFailedError(piece, error)

    # -------------------------------------------------------------- what was noticed

    def take_failures(self) -> list[tuple[Submodel, BaseException]]:
        """What failed in the last run, where submodels run at the same time; not kept any longer.

        An error holds the frames that it came through, and these the caller's arrays.
        """
        taken, self._failures = self._failures, []
        return taken

    def look_for_nan(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Looks at a run of the whole model, or at a bound call, if it is due."""
        if not self._nan.is_due() or self._failover.told_of_nan:
            return
        if self._whole is not None:
            self._tell_of_nan(self._whole, inputs, outputs)
        elif out_of_nothing(inputs, outputs) is not None:
            self._slots[: self._inputs] = inputs
            self._find_nan(lambda: False)

    def _find_nan(self, cancelled: Cancelled) -> None:
        """Runs the steps once more, one by one, and tells of the first that makes NaN."""

        def look(index: int) -> None:
            self._step(index)
            step = self._steps[index]
            if isinstance(step, RunStep):
                reads = [self._read(slot) for slot in step.reads]
                writes = [self._read(slot) for slot in step.writes]
                self._tell_of_nan(self._pieces[step.submodel], reads, writes)

        DEFAULT.run(self.assembly.schedule, look, cancelled)

    def _tell_of_nan(
        self, piece: Submodel, reads: Sequence[Tensor], writes: Sequence[Tensor]
    ) -> None:
        if not self._failover.told_of_nan:
            output = out_of_nothing(reads, writes)
            if output is not None:
                self._failover.report_nan(piece, output)

    def slow_parts(self, slowest: int) -> list[Submodel]:
        """The submodels to blame for a slow step, all of its device; a race has the last word.

        Args:
            slowest: The step, which comes first; or one that stands for all steps.
        """
        if self._whole is not None:
            return [self._whole]
        devices = self.assembly.schedule.devices
        return [
            self._pieces[step.submodel]
            for index in dict.fromkeys([slowest, *self.paces.slow_steps()])
            if isinstance(step := self._steps[index], RunStep)
            and devices[index] == devices[slowest]
        ]

    def device_spans(self) -> tuple[DeviceSpan, ...]:
        """When each step was run, if requests note that, and what devices tell beside it."""
        if self.times is None:
            return ()
        told = (span for runner in self._runners.values() for span in runner.device_spans())
        return (*self.times.device_spans(), *told)

    def counters(self) -> dict[int, Sequence[ProfilingInfo]]:
        """The devices' own counters of the last run, by submodel."""
        return {number: runner.profiling_info() for number, runner in self._runners.items()}

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of all submodels that keep any, and of the Permute steps if HETERO counts."""
        return profiling_info(self.assembly, self.counters(), self.times)


def _new_runner(piece: Submodel, part: DeviceModel) -> Runner:
    try:
        return new_runner(part)
    except PLUGIN_FAILURES as error:
        raise PartFailedError(piece, error) from error
