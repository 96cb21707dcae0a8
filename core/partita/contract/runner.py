"""Runners: the state of one request on a device, and how it computes."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.execution import Execution
from partita.contract.profiling import ProfilingInfo
from partita.errors import BoundCallEndedError, InferError, raised_as, wrong_answer

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall
    from partita.contract.profiling import DeviceSpan
    from partita.tensors.tensor import Tensor


class Runner(abc.ABC):
    """One request's private state on a device: its buffers, and the calls bound to them.

    ``run`` is never called concurrently on one runner; runners of one compiled model do run
    concurrently. A runner frees its resources in :meth:`close` or when it is garbage-collected.
    """

    @abc.abstractmethod
    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """(required) Computes the outputs.

        Args:
            inputs: One tensor per input port, in order, of the port's dtype and a shape it allows:
                C-contiguous host tensors, or tensors in a memory that the plugin can share.
                They may be read-only, and must not be written, or read after the call.
            outputs: By output port a tensor of the right shape and dtype that the runner should
                write to and return, or ``None``; it may decline and return a tensor of its own.

        Returns:
            One tensor per output port. Tensors that the runner owns are valid until its next run.

        Raises:
            InferError: The device could not compute them.
        """

    def bind(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        scratch: np.ndarray[Any, Any] | None = None,
    ) -> BoundCall | None:
        """(optional) Binds a run to these tensors (defaults to ``None``: :meth:`run` is called).

        Requests ask for it once tensors of the same shapes have come several times, and HETERO for
        submodels whose tensors lie in planned memory: elements change from call to call, addresses
        do not. Each call must write to exactly these outputs. Calls and :meth:`run` may alternate,
        but never overlap. When this is called, inputs hold the elements of the last run: a call may
        be specialized for elements that decide a shape, but must then check them each time.

        Args:
            inputs: One tensor per input port.
            outputs: One tensor per output port.
            scratch: If given, at least ``DeviceModel.scratch_bytes`` bytes of temporary memory.
                Its content is lost between calls, because other submodels use it too.
        """
        return None

    def leave_results(self) -> bool:
        """(optional) Gives up ownership of the last run's results (defaults to ``False``).

        Called where results become inputs of the next run, whose output shapes are not known: the
        results need not be copied if the runner leaves them.

        Returns:
            Whether no later run writes to those tensors, which then stay valid while they are used.
        """
        return False

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """(optional) Counters of the last run, if PERF_COUNT is set (defaults to none)."""
        return ()

    def device_spans(self) -> Sequence[DeviceSpan]:
        """(optional) When devices were busy with parts of the last run (defaults to none).

        For devices that are made of others, or compute in another process or on another machine.
        Only recorded if PERF_COUNT is set. On other devices the whole run counts as one part.
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


def counters_of(runner: Runner, device: str) -> Sequence[ProfilingInfo]:
    """What a runner has counted in its last run.

    Raises:
        InferError: It failed.
        PluginError: It gave something else.
    """
    with raised_as(InferError, f"Device '{device}' failed to tell what it has measured"):
        found = runner.profiling_info()
    are_counters = isinstance(found, Sequence) and all(
        isinstance(info, ProfilingInfo) for info in found
    )
    if not are_counters:
        raise wrong_answer(device, "profiling_info", found, "a list of ProfilingInfo")
    return found


def execution_of(runner: Runner, device: str) -> Execution:
    """How a runner executed its last run.

    Raises:
        InferError: It failed.
        PluginError: It gave something else.
    """
    with raised_as(InferError, f"Device '{device}' failed to explain how it has run"):
        found = runner.explain_execution()
    if not isinstance(found, Execution):
        raise wrong_answer(device, "explain_execution", found, "an Execution")
    return found


def run_into(runner: Runner, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Runs where a bound call cannot be used, and copies the results to the bound outputs.

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
