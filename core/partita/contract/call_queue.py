"""Call queues: bound calls of many requests, run one after another without Python in between."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall


class CallQueue(abc.ABC):
    """Bound calls that wait for a thread, and calls that have ended, by the index of their request.

    The framework owns the threads. It sends one to :meth:`serve` when :meth:`lacks_thread` is true,
    and lets the thread that starts requests call :meth:`help` while it would wait. Each end is
    reported once, by :meth:`next_ended`.

    Attributes:
        requests: The number of requests that share the queue.
    """

    requests: int

    @abc.abstractmethod
    def submit(self, request: int, call: BoundCall) -> bool:
        """(required) Enqueues a call; ``False`` if it can only be made from Python.

        Args:
            request: The index of the request, which has no other call in the queue.
            call: A call that the device's own runner has bound.
        """

    @abc.abstractmethod
    def holds(self, request: int) -> bool:
        """(required) Whether a call of the request was submitted whose end was not reported.

        Asked after Ctrl-C, which may have come in :meth:`submit`, before or after it enqueued.
        """

    @abc.abstractmethod
    def lacks_thread(self) -> bool:
        """(required) Whether one more thread is needed in :meth:`serve`; if so, it counts as sent.

        One is needed if a call waits for a thread, or ends are unreported and no thread runs calls.
        Called by one thread at a time, which then sends the thread.
        """

    @abc.abstractmethod
    def is_idle(self) -> bool:
        """(required) Whether all calls have ended and all ends were reported."""

    @abc.abstractmethod
    def serve(self) -> None:
        """(required) Runs calls until none has come for a while, or an end is to be reported.

        More threads than were asked for may come: they leave if there is nothing for them to do.
        """

    @abc.abstractmethod
    def help(self) -> None:
        """(required) Runs a waiting call, or polls for a while until one has ended."""

    @abc.abstractmethod
    def expect(self) -> None:
        """(required) Says that a thread is about to sleep until the next end is reported."""

    @abc.abstractmethod
    def expect_no_more(self) -> None:
        """(required) Says that the thread no longer sleeps."""

    @abc.abstractmethod
    def next_ended(self) -> int | None:
        """(required) A request whose call has ended unreported; ``None`` if there is none.

        Called by one thread at a time.
        """

    @abc.abstractmethod
    def has_ended(self) -> bool:
        """(required) Whether :meth:`next_ended` would return a request."""

    @abc.abstractmethod
    def result(self, request: int) -> float:
        """(required) The duration in seconds of a request's call, which has ended.

        Raises:
            InferError: The call failed.
        """

    @abc.abstractmethod
    def begin_anew(self) -> None:
        """(required) Forgets threads and calls; called in a child process after a fork."""
