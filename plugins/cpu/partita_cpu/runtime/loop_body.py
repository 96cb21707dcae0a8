"""A body as loops call it: bound once to the arrays that each iteration has anew."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from partita.lowering import Array
from partita_cpu.runtime.call_table import Stretch

if TYPE_CHECKING:
    from partita_cpu.runtime.bound_program import BoundProgram, GraphRunner


class LoopBody:
    """Runs a body for one request.

    Args:
        runner: Runs it for any arrays.
    """

    def __init__(self, runner: GraphRunner) -> None:
        self._runner = runner
        self._bound: BoundProgram | None = None
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
        elif not self._bound.settle(arrays, self._outputs):
            self._bound = None
        if self._bound is None:
            return None
        calls = functools.partial(self._call, self._bound.stretches())
        return functools.partial(runner.expecting, calls, list(arrays))

    def release(self) -> None:
        """Holds the arrays no longer."""
        if self._bound is not None:
            self._bound.let_go()

    def _call(self, stretches: Sequence[Stretch]) -> list[Array]:
        for stretch in stretches:
            stretch()
        return self._outputs
