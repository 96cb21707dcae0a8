"""One request of HETERO: runs the assembly, and finds another one when a device fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import Runner
from partita.errors import InferCancelledError, InferError, PartitaError
from partita.tensors.tensor import Tensor
from partita_hetero.device_model import HeteroModel
from partita_hetero.partition.submodels import Submodel
from partita_hetero.planner.simulation.timeline import Timeline
from partita_hetero.runtime.bound_request import Bound, PartFailedError
from partita_hetero.runtime.drift import PAYS, race
from partita_hetero.runtime.executor import EXECUTORS
from partita_hetero.runtime.whole_model import WholeBoundCall

_log = logging.getLogger("partita.hetero")


class HeteroRunner(Runner):
    """Runs the compiled model's assembly; finds another one when a device fails.

    A failing part is moved to the next device and the request repeated from its inputs. Only if
    that succeeds is the new assembly kept: what fails everywhere (bad input data) changes nothing.
    """

    def __init__(self, compiled: HeteroModel) -> None:
        self._compiled = compiled
        self._properties = compiled.properties
        self._execute = EXECUTORS[compiled.properties.HETERO_EXECUTOR]
        self._cancelled = False
        self._bound: Bound | None = None
        self._left: Bound | None = None  # what it returned may still be read until the next run
        self._unready: PartFailedError | None = None
        try:
            self._bound = Bound(compiled, compiled.assembly)
        except PartFailedError as failure:
            if self._properties.STRICT:
                raise _as_infer_error(failure) from failure.error
            self._unready = failure  # the first run moves the part, and knows whether that works

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs all steps with the chosen executor."""
        self._cancelled = False
        if self._left is not None:
            self._leave(self._left)
            self._left = None
        assembly = self._compiled.assembly
        bound, unready = self._bound, self._unready
        self._unready = None
        try:
            if unready is not None:
                raise unready
            if bound is None or bound.assembly is not assembly:
                self._leave(bound)
                bound = self._bound = Bound(self._compiled, assembly)
            results = bound.run(inputs, outputs, self._execute, self._is_cancelled)
            if self._properties.PERF_COUNT:
                self._compiled.counted = bound
            if bound.paces.drifted is not None:
                self._look_elsewhere(bound, inputs)
            return results
        except PartFailedError as failure:
            if bound is not None and bound.abandoned:
                self._bound = None  # a runner that hung stays busy
            if self._properties.STRICT:
                raise _as_infer_error(failure) from failure.error
            return self._run_elsewhere(inputs, outputs, failure, _all_failures(failure, bound))

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """A bound call of the device that runs the whole model; ``None`` if several take part."""
        bound = self._bound
        call = None if bound is None else bound.bind(inputs, outputs, scratch)
        if bound is None or call is None:
            return None
        return WholeBoundCall(self, self._compiled, bound, call, inputs, outputs)

    def _run_elsewhere(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        failure: PartFailedError,
        failures: Sequence[tuple[Submodel, Exception]],
    ) -> Sequence[Tensor]:
        """Repeats the request on other devices until one assembly runs it.

        Other requests may do the same at the same time. What they have moved already is not moved
        again, so that one fault of a device counts once, however many requests it hits.
        """
        compiled = self._compiled
        failures = list(failures)
        while True:
            if self._cancelled:
                raise InferCancelledError("The request was cancelled.")
            try:
                remedy = compiled.without(failures)
            except PartitaError as error:
                _log.info("no other device can run it: %s", error)
                raise _as_infer_error(failure) from failure.error
            bound = None
            try:
                bound = Bound(compiled, remedy.assembly)
                results = bound.run(inputs, outputs, self._execute, self._is_cancelled)
            except PartFailedError as again:
                self._leave(bound)
                failures += _all_failures(again, bound)
                continue
            if not compiled.adopt(remedy):
                self._leave(bound)
                continue  # another request moved something else meanwhile: both must be moved
            self._leave(self._bound)
            self._bound = bound
            return results

    def _look_elsewhere(self, bound: Bound, inputs: Sequence[Tensor]) -> None:
        """Moves a part whose device has become slow, if the model is faster without it there."""
        compiled, found = self._compiled, bound.paces.take()
        if found is None:
            return
        steps, pace = found
        pieces = bound.slow_parts(steps, inputs, self._is_cancelled)
        piece, ops = pieces[0], sum(len(one.ops) for one in pieces)
        if not compiled.first_to_tell(piece):
            return
        first = compiled.compilation.wiring.nodes[piece.ops[0]].name
        why = (
            f"{piece.device} has drifted: what runs its {ops} operations from '{first}' "
            f"took {pace.now * 1e3:.1f} ms, and usually takes {pace.usual * 1e3:.1f} ms"
        )
        if self._properties.STRICT:
            compiled.report(f"{why}; STRICT keeps them there.")
            return
        other = None

        def run(bound: Bound) -> None:
            bound.run(inputs, None, self._execute, self._is_cancelled)

        try:
            remedy = compiled.without_drifted(pieces, f"{why}; elsewhere the model is faster.")
            other = Bound(compiled, remedy.assembly)
            present_s, other_s = race(partial(run, bound), partial(run, other))
        except (PartitaError, PartFailedError) as error:
            self._leave(other)
            if isinstance(error, InferCancelledError):
                raise
            compiled.report(f"{why}; no other device can take them: {error}")
            return
        if other_s < PAYS * present_s and compiled.adopt(remedy):
            self._left, self._bound = bound, other
            return
        self._leave(other)
        compiled.report(
            f"{why}; elsewhere the model would take {other_s * 1e3:.1f} ms instead of "
            f"{present_s * 1e3:.1f} ms."
        )

    def _is_cancelled(self) -> bool:
        return self._cancelled

    def _leave(self, bound: Bound | None) -> None:
        """Closes what is not used any more; a device that cannot even do that is no news."""
        if bound is not None and not bound.abandoned:
            try:
                bound.close()
            except Exception as error:  # noqa: BLE001  # whatever a broken device raises
                _log.info("closing a runner failed: %s", error)

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of all submodels that keep any, and of the Permute steps if HETERO counts."""
        return () if self._bound is None else self._bound.profiling_info()

    def counters(self) -> dict[int, Sequence[ProfilingInfo]]:
        """The devices' own counters of the last run, by submodel."""
        return {} if self._bound is None else self._bound.counters()

    def part_seconds(self) -> dict[int, float]:
        """What each submodel of the last run took, if HETERO counts."""
        return {} if self._bound is None else self._bound.part_seconds()

    def timeline(self, name: str = "measured") -> Timeline:
        """When each submodel and Permute of the last run began and ended, if HETERO counts."""
        return Timeline(()) if self._bound is None else self._bound.timeline(name)

    def cancel(self) -> None:
        """Stops after the steps that are running."""
        self._cancelled = True
        bound = self._bound
        if bound is not None:
            bound.cancel()

    def close(self) -> None:
        """Closes the submodels' runners."""
        for bound in (self._bound, self._left):
            self._leave(bound)
        self._bound = self._left = None


def _all_failures(
    failure: PartFailedError, bound: Bound | None
) -> Sequence[tuple[Submodel, Exception]]:
    """A failure with those that happened at the same time."""
    if bound is not None and any(error is failure.error for _, error in bound.failures):
        return bound.failures
    return [(failure.piece, failure.error)]


def _as_infer_error(failure: PartFailedError) -> PartitaError:
    """The device's own error; wrapped if it is none of ours."""
    if isinstance(failure.error, PartitaError):
        return failure.error
    return InferError(
        f"Device '{failure.piece.device}' failed: {type(failure.error).__name__}: {failure.error}"
    )
