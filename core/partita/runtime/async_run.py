"""Asynchronous runs: their threads, their end, and the callbacks that follow."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from partita.errors import InferError
from partita.system.threads.task_threads import TaskThreads

request_threads = TaskThreads("partita-infer", 64)

CANCEL_AGAIN_S = 0.1
"""Seconds after which a thread that waits for a cancelled run asks the device again to stop."""


def run_on_another_thread(function: Callable[..., object], *args: Any) -> None:
    """Has one of the threads of asynchronous runs call a function, which must not raise.

    Raises:
        InferError: The process ends, or the system starts no thread; the function is never called.
    """
    try:
        request_threads.submit(function, *args)
    except RuntimeError as error:
        raise InferError(f"There is no thread for an asynchronous run. {error}") from error


Ended = Callable[[BaseException | None], None]
"""Called at the end of an asynchronous run, with what it raised, if anything."""


class AsyncRun:
    """One asynchronous run: who begins it, whether it was cancelled, who calls back, and its end.

    Attributes:
        cancelled: Whether it is to stop.
        calling_back: The thread that calls back; 0 before.
        failure: What it raised.
        is_given_up: Whether Ctrl-C or an error kept it from beginning; it never does then.
    """

    __slots__ = (
        *("_beginnings", "_going", "_has_ended", "_process"),
        *("calling_back", "cancelled", "failure", "is_given_up"),
    )

    def __init__(self) -> None:
        self.cancelled = self.is_given_up = False
        self.calling_back = 0
        self.failure: BaseException | None = None
        self._has_ended = False
        self._process = os.getpid()
        self._beginnings = [None]  # taken by the only one who may begin it
        # Whoever waits for it holds it for a moment, so it tells nobody whether the run has ended.
        self._going = threading.Lock()
        self._going.acquire()

    def begin(self) -> bool:
        """Whether the run is to begin here: neither elsewhere, nor not at all."""
        try:
            self._beginnings.pop()
        except IndexError:
            return False
        return True

    def has_ended(self) -> bool:
        """Whether the run and its callback have ended."""
        return self._has_ended

    def end(self, failure: BaseException | None) -> None:
        """Marks the run as ended; does nothing if it is."""
        if not self._has_ended:
            self.failure = failure
            self._has_ended = True
        with suppress(RuntimeError):  # it is open
            self._going.release()

    def wait(self, seconds: float = -1) -> bool:
        """Waits for the end, at most ``seconds`` unless negative; returns whether it has ended.

        Raises:
            InferError: The error of the run or of its callback; or this process is a fork of the
                one that runs it.
        """
        if not self._has_ended:
            if self._process != os.getpid():
                raise InferError(
                    "The request ran when this process was forked, and ends in the parent process "
                    "alone. Use another request here, or fork when none runs."
                )
            try:
                self._going.acquire(timeout=seconds)
            finally:
                if self._has_ended:
                    # Let the next one go on that waits. Ctrl-C comes behind a call of C, but may
                    # come before what `suppress` does.
                    try:  # noqa: SIM105
                        self._going.release()
                    except RuntimeError:  # it is open
                        pass
            if not self._has_ended:
                return False
        if self.failure is not None:
            raise self.failure
        return True


def check_callback(callback: Any) -> None:
    """Checks a callback when it is set, rather than after the first run.

    Raises:
        InferError: It cannot be called.
    """
    if callback is not None and not callable(callback):
        raise InferError(f"A callback is called after a run; found {callback!r}, which cannot be.")
