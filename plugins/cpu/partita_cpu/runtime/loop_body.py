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
        self._bound: Bound | None = None
        self._outputs: list[Array] = []

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """The body's results; they are valid until its next run."""
        return self._runner.run(arrays)

    def bound(self, arrays: Sequence[Array]) -> Callable[[], list[Array]] | None:
        """A call of the body on arrays that stay where they are, whatever they hold then.

        It is good until :meth:`release`, and returns the same arrays each time. ``None`` where a
        run is more than calls, or depends on elements of the arrays.
        """
        runner = self._runner
        program = runner.program_for(arrays)
        if runner.value_inputs or not program.is_direct:
            return None
        if self._bound is None or self._bound.program is not program:
            self._bound = None
            self._outputs = runner.new_outputs(program)
            self._bound = runner.bind(arrays, self._outputs)
        elif not self._bound.bind(arrays, self._outputs):
            self._bound = None
        if self._bound is None:
            return None
        calls = functools.partial(self._call, self._bound.segments())
        return functools.partial(runner.call_or_repeat, calls, list(arrays))

    def release(self) -> None:
        """Holds the arrays no longer."""
        if self._bound is not None:
            self._bound.release_inputs()

    def _call(self, segments: Sequence[Segment]) -> list[Array]:
        for segment in segments:
            segment()
        return self._outputs
