"""The inputs of a request, and the call that is bound once tensors alike come repeatedly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from partita.errors import InferError, raised_as
from partita.runtime.binding.input_conversion import Array
from partita.runtime.binding.input_copies import host_array
from partita.runtime.binding.input_names import Inputs
from partita.runtime.binding.input_setters import (
    InputSetter,
    no_setter,
    setter_by_copy,
    setter_in_place,
)
from partita.runtime.binding.input_tensors import InputTensors, Keeper, is_like
from partita.runtime.binding.parked_calls import BoundCalls, ParkedCalls
from partita.runtime.state_buffers import BoundFeedback, owner_of
from partita.runtime.state_memory import StateMemory
from partita.tensors.tensor import HOST, HostTensor, Tensor

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall
    from partita.contract.device_model import DeviceModel
    from partita.contract.runner import Runner
    from partita.runtime.compiled_facts import CompiledFacts

_RUNS_BEFORE_BINDING = 2
"""Runs on tensors of the same shapes before a request binds a call to them."""

STAGED_BYTES = 1 << 14
"""Bytes; inputs up to this size are copied to where bound calls read them, larger ones are not.

Copying so little takes less time than checking whether an array is at the same address.
"""


class RequestInputs:
    """The inputs of one request, and the call that is bound to them.

    A bound call reads small inputs from staging memory, to which the application's arrays are
    copied before each call, and large ones in place. A value that the application sets for state
    that runs update in place is copied there.

    Args:
        compiled: The request's model.
        memory: The state that runs update in place.
        place: The replica of the model that the request uses.

    Attributes:
        values: What the application has set the inputs to.
        bound_call: The call that is bound to these inputs; ``None`` before enough runs alike.
        results: The tensors that it writes.
        has_begun: Whether a bound call may be in the middle of a run.
    """

    def __init__(self, compiled: CompiledFacts, memory: StateMemory, place: DeviceModel) -> None:
        self._compiled = compiled
        self._memory = memory
        self._place = place
        self._version = memory.version
        self.values = InputTensors(compiled, memory, place)
        self._given = self.values.given
        self.bound_call: BoundCall | None = None
        self.results: Sequence[Tensor] = ()
        self._parked = ParkedCalls()
        self._setters: Sequence[InputSetter] = ()
        self._bound: Sequence[Tensor] = ()  # the tensors that the bound call reads
        self._written: Mapping[int, object] = {}  # by id the owners of the memory that it writes
        self._is_current = False  # whether the bound call reads all that was set already
        self._runs, self._runs_before_binding = 0, _RUNS_BEFORE_BINDING
        self._feedback: Mapping[int, int] = {}  # input to the output of the run before
        self._flags: frozenset[int] = frozenset()  # inputs that say whether there is state
        self._bound_feedback = BoundFeedback({}, ())  # the memory of these with a bound call
        self._from_application = self._given  # the other inputs
        self._is_fed_back = True  # whether the state is in that memory
        self._fed_back_last = False  # whether it was, too, for the last call
        self.has_begun = False

    def set_feedback(self, outputs: Mapping[int, int], flags: Iterable[int]) -> None:
        """Sets which outputs of a run are inputs of the next one, in other tensors.

        Bound calls feed them back without the request, if they are small: what they read is a copy.

        Args:
            outputs: By input the output that the next run reads there.
            flags: Inputs that are true from the second run on.
        """
        self._feedback, self._flags = outputs, frozenset(flags)

    def __contains__(self, name: str) -> bool:
        return name in self.values.names.indices

    @property
    def has_bound_calls(self) -> bool:
        """Whether a call is bound to these inputs, or one is kept for when former ones come back.

        Either may write to the memory of the last results.
        """
        return self.bound_call is not None or bool(self._parked)

    def tensors_for_run(self) -> Sequence[Tensor]:
        """The tensors for the runner to read.

        Raises:
            InputError: An input was not set, or its array no longer fits the port.
        """
        try:
            return self.values.for_run()
        finally:
            if self.values.has_moved:
                self.values.has_moved = False
                self.unbind()

    def ready_call(self, outputs_hold: bool) -> BoundCall | None:
        """The bound call, made to read the present inputs; ``None`` if there is none that can.

        Args:
            outputs_hold: Whether the arrays for the results are unchanged.
        """
        call = self.bound_call
        if call is None:
            return None
        current, self._is_current = self._is_current, False
        outputs_hold = outputs_hold and self._version == self._memory.version
        if current and self._feeds_back():
            self._bound_feedback.advance()
        if outputs_hold and (current or self._set_sources() or self._rebind(call)):
            self._fed_back_last = self._is_fed_back
            if not self._is_fed_back:
                self._read_feedback()
            self.has_begun = True
            return call
        self.unbind()
        return None

    def _feeds_back(self) -> bool:
        """Whether the bound call finds the state where its last call left it."""
        return self._is_fed_back and self._fed_back_last

    def _set_sources(self) -> bool:
        """Sets the present elements for the bound call; ``False`` if a setter cannot."""
        setters, sources = self._setters, self.values.sources
        feeds_back = self._feeds_back()
        for index in self._from_application if feeds_back else self._given:
            bring, source = setters[index], sources[index]
            if not bring(source if type(source) is np.ndarray else source.numpy()):  # type: ignore[union-attr]  # all are set
                return False
        if feeds_back:
            self._bound_feedback.advance()
        return True

    def _rebind(self, call: BoundCall) -> bool:
        """Rebinds the call to large arrays at their present addresses; whether it could be."""
        tensors = self.tensors_for_run()
        if self.bound_call is not call or not all(map(is_like, tensors, self._bound)):
            return False
        given = [tensors[i].numpy() for i in self._given if i not in self._feedback]
        if any(id(owner_of(array)) in self._written for array in given):
            return False
        bound, setters = self._to_bind(tensors, dict(enumerate(self._bound)))
        if not call.rebind(bound):
            return False
        self._bound, self._setters = bound, setters
        return True

    def _read_feedback(self) -> None:
        """Takes the state from where bound calls write it, not from where it was set last."""
        self.values.refresh()
        for index, tensor in self._bound_feedback.written.items():
            self.values.put(index, tensor)
        self._is_fed_back = True

    def restore_state(self) -> None:
        """Restores the state from before the last bound call, which has failed."""
        self.has_begun = False
        if self.bound_call is None or not self._bound_feedback.written:
            return
        self.values.refresh()
        for index in self._bound_feedback.written:
            before = HostTensor(self._bound[index].numpy().copy())
            self.values.put(index, before)
        self._is_fed_back = False

    def _new_feedback(self, results: Sequence[Tensor]) -> BoundFeedback | None:
        """Memory for state that bound calls feed back; ``None`` if they cannot.

        Args:
            results: The tensors that they would write.
        """
        found: dict[int, Tensor] = {}
        for index, output in self._feedback.items():
            tensor, result = self.values.tensors[index], results[output]
            if tensor is None or tensor.memory != HOST or result.memory != HOST:
                return None
            if tensor.nbytes > STAGED_BYTES or tensor.numpy() is not result.numpy():
                return None
            found[index] = tensor
        return BoundFeedback(found, self._flags)

    def bind_if_repeated(
        self, runner: Runner, results: Sequence[Tensor], delivered: Sequence[Tensor]
    ) -> None:
        """Counts a run, and binds a call once enough of them had tensors of the same shapes.

        Args:
            runner: The runner that binds the call.
            results: The tensors for the call to write.
            delivered: The tensors in which the application gets the results.
        """
        self._runs += 1
        if self._runs != self._runs_before_binding:
            return
        state = self._memory.outputs
        bound_results = [
            result
            if index in state or result.memory == HOST
            else HostTensor(host_array(self._place, result.shape, result.dtype))
            for index, result in enumerate(results)
        ]
        feedback = self._new_feedback(bound_results)
        if feedback is None:
            return
        for index, output in self._feedback.items():
            bound_results[output] = feedback.written[index]
        # Calls copy results of a device's own memory to the host.
        shown = zip(bound_results, results, delivered, strict=True)
        delivered = [new if tensor is old else tensor for new, old, tensor in shown]
        results = bound_results
        written = [result for index, result in enumerate(results) if index not in state]
        tensors = self.tensors_for_run()
        given = [tensors[index] for index in self._given]
        if not all(isinstance(x, HostTensor) for x in given):
            return
        if not _may_be_written([x.numpy() for x in written], [x.numpy() for x in given]):
            return
        owners = [owner_of(result.numpy()) for result in written]
        self._written = {id(owner): owner for owner in owners}
        bound, setters = self._to_bind(tensors, feedback.read)
        with raised_as(InferError, f"Device '{self._compiled.device}' failed to bind a run"):
            self.bound_call = runner.bind(bound, results)
        if self.bound_call is not None:
            self._bound, self._setters = bound, setters
            self._version = self._memory.version
            self.results = delivered
            self.values.keep_tensors_as_sources()
            self._bound_feedback, self._fed_back_last = feedback, False
            self._from_application = [
                index for index in self._given if index not in feedback.written
            ]
            self._read_feedback()

    def _to_bind(
        self, tensors: Sequence[Tensor], before: Mapping[int, Tensor]
    ) -> tuple[list[Tensor], list[InputSetter]]:
        """The tensors for a call to read, and how the elements of further ones are set there.

        Args:
            tensors: The tensors of a run, in host memory.
            before: By input the tensor that a call is bound to already; staging memory is reused.
        """
        bound: list[Tensor] = []
        setters: list[InputSetter] = []
        for index, tensor in enumerate(tensors):
            if index in self._memory.tensors:
                bound.append(tensor)
                setters.append(no_setter)
                continue
            if tensor.nbytes > STAGED_BYTES or tensor.dtype.hasobject:
                bound.append(tensor)
                setters.append(setter_in_place(self.values.state_of(index)))
                continue
            staged = before.get(index)
            if staged is None:
                staged = HostTensor(np.empty_like(tensor.numpy()))
            staged.numpy()[...] = tensor.numpy()
            bound.append(staged)
            written = {} if index in self._feedback else self._written
            setters.append(setter_by_copy(staged.numpy(), written))
        return bound, setters

    def unbind(self) -> None:
        """Drops the bound call; each time, twice as many runs are needed before the next one."""
        self.values.refresh()
        self._is_current = False
        if self.bound_call is not None:
            self._runs_before_binding *= 2
        self.bound_call, self._bound, self._setters, self._runs = None, (), (), 0

    def drop_bound(self) -> None:
        """Drops all that is bound after Ctrl-C, which may have left it half done.

        State is what it was before the run, if a bound call has begun it.
        """
        if self.has_begun:
            self.restore_state()
        self.unbind()
        self._parked.clear()

    def state_moved(self) -> None:
        """Drops the calls that are bound to state which is elsewhere now; others may come soon."""
        self.unbind()
        self._parked.clear()
        self._runs_before_binding = _RUNS_BEFORE_BINDING

    def _switch_shapes(self) -> None:
        """Changes to tensors of other shapes, and to the call that was bound to such before.

        A request with state keeps the former call until its shapes come back, if all its inputs are
        staged: a prompt between tokens must not cost the tokens their bound call.
        """
        in_place = self._memory.tensors and not self._feedback
        if self.bound_call is None and not self._parked:  # mostly so where shapes vary
            self._runs = 0
            return
        if self.bound_call is not None and in_place and not self._reads_in_place():
            calls = BoundCalls(
                call=self.bound_call,
                reads=self._bound,
                setters=self._setters,
                written=self._written,
                results=self.results,
                version=self._version,
            )
            self._parked.park(calls, self._given)
            self.bound_call = None
        self.unbind()
        found = self._parked.fetch(self.values.tensors, self._given)
        if found is not None and found.version == self._memory.version:
            self.bound_call, self._bound, self._setters = found.call, found.reads, found.setters
            self._written, self.results = found.written, found.results
            self._version = found.version

    def _reads_in_place(self) -> bool:
        """Whether the bound call reads arrays of the application in place."""
        return any(self._bound[index].nbytes > STAGED_BYTES for index in self._given)

    def forget_arrays(self) -> None:
        """Forgets all bound calls and arrays, so that the next arrays are checked as new ones."""
        self.unbind()
        self._parked.clear()
        self.values.forget_arrays()

    def try_set(self, inputs: Inputs, at_once: bool, copy: bool = False) -> bool:
        """Sets inputs for the bound call, if they have the shapes and dtypes of the former ones.

        Args:
            inputs: The inputs as the application gave them.
            at_once: Whether the call is made next, before anybody can change the arrays.
            copy: Copy arrays in any case, over the copies of the former ones.
        """
        if self.bound_call is None or type(inputs) is not dict:
            return False
        setters, values = self._setters, self.values
        indices, sources = values.names.indices, values.sources.copy()
        for key, data in inputs.items():
            index = indices.get(key)
            if (
                index is None
                or type(data) is not np.ndarray
                or index in self._bound_feedback.written
            ):
                return False
            if copy:
                data = values.copies.refill(index, data)
            if data is None or not setters[index](data):
                return False
            sources[index] = data
        values.note(sources)
        due = self._from_application if self._feeds_back() else self._given
        self._is_current = at_once and len(inputs) == len(due)
        return True

    def set(self, inputs: Inputs, copy: bool, keeper: Keeper) -> None:
        """Sets inputs: all that are given, or none if one of them is wrong.

        Args:
            inputs: The inputs as the application gave them.
            copy: Copy arrays in any case.
            keeper: Tells which tensor may be kept for one.

        Raises:
            InputError: A wrong name, dtype or shape.
        """
        self.values.refresh()
        self._is_current = False
        changes = self.values.changes(inputs, copy, keeper)
        self._is_fed_back &= changes.indices.isdisjoint(self._bound_feedback.written)
        if changes.indices and not self.values.adopt(changes):
            self._switch_shapes()
        for index, tensor in changes.state.items():
            self._memory.put(index, tensor)


def _may_be_written(written: Sequence[Array], given: Sequence[Array]) -> bool:
    """Whether calls may write to the memory of results that a device has returned.

    Not where a plugin returned an array that must not be written, or that of an input: that is the
    application's.
    """
    return all(
        array.flags.writeable and not any(np.may_share_memory(array, other) for other in given)
        for array in written
    )
