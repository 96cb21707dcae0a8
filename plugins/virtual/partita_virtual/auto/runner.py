"""A request of AUTO: it runs on the present choice, and elsewhere if that fails."""

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
from partita_virtual.auto.device_selector import DeviceSelector, SelectedDevice


class AutoRunner(Runner):
    """Has a runner on the device that the model is on.

    Args:
        chooser: Says which that is.
        falls_back: Whether another device gets what one has failed on.
    """

    def __init__(self, chooser: DeviceSelector, falls_back: bool) -> None:
        self._chooser = chooser
        self._falls_back = falls_back
        self._choice: SelectedDevice | None = None
        self._runner: Runner | None = None
        self._cancelled = False

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs on the present choice; on others after it, if it fails."""
        self._cancelled = False
        chooser = self._chooser
        choice: SelectedDevice | None = chooser.present
        failures: dict[str, BaseException] = {}
        while choice is not None:
            if self._cancelled:
                raise InferCancelledError("The request was cancelled.")
            try:
                results = self._on(choice).run(inputs, outputs)
            except (InferCancelledError, *INPUT_FAULTS):
                raise
            except PLUGIN_FAILURES as error:  # whatever a broken device raises
                if not self._falls_back:
                    raise
                failures[choice.device] = error
                choice = chooser.fallback_for(failures)
                continue
            if failures:
                chooser.adopt(choice, failures)
            chooser.look_at([tensor.shape for tensor in inputs])
            return results
        raise next(iter(failures.values()))

    def _on(self, choice: SelectedDevice) -> Runner:
        """Its runner for a choice, made if it is not the one that there is."""
        if self._runner is None or self._choice is not choice:
            fresh = new_runner(choice.compiled)
            before, self._runner, self._choice = self._runner, fresh, choice
            if before is not None:
                before.close()
        return self._runner

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """The bound call of the device, which ends when the model moves to another one."""
        choice = self._choice
        if self._runner is None or choice is not self._chooser.present:
            return None
        call = self._runner.bind(inputs, outputs)
        if call is None:
            return None
        return AutoBoundCall(self, self._chooser, choice, call, inputs, outputs)

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """The device's counters."""
        return () if self._runner is None else self._runner.profiling_info()

    def explain_execution(self) -> Execution:
        """How the device works."""
        return Execution() if self._runner is None else self._runner.explain_execution()

    def cancel(self) -> None:
        """Asks the device to stop, and goes to no other one."""
        self._cancelled = True
        runner = self._runner
        if runner is not None:
            runner.cancel()

    def close(self) -> None:
        """Closes the device's runner."""
        runner, self._runner, self._choice = self._runner, None, None
        if runner is not None:
            runner.close()


class AutoBoundCall(BoundCall):
    """The bound call of a device, as long as the model is there.

    Args:
        runner: The request's.
        chooser: Says where the model is.
        choice: Where the call is bound.
        call: The device's.
        inputs: What it reads.
        outputs: What it writes.
    """

    def __init__(
        self,
        runner: AutoRunner,
        chooser: DeviceSelector,
        choice: SelectedDevice | None,
        call: BoundCall,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        self._runner, self._chooser, self._choice, self._call = runner, chooser, choice, call
        self._inputs, self._outputs = inputs, outputs

    def __call__(self) -> None:
        """Computes on the device; after a failure as a run does."""
        present = self._chooser.present
        if present is not self._choice:
            raise BoundCallEndedError(f"The model is on {present.device} now.")
        try:
            self._call()
        except (InferCancelledError, BoundCallEndedError):
            raise
        except PLUGIN_FAILURES:  # the run tells what is wrong
            run_into(self._runner, self._inputs, self._outputs)

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """Has the device read other inputs, if it can."""
        if self._chooser.present is not self._choice or not self._call.rebind(inputs):
            return False
        self._inputs = inputs
        return True
