"""What a request reads: tensors, and how calls that are bound for them read the next ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InputError
from partita.runtime.binding.input_conversion import Array, check, to_tensor
from partita.runtime.binding.input_copies import InputCopies, host_array
from partita.runtime.binding.input_names import InputNames, Inputs
from partita.runtime.binding.input_setters import (
    InputSetter,
    no_setter,
    setter_by_copy,
    setter_in_place,
)
from partita.runtime.binding.parked_calls import BoundCalls, ParkedCalls
from partita.runtime.state_buffers import LoopedState, owner_of
from partita.runtime.state_memory import StateMemory
from partita.tensors.array_state import ArrayState
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall
    from partita.contract.device_model import DeviceModel
    from partita.contract.runner import Runner
    from partita.runtime.compiled_facts import CompiledFacts

_PATIENCE = 2
"""Runs on the same tensors before a request has calls for them bound."""

STAGED_BYTES = 1 << 14
"""Inputs up to this size are copied to where bound calls read them, larger ones read in place.

To copy so little takes less time than to find out whether an array lies where it did.
"""


class RequestInputs:
    """The inputs of one request, and the calls that are bound for them.

    Bound calls read small inputs from memory of this object, to which the elements of the
    application's arrays are copied before each call, and large ones in place. While calls are
    bound, an array like the one before it is noted as it is; :meth:`settle` makes a tensor of it
    when one is asked for.

    Before each run it is looked whether an application has changed an array in place. Runners are
    handed views of their own, and another one if so.

    Inputs that are state in a memory of their own are none of the application's: they stay the
    same tensors from run to run, and no call looks at them. One that is given all the same is
    copied there.

    Args:
        compiled: The request's model.
        memory: The state that runs update in place.
        place: The model where the request is.

    Attributes:
        tensors: One per input, ``None`` where none was set; of the last arrays after `settle`.
        again: Calls with everything bound, once the same tensors have come some times.
        results: What these calls leave behind.
    """

    def __init__(self, compiled: CompiledFacts, memory: StateMemory, place: DeviceModel) -> None:
        self._compiled = compiled
        self._memory = memory
        self._place = place
        self._version = memory.version
        self._ports = compiled.inputs
        self._given = [p.index for p in compiled.inputs if p.index not in memory.tensors]
        self._names = InputNames(compiled)
        self.tensors: list[Tensor | None] = [memory.tensors.get(p.index) for p in compiled.inputs]
        self._states: list[ArrayState | None] = [None] * len(compiled.inputs)
        self.again: BoundCall | None = None
        self.results: Sequence[Tensor] = ()
        self._parked = ParkedCalls()
        self._setters: Sequence[InputSetter] = ()
        self._bound: Sequence[Tensor] = ()  # what the bound calls read
        self._written: Mapping[int, object] = {}  # who owns the memory that they write, by id
        # By input what it was given as: an array that is read as it is, or a tensor.
        self._sources: list[Array | Tensor | None] = [None] * len(compiled.inputs)
        self._copies = InputCopies(place)
        self._taken = False  # whether arrays among the sources are newer than the tensors
        self._brought = False  # whether bound calls read all sources already
        self._runs, self._patience = 0, _PATIENCE
        self._handed_on: Mapping[int, int] = {}  # state by turns: input to the output before it
        self._flags: frozenset[int] = frozenset()  # inputs that say that there is state
        self._loop = LoopedState({}, ())  # what bound calls find these inputs in
        self._outside = self._given  # the other ones
        self._is_looped = True  # whether these inputs are to be found there
        self._in_step = False  # whether the last call found them there, too

    def hand_on(self, outputs: Mapping[int, int], flags: Iterable[int]) -> None:
        """Names state of which a run reads what the run before it wrote, in another tensor.

        Calls that are bound hand it on themselves, if it is small: what they read is a copy.

        Args:
            outputs: By input the output that the next run reads there.
            flags: Inputs that are true from the second run on.
        """
        self._handed_on, self._flags = outputs, frozenset(flags)

    def __contains__(self, name: str) -> bool:
        return name in self._names.indices

    def complete(self) -> Sequence[Tensor]:
        """What the runner is to read.

        Raises:
            InputError: An input was not set, or its array does not fit any more.
        """
        self.settle()
        if self._memory.unsized:
            self._memory.take_sizes(self.shapes())
        for index, tensor in self._memory.tensors.items():
            self.tensors[index] = tensor
        return [self._view(index, tensor) for index, tensor in enumerate(self.tensors)]

    def shapes(self) -> dict[int, tuple[int, ...]]:
        """By input the shape that was given, of those that are no state in a memory of its own."""
        self.settle()
        given = ((index, self.tensors[index]) for index in self._given)
        return {index: tensor.shape for index, tensor in given if tensor is not None}

    def unequal_sizes(self) -> str:
        """A sentence on inputs that name one size and have different ones; empty if none do.

        Models may do so, and most compute: it is said only where one does not.
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
        """A tensor as runners are to see it: the same object only as long as it is the same."""
        if tensor is not None and index in self._memory.tensors:
            return tensor
        state = self._states[index]
        if state is None or state.tensor is not tensor:
            if tensor is None:
                port = self._ports[index]
                raise InputError(f"Input '{port.name}' ({port.describe()}) is missing.")
            if not isinstance(tensor, HostTensor):
                self._states[index] = None
                return tensor
            state = self._states[index] = ArrayState(tensor)
        if not state.holds():
            moved = state.tensor.numpy() is not state.array  # it was given another shape
            source = state.tensor if moved else state.array
            check(
                self._ports[index], source.dtype, source.shape
            )  # never converted: it was right before
            taken = to_tensor(self._ports[index], source, copy=False)
            state = self._states[index] = ArrayState(taken)  # type: ignore[arg-type]  # on the host
            self.tensors[index] = self._sources[index] = taken
            self.start_anew()
        return state.view

    def bound_calls(self, outputs_hold: bool) -> BoundCall | None:
        """Calls with everything bound, if there are any and all arrays are what they were.

        Args:
            outputs_hold: Whether the arrays that results go to are.
        """
        again = self.again
        if again is None:
            return None
        brought, self._brought = self._brought, False
        outputs_hold = outputs_hold and self._version == self._memory.version
        if brought and self._goes_on():
            self._loop.advance()
        if outputs_hold and (brought or self._bring_sources() or self._rebind(again)):
            self._in_step = self._is_looped
            if not self._is_looped:
                self._find_in_loop()
            return again
        self.start_anew()
        return None

    def _goes_on(self) -> bool:
        """Whether bound calls find state where the last one left it."""
        return self._is_looped and self._in_step

    def _bring_sources(self) -> bool:
        """Lets the bound calls read the present elements; ``False`` if they cannot by setters."""
        setters, sources = self._setters, self._sources
        goes_on = self._goes_on()
        for index in self._outside if goes_on else self._given:
            bring, source = setters[index], sources[index]
            if not bring(source if type(source) is np.ndarray else source.numpy()):  # type: ignore[union-attr]  # all are set
                return False
        if goes_on:
            self._loop.advance()
        return True

    def _rebind(self, again: BoundCall) -> bool:
        """Lets the bound calls read large arrays where they are now; whether they can."""
        tensors = self.complete()
        if self.again is not again or not all(map(_is_like, tensors, self._bound)):
            return False
        given = [tensors[i].numpy() for i in self._given if i not in self._handed_on]
        if any(id(owner_of(array)) in self._written for array in given):
            return False
        bound, setters = self._to_bind(tensors, dict(enumerate(self._bound)))
        if not again.rebind(bound):
            return False
        self._bound, self._setters = bound, setters
        return True

    def _find_in_loop(self) -> None:
        """Finds state where bound calls write it, instead of where it was set for one of them."""
        self.settle()
        for index, tensor in self._loop.written.items():
            self.tensors[index] = self._sources[index] = tensor
        self._is_looped = True

    def take_back(self) -> None:
        """Leaves state as it was before the last bound call, which has failed."""
        if self.again is None or not self._loop.written:
            return
        self.settle()
        for index in self._loop.written:
            before = HostTensor(self._bound[index].numpy().copy())
            self.tensors[index] = self._sources[index] = before
        self._is_looped = False

    def _looped(self, results: Sequence[Tensor]) -> LoopedState | None:
        """What bound calls find state in from now on; ``None`` if they cannot hand it on.

        Args:
            results: What they would write to.
        """
        found: dict[int, Tensor] = {}
        for index, output in self._handed_on.items():
            tensor, result = self.tensors[index], results[output]
            if tensor is None or tensor.memory != HOST or result.memory != HOST:
                return None
            if tensor.nbytes > STAGED_BYTES or tensor.numpy() is not result.numpy():
                return None
            found[index] = tensor
        return LoopedState(found, self._flags)

    def repeat_from_now_on(
        self, runner: Runner, results: Sequence[Tensor], delivered: Sequence[Tensor]
    ) -> None:
        """Asks for calls with everything bound, once tensors alike have come some times.

        Args:
            runner: Binds them.
            results: What they are to write to.
            delivered: What the application is to find the results in.
        """
        self._runs += 1
        if self._runs != self._patience:
            return
        state = self._memory.outputs
        brought = [
            result
            if index in state or result.memory == HOST
            else HostTensor(host_array(self._place, result.shape, result.dtype))
            for index, result in enumerate(results)
        ]
        loop = self._looped(brought)
        if loop is None:
            return
        for index, output in self._handed_on.items():
            brought[output] = loop.written[index]
        # Calls copy results of a device's own memory to the host.
        shown = zip(brought, results, delivered, strict=True)
        delivered = [new if tensor is old else tensor for new, old, tensor in shown]
        results = brought
        written = [result for index, result in enumerate(results) if index not in state]
        tensors = self.complete()
        given = [tensors[index] for index in self._given]
        if not all(isinstance(x, HostTensor) for x in given):
            return
        owners = [owner_of(result.numpy()) for result in written]
        self._written = {id(owner): owner for owner in owners}
        bound, setters = self._to_bind(tensors, loop.read)
        self.again = runner.bind(bound, results)
        if self.again is not None:
            self._bound, self._setters = bound, setters
            self._version = self._memory.version
            self.results = delivered
            self._sources = [
                tensor if source is None else source
                for source, tensor in zip(self._sources, self.tensors, strict=True)
            ]
            self._loop, self._in_step = loop, False
            self._outside = [index for index in self._given if index not in loop.written]
            self._find_in_loop()

    def _to_bind(
        self, tensors: Sequence[Tensor], before: Mapping[int, Tensor]
    ) -> tuple[list[Tensor], list[InputSetter]]:
        """What calls are to read for these tensors, and how others come there.

        Args:
            tensors: The tensors of a run, in host memory.
            before: By input what calls are bound to already; memory for small inputs is used again.
        """
        bound: list[Tensor] = []
        setters: list[InputSetter] = []
        for index, (tensor, state) in enumerate(zip(tensors, self._states, strict=True)):
            if index in self._memory.tensors:
                bound.append(tensor)
                setters.append(no_setter)
                continue
            if tensor.nbytes > STAGED_BYTES or tensor.dtype.hasobject:
                bound.append(tensor)
                setters.append(setter_in_place(state))  # type: ignore[arg-type]  # all have one
                continue
            staged = before.get(index)
            if staged is None:
                staged = HostTensor(np.empty_like(tensor.numpy()))
            staged.numpy()[...] = tensor.numpy()
            bound.append(staged)
            written = {} if index in self._handed_on else self._written
            setters.append(setter_by_copy(staged.numpy(), written))
        return bound, setters

    def start_anew(self) -> None:
        """Tensors of other shapes have come; what alternates is to be bound less and less often."""
        self.settle()
        self._brought = False
        if self.again is not None:
            self._patience *= 2
        self.again, self._bound, self._setters, self._runs = None, (), (), 0

    def _go_on_with_other_shapes(self) -> None:
        """Tensors of other shapes were set: calls that were bound for these before go on.

        Those of a request with state wait until their shapes come again, if what they read is
        copied for them; they are few, and a prompt between tokens must not cost the tokens theirs.
        """
        in_place = self._memory.tensors and not self._handed_on
        if self.again is not None and in_place and not self._reads_in_place():
            calls = BoundCalls(
                *(self.again, self._bound, self._setters, self._written, self.results),
                self._version,
            )
            self._parked.park(calls, self._given)
            self.again = None
        self.start_anew()
        found = self._parked.fetch(self.tensors, self._given)
        if found is not None and found.version == self._memory.version:
            self.again, self._bound, self._setters = found.call, found.reads, found.setters
            self._written, self.results = found.written, found.results
            self._version = found.version

    def _reads_in_place(self) -> bool:
        """Whether bound calls read arrays of the application where they lie."""
        return any(self._bound[index].nbytes > STAGED_BYTES for index in self._given)

    def forget_arrays(self) -> None:
        """Takes the next arrays for new ones, whichever they are."""
        self.start_anew()
        self._parked.clear()
        self._sources = list(self.tensors)

    def take(self, inputs: Inputs, at_once: bool, copy: bool = False) -> bool:
        """Lets the bound calls read other arrays, if they are like those that they read now.

        Args:
            inputs: What was given.
            at_once: Whether the calls are made next, before anybody can change the arrays.
            copy: Copy the elements of arrays in any case, to where those of the last ones are.
        """
        if self.again is None or type(inputs) is not dict:
            return False
        setters, indices, sources = self._setters, self._names.indices, self._sources.copy()
        for key, data in inputs.items():
            index = indices.get(key)
            if index is None or type(data) is not np.ndarray or index in self._loop.written:
                return False
            if copy:
                data = self._copies.refill(index, data)
            if data is None or not setters[index](data):
                return False
            sources[index] = data
        self._sources = sources
        self._taken = True
        due = self._outside if self._goes_on() else self._given
        self._brought = at_once and len(inputs) == len(due)
        return True

    def bind(self, inputs: Inputs, copy: bool, own: Callable[[Tensor], Tensor]) -> None:
        """Sets inputs: all that are given, or none if one of them is wrong.

        Args:
            inputs: What was given.
            copy: Copy the elements of arrays in any case.
            own: Makes of a tensor one that may be kept: itself, or a copy.

        Raises:
            InputError: A wrong name, dtype or shape.
        """
        self.settle()
        self._brought = False
        ports = self._ports
        pairs = self._names.pairs(inputs)
        tensors, sources = self.tensors.copy(), self._sources.copy()
        state: dict[int, Tensor] = {}
        changed = False
        for index, data in pairs:
            if index in self._memory.tensors:
                state[index] = to_tensor(ports[index], data, copy=False)
                continue
            is_array = type(data) is np.ndarray
            same = is_array and data is sources[index]
            if same and not copy and _is_as_before(data, tensors[index]):
                continue
            room = functools.partial(self._copies.room, index)
            tensor = tensors[index] = own(to_tensor(ports[index], data, copy, room))
            sources[index] = data if is_array and tensor.numpy() is data else tensor
            self._copies.note(index, tensor, copy and is_array)
            self._is_looped &= index not in self._loop.written
            changed = True
        if changed:
            alike = all(map(_is_like, tensors, self.tensors))
            self.tensors, self._sources = tensors, sources
            if not alike:
                self._go_on_with_other_shapes()
        for index, tensor in state.items():
            self._memory.put(index, tensor)

    def settle(self) -> None:
        """Makes tensors of the arrays that came without being made ones.

        They were like those before them when they came; what they are now, a run will look at.
        """
        if self._taken:
            self._taken = False
            for index, source in enumerate(self._sources):
                before = self.tensors[index]
                if type(source) is not np.ndarray or before is None or before.numpy() is source:
                    continue
                self.tensors[index] = HostTensor.seen_as(source, before.shape, before.dtype)


def _is_like(new: Tensor | None, old: Tensor | None) -> bool:
    """Whether a tensor has the shape and type of another one, and lies in host memory as it."""
    if new is None or old is None or new is old:
        return new is old
    same = new.shape == old.shape and new.dtype == old.dtype
    return same and new.memory == old.memory == HOST


def _is_as_before(array: Any, tensor: Tensor | None) -> bool:
    """Whether an array that was taken as it is has still the shape and type it had then."""
    if tensor is None or array.shape != tensor.shape or array.dtype is not tensor.dtype:
        return False
    return bool(array.flags.c_contiguous)
