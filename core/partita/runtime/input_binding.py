"""What a request reads: tensors, and arrays that calls bound for them take in their place."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InputError
from partita.model.model import Port
from partita.runtime.input_conversion import Array, to_tensor
from partita.tensors.array_state import ArrayState
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita.runtime.compiled_model import BoundCall, CompiledModel, Runner

_PATIENCE = 2
"""Runs on the same tensors before a request has calls for them bound."""

Inputs = Mapping[Any, Any] | Sequence[Any] | Array | Tensor | None
"""Tensors by name, index or port; a list in order; one tensor; or none (those set before)."""


class RequestInputs:
    """The inputs of one request, and the calls that are bound for them.

    While calls are bound, an array like the one that they read goes to them alone, by their
    takers; :meth:`settle` makes a tensor of it when one is asked for.

    Before each run it is looked whether an application has changed an array in place. Runners are
    handed views of their own, and another one if so.

    Args:
        compiled: The request's model.

    Attributes:
        tensors: One per input, ``None`` where none was set; of the last arrays after `settle`.
        again: Calls with everything bound, once the same tensors have come some times.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._ports = compiled.inputs
        self._indices = {port.name: port.index for port in compiled.inputs}
        variables = compiled.model.variables
        handed_on = {name for one in variables for name in (one.read, one.begun)}
        self._asked = sum(port.name not in handed_on for port in compiled.inputs)
        self.tensors: list[Tensor | None] = [None] * len(compiled.inputs)
        self._states: list[ArrayState | None] = [None] * len(compiled.inputs)
        self.again: BoundCall | None = None
        self._takers: Sequence[Callable[[Any], bool]] | None = None
        self._given: list[Array | None] = [None] * len(compiled.inputs)
        self._taken = False  # whether given arrays are newer than the tensors
        self._looked_at = False  # whether the takers have just seen all arrays
        self._runs, self._patience = 0, _PATIENCE

    def __contains__(self, name: str) -> bool:
        return name in self._indices

    def complete(self) -> Sequence[Tensor]:
        """What the runner is to read.

        Raises:
            InputError: An input was not set, or its array does not fit any more.
        """
        self.settle()
        return [self._view(index, tensor) for index, tensor in enumerate(self.tensors)]

    def _view(self, index: int, tensor: Tensor | None) -> Tensor:
        """A tensor as runners are to see it: the same object only as long as it is the same."""
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
            taken = to_tensor(self._ports[index], source, copy=False)
            state = self._states[index] = ArrayState(taken)  # type: ignore[arg-type]  # on the host
            self.tensors[index], self._given[index] = taken, None
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
        looked_at, self._looked_at = self._looked_at, False
        if outputs_hold and (looked_at or self._still_there()):
            return again
        self.start_anew()
        return None

    def _still_there(self) -> bool:
        """Whether inputs are what they were, or bound calls can read them where they are now."""
        states = self._states
        if any(s is not None and s.tensor.numpy() is not s.array for s in states):
            return False
        if self._takers is not None:
            return all(take(data) for take, data in zip(self._takers, self._given, strict=True))
        return all(state is None or state.holds() for state in self._states)

    def repeat_from_now_on(self, runner: Runner, results: Sequence[Tensor]) -> None:
        """Asks for calls with everything bound, once the same tensors have come some times."""
        self._runs += 1
        if self._runs == self._patience and all(x.memory == HOST for x in results):
            self.again = runner.bind(self.complete(), results)
            self._takers = None if self.again is None else self.again.takers
            if self._takers is not None:
                self._given = [tensor.numpy() for tensor in self.tensors if tensor is not None]

    def start_anew(self, alike: bool = False) -> None:
        """Other tensors have come; what alternates is to be bound less and less often.

        Tensors alike count as the same until calls are bound, which may be able to read others.
        """
        self.settle()
        if self.again is not None:
            self._patience *= 2
        elif alike:
            return
        self.again, self._takers, self._runs = None, None, 0

    def forget_arrays(self) -> None:
        """Takes the next arrays for new ones, whichever they are."""
        self.start_anew()
        self._given = [None] * len(self._given)

    def take(self, inputs: Inputs) -> bool:
        """Lets the bound calls read other arrays, if they are like those that they read now."""
        takers = self._takers
        if takers is None or type(inputs) is not dict:
            return False
        given, indices = self._given, self._indices
        before = given.copy()
        for key, data in inputs.items():
            index = indices.get(key)
            if index is None or not takers[index](data):
                break
            given[index] = data
        else:
            self._taken = True
            self._looked_at = len(inputs) == len(given)
            return True
        if any(map(operator.is_not, before, given)):
            self._given = before
            self.start_anew()
        return False

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
        ports = self._ports
        pairs: Iterable[tuple[int, Any]]
        if isinstance(inputs, Mapping):
            pairs = [(self._index(key), data) for key, data in inputs.items()]
        elif isinstance(inputs, (list, tuple)) and len(inputs) <= len(ports):
            pairs = enumerate(inputs)
        elif self._asked == 1 and not isinstance(inputs, (list, tuple)):
            pairs = ((0, inputs),)
        else:
            given = f"{len(inputs)} were" if isinstance(inputs, (list, tuple)) else "one was"
            raise InputError(
                f"{self._compiled!r} takes {self._asked} inputs ({self._expected()}); {given} "
                "given. Give a dict of name to array."
            )
        tensors, taken = self.tensors.copy(), self._given.copy()
        changed = False
        for index, data in pairs:
            same = data is not None and data is taken[index]
            if same and not copy and _is_as_before(data, tensors[index]):
                continue
            tensor = tensors[index] = own(to_tensor(ports[index], data, copy))
            taken[index] = data if type(data) is np.ndarray and tensor.numpy() is data else None
            changed = True
        if changed:
            alike = all(map(_is_like, tensors, self.tensors))
            self.tensors, self._given = tensors, taken
            self.start_anew(alike)

    def settle(self) -> None:
        """Makes tensors of the arrays that came without being made ones.

        They were like those before them when they came; what they are now, a run will look at.
        """
        if self._taken:
            self._taken = False
            for index, data in enumerate(self._given):
                before, state = self.tensors[index], self._states[index]
                if data is None or before is None or before.numpy() is data:
                    continue
                if state is not None and state.tensor is before and state.array is data:
                    continue  # the tensor was given another shape, and has another array since
                self.tensors[index] = HostTensor.seen_as(data, before.shape, before.dtype)

    def _index(self, key: Any) -> int:
        if isinstance(key, Port):
            key = key.name
        if isinstance(key, str):
            index = self._indices.get(key)
            if index is not None:
                return index
        elif isinstance(key, (int, np.integer)) and -len(self.tensors) <= key < len(self.tensors):
            return int(key)
        raise InputError(f"{self._compiled!r} has no input {key!r}; it takes {self._expected()}.")

    def _expected(self) -> str:
        ports = self._ports
        return ", ".join(f"'{port.name}' {port.describe()}" for port in ports) or "none"


def _is_like(new: Tensor | None, old: Tensor | None) -> bool:
    """Whether a tensor has the shape and type of another one, and lies in host memory as it."""
    if new is None or old is None:
        return new is old
    same = new.shape == old.shape and new.dtype == old.dtype
    return same and new.memory == old.memory == HOST


def _is_as_before(array: Any, tensor: Tensor | None) -> bool:
    """Whether an array that was taken as it is has still the shape and type it had then."""
    if tensor is None or array.shape != tensor.shape or array.dtype is not tensor.dtype:
        return False
    return bool(array.flags.c_contiguous)
