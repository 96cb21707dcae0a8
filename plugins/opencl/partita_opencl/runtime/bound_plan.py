"""A plan bound to one request: the arguments of its kernels, and memory of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.contract.execution import ExecutedStep, Execution
from partita.errors import InputError
from partita.lowering import Operand, OpRecord
from partita.tensors.tensor import HostTensor, Tensor
from partita_opencl.device.buffer_pool import raw
from partita_opencl.device.device import Device
from partita_opencl.device.device_tensor import OpenClTensor
from partita_opencl.device.host_buffers import HostBuffers
from partita_opencl.launches.steps import FAULT, STALL, Counters, Described, Joined
from partita_opencl.runtime.execution_plan import Plan
from partita_opencl.runtime.launch_batch import KernelSequence
from partita_opencl.runtime.shared_kernels import Argument, SharedKernels, set_arguments

_LAUNCH_BYTES = 1024
"""About what is kept for a launch: its sizes, and references to its arguments."""

_LEAST_STALL = 1e-3
"""Seconds that a run takes at least in which a kernel of a GPU gives up; see ``product_run.cl``."""

Use = tuple[int, int]
"""A launch and the argument that a buffer is given to."""


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
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        name: str,
        slots: Sequence[Any],
        kernels: SharedKernels,
    ) -> None:
        self.plan = plan
        self._device = device
        self._name = name
        self._slots = list(slots)
        self._buffers: dict[Operand, Any] = {}
        self._uses: dict[Operand, list[Use]] = {}
        self._described_by: dict[Operand, list[Any]] = {}
        self._descriptions: list[Any] = []
        self._untold: list[Any] = []  # describers whose matrices are elsewhere now
        self._fault = device.pool.allocate(4, np.zeros(1, np.int32)) if plan.may_fault else None
        self._stall = device.pool.allocate(4, np.zeros(1, np.int32)) if plan.needs_device else None
        self._counters = (
            device.pool.allocate(4 * plan.counters, np.zeros(plan.counters, np.int32))
            if plan.counters
            else None
        )
        program = plan.program
        self._host = HostBuffers(device) if device.shares_host else None
        self._own_inputs: dict[Operand, Any] = {}
        self._own_outputs = [
            None if operand is None or operand.const is not None else self._new(operand)
            for operand in program.outputs
        ]
        self._direct = [False] * len(program.outputs)  # written to where the caller wants it
        for owner, buffer in zip(program.owned, self._own_outputs, strict=True):
            if owner is not None:
                self._buffers[owner] = buffer
        self._changing = {o for o in (*program.inputs, *program.owned) if o is not None}
        self._shared_kernels = kernels
        self._kernels = kernels.of(plan)
        self._arguments = [self._arguments_of(number) for number in range(len(plan.steps))]
        self._launches = [
            (kernel, *plan.launch(step).sizes)
            for kernel, step in zip(self._kernels, plan.steps, strict=True)
        ]
        self._sequence = KernelSequence(self._launches)

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, roughly: kernels, inputs and outputs of its own."""
        own = [*self._own_inputs, *(operand for operand in self.plan.program.outputs if operand)]
        return sum(operand.nbytes for operand in own) + _LAUNCH_BYTES * len(self._launches)

    def explain_execution(self) -> Execution:
        """The kernels, in order, and the host memory that they work in."""
        steps = []
        for step in self.plan.steps:
            launch = self.plan.launch(step)
            options = tuple(name for name, _ in launch.program.options)
            steps.append(ExecutedStep(step.op.name, launch.kernel, options))
        return Execution(tuple(steps), () if self._host is None else self._host.shared())

    def run(
        self,
        queue: Any,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        events: list[tuple[OpRecord, str, Any]] | None,
    ) -> list[Tensor]:
        """Enqueues everything, waits for the end, and returns the outputs.

        Args:
            queue: The request's in-order queue.
            inputs: One tensor per graph input.
            outputs: Where results should go, or ``None``.
            events: Where to note each launch's event, or ``None``.

        Raises:
            InputError: A kernel found an index out of bounds.
            StalledError: A kernel gave up; this must not run again.
        """
        import pyopencl as cl

        with self._device.alone if self.plan.needs_device else contextlib.nullcontext():
            try:
                return self._run(queue, inputs, outputs, events)
            except BaseException:
                with contextlib.suppress(cl.Error):
                    queue.finish()  # kernels may work in the caller's memory, which he may let go
                raise

    def _run(
        self,
        queue: Any,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor | None] | None,
        events: list[tuple[OpRecord, str, Any]] | None,
    ) -> list[Tensor]:
        import pyopencl as cl

        start = time.perf_counter()
        # Events of copies are kept to the end: freeing one waits for its copy.
        copies: list[Any] = []
        for operand, tensor in zip(self.plan.program.inputs, inputs, strict=True):
            if operand.const is None:
                self._bind_input(queue, operand, tensor, copies)
        given = [None] * len(self._own_outputs) if outputs is None else outputs
        self._bind_outputs(given, inputs)
        if self._shared_kernels.user is not self:
            self._shared_kernels.user = None  # nobody's, if this fails on the way
            set_arguments(self._kernels, self._arguments)
            self._shared_kernels.user = self
        for describer in self._untold:
            cl.enqueue_nd_range_kernel(queue, describer, (1,), (1,))
        self._untold = []
        if events is None:
            self._sequence.enqueue(queue)
        else:
            enqueue = cl.enqueue_nd_range_kernel
            for (kernel, global_size, local_size), step in zip(
                self._launches, self.plan.steps, strict=True
            ):
                event = enqueue(queue, kernel, global_size, local_size)
                events.append((step.op, self.plan.launch(step).kernel, event))
        results = [self._deliver(queue, i, target, copies) for i, target in enumerate(given)]
        fault = self._read_fault(queue, copies)
        queue.finish()
        if self._stall is not None and (
            self._host is not None or time.perf_counter() - start > _LEAST_STALL
        ):
            self._raise_stall(queue, self._stall)
        if fault is not None and fault[0]:
            self._raise_fault(queue, int(fault[0]))
        return results

    # ------------------------------------------------------------------------ memory

    def _new(self, operand: Operand) -> Any:
        if self._host is not None:
            return self._host.new(operand.nbytes)
        return self._device.pool.allocate(operand.nbytes)

    def _buffer(self, operand: Operand) -> Any:
        """The buffer that an operand lies in."""
        if operand.const is not None:
            return self.plan.constants.buffer(operand)
        root = operand.root
        found = self._buffers.get(root)
        if found is None:
            slot = self.plan.slots.get(root)
            # An input has its own buffer until the first run binds one.
            found = self._own_input(root) if slot is None else self._slots[slot]
            self._buffers[root] = found
        return found

    def _own_input(self, operand: Operand) -> Any:
        found = self._own_inputs.get(operand)
        if found is None:
            found = self._own_inputs[operand] = self._new(operand)
        return found

    def _arguments_of(self, number: int) -> list[Argument]:
        step = self.plan.steps[number]
        found: list[Argument] = []
        for position, arg in enumerate(step.args):
            if isinstance(arg, Operand):
                found.append(self._buffer(arg))
                if arg.const is None and arg.root in self._changing:
                    self._uses.setdefault(arg.root, []).append((number, position))
            elif isinstance(arg, Described):
                found.append(self._described(arg, step.args))
            elif isinstance(arg, (np.generic, np.ndarray)):
                found.append(arg.tobytes())
            else:
                found.append(self._shared(arg))
        return found

    def _described(self, how: Described, args: Sequence[Any]) -> Any:
        """The buffer of a step's descriptions; they are written before the next run."""
        import pyopencl as cl

        buffer = self._device.pool.allocate(Described.BYTES * len(how.matrices))
        self._descriptions.append(buffer)
        for number, matrix in enumerate(how.matrices):
            operand: Operand = args[matrix.position]
            describer = cl.Kernel(self.plan.programs[how.program], "tensor_map")
            sizes = (matrix.columns, matrix.rows, matrix.pitch, matrix.high)
            describer.set_args(buffer, self._buffer(operand), *map(np.int32, (number, *sizes)))
            self._untold.append(describer)
            if operand.const is None and operand.root in self._changing:
                self._described_by.setdefault(operand.root, []).append(describer)
        return buffer

    def _shared(self, arg: Any) -> Any:
        """The argument itself, or the request's buffer that it stands for."""
        if arg is FAULT:
            return self._fault
        if arg is STALL:
            return self._stall
        if isinstance(arg, Joined):
            return self.plan.constants.joined(arg)
        return self._counters if isinstance(arg, Counters) else arg

    def _rebind(self, operand: Operand, buffer: Any) -> None:
        """Gives kernels another buffer for an input or output."""
        if self._buffers.get(operand) is not buffer:
            self._buffers[operand] = buffer
            for number, position in self._uses.get(operand, ()):
                self._arguments[number][position] = buffer
                if self._shared_kernels.user is self:
                    self._kernels[number].set_arg(position, buffer)
            for describer in self._described_by.get(operand, ()):
                describer.set_arg(1, buffer)
                self._untold.append(describer)

    # ------------------------------------------------------------------------ inputs

    def _bind_input(self, queue: Any, operand: Operand, tensor: Tensor, copies: list[Any]) -> None:
        import pyopencl as cl

        if isinstance(tensor, OpenClTensor) and tensor.memory == self._device.memory:
            self._rebind(operand, tensor.buffer)
            return
        if self._host is not None:
            in_place = self._host.over(operand, tensor, read_only=True)
            if in_place is not None:
                self._rebind(operand, in_place)
                return
        buffer = self._own_input(operand)
        self._rebind(operand, buffer)
        array = tensor.numpy()
        if array.nbytes:
            source = raw(np.ascontiguousarray(array))
            copies.append(cl.enqueue_copy(queue, buffer, source, is_blocking=False))

    # ----------------------------------------------------------------------- outputs

    def _bind_outputs(self, given: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> None:
        """Lets kernels write straight to tensors that the caller gives and the device can reach."""
        for index, owner in enumerate(self.plan.program.owned):
            if owner is not None:
                reached = self._reached(index, given[index], inputs)
                self._direct[index] = reached is not None
                self._rebind(owner, self._own_outputs[index] if reached is None else reached)

    def _reached(self, index: int, target: Tensor | None, inputs: Sequence[Tensor]) -> Any:
        """The buffer of a tensor that kernels can write to, or ``None``."""
        if isinstance(target, OpenClTensor):
            return target.buffer if self._is_mine(target) else None
        operand = self.plan.program.outputs[index]
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

    def _deliver(self, queue: Any, index: int, target: Tensor | None, copies: list[Any]) -> Tensor:
        """Brings one output to where the caller wants it."""
        import pyopencl as cl

        operand = self.plan.program.outputs[index]
        if operand is None:
            raise TypeError("a program of this device has all outputs")
        if target is not None and self._direct[index]:
            return target
        buffer = self._buffer(operand)
        if target is not None and not self._is_mine(target):
            if operand.nbytes:
                array = raw(target.numpy())
                copies.append(cl.enqueue_copy(queue, array, buffer, is_blocking=False))
            return target
        own = self._own_outputs[index]
        if operand.const is None and self.plan.program.owned[index] is None:
            self._copy(queue, buffer, own, operand.nbytes)
            buffer = own
        if target is None and self._host is not None:
            in_place = self._host.tensor(buffer, operand.shape, operand.dtype)
            if in_place is not None:
                return in_place
        if target is None:
            return OpenClTensor(buffer, operand.shape, operand.dtype, self._device, self._name)
        if target.buffer is not buffer:  # type: ignore[attr-defined]  # a tensor of this device
            self._copy(queue, buffer, target.buffer, operand.nbytes)  # type: ignore[attr-defined]
        return target

    @staticmethod
    def _copy(queue: Any, source: Any, target: Any, nbytes: int) -> None:
        import pyopencl as cl

        if nbytes:
            cl.enqueue_copy(queue, target, source, byte_count=nbytes)

    # ------------------------------------------------------------------------ faults

    def _read_fault(self, queue: Any, copies: list[Any]) -> Any:
        import pyopencl as cl

        if self._fault is None:
            return None
        fault = np.zeros(1, np.int32)
        copies.append(cl.enqueue_copy(queue, fault, self._fault, is_blocking=False))
        return fault

    @staticmethod
    def _raise_stall(queue: Any, stall: Any) -> None:
        import pyopencl as cl

        stalled = np.zeros(1, np.int32)
        cl.enqueue_copy(queue, stalled, stall, is_blocking=True)
        if stalled[0]:
            raise StalledError

    def _raise_fault(self, queue: Any, number: int) -> None:
        import pyopencl as cl

        fault: Any = self._fault
        cl.enqueue_copy(queue, fault, np.zeros(1, np.int32), is_blocking=True)
        op = self.plan.program.ops[number - 1]
        raise InputError(
            f"Operation '{op.name}' ({op.op_type}) on device '{self._name}' was given an index out "
            "of bounds; check the model's integer inputs."
        )
