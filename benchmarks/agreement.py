"""Whether two engines agree on the outputs of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RTOL, ATOL = 1e-3, 1e-4


def disagreement(got: Sequence[Array], want: Sequence[Array]) -> str:
    """Empty if all outputs agree at rtol 1e-3, atol 1e-4; else the first that does not."""
    for index, (have, due) in enumerate(zip(got, want, strict=True)):
        if have.dtype != due.dtype or have.shape != due.shape:
            return f"output {index}: {have.dtype}{have.shape} for {due.dtype}{due.shape}"
        if not np.allclose(have, due, rtol=RTOL, atol=ATOL, equal_nan=True):
            error = np.nanmax(np.abs(have.astype(np.float64) - due.astype(np.float64)))
            return f"output {index}: off by {error:.3g}"
    return ""
