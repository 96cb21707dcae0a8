"""Weights that wait to be packed: those of a model in a few calls, without Python in between."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from partita.errors import CompileError
from partita.lowering import Array
from partita.system.memory_map import give_back
from partita_cpu.gemm.packing.kernels import PACKING
from partita_cpu.gemm.packing.packing_table import Table
from partita_cpu.gemm.packing.weights import scratch_of
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.trampoline import append_call
from partita_cpu.threads.step_team import team_of
from partita_cpu.threads.thread_pool import ROW, Rows

_MOST_BYTES = 1 << 23
"""Results that wait together. Both they and the model's weights are in memory when they are made,
and only then."""

_SHARED_BYTES = 1 << 16
"""Smaller results are made by one thread, sooner than they are handed out."""

_WAKING_BYTES = 1 << 19
"""Fewer bytes of results are there before another thread has begun."""


class _Job(NamedTuple):
    """What :func:`~partita_cpu.gemm.packing.kernels.pack_blocks` shall do.

    Attributes:
        weights: Float32, in the order that the table tells.
        result: As flat uint16.
        table: See there.
    """

    weights: Array
    result: Array
    table: Table


class DeferredWeights:
    """What is to be packed for the programs of one model. Thread-safe.

    Whoever adds a result may hand it on, but nobody may read it before :meth:`finish` was called.

    Args:
        threads: Threads that share the work.
        most: Bytes of results that wait together.
    """

    def __init__(self, threads: int, most: int = _MOST_BYTES) -> None:
        self._threads, self._most = threads, most
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []
        self._bytes = 0

    def add(self, weights: Array, result: Array, table: Table) -> None:
        """Has weights packed in float32, later or at once; the arrays are kept until then."""
        with self._lock:
            self._jobs.append(_Job(weights, result, table))
            self._bytes += result.nbytes
            if self._bytes >= self._most:
                self._run()

    def finish(self) -> None:
        """Packs what waits; returns when all results are there, those of other threads too."""
        with self._lock:
            if self._jobs:
                self._run()

    def _run(self) -> None:
        jobs, self._jobs = self._jobs, []
        shared, self._bytes = self._bytes >= _WAKING_BYTES, 0
        pool = team_of(self._threads, 0).pool
        packing = entry_of(*PACKING)
        if pool is None or packing is None:
            raise CompileError("Device CPU cannot compile what packs weights.")
        count = len(jobs)
        places = [job.result.ctypes.data for job in jobs]
        tables = np.array([job.table for job in jobs], np.int64)
        scratch = scratch_of(self._threads)
        values: list[int] = []
        result = jobs[0].result
        _, whole, halves, *own, table = append_call(
            values, packing, (0, result.view(np.float32), result, *scratch, tables[0])
        )
        for place, array in zip(own, scratch, strict=True):
            values[place] = array.ctypes.data
        slots = np.empty((count, packing.slots), np.int64)
        slots[:] = values
        slots[:, 1] = [job.weights.ctypes.data for job in jobs]
        for place, width in ((whole, 2), (halves, 1)):
            slots[:, place] = places
            # An array's size stands before its address, and behind it as that of its dimension.
            slots[:, place - 2] = slots[:, place + 1] = [job.result.size // width for job in jobs]
        slots[:, table] = tables.ctypes.data + tables.strides[0] * np.arange(count)
        rows = np.zeros((count, ROW), np.int64)
        rows[:, 0] = packing.trampoline
        rows[:, 1] = slots.ctypes.data + slots.strides[0] * np.arange(count)
        large = [pool.size > 1 and job.result.nbytes >= _SHARED_BYTES for job in jobs]
        rows[:, 2] = np.multiply(large, pool.size)
        pool.run(Rows(rows.ctypes.data, 0, count, shared))
        for job in jobs:
            give_back(job.weights)
