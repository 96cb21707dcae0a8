"""A plan's kernels as one graph of CUDA, which is made beside the runs where that takes time."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence, Set

from partita_opencl.cuda.argument_table import Argument
from partita_opencl.cuda.cuda_device import CudaSide
from partita_opencl.cuda.cuda_driver import CudaError
from partita_opencl.cuda.replay import Kernel
from partita_opencl.runtime.commands import CudaCommands
from partita_opencl.runtime.execution_plan import Plan

_log = logging.getLogger(__name__)


class CudaGraph:
    """A graph for one request: made at once where CUDA has the programs, else in the background.

    There it is made of a copy of the arguments, so that runs go on; the thread that runs the plan
    takes it over, with the buffers that were replaced since. It is not made once this is gone.

    Args:
        plan: What is launched.
        side: The device for CUDA.
        name: The device's name, for messages.
        arguments: By kernel, a value for each position; the plan's user changes them.
    """

    def __init__(
        self, plan: Plan, side: CudaSide, name: str, arguments: Sequence[Sequence[Argument]]
    ) -> None:
        self._plan, self._side, self._name = plan, side, name
        self._arguments = arguments
        self._commands: CudaCommands | None = None
        self._refused = False  # by CUDA
        self._copied: list[list[Argument]] | None = None  # what the background makes it of
        self._made: CudaCommands | None = None  # there, and nobody's so far

    def commands(self, left_out: Set[int]) -> CudaCommands | None:
        """Its commands; ``None`` while programs or graph are not there, or where CUDA refuses.

        Args:
            left_out: The launches that are left out.
        """
        if self._commands is None and not self._refused:
            try:
                found = self._ready()
                if found is not None:
                    found.leave_out(left_out)
                self._commands = found
            except CudaError as error:
                self._refuse(error)
        return self._commands

    def prepare(self) -> None:
        """Has it made in the background, if it was not, as soon as CUDA has the programs."""
        if self._commands is None and self._copied is None and not self._refused:
            self._copied = [list(values) for values in self._arguments]
            then = weakref.WeakMethod(self._make_in_background)
            self._side.load(self._plan.programs.values(), then)

    def _ready(self) -> CudaCommands | None:
        copied, made = self._copied, self._made
        if copied is None:
            return self._make(self._arguments) if self._plan.is_loaded() else None
        if made is None:
            return None
        for number, (values, before) in enumerate(zip(self._arguments, copied, strict=True)):
            if values != before:
                for position, value in enumerate(values):
                    if value is not before[position]:
                        made.change(number, position, value)
        self._copied, self._made = None, None
        return made

    def _make(self, arguments: Sequence[Sequence[Argument]]) -> CudaCommands:
        plan = self._plan
        steps = [plan.launch(step) for step in plan.steps]
        kernels = [Kernel(plan.programs[one.program], one.kernel, *one.sizes) for one in steps]
        return CudaCommands(self._side, kernels, arguments)

    def _make_in_background(self) -> None:
        try:
            made = self._make(self._copied or ())
            made.upload_graph()
        except CudaError as error:
            self._refuse(error)
        else:
            self._made = made

    def _refuse(self, error: CudaError) -> None:
        _log.warning("OpenCL launches a plan on %s: %s", self._name, error)
        self._refused = True
