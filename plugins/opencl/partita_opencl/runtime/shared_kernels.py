"""The kernels of one request: the plans of all shapes use the same ones, each with its arguments.

To make a kernel takes pyopencl a hundred times as long as to set its arguments.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita_opencl.drivers.program_cache import ProgramKey
from partita_opencl.runtime.driver_loops import RECORD_WORDS, driver_loops, take
from partita_opencl.runtime.execution_plan import Plan

Argument = Any
"""A buffer, ``None`` in its place, or the bytes of a number or vector."""


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


class KernelArguments:
    """The arguments of some kernels, which others change in between; set anew by one native loop.

    Args:
        kernels: The kernels.
        arguments: By kernel, a value for each position.
    """

    def __init__(self, kernels: Sequence[Any], arguments: Sequence[Sequence[Argument]]) -> None:
        self._kernels = kernels
        self._values = [list(values) for values in arguments]
        self._starts = list(itertools.accumulate(map(len, self._values), initial=0))
        values = list(itertools.chain.from_iterable(self._values))
        written = [_bytes_of(value) for value in values]
        sizes = np.array([len(text) for text in written], np.uint64)
        padded = [text.ljust(-(-len(text) // _ALIGNED) * _ALIGNED, b"\0") for text in written]
        self._places = list(itertools.accumulate(map(len, padded), initial=0))
        self._memory = np.array(bytearray().join(padded), np.uint8)
        self._records = np.zeros((len(values), RECORD_WORDS), np.uint64)
        self._records[:, 0] = np.repeat(
            np.array([kernel.int_ptr for kernel in kernels], np.uint64),
            [len(values) for values in self._values],
        )
        self._records[:, 1] = [n for values in self._values for n in range(len(values))]
        self._records[:, 2] = sizes
        self._records[:, 3] = self._memory.ctypes.data + np.array(self._places[:-1], np.uint64)

    def value(self, number: int, position: int) -> Argument:
        """What a kernel has at a position."""
        return self._values[number][position]

    def change(self, number: int, position: int, value: Argument) -> None:
        """Takes another buffer in the place of one, from the next time on that all are set."""
        self._values[number][position] = value
        self._write(self._starts[number] + position, value)

    def set_all(self) -> None:
        """Sets all arguments of all kernels.

        Raises:
            pyopencl.Error: The driver refuses one.
        """
        loops = driver_loops()
        take(None if loops is None else loops.set_all, self._records, self._set)

    def _set(self, place: int) -> None:
        number = bisect.bisect_right(self._starts, place) - 1
        position = place - self._starts[number]
        kernel, value = self._kernels[number], self._values[number][position]
        if isinstance(value, bytes):  # in a hundredth of the time that set_arg takes for them
            kernel._set_arg_buf(position, value)
        else:
            kernel.set_arg(position, value)

    def _write(self, place: int, value: Argument) -> None:
        start, text = self._places[place], _bytes_of(value)
        self._memory[start : start + len(text)] = np.frombuffer(text, np.uint8)


_ALIGNED = 16
"""Bytes of which the place of a value is a multiple."""


def _bytes_of(value: Argument) -> bytes:
    """A number's bytes as they are, or the handle of a buffer."""
    if isinstance(value, bytes):
        return value
    return struct.pack("@Q", 0 if value is None else value.int_ptr)
