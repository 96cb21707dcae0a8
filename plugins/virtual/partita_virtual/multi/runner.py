"""A request of MULTI: it runs where there is room, and elsewhere if a device fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.execution import Execution
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import Runner, run_into
from partita.errors import BoundCallEndedError, InferCancelledError
from partita.tensors.tensor import Tensor
from partita_virtual.multi.device_pool import Lane, Lanes


class MultiRunner(Runner):
    """Has a runner on every device that it has been on.

    Args:
        lanes: The devices.
        falls_back: Whether another device gets what one has failed on.
    """

    def __init__(self, lanes: Lanes, falls_back: bool) -> None:
        self._lanes = lanes
        self._falls_back = falls_back
        self._runners: dict[str, Runner] = {}
        self._present: Runner | None = None
        self._cancelled = False

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs on a free device; on others after it, if it fails."""
        self._cancelled = False
        failures: dict[str, Exception] = {}
        while (lane := self._lanes.acquire(failures, lambda: self._cancelled)) is not None:
            is_served = False
            try:
                results = self.on(lane).run(inputs, outputs)
                is_served = True
            except InferCancelledError:
                raise
            except Exception as error:  # whatever a broken device raises
                if not self._falls_back:
                    raise
                failures[lane.device] = error
            finally:
                self._lanes.release(lane, is_served)
            if is_served:
                self._lanes.retire(failures, lane.device)
                return results
        raise next(iter(failures.values()))

    def on(self, lane: Lane) -> Runner:
        """Its runner on a device, which is the one that it is on from now on."""
        runner = self._runners.get(lane.device)
        if runner is None:
            runner = self._runners[lane.device] = lane.compiled.create_runner()
        self._present = runner
        return runner

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """A call that is bound on each device when it has run there once."""
        return MultiBoundCall(self, self._lanes, inputs, outputs)

    def begin(self) -> None:
        """Forgets that an earlier run was cancelled."""
        self._cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether the present run is to stop."""
        return self._cancelled

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the device that was used last."""
        return () if self._present is None else self._present.profiling_info()

    def explain_execution(self) -> Execution:
        """How the device that was used last works."""
        return Execution() if self._present is None else self._present.explain_execution()

    def cancel(self) -> None:
        """Stops waiting for room, and asks the device to stop."""
        self._cancelled = True
        self._lanes.wake()
        present = self._present
        if present is not None:
            present.cancel()

    def close(self) -> None:
        """Closes the devices' runners."""
        runners, self._runners, self._present = self._runners, {}, None
        for runner in runners.values():
            runner.close()


class MultiBoundCall(BoundCall):
    """The bound calls of a request's devices, each made after its device has run once.

    Args:
        runner: The request's.
        lanes: The devices.
        inputs: What is read.
        outputs: What is written.
    """

    def __init__(
        self,
        runner: MultiRunner,
        lanes: Lanes,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        self._runner, self._lanes = runner, lanes
        self._inputs, self._outputs = inputs, outputs
        self._calls: dict[str, BoundCall | None] = {}

    def __call__(self) -> None:
        """Runs on a free device; after a failure as a run does."""
        self._runner.begin()
        lane = self._lanes.acquire((), lambda: self._runner.is_cancelled)
        is_served = False
        if lane is not None:
            try:
                self._call_on(lane)
                is_served = True
            except (InferCancelledError, BoundCallEndedError):
                raise
            except Exception:  # noqa: BLE001  # the run below tells what is wrong
                self._calls.clear()
            finally:
                self._lanes.release(lane, is_served)
        if not is_served:
            run_into(self._runner, self._inputs, self._outputs)

    def _call_on(self, lane: Lane) -> None:
        runner = self._runner.on(lane)
        call = self._calls.get(lane.device)
        if call is not None:
            call()
            return
        run_into(runner, self._inputs, self._outputs)
        if lane.device not in self._calls:
            self._calls[lane.device] = runner.bind(self._inputs, self._outputs)
