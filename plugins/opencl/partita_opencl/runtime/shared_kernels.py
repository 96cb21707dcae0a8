"""The kernels of one request, which the plans of all shapes use, each with its arguments."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence

import numpy as np

from partita_opencl.cuda.argument_table import Argument, ArgumentTable
from partita_opencl.drivers.program_cache import ProgramKey, set_argument
from partita_opencl.runtime.driver_loops import RECORD_WORDS, DriverKernel, driver_loops, take
from partita_opencl.runtime.execution_plan import Plan


class SharedKernels:
    """Kernels, as many of each as the plan needs that needs most.

    Attributes:
        user: Whose arguments they have now.
    """

    def __init__(self) -> None:
        self._kernels: dict[tuple[ProgramKey, str], list[DriverKernel]] = {}
        self.user: object = None

    def of(self, plan: Plan) -> list[DriverKernel]:
        """A kernel for each step of a plan, whatever its arguments are now."""
        used: Counter[tuple[ProgramKey, str]] = Counter()
        found = []
        for step in plan.steps:
            launch = plan.launch(step)
            key = launch.program, launch.kernel
            known = self._kernels.setdefault(key, [])
            if len(known) == used[key]:
                known.append(DriverKernel(plan.programs[launch.program], launch.kernel))
            found.append(known[used[key]])
            used[key] += 1
        return found


class KernelArguments:
    """The arguments of some kernels, which others change in between; set anew by one native loop.

    Args:
        kernels: The kernels.
        arguments: By kernel, a value for each position.
    """

    def __init__(
        self, kernels: Sequence[DriverKernel], arguments: Sequence[Sequence[Argument]]
    ) -> None:
        self._kernels = kernels
        self._table = ArgumentTable(arguments, lambda buffer: int(buffer.int_ptr))
        self._records = np.zeros((self._table.starts[-1], RECORD_WORDS), np.uint64)
        self._records[:, 0] = np.repeat(
            np.array([kernel.int_ptr for kernel in kernels], np.uint64),
            [len(values) for values in arguments],
        )
        self._records[:, 1] = [n for values in arguments for n in range(len(values))]
        self._records[:, 2] = self._table.sizes
        self._records[:, 3] = self._table.addresses

    def value(self, number: int, position: int) -> Argument:
        """What a kernel has at a position."""
        return self._table.value(number, position)

    def change(self, number: int, position: int, value: Argument) -> None:
        """Takes another buffer in the place of one, from the next time on that all are set."""
        self._table.change(number, position, value)

    def set_all(self) -> None:
        """Sets all arguments of all kernels.

        Raises:
            pyopencl.Error: The driver refuses one.
        """
        self._set(0, len(self._records))

    def set(self, number: int, position: int) -> None:
        """Sets one argument of a kernel.

        Raises:
            pyopencl.Error: The driver refuses it.
        """
        self._set(self._table.starts[number] + position, 1)

    def _set(self, start: int, count: int) -> None:
        loops = driver_loops()
        loop = None if loops is None else loops.set_all
        records = self._records[start : start + count]
        take(loop, records, lambda place: self._set_by_hand(start + place))

    def _set_by_hand(self, place: int) -> None:
        number = bisect.bisect_right(self._table.starts, place) - 1
        position = place - self._table.starts[number]
        set_argument(self._kernels[number].opencl, position, self._table.value(number, position))
