"""The arguments of a plan's launches on one request's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering import Operand
from partita_opencl.cuda.argument_table import Argument
from partita_opencl.device.device import Device
from partita_opencl.launches.steps import (
    FAULT,
    REPORTS,
    STALL,
    ConcatenatedConstants,
    Counters,
    TensorMapBuffer,
)
from partita_opencl.runtime.commands import Commands, SingleItemKernel
from partita_opencl.runtime.execution_plan import Plan

Use = tuple[int, int]
"""A launch and the argument that a buffer is given to."""


class LaunchArguments:
    """What each launch of a plan is given; buffers of inputs and outputs can be replaced.

    Args:
        plan: Launches, and the sizes of what they write; shared by requests.
        device: The one that the plan is for.
        slots: Buffers for intermediate tensors, as many and as large as the plan says at least.

    Attributes:
        slots: Those that the plan uses.
        values: By launch a value for each argument; of an input or output ``None`` before a run
            brings it.
        reported: The buffer that kernels report to; ``None`` where none of them can.
        left_out: Launches that would copy a buffer to itself.
    """

    def __init__(self, plan: Plan, device: Device, slots: Sequence[Any]) -> None:
        self._plan, self._device = plan, device
        self.slots: Sequence[Any] = list(slots[: len(plan.sizes)])
        self._buffers: dict[Operand, Any] = {}
        self._uses: dict[Operand, list[Use]] = {}
        self._described_by: dict[Operand, list[SingleItemKernel]] = {}
        self._describers: list[SingleItemKernel] = []
        self._undescribed: set[SingleItemKernel] = set()  # those whose matrices are elsewhere now
        self._described_to: Commands | None = None  # whose addresses descriptions have
        reports = plan.may_fault or plan.needs_device
        self.reported = self._zeros(REPORTS) if reports else None
        self._counters = self._zeros(plan.counters) if plan.counters else None
        self._changing = {o for o in (*plan.program.inputs, *plan.program.owned) if o is not None}
        self.values = [self._of_launch(number) for number in range(len(plan.steps))]
        self._copies = [
            (number, *launch.unless_same)
            for number, step in enumerate(plan.steps)
            if (launch := plan.launch(step)).unless_same is not None
        ]
        self.left_out: frozenset[int] = frozenset()
        self._listeners: list[Commands] = []

    def add_listener(self, commands: Commands) -> None:
        """Passes all changes from now on to commands, which were made of the present values."""
        self._listeners.append(commands)

    def buffer(self, operand: Operand) -> Any:
        """The buffer that an operand lies in; ``None`` before a run brings it."""
        if operand.is_constant:
            return self._plan.constants.buffer(operand)
        root = operand.root
        found = self._buffers.get(root)
        if found is None and root not in self._changing:
            found = self._buffers[root] = self.slots[self._plan.slots[root]]
        return found

    def rebind(self, operand: Operand, buffer: Any) -> None:
        """Gives kernels another buffer for an input or output."""
        if self._buffers.get(operand) is not buffer:
            self._buffers[operand] = buffer
            for number, position in self._uses.get(operand, ()):
                self.values[number][position] = buffer
                for commands in self._listeners:
                    commands.change(number, position, buffer)
            for describer in self._described_by.get(operand, ()):
                describer.arguments[1] = buffer
                self._undescribed.add(describer)

    def input_buffers(self) -> list[Any]:
        """The buffers of all inputs, ``None`` for those that no run brought so far."""
        return [self._buffers.get(operand) for operand in self._plan.program.inputs]

    def leave_copies_out(self) -> None:
        """Launches no copy from a buffer to itself."""
        values = self.values
        same = frozenset(n for n, x, y in self._copies if values[n][x] is values[n][y])
        if same != self.left_out:
            self.left_out = same
            for commands in self._listeners:
                commands.leave_out(same)

    def describe(self, commands: Commands) -> None:
        """Writes tensor maps for the copy engine, if matrices have moved."""
        untold = self._undescribed if self._described_to is commands else self._describers
        for describer in untold:
            commands.describe(describer)
        self._described_to = commands
        self._undescribed.clear()

    def _zeros(self, count: int) -> Any:
        return self._device.pool.allocate(4 * count, np.zeros(count, np.int32))

    def _of_launch(self, number: int) -> list[Argument]:
        step = self._plan.steps[number]
        found: list[Argument] = []
        for position, arg in enumerate(step.args):
            if isinstance(arg, Operand):
                found.append(self.buffer(arg))
                if not arg.is_constant and arg.root in self._changing:
                    self._uses.setdefault(arg.root, []).append((number, position))
            elif isinstance(arg, TensorMapBuffer):
                found.append(self._described(arg, step.args))
            elif isinstance(arg, (np.generic, np.ndarray)):
                found.append(arg.tobytes())
            else:
                found.append(self._shared(arg))
        return found

    def _described(self, how: TensorMapBuffer, args: Sequence[Any]) -> Any:
        """The buffer of a step's descriptions; they are written before the next run."""
        buffer = self._device.pool.allocate(TensorMapBuffer.BYTES * len(how.matrices))
        program = self._plan.programs[how.program]
        for number, matrix in enumerate(how.matrices):
            operand: Operand = args[matrix.position]
            sizes = (matrix.columns, matrix.rows, matrix.pitch, matrix.high)
            numbers = [np.int32(value).tobytes() for value in (number, *sizes)]
            describer = SingleItemKernel(
                program, "tensor_map", [buffer, self.buffer(operand), *numbers]
            )
            self._describers.append(describer)
            self._undescribed.add(describer)
            if not operand.is_constant and operand.root in self._changing:
                self._described_by.setdefault(operand.root, []).append(describer)
        return buffer

    def _shared(self, arg: Any) -> Any:
        """The argument itself, or the request's buffer that it stands for."""
        if arg is FAULT or arg is STALL:
            return self.reported
        if isinstance(arg, ConcatenatedConstants):
            return self._plan.constants.joined(arg)
        return self._counters if isinstance(arg, Counters) else arg
