"""What an application has set the inputs of a request to, and what runs read of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from partita.errors import InputError
from partita.runtime.binding.input_conversion import Array, check, to_tensor, wrapping_test
from partita.runtime.binding.input_copies import InputCopies
from partita.runtime.binding.input_names import InputNames, Inputs
from partita.runtime.state_memory import StateMemory
from partita.tensors.array_state import ArrayState
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita.contract.device_model import DeviceModel
    from partita.runtime.compiled_facts import CompiledFacts


class Keeper(NamedTuple):
    """Tells which tensor may be kept for an input.

    Attributes:
        owners: By id what owns memory that a run may write to; tensors elsewhere may be kept.
        keep: Returns the tensor that may be kept for one: itself, or a copy.
    """

    owners: Set[int]
    keep: Callable[[Tensor], Tensor]


class Changes(NamedTuple):
    """Inputs that an application sets, checked and converted.

    Attributes:
        indices: Those that change.
        tensors: The tensors of all inputs, with these.
        sources: What the application gave for all inputs, with these.
        state: By input what is to be copied to state that runs update in place.
    """

    indices: frozenset[int]
    tensors: list[Tensor | None]
    sources: list[Array | Tensor | None]
    state: dict[int, Tensor]


class InputTensors:
    """The tensors of one request's inputs, as the application has set them.

    Where calls are bound, an array with the shape and dtype of the one before it is only noted;
    :meth:`refresh` wraps it as a tensor when one is needed.

    Each run checks whether the application has resized or moved an array in place. Runners get
    views of their own, and new ones if so.

    Inputs that are state updated in place do not belong to the application: they are the same
    tensors in every run, and are not checked.

    Args:
        compiled: The request's model.
        memory: The state that runs update in place.
        place: The replica of the model that the request uses.

    Attributes:
        names: Which input is meant by a name or index.
        given: The inputs that the application sets.
        tensors: One per input, ``None`` where none was set; current after `refresh`.
        sources: By input what the application gave: an array that is read in place, or a tensor.
        states: By input how the array was that its view was made of, if it has come repeatedly.
        copies: Copies of inputs that were to be copied.
        has_moved: Whether an array turned out to have been resized or moved; for its user to unset.
    """

    def __init__(self, compiled: CompiledFacts, memory: StateMemory, place: DeviceModel) -> None:
        self._memory = memory
        self._ports = compiled.inputs
        self._wraps = [wrapping_test(port) for port in compiled.inputs]
        self.names = InputNames(compiled)
        self.given = [p.index for p in compiled.inputs if p.index not in memory.tensors]
        self.tensors: list[Tensor | None] = [memory.tensors.get(p.index) for p in compiled.inputs]
        self.states: list[ArrayState | None] = [None] * len(compiled.inputs)
        self.sources: list[Array | Tensor | None] = [None] * len(compiled.inputs)
        self.copies = InputCopies(place)
        self.has_moved = False
        self._seen: list[Tensor | None] = [None] * len(compiled.inputs)  # by the last run
        self._has_newer_arrays = False  # whether sources are newer than the tensors

    def for_run(self) -> list[Tensor]:
        """The tensors for a runner to read.

        Raises:
            InputError: An input was not set, or its array no longer fits the port.
        """
        self.refresh()
        if self._memory.unsized:
            self._memory.set_sizes(self.shapes())
        for index, tensor in self._memory.tensors.items():
            self.tensors[index] = tensor
        views: list[Tensor] = []
        for index, (given, state) in enumerate(zip(self.tensors, self.states, strict=True)):
            if state is not None and state.tensor is given and state.holds():
                views.append(state.view)
            else:
                views.append(self._view(index, given))
        return views

    def state_of(self, index: int) -> ArrayState:
        """How the array of an input is, which is a host tensor."""
        state, tensor = self.states[index], self.tensors[index]
        if state is None:
            if not isinstance(tensor, HostTensor):
                raise TypeError(f"input {index} is in no host memory: {tensor!r}")
            state = self.states[index] = ArrayState(tensor)
        return state

    def shapes(self) -> dict[int, tuple[int, ...]]:
        """By input its shape, of all but the state that is updated in place."""
        self.refresh()
        given = ((index, self.tensors[index]) for index in self.given)
        return {index: tensor.shape for index, tensor in given if tensor is not None}

    def unequal_sizes(self) -> str:
        """A sentence about inputs whose sizes of one symbol differ; empty if there are none.

        Most such models can be computed: the sentence explains one that cannot.
        """
        first: dict[str, tuple[str, int]] = {}
        for index, sizes in self.shapes().items():
            port = self._ports[index]
            for name, size in zip(port.shape or (), sizes, strict=False):
                if isinstance(name, str) and first.setdefault(name, (port.name, size))[1] != size:
                    other, there = first[name]
                    return (
                        f" Inputs '{other}' and '{port.name}' both have '{name}' in their shapes, "
                        f"which is {there} of the one and {size} of the other."
                    )
        return ""

    def _view(self, index: int, tensor: Tensor | None) -> Tensor:
        """The view of a tensor for runners.

        From the second run on it is the same object until its array changes in place.
        """
        if tensor is not None and index in self._memory.tensors:
            return tensor
        state = self.states[index]
        if state is None or state.tensor is not tensor:
            if tensor is None:
                port = self._ports[index]
                raise InputError(f"Input '{port.name}' ({port.describe()}) is missing.")
            if not isinstance(tensor, HostTensor):
                self.states[index] = None
                return tensor
            if self._seen[index] is not tensor and _is_as_it_was(tensor):  # most come once
                self._seen[index], self.states[index] = tensor, None
                return HostTensor.of(tensor.numpy().view())
            state = self.states[index] = ArrayState(tensor)
            holds = _is_as_it_was(tensor)
        else:
            holds = state.holds()
        if not holds:
            moved = state.tensor.numpy() is not state.array  # it was given another shape
            source = state.tensor if moved else state.array
            port = self._ports[index]
            check(port, source.dtype, source.shape)  # never converted: it was right before
            taken = to_tensor(port, source, copy=False)
            state = self.states[index] = ArrayState(taken)  # type: ignore[arg-type]  # on the host
            self.put(index, taken)
            self.has_moved = True
        return state.view

    def changes(self, inputs: Inputs, copy: bool, keeper: Keeper) -> Changes:
        """What setting inputs would change; :meth:`adopt` sets them.

        Args:
            inputs: The inputs as the application gave them.
            copy: Copy arrays in any case.
            keeper: Tells which tensor may be kept for one.

        Raises:
            InputError: A wrong name, dtype or shape.
        """
        ports = self._ports
        tensors, sources = self.tensors.copy(), self.sources.copy()
        state: dict[int, Tensor] = {}
        changed = set()
        owned, notes = self._memory.tensors, copy or self.copies.are_noted
        for index, data in self.names.pairs(inputs):
            if index in owned:
                state[index] = to_tensor(ports[index], data, copy=False)
                continue
            is_array = type(data) is np.ndarray
            same = is_array and data is sources[index]
            if same and not copy and _is_as_before(data, tensors[index]):
                continue
            if is_array and not copy and self._wraps[index](data):
                base = data.base
                tensor: Tensor = HostTensor.of(data)
                if id(data if base is None else base) in keeper.owners:
                    tensor = keeper.keep(tensor)
            else:
                room = functools.partial(self.copies.room, index) if copy else np.empty
                tensor = keeper.keep(to_tensor(ports[index], data, copy, room))
            tensors[index] = tensor
            sources[index] = data if is_array and tensor.numpy() is data else tensor
            if notes:
                self.copies.note(index, tensor, copy and is_array)
            changed.add(index)
        return Changes(frozenset(changed), tensors, sources, state)

    def adopt(self, changes: Changes) -> bool:
        """Sets inputs; whether the tensors have the shapes and types that they had before."""
        alike = all(map(is_like, changes.tensors, self.tensors))
        self.tensors, self.sources = changes.tensors, changes.sources
        return alike

    def note(self, sources: list[Array | Tensor | None]) -> None:
        """Notes arrays that fit as those before did; see :meth:`refresh`."""
        self.sources = sources
        self._has_newer_arrays = True

    def put(self, index: int, tensor: Tensor) -> None:
        """Sets an input to a tensor of the request's own."""
        self.tensors[index] = self.sources[index] = tensor

    def keep_tensors_as_sources(self) -> None:
        """Takes the tensor of each input as given that the application gave nothing else for."""
        pairs = zip(self.sources, self.tensors, strict=True)
        self.sources = [tensor if source is None else source for source, tensor in pairs]

    def forget_arrays(self) -> None:
        """Forgets all arrays, so that the next ones are checked as new ones."""
        self.sources = list(self.tensors)

    def refresh(self) -> None:
        """Wraps arrays as tensors that were only noted when they were set.

        They fitted when they came; whether they still do, the next run checks.
        """
        if self._has_newer_arrays:
            for index, source in enumerate(self.sources):
                before = self.tensors[index]
                if type(source) is not np.ndarray or before is None or before.numpy() is source:
                    continue
                self.tensors[index] = HostTensor.seen_as(source, before.shape, before.dtype)
            self._has_newer_arrays = False


def is_like(new: Tensor | None, old: Tensor | None) -> bool:
    """Whether a tensor has the shape and type of another one, and lies in host memory as it."""
    if new is None or old is None or new is old:
        return new is old
    same = new.shape == old.shape and new.dtype == old.dtype
    return same and new.memory == old.memory == HOST


def _is_as_it_was(tensor: HostTensor) -> bool:
    """Whether an array has the shape and type that it had when it was set."""
    array = tensor.numpy()
    return array.shape == tensor.shape and array.dtype is tensor.dtype


def _is_as_before(array: Any, tensor: Tensor | None) -> bool:
    """Whether an array that was taken as it is has still the shape and type it had then."""
    if tensor is None or array.shape != tensor.shape or array.dtype is not tensor.dtype:
        return False
    return bool(array.flags.c_contiguous)
