"""Infer requests: checked inputs in, named results out, in the same thread or beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from partita.contract.execution import Execution
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import counters_of, execution_of
from partita.errors import (
    PLUGIN_FAILURES,
    BoundCallEndedError,
    InferCancelledError,
    InferError,
    raised_as,
)
from partita.runtime.async_run import (
    CANCEL_AGAIN_S,
    AsyncRun,
    Ended,
    check_callback,
    run_on_another_thread,
)
from partita.runtime.binding.input_names import Inputs
from partita.runtime.compiled_facts import CompiledFacts
from partita.runtime.device_errors import raise_naming_device
from partita.runtime.infer_result import InferResult
from partita.runtime.request_tensors import RequestTensors
from partita.system.threads.turn import NOW

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall
    from partita.contract.call_queue import CallQueue


class InferRequest(RequestTensors):
    """One inference at a time on a compiled model, with buffers of its own.

    Created by :meth:`CompiledModel.create_infer_request`. Requests are independent; use one per
    thread, or an :class:`AsyncInferQueue`.

    Args:
        compiled: The model.
        share_state_with: Another request of the model, with which this one shares its state.
        state_rows: How many rows of that state this one has; all by default.

    Raises:
        InputError: ``share_state_with`` is a request of another model, or has fewer rows.
        InferError: The device does not update the model's state in place.

    Attributes:
        runner: The device's half of the request, for tools that inspect it; not to be run.
    """

    def __init__(
        self,
        compiled: CompiledFacts,
        share_state_with: InferRequest | None = None,
        state_rows: int | None = None,
    ) -> None:
        super().__init__(compiled, share_state_with, state_rows)
        self._async: AsyncRun | None = None
        self._callback: Callable[[Any], None] | None = None
        self._userdata: Any = None
        self._latency_s = 0.0

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
                or in order, each of its port's shape. Contiguous arrays of the port's dtype are
                read in place, others are converted. Those that are left out are the ones of the run
                before, read as they are by now.
            share_inputs: Accepted for OpenVINO's sake; inputs are only read during this call.
            share_outputs: Return views of the request's buffers, which its next run overwrites,
                one on other shapes too, instead of copies.
            decode_strings: Return strings as ``str``, not as UTF-8 encoded ``bytes``.

        Returns:
            An array for each output, of its port's dtype, by port, name or index.

        Raises:
            InputError: A wrong name, dtype or shape, or a missing input; says what is expected.
            RequestBusyError: The request is running asynchronously.
            InferError: A device failed.
        """
        # As `_while_idle`, which takes longer.
        users, user = self._turn.users, object()
        try:
            self._turn.take(user)
            if self._async is not None and self._async.has_ended():
                self._async = None  # wait() is about the last run
            if inputs is not None and not self._inputs.try_set(inputs, True):
                self._bind(inputs, copy=False)
            if not self._run_bound(self._ready_call()):
                self._run()
            result = self._outputs.collect(not share_outputs)
            return result if decode_strings else result.encoded()
        except PLUGIN_FAILURES:
            raise
        except BaseException:
            self._interrupted(user)
            raise
        finally:
            if NOW in users and users[NOW] is user:
                del users[NOW]

    # ---------------------------------------------------------------- asynchronous

    def start_async(
        self, inputs: Inputs = None, userdata: Any = None, share_inputs: bool = False
    ) -> None:
        """Starts to compute the outputs on another thread; :meth:`wait` waits for the end.

        Args:
            inputs: As for :meth:`infer`.
            userdata: Passed to the callback.
            share_inputs: Read the arrays in place instead of copying them first; they must not
                change until the run has ended.

        Raises:
            InputError: As for :meth:`infer`.
            RequestBusyError: The request is running already.
            InferError: No thread can be started.
        """

        def start(run: AsyncRun) -> None:
            callback, userdata = self._callback, self._userdata  # the next run may have others

            def ended(error: BaseException | None) -> None:
                if callback is not None:
                    callback(userdata)

            run_on_another_thread(self._run_async, run, ended)

        self._launch(AsyncRun(), inputs, userdata, share_inputs, start)

    def wait(self) -> None:
        """Waits for the end of the asynchronous run and its callback.

        Returns at once if there is none, or if :meth:`infer` has run since.

        Raises:
            InferError: The error of the run or of the callback, or the callback itself waits.
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
        while not run.wait(CANCEL_AGAIN_S):
            self._cancel_again()

    def wait_for(self, timeout: float) -> bool:
        """Waits at most ``timeout`` milliseconds; returns whether the run has ended.

        Any number of them, infinity too.

        Raises:
            InferError: As :meth:`wait`, if it has ended.
        """
        run = self._async
        if run is None:
            return True
        return run.wait(min(max(timeout, 0) / 1000, threading.TIMEOUT_MAX))

    def cancel(self) -> None:
        """Asks the asynchronous run to stop; :meth:`wait` then raises ``InferCancelledError``.

        HETERO stops before the next submodel, and device CPU before the next iteration of a Loop or
        Scan. A device that cannot stop finishes the run.
        """
        run = self._async
        if run is not None and not run.has_ended():
            run.cancelled = True
            self._cancel_on_device()

    def set_callback(self, callback: Callable[[Any], None] | None, userdata: Any = None) -> None:
        """Sets a function that is called as ``callback(userdata)`` after each asynchronous run.

        It is called on the thread that computed, once the request is free, also if the run failed
        or was cancelled. :meth:`wait` raises its exceptions.

        Args:
            callback: The function; ``None`` for none.
            userdata: Its argument.

        Raises:
            InferError: The callback cannot be called.
        """
        check_callback(callback)
        self._callback = callback
        self._userdata = userdata

    @property
    def userdata(self) -> Any:
        """The user data given to ``start_async`` or ``set_callback``."""
        return self._userdata

    # ---------------------------------------------------------- about the last run

    @property
    def latency(self) -> float:
        """Duration of the last run in milliseconds."""
        return self._latency_s * 1e3

    def get_profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the last run; empty unless PERF_COUNT is set."""
        return counters_of(self.runner, self.compiled_model.device)

    @property
    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """Counters of the last run (OpenVINO's spelling)."""
        return self.get_profiling_info()

    def device_spans(self) -> Sequence[DeviceSpan]:
        """When which device was busy with which part of the last run.

        Recorded by devices that are made of others, if PERF_COUNT is set; empty for all others.
        """
        with self._blamed("tell when it was busy"):
            return self.runner.device_spans()

    def explain_execution(self) -> Execution:
        """How the last run was executed: kernels, bound calls, transfers and their memory."""
        return execution_of(self.runner, self.compiled_model.device)

    def get_compiled_model(self) -> CompiledFacts:
        """The compiled model (OpenVINO's spelling)."""
        return self.compiled_model

    # -------------------------------------------------------------------- internals

    def _ready_call(self) -> BoundCall | None:
        """The bound call, made to read the present inputs; to be asked for once a run.

        A second time it would read the state that the run is to write, not what was set for it.
        """
        if self._inputs.bound_call is None:
            return None
        return self._inputs.ready_call(self._outputs.targets_unchanged())

    def _run_bound(self, call: BoundCall | None) -> bool:
        """Makes the bound call, if there is one for the present inputs; whether it did."""
        if call is None:
            return False
        inputs = self._inputs
        self._has_results = self._may_leave_results = False
        start = time.perf_counter()
        try:
            call()
        except BoundCallEndedError:
            inputs.restore_state()
            inputs.unbind()
            return False
        except PLUGIN_FAILURES as error:  # a device may raise anything
            inputs.restore_state()
            raise_naming_device(error, self.compiled_model, self._inputs.values)
        self._latency_s = time.perf_counter() - start
        self._outputs.results = inputs.results
        self._has_results, inputs.has_begun = True, False
        return True

    def _run(self, run: AsyncRun | None = None) -> None:
        inputs, outputs = self._inputs, self._outputs
        if self._was_interrupted:
            # The runner may have been in the middle of anything, and may still compute.
            self.runner = self._new_runner()
            self._was_interrupted = False
        if self._state is not None and self._is_double_buffered:
            self._state.set_sizes(inputs.values.shapes())
        tensors = inputs.tensors_for_run()
        self._has_results = self._may_leave_results = False
        start = time.perf_counter()
        targets = outputs.targets(tensors)
        try:
            results = self.runner.run(tensors, targets)
        except PLUGIN_FAILURES as error:  # a device may raise anything
            raise_naming_device(error, self.compiled_model, self._inputs.values)
        written = outputs.deliver(results, tensors)
        if run is not None:
            self._check(run)
        self._latency_s = time.perf_counter() - start
        self._has_results = True
        if self._state is not None and self._is_double_buffered:
            self._state.advance(outputs.results)
        inputs.bind_if_repeated(self.runner, written, outputs.results)
        self._may_leave_results = not inputs.has_bound_calls

    def _check(self, run: AsyncRun, is_ready: bool = True) -> None:
        """Raises if a run was cancelled, and drops what is bound to its inputs.

        Args:
            run: The run.
            is_ready: Whether the bound call, if any, was made to read this run's inputs. Otherwise
                what it read is the state from before another run, which has ended well.
        """
        if run.cancelled:
            self._has_results = self._may_leave_results = False
            if is_ready:
                self._inputs.restore_state()
            self._inputs.unbind()
            raise InferCancelledError(f"The request on {self.compiled_model!r} was cancelled.")

    def _launch(
        self,
        run: AsyncRun,
        inputs: Inputs,
        userdata: Any,
        share_inputs: bool,
        start: Callable[[AsyncRun], None],
        begin: Callable[[AsyncRun], bool] = AsyncRun.begin,
    ) -> None:
        """Sets the inputs and starts a run; leaves the request free if that fails.

        Args:
            run: A new run. It is given up if it has not begun when something fails.
            inputs: As for :meth:`start_async`.
            userdata: The same.
            share_inputs: The same.
            start: Starts the run.
            begin: Whether the run has not begun, and will not.
        """
        before = self._async
        try:
            self._turn.take(run)
            if inputs is not None and not self._inputs.try_set(inputs, True, not share_inputs):
                self._bind(inputs, copy=not share_inputs)
            if userdata is not None:
                self._userdata = userdata
            self._async = run
            start(run)
        except BaseException as error:
            if begin(run):
                run.is_given_up = True
                if not isinstance(error, PLUGIN_FAILURES):
                    self._interrupted(run)
                if self._async is run:
                    self._async = before
                self._turn.leave(run)
            raise

    def _run_async(self, run: AsyncRun, ended: Ended, ready: BoundCall | None = None) -> None:
        """Runs and ends.

        Args:
            run: The run.
            ended: Called at its end.
            ready: The bound call, if it reads the run's inputs already.
        """
        if not run.begin():
            return
        failure: BaseException | None = None
        try:
            self._check(run, is_ready=ready is not None)
            if self._run_bound(self._ready_call() if ready is None else ready):
                self._check(run)
            else:
                self._run(run)
        except BaseException as error:  # noqa: BLE001  # wait() raises it, whatever it is
            failure = error
        self._finish(run, failure, ended)

    def _submit(self, calls: CallQueue, number: int, call: BoundCall | None) -> bool:
        """Submits the bound call, which is ready, if there is one; whether it did."""
        if call is None or not calls.submit(number, call):
            return False
        self._outputs.results = self._inputs.results
        self._has_results = self._may_leave_results = False
        return True

    def _end_submitted(self, calls: CallQueue, number: int, run: AsyncRun, ended: Ended) -> None:
        """Ends a run whose bound call was submitted."""
        failure: BaseException | None = None
        try:
            self._latency_s = calls.result(number)
            self._has_results, self._inputs.has_begun = True, False
            self._check(run)
        except PLUGIN_FAILURES as error:  # wait() raises it, whatever it is
            self._inputs.restore_state()
            failure = error
        self._finish(run, failure, ended)

    def _abandon(self, run: AsyncRun) -> None:
        """Frees the request of a run whose end Ctrl-C has interrupted."""
        self._interrupted(run)
        self._turn.leave(run)

    def _cancel_again(self) -> None:
        """Asks the device again to stop a cancelled run: it may not have begun when asked first.

        Not once the run calls back: the request is free by then, and may run for somebody else.
        """
        run = self._async
        if run is not None and run.cancelled and not run.calling_back:
            self._cancel_on_device()

    def _cancel_on_device(self) -> None:
        with self._blamed("cancel a run"):
            self.runner.cancel()

    def _blamed(self, what: str) -> AbstractContextManager[None]:
        """Has the device blamed for what its runner raises in the block."""
        return raised_as(InferError, f"Device '{self.compiled_model.device}' failed to {what}")

    def _finish(self, run: AsyncRun, failure: BaseException | None, ended: Ended) -> None:
        """Frees the request, calls back, and marks the run as ended."""
        run.calling_back = threading.get_ident()
        self._turn.leave(run)
        try:
            ended(failure)
        except BaseException as error:  # noqa: BLE001  # wait() raises it, whatever it is
            failure = failure or error
        run.end(failure)
