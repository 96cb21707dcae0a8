"""Thread pools that are made when first used, end with the process, and survive a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_pools: weakref.WeakSet[LazyPool] = weakref.WeakSet()


class LazyPool:
    """A thread pool whose threads start with the first task.

    After a fork the child starts with no threads, and makes its own when it needs them.

    Args:
        name: Prefix of the threads' names.
        workers: Most threads at a time.
    """

    def __init__(self, name: str, workers: int) -> None:
        self._name = name
        self._workers = workers
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        _pools.add(self)

    def submit(self, task: Callable[..., T], *args: Any) -> Future[T]:
        """Runs a task on one of the threads."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=self._name)
            return self._pool.submit(task, *args)

    def close(self) -> None:
        """Ends the threads once their tasks are done; a later submit starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def _forget(self) -> None:
        self._pool = None
        self._lock = threading.Lock()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
