"""A request of BATCH: a row of a run that it shares with others, or a run by itself."""

from __future__ import annotations

from collections.abc import Sequence

from partita.contract.device_model import DeviceModel, new_runner
from partita.contract.execution import Execution
from partita.contract.profiling import ProfilingInfo
from partita.contract.runner import Runner
from partita.errors import InferCancelledError
from partita.tensors.tensor import Tensor
from partita_virtual.batch.gathering import Gathering


class BatchRunner(Runner):
    """Joins a batch with each run.

    Args:
        single: The model for requests by themselves.
        gathering: Where requests meet.
    """

    def __init__(self, single: DeviceModel, gathering: Gathering) -> None:
        self._single = single
        self._alone: Runner | None = None
        self._gathering = gathering
        self._member = gathering.enter()

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Runs with others, if inputs have one row each and enough others come."""
        gathering, member = self._gathering, self._member
        try:
            gathering.begin(member)
            if all(tensor.shape[:1] == (1,) for tensor in inputs):
                results = gathering.run(member, inputs)
                if results is not None:
                    return results
            if member.is_cancelled:
                raise InferCancelledError("The request was cancelled before it began.")
            if self._alone is None:
                self._alone = new_runner(self._single)
            return self._alone.run(inputs, outputs)
        finally:
            gathering.end(member)

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the last run by itself; batches are nobody's own."""
        return () if self._alone is None else self._alone.profiling_info()

    def explain_execution(self) -> Execution:
        """How runs by itself work."""
        return Execution() if self._alone is None else self._alone.explain_execution()

    def cancel(self) -> None:
        """Waits for no others, and asks the device to stop."""
        self._gathering.cancel(self._member)
        if self._alone is not None:
            self._alone.cancel()

    def close(self) -> None:
        """Leaves the others, and closes its own runner."""
        self._gathering.leave(self._member)
        alone, self._alone = self._alone, None
        if alone is not None:
            alone.close()
