"""A program made ready for a device: chains fused, launches final, memory planned, kernels built.

Shared by all requests; what belongs to one request is in ``bound_plan.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from partita.errors import DeviceMemoryError
from partita.lowering import Array, Operand, Packed, Program, Step
from partita.lowering.shapes.symbolic_size import Size, evaluated, present, same_number
from partita.system.host_memory import give_back_freed
from partita.system.memory_map import give_back, give_back_all
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_opencl.cuda.cuda_driver import CudaError
from partita_opencl.cuda.replay import is_loaded
from partita_opencl.device.buffer_pool import runtime_error
from partita_opencl.device.device import Device
from partita_opencl.launches.steps import (
    FAULT,
    STALL,
    ConcatenatedConstants,
    Counters,
    Launch,
    TensorMapBuffer,
)
from partita_opencl.trials import rehearsal


class Constants:
    """Constants on the device, uploaded when first used and shared by all requests.

    Packed weights leave the host's memory then; who needs their elements again reads them back.

    Args:
        device: Where they are uploaded to.
        parent: Where constants that live as long as the model (weights) are kept.
    """

    def __init__(self, device: Device, parent: Constants | None = None) -> None:
        self._device = device
        self._parent = parent
        self._buffers: dict[Any, tuple[Any, Any]] = {}
        self._lock = InterruptSafeLock()

    def buffer(self, operand: Operand) -> Any:
        """The buffer of a constant operand."""
        if operand.lasting and self._parent is not None:
            return self._parent.buffer(operand)
        held, key = _source(operand)
        with self._lock:
            found = self._buffers.get(key)
            if found is None:
                buffer = self._device.pool.allocate(operand.nbytes, operand.const)
                # The elements are kept beside their buffer: their identity is the key.
                found = self._buffers[key] = held, buffer
                self._release(operand, buffer, 0)
            return found[1]

    def _release(self, operand: Operand, buffer: Any, start: int) -> None:
        """Lets the host's copy of a constant go that lies in a buffer from a byte on."""
        if not isinstance(operand, Packed):
            if operand.const is not None:
                give_back(operand.const)
            return
        of = self._device, buffer, start, operand.shape, operand.dtype
        operand.elements.release(partial(_read_back, *of))

    @property
    def nbytes(self) -> int:
        """Of the buffers here, without those of the parent."""
        with self._lock:
            return sum(buffer.size for _, buffer in self._buffers.values())

    def joined(self, constants: ConcatenatedConstants) -> Any:
        """The buffer of several constants, which have none of their own."""
        operands = constants.operands
        if self._parent is not None and all(operand.lasting for operand in operands):
            return self._parent.joined(constants)
        sources = [_source(operand) for operand in operands]
        key = tuple(key for _, key in sources)
        with self._lock:
            found = self._buffers.get(key)
            if found is None:
                buffer = self._device.pool.allocate(constants.starts[-1])
                for start, operand in zip(constants.starts, operands, strict=False):
                    if operand.nbytes:
                        self._device.write(buffer, np.ascontiguousarray(operand.const), start)
                        self._release(operand, buffer, start)
                found = self._buffers[key] = [held for held, _ in sources], buffer
            return found[1]


