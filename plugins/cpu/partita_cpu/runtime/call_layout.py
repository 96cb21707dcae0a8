"""The layout of a program's call arguments, computed once for all programs of a class of shapes.

The arguments of all calls are int64 words, the slots, one call behind another::

    slots of a call:     | function | argument | argument | ...
    an int or float:     | the number, or its bits |
    an array, 1-D:       | 0 | 0 | size | item size | address | shape[0] | stride[0] |

Numbers and addresses in the arena come from the program; a run writes only the addresses of its
inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering import Array, Operand, Program
from partita.lowering.memory_plan import ALIGNMENT
from partita.lowering.program import plain
from partita.lowering.shapes.symbolic_size import Size, holds_sizes
from partita.tensors.array_state import data_address
from partita_cpu.jit.trampoline import append_call
from partita_cpu.runtime.kernel_loading import load_kernels
from partita_cpu.threads.thread_pool import ROW

Place = tuple[int, int]
"""Number of a step, and of one of its arguments."""


class CallLayout:
    """The places of all call arguments in the slots; programs of a class differ in values alone.

    Args:
        program: The program. If it has symbolic sizes, the layout is that of every program with
            numbers in their places.
        walks: Whether a thread pool makes calls of compiled kernels; else Python makes all calls.

    Attributes:
        is_native: For each step whether a thread pool calls it.
        rows: The rows of a call table: trampolines, and arguments as distances from the first slot.
        python_steps: The numbers of the steps that Python calls.
        arguments: How many all steps have.
        segments: Runs of steps that a thread pool calls, and single ones that Python calls: the
            numbers of the first step and of the one after the last.
        inputs: For each input the arguments that read it.
        outputs: For each output the arguments in whose memory it is made.
        patched: The slots of these arguments' addresses, of steps that a thread pool calls.
        python_inputs: The inputs that calls of Python have as arguments, and where.
        input_slots: For each input the slots of its address; ``None`` for those of Python.
        output_slots: The same for each output.
        cleared: The steps before which something is cleared, and the slots of its addresses.
    """

    def __init__(self, program: Program, walks: bool) -> None:
        entries = load_kernels(program)
        self.is_native = [walks and entry is not None for entry in entries]
        self.rows = np.zeros((len(entries), ROW), np.int64)
        self.segments = _segments(self.is_native)
        self.python_steps = [number for number, native in enumerate(self.is_native) if not native]
        self.arguments = sum(len(step.args) for step in program.steps)
        self.inputs: list[list[Place]] = [[] for _ in program.inputs]
        self.outputs: list[list[Place]] = [[] for _ in program.outputs]
        self.patched: dict[Place, int] = {}
        self._alive: list[Array] = []
        self._tables: dict[int, Place] = {}
        self._find_places(program)
        outside = {place for places in (*self.inputs, *self.outputs) for place in places}
        cleared: list[tuple[int, int]] = []
        values: list[Any] = []
        in_arena: list[int] = []
        for number, (step, entry) in enumerate(zip(program.steps, entries, strict=True)):
            if not self.is_native[number] or entry is None:
                continue
            self.rows[number, :2] = entry.trampoline, 8 * len(values)
            for position, slot in enumerate(append_call(values, entry, step.args)):
                if slot:
                    place = number, position
                    if place in outside:
                        self.patched[place] = slot
                    else:
                        values[slot] = self._address(program, place, slot, in_arena)
                if position == step.cleared:
                    cleared.append((number, slot))
                    self.rows[number, 4] = -(-step.args[position].nbytes // ALIGNMENT)
        self.cleared = np.array(cleared, np.int64).reshape(-1, 2).T
        self._table_slots = np.array([*self._tables], np.int64)
        self._table_arguments = tuple(self._tables.values())
        self.python_inputs = self._python_inputs()
        self.input_slots, self.output_slots = map(self._slots_of, (self.inputs, self.outputs))
        self._words = _Words(values, frozenset(in_arena))

    def slots(self, program: Program, arena: int) -> Array:
        """The arguments of all calls, without addresses of inputs and outputs.

        Args:
            program: The program, or one that was recorded with it.
            arena: Where its intermediate tensors lie.
        """
        recorded = program.recorded
        slots = self._words.filled(None if recorded is None else recorded.numbers, arena)
        if recorded is not None and self._table_arguments:
            slots[self._table_slots] = recorded.addresses(self._table_arguments)
        return slots

    def _find_places(self, program: Program) -> None:
        """Notes which arguments lie in inputs and outputs."""
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

    def _python_inputs(self) -> list[tuple[int, list[Place]]]:
        """The arguments of calls of Python that are inputs, by input."""
        held = [[one for one in places if one not in self.patched] for places in self.inputs]
        return [(index, places) for index, places in enumerate(held) if places]

    def _slots_of(self, tensors: Sequence[Sequence[Place]]) -> list[list[int] | None]:
        """By tensor the slots of its address; ``None`` where a call of Python has it."""
        found = ([self.patched.get(place, 0) for place in places] for places in tensors)
        return [slots if all(slots) else None for slots in found]

    def _address(self, program: Program, place: Place, slot: int, in_arena: list[int]) -> Any:
        """Where an array lies; in the arena from its start, 0 if it depends on sizes."""
        arg = program.steps[place[0]].args[place[1]]
        if isinstance(arg, np.ndarray):
            self._alive.append(plain(arg))
            return data_address(self._alive[-1])
        if arg.const is not None:
            if arg.const.dtype == object and holds_sizes(arg.const):
                self._tables[slot] = place
                return 0
            return data_address(arg.const)
        in_arena.append(slot)
        return program.offsets[arg.root]


class _Words:
    """What slots hold: most of them the same for all sizes.

    Of those that differ, many hold the same word.

    Args:
        values: A number for each slot, some of them sizes that stand for others.
        in_arena: The slots whose number is a distance from the start of the arena.
    """

    def __init__(self, values: Sequence[Any], in_arena: frozenset[int]) -> None:
        fixed = list(values)
        known: dict[tuple[bool, int], int] = {}
        slots: list[int] = []
        chosen: list[int] = []
        for slot, value in enumerate(values):
            if type(value) is Size or slot in in_arena:
                word = slot in in_arena, value.place if type(value) is Size else -1 - value
                slots.append(slot)
                chosen.append(known.setdefault(word, len(known)))
                fixed[slot] = 0
        self._template = np.array(fixed, np.int64)
        self._slots, self._chosen = np.array(slots, np.int32), np.array(chosen, np.int32)
        self._words = np.array([0 if word >= 0 else -1 - word for _, word in known], np.int64)
        sized = [n for n, (_, word) in enumerate(known) if word >= 0]
        self._sized = np.array(sized, np.int32)
        self._places = np.array([[*known][n][1] for n in sized], np.int32)
        self._in_arena = np.array([n for n, (inside, _) in enumerate(known) if inside], np.int32)

    def filled(self, numbers: Array | None, arena: int) -> Array:
        """All slots.

        Args:
            numbers: What sizes come to, by their places; ``None`` if there are none.
            arena: Where the arena starts.
        """
        words = self._words.copy()
        if numbers is not None:
            words[self._sized] = numbers[self._places]
        words[self._in_arena] += arena
        slots = self._template.copy()
        slots[self._slots] = words[self._chosen]
        return slots


def _segments(is_native: Sequence[bool]) -> list[tuple[int, int]]:
    """Runs of native steps, and single ones that are not."""
    segments = []
    number = 0
    while number < len(is_native):
        last = number
        while last < len(is_native) and is_native[last]:
            last += 1
        last = max(last, number + 1)
        segments.append((number, last))
        number = last
    return segments
