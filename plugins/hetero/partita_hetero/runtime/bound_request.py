"""An assembly with one request's runners and tensors: what runs, step by step or joined."""

from __future__ import annotations

import logging
import operator
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.contract.profiling import ProfilingInfo
from partita.errors import InferCancelledError, InferError
from partita.runtime.compiled_model import BoundCall, CompiledModel, Runner
from partita.runtime.result_check import ResultCheck
from partita.tensors.layout import LaidOutTensor
from partita.tensors.tensor import HOST, HostTensor, Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.joining import bring_together
from partita_hetero.compile.transfer_plan import PermuteKind, PermuteStep, RunStep, Step
from partita_hetero.compiled_model import HeteroCompiledModel
from partita_hetero.cost import clock
from partita_hetero.partition.submodels import Submodel
from partita_hetero.planner.simulation.timeline import Span, Timeline
from partita_hetero.runtime.bound_calls import (
    BoundCallFailedError,
    Link,
    Linker,
    bind_each,
    idle_steps,
    join_lanes,
    run_links,
)
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

    def __init__(self, compiled: HeteroCompiledModel, assembly: Assembly) -> None:
        self.assembly = assembly
        self._core = compiled.core
        # No cycle: the model may keep the last request that counted.
        self._compiled: HeteroCompiledModel = weakref.proxy(compiled)  # type: ignore[assignment]
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
        self._windows = tuple(prepared)
        self._idle = frozenset(idle_steps(self._steps, assembly.joined))
        self._links: list[Link] | None = None
        self._executor = compiled.properties.HETERO_EXECUTOR
        counts = self._count and self._executor != "PARALLEL"  # there, joined calls tell times
        self._may_link = not (counts or self._reject_nan or self._watchdog is not None)
        self._calls: dict[int, BoundCall] = {}
        self._links_at_all = self._may_link
        self._given: dict[int, Tensor] = {}
        self.paces = Paces(compiled.properties.HETERO_DRIFT_FACTOR)
        self._note = self.paces.note if self.paces.watching else None
        self._whole = self._whole_run(compiled)
        wanted = Counter(slot for slot, _ in self._outputs)
        self._lendable = {slot for slot in assembly.plan.host_slots if wanted[slot] == 1}

    def _whole_run(self, compiled: HeteroCompiledModel) -> WholeRun | None:
        """How the whole model is run, if one submodel is all of it."""
        piece = whole_model(compiled, self.assembly)
        if piece is None or self._count or not self._may_link:
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

    def _run_and_link(self, cancelled: Callable[[], bool]) -> list[Link] | None:
        """Runs the steps in order and binds each when it has run, as what it read is there then.

        Returns:
            Calls for runs of steps, where nothing has to be looked at between steps.
        """
        needed = max((part.scratch_bytes for part in self.assembly.compiled), default=0)
        linker = Linker(
            self._steps,
            self._runners,
            self._prepared,
            self._blame,
            np.empty(needed, np.uint8) if needed else None,
            self.assembly.joined,
        )

        def run_and_bind(index: int) -> None:
            self._step(index)
            self._note_writes(self._steps[index])
            linker.add(index)

        run_linear(self.assembly.schedule, run_and_bind, cancelled)
        return linker.links if any(one.call is not None for one in linker.links) else None

    def _note_writes(self, step: Step) -> None:
        """Forgets the tensors that were planned for a step, where its device has written others."""
        for slot in step.writes:
            if self._slots[slot] is not self._prepared[slot]:
                self._prepared[slot] = None

    def _link_lanes(self) -> list[Link] | None:
        """One call for all steps if there can be one; otherwise binds each by itself.

        Comes after a run step by step, which has shown what devices write where it was planned.
        What crosses is still there, as its memory is used once in a request. By itself, a step
        that reads what the application brings is not bound.
        """
        for step in self._steps:
            self._note_writes(step)
        scratch = self.assembly.scratch()
        if self._executor == "PARALLEL":
            self._prepared[: self._inputs] = self._slots[: self._inputs]
            self._calls = self._bind_each(scratch)
            if all(self._movable(index, call) for index, call in self._calls.items()):
                joined = join_lanes(self._calls, self.assembly.schedule, self._idle)
                if joined is not None and not (self._count and not joined.times()):
                    return [Link(0, len(self._steps) - 1, joined)]
            self._prepared[: self._inputs] = [None] * self._inputs
        self._calls = self._bind_each(scratch)
        return None

    def _bind_each(self, scratch: Mapping[int, np.ndarray[Any, Any]]) -> dict[int, BoundCall]:
        return bind_each(
            *(self._steps, self._runners, self._prepared, self._blame, scratch), self._idle
        )

    def _movable(self, index: int, call: BoundCall) -> bool:
        """Whether a call can read other inputs of the model, if it reads any."""
        reads = self._steps[index].reads
        if all(slot >= self._inputs for slot in reads):
            return True
        return call.rebind([self._read(slot) for slot in reads])

    def _bring_inputs(self) -> bool:
        """Lets the bound steps read this request's inputs; whether all of them can."""
        given, bound = self._slots[: self._inputs], self._prepared[: self._inputs]
        if all(map(operator.is_, given, bound)):
            return True
        self._prepared[: self._inputs] = [None] * self._inputs  # until all read the new ones
        for index, call in self._calls.items():
            reads = self._steps[index].reads
            if any(slot < self._inputs for slot in reads) and not call.rebind(
                [self._read(slot) for slot in reads]
            ):
                return False
        self._prepared[: self._inputs] = given
        return True

    def _blame(self, step: RunStep, error: Exception) -> PartFailedError:
        return self._failed(self._pieces[step.submodel], error)

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
            if isinstance(step, RunStep) and index not in self._idle
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

        Runs that were bound to other memory for them are bound anew, without these outputs. With a
        time limit nothing of the caller's is handed out: who is given up might write to it later.
        """
        if self._watchdog is not None:
            return
        self._given = {
            slot: tensor
            for (slot, _), tensor in zip(self._outputs, outputs, strict=False)
            if tensor is not None and slot in self._lendable
        }
        if any(self._prepared[slot] is not None for slot in self._given):
            for slot in self._given:
                self._prepared[slot] = None
            self._links, self._may_link, self._calls = None, self._links_at_all, {}

    def _compute(
        self, execute: Callable[..., None], cancelled: Callable[[], bool]
    ) -> Sequence[Tensor]:
        if not self._run_links(cancelled):
            self._run_steps(execute, cancelled)
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

    def _run_steps(self, execute: Callable[..., None], cancelled: Callable[[], bool]) -> None:
        """Runs all steps one by one, and binds them if that may help from the next run on."""
        if self._may_link and self._executor == "LINEAR":
            self._links = self._run_and_link(cancelled)
        else:
            step = self._timed_step if self._count else self._step
            execute(self.assembly.schedule, step, cancelled)
            if self._may_link:
                self._links = self._link_lanes()
        self._may_link = False

    def _run_links(self, cancelled: Callable[[], bool]) -> bool:
        """Runs what was bound; ``False`` if all steps are to be run (again), one by one."""
        if self._links is None:
            return False
        if self._executor == "PARALLEL" and not self._bring_inputs():
            self._links, self._may_link = None, True
            return False
        try:
            run_links(self._links, self._linked_step, cancelled, self._note)
        except (BoundCallFailedError, _DeclinedError) as error:
            _log.info("running step by step, since joined runs failed: %r", error.__cause__)
            self._links, self._may_link = None, True
            return False
        if self._count:
            self._note_times([t for one in self._links if one.call for t in one.call.times()])
        return True

    def _note_times(self, times: Sequence[tuple[float, float]]) -> None:
        """Takes over when steps began and ended; idle ones when the last they wait for did."""
        found = iter(times)
        for index, waits in enumerate(self.assembly.schedule.waits):
            if index in self._idle:
                ended = max(self._times[other][1] for other in waits)
                self._times[index] = ended, ended
            else:
                start, end = next(found)
                self._times[index] = start * 1e6, end * 1e6

    def _linked_step(self, index: int) -> None:
        """Runs a step that is not bound; those that are read its tensors where they were planned.

        Raises:
            _DeclinedError: Its device has not written one there, though it did before.
        """
        self._step(index)
        for slot in self._steps[index].writes:
            if self._prepared[slot] is not None and self._slots[slot] is not self._prepared[slot]:
                raise _DeclinedError

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
                self._run_submodel(index, step)
            if self._note is not None:
                self._note(index, index, clock.seconds() - start)
            return
        try:
            self._slots[step.writes[0]] = self._permute(step)
        except Exception as error:
            raise self._failed(self._end_of(step), error) from error

    def _repeat(self, call: BoundCall, step: RunStep) -> bool:
        """Makes a bound call; ``False`` if the step is to be run as any other.

        That is the case if an input lies elsewhere this time, and after a failure: the memory of
        what crosses is not used twice in one request, so the run shows the failure again.
        """
        slots, prepared = self._slots, self._prepared
        for slot in step.reads:
            if slots[slot] is not prepared[slot]:
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

    def _run_submodel(self, index: int, step: RunStep) -> None:
        slots = self._slots
        if index in self._idle:
            bring_together(slots, self._windows, step.reads)
            slots[step.writes[0]] = self._windows[step.writes[0]]
            return
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
        for one in self._links or ():
            if one.call is not None:
                one.call.cancel()

    def close(self) -> None:
        """Closes all runners."""
        for runner in self._runners.values():
            runner.close()


class _DeclinedError(Exception):
    """A device has not written to the tensor that was planned for it."""


def _new_runner(piece: Submodel, part: CompiledModel) -> Runner:
    try:
        return part.create_runner()
    except Exception as error:
        raise PartFailedError(piece, error) from error


def _permute_info(step: PermuteStep, microseconds: float) -> ProfilingInfo:
    return ProfilingInfo(
        step.name, "Permute", step.kind, real_time_us=microseconds, cpu_time_us=microseconds
    )
