"""A pool of requests that keeps a device busy: start, start, start, and wait for all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from partita.errors import InferError
from partita.runtime.infer_request import InferRequest
from partita.runtime.input_binding import Inputs

if TYPE_CHECKING:
    from partita.runtime.compiled_model import CompiledModel


class AsyncInferQueue:
    """A pool of requests: ``start_async`` takes a free one and waits if there is none.

    Args:
        compiled_model: What to run.
        jobs: Number of requests; 0 takes ``OPTIMAL_NUMBER_OF_INFER_REQUESTS``.
    """

    def __init__(self, compiled_model: CompiledModel, jobs: int = 0) -> None:
        count = jobs or compiled_model.optimal_number_of_infer_requests
        if count < 1:
            raise InferError(f"A queue needs at least one request; {jobs} were asked for.")
        self._requests = [compiled_model.create_infer_request() for _ in range(count)]
        self._idle = deque(range(count))
        self._changed = threading.Condition()
        self._callback: Callable[[InferRequest, Any], None] | None = None
        self._errors: list[BaseException] = []
        self._calling: dict[int, int] = {}  # thread to the request whose callback it runs
        self._stuck: set[int] = set()  # requests whose callbacks wait for a free one

    def set_callback(self, callback: Callable[[InferRequest, Any], None] | None) -> None:
        """Sets what is called as ``callback(request, userdata)`` after each successful run."""
        self._callback = callback

    def start_async(
        self, inputs: Inputs = None, userdata: Any = None, share_inputs: bool = False
    ) -> None:
        """Starts a run on a free request; waits for one if all are busy.

        Raises:
            InputError: As for :meth:`InferRequest.infer`; what the run itself raises,
                :meth:`wait_all` raises.
            InferError: A callback started it, and all requests wait for one another.
        """
        with self._changed:
            self._wait_for_one()
            index = self._idle.popleft()
        request = self._requests[index]

        def ended(error: BaseException | None) -> None:
            try:
                if error is None and self._callback is not None:
                    self._calling[threading.get_ident()] = index
                    self._callback(request, userdata)
            except BaseException as raised:  # noqa: BLE001  # an application's; wait_all raises it
                error = raised
            finally:
                self._calling.pop(threading.get_ident(), None)
                self._free(index, error)

        try:
            request._launch(inputs, userdata, share_inputs, ended)
        except BaseException:
            self._free(index, None)
            raise

    def _free(self, index: int, error: BaseException | None) -> None:
        with self._changed:
            if error is not None:
                self._errors.append(error)
            self._idle.append(index)
            self._changed.notify_all()

    def _wait_for_one(self) -> None:
        """Waits until a request is free; the lock is held.

        A request whose callback waits here is not free before it ends. If that holds for all of
        them, nobody can ever end.
        """
        own = self._calling.get(threading.get_ident())
        if own is None:
            self._changed.wait_for(lambda: bool(self._idle))
            return
        self._stuck.add(own)
        try:
            if not self._idle and len(self._stuck) == len(self._requests):
                raise InferError(
                    f"All {len(self._requests)} requests of the queue are busy with callbacks that "
                    "wait for a free one. Make the queue with more jobs, or start the next run "
                    "outside of the callback."
                )
            self._changed.wait_for(lambda: bool(self._idle))
        finally:
            self._stuck.discard(own)

    def wait_all(self) -> None:
        """Waits for all runs and their callbacks.

        Raises:
            InferError: What the first failed run or callback raised; the queue can be used again.
                Also if a callback of the queue calls it, whose own end it would wait for.
        """
        with self._changed:
            if threading.get_ident() in self._calling:
                raise InferError(
                    "wait_all() was called in a callback of the queue, whose end it would wait "
                    "for; call it outside."
                )
            self._changed.wait_for(lambda: len(self._idle) == len(self._requests))
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def is_ready(self) -> bool:
        """Whether a request is free."""
        with self._changed:
            return bool(self._idle)

    def get_idle_request_id(self) -> int:
        """Index of the request that the next ``start_async`` takes; waits for one."""
        with self._changed:
            self._wait_for_one()
            return self._idle[0]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InferRequest]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> InferRequest:
        return self._requests[index]
