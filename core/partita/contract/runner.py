"""Runners: what a device keeps for one request, and how it computes."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.execution import Execution
from partita.errors import BoundCallEndedError

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall
    from partita.contract.profiling import DeviceSpan, ProfilingInfo
    from partita.tensors.tensor import Tensor


class Runner(abc.ABC):
    """One request's private state on a device: its buffers and what it binds to them.

    ``run`` is never called concurrently on one runner; runners of one compiled model do run
    concurrently. A runner frees what it holds in :meth:`close` or when it is collected.
    """

    @abc.abstractmethod
    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """(required) Computes the outputs.

        Args:
            inputs: One tensor per input port, in order, of the port's dtype and a shape it allows:
                C-contiguous host tensors, or tensors of a memory that the plugin can share.
                They may be read-only, must not be written, nor read after the call.
            outputs: Where given and not ``None``, a tensor of the right shape and dtype that the
                runner should write to and return; it may decline and return its own.

        Returns:
            One tensor per output port. Those that the runner owns are valid until its next run.

        Raises:
            InferError: The device could not compute them.
        """

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """(optional) Runs on these tensors, again and again (defaults to ``None``: only by run).

        HETERO asks for it where a submodel reads and writes tensors that it has planned, and
        requests where tensors of the same shapes come again: elements change and memory does not.
        Each call must write to exactly these outputs. It is never called beside :meth:`run`,
        but may be in turns with it. Inputs hold the elements of the run before, so that a call can
        be made for those that decide a shape; it must look at each call whether they are the same.

        Args:
            inputs: One tensor per input port.
            outputs: One tensor per output port.
            scratch: If given, at least ``DeviceModel.scratch_bytes`` bytes that calls may use
                while they run, for what they do not keep; others use them between calls.
        """
        return None

    def leave_results(self) -> bool:
        """(optional) Gives up what the last run returned (defaults to ``False``: keeps it).

        Asked for where results of a run become inputs of the next one, and nobody knows what shapes
        that will return: they need not be copied then.

        Returns:
            Whether no later run writes to those tensors. They stay valid as long as they are used.
        """
        return False

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """(optional) Counters of the last run, if PERF_COUNT is set (defaults to none)."""
        return ()

    def device_spans(self) -> Sequence[DeviceSpan]:
        """(optional) When devices were busy with parts of the last run (defaults to none).

        For devices made of others, and those that compute in another process or on another machine;
        if PERF_COUNT is set. For all others a run is one part.
        """
        return ()

    def explain_execution(self) -> Execution:
        """(optional) How the last run was executed, as data (defaults to nothing)."""
        return Execution()

    def cancel(self) -> None:  # noqa: B027  # optional
        """(optional) Asks a running ``run`` to stop soon (defaults to letting it finish).

        Called from another thread; must have no effect on later runs.
        """

    def close(self) -> None:  # noqa: B027  # optional
        """(optional) Frees what the runner holds (defaults to nothing)."""


def run_into(runner: Runner, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """For bound calls that do not fit: runs, and copies what comes out to the bound outputs.

    Raises:
        BoundCallEndedError: An output has another shape than the tensor that it is bound to.
        InferError: The device could not compute them.
    """
    read = {id(tensor) for tensor in inputs}
    state = [output if id(output) in read else None for output in outputs]  # written over
    results = runner.run(inputs, state if any(x is not None for x in state) else None)
    for result, output in zip(results, outputs, strict=True):
        if result is output:
            continue
        if result.shape != output.shape:
            raise BoundCallEndedError(
                f"An output has shape {list(result.shape)} now; it was bound as "
                f"{list(output.shape)}."
            )
        output.copy_from(result)
