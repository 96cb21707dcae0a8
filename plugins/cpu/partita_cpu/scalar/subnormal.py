"""Subnormal numbers: in weights they count as 0.

Training that decays weights leaves such numbers in channels that nothing uses any more. Processors
take a hundred cycles and more for each operation on one of them, for what changes no result that is
not about as small (below 1.2e-38).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.lowering import Array
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.llvm.copies.flushed_rows import EXPONENT
from partita_cpu.scalar.instructions import bits


@loop(inline=True)
def flushed(x: Any) -> Any:
    """A float32, or 0 if it is subnormal; to be called by kernels."""
    return x if bits(x) & EXPONENT else np.float32(0)


def flushed_array(w: Array) -> Array:
    """Floats of any width with 0 in place of subnormal ones; the array itself, if it has none."""
    sizes, smallest = np.abs(w), np.finfo(w.dtype).smallest_normal
    if sizes.min(initial=smallest) >= smallest:
        return w
    subnormal = (sizes < smallest) & (sizes > 0)
    return np.where(subnormal, w.dtype.type(0), w) if subnormal.any() else w