def _read_back(
    device: Device, buffer: Any, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """What lies in a buffer from a byte on.

    Raises:
        InferError: The device has failed.
    """
    import pyopencl as cl

    array = np.empty(shape, dtype)
    try:
        if array.nbytes:
            device.read(array, buffer, start)
    except (cl.Error, CudaError) as error:
        raise runtime_error(error, f"OPENCL.{device.id}", array.nbytes) from error
    return array


def _source(operand: Operand) -> tuple[Any, Any]:
    """What holds a constant's elements, and what they are known by as long as it is kept.

    Raises:
        ValueError: It is no constant.
    """
    if isinstance(operand, Packed):
        return operand.elements, (operand.elements, operand.nbytes)
    array = operand.const
    if array is None:
        raise ValueError(f"{operand!r} is not a constant")
    return array, (array.ctypes.data, array.nbytes)


class Plan:
    """One program on one device.

    Args:
        program: The toolkit's program.
        device: What its kernels are made for.
        weights: The compiled model's constants.
        further: Has something else tried beside the launches, if anything.

    Raises:
        LaunchError: The driver fails at a kernel.
        DeviceMemoryError: Weights or a tensor do not fit the device.

    Attributes:
        program: The toolkit's program.
        steps: The launches in order.
        slots: For every intermediate tensor the number of its slot.
        sizes: Bytes of the slots.
        constants: Constants of this program.
        may_fault: Whether a kernel may report a failure.
        needs_device: Whether a kernel's groups wait for one another, all on the device.
        counters: Counters that each request needs.
        programs: The compiled OpenCL programs by key.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        weights: Constants,
        further: Callable[[], None] | None = None,
    ) -> None:
        self.program = program
        self.steps = program.steps
        limits = device.limits
        slots = Slots.of(program) if program.made is None else program.made
        self.slots = slots.places(self.steps)
        self.sizes = slots.bytes_for(program.numbers)
        if self.sizes and max(self.sizes) > limits.allocation_bytes:
            raise DeviceMemoryError(
                f"Device 'OPENCL.{device.id}' cannot hold an intermediate tensor of "
                f"{max(self.sizes)} bytes: its largest buffer has {limits.allocation_bytes}. Use "
                "smaller inputs, or another device for this part."
            )
        self.constants = Constants(device, weights)
        before = weights.nbytes
        with rehearsal.beside(device, self.steps, self._most_bytes, further):
            self._upload()
        if weights.nbytes > before:  # the host held, beside them, what they were made of
            give_back_all()
            give_back_freed()
        self.may_fault = any(arg is FAULT for step in self.steps for arg in step.args)
        self.needs_device = any(arg is STALL for step in self.steps for arg in step.args)
        self.counters = max(
            (arg.count for step in self.steps for arg in step.args if isinstance(arg, Counters)),
            default=0,
        )
        programs = [self.launch(step).program for step in self.steps]
        programs += [
            a.program for step in self.steps for a in step.args if isinstance(a, TensorMapBuffer)
        ]
        self.programs = device.programs.get(programs)
        self._device = device

    def _upload(self) -> None:
        for step in self.steps:
            for arg in step.args:
                if isinstance(arg, Operand) and arg.is_constant:
                    self.constants.buffer(arg)
                elif isinstance(arg, ConcatenatedConstants):
                    self.constants.joined(arg)

    def _most_bytes(self) -> int:
        """What the device needs for its constants and slots, if it has none of them so far."""
        args = {
            arg
            for step in self.steps
            for arg in step.args
            if isinstance(arg, Operand | ConcatenatedConstants)
        }
        constants = [
            arg for arg in args if isinstance(arg, ConcatenatedConstants) or arg.is_constant
        ]
        bytes_of = (
            c.starts[-1] if isinstance(c, ConcatenatedConstants) else c.nbytes for c in constants
        )
        return self.nbytes + sum(bytes_of)

    def is_loaded(self) -> bool:
        """Whether CUDA has the programs, as for another shape; does not have them loaded."""
        return all(map(is_loaded, self.programs.values()))

    @staticmethod
    def launch(step: Step) -> Launch:
        """The launch of a planned step."""
        if not isinstance(step.fn, Launch):
            raise TypeError(f"{step.fn!r} is not a launch")
        return step.fn

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, roughly: the program, and constants that are no weights."""
        return self.program.kept_bytes + self.constants.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(self.sizes)


class Slots(NamedTuple):
    """Which tensors of a program lie in the same memory, one after another.

    Attributes:
        first: By tensor a step that has it, the position among the step's arguments, and its slot.
        sizes: Bytes of each slot and -1; if sizes tell them, -1 and the place of their number.
    """

    first: Sequence[tuple[int, int, int]]
    sizes: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, program: Program) -> Slots:
        """Those of a program; of a recorded one for all its sizes."""
        outputs = {o.root for o in program.outputs if o is not None}
        external = {o for o in program.owned if o is not None} | set(program.inputs)
        slots, sizes = _plan(program.steps, external, outputs)
        first: dict[Operand, tuple[int, int, int]] = {}
        for number, step in enumerate(program.steps):
            for position, arg in enumerate(step.args):
                if isinstance(arg, Operand) and arg.root in slots:
                    first.setdefault(arg.root, (number, position, slots[arg.root]))
        placed = [(-1, n.place) if type(n) is Size else (n, -1) for n in sizes]
        return cls(list(first.values()), placed)

    def places(self, steps: Sequence[Step]) -> dict[Operand, int]:
        """The slot of each tensor, in the program or one that is made of it for other sizes."""
        return {steps[number].args[position].root: slot for number, position, slot in self.first}

    def bytes_for(self, numbers: Sequence[Any] | Array) -> list[int]:
        """The sizes, as numbers."""
        return [int(numbers[place]) if place >= 0 else size for size, place in self.sizes]


def _plan(
    steps: Sequence[Step], external: set[Operand], outputs: set[Operand]
) -> tuple[dict[Operand, int], list[Any]]:
    """A slot for every intermediate tensor, by liveness; outputs live on after the last step.

    A slot is a buffer of its own that tensors use one after another. One arena with sub-buffers
    would be a little smaller, but a driver of NVIDIA (580.159) crashes when sub-buffers that
    kernels have used are released.

    Greedy: the largest tensor first, each into the smallest slot that is free while it lives. Where
    sizes stand for others, tensors that share a slot now do so for all of them.
    """
    lives: dict[Operand, list[int]] = {}
    for number, step in enumerate(steps):
        for arg in step.args:
            if not isinstance(arg, Operand) or arg.is_constant or arg.root in external:
                continue
            lives.setdefault(arg.root, [number, number])[1] = number
    for operand in outputs & lives.keys():
        lives[operand][1] = len(steps)
    slots: dict[Operand, int] = {}
    taken: list[list[list[int]]] = []
    sizes: list[dict[tuple[bool, int], Any]] = []
    for operand in sorted(lives, key=lambda o: (-present(o.nbytes), lives[o][0])):
        first, last = lives[operand]
        free = [
            number
            for number, uses in enumerate(taken)
            if all(end < first or start > last for start, end in uses)
        ]
        number = free[-1] if free else len(sizes)  # later slots are smaller
        if not free:
            sizes.append({})
            taken.append([])
        taken[number].append([first, last])
        sizes[number].setdefault(same_number(operand.nbytes), operand.nbytes)
        slots[operand] = number
    return slots, [_largest(list(different.values())) for different in sizes]


def _largest(sizes: Sequence[Any]) -> Any:
    return sizes[0] if len(sizes) == 1 else evaluated(max, *sizes)
