"""Runs one graph for one request: picks the program for the present shapes, bound to memory."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from partita.contract.execution import ExecutedStep
from partita.errors import InferCancelledError
from partita.lowering import Array, OtherSizes, Program, ProgramMaker
from partita.lowering.program import Spec, plain
from partita.lowering.recently_used import RecentlyUsed
from partita.lowering.target import MOST_KEPT_BYTES
from partita_cpu.runtime.bound_program import (
    BoundProgram,
    Explanation,
    Times,
    shared_by,
    uncopied,
)
from partita_cpu.runtime.program_memory import aligned_empty, lent_arena
from partita_cpu.runtime.result_memory import ResultMemory
from partita_cpu.threads.step_team import Team

_BYTE = np.dtype(np.uint8)

_FEW_MISPREDICTIONS = 4
"""Predicted sizes may be wrong so many times, and from then on in one of so many runs."""


class Cancellation:
    """A flag that asks a request's run to end early.

    No ``threading.Event``: Ctrl-C inside of that leaves its lock locked.

    Attributes:
        requested: Whether the run is to end.
    """

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False


class GraphRunner:
    """Runs one graph for one request: owns arenas and outputs, picks the program for the shapes.

    Args:
        specializer: Makes the programs.
        team: The threads that large steps are shared among.
        times: Where to note what each operation took, or ``None``.
        most_bytes: What programs of shapes seen before may take, bound to memory; all of them work
            in the same arena, which is as large as the largest needs and not counted.
        cancellation: Says when a run is to end early: each iteration of a loop looks at it.
        in_place: By output the input whose memory it may be given.

    Attributes:
        bound_programs: Those of the shapes, or of the classes of shapes, seen last.
    """

    def __init__(
        self,
        specializer: ProgramMaker,
        team: Team,
        times: Times | None = None,
        most_bytes: int = MOST_KEPT_BYTES,
        cancellation: Cancellation | None = None,
        in_place: Mapping[int, int] | None = None,
    ) -> None:
        self._specializer = specializer
        self._cancellation = cancellation or Cancellation()
        self._in_place = in_place or {}
        self._team = team
        self._times = times
        self._arena = aligned_empty((0,), _BYTE)
        self._results = ResultMemory()
        self._rests: _Rests = weakref.WeakValueDictionary()
        self.bound_programs: RecentlyUsed[int, BoundProgram] = RecentlyUsed(
            most_bytes, lambda bound: bound.kept_bytes
        )
        self._last_specs: list[Spec] = []
        self._last_values: list[bytes] = []
        self._last: BoundProgram | None = None
        self._kernels: Explanation = tuple  # of the last run, if `_last` is None
        self._unpredicted: GraphRunner | None = None
        self._runs = self._mispredictions = 0

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
        if self._unpredicted is not None and self._mispredicts_often():
            return self._unpredicted.run(inputs, outputs)
        arrays = [a if a.flags.carray else plain(a) for a in inputs]
        specs = [(a.shape, a.dtype) for a in arrays]
        values = [arrays[i].tobytes() for i in self._specializer.value_inputs]
        if self._last is not None and specs == self._last_specs and values == self._last_values:
            bound = self._last
        else:
            self._last = None  # until a program is loaded whole
            bound = self._last = self._bound_for(specs, arrays)
            self._last_specs, self._last_values = specs, values
        return self.call_or_repeat(functools.partial(bound.run, arrays, outputs), arrays, outputs)

    def call_or_repeat(
        self,
        call: Callable[[], list[Array]],
        inputs: Sequence[Array],
        outputs: Sequence[Array | None] | None = None,
    ) -> list[Array]:
        """Makes a call for the graph; repeats it without predicted sizes if one was wrong.

        Args:
            call: Computes the graph of the inputs.
            inputs: As :meth:`run` takes them.
            outputs: The same.

        Raises:
            InferCancelledError: The run is to end early.
        """
        if self._cancellation.requested:
            raise InferCancelledError("The request was cancelled.")
        self._runs += 1
        if self._unpredicted is None or not self._mispredicts_often():
            try:
                return call()
            except OtherSizes:
                self._mispredictions += 1
                self._unpredicted = self._unpredicted or self._without_predictions()
        return self._unpredicted.run(inputs, outputs)

    def program_for(self, arrays: Sequence[Array]) -> Program:
        """The program that a run on these arrays would be."""
        return self._specializer.program_for(arrays)

    def new_outputs(self, program: Program) -> list[Array]:
        """Memory for what a program computes, with arbitrary content."""
        made = [operand for operand in program.outputs if operand is not None]
        return [aligned_empty(operand.shape, operand.dtype) for operand in made]

    def _without_predictions(self) -> GraphRunner:
        plain = self._specializer.plain
        if plain is None:
            raise RuntimeError("a program without predicted sizes cannot have met others")
        most = self.bound_programs.most_bytes
        return GraphRunner(plain, self._team, self._times, most, self._cancellation)

    def _mispredicts_often(self) -> bool:
        """Whether predicted sizes were wrong so often that they cost more runs than they save."""
        few, wrong = _FEW_MISPREDICTIONS, self._mispredictions
        return wrong > few and wrong * few > self._runs

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
        arrays = uncopied(inputs)
        if arrays is None or not all(array.flags.carray for array in outputs):
            return None
        program = self._specializer.program_for(arrays)
        if not program.is_direct:
            return None
        lent = lent_arena(scratch, program.arena_bytes)
        arena = self._arena_for(program) if lent is None else lent
        bound = self._taken_out(program)
        if lent is not None and not len(self.bound_programs):
            self.close()
        if bound is None or lent is not None:
            bound = self._new_bound(program, arena, MOST_KEPT_BYTES, None, None)
        if not bound.bind(arrays, outputs):
            return None
        self._kernels = bound.explanation()
        return bound

    def leave_results(self) -> None:
        """Writes to what the last run returned no more: later results lie in other memory.

        What ran is bound anew when its shapes come, if it may have returned a body's results.
        """
        self._results.leave()
        for rest in self._rests.values():
            rest.leave_results()
        if self._last is not None:
            self._kernels = self._last.explanation()
            program = self._last.program
            if shared_by(program, self._team) is program:
                self.bound_programs.discard(id(program))
            self._last.forget_results()
            self._last = None

    def explain(self) -> tuple[ExecutedStep, ...]:
        """The kernels of the last run, in order; none before the first one."""
        return (self._kernels if self._last is None else self._last.explanation())()

    @property
    def value_inputs(self) -> tuple[int, ...]:
        """Indices of the inputs whose elements decide what is run, as far as they are known."""
        return self._specializer.value_inputs

    @property
    def kept_bytes(self) -> int:
        """What is kept for all shapes seen before, the arena, and memory of results."""
        others = [*self._rests.values(), *filter(None, [self._unpredicted])]
        own = self.bound_programs.nbytes + self._arena.nbytes + self._results.nbytes
        return own + sum(other.kept_bytes for other in others)

    def close(self) -> None:
        """Frees the memory; a later run takes new."""
        self.bound_programs.clear()
        self._last = self._unpredicted = None
        self._arena = aligned_empty((0,), _BYTE)
        self._results.leave()

    def _bound_for(self, specs: Sequence[Spec], arrays: Sequence[Array]) -> BoundProgram:
        program = self._specializer.program(specs, arrays.__getitem__)
        key = id(shared_by(program, self._team))
        arena = self._arena_for(program)
        bound = self.bound_programs.get(key)
        if bound is None:
            most = self.bound_programs.most_bytes
            bound = self._new_bound(program, arena, most, self._cancellation, self._times)
            self.bound_programs.add(key, bound)
        elif bound.program is not program:
            bound.load(program)
        return bound

    def _taken_out(self, program: Program) -> BoundProgram | None:
        """The program as it last ran, bound to the arena: this runner does not run it any more.

        ``None`` where it did not run, or Python makes calls that know this runner.
        """
        shared = shared_by(program, self._team)
        bound = self.bound_programs.get(id(shared))
        self.bound_programs.discard(id(shared))
        self._last = None
        if bound is None or shared is program:
            return None
        if bound.program is not program:
            bound.load(program)
        return bound

    def _new_bound(
        self,
        program: Program,
        arena: Array,
        most_bytes: int,
        cancellation: Cancellation | None,
        times: Times | None,
    ) -> BoundProgram:
        """A program on this runner's memory; the other arguments are for what runs bodies in it."""
        make_runner = functools.partial(_runner_of_body, self._team, most_bytes, cancellation)
        rest = None
        if program.rest is not None:
            rest = self._rests.get(id(program.rest.specializer))
            if rest is None:
                half = most_bytes // 2  # all rests behind one another keep as much again at most
                maker = program.rest.specializer
                rest = GraphRunner(maker, self._team, times, half, cancellation)
                self._rests[id(maker)] = rest
        return BoundProgram(
            program, self._team, times, arena, self._results, make_runner, rest, self._in_place
        )

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


_Rests = weakref.WeakValueDictionary[int, GraphRunner]
"""What runs the rests of programs, by what makes these; the programs of one class share a rest."""


def _runner_of_body(
    team: Team,
    most_bytes: int,
    cancellation: Cancellation | None,
    specializer: ProgramMaker,
    times: Times | None,
) -> GraphRunner:
    """What runs a body. It knows no runner around it, so that no cycle keeps memory."""
    return GraphRunner(specializer, team, times, most_bytes, cancellation)
