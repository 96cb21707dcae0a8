"""Calls with a time limit: one that exceeds it is abandoned, but only a few are let live on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from partita.errors import InferError
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

T = TypeVar("T")

MOST_HANGING = 8
"""So many calls of one device may hang at a time; after that it is not called at all."""


class TimeoutExceededError(InferError):
    """A call was given up; what it holds stays in use until it returns, if ever."""


class Watchdog:
    """Runs calls on threads of their own and stops waiting when time is over.

    A call that hangs keeps its thread and its arguments; Python cannot end it. So that a device
    which never answers does not eat the process, it is refused while :data:`MOST_HANGING` calls
    hang.

    Args:
        timeout_s: How long to wait for a call.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._hanging: dict[str, list[threading.Thread]] = {}
        self._lock = InterruptSafeLock()

    def run(self, device: str, call: Callable[..., T], *args: Any) -> T:
        """Calls, and returns or raises what the call does.

        Raises:
            TimeoutExceededError: It did not end in time, or too many earlier calls still hang.
        """
        if self._count(device) >= MOST_HANGING:
            raise TimeoutExceededError(
                f"{MOST_HANGING} earlier calls have not answered yet, so it is not called again."
            )
        answer: list[Any] = []

        def work() -> None:
            try:
                answer.append((call(*args), None))
            except BaseException as error:  # noqa: BLE001  # raised below, on the waiting thread
                answer.append((None, error))

        thread = threading.Thread(target=work, name="partita-hetero-timeout", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        if not answer:
            with self._lock:
                self._hanging.setdefault(device, []).append(thread)
            raise TimeoutExceededError(
                f"It did not answer within {self._timeout_s * 1e3:.0f} ms (HETERO_TIMEOUT_MS)."
            )
        result, error = answer[0]
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # what the call returned

    def _count(self, device: str) -> int:
        """How many calls of a device hang now."""
        if device not in self._hanging:
            return 0
        with self._lock:
            alive = [thread for thread in self._hanging[device] if thread.is_alive()]
            self._hanging[device] = alive
            return len(alive)
