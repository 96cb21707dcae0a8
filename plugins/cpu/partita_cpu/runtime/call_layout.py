"""The layout of a program's calls in memory, computed once for all programs of a class of shapes.

The memory has int64 words: the rows of the call table, the arguments of all calls, one call behind
another, and the tables of integers that some arguments are::

    arguments of a call: | function | argument | argument | ...
    an int or float:     | the number, or its bits |
    an array, 1-D:       | 0 | 0 | size | item size | address | shape[0] | stride[0] |

Numbers and addresses in the arena come from the program; a run writes only the addresses of its
inputs and outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita.errors import CompileError
from partita.lowering import Array, Operand, Program
from partita.lowering.memory_plan import ALIGNMENT
from partita.lowering.program import Spec, plain
from partita.lowering.recording.program_form import is_computed
from partita.lowering.shapes.symbolic_size import Size, holds_sizes
from partita.tensors.array_state import data_address
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.foreign_call import invoke
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.trampoline import append_call
from partita_cpu.jit.trampoline import fill as fill_slots
from partita_cpu.runtime.kernel_loading import load_kernels
from partita_cpu.threads.thread_pool import ROW

Place = tuple[int, int]
"""Number of a step, and of one of its arguments."""


class Facts(NamedTuple):
    """What is told of a program once, for all requests.

    Attributes:
        results: Shape and type of each output; ``None`` where only the run tells.
        addresses: Words of the calls' memory, and what they hold: addresses of what was computed of
            sizes.
    """

    results: Sequence[Spec | None]
    addresses: Sequence[tuple[int, int]]


class CallLayout:
    """The places of all call arguments in memory; programs of a class differ in values alone.

    Args:
        program: The program. If it has symbolic sizes, the layout is that of every program with
            numbers in their places.
        walks: Whether a thread pool makes calls of compiled kernels; else Python makes all calls.

    Attributes:
        is_native: For each step whether a thread pool calls it.
        python_steps: The numbers of the steps that Python calls.
        arguments: How many all steps have.
        segments: Runs of steps that a thread pool calls, and single ones that Python calls: the
            numbers of the first step and of the one after the last.
        inputs: For each input the arguments that read it.
        outputs: For each output the arguments in whose memory it is made.
        owned: For each output whether steps make it in memory of its own.
        is_direct: Whether steps make all outputs so.
        patched: The places in memory of the addresses of these arguments, of steps that a thread
            pool calls.
        python_inputs: The inputs that calls of Python have as arguments, and where.
        input_words: For each input the places of its address; ``None`` for those of Python.
        output_words: The same for each output.
    """

    def __init__(self, program: Program, walks: bool) -> None:
        entries = load_kernels(program)
        self.is_native = [walks and entry is not None for entry in entries]
        self.segments = _segments(self.is_native)
        self.python_steps = [number for number, native in enumerate(self.is_native) if not native]
        self.arguments = sum(len(step.args) for step in program.steps)
        self.inputs: list[list[Place]] = [[] for _ in program.inputs]
        self.outputs: list[list[Place]] = [[] for _ in program.outputs]
        self.owned = [owner is not None for owner in program.owned]
        self.is_direct = program.is_direct
        self.patched: dict[Place, int] = {}
        self._alive: list[Array] = []
        self._find_places(program)
        self._results = _Results(program)
        outside = {place for places in (*self.inputs, *self.outputs) for place in places}
        words = _Words(ROW * len(entries))
        for number, (step, entry) in enumerate(zip(program.steps, entries, strict=True)):
            if not self.is_native[number] or entry is None:
                continue
            row, values = ROW * number, words.values
            values[row], values[row + 1] = entry.trampoline, 8 * len(values)
            words.in_memory.append(row + 1)
            for position, word in enumerate(append_call(values, entry, step.args)):
                if word:
                    place = number, position
                    if place in outside:
                        self.patched[place] = word
                    else:
                        self._put_address(program, place, word, words)
                if position == step.cleared:
                    words.copy(word, row + 3)
                    values[row + 4] = -(-step.args[position].nbytes // ALIGNMENT)
        self.python_inputs = self._python_inputs()
        self.input_words, self.output_words = map(self._words_of, (self.inputs, self.outputs))
        self._computed = words.computed
        self._form = _Form(words)

    def new_memory(self, arena: int) -> tuple[Array, Callable[[Program], None]]:
        """Memory for the calls of a program.

        Args:
            arena: Where intermediate tensors lie.

        Returns:
            The memory, and what writes there what programs of the class differ in, but for
            addresses of inputs and outputs; it is called with the program of this layout, or with
            one that was recorded with it.
        """
        memory = self._form.new_memory(arena)
        return memory, functools.partial(self._fill, memory.data, self._form.filler(memory, arena))

    def _fill(self, words: memoryview, fill: Callable[[Array], None], program: Program) -> None:
        if program.made is not self:
            return
        fill(program.numbers)
        for word, address in self.facts(program).addresses:
            words[word] = address

    def facts(self, program: Program) -> Facts:
        """What is told of a program once.

        Args:
            program: The program, or one that was recorded with it.
        """
        facts: Facts | None = program.facts
        if facts is None:
            found = ((word, program.elements(*place)) for word, place in self._computed)
            addresses = [(word, data_address(elements)) for word, elements in found]
            facts = program.facts = Facts(self._results.of(program), addresses)
        return facts

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

    def _words_of(self, tensors: Sequence[Sequence[Place]]) -> list[list[int] | None]:
        """By tensor the places of its address; ``None`` where a call of Python has it."""
        found = ([self.patched.get(place, 0) for place in places] for places in tensors)
        return [words if all(words) else None for words in found]

    def _put_address(self, program: Program, place: Place, word: int, words: _Words) -> None:
        """Notes where an array lies that is no input or output."""
        arg = program.steps[place[0]].args[place[1]]
        if isinstance(arg, np.ndarray):
            self._alive.append(plain(arg))
            words.values[word] = data_address(self._alive[-1])
        elif arg.const is None:
            words.values[word] = program.offsets[arg.root]
            words.in_arena.append(word)
        elif arg.const.dtype != object or not holds_sizes(arg.const):
            words.values[word] = data_address(arg.const)
        elif is_computed(arg.const) or arg.dtype != np.int64:
            words.computed.append((word, place))
        else:
            words.tables.append((word, arg.const.reshape(-1).tolist()))


class _Words:
    """What the words of calls are, while they are collected.

    Args:
        rows: How many the rows take.

    Attributes:
        values: A number for each, or a size that stands for others.
        in_arena: Those that are distances from the start of the arena.
        in_memory: Those that are distances in bytes from the first word.
        tables: Those that are to be the address of a table, and its numbers.
        computed: Those that are to be the address of what is computed of sizes.
    """

    def __init__(self, rows: int) -> None:
        self.values: list[Any] = [0] * rows
        self.in_arena: list[int] = []
        self.in_memory: list[int] = []
        self.tables: list[tuple[int, list[Any]]] = []
        self.computed: list[tuple[int, Place]] = []

    def copy(self, word: int, to: int) -> None:
        """Makes another word the same as one that was added last."""
        self.values[to] = self.values[word]
        if self.in_arena[-1:] == [word]:
            self.in_arena.append(to)

    def add_tables(self) -> None:
        """Adds the tables themselves, equal ones once."""
        known: dict[tuple[Any, ...], int] = {}
        for word, numbers in self.tables:
            same = tuple((n.place,) if type(n) is Size else n for n in numbers)
            if same not in known:
                known[same] = len(self.values)
                self.values += numbers
            self.values[word] = 8 * known[same]
            self.in_memory.append(word)


class _Form:
    """What words are the same in all programs of a class, and what the others are.

    Args:
        words: The words.
    """

    def __init__(self, words: _Words) -> None:
        words.add_tables()
        values, in_arena = words.values, set(words.in_arena)
        sized = [n for n, value in enumerate(values) if type(value) is Size]
        sized.sort(key=in_arena.__contains__)
        fixed = [0 if type(value) is Size else value for value in values]
        # Of thirty thousand words of a decoder a thousand differ.
        self._fixed, which = np.unique(np.array(fixed, np.int64), return_inverse=True)
        self._which = which.astype(np.min_scalar_type(self._fixed.size))
        self._in_arena = np.array(sorted(in_arena.difference(sized)), np.int64)
        self._in_memory = np.array(words.in_memory, np.int64)
        self._sized = np.array(sized, np.int32)
        self._places = np.array([values[n].place for n in sized], np.int32)
        self._first_in_arena = sum(n not in in_arena for n in sized)

    def new_memory(self, arena: int) -> Array:
        """See :class:`CallLayout`."""
        memory: Array = self._fixed[self._which]
        memory[self._in_arena] += arena
        memory[self._in_memory] += data_address(memory)
        return memory

    def filler(self, memory: Array, arena: int) -> Callable[[Array], None]:
        """What fills in what sizes come to, which it is called with, by their places."""
        if not self._sized.size:
            return _nothing
        args = memory, memory, self._sized, self._places, self._first_in_arena, arena
        entry = entry_of(fill_words, args)
        if entry is None:
            raise CompileError("Device CPU cannot compile what fills in sizes.")
        slots = np.zeros(entry.slots, np.int64)
        fill_slots(slots, entry, args)
        words, address, trampoline = slots.data, data_address(slots), entry.trampoline
        call = invoke()

        def fill(numbers: Array) -> None:
            words[_NUMBERS] = data_address(numbers)
            call(trampoline, address, 0, 1)

        return fill


def _nothing(numbers: Array) -> None:
    """Fills in nothing."""


@jit
def fill_words(
    numbers: Array,
    memory: Array,
    words: Array,
    places: Array,
    first: int,
    arena: int,
    tid: int,
    nt: int,
) -> None:
    """Writes numbers to memory.

    Args:
        numbers: int64, by place.
        memory: int64.
        words: int32; where in memory they go.
        places: int32; which they are.
        first: The first of those to which the address of the arena is added.
        arena: That address.
        tid: Not used: one thread calls it.
        nt: The same.
    """
    for at in range(first):
        memory[words[at]] = numbers[places[at]]
    for at in range(first, words.size):
        memory[words[at]] = numbers[places[at]] + arena


_WORDS, _INDICES = np.zeros(1, np.int64), np.zeros(1, np.int32)
_NUMBERS = 5  # the slot of the address of an array that is a call's first argument
CALLS = ((fill_words, (_WORDS, _WORDS, _INDICES, _INDICES, 0, 0)),)
"""What is compiled here, and arguments like those that it is called with."""


class _Results:
    """Shapes and types of the outputs of all programs of a class.

    Args:
        program: One of them, or the one with symbolic sizes.
    """

    def __init__(self, program: Program) -> None:
        self._forms: list[tuple[slice, Any] | None] = []
        sizes: list[Any] = []
        late = program.late
        for operand in program.outputs:
            if operand is None or operand in late:
                self._forms.append(None)
                continue
            self._forms.append((slice(len(sizes), len(sizes) + operand.ndim), operand.dtype))
            sizes += operand.shape
        self._varying = [(n, size.place) for n, size in enumerate(sizes) if type(size) is Size]
        self._sizes = [0 if type(size) is Size else size for size in sizes]

    def of(self, program: Program) -> list[Spec | None]:
        """Shape and type of each; ``None`` where only the run tells."""
        sizes = self._sizes
        if self._varying:
            sizes, number = sizes.copy(), program.numbers.item
            for index, place in self._varying:
                sizes[index] = number(place)
        return [None if form is None else (tuple(sizes[form[0]]), form[1]) for form in self._forms]


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
