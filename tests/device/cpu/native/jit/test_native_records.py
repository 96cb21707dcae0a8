"""Named tuples as arguments of kernels: flat in steps, records in the kernel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from partita.lowering import Array
from partita.lowering.program import flattened
from partita_cpu.jit.code_hash import read_code
from partita_cpu.jit.kernel import Kernel, jit
from partita_cpu.jit.loop_kernel import loop
from partita_cpu.jit.record_arguments import described, grouped, records_of


class Bounds(NamedTuple):
    low: float
    high: float


class Swapped(NamedTuple):
    high: float
    low: float


Swapped.__qualname__ = Bounds.__qualname__


class Clipping(NamedTuple):
    x: Array
    bounds: Bounds
    times: int


@loop(inline=True)
def clipped(value: float, bounds: Bounds) -> float:
    return min(max(value, bounds.low), bounds.high)


@jit
def clip_all(y: Array, clipping: Clipping, tid: int, nt: int) -> None:
    for i in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        y[i] = clipped(clipping.x[i], clipping.bounds) * clipping.times


def test_a_kernel_takes_records_and_their_fields_one_by_one():
    x = np.linspace(-2, 2, 9)
    given, flat = np.zeros(9), np.zeros(9)
    for tid in range(2):
        clip_all(given, Clipping(x, Bounds(-1.0, 0.5), 3), tid, 2)
        clip_all(flat, x, -1.0, 0.5, 3, tid, 2)
    np.testing.assert_array_equal(given, np.clip(x, -1, 0.5) * 3)
    np.testing.assert_array_equal(flat, given)


def test_numba_takes_the_same_where_no_kernels_are_kept(monkeypatch):
    monkeypatch.setattr("partita_cpu.jit.dispatch.available", lambda: False)
    x, y = np.linspace(-2, 2, 9), np.zeros(9)
    clip_all(y, x, -1.0, 0.5, 3, 0, 1)
    np.testing.assert_array_equal(y, np.clip(x, -1, 0.5) * 3)


def test_fields_are_grouped_as_they_were_flattened():
    records = Clipping("x", Bounds(1, 2), 3)
    args = ("y", records, 0, 1)
    flat = flattened(args)
    assert flat == ("y", "x", 1, 2, 3, 0, 1)
    assert grouped(clip_all.py_func, flat, lambda record, its: record(*its)) == args
    assert records_of(clip_all.py_func) == (None, Clipping, None, None)
    assert flattened((x := (1, 2), [3])) == (x, [3])  # others stay as they are


def test_kernels_are_compiled_anew_for_other_fields(monkeypatch):
    def digest() -> str:
        return read_code.__wrapped__(Kernel(clip_all.py_func, {}, True)).digest()

    before = digest()
    assert described(clip_all.py_func) == "Clipping(x , bounds Bounds(low , high ), times )"
    monkeypatch.setitem(globals(), "Bounds", Swapped)
    records_of.cache_clear()
    assert digest() != before
    monkeypatch.undo()
    records_of.cache_clear()
    assert digest() == before
