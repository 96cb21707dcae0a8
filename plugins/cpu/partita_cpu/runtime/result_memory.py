"""Where a runner's results lie that were given no memory: for each output one, of all shapes.

Memory that is new has to be cleared by the system, page by page, when a run first writes to it: for
the picture that a segmentation network makes of each new size that takes as long as a tenth of the
network.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.runtime.program_memory import aligned_empty

_BYTE = np.dtype(np.uint8)


class ResultMemory:
    """Memory for results, each of which is valid until the next run.

    It grows to the double at least; what no result uses of it is never touched, and takes no
    memory.

    Attributes:
        version: Another number where :meth:`array` gives other memory than before.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, Array] = {}
        self.version = 0

    def array(self, index: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for a result, with arbitrary content.

        Args:
            index: Of the output.
            shape: Of what a program makes there.
            dtype: Its element type.

        Raises:
            MemoryError: The host has no room.
        """
        if dtype.hasobject:
            return np.empty(shape, dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        block = self._blocks.get(index)
        if block is None or block.size < nbytes:
            grown = 0 if block is None else 2 * block.size
            block = self._blocks[index] = aligned_empty((max(grown, nbytes),), _BYTE)
            self.version += 1
        return np.ndarray(shape, dtype, block)

    def leave(self) -> None:
        """Leaves the memory to who has the last results; later ones lie elsewhere."""
        self._blocks.clear()
        self.version += 1

    @property
    def nbytes(self) -> int:
        """What it takes at most."""
        return sum(block.nbytes for block in self._blocks.values())
