"""A launch as JSON, and how another process makes it: with zeros in place of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from partita.errors import CompileError, DeviceMemoryError
from partita.lowering import Operand, Step
from partita.system.processors import usable_processors
from partita_opencl.device.device import Device
from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.drivers.trial_process import Answer, Json
from partita_opencl.launches.steps import (
    FAULT,
    REPORTS,
    STALL,
    Counters,
    Described,
    Joined,
    Launch,
)

_TABLE_BYTES = 1 << 16
"""Constants of integers up to this size are told: kernels may read from them what to do."""

_NUMBER_BYTES = 4
"""Size of a counter, and of a number in which kernels leave that something failed."""


# ------------------------------------------------------------------------- a launch as JSON


def told(step: Step) -> Json:
    """A step's launch, as :func:`perform` takes it in another process."""
    launch = step.fn
    if not isinstance(launch, Launch):
        raise TypeError(f"{launch!r} is no launch")
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
    if isinstance(owner, Joined):
        return {"bytes": owner.starts[-1]}
    if isinstance(owner, Described):
        matrices = [(m.position, m.columns, m.rows, m.pitch, m.high) for m in owner.matrices]
        return {
            "bytes": Described.BYTES * len(matrices),
            "describer": _program(owner.program),
            "matrices": matrices,
        }
    raise TypeError(f"{owner!r} is no argument of a launch")


def _program(key: ProgramKey) -> Json:
    return {"file": key.file, "options": key.options, "generated": key.generated}


# ------------------------------------------------------------------------- the process


def perform(device: Device, launches: Sequence[Json], side_by_side: bool, answer: Answer) -> None:
    """Makes launches; tells of each why it failed, or that after a failure it is not known."""
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
        answer(make_launch(device, launch))


def _programs(launch: Json) -> list[ProgramKey]:
    describers = [b["describer"] for b in launch["buffers"] if "describer" in b]
    return [_key(program) for program in (launch["program"], *describers)]


def _key(program: Json) -> ProgramKey:
    options = tuple((name, value) for name, value in program["options"])
    return ProgramKey(program["file"], options, program["generated"])


def make_launch(device: Device, launch: Json) -> Json:
    """Makes one launch: why it failed, and whether it would do so another time."""
    import pyopencl as cl

    try:
        _enqueue(device, launch)
    except (DeviceMemoryError, cl.MemoryError):
        return {"fault": "", "lasts": False}  # built at least; its user needs the memory once
    except (CompileError, cl.Error) as error:
        return {"fault": " ".join(str(error).split()), "lasts": True}
    return {"fault": "", "lasts": True}


def _enqueue(device: Device, launch: Json) -> None:
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
            kernel.set_arg(position, np.frombuffer(bytes.fromhex(arg["value"]), np.uint8))
        else:
            place = arg["buffer"]
            kernel.set_arg(position, None if place is None else buffers[place])
    cl.enqueue_nd_range_kernel(queue, kernel, *map(tuple, launch["sizes"]))
    queue.finish()


def _filled(device: Device, buffer: Json) -> Any:
    import pyopencl as cl

    if "content" in buffer:
        content = np.frombuffer(bytes.fromhex(buffer["content"]), np.uint8)
        return device.pool.allocate(content.nbytes, content)
    made = device.pool.allocate(buffer["bytes"])
    cl.enqueue_fill_buffer(device.transfers, made, np.zeros(1, np.uint8), 0, made.size)
    return made
