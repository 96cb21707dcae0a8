"""A program made ready for a device: chains fused, launches final, memory planned, kernels built.

Shared by all requests; what belongs to one request is in ``binding.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from partita.errors import DeviceMemoryError
from partita.lowering import Operand, Program, Step
from partita.lowering.memory import plan as place
from partita_opencl import chains
from partita_opencl.devices import Device
from partita_opencl.steps import FAULT, Launch
from partita_opencl.tuning import Tuning

Interval = tuple[int, int, int]


class Constants:
    """Constants on the device, uploaded when first used and shared by all requests.

    Args:
        device: The device.
        parent: Where constants that live as long as the model (weights) are kept.
    """

    def __init__(self, device: Device, parent: Constants | None = None) -> None:
        self._device = device
        self._parent = parent
        self._buffers: dict[Any, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def buffer(self, operand: Operand) -> Any:
        """The buffer of a constant operand."""
        if operand.lasting and self._parent is not None:
            return self._parent.buffer(operand)
        array = operand.const
        if array is None:
            raise ValueError(f"{operand!r} is no constant")
        key = (array.ctypes.data, array.nbytes)
        with self._lock:
            found = self._buffers.get(key)
            if found is None:
                # The array is kept beside its buffer: its address is the key.
                found = (array, self._device.pool.allocate(array.nbytes, array))
                self._buffers[key] = found
            return found[1]


class Plan:
    """One program on one device.

    Args:
        program: The toolkit's program.
        device: The device.
        tuning: How work is cut.
        weights: The compiled model's constants.
        fuse: Whether to fuse chains.

    Raises:
        CompileError: The driver refuses a kernel.
        DeviceMemoryError: Weights or a tensor do not fit the device.

    Attributes:
        program: The toolkit's program.
        steps: The launches in order.
        places: For every intermediate buffer its arena and the offset in it.
        arenas: Sizes of the arenas.
        constants: Constants of this program.
        may_fault: Whether a kernel may report a failure.
        programs: The compiled OpenCL programs by key.
    """

    def __init__(
        self, program: Program, device: Device, tuning: Tuning, weights: Constants, fuse: bool
    ) -> None:
        self.program = program
        outputs = {o.root for o in program.outputs if o is not None}
        steps: Sequence[Step] = program.steps
        if fuse:
            steps = chains.fuse(steps, outputs)
        self.steps = [chains.launch(step, tuning) for step in steps]
        external = {o for o in program.owned if o is not None} | set(program.inputs)
        limits = device.limits
        self.places, self.arenas = _plan(
            self.steps, external, outputs, limits.alignment, limits.allocation_bytes
        )
        if self.arenas and max(self.arenas) > limits.allocation_bytes:
            raise DeviceMemoryError(
                f"Device 'OPENCL.{device.id}' cannot hold an intermediate tensor of "
                f"{max(self.arenas)} bytes: its largest buffer has {limits.allocation_bytes}. Use "
                "smaller inputs, or another device for this part."
            )
        self.constants = Constants(device, weights)
        for step in self.steps:
            for arg in step.args:
                if isinstance(arg, Operand) and arg.const is not None:
                    self.constants.buffer(arg)
        self.may_fault = any(arg is FAULT for step in self.steps for arg in step.args)
        self.programs = device.programs.get(self.launch(step).program for step in self.steps)

    @staticmethod
    def launch(step: Step) -> Launch:
        """The launch of a planned step."""
        if not isinstance(step.fn, Launch):
            raise TypeError(f"{step.fn!r} is no launch")
        return step.fn

    @property
    def nbytes(self) -> int:
        """Bytes of all arenas."""
        return sum(self.arenas)


def _plan(
    steps: Sequence[Step],
    external: set[Operand],
    outputs: set[Operand],
    alignment: int,
    most: int,
) -> tuple[dict[Operand, tuple[int, int]], list[int]]:
    """Places of all intermediate buffers, by liveness; outputs live on after the last step."""
    lives: dict[Operand, list[int]] = {}
    for number, step in enumerate(steps):
        for arg in step.args:
            if not isinstance(arg, Operand) or arg.const is not None or arg.root in external:
                continue
            lives.setdefault(arg.root, [number, number])[1] = number
    for operand in outputs & lives.keys():
        lives[operand][1] = len(steps)
    # Sizes that are multiples of the alignment make all offsets multiples of it.
    sizes = {o: -(-max(o.nbytes, 1) // alignment) * alignment for o in lives}
    groups = _fitting([(o, (sizes[o], lives[o][0], lives[o][1])) for o in lives], most)
    places: dict[Operand, tuple[int, int]] = {}
    arenas: list[int] = []
    for number, (group, offsets, total) in enumerate(groups):
        arenas.append(total)
        for (operand, _), offset in zip(group, offsets, strict=True):
            places[operand] = number, offset
    return places, arenas


_Group = list[tuple[Operand, Interval]]


def _fitting(group: _Group, most: int) -> list[tuple[_Group, list[int], int]]:
    """Arenas of at most ``most`` bytes; one that is larger is divided among two.

    A single tensor that does not fit stays as it is: its allocation says so.
    """
    if not group:
        return []
    offsets, total = place([interval for _, interval in group])
    if total <= most or len(group) == 1:
        return [(group, offsets, total)]
    ordered = sorted(group, key=lambda item: -item[1][0])
    return _fitting(ordered[::2], most) + _fitting(ordered[1::2], most)
