"""Runs of several requests that must not meet on a device, one after the other there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from partita.system.threads.interrupt_safe_lock import InterruptSafeLock


class Turns:
    """Puts runs of requests in an order that the device keeps: the host waits for none of them.

    A kernel whose groups wait for one another needs all of the device: two of them at a time may
    each hold what the other waits for. Each run is enqueued behind the end of the one before it.
    """

    def __init__(self) -> None:
        self._lock = InterruptSafeLock()
        self._last: tuple[Any, Any] | None = None

    def enqueue(self, queue: Any, run: Callable[[], Any]) -> None:
        """Enqueues a run behind all that were enqueued so before.

        Args:
            queue: The request's in-order queue.
            run: Enqueues it, and returns the event of its last command.

        Raises:
            pyopencl.Error: The driver refuses; what was enqueued by then has ended.
        """
        import pyopencl as cl

        with self._lock:
            try:
                if self._last is not None:
                    of, event = self._last
                    complete = cl.command_execution_status.COMPLETE
                    if of is not queue and event.command_execution_status != complete:
                        cl.enqueue_barrier(queue, wait_for=[event])
                self._last = queue, run()
                queue.flush()  # others can wait only for what has been handed to the device
            except BaseException:
                with contextlib.suppress(cl.Error):
                    queue.finish()
                raise
