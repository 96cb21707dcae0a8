"""The kernels of one request: the plans of all shapes use the same ones, each with its arguments.

To make a kernel takes pyopencl a hundred times as long as to set its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.runtime.execution_plan import Plan

Argument = Any
"""A buffer, or the bytes of a number or vector."""


class SharedKernels:
    """Kernels, as many of each as the plan needs that needs most.

    Attributes:
        user: Whose arguments they have now.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[ProgramKey, str], list[Any]] = {}
        self.user: object = None

    def of(self, plan: Plan) -> list[Any]:
        """A kernel for each step of a plan, whatever its arguments are now."""
        import pyopencl as cl

        used: Counter[tuple[ProgramKey, str]] = Counter()
        found = []
        for step in plan.steps:
            launch = plan.launch(step)
            key = launch.program, launch.kernel
            known = self._kernels.setdefault(key, [])
            if len(known) == used[key]:
                known.append(cl.Kernel(plan.programs[launch.program], launch.kernel))
            found.append(known[used[key]])
            used[key] += 1
        return found


def set_argument(kernel: Any, position: int, value: Argument) -> None:
    """Sets an argument; from bytes in a hundredth of the time that ``set_arg`` takes for them."""
    if isinstance(value, bytes):
        kernel._set_arg_buf(position, value)
    else:
        kernel.set_arg(position, value)


def set_arguments(kernels: Sequence[Any], arguments: Sequence[Sequence[Argument]]) -> None:
    """Sets all arguments of kernels, in their order."""
    for kernel, values in zip(kernels, arguments, strict=True):
        for position, value in enumerate(values):
            set_argument(kernel, position, value)
