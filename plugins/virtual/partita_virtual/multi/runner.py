"""A request of MULTI: it runs where there is room, and elsewhere if a device fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.bound_call import BoundCall
from partita.contract.device_model import new_runner
from partita.contract.execution import Execution
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import Runner, run_into
from partita.errors import INPUT_FAULTS, PLUGIN_FAILURES, BoundCallEndedError, InferCancelledError
from partita.tensors.tensor import Tensor
from partita_virtual.multi.device_pool import DevicePool, PooledDevice


class MultiRunner(Runner):
    """Has a runner on every device that it has been on.

    Args:
        pool: The devices.
        falls_back: Whether another device gets what one has failed on.
    """

    def __init__(self, pool: DevicePool, falls_back: bool) -> None:
        self._pool = pool
        self._falls_back = falls_back
        self._runners: dict[str, Runner] = {}
        self._present: Runner | None = None
        self._cancelled = False

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs on a free device; on others after it, if it fails."""
        self._cancelled = False
        user = object()
        try:
            return self._run(user, inputs, outputs)
        except BaseException:
            self._pool.leave(user)
            raise

    def _run(
        self, user: object, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None
    ) -> Sequence[Tensor]:
        failures: dict[str, BaseException] = {}
        while (member := self._pool.acquire(user, failures, lambda: self._cancelled)) is not None:
            is_served = False
            try:
                results = self.on(member).run(inputs, outputs)
                is_served = True
            except (InferCancelledError, *INPUT_FAULTS):
                raise
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                if not self._falls_back:
                    raise
                failures[member.device] = error
            finally:
                self._pool.release(user, member, is_served)
            if is_served:
                self._pool.retire(failures, member.device)
                return results
        raise next(iter(failures.values()))

    def on(self, member: PooledDevice) -> Runner:
        """Its runner on a device, which is the one that it is on from now on."""
        runner = self._runners.get(member.device)
        if runner is None:
            runner = self._runners[member.device] = new_runner(member.compiled)
        self._present = runner
        return runner

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """A call that is bound on each device when it has run there once."""
        return MultiBoundCall(self, self._pool, inputs, outputs)

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
        self._pool.wake()
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
        pool: The devices.
        inputs: What is read.
        outputs: What is written.
    """

    def __init__(
        self,
        runner: MultiRunner,
        pool: DevicePool,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        self._runner, self._pool = runner, pool
        self._inputs, self._outputs = inputs, outputs
        self._calls: dict[str, BoundCall | None] = {}

    def __call__(self) -> None:
        """Runs on a free device; after a failure as a run does."""
        self._runner.begin()
        user = object()
        try:
            is_served = self._serve(user)
        except BaseException:
            self._pool.leave(user)
            raise
        if not is_served:
            run_into(self._runner, self._inputs, self._outputs)

    def _serve(self, user: object) -> bool:
        """Runs on a free device; whether it has."""
        member = self._pool.acquire(user, (), lambda: self._runner.is_cancelled)
        is_served = False
        if member is not None:
            try:
                self._call_on(member)
                is_served = True
            except (InferCancelledError, BoundCallEndedError):
                raise
            except PLUGIN_FAILURES:  # the run below tells what is wrong
                self._calls.clear()
            finally:
                self._pool.release(user, member, is_served)
        return is_served

    def _call_on(self, member: PooledDevice) -> None:
        runner = self._runner.on(member)
        call = self._calls.get(member.device)
        if call is not None:
            call()
            return
        run_into(runner, self._inputs, self._outputs)
        if member.device not in self._calls:
            self._calls[member.device] = runner.bind(self._inputs, self._outputs)
