"""Arrays that end where memory ends, and the levels that this machine has."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from cpu_levels import float_levels

from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm import precision_policy
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.product_records import gate_word
from partita_cpu.jit import isa
from partita_cpu.llvm.levels import Level
from partita_cpu.threads.claims import ALL_TAKEN, LINE
from tests.campaign.guard import PAGE, protect

from . import emulated

emulated.install_named(pytest.MonkeyPatch())  # before tests ask which levels there are


CACHES = {
    "haswell": CacheSizes(32 << 10, 256 << 10, 8 << 20),
    "arm": CacheSizes(64 << 10, 1 << 20, 0),
    "sapphire rapids": CacheSizes(48 << 10, 2 << 20, 2 << 20),
    "smallest": CacheSizes(1 << 10, 4 << 10, 0),
}
"""Of processors that are not at hand; and such that everything is cut into many pieces."""


class Guarded:
    """Makes arrays between two pages that nobody may touch; a wrong access ends the process."""

    def __init__(self):
        self._maps = []

    def array(self, values, at_end=True):
        """A copy that ends (or begins) exactly at a forbidden page."""
        values = np.ascontiguousarray(values)
        pages = -(-max(values.nbytes, 1) // PAGE)
        memory = mmap.mmap(-1, (pages + 2) * PAGE)
        raw = np.frombuffer(memory, np.uint8)
        base = raw.ctypes.data
        for page in (0, pages + 1):
            protect(base + page * PAGE, forbid=True)
        self._maps.append((memory, base, pages))
        start = PAGE * (pages + 1) - values.nbytes if at_end else PAGE
        out = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
        out[...] = values
        return out

    def release(self):
        for _, base, pages in self._maps:
            for page in (0, pages + 1):
                protect(base + page * PAGE, forbid=False)


@pytest.fixture
def guarded():
    made = Guarded()
    yield made
    made.release()


@pytest.fixture
def native_kernels(monkeypatch):
    """Lets kernels be of the machine's level, whichever one the environment names."""
    monkeypatch.delenv(isa.VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def products_in_bfloat16(monkeypatch):
    """Lets levels multiply bfloat16 that have instructions for it, if this machine's are slow."""
    monkeypatch.setattr(precision_policy, "multiplies_pairs", lambda level: level.dots_bfloat16)


@pytest.fixture(params=[level.name for level in float_levels()[1:]])
def level(request, monkeypatch):
    """The level of the models that are compiled."""
    monkeypatch.setenv(isa.VARIABLE, request.param)
    return request.param


def pytest_make_parametrize_id(val):
    """Tests are named by levels and arithmetics."""
    return str(val) if isinstance(val, Level) else val.name if isinstance(val, Arithmetic) else None


def own_share_left(tid, threads):
    """Claims of a step of which others have computed all but one thread's share."""
    words = np.full(threads * LINE, ALL_TAKEN, np.int64)
    words[tid * LINE] = 0
    return words


def choices():
    """Every level and arithmetic that this machine can run."""
    found = []
    for level in float_levels()[1:]:
        kinds = [Arithmetic.F32, Arithmetic.F16]
        kinds += [Arithmetic.BF16] if level.dots_bfloat16 else []
        kinds += [Arithmetic.BF16X3, Arithmetic.BF16X6] if level.tiles else []
        found += [(level, arithmetic) for arithmetic in kinds]
    return found


_SCALED = 1.75, -0.375

GATES = [0, gate_word(), gate_word(*_SCALED)]
"""No gate, HardSwish, and HardSwish times a number plus another."""


def gated(x, gate):
    """What one of `GATES` makes of numbers."""
    if not gate:
        return x
    factor, summand = (1, 0) if gate == GATES[1] else _SCALED
    return factor * x * np.clip(x / 6 + 0.5, 0, 1) + summand


NANS = [0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFF80FFFF]
"""Bits of NaN: the usual one, all set, and those whose payload lies in the lower half alone."""

INFINITIES = [0x7F800000, 0xFF800000]

TOLERANCE = {
    Arithmetic.F32: 2e-6,
    Arithmetic.BF16X6: 2e-6,
    Arithmetic.BF16X3: 2e-5,
    Arithmetic.BF16: 1.2e-2,
    Arithmetic.F16: 1.5e-3,
    Arithmetic.F16_SPLIT: 1.5e-3,
}
"""Of the result's largest value."""
