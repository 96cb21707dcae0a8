"""Runs on tensors that stay the same: calls with everything bound, joined over programs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from partita import BoundCall, Runner, Tensor
from partita.errors import InferError, PartitaError
from partita.lowering import Array
from partita.runtime.compiled_model import run_into
from partita_cpu.runtime.call_table import NativeStretch, Stretch
from partita_cpu.runtime.lanes import Lanes
from partita_cpu.threads.openblas import use_threads


class CpuBoundCall(BoundCall):
    """Stretches of one program, or of several that run one after another.

    Args:
        stretches: The calls in order.
        threads: Threads that BLAS may use.
        rebind: Lets the stretches read other inputs; says whether they do.
        takers: The same for one array each, in no time.
    """

    def __init__(
        self,
        stretches: Sequence[Stretch],
        threads: int,
        rebind: Callable[[Sequence[Tensor]], bool] | None = None,
        takers: Sequence[Callable[[Any], bool]] | None = None,
    ) -> None:
        self._stretches = list(stretches)
        self._threads = threads
        self._rebind = rebind
        self.takers = takers

    def __call__(self) -> None:
        """Makes the calls."""
        use_threads(self._threads)
        try:
            for stretch in self._stretches:
                stretch()
        except PartitaError:
            raise
        except Exception as error:
            raise InferError(f"Device CPU failed: {type(error).__name__}: {error}") from error

    def followed_by(self, other: BoundCall) -> CpuBoundCall | None:
        """Both; where compiled kernels meet, the threads go from one program into the next."""
        if not isinstance(other, CpuBoundCall) or other._threads != self._threads:
            return None
        last, first = self._stretches[-1], other._stretches[0]
        both = last.followed_by(first) if isinstance(last, NativeStretch) else None
        if both is None:
            return CpuBoundCall([*self._stretches, *other._stretches], self._threads)
        joined = [*self._stretches[:-1], both, *other._stretches[1:]]
        return CpuBoundCall(joined, self._threads)

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """Puts the addresses of other inputs into the kernels' arguments, if all are compiled."""
        return self._rebind is not None and self._rebind(inputs)

    def together(
        self,
        calls: Sequence[BoundCall],
        waits: Sequence[Collection[int]],
        lanes: Sequence[int],
    ) -> BoundCall | None:
        """One call, if all are compiled kernels for one thread each."""
        tables = [call.rows for call in calls if isinstance(call, CpuBoundCall)]
        known = [table for table in tables if table is not None]
        if len(known) < len(calls):
            return None
        return _Together(Lanes(known, waits, lanes, list(calls)))

    @property
    def rows(self) -> Array | None:
        """The kernel calls, where they are all there is to do and for one thread."""
        match self._stretches:
            case [NativeStretch() as stretch]:
                return stretch.alone
        return None


class _Together(BoundCall):
    """Programs that run at the same time."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def __call__(self) -> None:
        self._lanes.run()

    def times(self) -> Sequence[tuple[float, float]]:
        return self._lanes.times()

    def cancel(self) -> None:
        self._lanes.cancel()


class ValueBoundCall(BoundCall):
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
        for array, elements in self._values:
            if array.tobytes() != elements:
                break
        else:
            self._call()
            return
        run_into(self._runner, self._inputs, self._outputs)
