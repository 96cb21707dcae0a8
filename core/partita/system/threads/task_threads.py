"""Threads for short tasks: handing one over takes a few microseconds."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable
from typing import Any

from partita.system.living import Living
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.thread_limit import more_threads

Task = tuple[Callable[..., object], tuple[Any, ...]]


class TaskThreads:
    """Runs tasks in the order they come, on threads that start when they are needed.

    A task tells nobody how it ended, and must not raise. The threads end with the process, when
    the tasks that wait are done. After a fork the child starts with none of both.

    Args:
        name: Prefix of the threads' names.
        most: Threads at a time.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._ended = False
        self.begin_anew()
        _all.add(self)
        atexit.register(self.end)

    def begin_anew(self) -> None:
        """Forgets threads and tasks, as a child process has to."""
        self._lock = InterruptSafeLock()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open = 0

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Runs a task soon.

        Raises:
            RuntimeError: The process ends, or the system starts no thread; the task never runs.
        """
        with self._lock:
            if self._ended:
                raise RuntimeError("The process ends; nothing can be started any more.")
            if self._open >= len(self._threads) < self._most:
                name = f"{self._name}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise RuntimeError(
                        f"The system starts no thread ({error}); {more_threads()}."
                    ) from error
                self._threads.append(thread)
            self._open += 1
            self._tasks.put((function, args))  # before what tells threads to end

    def close(self) -> None:
        """Ends the threads once their tasks are done; a later task starts new ones."""
        with self._lock:
            threads, self._threads = self._threads, []
            for _ in threads:
                self._tasks.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()

    def end(self) -> None:
        """Ends the threads for good."""
        self._ended = True
        self.close()

    def _serve(self) -> None:
        tasks = self._tasks
        while (task := tasks.get()) is not None:
            function, args = task
            function(*args)
            del task, function, args  # whatever it holds is not kept until the next one comes
            with self._lock:
                self._open -= 1


_all = Living(in_child=TaskThreads.begin_anew)
