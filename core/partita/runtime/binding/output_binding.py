"""What a request writes: results, where the application wants them, and what is fed back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import DeviceMemoryError, InferError, InputError, PluginError
from partita.model.expected_shapes import DueShapes
from partita.model.model import Port
from partita.runtime.binding.input_conversion import Array, check, is_plain
from partita.runtime.infer_result import InferResult
from partita.runtime.result_check import ResultCheck
from partita.runtime.state_buffers import Carrier, owner_of
from partita.runtime.state_memory import StateMemory
from partita.tensors.array_state import ArrayState
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita.runtime.compiled_facts import CompiledFacts


class RequestOutputs:
    """The outputs of one request.

    Args:
        compiled: The request's model.
        memory: The state that runs update in place; those outputs go there.

    Attributes:
        results: Of the last run, where the application wants them.
    """

    def __init__(self, compiled: CompiledFacts, memory: StateMemory) -> None:
        self._compiled = compiled
        self._memory = memory
        self._ports = compiled.outputs
        state = {variable.written for variable in compiled.model.variables}
        self._own = [port.index for port in compiled.outputs if port.name not in state]
        self._check = ResultCheck(compiled.outputs, DueShapes(compiled.model))
        self._targets: list[ArrayState | None] | None = None
        self._carrier: Carrier | None = None
        self.results: Sequence[Tensor] = ()

    def set(self, port: Port, target: Any) -> None:
        """Sets where an output goes.

        Raises:
            InputError: A wrong type or shape, memory that cannot be written, or state.
        """
        if port.index in self._memory.outputs:
            raise InputError(
                f"Output '{port.name}' is state, which the request keeps where it is computed; "
                "query_state() reads and sets it."
            )
        state = _writable(port, target if isinstance(target, Tensor) else np.asarray(target))
        if self._targets is None:
            self._targets = [None] * len(self._ports)
        self._targets[port.index] = state

    def target(self, port: Port) -> Tensor | None:
        """Where an output goes, if that was set."""
        state = None if self._targets is None else self._targets[port.index]
        return None if state is None else state.tensor

    def still_there(self) -> bool:
        """Whether the arrays that results go to are what they were when they were set."""
        return self._targets is None or all(s is None or s.holds() for s in self._targets)

    def targets(self, tensors: Sequence[Tensor]) -> Sequence[Tensor | None] | None:
        """What the runner is to write to, in a run on these inputs.

        Raises:
            InputError: An array that was set as an output does not fit any more.
        """
        states = self._targets
        given: list[Tensor | None] | None = None
        if states is not None:
            for index, state in enumerate(states):
                if state is not None and not state.holds():
                    states[index] = _writable(self._ports[index], state.tensor)
            given = [
                None if s is None or not self._can_go_to(index, s.array, tensors) else s.view
                for index, s in enumerate(states)
            ]
        if self._carrier is not None:
            lent = self._carrier.targets(tensors, given)
            given = None if lent is None else list(lent)
        if not self._memory.outputs:
            return given
        targets = given or [None] * len(self._ports)
        for output, source in self._memory.outputs.items():
            targets[output] = self._memory.tensors[source]
        return targets

    def _can_go_to(self, output: int, array: Array, tensors: Sequence[Tensor]) -> bool:
        """Whether a run on these inputs can write an output to an array of the application.

        Not where an input lies, but for the one that the device writes over.
        """
        if not is_plain(array):
            return False
        owner = owner_of(array)
        for index, tensor in enumerate(tensors):
            if tensor.memory != HOST or owner_of(tensor.numpy()) is not owner:
                continue
            source = tensor.numpy()
            is_same = source.ctypes.data == array.ctypes.data and source.nbytes == array.nbytes
            if is_same and self._memory.offered.get(output) == index:
                continue
            if np.may_share_memory(source, array):
                return False
        return True

    def take(self, results: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Takes what a run returned, and copies what the application wants elsewhere.

        Args:
            results: What the runner returned.
            inputs: What it was given.

        Returns:
            The tensors that calls of this run would write to, if they were bound.

        Raises:
            PluginError: They are not what the outputs promise.
        """
        if not self._check.is_plain(results):
            fault = self._check.fault(results, [tensor.shape for tensor in inputs])
            if fault:
                device = self._compiled.device
                below = [name for name in self._compiled.execution_devices if name != device]
                whose = f"The plugin of {' or '.join(below)}" if below else "Its plugin"
                raise PluginError(
                    f"Device '{device}' {fault} (model '{self._compiled.model.name}'). {whose} is "
                    "at fault: tell its author, and use another device meanwhile."
                )
        if self._memory.outputs:
            results = self._in_place(results)
        self.results = results
        if self._targets is None:
            return results
        written, delivered = [], []
        for port, result, state in zip(self._ports, results, self._targets, strict=True):
            if state is not None and result is not state.view:
                if result.shape != state.array.shape:
                    raise InferError(
                        f"Output '{port.name}' has shape {list(result.shape)}; the tensor set for "
                        f"it has {list(state.array.shape)}."
                    )
                np.copyto(state.array, result.numpy())
            written.append(result if state is None else state.view)
            delivered.append(result if state is None else state.tensor)
        self.results = delivered
        return written

    def _in_place(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Results with state where it belongs, also of a device that wrote it elsewhere."""
        delivered = list(results)
        for output, source in self._memory.outputs.items():
            if delivered[output] is not self._memory.tensors[source]:
                self._memory.put(source, delivered[output])
                delivered[output] = self._memory.tensors[source]
        return delivered

    def collect(self, copy: bool) -> InferResult:
        """The results as arrays; variables as tensors.

        Args:
            copy: Copies of them, instead of what the next run overwrites.

        Raises:
            DeviceMemoryError: The host has no room for copies.
        """
        results = self.results
        arrays: list[Array | Tensor] = list(results)
        try:
            for index in self._own:
                tensor = results[index]
                array = tensor.numpy()
                arrays[index] = array.copy() if copy and tensor.memory == HOST else array
        except MemoryError as error:
            raise DeviceMemoryError(
                f"The host has no room to copy the results of device '{self._compiled.device}' "
                f"({error}); ask for them with share_outputs, or for smaller ones."
            ) from error
        return InferResult(self._ports, arrays)

    def own(self, tensor: Tensor, leave: Callable[[], bool]) -> Tensor:
        """An input, or a copy where the runner cannot read it in place or would overwrite it.

        Args:
            tensor: The input.
            leave: Has the runner give up the last results; whether it has.
        """
        if tensor.memory != HOST:
            takes = self._compiled.device_model.takes_memory(tensor.memory)
            return tensor if takes else HostTensor(tensor.numpy())
        if not self.results:
            return tensor
        array = tensor.numpy()
        owner = owner_of(array)
        if self._carrier is not None and self._carrier.owns(owner):
            return tensor
        if self._is_written_over(array):
            return tensor
        within = [
            index
            for index, result in enumerate(self.results)
            if result.memory == HOST and owner_of(result.numpy()) is owner
        ]
        for index in within:  # several outputs may lie in one block of memory
            if np.may_share_memory(array, self.results[index].numpy()):
                self._carry(index)
        return HostTensor(array.copy()) if within and not leave() else tensor

    def _is_written_over(self, array: Array) -> bool:
        """Whether an array of the application is an output that the device writes over an input."""
        return self._targets is not None and any(
            state is not None and state.array is array and index in self._memory.offered
            for index, state in enumerate(self._targets)
        )

    def _carry(self, output: int) -> None:
        """Spares an output that is fed back the copy, from the next run on."""
        if self._carrier is None:
            self._carrier = Carrier(self._compiled.inputs, self._ports)
        self._carrier.add(output)


def _writable(port: Port, target: Tensor | Array) -> ArrayState:
    """A tensor or array that an output can go to, as it is now."""
    if isinstance(target, np.ndarray):
        target = HostTensor(target)
    elif isinstance(target, HostTensor):
        check(port, target.numpy().dtype, target.numpy().shape)
    check(port, target.dtype, target.shape)
    if not isinstance(target, HostTensor) or not target.numpy().flags.writeable:
        raise InputError(f"Output '{port.name}' needs host memory that can be written.")
    return ArrayState(target)
