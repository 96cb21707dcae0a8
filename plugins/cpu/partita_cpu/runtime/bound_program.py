"""A program bound to one request's memory: operands become arrays, steps become calls."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partita.contract.execution import ExecutedStep
from partita.lowering import Array, GraphBody, Operand, OpRecord, Program, ProgramMaker
from partita.lowering.program import Step, plain
from partita.tensors.array_state import data_address
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
    """The calls of one program on one request's memory.

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
        self._program = self.program = program
        self._in_place = in_place or {}
        self._team = team
        self._times = times
        self._make_runner = make_runner
        self._late_results: dict[Operand, Array] = {}
        self._inputs: list[Array | None] = [None] * len(program.inputs)
        self._late = program.late
        self._results = results
        self._version = -1  # of the memory that the buffers are in
        self._buffers: list[Array | None] = [None] * len(program.outputs)  # taken when they serve
        self._outputs: list[Array | None] = list(self._buffers)
        self._memory = Memory(program, arena, self._buffers)
        layout = _layout_of(program, team)
        self._input_places, self._output_places = layout.inputs, layout.outputs
        self._table: CallTable | None = None
        if team.pool is not None:
            slots = layout.slots(program, self._memory.start)
            self._table = CallTable(program, layout, slots, team.pool, self._memory)
        self._calls: dict[int, Call] = {
            number: self._call(program.steps[number], self._memory.arguments(number))
            for number in layout.python_steps
        }
        self._python_inputs = layout.python_inputs
        self._input_slots, self._output_slots = layout.input_slots, layout.output_slots
        self._rest = rest
        self._own_bytes = _ARGUMENT_BYTES * layout.arguments
        self._to_buffers = False  # whether steps write all outputs to the buffers
        self._direct = program.is_direct

    @property
    def kept_bytes(self) -> int:
        """What keeping it costs, roughly: its calls, without its rest."""
        return self._own_bytes

    def explanation(self) -> Explanation:
        """What tells the kernels, in order, those too that the last run itself made known.

        It holds no memory of the request. Steps of a recorded program, which take as long to make
        as several tokens of a decoder, are made when it is asked.
        """
        program = self._program
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
        if outputs is not None or not self._to_buffers or self._version != self._results.version:
            self._take_outputs(inputs, outputs)
            self._to_buffers = outputs is None
        self._make_calls()
        if outputs is None and self._direct:
            return list(self._buffers)  # type: ignore[arg-type]  # all have one
        return self._collect(outputs)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Lets the calls read and write arrays; whether a run is then nothing but calls."""
        self._put_inputs(inputs)
        self._take_outputs(inputs, outputs)
        return self._direct and all(map(operator.is_, self._outputs, outputs))

    def _put_inputs(self, inputs: Sequence[Array]) -> None:
        self._inputs[:] = inputs
        for array, slots, places in zip(inputs, self._input_slots, self._input_places, strict=True):
            self._place(array, slots, places)

    def release_inputs(self) -> None:
        """Holds no array of an input any longer; addresses stay, for the same arrays to come."""
        self._inputs = [None] * len(self._inputs)
        for _, places in self._python_inputs:
            for number, position in places:
                self._put(number, position, None)

    def segments(self) -> Sequence[Segment]:
        """The calls of a run on the arrays that :meth:`bind` was given."""
        if self._table is None:
            return [self._make_calls]
        return self._table.segments(self._calls, self)

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
        places = [place for found in self._input_places for place in found]
        if not all(table.can_patch(number, position) for number, position in places):
            return False
        self._inputs = list(arrays)
        for found, array in zip(self._input_places, arrays, strict=True):
            self._patch(found, array)
        return True

    def _make_calls(self) -> None:
        if self._times is not None:
            self._run_timed(self._times)
        elif self._table is not None:
            self._table.run(self._calls)
        else:
            for fn, args in self._calls.values():
                fn(*args)

    def _buffer(self, index: int) -> Array | None:
        """The runner's memory of an output, where a run is given none that fits.

        ``None`` for an output that a run or the rest makes.
        """
        operand = self._program.outputs[index]
        taken = self._buffers[index]
        if taken is None and operand is not None and operand not in self._late:
            taken = self._buffers[index] = self._results.array(index, operand)
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

    def _place(self, array: Array, slots: Sequence[int] | None, places: Sequence[Place]) -> None:
        """Has calls read an input in an array, or write an output to it."""
        if self._table is None or slots is None:
            self._patch(places, array)
        else:
            self._table.put(slots, data_address(array))

    def _patch(self, places: Sequence[Place], array: Array) -> None:
        for number, position in places:
            if self._table is not None and self._table.patch(number, position, array):
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
        read = Spans(inputs if given is not None else ())
        if self._version != self._results.version:
            self._buffers[:] = [None] * len(self._buffers)
        for index, places in enumerate(self._output_places):
            operand, array = self._program.outputs[index], None
            if self._program.owned[index] is None:
                continue
            if given is not None and operand is not None and places:
                target = given[index]
                source = self._in_place.get(index)
                same = None if source is None else inputs[source].shape == operand.shape
                if target is not None and fits_output(
                    target, operand, read, source if same else None
                ):
                    array = target
            if array is None:
                array = self._buffer(index)
            if array is not None and array is not self._outputs[index]:
                self._outputs[index] = array
                self._place(array, self._output_slots[index], places)
        self._version = self._results.version

    def _collect(self, given: Sequence[Array | None] | None) -> list[Array]:
        program = self._program
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
            if self._table is None:
                fn, args = self._calls[number]
                fn(*args)
            else:
                self._table.run_one(number, self._calls)
            times.append((step.op, clock() - start, cpu_clock() - cpu_start))


def _skip(*args: Any) -> None:
    """Computes nothing: another step does, for these sizes."""


def _layout_of(program: Program, team: Team) -> CallLayout:
    """The layout of a program's calls; if the program was recorded, that of its class."""
    if team.pool is not None and program.recorded is not None:
        made: CallLayout = program.recorded.made
        return made
    return CallLayout(program, team.pool is not None)


def uncopied(arrays: Sequence[Array]) -> list[Array] | None:
    """Arrays as kernels take them; ``None`` if one would have to be copied."""
    taken = [plain(array) for array in arrays]
    pairs = zip(taken, arrays, strict=True)
    return taken if all(new.ctypes.data == old.ctypes.data for new, old in pairs) else None


def _kernels_of(program: Program) -> tuple[ExecutedStep, ...]:
    """The kernels of a program's steps, in order, and the operations that they compute."""
    taken = (step for step in program.steps if step.when)
    return tuple(ExecutedStep(step.op.name, step.fn.__name__) for step in taken)
