"""A program bound to one request's memory: operands become arrays, steps become calls."""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.contract.execution import ExecutedStep
from partita.lowering import Array, GraphBody, Operand, OpRecord, Program, ProgramMaker
from partita.lowering.program import Step, plain
from partita.tensors.array_state import data_address
from partita_cpu.jit.kernel_wrappers import Checked
from partita_cpu.runtime.call_layout import CallLayout, Place
from partita_cpu.runtime.call_table import CallTable, Segment
from partita_cpu.runtime.kernel_loading import callable_of
from partita_cpu.runtime.loop_body import LoopBody, Runner
from partita_cpu.runtime.output_arrays import Spans, deliver, fits_output, span_of
from partita_cpu.runtime.program_memory import Memory
from partita_cpu.runtime.result_memory import ResultMemory
from partita_cpu.threads.step_team import PARALLEL_WORK, Team

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Explanation = Callable[[], tuple[ExecutedStep, ...]]
"""Tells the kernels of a run, in order."""

Times = list[tuple[OpRecord, int, int]]
"""Operation, wall time and CPU time (of the calling thread) in nanoseconds."""

_ARGUMENT_BYTES = 400
"""About what Python keeps for an argument of a bound call."""


class BoundProgram:
    """The calls of one program on one request's memory, or of one after another of a class.

    Args:
        program: Steps for inputs of certain shapes; shared by requests, not changed.
        team: The threads that large steps are shared among.
        times: Where to note what each operation took, or ``None``.
        arena: At least as many bytes as the program's intermediate tensors take.
        results: Memory of the outputs for which a run is given none.
        make_runner: Makes what runs bodies; its argument is where to note times, or ``None``.
        rest: Runs the rest of the program, for sizes that are known in the run alone. Programs
            have it in common.
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
        results: ResultMemory,
        make_runner: Callable[[ProgramMaker, Times | None], Runner],
        rest: Runner | None = None,
        in_place: Mapping[int, int] | None = None,
    ) -> None:
        self._in_place = in_place or {}
        self._team = team
        self._times = times
        self._make_runner = make_runner
        self._rest = rest
        self._results = results
        self._version = -1  # of the memory that buffers are in
        self._buffers_of: weakref.WeakKeyDictionary[Program, _Buffers]
        self._buffers_of = weakref.WeakKeyDictionary()
        layout = self._layout = _layout_of(program, team)
        self._inputs: list[Array | None] = [None] * len(layout.inputs)
        self._outputs: list[Array | None] = [None] * len(layout.outputs)
        self._to_buffers = False  # whether steps write all outputs to where buffers are
        self._memory = Memory(arena)
        self._table: CallTable | None = None
        if team.pool is not None:
            self._table = CallTable(layout, team.pool, self._memory.start)
        self._own_bytes = _ARGUMENT_BYTES * layout.arguments
        self.load(program)

    def load(self, program: Program) -> None:
        """Binds another program of the same class; see :func:`shared_by`."""
        self.program = program
        self._late_results: dict[Operand, Array] = {}
        self._take_buffers()
        self._outputs[:] = [None] * len(self._outputs)
        if self._table is not None:
            self._table.load(program)
        self._calls: dict[int, Call] = {
            number: self._call(program.steps[number], self._memory.arguments(number))
            for number in self._layout.python_steps
        }

    def forget_results(self) -> None:
        """Holds no memory of results any longer; the next run takes it anew."""
        self._buffers_of.clear()
        self._take_buffers()
        self._outputs[:] = [None] * len(self._outputs)
        self._to_buffers = False

    def _take_buffers(self) -> None:
        """Takes the buffers that the program had when it ran last, or none yet."""
        buffers = self._buffers_of.get(self.program)
        if buffers is None:
            buffers = self._buffers_of[self.program] = _Buffers(len(self._outputs))
        self._buffers = buffers
        self._memory.load(self.program, buffers.arrays)

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, roughly: its calls, without its rest."""
        return self._own_bytes

    def explanation(self) -> Explanation:
        """What tells the kernels, in order, those too that the last run itself made known.

        It holds no memory of the request. Steps of a recorded program, which take as long to make
        as several tokens of a decoder, are made when it is asked.
        """
        program = self.program
        rest = () if self._rest is None else self._rest.explain()
        return lambda: _kernels_of(program) + rest

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array | None] | None) -> list[Array]:
        """Walks the calls; see `GraphRunner.run`."""
        self._put_inputs(inputs)
        try:
            return self._run(inputs, outputs)
        finally:
            self.release_inputs()

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array | None] | None) -> list[Array]:
        if outputs is not None or not self._to_buffers or not self._has_buffers():
            self._take_outputs(inputs, outputs)
            self._to_buffers = outputs is None
        self._make_calls()
        if not self._layout.is_direct:
            return self._collect(outputs)
        if outputs is None:
            return list(self._buffers.arrays)  # type: ignore[arg-type]  # all have one
        return [
            # One of another shape is an error, as the request says.
            deliver(made, None if given is None or given.shape != made.shape else given)
            for made, given in zip(self._outputs, outputs, strict=True)
            if made is not None  # all are
        ]

    def _has_buffers(self) -> bool:
        """Whether buffers, of other shapes perhaps, are where steps write outputs to."""
        buffers, version = self._buffers, self._version
        if version != self._results.version:
            return False
        if not buffers.is_whole:
            for index, is_owned in enumerate(self._layout.owned):
                if is_owned:
                    self._buffer(index)
            buffers.is_whole = True
        self._outputs[:] = buffers.arrays
        return version == self._results.version

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Lets the calls read and write arrays; whether a run is then nothing but calls."""
        self._put_inputs(inputs)
        self._take_outputs(inputs, outputs)
        return self._layout.is_direct and all(map(operator.is_, self._outputs, outputs))

    def _put_inputs(self, inputs: Sequence[Array]) -> None:
        self._inputs[:] = inputs
        layout = self._layout
        for array, words, places in zip(inputs, layout.input_words, layout.inputs, strict=True):
            self._place(array, words, places)

    def release_inputs(self) -> None:
        """Holds no array of an input any longer; addresses stay, for the same arrays to come."""
        self._inputs = [None] * len(self._inputs)
        for _, places in self._layout.python_inputs:
            for number, position in places:
                self._put(number, position, None)

    def segments(self) -> Sequence[Segment]:
        """The calls of a run on the arrays that :meth:`bind` was given."""
        if self._table is None:
            return [self._make_calls]
        return self._table.segments(self._calls, self._explain_failure, self)

    def rebind(self, inputs: Sequence[Array]) -> bool:
        """Lets calls that were handed out read other inputs; whether all of them can."""
        table, arrays = self._table, uncopied(inputs)
        if table is None or arrays is None:
            return False
        written = Spans([out for out in self._outputs if out is not None])
        for new, old in zip(arrays, self._inputs, strict=True):
            if old is None or new.shape != old.shape or new.dtype != old.dtype:
                return False
            if new is not old and written.overlapping(*span_of(new)):
                return False
        places = [place for found in self._layout.inputs for place in found]
        if not all(table.can_patch(number, position) for number, position in places):
            return False
        self._inputs = list(arrays)
        for found, array in zip(self._layout.inputs, arrays, strict=True):
            self._patch(found, array)
        return True

    def _make_calls(self) -> None:
        if self._times is not None:
            self._run_timed(self._times)
        elif self._table is not None:
            self._table.run(self._calls, self._explain_failure)
        else:
            for fn, args in self._calls.values():
                fn(*args)

    def _explain_failure(self, number: int) -> None:
        """Raises what a step that failed has to say, if anything."""
        kernel = self.program.steps[number].fn
        if isinstance(kernel, Checked):
            kernel.explain(*self._memory.arguments(number))

    def _buffer(self, index: int) -> Array | None:
        """The runner's memory of an output, where a run is given none that fits.

        ``None`` for an output that a run or the rest makes.
        """
        buffers = self._buffers.arrays
        taken, spec = buffers[index], self._layout.facts(self.program).results[index]
        if taken is None and spec is not None:
            taken = buffers[index] = self._results.array(index, *spec)
        return taken

    def _call(self, step: Step, args: Sequence[Any]) -> Call:
        """A call of Python; one through the team or :meth:`_keep` has an argument in front."""
        if not step.when:
            return _skip, tuple(args)
        args = [
            LoopBody(self._make_runner(arg.specializer, None))
            if isinstance(arg, GraphBody)
            else arg
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
        """Runs a step whose result shapes are known in the run alone, and keeps its results."""
        for operand, array in zip(step.results, step.fn(*args), strict=True):
            wanted = None if operand.dtype.hasobject else operand.dtype
            self._late_results[operand] = plain(np.asarray(array, dtype=wanted))

    def _place(self, array: Array, words: Sequence[int] | None, places: Sequence[Place]) -> None:
        """Has calls read an input in an array, or write an output to it."""
        if self._table is None or words is None:
            self._patch(places, array)
        else:
            self._table.put(words, data_address(array))

    def _patch(self, places: Sequence[Place], array: Array) -> None:
        for number, position in places:
            if self._table is not None and self._table.patch(number, position, array):
                continue
            shape = self.program.steps[number].args[position].shape
            self._put(number, position, array if array.shape == shape else array.reshape(shape))

    def _put(self, number: int, position: int, thing: Any) -> None:
        """Gives a call of Python another argument."""
        fn, args = self._calls[number]
        shift = position + (fn in (self._keep, self._team.run))
        self._calls[number] = fn, (*args[:shift], thing, *args[shift + 1 :])

    def _take_outputs(self, inputs: Sequence[Array], given: Sequence[Array | None] | None) -> None:
        """Lets steps write to the given arrays; not to one that an input still lies in."""
        read = None if given is None else Spans(inputs)
        layout = self._layout
        if self._version != self._results.version:
            self.forget_results()
        specs = layout.facts(self.program).results
        for index, places in enumerate(layout.outputs):
            if not layout.owned[index]:
                continue
            array = None
            spec = specs[index] if given is not None and places else None
            if given is not None and read is not None and spec is not None:
                target = given[index]
                source = self._in_place.get(index)
                same = None if source is None else inputs[source].shape == spec[0]
                if target is not None and fits_output(target, spec, read, source if same else None):
                    array = target
            if array is None:
                array = self._buffer(index)
            if array is not None and array is not self._outputs[index]:
                self._outputs[index] = array
                self._place(array, layout.output_words[index], places)
        if self._version != self._results.version:  # what other programs have lies elsewhere
            self._version = self._results.version
            self._buffers_of.clear()
            self._buffers_of[self.program] = self._buffers

    def _collect(self, given: Sequence[Array | None] | None) -> list[Array]:
        program = self.program
        collected: list[Array | None] = [None] * len(program.outputs)
        for index, operand in enumerate(program.outputs):
            if operand is None:
                continue
            target = None if given is None else given[index]
            if target is not None and target.shape != operand.shape:
                target = None  # the request says so
            if program.owned[index] is not None and operand not in self._late_results:
                source = self._outputs[index]
            else:
                source = self._array(operand)
                if target is None:
                    target = self._buffer(index)
            collected[index] = deliver(source, target)
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
        if operand in self._late_results:
            return self._late_results[operand]
        root = operand.root
        for index, given in enumerate(self.program.inputs):
            if given is root:
                return self._inputs[index].reshape(operand.shape)  # type: ignore[union-attr]
        for index, owner in enumerate(self.program.owned):
            if owner is root:
                return self._outputs[index].reshape(operand.shape)  # type: ignore[union-attr]
        return self._memory.array(operand)

    def _run_timed(self, times: Times) -> None:
        clock, cpu_clock = time.perf_counter_ns, time.thread_time_ns
        for op in self.program.ops:
            times.append((op, 0, 0))
        for number, step in enumerate(self.program.steps):
            start, cpu_start = clock(), cpu_clock()
            if self._table is None:
                fn, args = self._calls[number]
                fn(*args)
            else:
                self._table.run_one(number, self._calls, self._explain_failure)
            times.append((step.op, clock() - start, cpu_clock() - cpu_start))


class _Buffers:
    """The runner's memory of outputs as one program has it.

    Args:
        count: How many outputs there are.

    Attributes:
        arrays: By output the array, once one is needed.
        is_whole: Whether there is one for each output that steps make.
    """

    __slots__ = ("arrays", "is_whole")

    def __init__(self, count: int) -> None:
        self.arrays: list[Array | None] = [None] * count
        self.is_whole = False


def shared_by(program: Program, team: Team) -> object:
    """What programs have in common that one :class:`BoundProgram` can serve, one after another.

    Those of a class of shapes do, unless Python makes some of their calls, whose arguments take
    longer to make than all else.
    """
    if team.pool is None or program.made is None or program.made.python_steps:
        return program
    return program.made


def _skip(*args: Any) -> None:
    """Computes nothing: another step does, for these sizes."""


def _layout_of(program: Program, team: Team) -> CallLayout:
    """The layout of a program's calls; if the program was recorded, that of its class."""
    if team.pool is not None and program.made is not None:
        made: CallLayout = program.made
        return made
    return CallLayout(program, team.pool is not None)


def uncopied(arrays: Sequence[Array]) -> list[Array] | None:
    """Arrays as kernels take them; ``None`` if one would have to be copied."""
    taken = [plain(array) for array in arrays]
    pairs = zip(taken, arrays, strict=True)
    return taken if all(data_address(new) == data_address(old) for new, old in pairs) else None


def _kernels_of(program: Program) -> tuple[ExecutedStep, ...]:
    """The kernels of a program's steps, in order, and the operations that they compute."""
    taken = (step for step in program.steps if step.when)
    return tuple(ExecutedStep(step.op.name, step.fn.__name__) for step in taken)
