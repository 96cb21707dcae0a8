"""Processes that have opened a device and wait for what is to be tried on it next.

To start one takes longer than most trials. So one in which nothing failed is kept for whoever tries
something soon after; it ends by itself when nothing comes (:mod:`trial_worker`). Where trials are
many, processes for them are opened side by side.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from partita.errors import advised
from partita.system.processors import usable_processors
from partita.system.threads import joint_work
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita.system.threads.joint_work import JointWork
from partita.system.threads.thread_limit import more_threads
from partita_opencl.device.device import Device, search_devices
from partita_opencl.drivers import driver_trial, early_processes, fork_server
from partita_opencl.drivers.early_processes import PROCESS_BYTES, SECONDS
from partita_opencl.drivers.trial_process import WORKER, Json, TrialProcess

_idle: list[tuple[int, str, TrialProcess]] = []
"""Each with the process that it was started by, and the device's id."""
_seated: Counter[tuple[int, str]] = Counter()
"""How many try something now, by the process that asks and the device's id."""

_waiting: Counter[tuple[int, str]] = Counter()
"""How many of those wait for a process that is on its way."""

_opening: Counter[tuple[int, str]] = Counter()
"""How many are on their way, by the process that starts them and the device's id."""
_lock = InterruptSafeLock()
_changed = threading.Condition(_lock)

_ahead = JointWork()
"""What threads do that open processes for later."""

_FEW = 3
"""So few trials are made by one process: to start another one takes longer."""

_OF_PROCESS = 3
"""Trials of a graphics card for which another process is opened: that takes as long as three."""

_MOST = 16


def has_room(device: Device, nbytes: int) -> bool:
    """Whether so many bytes of a device leave as much as processes take that try something."""
    return nbytes + _most(device) * PROCESS_BYTES <= device.limits.memory_bytes


class NoProcessError(Exception):
    """There is no process that could try something; the message says why."""


