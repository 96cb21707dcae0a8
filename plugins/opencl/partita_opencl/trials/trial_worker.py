"""What a process does that tries kernels for another one: opens a device, then what it is asked."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading

import partita
from partita.lowering.fusion import all_passes
from partita.system.modules import import_modules
from partita_opencl.device.device import Device, find_device
from partita_opencl.drivers import driver_trial
from partita_opencl.drivers.trial_process import Answer, Json
from partita_opencl.trials import kernel_checks, kernel_trial, rehearsed_launch

IDLE_SECONDS = 10.0
"""How long the process waits for more to do."""

_IMPORTED = (
    *("pyopencl", "pyopencl.invoker", "llvmlite.binding"),
    *("partita.runtime.compiled_model", "partita.runtime.compiling"),
    *("partita.runtime.infer_request", "partita.runtime.state_memory"),
    *("partita_opencl.plugin", "partita_opencl.runtime.device_model"),
)


class _State:
    """The process's device, and the timer that ends it."""

    device: Device | None = None
    timer: threading.Timer | None = None


def get_ready() -> None:
    """Imports what the first trial of a process would import; calls no driver.

    Processes that are forked then have it.
    """
    for name in _IMPORTED:
        with contextlib.suppress(OSError):  # pyopencl can write no index here, a fork elsewhere
            importlib.import_module(name)
    import_modules(importlib.import_module("partita_opencl.emitters"))
    all_passes()
    partita.Core().read_model(kernel_checks.sample("movement", None).model())


def main(request: Json, answer: Answer) -> None:
    """Opens the device, tries a family of kernels, makes launches, or says that it is there."""
    if _State.timer is not None:
        _State.timer.cancel()
    if _State.device is None:
        driver_trial.adopt(request["drivers"])
        _State.device = find_device(request["device"])
        _warm_up(_State.device)
        answer({"ready": True})
    elif "task" in request:
        kernel_trial.perform(_State.device, request, answer)
    elif "launches" in request:
        launches, side_by_side = request["launches"], request["side_by_side"]
        rehearsed_launch.perform(_State.device, launches, side_by_side, answer)
    else:
        answer({"ready": True})
    _State.timer = threading.Timer(IDLE_SECONDS, os._exit, (0,))
    _State.timer.daemon = True
    _State.timer.start()


def _warm_up(device: Device) -> None:
    """Has a graphics card's driver load its compiler, before there is something to compile.

    To load it takes over a second, and a cache of the driver's own would keep it from being loaded:
    so the program is one that nobody has built.
    """
    if not device.limits.is_cpu:
        name = f"warm_up_{os.urandom(8).hex()}"
        device.programs.build(name, f"kernel void {name}(global int *x) {{ x[0] += 1; }}", [])
