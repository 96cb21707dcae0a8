"""A launch as JSON, and how another process makes it: with zeros in place of tensors."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from partita.errors import CompileError, DeviceMemoryError
from partita.lowering import Operand, Step
from partita.system.processors import usable_processors
from partita_opencl.device.device import Device
from partita_opencl.drivers.program_cache import ProgramKey, set_argument
from partita_opencl.drivers.trial_process import Answer, Json
from partita_opencl.launches.steps import (
    FAULT,
    REPORTS,
    STALL,
    ConcatenatedConstants,
    Counters,
    Launch,
    TensorMapBuffer,
)

_TABLE_BYTES = 1 << 16
"""Constants of integers up to this size are told: kernels may read from them what to do."""

_NUMBER_BYTES = 4
"""Size of a counter, and of a number in which kernels leave that something failed."""

_RUN_SECONDS = 2.0
"""How long a launch of all its groups may run; to build its code is not counted."""

_LONGEST_PAUSE = 0.02
"""Seconds between two looks at a kernel that runs."""


# ------------------------------------------------------------------------- a launch as JSON


def to_json(step: Step) -> Json:
    """A step's launch, as :func:`perform` takes it in another process."""
    launch = step.fn
    if not isinstance(launch, Launch):
        raise TypeError(f"{launch!r} is not a launch")
    buffers: list[Json] = []
    places: dict[Any, int] = {}

    def place(arg: Any) -> int:
        owner = arg.root if isinstance(arg, Operand) else arg
        if id(owner) not in places:
            places[id(owner)] = len(buffers)
            buffers.append(_buffer(owner))
        return places[id(owner)]

    return {
        "program": _program(launch.program),
        "kernel": launch.kernel,
        "sizes": launch.sizes,
        "args": [
            {"value": np.asarray(arg).tobytes().hex()}
            if isinstance(arg, np.generic | np.ndarray)
            else {"buffer": None if arg is None else place(arg)}
            for arg in step.args
        ],
        "buffers": buffers,
    }


def cut(launch: Json) -> Json:
    """The launch with few groups, which is made to its end: one that ran too long with all of them.

    There is one group along each dimension, but all of them where the kernel asks how many there
    are: it shares its work among them, or lets them wait for one another.
    """
    source = _key(launch["program"]).source()
    whole, group = launch["sizes"]
    few = [
        items if re.search(rf"get_(global_size|num_groups)\({dimension}\)", source) else one
        for dimension, (items, one) in enumerate(zip(whole, group, strict=True))
    ]
    return {**launch, "sizes": [few, group], "to_its_end": True}


def _buffer(owner: Any) -> Json:
    """What a buffer holds: so many zeros, unless kernels read from it what to do."""
    if isinstance(owner, Operand):
        may_be_table = owner.dtype.kind in "iu" and owner.nbytes <= _TABLE_BYTES
        table = owner.const if may_be_table else None  # what is large is not read back for it
        if table is not None:
            return {"content": np.ascontiguousarray(table).tobytes().hex()}
        return {"bytes": owner.nbytes}
    if owner is FAULT or owner is STALL:
        return {"bytes": _NUMBER_BYTES * REPORTS}
    if isinstance(owner, Counters):
        return {"bytes": _NUMBER_BYTES * owner.count}
    if isinstance(owner, ConcatenatedConstants):
        return {"bytes": owner.starts[-1]}
    if isinstance(owner, TensorMapBuffer):
        matrices = [(m.position, m.columns, m.rows, m.pitch, m.high) for m in owner.matrices]
        return {
            "bytes": TensorMapBuffer.BYTES * len(matrices),
            "describer": _program(owner.program),
            "matrices": matrices,
        }
    raise TypeError(f"{owner!r} is not an argument of a launch")


def _program(key: ProgramKey) -> Json:
    return {"file": key.file, "options": key.options, "generated": key.generated}


# ------------------------------------------------------------------------- the process


