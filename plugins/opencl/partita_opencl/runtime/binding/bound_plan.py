"""A plan bound to one request: its runs, by the commands of OpenCL or of CUDA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partita.contract.execution import ExecutedStep, Execution
from partita.errors import InputError
from partita.lowering import Array, OpRecord
from partita.lowering.cache_faults import CacheFault
from partita.tensors.tensor import Tensor
from partita_opencl.cuda.shared_memory import address_of
from partita_opencl.device.device import Device
from partita_opencl.device.device_tensor import OpenClTensor
from partita_opencl.launches.steps import REPORTS
from partita_opencl.runtime.binding.launch_arguments import LaunchArguments
from partita_opencl.runtime.binding.request_buffers import RequestBuffers
from partita_opencl.runtime.binding.tensor_binding import BoundTensors, TensorBinding
from partita_opencl.runtime.commands import Commands, CudaCommands, OpenClCommands, RequestQueue
from partita_opencl.runtime.cuda_graph import CudaGraph
from partita_opencl.runtime.execution_plan import Plan
from partita_opencl.runtime.shared_kernels import SharedKernels

_LAUNCH_BYTES = 1024
"""About what is kept for a launch: its sizes, and references to its arguments."""


class StalledError(Exception):
    """Groups of a kernel waited too long for one another: not all of them were on the device."""


class BoundPlan:
    """The launches of one plan on one request's memory.

    Args:
        plan: Launches, and the sizes of what they write; shared by requests.
        device: The one that the plan is for.
        name: The device's name, for messages.
        slots: Buffers for intermediate tensors, as many and as large as the plan says at least.
        kernels: The request's kernels.
        own: The request's buffers for inputs and outputs that kernels cannot reach.
        in_place: By output the input that a run can write it over.
        reports: `REPORTS` integers of host memory for what kernels report; of no other request.
        varies: Whether the request has run on other shapes: then CUDA's graph is prepared behind
            the first run here, else behind the second one: what runs once needs none.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        name: str,
        slots: Sequence[Any],
        kernels: SharedKernels,
        own: RequestBuffers,
        in_place: Mapping[int, int],
        reports: Array,
        *,
        varies: bool = False,
    ) -> None:
        self.plan = plan
        self._reports = reports
        self._device = device
        self._name = name
        self._arguments = LaunchArguments(plan, device, slots)
        self._tensors = TensorBinding(plan, device, name, self._arguments, own, in_place)
        self._shared_kernels = kernels
        self._bound: BoundTensors | None = None
        self._by_opencl: OpenClCommands | None = None
        self._by_cuda: CudaCommands | None = None
        values = self._arguments.values
        self._graph = None if device.cuda is None else CudaGraph(plan, device.cuda, name, values)
        self._runs_again = varies  # with what is bound here, as far as one can know
        self._same: Commands | None = None  # of which the next run on the bound tensors is a copy

    @property
    def slots(self) -> Sequence[Any]:
        """The buffers for its intermediate tensors."""
        return self._arguments.slots

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, roughly: its launches, by each of the ways that they may take.

        Memory is shared with other shapes, and the runner counts what was outgrown.
        """
        ways = 1 if self._graph is None else 2
        return _LAUNCH_BYTES * len(self.plan.steps) * ways

    def explain_execution(self) -> Execution:
        """The kernels, in order, and the host memory that they work in."""
        steps = []
        for number, step in enumerate(self.plan.steps):
            if number in self._arguments.left_out:
                continue
            launch = self.plan.launch(step)
            options = tuple(name for name, _ in launch.program.options)
            steps.append(ExecutedStep(step.op.name, launch.kernel, options))
        return Execution(tuple(steps), self._tensors.shared_memory())

    def run(
        self,
        queue: RequestQueue,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        events: list[tuple[OpRecord, str, Any]] | None,
    ) -> list[Tensor]:
        """Enqueues everything, waits for the end, and returns the outputs.

        Args:
            queue: The request's.
            inputs: One tensor per graph input.
            outputs: Where results should go, or ``None``.
            events: Where to note each launch's event, or ``None``.

        Raises:
            InputError: A kernel found an index out of bounds, or lengths that do not fit a cache.
            StalledError: A kernel gave up; this must not run again.
        """
        self._bound = self._same = None
        tensors = self._tensors.bind(inputs, outputs)
        results = self._execute(queue, tensors, events)
        given = enumerate(tensors.given)
        return [results.get(i, target) for i, target in given]  # type: ignore[misc]  # what is left out was given

    def repeat(self, queue: RequestQueue, tensors: BoundTensors) -> None:
        """Runs on the tensors that are bound, with the elements that they have now.

        Args:
            queue: The request's.
            tensors: What :meth:`bind` returned.

        Raises:
            InputError: A kernel found an index out of bounds, or lengths that do not fit a cache.
            StalledError: A kernel gave up; this must not run again.
        """
        if self._same is not None and self._same.again():
            self._check_reports()
        else:
            self._execute(queue, tensors, None)

    def is_bound_to(self, tensors: BoundTensors) -> bool:
        """Whether nothing else was run or bound since."""
        return self._bound is tensors

    def bind(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> BoundTensors:
        """Lets kernels work on these tensors until the next run or binding."""
        self._same = None
        self._bound = self._tensors.bind(inputs, outputs)
        return self._bound

    def _execute(
        self,
        queue: RequestQueue,
        tensors: BoundTensors,
        events: list[tuple[OpRecord, str, Any]] | None,
    ) -> dict[int, Tensor]:
        """Launches everything, and returns the outputs that kernels did not write in their place.

        They are by index.
        """
        results: dict[int, Tensor] = {}
        commands = self._commands(tensors, queue, timed=events is not None)

        def launch() -> None:
            if events is None:
                commands.launch()
            else:
                events.extend(self._launch_noting())
            for index in tensors.delivered:
                results[index] = self._tensors.deliver(commands, index, tensors.given[index])
            if self._arguments.reported is not None:
                commands.download(self._reports, self._arguments.reported)

        with commands.start(queue):
            for buffer, array in tensors.uploads:
                commands.upload(buffer, np.ascontiguousarray(array))
            self._arguments.describe(commands)
            if self.plan.needs_device:  # and has a report of stalls
                commands.in_turn(launch)
            else:
                launch()
            commands.finish()
        if all(array.flags.c_contiguous for _, array in tensors.uploads):  # others are copied anew
            self._same = commands
        if self._graph is not None and queue.cuda is not None:
            if self._runs_again:
                self._graph.prepare()
            self._runs_again = True
        self._check_reports()
        return results

    def _check_reports(self) -> None:
        """Raises what kernels of a run that has ended report."""
        if self._arguments.reported is None:
            return
        fault, stalled, *wrong = self._reports.tolist()
        if self.plan.needs_device and stalled:
            raise StalledError
        if self.plan.may_fault and fault:
            self._raise_fault(fault, CacheFault(*wrong))

    def _launch_noting(self) -> list[tuple[OpRecord, str, Any]]:
        """Launches the kernels one by one, and notes the event of each."""
        steps, launch = self.plan.steps, self.plan.launch
        launched = self._opencl_commands().launch_noting()
        return [(steps[n].op, launch(steps[n]).kernel, event) for n, event in launched]

    def _commands(self, tensors: BoundTensors, queue: RequestQueue, *, timed: bool) -> Commands:
        """The way that a run's commands take: CUDA's, if its kernels reach all of the buffers."""
        by_cuda = None
        if queue.cuda is not None and not timed:
            by_cuda = self._cuda_commands()
        if by_cuda is not None and by_cuda.is_possible:
            buffers = [one.buffer for one in tensors.given if isinstance(one, OpenClTensor)]
            if all(map(address_of, buffers)):
                return by_cuda
        return self._opencl_commands()

    def _opencl_commands(self) -> OpenClCommands:
        if self._by_opencl is None:
            plan, shared = self.plan, self._shared_kernels
            sizes = [plan.launch(step).sizes for step in plan.steps]
            values, turns = self._arguments.values, self._device.turns
            made = OpenClCommands(shared, shared.of(plan), sizes, values, turns)
            made.leave_out(self._arguments.left_out)
            self._by_opencl = made
            self._arguments.add_listener(made)
        return self._by_opencl

    def _cuda_commands(self) -> CudaCommands | None:
        """``None`` as long as CUDA does not have the graph, or where it refuses a kernel."""
        if self._by_cuda is None and self._graph is not None:
            made = self._graph.commands(self._arguments.left_out)
            if made is not None:
                self._by_cuda = made
                self._arguments.add_listener(made)
        return self._by_cuda

    def _raise_fault(self, number: int, wrong: CacheFault) -> None:
        self._device.write(self._arguments.reported, np.zeros(REPORTS, np.int32))
        op = self.plan.program.ops[number - 1]
        if wrong.kind:
            raise InputError(f"Operation '{op.name}': {wrong.describe()}.")
        raise InputError(
            f"Operation '{op.name}' ({op.op_type}) on device '{self._name}' was given an index out "
            "of bounds; check the model's integer inputs."
        )
