"""What the campaign must notice, one fault a seed; for its own test."""

from __future__ import annotations

import ctypes
import os

import numpy as np

import partita
from partita.errors import CompileError, ModelFormatError

from . import guard
from .patience import ended_after


def case(seed):
    """Ends as the seed says."""
    yield f"fault {seed}"
    match seed:
        case 1:
            _beyond(1)
        case 2:
            raise KeyError("raw")
        case 3:
            while True:
                pass
        case 4:
            raise ModelFormatError("Operation 'x' has an axis of 9.")
        case 5:
            raise CompileError("Device 'CPU' failed to compile model 'm': KeyError") from KeyError(
                1
            )
        case 6:
            _beyond(-1)
        case 7:
            np.ones(1 << 40, np.uint8)
        case 8:
            raise SystemExit(3)
        case 9:
            with ended_after(0.2):
                while True:
                    pass
        case 10:
            partita.Tensor(_Demanding())
        case 11:
            os.abort()
        case 12:
            os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'")
            os.abort()


class _Demanding:
    """Raises from within what the framework calls."""

    def __array__(self, dtype=None, copy=None):
        raise MemoryError("2 GiB")


def _beyond(step):
    """Reads the element behind the last one, or before the first one."""
    array = guard.guarded(np.arange(5, dtype=np.float32), at_end=step > 0)
    ctypes.string_at(array.ctypes.data + (20 if step > 0 else -4), 4)
