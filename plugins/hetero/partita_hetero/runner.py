"""One request of HETERO: a slot per tensor that crosses, filled step by step."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.compiled_model import Runner
from partita.errors import InferCancelledError, InferError, PartitaError
from partita.profiling import ProfilingInfo
from partita.tensor import HostTensor, Tensor
from partita_hetero.assembly import Assembly
from partita_hetero.compiled import HeteroCompiledModel
from partita_hetero.executor import EXECUTORS, timed
from partita_hetero.submodels import Submodel
from partita_hetero.transfer import PermuteKind, PermuteStep, RunStep

_log = logging.getLogger("partita.hetero")


class PartFailedError(Exception):
    """A submodel's device failed; carries which one and the device's own error."""

    def __init__(self, piece: Submodel, error: Exception) -> None:
        super().__init__(str(error))
        self.piece = piece
        self.error = error


class HeteroRunner(Runner):
    """Runs the compiled model's assembly; finds another one when a device fails.

    A failing part is moved to the next device and the request repeated from its inputs. Only if
    that succeeds is the new assembly kept: what fails everywhere (bad input data) changes nothing.
    """

    def __init__(self, compiled: HeteroCompiledModel) -> None:
        self._compiled = compiled
        self._properties = compiled.properties
        self._execute = EXECUTORS[compiled.properties.HETERO_EXECUTOR]
        self._cancelled = False
        self._bound = _Bound(compiled, compiled.assembly)

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs all steps with the chosen executor."""
        self._cancelled = False
        if self._bound.assembly is not self._compiled.assembly:
            self._bound = _Bound(self._compiled, self._compiled.assembly)
        try:
            return self._bound.run(inputs, self._execute, self._is_cancelled)
        except PartFailedError as failure:
            if self._properties.STRICT:
                raise _as_infer_error(failure) from failure.error
            return self._run_elsewhere(inputs, failure)

    def _run_elsewhere(
        self, inputs: Sequence[Tensor], failure: PartFailedError
    ) -> Sequence[Tensor]:
        start = self._bound.assembly
        failures = [(failure.piece, failure.error)]
        while True:
            try:
                assembly, excluded = self._compiled.without(start, failures)
            except PartitaError as error:
                _log.info("no other device can run it: %s", error)
                self._bound = _Bound(self._compiled, start)  # a runner that hung stays busy
                raise _as_infer_error(failure) from failure.error
            bound = _Bound(self._compiled, assembly)
            try:
                results = bound.run(inputs, self._execute, self._is_cancelled)
            except PartFailedError as again:
                failures.append((again.piece, again.error))
                continue
            self._compiled.adopt(assembly, excluded, failures)
            self._bound = bound
            return results

    def _is_cancelled(self) -> bool:
        return self._cancelled

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of all submodels that keep any, and of the Permute steps if HETERO counts."""
        return self._bound.profiling_info()

    def cancel(self) -> None:
        """Stops after the steps that are running."""
        self._cancelled = True
        self._bound.cancel()

    def close(self) -> None:
        """Closes the submodels' runners."""
        self._bound.close()


