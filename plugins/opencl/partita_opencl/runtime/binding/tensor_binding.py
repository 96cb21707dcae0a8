"""The tensors of a run as a plan's kernels read and write them: in place, or by copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.contract.execution import MemoryRange
from partita.lowering import Array, Operand, Program
from partita.tensors.tensor import HostTensor, Tensor
from partita_opencl.device.device import Device
from partita_opencl.device.device_tensor import OpenClTensor
from partita_opencl.device.host_buffers import HostBuffers
from partita_opencl.runtime.binding.launch_arguments import LaunchArguments
from partita_opencl.runtime.binding.request_buffers import RequestBuffers
from partita_opencl.runtime.commands import Commands
from partita_opencl.runtime.execution_plan import Plan


class BoundTensors(NamedTuple):
    """What a plan is bound to.

    Attributes:
        given: By output the tensor that it goes to, or ``None``.
        uploads: Buffers, and the arrays that are copied to them before the kernels run.
        delivered: Outputs that are brought to where the caller wants them after that.
    """

    given: Sequence[Tensor | None]
    uploads: Sequence[tuple[Any, Array]]
    delivered: Sequence[int]


class HostCopies(NamedTuple):
    """The copies of a run whose tensors are all in host memory, which kernels do not reach.

    They are the same for all such runs until a buffer of the request is replaced.

    Attributes:
        replaced: `RequestBuffers.replaced`, as they were found.
        uploaded: Inputs that are copied, and to which buffers.
        delivered: Outputs that are copied from buffers.
    """

    replaced: int
    uploaded: Sequence[tuple[int, Any]]
    delivered: Sequence[int]


class TensorBinding:
    """Gives a plan's kernels the tensors of each run, and the caller its outputs.

    Args:
        plan: What runs.
        device: The one that the plan is for.
        name: The device's name, for messages.
        arguments: What the plan's launches are given.
        own: The request's buffers for inputs and outputs that kernels cannot reach.
        in_place: By output the input that a run can write it over.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        name: str,
        arguments: LaunchArguments,
        own: RequestBuffers,
        in_place: Mapping[int, int],
    ) -> None:
        self._plan, self._device, self._name = plan, device, name
        self._arguments = arguments
        self._host = HostBuffers(device) if device.shares_host else None
        self._own = own
        program = plan.program
        self._in_place = {o: i for o, i in in_place.items() if _is_over(program, o, i)}
        self._direct = [False] * len(program.outputs)  # written to where the caller wants it
        self._copies: HostCopies | None = None  # of the last run, if it was such a one

    def shared_memory(self) -> tuple[MemoryRange, ...]:
        """The host memory that kernels work in."""
        return () if self._host is None else self._host.shared()

    def bind(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None
    ) -> BoundTensors:
        """Lets kernels work on these tensors; returns what is to be copied.

        Args:
            inputs: One tensor per graph input.
            outputs: Where results should go, or ``None``.
        """
        given = [None] * len(self._direct) if outputs is None else outputs
        by_copies = self._host is None and all(map(_is_on_host, (*inputs, *given)))
        copies = self._copies
        if by_copies and copies is not None and copies.replaced == self._own.replaced:
            uploads = [(buffer, inputs[index].numpy()) for index, buffer in copies.uploaded]
            return BoundTensors(given, uploads, copies.delivered)
        state = self._bind_in_place(given, inputs)
        uploaded, uploads = [], []
        for index, operand in enumerate(self._plan.program.inputs):
            if operand.dtype.hasobject:  # strings, which no kernel reads
                continue
            if not operand.is_constant and index not in state.values():
                upload = self._bind_input(index, inputs[index])
                if upload is not None:
                    uploads.append(upload)
                    uploaded.append((index, upload[0]))
        self._bind_outputs(given, inputs, state)
        self._arguments.leave_copies_out()
        delivered = [i for i, direct in enumerate(self._direct) if not direct]
        self._copies = HostCopies(self._own.replaced, uploaded, delivered) if by_copies else None
        return BoundTensors(given, uploads, delivered)

    def _bind_input(self, index: int, tensor: Tensor) -> tuple[Any, Array] | None:
        """Gives kernels an input; returns the buffer and array of a copy to be made before them."""
        operand = self._plan.program.inputs[index]
        if isinstance(tensor, OpenClTensor) and tensor.memory == self._device.memory:
            self._arguments.rebind(operand, tensor.buffer)
            return None
        if self._host is not None:
            in_place = self._host.over(operand, tensor, read_only=True)
            if in_place is not None:
                self._arguments.rebind(operand, in_place)
                return None
        buffer = self._own.input(index, operand.nbytes)
        self._arguments.rebind(operand, buffer)
        array = tensor.numpy()
        return (buffer, array) if array.nbytes else None

    def _bind_in_place(
        self, given: Sequence[Tensor | None], inputs: Sequence[Tensor]
    ) -> dict[int, int]:
        """Gives outputs that are to be written over their inputs one buffer with them.

        Returns:
            Those outputs with their inputs.
        """
        bound = {}
        for index, source in self._in_place.items():
            owner = self._plan.program.owned[index]
            buffer = self._one_buffer(index, given[index], inputs[source])
            if owner is not None and buffer is not None:
                self._arguments.rebind(self._plan.program.inputs[source], buffer)
                self._arguments.rebind(owner, buffer)
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

    def _bind_outputs(
        self,
        given: Sequence[Tensor | None],
        inputs: Sequence[Tensor],
        state: Mapping[int, int],
    ) -> None:
        """Lets kernels write straight to tensors that the caller gives and the device can reach."""
        for index, owner in enumerate(self._plan.program.owned):
            if owner is not None and index not in state:
                reached = self._reached(index, given[index], inputs)
                self._direct[index] = reached is not None
                self._arguments.rebind(
                    owner, self._own_output(index, owner) if reached is None else reached
                )

    def _own_output(self, index: int, operand: Operand) -> Any:
        """A buffer of the request for an output, which no input of this run lies in."""
        return self._own.output(index, operand.nbytes, self._arguments.input_buffers())

    def _reached(self, index: int, target: Tensor | None, inputs: Sequence[Tensor]) -> Any:
        """The buffer of a tensor that kernels can write to, or ``None``."""
        operand = self._plan.program.outputs[index]
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

    def deliver(self, commands: Commands, index: int, target: Tensor | None) -> Tensor:
        """Brings one output to where the caller wants it."""
        operand = self._plan.program.outputs[index]
        if operand is None:
            raise TypeError("a program of this device has all outputs")
        if target is not None and self._direct[index]:
            return target
        buffer = self._arguments.buffer(operand)
        if target is not None and target.shape != operand.shape:
            target = None  # whoever gave it sees that it was declined
        if target is not None and not self._is_mine(target):
            if operand.nbytes:
                commands.download(target.numpy(), buffer)
            return target
        lies_elsewhere = not operand.is_constant and self._plan.program.owned[index] is None
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


def _is_on_host(tensor: Tensor | None) -> bool:
    """Whether it is a tensor in host memory, or none is given."""
    return tensor is None or type(tensor) is HostTensor


def _is_over(program: Program, output: int, source: int) -> bool:
    """Whether an output of a program, made in memory of its own, has the shape of an input."""
    owner, operand = program.owned[output], program.inputs[source]
    return owner is not None and not operand.is_constant and owner.nbytes == operand.nbytes