def perform(device: Device, launches: Sequence[Json], side_by_side: bool, answer: Answer) -> None:
    """Makes launches; tells of each why it failed, or that after a failure it is not known.

    The last one may be unfinished: then this process must be ended, and no driver failed.
    """
    if side_by_side:
        programs = [key for launch in launches for key in _programs(launch)]
        with ThreadPoolExecutor(usable_processors()) as pool:
            try:
                for _ in pool.map(lambda key: device.programs.get([key]), dict.fromkeys(programs)):
                    answer({"built": True})
            except CompileError:
                answer({"again": True})
                return
    for launch in launches:
        made = make_launch(device, launch)
        answer(made)
        if "unfinished" in made:
            return


def _programs(launch: Json) -> list[ProgramKey]:
    describers = [b["describer"] for b in launch["buffers"] if "describer" in b]
    return [_key(program) for program in (launch["program"], *describers)]


def _key(program: Json) -> ProgramKey:
    options = tuple((name, value) for name, value in program["options"])
    return ProgramKey(program["file"], options, program["generated"])


def make_launch(device: Device, launch: Json) -> Json:
    """Makes one launch: why it failed, and whether it would do so another time.

    One that runs for long is not waited for, and told as unfinished: what a driver dies of has been
    built by then and runs, and the size of a model must not decide how long compiling takes. To be
    told from one that never ends, it is to be made once more, as :func:`cut` has it.
    """
    import pyopencl as cl

    try:
        event = _enqueue(device, launch)
        if not launch.get("to_its_end") and _runs_long(event):
            return {"unfinished": True}
        device.transfers.finish()
    except (DeviceMemoryError, cl.MemoryError):
        return {"fault": "", "lasts": False}  # built at least; its user needs the memory once
    except (CompileError, cl.Error) as error:
        return {"fault": " ".join(str(error).split()), "lasts": True}
    return {"fault": "", "lasts": True}


def _runs_long(event: Any) -> bool:
    """Waits for a kernel, unless it runs for longer than it may."""
    import pyopencl as cl

    began, pause = None, _LONGEST_PAUSE / 256
    while (status := event.command_execution_status) > cl.command_execution_status.COMPLETE:
        if status == cl.command_execution_status.RUNNING:
            began = began or time.monotonic()
            if time.monotonic() - began > _RUN_SECONDS:
                return True
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return False


def _enqueue(device: Device, launch: Json) -> Any:
    """The event of a kernel that has been given to the driver."""
    import pyopencl as cl

    programs = device.programs.get(_programs(launch))
    queue = device.transfers
    buffers = [_filled(device, buffer) for buffer in launch["buffers"]]
    for made, buffer in zip(buffers, launch["buffers"], strict=True):
        for number, (position, *sizes) in enumerate(buffer.get("matrices", ())):
            describer = cl.Kernel(programs[_key(buffer["describer"])], "tensor_map")
            matrix = buffers[launch["args"][position]["buffer"]]
            describer.set_args(made, matrix, *map(np.int32, (number, *sizes)))
            cl.enqueue_nd_range_kernel(queue, describer, (1,), (1,))
    kernel = cl.Kernel(programs[_key(launch["program"])], launch["kernel"])
    for position, arg in enumerate(launch["args"]):
        if "value" in arg:
            set_argument(kernel, position, bytes.fromhex(arg["value"]))
        else:
            place = arg["buffer"]
            set_argument(kernel, position, None if place is None else buffers[place])
    event = cl.enqueue_nd_range_kernel(queue, kernel, *map(tuple, launch["sizes"]))
    queue.flush()
    return event


def _filled(device: Device, buffer: Json) -> Any:
    import pyopencl as cl

    if "content" in buffer:
        content = np.frombuffer(bytes.fromhex(buffer["content"]), np.uint8)
        return device.pool.allocate(content.nbytes, content)
    made = device.pool.allocate(buffer["bytes"])
    cl.enqueue_fill_buffer(device.transfers, made, np.zeros(1, np.uint8), 0, made.size)
    return made