class _Bound:
    """An assembly with one request's runners and tensors."""

    def __init__(self, compiled: HeteroCompiledModel, assembly: Assembly) -> None:
        self.assembly = assembly
        self._core = compiled.core
        self._steps = assembly.plan.steps
        self._inputs = len(compiled.inputs)
        self._pieces = {piece.number: piece for piece in assembly.submodels}
        self._ports = {
            piece.number: part.outputs
            for piece, part in zip(assembly.submodels, assembly.compiled, strict=True)
        }
        self._runners = {
            piece.number: part.create_runner()
            for piece, part in zip(assembly.submodels, assembly.compiled, strict=True)
        }
        self._slots: list[Tensor | None] = [None] * assembly.plan.slots
        prepared = assembly.prepare()
        self._prepared_of = [[prepared[slot] for slot in step.writes] for step in self._steps]
        self._outputs = [
            (slot, None if slot is not None else HostTensor(assembly.constants[port.name]))
            for slot, port in zip(assembly.plan.outputs, compiled.outputs, strict=True)
        ]
        self._count = compiled.properties.PERF_COUNT
        self._times = [0.0] * len(self._steps)
        self._reject_nan = compiled.properties.REJECT_NAN
        self._timeout_s = compiled.properties.HETERO_TIMEOUT_MS / 1e3

    def run(
        self,
        inputs: Sequence[Tensor],
        execute: Callable[..., None],
        cancelled: Callable[[], bool],
    ) -> Sequence[Tensor]:
        self._slots[: self._inputs] = inputs
        try:
            return self._compute(execute, cancelled)
        finally:
            self._slots[: self._inputs] = [None] * self._inputs  # the caller's arrays may go

    def _compute(
        self, execute: Callable[..., None], cancelled: Callable[[], bool]
    ) -> Sequence[Tensor]:
        step = self._timed_step if self._count else self._step
        execute(self.assembly.schedule, step, cancelled)
        results: list[Tensor] = []
        for slot, constant in self._outputs:
            tensor = constant if slot is None else self._read(slot)
            if slot is not None and slot < self._inputs:
                tensor = HostTensor(np.array(self._read(slot).numpy()))  # an input is an output
            results.append(tensor)  # type: ignore[arg-type]  # a constant where there is no slot
        return results

    def _read(self, slot: int) -> Tensor:
        tensor = self._slots[slot]
        if tensor is None:
            raise InferError("The plan reads a tensor before it is written; please report this.")
        return tensor

    def _timed_step(self, index: int) -> None:
        self._times[index] = timed(self._step, index)

    def _step(self, index: int) -> None:
        step = self._steps[index]
        if isinstance(step, RunStep):
            self._run_submodel(index, step)
        elif step.kind is PermuteKind.DOWNLOAD:
            self._slots[step.writes[0]] = HostTensor(self._read(step.reads[0]).numpy())
        else:
            source = self._read(step.reads[0])
            self._slots[step.writes[0]] = self._core.transfer_to(step.device, source)

    def _run_submodel(self, index: int, step: RunStep) -> None:
        slots = self._slots
        inputs = [slots[slot] for slot in step.reads]
        outputs = self._prepared_of[index]
        run = self._runners[step.submodel].run
        try:
            if self._timeout_s:
                results = _run_with_timeout(run, inputs, outputs, self._timeout_s)
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
            raise PartFailedError(self._pieces[step.submodel], error) from error
        for slot, tensor in zip(step.writes, results, strict=True):
            slots[slot] = tensor

    def _check(self, number: int, results: Sequence[Tensor]) -> None:
        """A device's answer must be what its ports promise."""
        ports = self._ports[number]
        if len(results) != len(ports):
            raise InferError(f"It returned {len(results)} tensors; {len(ports)} are due.")
        for port, tensor in zip(ports, results, strict=True):
            shape, due = tensor.shape, port.shape
            fits = port.dtype is None or tensor.dtype == port.dtype
            if fits and due is not None and shape != due:
                fits = len(shape) == len(due) and all(
                    have == want or not isinstance(want, int)
                    for have, want in zip(shape, due, strict=True)
                )
            if not fits:
                found = ", ".join(map(str, shape))
                raise InferError(
                    f"It returned {tensor.dtype}[{found}] as '{port.name}'; {port.describe()} is "
                    "due."
                )
            if self._reject_nan and tensor.dtype.kind == "f" and np.isnan(tensor.numpy()).any():
                raise InferError(f"It returned NaN in '{port.name}', and REJECT_NAN is set.")

    def profiling_info(self) -> Sequence[ProfilingInfo]:
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
                        )
                    )
            elif self._count:
                infos.append(_permute_info(step, self._times[index]))
        return infos

    def cancel(self) -> None:
        for runner in self._runners.values():
            runner.cancel()

    def close(self) -> None:
        for runner in self._runners.values():
            runner.close()


def _run_with_timeout(
    run: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | None],
    timeout_s: float,
) -> Sequence[Tensor]:
    """Runs on a thread of its own, which is given up, with all it holds, when time is over."""
    answer: list[Any] = []

    def work() -> None:
        try:
            answer.append(run(inputs, outputs))
        except BaseException as error:  # noqa: BLE001  # raised below, on the waiting thread
            answer.append(error)

    thread = threading.Thread(target=work, name="partita-hetero-timeout", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answer:
        raise InferError(f"It did not answer within {timeout_s * 1e3:.0f} ms (HETERO_TIMEOUT_MS).")
    if isinstance(answer[0], BaseException):
        raise answer[0]
    results: Sequence[Tensor] = answer[0]
    return results


def _as_infer_error(failure: PartFailedError) -> PartitaError:
    """The device's own error; wrapped if it is none of ours."""
    if isinstance(failure.error, PartitaError):
        return failure.error
    return InferError(
        f"Device '{failure.piece.device}' failed: {type(failure.error).__name__}: {failure.error}"
    )


def _permute_info(step: PermuteStep, microseconds: float) -> ProfilingInfo:
    return ProfilingInfo(
        step.name, "Permute", step.kind, real_time_us=microseconds, cpu_time_us=microseconds
    )
