"""A program bound to memory: arrays in place of operands, ready to be walked."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any

import numpy as np

from partita.contract.execution import ExecutedStep
from partita.errors import InferCancelledError
from partita.lowering import Array, Operand, OpRecord, OtherSizes, Program, ProgramMaker, Subgraph
from partita.lowering.program import Spec, Step, plain
from partita.lowering.recently_used import RecentlyUsed
from partita.lowering.target import MOST_KEPT_BYTES
from partita.tensors.sequence_values import boxed, copied, unboxed
from partita_cpu.runtime.call_layout import CallLayout, Place, address_of
from partita_cpu.runtime.call_table import Stretch, Walker
from partita_cpu.runtime.kernel_loading import callable_of
from partita_cpu.runtime.loop_body import LoopBody
from partita_cpu.runtime.program_memory import Memory, aligned_empty, lent_arena
from partita_cpu.threads.step_team import PARALLEL_WORK, Team

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Times = list[tuple[OpRecord, int, int]]
"""Operation, wall time and CPU time (of the calling thread) in nanoseconds."""

_BYTE = np.dtype(np.uint8)

_FEW_SURPRISES = 4
"""A runner expects sizes as long as they are others at most so often, or in one of so many runs."""

_ARGUMENT_BYTES = 400
"""About what Python keeps for an argument of a bound call."""


class GraphRunner:
    """Runs one graph for one request: owns arenas and outputs, picks the program for the shapes.

    Args:
        specializer: Makes the programs.
        team: The threads that large steps are shared among.
        times: Where to note what each operation took, or ``None``.
        most_bytes: What programs of shapes seen before may take, bound to memory; all of them work
            in the same arena, which is as large as the largest needs and not counted.
        cancelled: Set while a run is to end early: each iteration of a loop looks at it.
        in_place: By output the input whose memory it may be given.

    Attributes:
        bound_programs: Those of the shapes seen last.
    """

    def __init__(
        self,
        specializer: ProgramMaker,
        team: Team,
        times: Times | None = None,
        most_bytes: int = MOST_KEPT_BYTES,
        cancelled: Event | None = None,
        in_place: Mapping[int, int] | None = None,
    ) -> None:
        self._specializer = specializer
        self._cancelled = cancelled or Event()
        self._in_place = in_place or {}
        self._team = team
        self._times = times
        self._arena = aligned_empty((0,), _BYTE)
        self.bound_programs: RecentlyUsed[int, BoundProgram] = RecentlyUsed(
            most_bytes, lambda bound: bound.kept_bytes
        )
        self._last_specs: list[Spec] = []
        self._last_values: list[bytes] = []
        self._last: BoundProgram | None = None
        self._explained: tuple[ExecutedStep, ...] = ()  # of what is not held here any more
        self._plain: GraphRunner | None = None
        self._runs = self._surprises = 0

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Computes the graph.

        Args:
            inputs: One array per graph input; read in place where it is contiguous, and not kept.
            outputs: Arrays to write to, per graph output, or ``None`` for memory of this runner.
                One of the wrong shape is an error.

        Returns:
            The outputs; those not given are valid until the next run.

        Raises:
            InferCancelledError: The run is to end early.
        """
        if self._plain is not None and self._gave_up():
            return self._plain.run(inputs, outputs)
        arrays = [a if a.flags.carray else plain(a) for a in inputs]
        specs = [(a.shape, a.dtype) for a in arrays]
        values = [arrays[i].tobytes() for i in self._specializer.value_inputs]
        if self._last is not None and specs == self._last_specs and values == self._last_values:
            bound = self._last
        else:
            bound = self._last = self._bind(arrays)
            self._last_specs, self._last_values = specs, values
        return self.expecting(functools.partial(bound.run, arrays, outputs), arrays, outputs)

    def expecting(
        self,
        call: Callable[[], list[Array]],
        inputs: Sequence[Array],
        outputs: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """Makes a call for the graph; where a size is not as expected, a program for any does it.

        Args:
            call: Computes the graph of the inputs.
            inputs: As :meth:`run` takes them.
            outputs: The same.

        Raises:
            InferCancelledError: The run is to end early.
        """
        if self._cancelled.is_set():
            raise InferCancelledError("The request was cancelled.")
        self._runs += 1
        if self._plain is None or not self._gave_up():
            try:
                return call()
            except OtherSizes:
                self._surprises += 1
                self._plain = self._plain or self._without_expectations()
        return self._plain.run(inputs, outputs)

    def program_for(self, arrays: Sequence[Array]) -> Program:
        """The program that a run on these arrays would be."""
        return self._specializer.program_for(arrays)

    def new_outputs(self, program: Program) -> list[Array]:
        """Memory for what a program computes, with arbitrary content."""
        made = [operand for operand in program.outputs if operand is not None]
        return [aligned_empty(operand.shape, operand.dtype) for operand in made]

    def _without_expectations(self) -> GraphRunner:
        plain = self._specializer.plain
        if plain is None:
            raise RuntimeError("a program expects sizes that nobody told")
        most = self.bound_programs.most_bytes
        return GraphRunner(plain, self._team, self._times, most, self._cancelled)

    def _gave_up(self) -> bool:
        """Whether expecting sizes costs more runs than it saves."""
        few, surprises = _FEW_SURPRISES, self._surprises
        return surprises > few and surprises * few > self._runs

    def bind(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        scratch: Array | None = None,
    ) -> BoundProgram | None:
        """A program bound to these arrays for good, whose calls compute the outputs.

        They hold for the present elements of the graph's value inputs. ``None`` where a run is more
        than calls.

        Args:
            inputs: One array per graph input.
            outputs: One array per graph output.
            scratch: Bytes to work in while the calls run; by default memory of their own.
        """
        if self._times is not None:
            return None
        arrays = _in_place(inputs)
        if arrays is None or not all(array.flags.carray for array in outputs):
            return None
        program = self._specializer.program_for(arrays)
        self.bound_programs.discard(id(program))
        self._last = None
        arena = lent_arena(scratch, program.arena_bytes)
        if arena is None:
            arena = self._arena_for(program)
        elif not len(self.bound_programs):
            self.close()
        bound = BoundProgram(program, self._team, None, arena, in_place=self._in_place)
        if not bound.settle(arrays, outputs):
            return None
        self._explained = _explained(program)
        return bound

    def leave_results(self) -> None:
        """Writes to what the last run returned no more.

        Its program is bound to other memory when its shapes come again.
        """
        if self._last is not None:
            self._explained = self._last.explain()
            self.bound_programs.discard(id(self._last.program))
            self._last = None

    def explain(self) -> tuple[ExecutedStep, ...]:
        """The kernels of the last run, in order; none before the first one."""
        return self._explained if self._last is None else self._last.explain()

    @property
    def value_inputs(self) -> tuple[int, ...]:
        """Indices of the inputs whose elements decide what is run, as far as they are known."""
        return self._specializer.value_inputs

    @property
    def kept_bytes(self) -> int:
        """What is kept for all shapes seen before, and the arena."""
        plain = 0 if self._plain is None else self._plain.kept_bytes
        return self.bound_programs.nbytes + self._arena.nbytes + plain

    def close(self) -> None:
        """Frees the memory; a later run takes new."""
        self.bound_programs.clear()
        self._last = self._plain = None
        self._arena = aligned_empty((0,), _BYTE)

    def _bind(self, arrays: Sequence[Array]) -> BoundProgram:
        program = self._specializer.program_for(arrays)
        bound = self.bound_programs.get(id(program))
        if bound is None:
            arena = self._arena_for(program)
            bound = BoundProgram(
                program,
                self._team,
                self._times,
                arena,
                self.bound_programs.most_bytes,
                self._cancelled,
                self._in_place,
            )
            self.bound_programs.add(id(program), bound)
        return bound

    def _arena_for(self, program: Program) -> Array:
        """The arena. If it is too small, what is bound to it is bound anew when it comes again.

        It grows to the double at least, so that this happens a few times only; what no program
        uses of it is never touched, and takes no memory.
        """
        if self._arena.nbytes < program.arena_bytes:
            grown = 2 * self._arena.nbytes
            self.bound_programs.clear()
            self._arena = aligned_empty((max(grown, program.arena_bytes),), _BYTE)
        return self._arena


class BoundProgram:
    """The calls of one program on one request's memory.

    Args:
        program: Steps for inputs of certain shapes; shared by requests, not changed.
        team: The threads that large steps are shared among.
        times: Where to note what each operation took, or ``None``.
        arena: At least as many bytes as the program's intermediate tensors take.
        most_bytes: What may be kept of the rest of the program for sizes that the run tells.
        cancelled: As runners of bodies and of the rest take it.
        in_place: By output the input whose memory it may be given.

    Attributes:
        program: The program.
    """

    def __init__(
        self,
        program: Program,
        team: Team,
        times: Times | None,
        arena: Array,
        most_bytes: int = MOST_KEPT_BYTES,
        cancelled: Event | None = None,
        in_place: Mapping[int, int] | None = None,
    ) -> None:
        self._program = self.program = program
        self._cancelled = cancelled
        self._in_place = in_place or {}
        self._team = team
        self._times = times
        self._most_bytes = most_bytes
        self._results: dict[Operand, Array] = {}
        self._inputs: list[Array | None] = [None] * len(program.inputs)
        self._late = {operand for step in program.steps for operand in step.results}
        self._buffers: list[Array | None] = [None] * len(program.outputs)  # made when they serve
        self._outputs: list[Array | None] = list(self._buffers)
        self._memory = Memory(program, arena, self._buffers)
        layout = _layout_of(program, team)
        self._input_places, self._output_places = layout.inputs, layout.outputs
        self._walker: Walker | None = None
        if team.pool is not None:
            slots = layout.slots(program, self._memory.start, self._buffers)
            self._walker = Walker(program.steps, layout, slots, team.pool, self._memory)
        self._calls: dict[int, Call] = {
            number: self._call(step, self._memory.arguments(number))
            for number, step in enumerate(program.steps)
            if not layout.taken[number]
        }
        self._held = self._places_held()
        rest = program.rest
        self._rest = None if rest is None else self._runner(rest.specializer, times)
        arguments = sum(len(step.args) for step in program.steps)
        self._own_bytes = _ARGUMENT_BYTES * arguments
        self._to_buffers = False  # whether steps write all outputs to the buffers
        self._direct = program.is_direct

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, roughly: its calls, its outputs, and the same of its rest."""
        return self._own_bytes + (0 if self._rest is None else self._rest.kept_bytes)

    def explain(self) -> tuple[ExecutedStep, ...]:
        """The kernels, in order, those too that a run itself made known."""
        return _explained(self._program) + (() if self._rest is None else self._rest.explain())

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array | None] | None) -> list[Array]:
        """Walks the calls; see :meth:`GraphRunner.run`."""
        self._put_inputs(inputs)
        try:
            return self._run(inputs, outputs)
        finally:
            self.let_go()

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array | None] | None) -> list[Array]:
        if outputs is not None or not self._to_buffers:
            self._take_outputs(inputs, outputs)
            self._to_buffers = outputs is None
        self._walk()
        if outputs is None and self._direct:
            return list(self._buffers)  # type: ignore[arg-type]  # all have one
        return self._collect(outputs)

    def settle(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Puts arrays in their places; whether a run is then nothing but calls."""
        self._put_inputs(inputs)
        self._take_outputs(inputs, outputs)
        return self._direct and all(map(operator.is_, self._outputs, outputs))

    def _put_inputs(self, inputs: Sequence[Array]) -> None:
        for index, array in enumerate(inputs):
            self._inputs[index] = array
            self._patch(self._input_places[index], array)

    def let_go(self) -> None:
        """Keeps no input after a run: their addresses stay, and are used if they come again."""
        self._inputs = [None] * len(self._inputs)
        for _, places in self._held:
            for number, position in places:
                self._put(number, position, None)

    def _places_held(self) -> list[tuple[int, list[Place]]]:
        """The inputs that calls of Python have as arguments, and where."""
        found = []
        for index, places in enumerate(self._input_places):
            walker = self._walker
            held = [p for p in places if walker is None or not walker.reaches(p[0], p[1])]
            if held:
                found.append((index, held))
        return found

    def stretches(self) -> Sequence[Stretch]:
        """The calls of a run on the arrays that :meth:`settle` has put in place."""
        if self._walker is None:
            return [self._walk]
        return self._walker.stretches(self._calls, self)

    def repoint(self, inputs: Sequence[Array]) -> bool:
        """Lets calls that were handed out read other inputs; whether all of them can."""
        walker, arrays = self._walker, _in_place(inputs)
        if walker is None or arrays is None:
            return False
        for new, old in zip(arrays, self._inputs, strict=True):
            if old is None or new.shape != old.shape or new.dtype != old.dtype:
                return False
            if new is not old and any(
                np.may_share_memory(new, out) for out in self._outputs if out is not None
            ):
                return False
        places = [place for found in self._input_places for place in found]
        if not all(walker.reaches(number, position) for number, position in places):
            return False
        self._inputs = list(arrays)
        for found, array in zip(self._input_places, arrays, strict=True):
            self._patch(found, array)
        return True

    def _walk(self) -> None:
        if self._times is not None:
            self._run_timed(self._times)
        elif self._walker is not None:
            self._walker.run(self._calls)
        else:
            for fn, args in self._calls.values():
                fn(*args)

    def _runner(self, specializer: ProgramMaker, times: Times | None = None) -> GraphRunner:
        return GraphRunner(specializer, self._team, times, self._most_bytes, self._cancelled)

    def _buffer(self, index: int) -> Array | None:
        """The program's own memory of an output, made when a run is first given none that fits.

        ``None`` for an output that a run or the rest makes.
        """
        operand = self._program.outputs[index]
        made = self._buffers[index]
        if made is None and operand is not None and operand not in self._late:
            made = self._buffers[index] = aligned_empty(operand.shape, operand.dtype)
            self._own_bytes += made.nbytes
        return made

    def _call(self, step: Step, args: Sequence[Any]) -> Call:
        """A call of Python; one through the team or :meth:`_keep` has an argument in front."""
        args = [
            LoopBody(self._runner(arg.specializer)) if isinstance(arg, Subgraph) else arg
            for arg in args
        ]
        if step.results:
            return self._keep, (step, *args)
        if not step.shares:
            return step.fn, tuple(args)
        # A team clears nothing; one thread alone does not need it.
        if step.work >= PARALLEL_WORK and self._team.size > 1 and step.cleared < 0:
            return self._team.run, (callable_of(step.fn, step.args), *args)
        return callable_of(step.fn, step.args), (*args, 0, 1)

    def _keep(self, step: Step, *args: Any) -> None:
        """Runs a step whose result shapes only the run tells, and keeps its results."""
        for operand, array in zip(step.results, step.fn(*args), strict=True):
            wanted = None if operand.dtype.hasobject else operand.dtype
            self._results[operand] = plain(np.asarray(array, dtype=wanted))

    def _patch(self, places: Sequence[Place], array: Array) -> None:
        for number, position in places:
            if self._walker is not None and self._walker.patch(number, position, array):
                continue
            shape = self._program.steps[number].args[position].shape
            self._put(number, position, array if array.shape == shape else array.reshape(shape))

    def _put(self, number: int, position: int, thing: Any) -> None:
        """Gives a call of Python another argument."""
        fn, args = self._calls[number]
        shift = position + (fn in (self._keep, self._team.run))
        self._calls[number] = fn, (*args[:shift], thing, *args[shift + 1 :])

    def _take_outputs(self, inputs: Sequence[Array], given: Sequence[Array | None] | None) -> None:
        """Lets steps write to the given arrays; not to one that an input still lies in."""
        lying = [] if given is None else [_span_of(array) for array in inputs]
        for index, places in enumerate(self._output_places):
            operand, array = self._program.outputs[index], None
            if self._program.owned[index] is None:
                continue
            if given is not None and operand is not None and places:
                wanted = given[index]
                source = self._in_place.get(index)
                same = None if source is None else inputs[source].shape == operand.shape
                if wanted is not None and _fits(wanted, operand, lying, source if same else None):
                    array = wanted
            if array is None:
                array = self._buffer(index)
            if array is not None and array is not self._outputs[index]:
                self._outputs[index] = array
                self._patch(places, array)

    def _collect(self, given: Sequence[Array | None] | None) -> list[Array]:
        program = self._program
        collected: list[Array | None] = [None] * len(program.outputs)
        for index, operand in enumerate(program.outputs):
            if operand is None:
                continue
            wanted = None if given is None else given[index]
            if program.owned[index] is not None and operand not in self._results:
                source = self._outputs[index]
            else:
                source = self._array(operand)
                if wanted is None:
                    wanted = self._buffer(index)
            collected[index] = _deliver(source, wanted)
        if program.rest is not None and self._rest is not None:
            outputs = None if given is None else [given[i] for i in program.rest.outputs]
            arrays = [self._array(operand) for operand in program.rest.inputs]
            for index, array in zip(
                program.rest.outputs, self._rest.run(arrays, outputs), strict=True
            ):
                collected[index] = array
        return collected  # type: ignore[return-value]  # every output is computed here or in rest

    def _array(self, operand: Operand) -> Array:
        """The present elements of any operand that outlives the steps."""
        if operand.const is not None:
            return operand.const
        if operand in self._results:
            return self._results[operand]
        root = operand.root
        for index, given in enumerate(self._program.inputs):
            if given is root:
                return self._inputs[index].reshape(operand.shape)  # type: ignore[union-attr]
        for index, owner in enumerate(self._program.owned):
            if owner is root:
                return self._outputs[index].reshape(operand.shape)  # type: ignore[union-attr]
        return self._memory.array(operand)

    def _run_timed(self, times: Times) -> None:
        clock, cpu_clock = time.perf_counter_ns, time.thread_time_ns
        for op in self._program.ops:
            times.append((op, 0, 0))
        for number, step in enumerate(self._program.steps):
            start, cpu_start = clock(), cpu_clock()
            if self._walker is None:
                fn, args = self._calls[number]
                fn(*args)
            else:
                self._walker.run_one(number, self._calls)
            times.append((step.op, clock() - start, cpu_clock() - cpu_start))


def _layout_of(program: Program, team: Team) -> CallLayout:
    """The layout of a program's calls; if the program was recorded, that of its class."""
    if team.pool is not None and program.recorded is not None:
        made: CallLayout = program.recorded.made
        return made
    return CallLayout(program, team.pool is not None)


def _in_place(arrays: Sequence[Array]) -> list[Array] | None:
    """Arrays as kernels take them; ``None`` if one would have to be copied."""
    taken = [plain(array) for array in arrays]
    pairs = zip(taken, arrays, strict=True)
    return taken if all(new.ctypes.data == old.ctypes.data for new, old in pairs) else None


def _span_of(array: Array) -> tuple[int, int]:
    """Where a contiguous array begins and ends."""
    start = address_of(array)
    return start, start + array.nbytes


def _fits(
    array: Array, operand: Operand, lying: Sequence[tuple[int, int]], source: int | None
) -> bool:
    """Whether steps can write an output to an array: not where an input lies, but for one as whole.

    Args:
        array: The array.
        operand: The output.
        lying: Where all inputs lie.
        source: The input of the same shape that the output may be written over, if there is one.
    """
    if array.shape != operand.shape or array.dtype != operand.dtype or not array.flags.carray:
        return False
    start, end = span = _span_of(array)
    shared = [i for i, (low, high) in enumerate(lying) if max(low, start) < min(high, end)]
    return not shared or (shared == [source] and lying[shared[0]] == span)


def _deliver(source: Array | None, wanted: Array | None) -> Array:
    """Brings an output to where the caller wants it."""
    if source is None:
        raise RuntimeError("an output has no memory")
    if wanted is None or wanted is source:
        return source
    if wanted.dtype.hasobject and wanted.ndim == 0:  # perhaps a sequence, whose arrays are copied
        source = np.asarray(boxed(copied(unboxed(source))))
    np.copyto(wanted, source.reshape(wanted.shape))
    return wanted


def _explained(program: Program) -> tuple[ExecutedStep, ...]:
    return tuple(ExecutedStep(step.op.name, step.fn.__name__) for step in program.steps)
