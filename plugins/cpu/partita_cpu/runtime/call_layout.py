"""Where the arguments of a program's calls lie: found out once for all programs of a class."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from partita.lowering import Array, Operand, Program
from partita.lowering.memory_plan import ALIGNMENT
from partita.lowering.program import plain
from partita.lowering.shapes.symbolic_size import Size, holds_sizes
from partita_cpu.jit.trampoline import append_call
from partita_cpu.runtime.kernel_loading import load_kernels

Place = tuple[int, int]
"""Number of a step, and of one of its arguments."""


class CallLayout:
    """The table that a crew calls the steps of a program by: the same for others but for numbers.

    Args:
        program: The program. If it has symbolic sizes, the layout is that of every program with
            numbers in their places.
        walks: Whether a crew calls what is compiled; else Python calls all.

    Attributes:
        taken: For each step whether a crew calls it.
        first_slots: For each step the first of its slots.
        trampolines: For each step the address of its trampoline, or 0.
        parts: Runs of steps that a crew takes, and single ones that Python calls: first and behind
            the last one.
        inputs: For each input the arguments that read it.
        outputs: For each output the arguments in whose memory it is made.
        patched: The slots of these arguments' addresses, of steps that a crew calls.
        cleared: By step the slot of the address of what is cleared before, and its cache lines.
    """

    def __init__(self, program: Program, walks: bool) -> None:
        entries = load_kernels(program)
        self.taken = [walks and entry is not None for entry in entries]
        self.trampolines = np.zeros(len(entries), np.int64)
        self.first_slots = np.zeros(len(entries), np.int64)
        self.parts = _parts(self.taken)
        self.inputs: list[list[Place]] = [[] for _ in program.inputs]
        self.outputs: list[list[Place]] = [[] for _ in program.outputs]
        self.patched: dict[Place, int] = {}
        self.cleared: dict[int, tuple[int, int]] = {}
        self._kept: list[Array] = []
        self._tables: list[tuple[int, int, int]] = []
        self._made: list[tuple[int, int]] = []
        self._in_arena: list[int] = []
        self._find_places(program)
        values: list[Any] = []
        for number, (step, entry) in enumerate(zip(program.steps, entries, strict=True)):
            if not self.taken[number] or entry is None:
                continue
            self.first_slots[number] = len(values)
            self.trampolines[number] = entry.trampoline
            for position, slot in enumerate(append_call(values, entry, step.args)):
                if slot:
                    values[slot] = self._address(program, (number, position), slot)
                if position == step.cleared:
                    self.cleared[number] = slot, -(-step.args[position].nbytes // ALIGNMENT)
        self._arena = np.array(self._in_arena, np.int64)
        varying = [slot for slot, value in enumerate(values) if type(value) is Size]
        self._varying = np.array(varying, np.int64)
        self._sources = [values[slot].place for slot in varying]
        self._take = itemgetter(*self._sources) if len(varying) > 1 else None
        fixed = [0 if type(value) is Size else value for value in values]
        self._fixed = np.array(fixed, np.int64)

    def slots(self, program: Program, arena: int, buffers: Sequence[Array | None]) -> Array:
        """The arguments of all calls.

        Args:
            program: The program, or one that was recorded with it.
            arena: Where its intermediate tensors lie.
            buffers: Memory of its outputs.
        """
        slots = self._fixed.copy()
        if self._sources and program.recorded is not None:
            numbers = program.recorded.numbers
            found = self._take(numbers) if self._take else (numbers[self._sources[0]],)
            slots[self._varying] = found
        slots[self._arena] += arena
        words = slots.data
        for slot, number, position in self._tables:
            words[slot] = address_of(program.steps[number].args[position].const)
        for slot, index in self._made:
            buffer = buffers[index]
            words[slot] = 0 if buffer is None else address_of(buffer)
        return slots

    def _find_places(self, program: Program) -> None:
        """Which arguments lie in inputs and outputs."""
        inputs = {o: i for i, o in enumerate(program.inputs) if o.const is None}
        outputs = {o: i for i, o in enumerate(program.owned) if o is not None}
        for number, step in enumerate(program.steps):
            for position, arg in enumerate(step.args):
                if not isinstance(arg, Operand) or arg.const is not None:
                    continue
                root = arg.root
                if root in inputs:
                    self.inputs[inputs[root]].append((number, position))
                elif root in outputs:
                    self.outputs[outputs[root]].append((number, position))
        self._of_inputs = {place for places in self.inputs for place in places}
        self._of_outputs = {place: i for i, places in enumerate(self.outputs) for place in places}

    def _address(self, program: Program, place: Place, slot: int) -> Any:
        """Where an array lies; from the arena's start if it lies there, 0 if a run tells."""
        arg = program.steps[place[0]].args[place[1]]
        if isinstance(arg, np.ndarray):
            self._kept.append(plain(arg))
            return address_of(self._kept[-1])
        if arg.const is not None:
            if arg.const.dtype == object and holds_sizes(arg.const):
                self._tables.append((slot, *place))
                return 0
            return address_of(arg.const)
        if place in self._of_inputs:
            self.patched[place] = slot
            return 0
        if place in self._of_outputs:
            self.patched[place] = slot
            self._made.append((slot, self._of_outputs[place]))
            return 0
        self._in_arena.append(slot)
        return program.offsets[arg.root]


def address_of(array: Array) -> int:
    """Where an array's elements start."""
    start: int = array.__array_interface__["data"][0]
    return start


def _parts(taken: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of steps that are taken, and single ones that are not."""
    parts = []
    number = 0
    while number < len(taken):
        last = number
        while last < len(taken) and taken[last]:
            last += 1
        last = max(last, number + 1)
        parts.append((number, last))
        number = last
    return parts