def best_count(device: Device, trials: int) -> int:
    """How many processes should share trials: all that are there, and more if trials are many.

    Trials that others make at the same time count, too.
    """
    if trials <= _FEW:
        return 1
    if device.limits.is_cpu:
        return min(trials, _most(device))
    _take_over(device)
    with _lock:
        there, others = _count(os.getpid(), device.id), _seated[os.getpid(), device.id]
    return min(trials, max(2, others + trials // _OF_PROCESS, there), _most(device))


def _count(pid: int, device_id: str) -> int:
    """Processes that are there, at work or on their way; to be called with the lock held."""
    key = pid, device_id
    idle = sum((pid, name) == key for pid, name, _ in _idle)
    return idle + _opening[key] + max(0, _seated[key] - _waiting[key])


def _take_over(device: Device) -> None:
    """Takes the processes that were begun beside the driver's trial, if they open this device."""
    of_driver = (one for one in search_devices()[0] if one.driver == device.driver)
    if device is not next(of_driver, None):
        return
    key = os.getpid(), device.id

    def expect(count: int) -> None:
        with _lock:
            _opening[key] += count

    early_processes.hand_over(device.driver, expect, functools.partial(_arrive, key))


def _arrive(key: tuple[int, str], process: TrialProcess | None) -> None:
    """Keeps a process that was on its way for who needs one, unless all were ended meanwhile."""
    with _lock:
        if key in _opening:
            _opening[key] = max(0, _opening[key] - 1)
            if process is not None:
                _idle.append((*key, process))
                process = None
        _changed.notify_all()
    if process is not None:
        process.close()


def _most(device: Device) -> int:
    """How many processes may try something at the same time.

    Drivers of processors compile with several threads themselves.
    """
    if device.limits.is_cpu:
        return min(2, usable_processors())
    room = device.limits.memory_bytes // PROCESS_BYTES
    return max(1, min(usable_processors(), room, _MOST))


@contextlib.contextmanager
def crew(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that have processes try something; an interrupt of the block ends all processes.

    Those that threads try something with for somebody else are not ended.
    """
    try:
        with fork_server.ended_if_interrupted(), joint_work.workers(count) as pool:
            yield pool
    except KeyboardInterrupt:
        end_all()
        raise


@contextlib.contextmanager
def seat(device: Device) -> Iterator[None]:
    """Waits until one more process may try something, and counts it while the block runs.

    Batches of trials that are made at the same time have as many processes as one may have.
    """
    key, most = (os.getpid(), device.id), _most(device)
    with joint_work.ended_by(_wake_all), _lock:
        while _seated[key] >= most:
            _changed.wait()
            joint_work.check()
        _seated[key] += 1
    try:
        yield
    finally:
        with _lock:
            _seated[key] -= 1
            _changed.notify_all()


def lend(device: Device) -> TrialProcess:
    """A process that waits for requests: one that was given back or opened ahead, or a new one.

    Whoever has it gives it back by :func:`take_back` or closes it.

    Raises:
        NoProcessError: None can be started.
    """
    _take_over(device)
    while (process := _take(device)) is not None:
        process.ask({})  # so that it does not end meanwhile
        if next_answer(process) is not None:
            return process
        process.close()
    return open_process(device)


def next_answer(process: TrialProcess) -> Json | None:
    """What a process tells next; ``None`` if it has ended, or has been silent too long.

    Raises:
        KeyboardInterrupt: What it was asked for was given up; it is closed, as at any error.
        NoProcessError: The system lets nobody wait for it.
    """
    return next(answers(process), None)


def answers(process: TrialProcess) -> Iterator[Json]:
    """What a process tells; ends when it has ended, or has been silent too long.

    Raises:
        KeyboardInterrupt: What it was asked for was given up; it is closed, as at any error.
        NoProcessError: The system lets nobody wait for it.
    """
    try:
        yield from process.answers()
    except OSError as error:
        process.close()
        reason = f"nothing can wait for the process that tries it ({error}); {more_threads()}"
        raise NoProcessError(reason) from error
    except GeneratorExit:  # nobody asks for more now
        raise
    except BaseException:
        process.close()
        raise


def open_ahead(device: Device, count: int) -> None:
    """Begins to open processes, until so many are there or at work."""
    _take_over(device)
    key = os.getpid(), device.id
    with _lock:
        count -= _count(*key)
        if count <= 0:
            return
        _opening[key] += count
    for _ in range(count):
        threading.Thread(target=_open_for_later, args=(device, key, _ahead), daemon=True).start()


def _open_for_later(device: Device, key: tuple[int, str], work: JointWork) -> None:
    process = None
    work.join()
    try:
        # Whoever needs one is told when it asks for it; what is given up, nobody waits for.
        with contextlib.suppress(NoProcessError, KeyboardInterrupt):
            process = open_process(device)
    finally:
        _arrive(key, process)


def open_process(device: Device) -> TrialProcess:
    """A new process that has opened the device and waits for requests.

    Raises:
        NoProcessError: It cannot be started.
    """
    request = {"drivers": driver_trial.loaded_drivers(), "device": device.id}
    doing = f"a process that opens device 'OPENCL.{device.id}'"
    try:
        process = TrialProcess(WORKER, request, SECONDS, lasting=True, doing=doing)
    except OSError as error:
        raise NoProcessError(f"no process can be started to try it ({error})") from error
    if next_answer(process) is not None:
        return process
    process.close()
    reason = f"no process can be started to try it ({process.fault or 'it ended early'})"
    raise NoProcessError(advised(reason, process.advice))


def take_back(device: Device, process: TrialProcess) -> None:
    """Keeps a process in which nothing failed, and that has answered all that it was asked."""
    with _lock:
        _idle.append((os.getpid(), device.id, process))
        _changed.notify_all()


@atexit.register
def end_all() -> None:
    """Ends the processes that wait, and those that are on their way when they arrive."""
    global _ahead
    early_processes.end_all()
    with _lock:
        own = [process for pid, _, process in _idle if pid == os.getpid()]
        _idle.clear()
        _opening.clear()
        ahead, _ahead = _ahead, JointWork()
        _changed.notify_all()
    ahead.give_up()
    for process in own:
        process.close()


def _wake_all() -> None:
    with _lock:
        _changed.notify_all()


def _take(device: Device) -> TrialProcess | None:
    """One that waits; waits for one that is on its way."""
    key = os.getpid(), device.id
    with joint_work.ended_by(_wake_all), _lock:
        while True:
            joint_work.check()
            for index, (pid, device_id, _) in enumerate(_idle):
                if (pid, device_id) == key:
                    return _idle.pop(index)[2]
            if not _opening[key]:
                return None
            _waiting[key] += 1
            try:
                _changed.wait()
            finally:
                _waiting[key] -= 1
