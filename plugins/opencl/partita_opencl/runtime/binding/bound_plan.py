"""A plan bound to one request: the arguments of its kernels, and memory of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.execution import ExecutedStep, Execution
from partita.errors import InputError
from partita.lowering import Array, Operand, OpRecord, Program
from partita.lowering.cache_faults import CacheFault
from partita.tensors.tensor import HostTensor, Tensor
from partita_opencl.cuda.argument_table import Argument
from partita_opencl.cuda.shared_memory import address_of
from partita_opencl.device.device import Device
from partita_opencl.device.device_tensor import OpenClTensor
from partita_opencl.device.host_buffers import HostBuffers
from partita_opencl.launches.steps import (
    FAULT,
    REPORTS,
    STALL,
    ConcatenatedConstants,
    Counters,
    TensorMapBuffer,
)
from partita_opencl.runtime.binding.request_buffers import RequestBuffers
from partita_opencl.runtime.commands import (
    Commands,
    CudaCommands,
    OpenClCommands,
    RequestQueue,
    SingleItemKernel,
)
from partita_opencl.runtime.cuda_graph import CudaGraph
from partita_opencl.runtime.execution_plan import Plan
from partita_opencl.runtime.shared_kernels import SharedKernels

_LAUNCH_BYTES = 1024
"""About what is kept for a launch: its sizes, and references to its arguments."""

Use = tuple[int, int]
"""A launch and the argument that a buffer is given to."""


class StalledError(Exception):
    """Groups of a kernel waited too long for one another: not all of them were on the device."""


class BoundTensors(NamedTuple):
    """What a plan is bound to.

    Attributes:
        given: By output the tensor that it goes to, or ``None``.
        uploads: Buffers, and the arrays that are copied to them before the kernels run.
        left: Outputs that are delivered after them.
    """

    given: Sequence[Tensor | None]
    uploads: Sequence[tuple[Any, Array]]
    left: Sequence[int]


class Carried(NamedTuple):
    """How tensors of a run come and go where all of them are in host memory, out of kernels' reach.

    It is the same for all such runs until a buffer of the request is replaced.

    Attributes:
        replaced: Of the request's buffers.
        brought: Inputs that are copied, and to which buffers.
        left: Outputs that are copied from buffers.
    """

    replaced: int
    brought: Sequence[tuple[int, Any]]
    left: Sequence[int]


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
        reports: Two integers of host memory for what kernels report; of no other request.
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
        self._slots = list(slots[: len(plan.sizes)])
        self._buffers: dict[Operand, Any] = {}
        self._uses: dict[Operand, list[Use]] = {}
        self._described_by: dict[Operand, list[SingleItemKernel]] = {}
        self._describers: list[SingleItemKernel] = []
        self._undescribed: set[SingleItemKernel] = set()  # those whose matrices are elsewhere now
        self._reported = (
            device.pool.allocate(4 * REPORTS, np.zeros(REPORTS, np.int32))
            if plan.may_fault or plan.needs_device
            else None
        )
        self._counters = (
            device.pool.allocate(4 * plan.counters, np.zeros(plan.counters, np.int32))
            if plan.counters
            else None
        )
        program = plan.program
        self._host = HostBuffers(device) if device.shares_host else None
        self._own = own
        self._in_place = {o: i for o, i in in_place.items() if _is_over(program, o, i)}
        self._direct = [False] * len(program.outputs)  # written to where the caller wants it
        self._changing = {o for o in (*program.inputs, *program.owned) if o is not None}
        self._shared_kernels = kernels
        self._arguments = [self._arguments_of(number) for number in range(len(plan.steps))]
        self._copies = [
            (number, *launch.unless_same)
            for number, step in enumerate(plan.steps)
            if (launch := plan.launch(step)).unless_same is not None
        ]
        self._left_out: frozenset[int] = frozenset()
        self._bound: BoundTensors | None = None
        self._carried: Carried | None = None  # how the last run's tensors came and went, by copies
        self._by_opencl: OpenClCommands | None = None
        self._by_cuda: CudaCommands | None = None
        self._graph = (
            None if device.cuda is None else CudaGraph(plan, device.cuda, name, self._arguments)
        )
        self._runs_again = varies  # with what is bound here, as far as one can know
        self._made: list[Commands] = []
        self._described_to: Commands | None = None  # whose addresses descriptions have
        self._same: Commands | None = None  # of which the next run on the bound tensors is a copy

    @property
    def slots(self) -> Sequence[Any]:
        """The buffers for its intermediate tensors."""
        return self._slots

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
            if number in self._left_out:
                continue
            launch = self.plan.launch(step)
            options = tuple(name for name, _ in launch.program.options)
            steps.append(ExecutedStep(step.op.name, launch.kernel, options))
        return Execution(tuple(steps), () if self._host is None else self._host.shared())

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
        self._bound = None
        tensors = self._prepare(inputs, outputs)
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
        self._bound = self._prepare(inputs, outputs)
        return self._bound

    def _prepare(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None
    ) -> BoundTensors:
        self._same = None
        given = [None] * len(self._direct) if outputs is None else outputs
        by_copies = self._host is None and all(map(_is_on_host, (*inputs, *given)))
        carried = self._carried
        if by_copies and carried is not None and carried.replaced == self._own.replaced:
            uploads = [(buffer, inputs[index].numpy()) for index, buffer in carried.brought]
            return BoundTensors(given, uploads, carried.left)
        state = self._bind_in_place(given, inputs)
        brought, uploads = [], []
        for index, operand in enumerate(self.plan.program.inputs):
            if not operand.is_constant and index not in state.values():
                upload = self._bind_input(index, inputs[index])
                if upload is not None:
                    uploads.append(upload)
                    brought.append((index, upload[0]))
        self._bind_outputs(given, inputs, state)
        self._leave_copies_out()
        left = [i for i, direct in enumerate(self._direct) if not direct]
        self._carried = Carried(self._own.replaced, brought, left) if by_copies else None
        return BoundTensors(given, uploads, left)

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
            for index in tensors.left:
                results[index] = self._deliver(commands, index, tensors.given[index])
            if self._reported is not None:
                commands.download(self._reports, self._reported)

        with commands.start(queue):
            for buffer, array in tensors.uploads:
                commands.upload(buffer, np.ascontiguousarray(array))
            self._describe(commands)
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
        if self._reported is None:
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

    # ------------------------------------------------------------------------ memory

    def _buffer(self, operand: Operand) -> Any:
        """The buffer that an operand lies in; ``None`` before a run brings it."""
        if operand.is_constant:
            return self.plan.constants.buffer(operand)
        root = operand.root
        found = self._buffers.get(root)
        if found is None and root not in self._changing:
            found = self._buffers[root] = self._slots[self.plan.slots[root]]
        return found

    def _arguments_of(self, number: int) -> list[Argument]:
        step = self.plan.steps[number]
        found: list[Argument] = []
        for position, arg in enumerate(step.args):
            if isinstance(arg, Operand):
                found.append(self._buffer(arg))
                if not arg.is_constant and arg.root in self._changing:
                    self._uses.setdefault(arg.root, []).append((number, position))
            elif isinstance(arg, TensorMapBuffer):
                found.append(self._described(arg, step.args))
            elif isinstance(arg, (np.generic, np.ndarray)):
                found.append(arg.tobytes())
            else:
                found.append(self._shared(arg))
        return found

    def _described(self, how: TensorMapBuffer, args: Sequence[Any]) -> Any:
        """The buffer of a step's descriptions; they are written before the next run."""
        buffer = self._device.pool.allocate(TensorMapBuffer.BYTES * len(how.matrices))
        program = self.plan.programs[how.program]
        for number, matrix in enumerate(how.matrices):
            operand: Operand = args[matrix.position]
            sizes = (matrix.columns, matrix.rows, matrix.pitch, matrix.high)
            numbers = [np.int32(value).tobytes() for value in (number, *sizes)]
            describer = SingleItemKernel(
                program, "tensor_map", [buffer, self._buffer(operand), *numbers]
            )
            self._describers.append(describer)
            self._undescribed.add(describer)
            if not operand.is_constant and operand.root in self._changing:
                self._described_by.setdefault(operand.root, []).append(describer)
        return buffer

    def _describe(self, commands: Commands) -> None:
        """Has the copy engine told where matrices are, if they are elsewhere now."""
        untold = self._undescribed if self._described_to is commands else self._describers
        for describer in untold:
            commands.describe(describer)
        self._described_to = commands
        self._undescribed.clear()

    def _shared(self, arg: Any) -> Any:
        """The argument itself, or the request's buffer that it stands for."""
        if arg is FAULT or arg is STALL:
            return self._reported
        if isinstance(arg, ConcatenatedConstants):
            return self.plan.constants.joined(arg)
        return self._counters if isinstance(arg, Counters) else arg

    def _rebind(self, operand: Operand, buffer: Any) -> None:
        """Gives kernels another buffer for an input or output."""
        if self._buffers.get(operand) is not buffer:
            self._buffers[operand] = buffer
            for number, position in self._uses.get(operand, ()):
                self._arguments[number][position] = buffer
                for commands in self._made:
                    commands.change(number, position, buffer)
            for describer in self._described_by.get(operand, ()):
                describer.arguments[1] = buffer
                self._undescribed.add(describer)

    # ---------------------------------------------------------------------- commands

    def _commands(self, tensors: BoundTensors, queue: RequestQueue, *, timed: bool) -> Commands:
        """The way that a run's commands take: CUDA's, if its kernels reach all of the buffers."""
        by_cuda = None
        if queue.cuda is not None and not timed:
            by_cuda = self._cuda_commands()
        targets = (one.buffer for one in tensors.given if isinstance(one, OpenClTensor))
        if by_cuda is not None and by_cuda.is_possible and all(map(address_of, targets)):
            return by_cuda
        return self._opencl_commands()

    def _opencl_commands(self) -> OpenClCommands:
        if self._by_opencl is None:
            plan, shared = self.plan, self._shared_kernels
            sizes = [plan.launch(step).sizes for step in plan.steps]
            turns = self._device.turns
            made = OpenClCommands(shared, shared.of(plan), sizes, self._arguments, turns)
            made.leave_out(self._left_out)
            self._by_opencl = made
            self._made.append(made)
        return self._by_opencl

    def _cuda_commands(self) -> CudaCommands | None:
        """``None`` as long as CUDA does not have the graph, or where it refuses a kernel."""
        if self._by_cuda is None and self._graph is not None:
            made = self._graph.commands(self._left_out)
            if made is not None:
                self._by_cuda = made
                self._made.append(made)
        return self._by_cuda

    # ------------------------------------------------------------------------ inputs

    def _bind_input(self, index: int, tensor: Tensor) -> tuple[Any, Array] | None:
        """Gives kernels an input; returns the buffer and array of a copy to be made before them."""
        operand = self.plan.program.inputs[index]
        if isinstance(tensor, OpenClTensor) and tensor.memory == self._device.memory:
            self._rebind(operand, tensor.buffer)
            return None
        if self._host is not None:
            in_place = self._host.over(operand, tensor, read_only=True)
            if in_place is not None:
                self._rebind(operand, in_place)
                return None
        buffer = self._own.input(index, operand.nbytes)
        self._rebind(operand, buffer)
        array = tensor.numpy()
        return (buffer, array) if array.nbytes else None

    # ----------------------------------------------------------------------- outputs

    def _bind_in_place(
        self, given: Sequence[Tensor | None], inputs: Sequence[Tensor]
    ) -> dict[int, int]:
        """Gives outputs that are to be written over their inputs one buffer with them.

        Returns:
            Those outputs with their inputs.
        """
        bound = {}
        for index, source in self._in_place.items():
            owner = self.plan.program.owned[index]
            buffer = self._one_buffer(index, given[index], inputs[source])
            if owner is not None and buffer is not None:
                self._rebind(self.plan.program.inputs[source], buffer)
                self._rebind(owner, buffer)
                self._direct[index] = True
                bound[index] = source
        return bound

    def _one_buffer(self, index: int, target: Tensor | None, source: Tensor) -> Any:
        """The buffer of an output's tensor, if that is the input's as well; else ``None``."""
        if isinstance(target, OpenClTensor) and isinstance(source, OpenClTensor):
            is_one = target.buffer is source.buffer and self._is_mine(target)
            return target.buffer if is_one else None
        if self._host is None or not (
            isinstance(target, HostTensor) and isinstance(source, HostTensor)
        ):
            return None
        one, other = target.numpy(), source.numpy()
        is_one = one.ctypes.data == other.ctypes.data and one.nbytes == other.nbytes
        return self._host.over(index, target) if is_one else None

    def _leave_copies_out(self) -> None:
        """Launches no copy from a buffer to itself."""
        given = self._arguments
        same = frozenset(n for n, x, y in self._copies if given[n][x] is given[n][y])
        if same != self._left_out:
            self._left_out = same
            for commands in self._made:
                commands.leave_out(same)

    def _bind_outputs(
        self,
        given: Sequence[Tensor | None],
        inputs: Sequence[Tensor],
        state: Mapping[int, int],
    ) -> None:
        """Lets kernels write straight to tensors that the caller gives and the device can reach."""
        for index, owner in enumerate(self.plan.program.owned):
            if owner is not None and index not in state:
                reached = self._reached(index, given[index], inputs)
                self._direct[index] = reached is not None
                self._rebind(owner, self._own_output(index, owner) if reached is None else reached)

    def _own_output(self, index: int, operand: Operand) -> Any:
        """A buffer of the request for an output, which no input of this run lies in."""
        read = [self._buffers.get(brought) for brought in self.plan.program.inputs]
        return self._own.output(index, operand.nbytes, read)

    def _reached(self, index: int, target: Tensor | None, inputs: Sequence[Tensor]) -> Any:
        """The buffer of a tensor that kernels can write to, or ``None``."""
        operand = self.plan.program.outputs[index]
        if isinstance(target, OpenClTensor):
            fits = operand is not None and target.shape == operand.shape
            read = any(isinstance(x, OpenClTensor) and x.buffer is target.buffer for x in inputs)
            return target.buffer if self._is_mine(target) and fits and not read else None
        if self._host is None or not isinstance(target, HostTensor) or operand is None:
            return None
        array = target.numpy()
        if array.dtype != operand.dtype or array.shape != operand.shape:
            return None
        if any(
            isinstance(tensor, HostTensor) and np.may_share_memory(array, tensor.numpy())
            for tensor in inputs
        ):
            return None
        return self._host.over(index, target)

    def _is_mine(self, tensor: Tensor | None) -> bool:
        return isinstance(tensor, OpenClTensor) and tensor.memory == self._device.memory

    def _deliver(self, commands: Commands, index: int, target: Tensor | None) -> Tensor:
        """Brings one output to where the caller wants it."""
        operand = self.plan.program.outputs[index]
        if operand is None:
            raise TypeError("a program of this device has all outputs")
        if target is not None and self._direct[index]:
            return target
        buffer = self._buffer(operand)
        if target is not None and target.shape != operand.shape:
            target = None  # whoever gave it sees that it was declined
        if target is not None and not self._is_mine(target):
            if operand.nbytes:
                commands.download(target.numpy(), buffer)
            return target
        lies_elsewhere = not operand.is_constant and self.plan.program.owned[index] is None
        if target is None and lies_elsewhere:
            own = self._own_output(index, operand)
            if operand.nbytes:
                commands.copy(own, buffer, operand.nbytes)
            buffer = own
        if target is None:
            in_place = self._own.tensor(buffer, operand.shape, operand.dtype)
            if in_place is not None:
                return in_place
            return OpenClTensor(buffer, operand.shape, operand.dtype, self._device, self._name)
        own_target: Any = target  # a tensor of this device
        if own_target.buffer is not buffer and operand.nbytes:
            commands.copy(own_target.buffer, buffer, operand.nbytes)
        return target

    # ------------------------------------------------------------------------ faults

    def _raise_fault(self, number: int, wrong: CacheFault) -> None:
        self._device.write(self._reported, np.zeros(REPORTS, np.int32))
        op = self.plan.program.ops[number - 1]
        if wrong.kind:
            raise InputError(f"Operation '{op.name}': {wrong.describe()}.")
        raise InputError(
            f"Operation '{op.name}' ({op.op_type}) on device '{self._name}' was given an index out "
            "of bounds; check the model's integer inputs."
        )


def _is_on_host(tensor: Tensor | None) -> bool:
    """Whether it is a tensor in host memory, or none is given."""
    return tensor is None or type(tensor) is HostTensor


def _is_over(program: Program, output: int, source: int) -> bool:
    """Whether an output of a program, made in memory of its own, has the shape of an input."""
    owner, operand = program.owned[output], program.inputs[source]
    return owner is not None and not operand.is_constant and owner.nbytes == operand.nbytes
