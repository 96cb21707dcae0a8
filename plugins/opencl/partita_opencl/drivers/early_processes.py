"""Processes that open a graphics card while its driver is tried, for the trials of kernels behind.

To open a card and to load its compiler takes a process about as long as the rest of the driver's
trial, and many processes try kernels. So these begin when the driver has listed its devices in the
process of its trial. They are ended if the trial fails, and end by themselves if nobody takes them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from partita.system.processors import usable_processors
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.joint_work import JointWork
from partita.system.threads.thread_limit import is_thread_refused
from partita_opencl.drivers.installed_drivers import Driver
from partita_opencl.drivers.trial_process import WORKER, Json, TrialProcess

SECONDS = 120.0
"""How long a process may say nothing: a family of kernels, a program or a launch takes less."""

PROCESS_BYTES = 2**31
"""What a process that opens a graphics card takes of its memory, at most."""

_MOST = 12

Arrival = Callable[[TrialProcess | None], None]
"""Called with a process that has opened the card, or ``None`` for one that could not."""


class _Group:
    """The processes of one driver.

    Args:
        count: How many are on their way.
    """

    def __init__(self, count: int) -> None:
        self._lock = InterruptSafeLock()
        self._coming = count
        self._opened: list[TrialProcess] = []
        self._arrival: Arrival | None = None
        self.work = JointWork()

    def open(self, request: Json) -> None:
        """Opens one process; runs in a thread of its own."""
        self.work.join()
        process = None
        try:
            # Who needs one opens another and is told; what is given up, nobody waits for.
            with contextlib.suppress(OSError, KeyboardInterrupt):
                process = _opened(request)
        finally:
            self.arrive(process)

    def arrive(self, process: TrialProcess | None) -> None:
        """Hands a process on, or keeps it until somebody takes all."""
        with self._lock:
            self._coming -= 1
            arrival = self._arrival
            if arrival is None and process is not None:
                self._opened.append(process)
        if arrival is not None:
            arrival(process)

    def hand_over(self, expect: Callable[[int], None], arrival: Arrival) -> None:
        """As :func:`hand_over`."""
        with self._lock:
            expect(self._coming + len(self._opened))
            self._arrival = arrival
            opened, self._opened = self._opened, []
        for process in opened:
            arrival(process)


_groups: dict[tuple[int, Driver], _Group] = {}
"""By the process that began them, and the driver."""

_lock = InterruptSafeLock()


def begin(driver: Driver, versions: list[str], card_bytes: int) -> None:
    """Begins to open processes.

    Args:
        driver: All of its devices are graphics cards; the first one is opened.
        versions: Of its platforms.
        card_bytes: Memory of the smallest card.
    """
    count = min(usable_processors() * 3 // 4, card_bytes // PROCESS_BYTES, _MOST)
    key = os.getpid(), driver
    with _lock:
        if count < 1 or key in _groups:
            return
        group = _groups[key] = _Group(count)
    request = {"drivers": [{"driver": vars(driver), "versions": versions}], "device": ""}
    for _ in range(count):
        try:
            threading.Thread(target=group.open, args=(request,), daemon=True).start()
        except RuntimeError as error:
            group.arrive(None)
            if not is_thread_refused(error):
                raise


def hand_over(driver: Driver, expect: Callable[[int], None], arrival: Arrival) -> None:
    """Hands over a driver's processes, once.

    Args:
        driver: The driver.
        expect: Called first with how many there are, those on their way included.
        arrival: Called for each of them, now or by another thread.
    """
    with _lock:
        group = _groups.pop((os.getpid(), driver), None)
    if group is not None:
        group.hand_over(expect, arrival)


def end(driver: Driver) -> None:
    """Ends the processes of a driver that nobody has taken."""
    with _lock:
        group = _groups.pop((os.getpid(), driver), None)
    if group is not None:
        group.work.give_up()
        group.hand_over(lambda _: None, _close)


@atexit.register
def end_all() -> None:
    """Ends all processes that nobody has taken."""
    for _, driver in [key for key in list(_groups) if key[0] == os.getpid()]:
        end(driver)


def _close(process: TrialProcess | None) -> None:
    if process is not None:
        process.close()


def _opened(request: Json) -> TrialProcess | None:
    """A process that has opened its device; ``None`` if it ended.

    Raises:
        OSError: It cannot be started, or nothing can wait for it.
        KeyboardInterrupt: It was given up.
    """
    doing = "a process that opens a graphics card"
    process = TrialProcess(WORKER, request, SECONDS, lasting=True, doing=doing)
    ready: Any = None
    try:
        ready = next(process.answers(), None)
    finally:
        if ready is None:
            process.close()
    return None if ready is None else process
