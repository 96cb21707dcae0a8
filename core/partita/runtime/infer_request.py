"""Infer requests: checked inputs in, named results out, in the same thread or beside it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from partita.contract.device_model import DeviceModel, new_runner
from partita.contract.execution import Execution
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import Runner
from partita.errors import (
    PLUGIN_FAILURES,
    BoundCallEndedError,
    CompileError,
    DeviceMemoryError,
    InferCancelledError,
    InferError,
    InputError,
    PartitaError,
    RequestBusyError,
    in_words,
    message_of,
)
from partita.model.model import Port, find_port
from partita.model.variables import Variable
from partita.runtime.binding.input_binding import Inputs, RequestInputs
from partita.runtime.binding.input_conversion import zeros_for
from partita.runtime.binding.output_binding import RequestOutputs
from partita.runtime.infer_result import InferResult
from partita.runtime.state_memory import StateMemory
from partita.runtime.variable_state import RequestState, VariableState
from partita.storage import state_file
from partita.system.own_process import OfOneProcess
from partita.system.task_threads import TaskThreads
from partita.tensors.tensor import Tensor

if TYPE_CHECKING:
    from partita.contract.call_queue import CallQueue
    from partita.runtime.compiled_facts import CompiledFacts

request_threads = TaskThreads("partita-infer", 64)


Ended = Callable[[BaseException | None], None]
"""Called at the end of an asynchronous run, with what it raised, if anything."""

_ASKS_AGAIN_S = 0.1
"""Seconds after which who waits for a cancelled run asks the device again to stop."""


class AsyncRun:
    """One asynchronous run: whether it shall stop, which thread calls back, and its end."""

    __slots__ = ("_going", "calling_back", "cancelled", "failure")

    def __init__(self) -> None:
        self.cancelled = False
        self.calling_back = 0
        self.failure: BaseException | None = None
        self._going = threading.Lock()
        self._going.acquire()

    def has_ended(self) -> bool:
        """Whether it is over, its callback included."""
        return not self._going.locked()

    def end(self, failure: BaseException | None) -> None:
        """Says that it is over."""
        self.failure = failure
        self._going.release()

    def wait(self, seconds: float = -1) -> bool:
        """Waits for the end, at most so long if a time is given; whether it has come.

        Raises:
            InferError: What the run or its callback raised.
        """
        if not self._going.acquire(timeout=seconds):
            return False
        self._going.release()
        if self.failure is not None:
            raise self.failure
        return True


class InferRequest(OfOneProcess):
    """One inference at a time on a compiled model, with buffers of its own.

    Make it with :meth:`CompiledModel.create_infer_request`. Requests are independent; use one per
    thread, or an :class:`AsyncInferQueue`.

    Args:
        compiled: The model.
        share_state_with: Another request of it, whose state this one has as well.

    Raises:
        InputError: That is a request of another model.
        InferError: The device does not update the model's state in place.

    Attributes:
        runner: The device's half of the request, for tools that look into it; not to be run.
    """

    def __init__(
        self, compiled: CompiledFacts, share_state_with: InferRequest | None = None
    ) -> None:
        self.compiled_model = compiled
        self.model_inputs = compiled.inputs
        self.model_outputs = compiled.outputs
        other = share_state_with
        if other is not None and other.compiled_model is not compiled:
            raise InputError(f"A request of {other.compiled_model!r} has none of {compiled!r}.")
        self._place: DeviceModel = (
            compiled.device_model.for_request() if other is None else other._place
        )
        self._memory: StateMemory = (
            StateMemory(compiled, self._place) if other is None else other._memory
        )
        self._inputs = RequestInputs(compiled, self._memory, self._place)
        self.runner = self._new_runner()
        self._outputs = RequestOutputs(compiled, self._memory)
        self._has_results: bool | None = None  # none yet: there was no run
        self._may_leave = False  # whether the last results are of no bound call
        # Requests that share state run one after another.
        self._busy: threading.Lock = threading.Lock() if other is None else other._busy
        self._async: AsyncRun | None = None
        self._callback: Callable[[Any], None] | None = None
        self._userdata: Any = None
        self._latency_s = 0.0
        self._state = self._begin(compiled.model.variables)
        self._by_turns = self._state is not None and bool(self._state.by_turns)
        if other is not None and self._by_turns:
            raise InferError(
                f"State of {compiled!r} cannot be shared: its device does not update it in place."
            )

    # ----------------------------------------------------------------- synchronous

    def infer(
        self,
        inputs: Inputs = None,
        share_inputs: bool = True,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
    ) -> InferResult:
        """Computes the outputs and returns them.

        Args:
            inputs: Arrays (anything with ``__array__``), lists or tensors, by name, index or port,
                or in order. Contiguous arrays of the right type are read in place.
            share_inputs: Accepted for OpenVINO's sake; inputs are only read while this call runs.
            share_outputs: Return views of the request's buffers, which its next run overwrites,
                instead of copies.
            decode_strings: Return texts as they are; as UTF-8 if not.

        Raises:
            InputError: A wrong name, dtype or shape, or a missing input; says what is expected.
            RequestBusyError: The request is running asynchronously.
            InferError: A device failed.
        """
        self._acquire()
        try:
            if self._async is not None and self._async.has_ended():
                self._async = None  # wait() is about the last run
            if inputs is not None and not self._inputs.take(inputs, True):
                self._bind(inputs, copy=False)
            if not self._repeat():
                self._compute()
            result = self._outputs.collect(not share_outputs)
            return result if decode_strings else result.encoded()
        finally:
            self._busy.release()

    # ---------------------------------------------------------------- asynchronous

    def start_async(
        self, inputs: Inputs = None, userdata: Any = None, share_inputs: bool = False
    ) -> None:
        """Starts to compute the outputs on another thread; :meth:`wait` ends it.

        Args:
            inputs: As for :meth:`infer`.
            userdata: Handed to the callback.
            share_inputs: Read the arrays in place (they must not change until the end) instead of
                copying them first.

        Raises:
            InputError: As for :meth:`infer`.
            RequestBusyError: The request is running already.
        """

        def ended(error: BaseException | None) -> None:
            if self._callback is not None:
                self._callback(self._userdata)

        def start(run: AsyncRun) -> None:
            request_threads.submit(self._work, run, ended)

        self._launch(inputs, userdata, share_inputs, start)

    def _launch(
        self,
        inputs: Inputs,
        userdata: Any,
        share_inputs: bool,
        start: Callable[[AsyncRun], None],
    ) -> None:
        """Takes the inputs and starts a run; takes it back if that fails."""
        self._acquire()
        before = self._async
        try:
            if inputs is not None and not self._inputs.take(inputs, True, not share_inputs):
                self._bind(inputs, copy=not share_inputs)
            if userdata is not None:
                self._userdata = userdata
            self._async = AsyncRun()
            start(self._async)
        except BaseException:
            self._async = before
            self._busy.release()
            raise

    def _work(self, run: AsyncRun, ended: Ended) -> None:
        failure: BaseException | None = None
        try:
            if run.cancelled or not self._repeat():
                self._compute(run)
            self._check(run)
        except BaseException as error:  # noqa: BLE001  # wait() raises it, whatever it is
            failure = error
        self._finish(run, failure, ended)

    def _submit(self, calls: CallQueue, number: int) -> bool:
        """Hands the bound calls over, if there are some that read the present inputs."""
        inputs = self._inputs
        if inputs.again is None:
            return False
        again = inputs.bound_calls(self._outputs.still_there())
        if again is None or not calls.submit(number, again):
            return False
        self._outputs.results = inputs.results
        self._has_results = self._may_leave = False
        return True

    def _end_submitted(self, calls: CallQueue, number: int, run: AsyncRun, ended: Ended) -> None:
        """Ends a run whose bound calls were handed over."""
        failure: BaseException | None = None
        try:
            self._latency_s = calls.result(number)
            self._has_results = True
            self._check(run)
        except PLUGIN_FAILURES as error:  # wait() raises it, whatever it is
            self._inputs.take_back()
            failure = error
        self._finish(run, failure, ended)

    def _finish(self, run: AsyncRun, failure: BaseException | None, ended: Ended) -> None:
        """Sets the request free, calls back, and says that the run is over."""
        self._busy.release()
        run.calling_back = threading.get_ident()
        try:
            ended(failure)
        except BaseException as error:  # noqa: BLE001  # wait() raises it, whatever it is
            failure = failure or error
        run.end(failure)

    def wait(self) -> None:
        """Waits for the end of the asynchronous run and its callback.

        Returns at once if there is none, or if :meth:`infer` has run since.

        Raises:
            InferError: What the run or the callback raised, or it is the callback that waits.
            InferCancelledError: The run was cancelled.
        """
        run = self._async
        if run is None:
            return
        if run.calling_back == threading.get_ident() and not run.has_ended():
            raise InferError(
                "wait() was called in the request's own callback, whose end it would wait for; the "
                "run is over, so read its results without waiting."
            )
        while run.cancelled and not run.wait(_ASKS_AGAIN_S):
            self.runner.cancel()  # it may have begun only after it was asked first
        run.wait()

    def wait_for(self, timeout: float) -> bool:
        """Waits at most ``timeout`` milliseconds; returns whether the run has ended.

        Raises:
            InferError: As :meth:`wait`, if it has ended.
        """
        run = self._async
        if run is None:
            return True
        return run.wait(max(timeout, 0) / 1000)

    def cancel(self) -> None:
        """Asks the asynchronous run to stop; :meth:`wait` then raises ``InferCancelledError``.

        HETERO stops before the next submodel, device CPU before the next iteration of a Loop or
        Scan; what a device cannot stop, runs to its end.
        """
        run = self._async
        if run is not None and not run.has_ended():
            run.cancelled = True
            self.runner.cancel()

    def set_callback(self, callback: Callable[[Any], None] | None, userdata: Any = None) -> None:
        """Sets what is called as ``callback(userdata)`` after each asynchronous run.

        It runs on the thread that computed, after the request is free again, also if the run
        failed or was cancelled; what it raises, :meth:`wait` raises.

        Raises:
            InferError: It cannot be called.
        """
        check_callback(callback)
        self._callback = callback
        self._userdata = userdata

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
        for key, tensor in tensors.items():
            self.set_tensor(key, tensor)

    def set_input_tensors(self, *tensors: Any) -> None:
        """Sets several inputs, all or none: ``({index, name or port: tensor})``.

        Or one input to a batch that is joined of tensors, along their first axis:
        ``(index, [tensor, ...])``, or ``([tensor, ...])`` for a model of one input.
        """
        if len(tensors) not in (1, 2):
            found = f"{len(tensors)} arguments"
            raise InputError(f"Give a dict, or an index and tensors; found {found}.")
        given = tensors[0] if len(tensors) == 1 else {tensors[0]: tensors[1]}
        if not isinstance(given, Mapping):
            given = {0: given}
        joined = {
            key: np.concatenate([np.asarray(one) for one in parts])
            if isinstance(parts, (list, tuple))
            else parts
            for key, parts in given.items()
        }
        with self._idle():
            self._bind(joined, copy=False)

    def set_output_tensors(self, tensors: Mapping[Any, Any]) -> None:
        """Sets where several outputs go: index, name or port to tensor."""
        for key, tensor in tensors.items():
            self.set_output_tensor(key, tensor)

    def set_input_tensor(self, *key_and_tensor: Any) -> None:
        """Sets one input: ``(index, tensor)``, or ``(tensor)`` for a model of one input.

        It is kept until it is replaced, and not copied if it is contiguous. An output of this
        request's last run may be set (state that is carried on): it is not copied either where the
        device leaves it its memory, as CPU does, and from the second time on if the output's shape
        follows from the inputs' symbols.

        Raises:
            InputError: No such input, or a wrong dtype or shape.
            RequestBusyError: The request is running.
        """
        given = key_and_tensor[0] if len(key_and_tensor) == 1 else dict([key_and_tensor])
        with self._idle():
            self._bind(given, copy=False)

    def set_output_tensor(self, *key_and_tensor: Any) -> None:
        """Sets where one output goes from now on: ``(index, tensor)``, or ``(tensor)``.

        Args:
            key_and_tensor: The output (may be left out if there is one), and a host tensor or
                array that can be written.

        Raises:
            InputError: A wrong dtype or shape, or memory that cannot be written.
            RequestBusyError: The request is running.
        """
        *key, target = key_and_tensor
        port = find_port(self.model_outputs, key[0] if key else None, repr(self.compiled_model))
        with self._idle():
            self._outputs.set(port, target)
            self._inputs.forget_arrays()

    def get_tensor(self, key: int | str | Port) -> Tensor:
        """The tensor of an input (as set) or, by name or port, output (of the last run)."""
        is_output = isinstance(key, Port) and not key.is_input
        is_output |= isinstance(key, str) and key not in self._inputs
        return self.get_output_tensor(key) if is_output else self.get_input_tensor(key)

    def get_input_tensor(self, key: int | str | Port | None = None) -> Tensor:
        """The tensor of an input; where none was set, one of zeros, to be filled.

        The key may be left out if there is one input.
        Dimensions without a size are 0 in it; give it another shape before it is filled.
        """
        port = find_port(self.model_inputs, key, repr(self.compiled_model))
        self._inputs.settle()
        tensor = self._memory.tensors.get(port.index, self._inputs.tensors[port.index])
        if tensor is None:
            if port.shape is None or port.dtype is None:
                raise InputError(f"Input '{port.name}' ({port.describe()}) was not set yet.")
            tensor = self._inputs.tensors[port.index] = zeros_for(port)
        return tensor

    def get_output_tensor(self, key: int | str | Port | None = None) -> Tensor:
        """The tensor of an output of the last run; the next run overwrites it.

        The key may be left out if there is one output.
        Before the first run it is one of zeros, if the shape is known; runs then write to it.
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

    @property
    def userdata(self) -> Any:
        """What was handed to ``start_async`` or ``set_callback``."""
        return self._userdata

    @property
    def latency(self) -> float:
        """Duration of the last run in milliseconds."""
        return self._latency_s * 1e3

    def query_state(self) -> list[VariableState]:
        """The variables that the model keeps from run to run, each to be read, set and reset.

        Those of an OpenVINO IR, and the pairs of an input and an output that a model's metadata
        names (:mod:`partita.model.variables`). Other state of ONNX models is the application's:
        see :meth:`set_input_tensor`.
        """
        return [] if self._state is None else self._state.all()

    def reset_state(self) -> None:
        """Lets all variables begin anew with the next run.

        Raises:
            RequestBusyError: The request is running.
        """
        for variable in self.query_state():
            variable.reset()

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Writes all variables to a file, which :meth:`load_state` reads (safetensors).

        Raises:
            BlobError: The file cannot be written.
            RequestBusyError: The request is running.
        """
        with self._idle():
            state_file.save(path, () if self._state is None else self._state.tensors())

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Sets all variables to what :meth:`save_state` wrote, of this model or one like it.

        Nothing is changed if the file does not fit.

        Raises:
            BlobError: The file cannot be read, is damaged, or of other variables.
            RequestBusyError: The request is running.
        """
        with self._idle():
            ports = () if self._state is None else self._state.ports()
            state_file.load(path, ports, self._put)

    def get_profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the last run; empty unless PERF_COUNT is set."""
        return self.runner.profiling_info()

    def device_spans(self) -> Sequence[DeviceSpan]:
        """When which device was busy with which part of the last run.

        Devices made of others tell, if PERF_COUNT is set; for others a run is one part.
        """
        return self.runner.device_spans()

    def explain_execution(self) -> Execution:
        """How the last run was executed: kernels, bound calls, transfers and their memory."""
        return self.runner.explain_execution()

    @property
    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the last run (OpenVINO's spelling)."""
        return self.get_profiling_info()

    def get_compiled_model(self) -> CompiledFacts:
        """The compiled model (OpenVINO's spelling)."""
        return self.compiled_model

    # -------------------------------------------------------------------- internals

    def _acquire(self) -> None:
        if not self._busy.acquire(False):  # by name it takes longer
            raise RequestBusyError(
                "The request is running; wait() for it, or use another request for this call."
            )

    def _repeat(self) -> bool:
        """Makes the bound calls, if there are some that read the present inputs; whether it did."""
        inputs = self._inputs
        if inputs.again is None:
            return False
        again = inputs.bound_calls(self._outputs.still_there())
        if again is None:
            return False
        self._has_results = self._may_leave = False
        start = time.perf_counter()
        try:
            again()
        except BoundCallEndedError:
            inputs.take_back()
            inputs.start_anew()
            return False
        except PLUGIN_FAILURES as error:  # a device may raise anything
            inputs.take_back()
            self._blame(error)
        self._latency_s = time.perf_counter() - start
        self._outputs.results = inputs.results
        self._has_results = True
        return True

    def _compute(self, run: AsyncRun | None = None) -> None:
        inputs, outputs = self._inputs, self._outputs
        if self._state is not None and self._by_turns:
            self._state.take_sizes(inputs.shapes())
        tensors = inputs.complete()
        self._has_results = self._may_leave = False
        start = time.perf_counter()
        if run is None or not run.cancelled:
            targets = outputs.targets(tensors)
            try:
                results = self.runner.run(tensors, targets)
            except PLUGIN_FAILURES as error:  # a device may raise anything
                self._blame(error)
            written = outputs.take(results, tensors)
        if run is not None:
            self._check(run)
        self._latency_s = time.perf_counter() - start
        self._has_results = True
        if self._state is not None and self._by_turns:
            self._state.advance(outputs.results)
        inputs.repeat_from_now_on(self.runner, written, outputs.results)
        self._may_leave = inputs.again is None

    def _check(self, run: AsyncRun) -> None:
        """Raises if a run was cancelled; the next one tells the runner that it may go on."""
        if run.cancelled:
            self._has_results = False
            self._inputs.take_back()
            self._inputs.start_anew()
            raise InferCancelledError(f"The request on {self.compiled_model!r} was cancelled.")

    def _new_runner(self) -> Runner:
        """The device's half of this request."""
        try:
            return new_runner(self._place)
        except PLUGIN_FAILURES as error:  # a device may raise anything
            self._blame(error)

    def _blame(self, error: BaseException) -> NoReturn:
        """Raises what a device raised; whatever it is, as an error that names the device."""
        device = self.compiled_model.device
        if isinstance(error, CompileError):  # of a program for what this request holds
            unequal = self._inputs.unequal_sizes()
            raise InferError(
                f"Device '{device}' cannot compute these inputs: {in_words(error)}{unequal}"
            ) from error
        if isinstance(error, PartitaError) and message_of(error) is not None:
            raise error
        if isinstance(error, MemoryError):
            told = in_words(error).removeprefix("MemoryError: ")
            raise DeviceMemoryError(f"Device '{device}' has no room to run: {told}") from error
        raise InferError(
            f"Device '{device}' failed on model '{self.compiled_model.model.name}': "
            f"{in_words(error)}"
        ) from error

    def _bind(self, inputs: Inputs, copy: bool) -> None:
        """Sets inputs: all that are given, or none if one of them is wrong."""
        if self._state is not None and isinstance(inputs, Mapping):
            inputs = self._state.completed(inputs)
        if copy or not self._inputs.take(inputs, at_once=False):
            try:
                self._inputs.bind(inputs, copy, self._own)
            except MemoryError as error:
                raise DeviceMemoryError(
                    f"The host has no room for the inputs of {self.compiled_model!r}: {error}"
                ) from error

    def _own(self, tensor: Tensor) -> Tensor:
        """An input as it may be kept; see :meth:`RequestOutputs.own`."""
        return self._outputs.own(tensor, self._leave_results)

    def _leave_results(self) -> bool:
        """Has the runner give up the last results; not where calls are bound to write to them."""
        return self._may_leave and self.runner.leave_results()

    def _put(self, port: Port, tensor: Tensor) -> None:
        self._inputs.bind({port.name: tensor}, True, self._own)

    def _begin(self, variables: Sequence[Variable]) -> RequestState | None:
        """The model's variables at their beginning."""
        if not variables:
            return None
        state = RequestState(
            variables,
            self.model_inputs,
            self.model_outputs,
            lambda tensors, copy: self._inputs.bind(tensors, copy, self._own),
            self.get_input_tensor,
            self._memory,
            self._idle,
        )
        self._inputs.hand_on(*state.handed_on())
        return state

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Keeps the request from running meanwhile."""
        self._acquire()
        try:
            yield
        finally:
            self._busy.release()


def check_callback(callback: Any) -> None:
    """Refuses what is no callback when it is set, rather than behind the first run.

    Raises:
        InferError: It cannot be called.
    """
    if callback is not None and not callable(callback):
        raise InferError(f"A callback is called after a run; found {callback!r}, which cannot be.")
