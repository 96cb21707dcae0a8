"""The tensors and the state of a request, which an application sets and reads between runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from partita.contract.device_model import DeviceModel, new_runner, replica_for_request
from partita.contract.runner import Runner
from partita.errors import (
    PLUGIN_FAILURES,
    DeviceMemoryError,
    InferError,
    InputError,
)
from partita.model.model import Port, find_port
from partita.model.variables import Variable
from partita.runtime.binding.input_binding import RequestInputs
from partita.runtime.binding.input_conversion import zeros_for
from partita.runtime.binding.input_names import Inputs
from partita.runtime.binding.input_tensors import Keeper
from partita.runtime.binding.output_binding import RequestOutputs
from partita.runtime.compiled_facts import CompiledFacts
from partita.runtime.device_errors import raise_naming_device
from partita.runtime.infer_result import InferResult
from partita.runtime.request_turn import RequestTurn
from partita.runtime.state_memory import StateMemory, StateRows
from partita.runtime.variable_state import RequestState, VariableState
from partita.storage import state_file
from partita.system.own_process import ProcessBound
from partita.system.threads.turn import NOW
from partita.tensors.tensor import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class RequestTensors(ProcessBound):
    """The tensors of a request, and the state that it keeps from run to run.

    Arguments and attributes are those of :class:`~partita.InferRequest`, which adds the runs.
    """

    def __init__(
        self,
        compiled: CompiledFacts,
        share_state_with: RequestTensors | None = None,
        state_rows: int | None = None,
    ) -> None:
        self.compiled_model = compiled
        self.model_inputs = compiled.inputs
        self.model_outputs = compiled.outputs
        other = share_state_with
        if not isinstance(other, RequestTensors | None):
            raise InputError(f"State is shared with another request; found {other!r}.")
        if other is not None and other.compiled_model is not compiled:
            raise InputError(f"A request of {other.compiled_model!r} has none of {compiled!r}.")
        self._place: DeviceModel = (
            replica_for_request(compiled.device_model) if other is None else other._place
        )
        self._memory = _memory_for(compiled, self._place, other, state_rows)
        self._inputs = RequestInputs(compiled, self._memory, self._place)
        self.runner = self._new_runner()
        self._outputs = RequestOutputs(compiled, self._memory, self._place)
        self._has_results: bool | None = None  # None before the first run
        self._may_leave_results = False  # whether the last results are of no bound call
        # Requests that share state run one after another.
        self._turn: RequestTurn = RequestTurn() if other is None else other._turn
        self._was_interrupted = False
        self._state = self._initial_state(compiled.model.variables)
        self._is_double_buffered = self._state is not None and bool(self._state.double_buffered)
        if other is not None and self._is_double_buffered:
            raise InferError(
                f"State of {compiled!r} cannot be shared: its device does not update it in place."
            )

    # --------------------------------------------------------------------- tensors

    def set_tensor(self, key: int | str | Port, tensor: Any) -> None:
        """Sets one input (or, by name or port, output); see :meth:`set_output_tensor`."""
        if isinstance(key, Port) and not key.is_input:
            self.set_output_tensor(key.name, tensor)
        elif isinstance(key, str) and key not in self._inputs:
            self.set_output_tensor(key, tensor)
        else:
            self.set_input_tensor(key, tensor)

    def set_tensors(self, tensors: Mapping[Any, Any]) -> None:
        """Sets several tensors, as :meth:`set_tensor` does one."""
        for key, tensor in _by_key(tensors).items():
            self.set_tensor(key, tensor)

    def set_input_tensors(self, *tensors: Any) -> None:
        """Sets several inputs, all or none: ``({index, name or port: tensor})``.

        Or sets one input to a batch of tensors, which are concatenated along their first axis:
        ``(index, [tensor, ...])``, or ``([tensor, ...])`` for a model with one input.
        """
        key, given = _keyed(tensors)
        if key is not None:
            given = {key: given}
        if not isinstance(given, Mapping):
            given = {0: given}
        joined = {
            key: _joined(key, parts) if isinstance(parts, (list, tuple)) else parts
            for key, parts in given.items()
        }
        self._while_idle(self._bind, joined, False)

    def set_output_tensors(self, tensors: Mapping[Any, Any]) -> None:
        """Sets the tensors for several outputs, as :meth:`set_output_tensor` does for one."""
        for key, tensor in _by_key(tensors).items():
            self.set_output_tensor(key, tensor)

    def set_input_tensor(self, *key_and_tensor: Any) -> None:
        """Sets one input: ``(index, tensor)``, or ``(tensor)`` for a model with one input.

        It is kept until it is replaced, and not copied if it is contiguous. An output of this
        request's last run may be set, as applications do that keep state. It is not copied where
        the device gives the memory up, as CPU does, nor from the second time on if the output's
        shape follows from the inputs' symbols.

        Raises:
            InputError: No such input, or a wrong dtype or shape.
            RequestBusyError: The request is running.
        """
        key, tensor = _keyed(key_and_tensor)
        self._while_idle(self._bind, tensor if key is None else {key: tensor}, False)

    def set_output_tensor(self, *key_and_tensor: Any) -> None:
        """Sets the tensor that runs write an output to: ``(index, tensor)``, or ``(tensor)``.

        Args:
            key_and_tensor: The output (may be omitted if there is only one), and a writable host
                tensor or array.

        Raises:
            InputError: A wrong dtype or shape, or memory that cannot be written.
            RequestBusyError: The request is running.
        """
        key, target = _keyed(key_and_tensor)
        port = find_port(self.model_outputs, key, repr(self.compiled_model))
        self._while_idle(self._set_output, port, target)

    def get_tensor(self, key: int | str | Port) -> Tensor:
        """The tensor of an input (as set) or, by name or port, output (of the last run)."""
        is_output = isinstance(key, Port) and not key.is_input
        is_output |= isinstance(key, str) and key not in self._inputs
        return self.get_output_tensor(key) if is_output else self.get_input_tensor(key)

    def get_input_tensor(self, key: int | str | Port | None = None) -> Tensor:
        """The tensor of an input; where none was set, a new one of zeros, to be filled.

        The key may be omitted if there is only one input. Dimensions without a fixed size are 0 in
        a new tensor: set its shape before you fill it.
        """
        port = find_port(self.model_inputs, key, repr(self.compiled_model))
        self._inputs.values.refresh()
        tensor = self._memory.tensors.get(port.index, self._inputs.values.tensors[port.index])
        if tensor is None:
            if port.shape is None or port.dtype is None:
                raise InputError(f"Input '{port.name}' ({port.describe()}) was not set yet.")
            tensor = self._inputs.values.tensors[port.index] = zeros_for(port)
        return tensor

    def get_output_tensor(self, key: int | str | Port | None = None) -> Tensor:
        """The tensor of an output of the last run; the next run overwrites it.

        The key may be omitted if there is only one output. Before the first run the result is a new
        tensor of zeros, if the shape is known, and runs write to it.
        """
        port = find_port(self.model_outputs, key, repr(self.compiled_model))
        if self._has_results:
            return self._outputs.results[port.index]
        fixed = port.is_static and port.dtype is not None
        if self._has_results is False or not fixed or port.index in self._memory.outputs:
            raise InferError(f"Output '{port.name}' is not there: no run of the request has ended.")
        target = self._outputs.target(port)
        if target is None:
            target = zeros_for(port)
            self.set_output_tensor(port, target)
        return target

    @property
    def input_tensors(self) -> list[Tensor]:
        """All input tensors in order."""
        return [self.get_input_tensor(port) for port in self.model_inputs]

    @property
    def output_tensors(self) -> list[Tensor]:
        """All output tensors of the last run in order."""
        return [self.get_output_tensor(port) for port in self.model_outputs]

    @property
    def results(self) -> InferResult:
        """The outputs of the last run, not copied: the next run overwrites them."""
        if not self._has_results:
            raise InferError("The results are not there: no run of the request has ended.")
        return self._outputs.collect(copy=False)

    # ----------------------------------------------------------------------- state

    def query_state(self) -> list[VariableState]:
        """The variables that the model keeps from run to run, to read, set and reset.

        These are the variables of an OpenVINO IR, and the pairs of an input and an output that a
        model's metadata lists (:mod:`partita.model.variables`). Other state of ONNX models is up to
        the application: see :meth:`set_input_tensor`.
        """
        return [] if self._state is None else self._state.all()

    def reset_state(self) -> None:
        """Resets all variables to their initial values.

        Raises:
            RequestBusyError: The request is running.
        """
        for variable in self.query_state():
            variable.reset()

    def select_state_rows(self, first: int) -> None:
        """Changes to other rows of the state of which this request has some (``state_rows``).

        Nothing is copied. The next runs take somewhat longer, until their calls are bound again.

        Args:
            first: The first of the rows.

        Raises:
            InputError: There are not so many rows, or the request has no part of others' state.
            RequestBusyError: The request, or the one with all rows, is running.
        """
        if not isinstance(self._memory, StateRows):
            raise InputError("The request has no rows of another one's state; see `state_rows`.")
        self._while_idle(self._select_rows, self._memory, first)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Writes all variables to a file, which :meth:`load_state` reads (safetensors).

        Raises:
            BlobError: The file cannot be written.
            RequestBusyError: The request is running.
        """
        self._while_idle(self._save_state, path)

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Sets all variables from a file that :meth:`save_state` wrote for the same variables.

        Nothing is changed if the file does not fit.

        Raises:
            BlobError: The file cannot be read, is damaged, or holds other variables.
            RequestBusyError: The request is running.
        """
        self._while_idle(self._load_state, path)

    # -------------------------------------------------------------------- internals

    def _while_idle(self, action: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What an action returns, during which the request cannot run.

        Raises:
            RequestBusyError: The request is running.
        """
        users, user = self._turn.users, object()
        try:
            self._turn.take(user)
            return action(*args, **kwargs)
        except PLUGIN_FAILURES:
            raise
        except BaseException:
            self._interrupted(user)
            raise
        finally:
            if NOW in users and users[NOW] is user:
                del users[NOW]

    def _interrupted(self, user: object) -> None:
        """Trusts nothing that the run or change was about to do when Ctrl-C came.

        Args:
            user: Who took the turn for it, if that was not what Ctrl-C kept from happening.
        """
        if self._turn.is_of(user):
            self._was_interrupted = True
            self._inputs.drop_bound()

    def _set_output(self, port: Port, target: Any) -> None:
        self._outputs.set(port, target)
        self._inputs.forget_arrays()

    def _select_rows(self, rows: StateRows, first: int) -> None:
        rows.select(first)
        self._inputs.state_moved()

    def _save_state(self, path: str | os.PathLike[str]) -> None:
        state_file.save(path, () if self._state is None else self._state.tensors())

    def _load_state(self, path: str | os.PathLike[str]) -> None:
        ports = () if self._state is None else self._state.ports()
        state_file.load(path, ports, self._put)

    def _new_runner(self) -> Runner:
        """The device's half of this request."""
        try:
            return new_runner(self._place)
        except PLUGIN_FAILURES as error:  # a device may raise anything
            raise_naming_device(error, self.compiled_model, self._inputs.values)

    def _bind(self, inputs: Inputs, copy: bool) -> None:
        """Sets inputs: all that are given, or none if one of them is wrong."""
        if self._state is not None and isinstance(inputs, Mapping):
            inputs = self._state.completed(inputs)
        if copy or not self._inputs.try_set(inputs, at_once=False):
            try:
                self._inputs.set(inputs, copy, self._keeper())
            except MemoryError as error:
                raise DeviceMemoryError(
                    f"The host has no room for the inputs of {self.compiled_model!r}: "
                    f"{str(error) or 'give smaller ones'}"
                ) from error

    def _keeper(self) -> Keeper:
        """See :meth:`RequestOutputs.keeper`."""
        return self._outputs.keeper(self._leave_results)

    def _leave_results(self) -> bool:
        """Asks the runner to give up the last results, unless a call is bound to write to them."""
        return self._may_leave_results and self.runner.leave_results()

    def _put(self, port: Port, tensor: Tensor) -> None:
        self._inputs.set({port.name: tensor}, True, self._keeper())

    def _initial_state(self, variables: Sequence[Variable]) -> RequestState | None:
        """The model's variables with their initial values."""
        if not variables:
            return None
        state = RequestState(
            variables,
            self.model_inputs,
            self.model_outputs,
            lambda tensors, copy: self._inputs.set(tensors, copy, self._keeper()),
            self.get_input_tensor,
            self._memory,
            self._while_idle,
        )
        self._inputs.set_feedback(*state.feedback())
        return state


