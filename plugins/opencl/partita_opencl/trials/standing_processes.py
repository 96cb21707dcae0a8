"""Processes that have opened a device and wait for what is to be tried on it next.

To start one takes longer than most trials. So one in which nothing failed is kept for whoever tries
something soon after; it ends by itself when nothing comes (:mod:`trial_worker`).
"""

from __future__ import annotations

import atexit
import os
import threading

from partita.system.processors import usable_processors
from partita_opencl.device.device import Device
from partita_opencl.drivers import driver_trial
from partita_opencl.drivers.trial_process import TrialProcess

SECONDS = 120.0
"""How long a process may say nothing: a family of kernels, a program or a launch takes less."""

WORKER = "partita_opencl.trials.trial_worker"

_idle: list[tuple[int, str, TrialProcess]] = []
"""Each with the process that it was started by, and the device's id."""
_lock = threading.Lock()


_FEW = 3
"""So few trials are made by one process: to start another one takes longer."""

_MOST = 16
_PROCESS_BYTES = 2**31
"""What a process that opens a graphics card takes of its memory, at most."""


class NoProcessError(Exception):
    """There is no process that could try something; the message says why."""


def best_count(device: Device, trials: int) -> int:
    """How many processes should share trials.

    Drivers of processors compile with several threads themselves.
    """
    if trials <= _FEW:
        return 1
    if device.limits.is_cpu:
        return min(2, usable_processors())
    room = device.limits.memory_bytes // _PROCESS_BYTES
    return max(1, min(trials, usable_processors(), room, _MOST))


def lend(device: Device) -> TrialProcess:
    """A process that waits for requests: one that was given back, or a new one.

    Whoever has it gives it back by :func:`take_back` or closes it.

    Raises:
        NoProcessError: None can be started.
    """
    while (process := _take(device)) is not None:
        process.ask({})  # so that it does not end meanwhile
        for _ in process.answers():
            return process
        process.close()
    return open_process(device)


def open_process(device: Device) -> TrialProcess:
    """A new process that has opened the device and waits for requests.

    Raises:
        NoProcessError: It cannot be started.
    """
    request = {"drivers": driver_trial.told(), "device": device.id}
    try:
        process = TrialProcess(WORKER, request, SECONDS, lasting=True)
    except OSError as error:
        raise NoProcessError(f"no process can be started to try it ({error})") from error
    for _ in process.answers():
        return process
    process.close()
    fault = process.fault or "it ended early"
    raise NoProcessError(f"no process can be started to try it ({fault})")


def take_back(device: Device, process: TrialProcess) -> None:
    """Keeps a process in which nothing failed, and that has answered all that it was asked."""
    with _lock:
        _idle.append((os.getpid(), device.id, process))


@atexit.register
def end_all() -> None:
    """Ends the processes that wait."""
    with _lock:
        own = [process for pid, _, process in _idle if pid == os.getpid()]
        _idle.clear()
    for process in own:
        process.close()


def _take(device: Device) -> TrialProcess | None:
    with _lock:
        for index, (pid, device_id, _) in enumerate(_idle):
            if (pid, device_id) == (os.getpid(), device.id):
                return _idle.pop(index)[2]
    return None
