"""An assembly with one request's runners and tensors: what runs, step by step."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.device_model import DeviceModel
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import Runner
from partita.errors import InferCancelledError, InferError
from partita.runtime.result_check import ResultCheck
from partita.tensors.layout_tensor import LaidOutTensor
from partita.tensors.tensor import HOST, HostTensor, Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.transfer_plan import PermuteKind, PermuteStep, RunStep
from partita_hetero.cost import clock
from partita_hetero.device_model import HeteroModel
from partita_hetero.partition.submodels import Submodel
from partita_hetero.planner.simulation.timeline import Span, Timeline
from partita_hetero.runtime.call_timeout import TimeoutExceededError
from partita_hetero.runtime.drift import Paces
from partita_hetero.runtime.executor import run_linear
from partita_hetero.runtime.nan_check import NanWatch, out_of_nothing
from partita_hetero.runtime.whole_model import WholeRun, whole_model

_log = logging.getLogger("partita.hetero")


class PartFailedError(Exception):
    """A submodel's device failed; carries which one and the device's own error."""

    def __init__(self, piece: Submodel, error: Exception) -> None:
        super().__init__(str(error))
        self.piece = piece
        self.error = error


class Bound:
    """An assembly with one request's runners and tensors.

    Args:
        compiled: The compiled HETERO model.
        assembly: The assembly; the model's present one, or one that is to be tried.

    Attributes:
        assembly: The assembly.
        abandoned: Whether a runner was given up while it ran, so that none must be closed.
        failures: What failed in the last run, when several submodels run at the same time.
    """

    def __init__(self, compiled: HeteroModel, assembly: Assembly) -> None:
        self.assembly = assembly
        self._core = compiled.core
        # No cycle: the model may keep the last request that counted.
        self._compiled: HeteroModel = weakref.proxy(compiled)
        self._nan = NanWatch()
        self._steps = assembly.plan.steps
        self._inputs = len(compiled.inputs)
        self._pieces = {piece.number: piece for piece in assembly.submodels}
        self._ports = {
            piece.number: part.outputs
            for piece, part in zip(assembly.submodels, assembly.compiled, strict=True)
        }
        self._runners = {
            piece.number: _new_runner(piece, part)
            for piece, part in zip(assembly.submodels, assembly.compiled, strict=True)
        }
        self.abandoned = False
        self.failures: list[tuple[Submodel, Exception]] = []
        self._slots: list[Tensor | None] = [None] * assembly.plan.slots
        prepared = assembly.prepare(compiled.core)
        self._outputs = [
            (slot, None if slot is not None else HostTensor(assembly.constants[port.name]))
            for slot, port in zip(assembly.plan.outputs, compiled.outputs, strict=True)
        ]
        self._count = compiled.properties.PERF_COUNT
        self._times = [(0.0, 0.0)] * len(self._steps)
        self._reject_nan = compiled.properties.REJECT_NAN
        self._watchdog = compiled.watchdog
        self._due = compiled.due_shapes
        self._checks = {
            number: ResultCheck(ports, compiled.due_shapes) for number, ports in self._ports.items()
        }
        self._shapes: list[tuple[int, ...]] = []
        self._sizes: dict[str, int] = {}
        self._prepared = prepared
        self._binds = not self._reject_nan and self._watchdog is None
        self._scratch = (
            assembly.scratch(compiled.properties.HETERO_EXECUTOR != "PARALLEL")
            if self._binds
            else {}
        )
        self._calls: dict[int, BoundCall] = {}
        self._given: dict[int, Tensor] = {}
        self.paces = Paces(compiled.properties.HETERO_DRIFT_FACTOR)
        self._note = self.paces.note if self.paces.watching else None
        self._whole = self._whole_run(compiled)
        wanted = Counter(slot for slot, _ in self._outputs)
        self._lendable = {slot for slot in assembly.plan.host_slots if wanted[slot] == 1}

    def _whole_run(self, compiled: HeteroModel) -> WholeRun | None:
        """How the whole model is run, if one submodel is all of it."""
        piece = whole_model(compiled, self.assembly)
        if piece is None or self._count or not self._binds:
            return None
        return WholeRun(piece, self._runners[piece.number], self._checks[piece.number])

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None,
    ) -> BoundCall | None:
        """The device's own bound call, where one submodel is the whole model."""
        if self._whole is None or self._due.symbols:
            return None
        return self._whole.runner.bind(inputs, outputs, scratch)

    def _failed(self, piece: Submodel, error: Exception) -> PartFailedError:
        """Notes a failure; of those that happen at the same time, only one is raised."""
        self.failures.append((piece, error))
        return PartFailedError(piece, error)

    def run(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        execute: Callable[..., None],
        cancelled: Callable[[], bool],
    ) -> Sequence[Tensor]:
        """Runs all steps and returns the model's outputs.

        Args:
            inputs: One tensor per input of the model.
            outputs: Where results should go, as runners take it.
            execute: The executor.
            cancelled: Whether the request is to stop.

        Raises:
            PartFailedError: A device failed.
            InferCancelledError: The request was cancelled.
        """
        self.failures = []
        whole = self._whole
        if whole is not None:
            try:
                results = self._run_whole(whole, inputs, outputs)
                if not whole.is_plain(results):
                    self._note_sizes(inputs)
                    self._check(whole.piece.number, results)
                    # A download that fails moves the model to another device; later it could not.
                    results = [t if t.memory == HOST else HostTensor(t.numpy()) for t in results]
                if self._nan.is_due() and out_of_nothing(inputs, results) is not None:
                    self._tell_of_nan(len(self._steps) - 1, inputs, results)
                return results
            except InferCancelledError:
                raise
            except Exception as error:
                raise self._failed(whole.piece, error) from error
        self._note_sizes(inputs)
        self._slots[: self._inputs] = inputs
        if outputs is not None or self._given:
            self._take(outputs or ())
        try:
            return self._compute(execute, cancelled)
        finally:
            self._slots[: self._inputs] = [None] * self._inputs  # the caller's arrays may go

    def _run_whole(
        self, whole: WholeRun, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None
    ) -> Sequence[Tensor]:
        if self._note is None:
            return whole.run(inputs, outputs)
        if self._due.symbols:
            self.paces.for_shapes(tuple(tensor.shape for tensor in inputs))
        start = clock.seconds()
        results = whole.run(inputs, outputs)
        self._note(0, len(self._steps) - 1, clock.seconds() - start)
        return results

    def _note_sizes(self, inputs: Sequence[Tensor]) -> None:
        if self._due.symbols:
            self._shapes = [tensor.shape for tensor in inputs]
            self._sizes = self._due.sizes(self._shapes)
            self.paces.for_shapes(tuple(self._shapes))

    def slow_parts(
        self, steps: tuple[int, int], inputs: Sequence[Tensor], cancelled: Callable[[], bool]
    ) -> list[Submodel]:
        """The submodels to blame for slow steps, all of one device.

        Of steps in one call it is the one that takes longest when they run one by one. Others of
        its device go with it: in the same call those that take more than half as long, and
        elsewhere those that are slow by themselves. A race has the last word.
        """
        runs = [
            (index, step)
            for index, step in enumerate(self._steps[steps[0] : steps[1] + 1], steps[0])
            if isinstance(step, RunStep)
        ]
        if len(runs) > 1:
            self._note_sizes(inputs)
            self._slots[: self._inputs] = inputs
            run_linear(self.assembly.schedule, self._timed_step, cancelled)
            self._slots[: self._inputs] = [None] * self._inputs
        took = {index: end - start for index, (start, end) in enumerate(self._times)}
        slow = {index for index, _ in runs}
        worst = max(slow, key=lambda index: took[index])
        slow = {index for index in slow if took[index] >= took[worst] / 2}
        device = self.assembly.schedule.lanes[worst]
        return [
            self._pieces[step.submodel]
            for index in dict.fromkeys([worst, *sorted(slow), *self.paces.slow_steps()])
            if isinstance(step := self._steps[index], RunStep)
            and self.assembly.schedule.lanes[index] == device
        ]

    def _take(self, outputs: Sequence[Tensor | None]) -> None:
        """Has submodels write the model's outputs to tensors of the caller where they can.

        Calls that were bound to other memory for them are made no more. With a time limit nothing
        of the caller's is handed out: who is given up might write to it later.
        """
        if self._watchdog is not None:
            return
        self._given = {
            slot: tensor
            for (slot, _), tensor in zip(self._outputs, outputs, strict=False)
            if tensor is not None and slot in self._lendable
        }
        for slot in self._given:
            self._prepared[slot] = None

    def _compute(
        self, execute: Callable[..., None], cancelled: Callable[[], bool]
    ) -> Sequence[Tensor]:
        execute(self.assembly.schedule, self._timed_step if self._count else self._step, cancelled)
        self._binds = False
        results: list[Tensor] = []
        for slot, constant in self._outputs:
            tensor = constant if slot is None else self._read(slot)
            if slot is not None and slot < self._inputs:
                tensor = HostTensor(np.array(self._read(slot).numpy()))  # an input is an output
            results.append(tensor)  # type: ignore[arg-type]  # a constant where there is no slot
        if self._nan.is_due() and not self._compiled.nan_told:
            inputs = [self._read(slot) for slot in range(self._inputs)]
            if out_of_nothing(inputs, results) is not None:
                self._find_nan(cancelled)
        return results

    def _find_nan(self, cancelled: Callable[[], bool]) -> None:
        """Runs the steps once more, one by one, and tells of the first that makes NaN."""

        def look(index: int) -> None:
            self._step(index)
            step = self._steps[index]
            if isinstance(step, RunStep) and not self._compiled.nan_told:
                reads = [self._read(slot) for slot in step.reads]
                self._tell_of_nan(index, reads, [self._read(slot) for slot in step.writes])

        run_linear(self.assembly.schedule, look, cancelled)

    def _tell_of_nan(self, index: int, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        step, found = self._steps[index], out_of_nothing(reads, writes)
        if found is None or not isinstance(step, RunStep) or self._compiled.nan_told:
            return
        self._compiled.nan_told = True
        piece = self._pieces[step.submodel]
        first = self._compiled.compilation.wiring.nodes[piece.ops[0]].name
        self._compiled.report(
            f"{piece.device} returned NaN in '{piece.outputs[found]}' for finite inputs (submodel "
            f"{piece.number}, {len(piece.ops)} operations from '{first}'). If the model does not "
            "mean that, REJECT_NAN=YES has another device compute them."
        )

    def _read(self, slot: int) -> Tensor:
        tensor = self._slots[slot]
        if tensor is None:
            raise InferError("The plan reads a tensor before it is written; please report this.")
        return tensor

    def _timed_step(self, index: int) -> None:
        start = clock.seconds()
        self._step(index)
        self._times[index] = (start * 1e6, clock.seconds() * 1e6)

    def counters(self) -> dict[int, Sequence[ProfilingInfo]]:
        """The counters of each submodel, by its number."""
        return {number: runner.profiling_info() for number, runner in self._runners.items()}

    def part_seconds(self) -> dict[int, float]:
        """How long each submodel took in the last run, if HETERO counts."""
        return {
            step.submodel: (end - start) * 1e-6
            for step, (start, end) in zip(self._steps, self._times, strict=True)
            if isinstance(step, RunStep)
        }

    def timeline(self, name: str) -> Timeline:
        """When each step of the last run began and ended, if HETERO counts."""
        first = min((start for start, _ in self._times), default=0.0)
        spans = []
        for step, (start, end) in zip(self._steps, self._times, strict=True):
            if isinstance(step, RunStep):
                device, what = self._pieces[step.submodel].device, f"subgraph{step.submodel}"
                spans.append(Span(device, what, start - first, end - first))
            else:
                tensor = self._slots[step.writes[0]]
                nbytes = 0 if tensor is None else tensor.nbytes
                spans.append(
                    Span(step.device, step.name, start - first, end - first, "transfer", nbytes)
                )
        return Timeline(tuple(spans), name)

    def _step(self, index: int) -> None:
        step = self._steps[index]
        if isinstance(step, RunStep):
            start = 0.0 if self._note is None else clock.seconds()
            call = self._calls.get(index)
            if call is None or not self._repeat(call, step):
                self._run_submodel(step)
                if self._binds:
                    self._bind(index, step)
            if self._note is not None:
                self._note(index, index, clock.seconds() - start)
            return
        try:
            self._slots[step.writes[0]] = self._permute(step)
        except Exception as error:
            raise self._failed(self._end_of(step), error) from error

    def _bind(self, index: int, step: RunStep) -> None:
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
        except Exception as error:
            raise self._failed(self._pieces[step.submodel], error) from error
        if call is not None:
            self._calls[index] = call

    def _repeat(self, call: BoundCall, step: RunStep) -> bool:
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
        except Exception as error:  # noqa: BLE001  # raised again by the run, with its name
            _log.info("running a submodel step by step, since its call failed: %s", error)
            return False
        for slot in step.writes:
            slots[slot] = prepared[slot]
        return True

    def _permute(self, step: PermuteStep) -> Tensor:
        source = self._read(step.reads[0])
        if step.kind is PermuteKind.DOWNLOAD:
            target = self._prepared[step.writes[0]]
            if target is not None:
                source.copy_to(target)
                return target
            if source.layout is not None:
                return LaidOutTensor(source.stored(), source.dtype, source.layout)
            return HostTensor(source.numpy())
        return self._core.transfer_to(step.device, source)

    def _end_of(self, permute: PermuteStep) -> Submodel:
        """The submodel, on the Permute's device, that the tensor comes from or goes to."""
        touched = {*permute.reads, *permute.writes}
        ends = [
            self._pieces[step.submodel]
            for step in self._steps
            if isinstance(step, RunStep) and not touched.isdisjoint((*step.reads, *step.writes))
        ]
        return next((piece for piece in ends if piece.device == permute.device), ends[0])

    def _run_submodel(self, step: RunStep) -> None:
        slots = self._slots
        inputs = [slots[slot] for slot in step.reads]
        outputs = [self._given.get(slot, self._prepared[slot]) for slot in step.writes]
        run = self._runners[step.submodel].run
        try:
            if self._watchdog is not None:
                device = self._pieces[step.submodel].device
                results = self._watchdog.run(device, run, inputs, outputs)
            else:
                results = run(inputs, outputs)  # type: ignore[arg-type]  # all were written
            if self._reject_nan or len(results) != len(outputs):
                self._check(step.submodel, results)
            else:
                for result, prepared in zip(results, outputs, strict=True):
                    if result is not prepared:  # what was prepared fits
                        self._check(step.submodel, results)
                        break
        except InferCancelledError:
            raise
        except Exception as error:
            self.abandoned |= isinstance(error, TimeoutExceededError)
            raise self._failed(self._pieces[step.submodel], error) from error
        for slot, tensor in zip(step.writes, results, strict=True):
            slots[slot] = tensor

    def _check(self, number: int, results: Sequence[Tensor]) -> None:
        """A device's answer must be what its ports promise."""
        fault = self._checks[number].fault(results, self._shapes, self._sizes)
        if fault:
            raise InferError(f"It {fault}.")
        if self._reject_nan:
            for port, tensor in zip(self._ports[number], results, strict=True):
                if tensor.dtype.kind == "f" and np.isnan(tensor.numpy()).any():
                    raise InferError(f"It returned NaN in '{port.name}', and REJECT_NAN is set.")

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of all submodels that keep any, and of the Permute steps if HETERO counts."""
        infos: list[ProfilingInfo] = []
        for index, step in enumerate(self._steps):
            if isinstance(step, RunStep):
                for number, info in enumerate(self._runners[step.submodel].profiling_info(), 1):
                    infos.append(
                        ProfilingInfo(
                            f"subgraph{step.submodel}: {number}. {info.node_name}",
                            info.node_type,
                            info.exec_type,
                            info.status,
                            info.real_time_us,
                            info.cpu_time_us,
                            info.covers,
                        )
                    )
            elif self._count:
                start, end = self._times[index]
                infos.append(_permute_info(step, end - start))
        return infos

    def cancel(self) -> None:
        """Asks all runners to stop."""
        for runner in self._runners.values():
            runner.cancel()

    def close(self) -> None:
        """Closes all runners."""
        for runner in self._runners.values():
            runner.close()


def _new_runner(piece: Submodel, part: DeviceModel) -> Runner:
    try:
        return part.create_runner()
    except Exception as error:
        raise PartFailedError(piece, error) from error


def _permute_info(step: PermuteStep, microseconds: float) -> ProfilingInfo:
    return ProfilingInfo(
        step.name, "Permute", step.kind, real_time_us=microseconds, cpu_time_us=microseconds
    )