def _keyed(given: Sequence[Any]) -> tuple[Any, Any]:
    """The key, or ``None``, and the tensor that were given to set one.

    Raises:
        InputError: Neither one argument nor two, or a key that cannot be one.
    """
    if len(given) not in (1, 2):
        raise InputError(
            f"Give an index, name or port and what to set there; found {len(given)} arguments."
        )
    if len(given) == 1:
        return None, given[0]
    if not isinstance(given[0], Hashable):
        raise InputError(f"Tensors are set by index, name or port; found {given[0]!r}.")
    return given[0], given[1]


def _by_key(tensors: Any) -> Mapping[Any, Any]:
    """Tensors by index, name or port.

    Raises:
        InputError: They are no dict.
    """
    if not isinstance(tensors, Mapping):
        found = type(tensors).__name__
        raise InputError(f"Give a dict of index, name or port to tensor; found {found}.")
    return tensors


def _joined(key: Any, parts: Sequence[Any]) -> Any:
    """One array of a batch of them.

    Raises:
        InputError: There are none, or they do not fit one another.
    """
    try:
        return np.concatenate([np.asarray(one) for one in parts])
    except ValueError as error:
        raise InputError(f"The tensors for input {key!r} make no batch: {error}") from error


def _memory_for(
    compiled: CompiledFacts, place: DeviceModel, other: RequestTensors | None, rows: int | None
) -> StateMemory:
    """Memory for a request's variables: its own, another one's, or some rows of that."""
    if other is None:
        if rows is not None:
            raise InputError("Rows are those of another request's state; say whose.")
        return StateMemory(compiled, place)
    return other._memory if rows is None else StateRows(other._memory, rows)
