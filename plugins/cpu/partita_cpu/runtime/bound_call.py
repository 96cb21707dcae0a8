"""Bound calls: runs on tensors that stay the same, with all addresses written beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita import Runner, Tensor
from partita.contract.runner import run_into
from partita.errors import DeviceMemoryError, InferError, PartitaError, in_words
from partita.lowering import Array
from partita_cpu.runtime.call_table import NativeSegment, Segment
from partita_cpu.threads.call_queue import NativeCall
from partita_cpu.threads.openblas import use_threads
from partita_cpu.threads.thread_pool import Rows


def failure(error: Exception) -> InferError:
    """What a run raises when a kernel has raised something that is no error of Partita."""
    if isinstance(error, MemoryError):
        reason = in_words(error).removeprefix("MemoryError: ")
        return DeviceMemoryError(f"Device CPU has no room to run: {reason}")
    return InferError(f"Device CPU failed: {in_words(error)}")


class CpuBoundCall(NativeCall):
    """The segments of one program.

    Args:
        segments: The calls in order.
        threads: Threads that BLAS may use.
        rebind: Lets the segments read other inputs; says whether they do.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        threads: int,
        rebind: Callable[[Sequence[Tensor]], bool] | None = None,
    ) -> None:
        self._segments = list(segments)
        self._threads = threads
        self._rebind = rebind
        only = self._segments[0] if len(self._segments) == 1 else None
        self._only = only if isinstance(only, NativeSegment) else None

    def __call__(self) -> None:
        """Makes the calls."""
        use_threads(self._threads)
        try:
            for segment in self._segments:
                segment()
        except PartitaError:
            raise
        except Exception as error:
            raise failure(error) from error

    def rows(self) -> Rows | None:
        """The rows of the one segment, if there is but one and one thread walks it."""
        return None if self._only is None else self._only.alone()

    def check(self) -> None:
        """Raises what the rows have to say, if they failed."""
        if self._only is not None:
            self._only.check()

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """Puts the addresses of other inputs into the kernels' arguments, if all are compiled."""
        return self._rebind is not None and self._rebind(inputs)


class ValueBoundCall(NativeCall):
    """Calls that hold for certain elements of some inputs; for others it is a run like any.

    Args:
        call: For the present elements.
        values: The inputs whose elements decide, as arrays.
        runner: Runs the other cases.
        inputs: All inputs.
        outputs: All outputs.
    """

    def __init__(
        self,
        call: CpuBoundCall,
        values: Sequence[Array],
        runner: Runner,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
    ) -> None:
        self._call = call
        self._values = [(array, array.tobytes()) for array in values]
        self._runner = runner
        self._inputs, self._outputs = inputs, outputs

    def __call__(self) -> None:
        """Makes the calls, or runs.

        Raises:
            BoundCallEndedError: An output has another shape for these elements.
        """
        if self._holds():
            self._call()
        else:
            run_into(self._runner, self._inputs, self._outputs)

    def rows(self) -> Rows | None:
        """The rows of the calls, if they hold for the present elements."""
        return self._call.rows() if self._holds() else None

    def check(self) -> None:
        """Raises what the rows have to say, if they failed."""
        self._call.check()

    def _holds(self) -> bool:
        return all(array.tobytes() == elements for array, elements in self._values)
