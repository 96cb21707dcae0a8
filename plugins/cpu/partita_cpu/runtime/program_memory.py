"""The memory of a program while it runs: an arena for intermediate tensors, buffers for outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from partita.lowering import Array, Operand, Program
from partita.lowering.memory_plan import ALIGNMENT
from partita.lowering.program import plain
from partita.system.large_pages import aligned_bytes
from partita.tensors.array_state import data_address


class Memory:
    """Where the tensors of a program lie that was loaded.

    Args:
        arena: At least as many bytes as its intermediate tensors take.

    Attributes:
        start: The address of the arena.
    """

    def __init__(self, arena: Array) -> None:
        self._arena = arena
        self.start = data_address(arena)

    def load(self, program: Program, buffers: Sequence[Array | None]) -> None:
        """Has the memory hold the tensors of a program.

        Args:
            program: The program.
            buffers: What its outputs are made in.
        """
        self._program, self._buffers = program, buffers
        self._arrays: dict[Operand, Array] = {}

    def array(self, operand: Operand) -> Array:
        """The memory of an intermediate tensor."""
        found = self._arrays.get(operand)
        if found is None:
            # What has no elements is written by no step, and need not have a place.
            start = self._program.offsets[operand.root] if operand.nbytes else 0
            raw = self._arena[start : start + operand.nbytes]
            found = self._arrays[operand] = raw.view(operand.dtype).reshape(operand.shape)
        return found

    def arguments(self, number: int) -> list[Any]:
        """The arguments of a step: arrays in place of operands, but for those of inputs."""
        return [self._argument(arg) for arg in self._program.steps[number].args]

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, np.ndarray):
            return plain(arg)
        if not isinstance(arg, Operand):
            return arg
        if arg.const is not None:
            return arg.const
        if arg.root in self._program.offsets:
            return self.array(arg)
        for buffer, owner in zip(self._buffers, self._program.owned, strict=True):
            if owner is arg.root and buffer is not None:
                return buffer.reshape(arg.shape)
        return arg


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialized array whose memory starts at a multiple of a cache line."""
    if dtype.hasobject:
        return np.empty(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    return aligned_bytes(nbytes).view(dtype).reshape(shape)


def lent_arena(scratch: Array | None, nbytes: int) -> Array | None:
    """An arena in memory that was lent, or ``None`` if none was, or too little."""
    if scratch is None:
        return None
    start = -scratch.ctypes.data % ALIGNMENT
    return scratch[start : start + nbytes] if start + nbytes <= scratch.nbytes else None
