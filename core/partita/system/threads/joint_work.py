"""Work that threads do for one thread, and that ends soon when that one is interrupted.

A pool of ``concurrent.futures`` waits at its end for all that was handed to it, also when Ctrl-C
has interrupted who waits. Here such work is given up: what has not begun never begins, and what
waits for something, as for another process, is told by an action of its own to wait no longer. Its
thread then raises :class:`KeyboardInterrupt`, so that nothing takes it for a failure. Work that a
thread of other work asks for is given up with that.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from partita.system.threads import fork_order
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

Action = Callable[[], object]
"""Ends a wait in another thread; it waits for nothing itself, and raises nothing."""


_LAST_SECONDS = 1.0
"""How long an interrupt waits for threads to give up."""


class JointWork:
    """What some threads do together, and how each of them learns that it was given up."""

    def __init__(self) -> None:
        self._lock = InterruptSafeLock()
        self._is_given_up = False
        self._actions: dict[int, Action] = {}
        self._numbers = itertools.count()

    def give_up(self) -> None:
        """Has all threads of this work raise, as soon as they look or wait; may be called again."""
        with self._lock:
            self._is_given_up = True
            actions = [*self._actions.values()]
            self._actions.clear()
        for action in actions:
            action()

    def join(self) -> None:
        """Makes this thread one of those that do the work, to its end."""
        _current.work = self

    def check(self) -> None:
        """Raises if the work was given up.

        Raises:
            KeyboardInterrupt: It was.
        """
        if self._is_given_up:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def ended_by(self, action: Action) -> Iterator[None]:
        """As :func:`ended_by`, for this work."""
        number = next(self._numbers)
        with self._lock:
            self.check()
            self._actions[number] = action
        try:
            yield
        finally:
            with self._lock:
                self._actions.pop(number, None)


class _CurrentWork(threading.local):
    """The work that this thread does."""

    work: JointWork | None = None


_current = _CurrentWork()


def check() -> None:
    """Raises if the work that this thread does for another one was given up.

    Raises:
        KeyboardInterrupt: It was.
    """
    if _current.work is not None:
        _current.work.check()


@contextlib.contextmanager
def ended_by(action: Action) -> Iterator[None]:
    """Has an action called if the work of this thread is given up while the block runs.

    Args:
        action: Ends what the block waits for.

    Raises:
        KeyboardInterrupt: The work has been given up before. While the block runs and after it,
            :func:`check` tells.
    """
    if _current.work is None:
        yield
        return
    with _current.work.ended_by(action):
        yield


class _Pool(ThreadPoolExecutor):
    """A pool that knows what was handed to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: set[Future[Any]] = set()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not threading.main_thread().is_alive():
            # No pool takes anything then, though threads that Python waits for still work.
            return _done_here(functools.partial(function, *args, **kwargs))
        future = super().submit(function, *args, **kwargs)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def open(self) -> set[Future[Any]]:
        """What was handed to it and is neither done nor cancelled."""
        return self._open.copy()


def _done_here(function: Callable[[], Any]) -> Future[Any]:
    """What a function returns or raises, called by this thread."""
    future: Future[Any] = Future()
    try:
        future.set_result(function())
    except Exception as error:  # noqa: BLE001  # who asks for the result raises it
        future.set_exception(error)
    return future


@contextlib.contextmanager
def workers(count: int, name: str = "") -> Iterator[ThreadPoolExecutor]:
    """Threads that work for this one until the block ends; what interrupts it, they give up.

    Once the main thread has ended, this one does the work as it is handed over.

    Any other error waits for what was handed to them, as at the end of any pool. Threads that do
    not come to give up within a second, as in a kernel of minutes, end behind the block.

    Args:
        count: How many threads.
        name: Prefix of their names.
    """
    work, owner = JointWork(), fork_order.owner()

    def begin() -> None:
        work.join()
        fork_order.work_for(owner)

    pool = _Pool(count, name, initializer=begin)

    def give_up() -> None:
        pool.shutdown(wait=False, cancel_futures=True)
        work.give_up()

    try:
        with ended_by(give_up):
            try:
                yield pool
            except Exception:
                pool.shutdown()
                check()
                raise
            pool.shutdown()
    except Exception:
        raise
    except BaseException:
        give_up()
        if not wait(pool.open(), _LAST_SECONDS).not_done:
            pool.shutdown()
        raise
