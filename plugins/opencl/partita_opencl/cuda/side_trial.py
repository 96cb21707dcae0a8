"""Whether a device is driven by CUDA too: tried in a process of its own first, as a driver is.

The trial allocates, large and small, lets OpenCL and CUDA read what the other wrote, launches a
graph of two kernels twice, with other arguments the second time, and frees all of it.
"""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Any

import numpy as np

from partita_opencl.cuda.cuda_driver import CudaError, cuda_of
from partita_opencl.cuda.replay import Kernel, Replay, load
from partita_opencl.cuda.shared_memory import address_of
from partita_opencl.cuda.side import CudaSide
from partita_opencl.drivers import driver_trial, installed_drivers, verdicts
from partita_opencl.drivers.installed_drivers import Driver
from partita_opencl.drivers.program_cache import built_program
from partita_opencl.drivers.trial_process import Answer, Json, TrialProcess
from partita_opencl.drivers.verdicts import Verdict

_log = logging.getLogger(__name__)

SWITCH = "PARTITA_CUDA"
"""The variable of the environment that keeps CUDA out, if it is ``0``."""

SECONDS = 60.0
"""How long the trial may be silent, as `silence` counts it."""

_PLATFORM = "NVIDIA CUDA"
_IMPORTS = "cl_khr_external_memory_opaque_fd"
_ITEMS, _GROUP = 4096, 64
_LARGE = 3 << 20

_SOURCE = """
kernel void scaled(global const float *x, global float *y, const float factor, const int count) {
  local float values[64];
  const int i = get_global_id(0), l = get_local_id(0);
  values[l] = x[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (i < count) y[i] = factor * values[l ^ 1] + get_num_groups(0) + get_group_id(0);
}
"""


def cuda_side(handle: Any, context: Any, number: str, identity: str) -> CudaSide | None:
    """A device as CUDA has it; ``None`` if it is none of CUDA's, or fails there.

    Args:
        handle: The ``pyopencl.Device``.
        context: Its context.
        number: Its number among all devices, for messages.
        identity: Device, driver and platform with versions.
    """
    if handle.platform.name != _PLATFORM or driver_trial.has_adopted():
        return None
    if os.environ.get(SWITCH) == "0" or _IMPORTS not in handle.extensions.split():
        return None
    name = f"OPENCL.{number}"
    verdict = _verdict(handle, identity)
    if verdict.reason:
        again = f"; to try it again, delete '{verdict.file}'" if verdict.file else ""
        _log.info("%s is not driven by CUDA: %s%s", name, verdict.reason, again)
        return None
    try:
        cuda = cuda_of(handle)
        return None if cuda is None else CudaSide(cuda, context)
    except CudaError as error:
        _log.warning("%s is not driven by CUDA, since that fails now: %s", name, error)
        return None


def _verdict(handle: Any, identity: str) -> Verdict:
    subject, marks = f"CUDA beside {handle.name}", [identity, _SOURCE]
    found = verdicts.read(subject, marks)
    if found is not None:
        return found
    fault, lasts = "it ended early", True
    request = {"drivers": driver_trial.told(), "name": handle.name}
    try:
        with TrialProcess(__name__, request, SECONDS) as process:
            for answer in process.answers():
                fault = str(answer["fault"])
            if process.fault:
                fault, lasts = process.fault, not process.by_chance
    except OSError as error:
        return Verdict(f"no process can be started to try it ({error})")
    verdict = Verdict(fault)
    return verdicts.write(subject, marks, verdict) if lasts else verdict


def main(request: Json, answer: Answer) -> None:
    """The trial itself, in a process of its own."""
    import pyopencl as cl

    drivers = [Driver(**one["driver"]) for one in request["drivers"]]
    try:
        answer({"fault": _fault(drivers, request["name"])})
    except (CudaError, cl.Error) as error:
        answer({"fault": str(error)})


def _fault(drivers: list[Driver], name: str) -> str:
    """What is wrong with a device; empty if nothing is."""
    import pyopencl as cl

    handles = [
        handle
        for platform in installed_drivers.platforms(drivers)
        if platform.name == _PLATFORM
        for handle in platform.get_devices()
        if handle.name == name
    ]
    if not handles:
        return "the device cannot be found again"
    context = cl.Context([handles[0]])
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(context))
    cuda = cuda_of(handles[0])
    if cuda is None:
        return "there is no CUDA driver that knows it"
    side = CudaSide(cuda, context)
    program = built_program(cl._cl._Program(context, _SOURCE), "", handles[0])
    if not load(cuda, program):
        return "its compiler's PTX asks for what CUDA cannot tell"
    for _ in range(2):  # the second time in memory that was freed
        off = _error(side, program, cl.CommandQueue(context, handles[0]))
        if off:
            return off
    return ""


def _error(side: CudaSide, program: Any, queue: Any) -> str:
    import pyopencl as cl

    x = np.random.default_rng(0).uniform(-1.0, 1.0, _ITEMS).astype(np.float32)
    source, middle, target = (side.memory.allocate(n) for n in (x.nbytes, _LARGE, x.nbytes))
    other = side.memory.allocate(x.nbytes)
    numbers = [np.float32(2.0).tobytes(), np.int32(_ITEMS).tobytes()]
    steps = [[source, middle, *numbers], [middle, target, *numbers]]
    replay = Replay(side.cuda, [Kernel(program, "scaled", (_ITEMS,), (_GROUP,))] * 2, steps)
    cl.enqueue_copy(queue, source, x)
    queue.finish()
    stream = side.stream()
    place = np.arange(_ITEMS)
    groups = (_ITEMS // _GROUP + place // _GROUP).astype(np.float32)
    wanted = 2 * (2 * x + (groups)) + groups  # what changes places twice is where it was
    found = np.empty_like(x)
    for buffer in (target, other):
        replay.change(1, 1, buffer)
        with side.cuda.current():
            replay.launch(stream)
            stream.finish()
        if not side.read(found, buffer) or np.max(np.abs(found - wanted)) > 1e-3:
            return "kernels that CUDA launches compute wrongly"
        cl.enqueue_copy(queue, found, buffer)
        if np.max(np.abs(found - wanted)) > 1e-3:
            return "OpenCL does not see what CUDA wrote"
    return "" if address_of(target) != address_of(other) else "two buffers are one"
