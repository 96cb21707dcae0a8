"""Call queues: bound calls of many requests, made one after another without Python between."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.contract.bound_call import BoundCall


class CallQueue(abc.ABC):
    """Bound calls that wait for threads, and those that have ended, by the numbers of requests.

    The threads are the framework's: they come to :meth:`serve` when :meth:`lacks_thread` says so,
    and the thread that starts requests to :meth:`help` when it has nothing else to do. What has
    ended is told to whoever asks for it next.

    Attributes:
        requests: How many requests there are to be.
    """

    requests: int

    @abc.abstractmethod
    def submit(self, request: int, call: BoundCall) -> bool:
        """(required) Lets a call wait for a thread; ``False`` if it can only be made by Python.

        Args:
            request: Whose call it is; one that has no other call here.
            call: What the device's own runner has bound.
        """

    @abc.abstractmethod
    def lacks_thread(self) -> bool:
        """(required) Whether one more thread is to come to :meth:`serve`, and is then expected.

        That is so if a call waits for one, or ends are untold and no thread makes calls. Asked by
        one thread at a time, who sends it.
        """

    @abc.abstractmethod
    def is_idle(self) -> bool:
        """(required) Whether all calls have ended and were told of."""

    @abc.abstractmethod
    def serve(self) -> None:
        """(required) Makes calls until none has come for a while, or somebody is to be told."""

    @abc.abstractmethod
    def help(self) -> None:
        """(required) Makes a call, if one waits, or looks for a while until one has ended."""

    @abc.abstractmethod
    def expect(self) -> None:
        """(required) Says that a thread is going to sleep until it is told of the next end."""

    @abc.abstractmethod
    def expect_no_more(self) -> None:
        """(required) Says that it sleeps no more."""

    @abc.abstractmethod
    def next_ended(self) -> int | None:
        """(required) The request whose call has ended and was not told of; ``None`` if none has.

        Asked by one thread at a time.
        """

    @abc.abstractmethod
    def has_ended(self) -> bool:
        """(required) Whether :meth:`next_ended` would tell of one."""

    @abc.abstractmethod
    def result(self, request: int) -> float:
        """(required) Seconds that the call of a request took, which has ended.

        Raises:
            InferError: The device could not compute it.
        """

    @abc.abstractmethod
    def begin_anew(self) -> None:
        """(required) Forgets threads and calls, as a child process has to."""
