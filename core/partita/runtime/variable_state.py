"""The variables of one request, and how one run passes them to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.errors import DeviceMemoryError
from partita.model.model import Port
from partita.model.variables import Variable
from partita.runtime.state_memory import StateMemory, sizes_of
from partita.tensors.tensor import HOST, HostTensor, Tensor


class VariableState:
    """A variable of one request (OpenVINO's ``VariableState``).

    Args:
        state: The request's variables.
        variable: Which of them.
    """

    def __init__(self, state: RequestState, variable: Variable) -> None:
        self._state = state
        self._variable = variable

    @property
    def name(self) -> str:
        """The variable's id."""
        return self._variable.name

    @property
    def state(self) -> Tensor:
        """The value that the next run reads; zeros where that run computes the initial value.

        Reading returns a copy on the host. Setting copies a tensor or an array, and raises
        ``InputError`` if its type or shape do not fit. Both raise ``RequestBusyError`` while the
        request runs.
        """
        found: Tensor = self._state.while_idle(self._state.get, self._variable)
        return found

    @state.setter
    def state(self, value: Any) -> None:
        self._state.while_idle(self._state.set, self._variable, value)

    def reset(self) -> None:
        """Resets the variable to its initial value.

        Raises:
            RequestBusyError: The request is running.
        """
        self._state.while_idle(self._state.reset, self._variable)

    def __repr__(self) -> str:
        return f"<VariableState {self.name!r}: {self._state.tensor(self._variable)!r}>"


class RequestState:
    """The variables of one request.

    Args:
        variables: The model's.
        inputs: The input ports.
        outputs: The output ports.
        bind: Sets inputs of the request, by name; copies them if asked to.
        tensor: The tensor of an input, by its index.
        memory: The variables that runs update in place.
        while_idle: Calls what it is given with the arguments behind that, and keeps the request
            from running meanwhile; raises ``RequestBusyError`` if it does.

    Attributes:
        variables: The model's.
        double_buffered: The variables that a run reads in one tensor and writes to another.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        bind: Callable[[Mapping[str, Any], bool], None],
        tensor: Callable[[int], Tensor],
        memory: StateMemory,
        while_idle: Callable[..., Any],
    ) -> None:
        self.variables = variables
        self.while_idle = while_idle
        self._inputs = inputs
        self._ports = {port.name: port for port in inputs}
        self._places = {port.name: port.index for port in outputs}
        self._bind = bind
        self._tensor = tensor
        self._memory = memory
        self.double_buffered = [one for one in variables if not self._is_in_place(one)]
        self._flags = {variable.read: variable.begun for variable in variables if variable.begun}
        for variable in self.double_buffered:
            self.reset(variable)

    def all(self) -> list[VariableState]:
        """A view of each variable."""
        return [VariableState(self, variable) for variable in self.variables]

    def tensor(self, variable: Variable) -> Tensor:
        """The tensor that a variable is in."""
        return self._tensor(self._ports[variable.read].index)

    def ports(self) -> list[Port]:
        """The inputs in which a run finds the variables."""
        return [
            self._ports[name] for one in self.variables for name in (one.read, one.begun) if name
        ]

    def tensors(self) -> list[tuple[Port, Tensor]]:
        """What these inputs hold."""
        return [(port, self._tensor(port.index)) for port in self.ports()]

    def get(self, variable: Variable) -> Tensor:
        """A copy of a variable's value on the host."""
        tensor = self.tensor(variable)
        array = tensor.numpy()
        return HostTensor(array.copy() if tensor.memory == HOST else array)

    def set(self, variable: Variable, value: Any) -> None:
        """Sets a variable to a copy of a value."""
        given = value.numpy() if isinstance(value, Tensor) else value
        self._bind(self.completed({variable.read: given}), True)

    def reset(self, variable: Variable) -> None:
        """Sets a variable to its initial value."""
        port = self._ports[variable.read]
        if self._is_in_place(variable):
            self._memory.clear(port.index)
            return
        fresh: dict[str, Any] = {variable.read: self._zeros(variable, {})}
        if variable.begun:
            fresh[variable.begun] = HostTensor(np.array(False))
        self._bind(fresh, False)

    def _zeros(self, variable: Variable, sizes: Mapping[str, int]) -> HostTensor:
        """A variable's initial value; unknown sizes are 0."""
        port = self._ports[variable.read]
        dims = port.shape or ()
        shape = [dim if isinstance(dim, int) else sizes.get(dim or "", 0) for dim in dims]
        try:
            return HostTensor(np.zeros(shape, port.dtype))
        except (MemoryError, ValueError) as error:
            raise DeviceMemoryError(
                f"Variable '{variable.name}' ({port.describe()}) has no room: {error}"
            ) from error

    def set_sizes(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        """Gives variables with their initial value the sizes of the other inputs' symbols.

        Args:
            shapes: By input its shape in the next run.
        """
        places = {self._ports[one.read].index: one for one in self.double_buffered if not one.begun}
        empty = {index: one for index, one in places.items() if 0 in shapes.get(index, ())}
        if not empty:
            return
        given = {index: shape for index, shape in shapes.items() if index not in places}
        sizes = sizes_of(self._inputs, given)
        for index, variable in empty.items():
            begun, fresh = self._zeros(variable, {}), self._zeros(variable, sizes)
            if shapes[index] == begun.shape != fresh.shape:
                self._bind({variable.read: fresh}, False)

    def completed(self, inputs: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Inputs by name; a variable among them counts as initialized unless they say otherwise."""
        begun = {
            flag: HostTensor(np.array(True))
            for name, flag in self._flags.items()
            if name in inputs and flag not in inputs
        }
        return {**inputs, **begun} if begun else inputs

    def feedback(self) -> tuple[dict[int, int], list[int]]:
        """Double-buffered variables: input to output, and inputs that say whether it is set."""
        pairs = {self._ports[v.read].index: self._places[v.written] for v in self.double_buffered}
        return pairs, [self._ports[v.begun].index for v in self.double_buffered if v.begun]

    def advance(self, results: Sequence[Tensor]) -> None:
        """Makes the values that a run has written the inputs of the next one."""
        handed = {one.read: results[self._places[one.written]] for one in self.double_buffered}
        self._bind(self.completed(handed), False)

    def _is_in_place(self, variable: Variable) -> bool:
        return self._ports[variable.read].index in self._memory.tensors
