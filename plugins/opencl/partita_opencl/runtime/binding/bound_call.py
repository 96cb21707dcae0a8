"""Runs on tensors that stay the same: nothing is looked at between one and the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partita import BoundCall, Runner, Tensor
from partita.contract.runner import run_into
from partita.errors import InferCancelledError, InferError
from partita_opencl.cuda.cuda_driver import CudaError
from partita_opencl.device.buffer_pool import runtime_error
from partita_opencl.drivers.fork_guard import refuse_after_fork
from partita_opencl.drivers.process_end import end_waits, refuse_at_end
from partita_opencl.runtime.binding.bound_plan import BoundPlan, StalledError
from partita_opencl.runtime.binding.tensor_binding import BoundTensors
from partita_opencl.runtime.commands import RequestQueue
from partita_opencl.runtime.execution_plan import Plan


class OpenClBoundCall(BoundCall):
    """The launches of one plan, whose buffers and copies are known.

    They are bound anew where the runner was used otherwise in between.

    Args:
        runner: Runs what stalls.
        queue: Where its commands go.
        bound_plan: Binds a plan to its memory, or finds what is bound.
        plan: The plan for the inputs' shapes.
        inputs: One tensor per input.
        outputs: One tensor per output.
        device: The device's name, for messages.
    """

    def __init__(
        self,
        runner: Runner,
        queue: RequestQueue,
        bound_plan: Callable[[Plan], BoundPlan],
        plan: Plan,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        device: str,
    ) -> None:
        self._runner, self._queue, self._bound_plan = runner, queue, bound_plan
        self._plan, self._device = plan, device
        self._inputs, self._outputs = inputs, outputs
        self._bound: BoundPlan | None = None
        self._tensors: BoundTensors | None = None

    @end_waits
    def __call__(self) -> None:
        """Launches everything, and waits for the end."""
        import pyopencl as cl

        refuse_after_fork(InferError)
        refuse_at_end(InferCancelledError)  # no fault of the device
        tensors = self._tensors
        try:
            bound = self._bound_plan(self._plan)
            if tensors is None or bound is not self._bound or not bound.is_bound_to(tensors):
                self._bound = bound
                tensors = self._tensors = bound.bind(self._inputs, self._outputs)
            bound.repeat(self._queue, tensors)
        except StalledError:
            run_into(self._runner, self._inputs, self._outputs)
        except (cl.Error, CudaError) as error:
            raise runtime_error(error, self._device, self._plan.nbytes) from error

    def rebind(self, inputs: Sequence[Tensor]) -> bool:
        """Reads other inputs from the next call on, which binds them."""
        self._inputs, self._tensors = inputs, None
        return True
