"""The outputs of a request: results, the tensors that were set for them, and feedback."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.device_model import DeviceModel
from partita.errors import (
    PLUGIN_FAILURES,
    DeviceMemoryError,
    InferError,
    InputError,
    PartitaError,
    PluginError,
    in_words,
)
from partita.model.expected_shapes import ExpectedShapes
from partita.model.model import Port
from partita.runtime.binding.input_conversion import Array, check, is_plain
from partita.runtime.binding.input_tensors import Keeper
from partita.runtime.binding.result_arrays import ResultArrays
from partita.runtime.infer_result import InferResult
from partita.runtime.result_check import ResultCheck
from partita.runtime.state_buffers import FeedbackBuffers, owner_of
from partita.runtime.state_memory import StateMemory
from partita.tensors.array_state import ArrayState
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita.runtime.compiled_facts import CompiledFacts


class RequestOutputs:
    """The outputs of one request.

    Args:
        compiled: The request's model.
        memory: The state that runs update in place, where these outputs are written.
        place: The replica of the model that the request uses.

    Attributes:
        results: The results of the last run, in the tensors that the application has set.
    """

    def __init__(self, compiled: CompiledFacts, memory: StateMemory, place: DeviceModel) -> None:
        self._compiled = compiled
        self._memory = memory
        self._arrays = ResultArrays(place)
        self._ports = compiled.outputs
        state = {variable.written for variable in compiled.model.variables}
        self._own = [port.index for port in compiled.outputs if port.name not in state]
        self._check = ResultCheck(compiled.outputs, ExpectedShapes(compiled.model))
        self._targets: list[ArrayState | None] | None = None
        self._feedback_buffers: FeedbackBuffers | None = None
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

    def targets_unchanged(self) -> bool:
        """Whether the arrays that were set for outputs have not been changed in place."""
        return self._targets is None or all(s is None or s.holds() for s in self._targets)

    def targets(self, tensors: Sequence[Tensor]) -> Sequence[Tensor | None] | None:
        """The tensors for the runner to write, in a run on these inputs.

        Raises:
            InputError: An array that was set as an output no longer fits the port.
        """
        states = self._targets
        given: list[Tensor | None] | None = None
        if states is not None:
            for index, state in enumerate(states):
                if state is not None and not state.holds():
                    states[index] = _writable(self._ports[index], state.tensor)
            given = [
                None if s is None or not self._can_write_to(index, s.array, tensors) else s.view
                for index, s in enumerate(states)
            ]
        if self._feedback_buffers is not None:
            lent = self._feedback_buffers.targets(tensors, given)
            given = None if lent is None else list(lent)
        given = self._arrays.targets(tensors, given, len(self._ports), self._can_write_to)
        if not self._memory.outputs:
            return given
        targets = given or [None] * len(self._ports)
        for output, source in self._memory.outputs.items():
            targets[output] = self._memory.tensors[source]
        return targets

    def _can_write_to(self, output: int, array: Array, tensors: Sequence[Tensor]) -> bool:
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

    def deliver(self, results: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Checks the results of a run, and copies them to the tensors that the application set.

        Args:
            results: The tensors that the runner returned.
            inputs: The tensors that it read.

        Returns:
            The tensors that a call bound to this run would write.

        Raises:
            PluginError: A result does not fit its port, or the symbols in the ports' shapes.
        """
        if not self._check.is_plain(results):
            shapes = tuple([tuple(tensor.shape) for tensor in inputs])
            fault = self._check.fault(results, shapes)
            if fault:
                device = self._compiled.device
                below = self._compiled.computing_devices
                whose = f"The plugin of {' or '.join(below)}" if below else "Its plugin"
                raise PluginError(
                    f"Device '{device}' {fault} (model '{self._compiled.model.name}'). {whose} is "
                    "at fault: tell its author, and use another device meanwhile."
                )
        if self._memory.outputs:
            results = self._in_place(results)
        self._arrays.note(inputs, results, self._own)
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
        """Results with state in its own memory, also where a device wrote it elsewhere."""
        delivered = list(results)
        for output, source in self._memory.outputs.items():
            if delivered[output] is not self._memory.tensors[source]:
                self._memory.put(source, delivered[output])
                delivered[output] = self._memory.tensors[source]
        return delivered

    def collect(self, copy: bool) -> InferResult:
        """The results as arrays, and variables as tensors.

        Args:
            copy: Return copies, not arrays that the next run overwrites.

        Raises:
            DeviceMemoryError: The host has no room for copies.
            InferError: The device failed to copy one to the host.
            PluginError: It copied something else.
        """
        results = self.results
        arrays: list[Array | Tensor] = list(results)
        try:
            for index in self._own:
                tensor = results[index]
                array = self._elements(index, tensor)
                arrays[index] = array.copy() if copy and tensor.memory == HOST else array
        except MemoryError as error:
            raise DeviceMemoryError(
                f"The host has no room to copy the results of device '{self._compiled.device}' "
                f"({error}); ask for them with share_outputs, or for smaller ones."
            ) from error
        return InferResult(self._ports, arrays)

    def _elements(self, index: int, tensor: Tensor) -> Array:
        """A result as an array; a copy, if it is in memory of the device."""
        if type(tensor) is HostTensor:
            return tensor.numpy()
        device, name = self._compiled.device, self._ports[index].name
        try:
            array = tensor.numpy()
        except (MemoryError, PartitaError):
            raise
        except PLUGIN_FAILURES as error:
            raise InferError(
                f"Device '{device}' failed to copy '{name}' to the host: {in_words(error)}"
            ) from error
        if array.shape == tensor.shape and array.dtype == tensor.dtype:
            return array
        found, due = (f"{one.dtype}[{', '.join(map(str, one.shape))}]" for one in (array, tensor))
        raise PluginError(
            f"Device '{device}' copied '{name}' to the host as {found}; it is {due}. Tell the "
            "author of its plugin."
        )

    def keeper(self, leave: Callable[[], bool]) -> Keeper:
        """What tells which tensor may be kept for an input that the application sets now.

        A copy where the runner cannot read it or would overwrite it.

        Args:
            leave: Asks the runner to give up the last results; returns whether it did.
        """
        on_host = (tensor.numpy() for tensor in self.results if tensor.memory == HOST)
        owners = {id(owner_of(array)) for array in on_host}
        return Keeper(owners, partial(self._keepable, leave, owners))

    def _keepable(self, leave: Callable[[], bool], owners: Set[int], tensor: Tensor) -> Tensor:
        if tensor.memory != HOST:
            takes = self._compiled.device_model.takes_memory(tensor.memory)
            return tensor if takes else HostTensor(tensor.numpy())
        array = tensor.numpy()
        owner = owner_of(array)
        if id(owner) not in owners:
            return tensor
        if self._feedback_buffers is not None and self._feedback_buffers.owns(owner):
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
                self._feed_back(index)
        return HostTensor(array.copy()) if within and not leave() else tensor

    def _is_written_over(self, array: Array) -> bool:
        """Whether an array of the application is an output that the device writes over an input."""
        return self._targets is not None and any(
            state is not None and state.array is array and index in self._memory.offered
            for index, state in enumerate(self._targets)
        )

    def _feed_back(self, output: int) -> None:
        """Has an output that is fed back written to buffers of its own from the next run on."""
        if self._feedback_buffers is None:
            self._feedback_buffers = FeedbackBuffers(self._compiled.inputs, self._ports)
        self._feedback_buffers.add(output)


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
