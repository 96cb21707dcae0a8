"""A pool of requests that keeps a device busy: start, start, start, and wait for all."""

from __future__ import annotations

import functools
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from partita.contract.call_queue import CallQueue
from partita.errors import InferError, PluginError, raised_as, wrong_answer
from partita.runtime.async_run import (
    CANCEL_AGAIN_S,
    AsyncRun,
    check_callback,
    run_on_another_thread,
)
from partita.runtime.binding.input_names import Inputs
from partita.runtime.infer_request import InferRequest
from partita.system.living import Living
from partita.system.own_process import ProcessBound
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.sleepers import Sleepers

if TYPE_CHECKING:
    from partita.runtime.compiled_model import CompiledModel


class AsyncInferQueue(ProcessBound):
    """A pool of requests: ``start_async`` takes a free one and waits if there is none.

    Free ones are taken in turn, as by OpenVINO's queue: so many starts as there are requests run
    each of them once, however soon the first ones end.

    Args:
        compiled_model: What to run.
        jobs: Number of requests; 0 takes ``OPTIMAL_NUMBER_OF_INFER_REQUESTS``, or more where the
            device says so.
    """

    def __init__(self, compiled_model: CompiledModel, jobs: int = 0) -> None:
        from partita.runtime.compiled_model import CompiledModel

        if not isinstance(compiled_model, CompiledModel):
            raise InferError(
                "A queue is for a compiled model, as Core.compile_model returns it; found "
                f"{type(compiled_model).__name__}."
            )
        try:
            jobs = operator.index(jobs)
        except TypeError:
            raise InferError(
                f"The number of a queue's requests must be a whole number; found {jobs!r}."
            ) from None
        if jobs < 0:
            raise InferError(f"A queue needs at least one request; {jobs} were asked for.")
        self._calls = _call_queue(compiled_model, jobs)
        count = jobs or compiled_model.optimal_number_of_infer_requests
        if self._calls is not None:
            count = self._calls.requests
        self._requests = [compiled_model.create_infer_request() for _ in range(count)]
        self._starts = [functools.partial(self._start, index) for index in range(count)]
        self._begins = [functools.partial(self._begin, index) for index in range(count)]
        self._ends = [functools.partial(self._ended, index) for index in range(count)]
        self._userdata: list[Any] = [None] * count
        self._runs: list[AsyncRun | None] = [None] * count  # of those that are not free
        self._idle = deque(range(count))  # the one that has been free for longest comes first
        self._lock = InterruptSafeLock()
        self._waiting = Sleepers()
        self._callback: Callable[[InferRequest, Any], None] | None = None
        self._errors: list[BaseException] = []
        self._calling: dict[int, int] = {}  # thread to the request whose callback it runs
        self._stuck: set[int] = set()  # requests whose callbacks wait for a free one
        self._lost = 0  # requests that ran when this process was forked
        _queues.add(self)

    @property
    def userdata(self) -> list[Any]:
        """What each request was started with, while it runs; ``None`` for those that are free."""
        return list(self._userdata)

    def set_callback(self, callback: Callable[[InferRequest, Any], None] | None) -> None:
        """Sets what is called as ``callback(request, userdata)`` after each successful run.

        Raises:
            InferError: It cannot be called.
        """
        check_callback(callback)
        self._callback = callback

    def start_async(
        self, inputs: Inputs = None, userdata: Any = None, share_inputs: bool = False
    ) -> None:
        """Starts a run on a free request; waits for one if all are busy.

        Args:
            inputs: As :meth:`InferRequest.infer` takes them.
            userdata: What the callback is called with, beside the request.
            share_inputs: Whether arrays are read where they lie; they must not change until the run
                has ended.

        Raises:
            InputError: As for :meth:`InferRequest.infer`; what the run itself raises,
                :meth:`wait_all` raises.
            InferError: A callback started it, and all requests wait for one another; or no thread
                can be started.
        """
        run, index = AsyncRun(), None
        try:
            while index is None:
                self._wait_for_one()
                with self._lock:
                    if self._idle:  # nobody else was faster
                        index = self._idle[0]
                        del self._idle[0]  # no call, in which Ctrl-C could lose it
                        self._userdata[index], self._runs[index] = userdata, run
            request, start = self._requests[index], self._starts[index]
            request._launch(run, inputs, userdata, share_inputs, start, self._begins[index])
        except BaseException:
            if index is not None and (run.is_given_up or self._begin(index, run)):
                self._free(index, None)
            raise

    def _start(self, index: int, run: AsyncRun) -> None:
        """Starts a run of a request, by bound calls without Python between if that can be."""
        request, calls, call = self._requests[index], self._calls, None
        if calls is not None:
            call = request._ready_call()
            with self._lock:
                submitted = request._submit(calls, index, call)
                lacks_thread = submitted and calls.lacks_thread()
            if lacks_thread:
                self._send_thread()
            if submitted:
                return
        run_on_another_thread(request._run_async, run, self._ends[index], call)

    def _begin(self, index: int, run: AsyncRun) -> bool:
        """Whether a run is to begin here; not if it was submitted as a bound call."""
        with self._lock:
            is_submitted = self._calls is not None and self._calls.holds(index)
            return not is_submitted and run.begin()

    def _send_thread(self) -> None:
        """Sends a thread to the calls that were handed over: this one, if no other can be started.

        Raises:
            InferError: None can, and this one runs a callback, whose request it would not end.
        """
        try:
            run_on_another_thread(self._serve)
        except InferError:
            if threading.get_ident() in self._calling:
                raise
            self._serve()

    def _serve(self) -> None:
        """Makes calls that were handed over, until none comes any more."""
        calls = self._calls
        while calls is not None:
            calls.serve()
            self._tell_ends()
            with self._lock:
                if not calls.lacks_thread():
                    break

    def _tell_ends(self) -> None:
        """Ends the runs whose calls have ended, on this thread."""
        calls = self._calls
        while calls is not None:
            index = run = None
            try:
                with self._lock:
                    index = calls.next_ended()
                    run = None if index is None else self._runs[index]
                    if run is not None:
                        run.begin()
                if index is None:
                    break
                if run is None:
                    raise InferError(
                        f"Request {index} of the queue ended without having been started."
                    )
                self._requests[index]._end_submitted(calls, index, run, self._ends[index])
            except BaseException as error:
                if index is not None and run is not None:
                    self._break_off(index, run, error)
                raise
            if run.failure is not None and _interrupted(run.failure):
                raise run.failure

    def _break_off(self, index: int, run: AsyncRun, error: BaseException) -> None:
        """Ends a run whose end Ctrl-C has interrupted."""
        self._requests[index]._abandon(run)
        with self._lock:
            is_taken = self._runs[index] is run
        if is_taken:
            self._free(index, None)
        run.end(error)

    def _ended(self, index: int, error: BaseException | None) -> None:
        """Calls back, and sets a request free."""
        callback = self._callback
        try:
            if error is None and callback is not None:
                self._leave_to_others()
                self._calling[threading.get_ident()] = index
                callback(self._requests[index], self._userdata[index])
        except BaseException as raised:  # an application's; wait_all raises it
            if _interrupted(raised):
                raise
            error = raised
        finally:
            self._calling.pop(threading.get_ident(), None)
            self._free(index, error)

    def _leave_to_others(self) -> None:
        """Lets other threads go on while this one runs a callback, which may wait for them."""
        if self._calls is not None:
            with self._lock:
                lacks_thread = self._calls.lacks_thread()
            if lacks_thread:
                self._send_thread()

    def _free(self, index: int, error: BaseException | None) -> None:
        with self._lock:
            self._userdata[index] = self._runs[index] = None
            if error is not None:
                self._errors.append(error)
            self._idle.append(index)
        self._waiting.wake()

    def _wait_for_one(self) -> None:
        """Waits until a request is free.

        A request whose callback waits here is not free before it ends. If that holds for all of
        them, nobody can ever end.
        """
        if self._lost == len(self._requests):
            raise self._lost_requests()
        own = self._calling.get(threading.get_ident())
        if own is None:
            self._wait_until(lambda: bool(self._idle), helps=True)
            return
        try:
            with self._lock:
                self._stuck.add(own)
                if not self._idle and len(self._stuck) == len(self._requests):
                    raise InferError(
                        f"All {len(self._requests)} requests of the queue are busy with callbacks "
                        "that wait for a free one. Make the queue with more jobs, or start the "
                        "next run outside of the callback."
                    )
            self._wait_until(lambda: bool(self._idle), helps=False)
        finally:
            self._stuck.discard(own)

    def _wait_until(self, ready: Callable[[], bool], helps: bool) -> None:
        """Waits.

        Args:
            ready: Whether what is waited for is there.
            helps: Whether this thread computes and calls back meanwhile; a callback does not.
        """
        calls = self._calls
        while not ready():
            if calls is None or calls.is_idle():
                self._wait_for_change(ready)
            elif not helps or not (self._help(calls) or ready()):
                self._sleep(calls, ready, helps)

    def _help(self, calls: CallQueue) -> bool:
        """Makes calls that were handed over, or looks for ends; whether there may be news."""
        calls.help()
        news = calls.has_ended()
        self._tell_ends()
        return news

    def _sleep(self, calls: CallQueue, ready: Callable[[], bool], helps: bool) -> None:
        """Sleeps until a run has ended."""
        with self._lock:
            calls.expect()
        try:
            if not helps:
                self._leave_to_others()
            self._wait_for_change(lambda: ready() or (helps and calls.has_ended()))
        finally:
            with self._lock:
                calls.expect_no_more()

    def _wait_for_change(self, ready: Callable[[], bool]) -> None:
        """Waits for a moment, unless what is waited for is there.

        If nothing happens, devices are asked again to stop runs that were cancelled. That happens
        under the lock: no request can become free, and be started anew, meanwhile. And one more
        thread comes for calls that wait: Ctrl-C may have kept one from coming.
        """
        if not self._waiting.wait(ready, CANCEL_AGAIN_S):
            with self._lock:
                for request in self._requests:
                    request._cancel_again()
            if self._calls is not None and not self._calls.is_idle():
                self._send_thread()

    def wait_all(self) -> None:
        """Waits for all runs and their callbacks.

        Raises:
            InferError: What the first failed run or callback raised; the queue can be used again.
                Also if a callback of the queue calls it, whose own end it would wait for, and in
                a fork of the process that runs some.
        """
        if threading.get_ident() in self._calling:
            raise InferError(
                "wait_all() was called in a callback of the queue, whose end it would wait "
                "for; call it outside."
            )
        self._wait_until(lambda: len(self._idle) + self._lost == len(self._requests), helps=True)
        if self._lost:
            raise self._lost_requests()
        with self._lock:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def _lost_requests(self) -> InferError:
        return InferError(
            f"{self._lost} of the queue's {len(self)} requests ran when this process was forked, "
            "and end in the parent process alone. Make another queue here, or fork when none runs."
        )

    def is_ready(self) -> bool:
        """Whether a request is free."""
        if not self._idle and threading.get_ident() not in self._calling:
            self._tell_ends()
        return bool(self._idle)

    def get_idle_request_id(self) -> int:
        """Index of the request that the next ``start_async`` takes; waits for one."""
        while True:
            self._wait_for_one()
            with self._lock:
                if self._idle:
                    return self._idle[0]

    def _begin_anew(self) -> None:
        """Forgets the threads of the parent process, which may have held the lock."""
        self._lock, self._waiting = InterruptSafeLock(), Sleepers()
        own = threading.get_ident()
        self._calling = {thread: of for thread, of in self._calling.items() if thread == own}
        self._stuck.clear()
        calling = self._calling.values()
        self._lost = sum(
            run is not None and index not in calling for index, run in enumerate(self._runs)
        )
        if self._calls is not None:
            self._calls.begin_anew()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]


def _call_queue(compiled: CompiledModel, jobs: int) -> CallQueue | None:
    """The device's queue of bound calls, if it has any.

    Raises:
        PluginError: It gave something else.
    """
    with raised_as(PluginError, f"Device '{compiled.device}' failed to answer create_call_queue"):
        found = compiled.device_model.create_call_queue(jobs)
    if found is not None and not (isinstance(found, CallQueue) and found.requests >= 1):
        expected = "a CallQueue of at least one request, or None"
        raise wrong_answer(compiled.device, "create_call_queue", found, expected)
    return found


def _interrupted(error: BaseException) -> bool:
    """Whether it may be the user who interrupts the thread that waits, and not an application."""
    if not isinstance(error, KeyboardInterrupt):
        return False
    return threading.current_thread() is threading.main_thread()


_queues = Living(in_child=AsyncInferQueue._begin_anew)
