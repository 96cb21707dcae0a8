"""The body of a loop, bound once to arrays that each iteration rewrites."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

from partita.contract.execution import ExecutedStep
from partita.lowering import Array, Program
from partita_cpu.runtime.call_table import Segment


class Bound(Protocol):
    """A program bound to arrays, as a body needs it.

    Attributes:
        program: The program.
    """

    program: Program

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Lets the calls read and write arrays; whether a run is then nothing but calls."""

    def segments(self) -> Sequence[Segment]:
        """The calls."""

    def release_inputs(self) -> None:
        """Holds the arrays no longer."""


class Runner(Protocol):
    """What computes a body or the rest of a program.

    It is a :class:`partita_cpu.runtime.graph_runner.GraphRunner`.
    """

    @property
    def value_inputs(self) -> Sequence[int]:
        """Indices of the inputs whose elements decide what is run."""

    @property
    def kept_bytes(self) -> int:
        """What it keeps for all shapes seen before."""

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array | None] | None = None
    ) -> list[Array]:
        """Computes the graph."""

    def explain(self) -> tuple[ExecutedStep, ...]:
        """The kernels of the last run, in order."""

    def program_for(self, arrays: Sequence[Array]) -> Program:
        """The program that a run on these arrays would be."""

    def new_outputs(self, program: Program) -> list[Array]:
        """Memory for what a program computes."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Bound | None:
        """A program bound to these arrays for good."""

    def call_or_repeat(
        self, call: Callable[[], list[Array]], inputs: Sequence[Array]
    ) -> list[Array]:
        """Makes a call for the body; where a size is not as expected, a program for any does it."""


class LoopBody:
    """Runs a body for one request.

    Args:
        runner: Runs it for any arrays.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._bound: list[Bound | None] = [None, None]
        self._outputs: list[Array] = []

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The body's results; they are valid until its next run."""
        return self._runner.run(arrays)

    def bound(
        self, arrays: Sequence[Array], outputs: list[Array] | None = None
    ) -> tuple[Callable[[], list[Array]], list[Array]] | None:
        """A call of the body on arrays that stay where they are, whatever they hold then.

        It is good until :meth:`release`. One with outputs of its own and one with given outputs
        are kept side by side.

        Args:
            arrays: Its inputs.
            outputs: Where results are written; by default arrays of the body's own.

        Returns:
            The call, and its outputs: the list that it returns unless a size was not as expected.
            ``None`` where a run is more than calls, or depends on elements of the arrays.
        """
        runner, turn = self._runner, int(outputs is not None)
        program = runner.program_for(arrays)
        if runner.value_inputs or not program.is_direct:
            return None
        bound = self._bound[turn]
        is_new = bound is None or bound.program is not program
        if outputs is None:
            if is_new:
                self._outputs = runner.new_outputs(program)
            outputs = self._outputs
        if bound is None or is_new:
            self._bound[turn] = None  # its memory is free for the new one
            bound = runner.bind(arrays, outputs)
        elif not bound.bind(arrays, outputs):
            bound = None
        self._bound[turn] = bound
        if bound is None:
            return None
        calls = functools.partial(_run_segments, bound.segments(), outputs)
        return functools.partial(runner.call_or_repeat, calls, list(arrays)), outputs

    def release(self) -> None:
        """Holds the arrays no longer."""
        for bound in self._bound:
            if bound is not None:
                bound.release_inputs()


def _run_segments(segments: Sequence[Segment], outputs: list[Array]) -> list[Array]:
    for segment in segments:
        segment()
    return outputs
