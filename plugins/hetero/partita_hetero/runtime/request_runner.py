"""HETERO's runner: runs the assembly for one request, and fails over when a device fails."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.execution import Execution
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import Runner
from partita.errors import (
    INPUT_FAULTS,
    PLUGIN_FAILURES,
    InferCancelledError,
    PartitaError,
    in_words,
)
from partita.tensors.tensor import Tensor
from partita_hetero.compile.executable import Assembly
from partita_hetero.compile.replicas import assembly_of_seat
from partita_hetero.partition.submodels import Submodel
from partita_hetero.planner.simulation.timeline import Timeline
from partita_hetero.runtime.bound_request import BoundRequest
from partita_hetero.runtime.bound_steps import BoundSteps, StopFlag
from partita_hetero.runtime.drift import PAYS, race
from partita_hetero.runtime.failover import Failover, request_assembly
from partita_hetero.runtime.submodel_failure import SubmodelFailedError
from partita_hetero.runtime.whole_model import WatchedBoundCall

_log = logging.getLogger("partita.hetero")


class HeteroRunner(Runner):
    """Runs the compiled model's assembly; finds another one when a device fails.

    A failing submodel is moved to the next device and the request repeated from its inputs. Only if
    that succeeds is the new assembly kept: what fails everywhere (bad input data) changes nothing.
    Where the model has replicas, the request is bound to one of them.

    Args:
        failover: What requests of the model share.
        seat: Which replica it is bound to (defaults to one that has room).
    """

    def __init__(self, failover: Failover, seat: int | None = None) -> None:
        self._failover = failover
        self._strict = failover.properties.STRICT
        self._stop = StopFlag()
        self._bound: BoundRequest | None = None
        self._parked: list[BoundRequest] = []  # of other variants of the same assembly
        self._left: BoundRequest | None = None  # its results may be read until the next run
        self._unready: SubmodelFailedError | None = None
        assembly = failover.assembly
        self._seat = failover.seats.choose(assembly.shares) if seat is None else seat
        failover.seats.take(self._seat)
        self._leave_seat = weakref.finalize(self, failover.seats.leave, self._seat)
        try:
            self._bound = BoundRequest(failover, assembly_of_seat(assembly, self._seat))
        except SubmodelFailedError as failure:
            if self._strict:
                failure.raise_infer_error()
            self._unready = (
                failure  # the first run moves the submodel, and knows whether that works
            )

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs all steps with the chosen executor."""
        self._stop.is_set = False
        if self._left is not None:
            self._leave(self._left)
            self._left = None
        assembly = self._failover.assembly_for(inputs, self._seat)
        bound, unready = self._bound, self._unready
        self._unready = None
        try:
            if unready is not None:
                raise unready
            if bound is None or bound.assembly is not assembly:
                bound = self._switch(assembly)
            results = bound.run(inputs, outputs, self._stop)
            if bound.times is not None:
                self._failover.measured = bound.times
            if bound.paces.drifted is not None:
                self._look_elsewhere(bound, inputs)
            return results
        except SubmodelFailedError as failure:
            if bound is not None and bound.abandoned:
                self._bound = None  # a runner that hung stays busy
            failures = _all_failures(failure, bound)
            if self._strict or isinstance(failure.error, INPUT_FAULTS):
                failure.raise_infer_error()
            return self._run_elsewhere(inputs, outputs, failure, failures)

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """The bound call of the device that runs the whole model, or those of all submodels."""
        bound = self._bound
        if bound is None or bound.assembly is not self._failover.assembly_for(inputs, self._seat):
            return None
        call = bound.bind(inputs, outputs, scratch, self._stop)
        if call is None:
            return None
        is_whole = not isinstance(call, BoundSteps)
        return WatchedBoundCall(self, self._failover, bound, call, inputs, outputs, is_whole)

    def _switch(self, assembly: Assembly) -> BoundRequest:
        """Goes on with another assembly; what was made for variants of the same one is kept."""
        current = set(map(id, self._failover.assembly.every()))
        waiting = [*self._parked, *([] if self._bound is None else [self._bound])]
        self._bound, self._parked = None, []
        for bound in waiting:
            if bound.assembly is assembly:
                self._bound = bound
            elif id(bound.assembly) in current:
                self._parked.append(bound)
            else:
                self._leave(bound)
        if self._bound is None:
            self._bound = BoundRequest(self._failover, assembly)
        return self._bound

    def _run_elsewhere(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        failure: SubmodelFailedError,
        failures: Sequence[tuple[Submodel, BaseException]],
    ) -> Sequence[Tensor]:
        """Repeats the request on other devices until one assembly runs it.

        Other requests may do the same at the same time. What they have moved already is not moved
        again, so that one fault of a device counts once, however many requests it hits.

        Raises:
            InputError: A device says that the inputs are at fault.
            InferError: No device computes them.
        """
        failover = self._failover
        failures = list(failures)
        while True:
            if self._stop.is_set:
                raise InferCancelledError("The request was cancelled.")
            try:
                remedy = failover.without(failures)
            except PartitaError as error:
                _log.info("no other device can run it: %s", error)
                failure.raise_infer_error()
            bound = None
            try:
                assembly = request_assembly(remedy.assembly, inputs, self._seat)
                bound = BoundRequest(failover, assembly)
                results = bound.run(inputs, outputs, self._stop)
            except SubmodelFailedError as again:
                self._leave(bound)
                if isinstance(again.error, INPUT_FAULTS):
                    again.raise_infer_error()
                failures += _all_failures(again, bound)
                continue
            if not failover.adopt(remedy):
                self._leave(bound)
                continue  # another request moved something else meanwhile: both must be moved
            self._leave(self._bound)
            self._bound = bound
            return results

    def _look_elsewhere(self, bound: BoundRequest, inputs: Sequence[Tensor]) -> None:
        """Moves a submodel whose device has become slow, if the model is faster elsewhere."""
        failover, found = self._failover, bound.paces.take()
        if found is None:
            return
        step, pace = found
        submodels = bound.slow_submodels(step)
        submodel, ops = submodels[0], sum(len(one.ops) for one in submodels)
        if not failover.reports_drift_first(submodel):
            return
        first = failover.first_op(submodel)
        why = (
            f"{submodel.device} has drifted: what runs its {ops} operations from '{first}' "
            f"took {pace.now * 1e3:.1f} ms, and usually takes {pace.usual * 1e3:.1f} ms"
        )
        if self._strict:
            failover.report(f"{why}; STRICT keeps them there.")
            return
        other = None

        def run(bound: BoundRequest) -> None:
            bound.run(inputs, None, self._stop)

        try:
            remedy = failover.without_drifted(submodels, f"{why}; elsewhere the model is faster.")
            assembly = request_assembly(remedy.assembly, inputs, self._seat)
            other = BoundRequest(failover, assembly)
            present_s, other_s = race(partial(run, bound), partial(run, other))
        except (PartitaError, SubmodelFailedError) as error:
            self._leave(other)
            if isinstance(error, InferCancelledError):
                raise
            failover.report(f"{why}; no other device can take them: {error}")
            return
        if other_s < PAYS * present_s and failover.adopt(remedy):
            self._left, self._bound = bound, other
            return
        self._leave(other)
        failover.report(
            f"{why}; elsewhere the model would take {other_s * 1e3:.1f} ms instead of "
            f"{present_s * 1e3:.1f} ms."
        )

    def _leave(self, bound: BoundRequest | None) -> None:
        """Closes what is not used any more; a device that cannot even do that is no news."""
        if bound is not None and not bound.abandoned:
            try:
                bound.close()
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                _log.info("closing a runner failed: %s", in_words(error))

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of all submodels that keep any, and of the Permute steps if HETERO counts."""
        return () if self._bound is None else self._bound.profiling_info()

    def explain_execution(self) -> Execution:
        """The steps of the last run, and how the submodels' runners work."""
        return Execution() if self._bound is None else self._bound.explain_execution()

    def device_spans(self) -> Sequence[DeviceSpan]:
        """When each submodel and Permute of the last run began and ended, if HETERO counts.

        After them what devices tell of submodels that they have run elsewhere.
        """
        return () if self._bound is None else self._bound.device_spans()

    def counters(self) -> dict[int, Sequence[ProfilingInfo]]:
        """The devices' own counters of the last run, by submodel."""
        return {} if self._bound is None else self._bound.counters()

    def submodel_seconds(self) -> dict[int, float]:
        """What each submodel of the last run took, if HETERO counts."""
        times = None if self._bound is None else self._bound.times
        return {} if times is None else times.submodel_seconds()

    def timeline(self) -> Timeline:
        """When each submodel and Permute of the last run began and ended, if HETERO counts."""
        times = None if self._bound is None else self._bound.times
        return Timeline(()) if times is None else times.timeline()

    def cancel(self) -> None:
        """Stops after the steps that are running."""
        self._stop.is_set = True
        bound = self._bound
        if bound is not None:
            bound.cancel()

    def close(self) -> None:
        """Closes the submodels' runners."""
        for bound in (self._bound, self._left, *self._parked):
            self._leave(bound)
        self._bound = self._left = None
        self._parked = []
        self._leave_seat()


def _all_failures(
    failure: SubmodelFailedError, bound: BoundRequest | None
) -> Sequence[tuple[Submodel, BaseException]]:
    """A failure with those that happened at the same time."""
    failures = [] if bound is None else bound.take_failures()
    if any(error is failure.error for _, error in failures):
        return failures
    return [(failure.submodel, failure.error)]
