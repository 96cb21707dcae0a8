"""Packs many weights in one call from Python, by a table with a row for each call of the kernel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from partita.errors import CompileError
from partita.lowering import Array
from partita_cpu.gemm.packing.kernels import PACKING, PARTS, PIECE, PLACES
from partita_cpu.gemm.packing.packing_table import FIELDS, Table
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.foreign_call import invoke
from partita_cpu.jit.trampoline import RETURNED, Entry, append_call
from partita_cpu.threads.step_team import team_of
from partita_cpu.threads.thread_pool import ROW, Rows, ThreadPool, raise_failure

_SHARED_BYTES = 1 << 16
"""Smaller results are made by one thread, sooner than they are handed out."""

_WAKING_BYTES = 1 << 21
"""Fewer bytes of results are there before another thread has begun."""


class Job(NamedTuple):
    """What :func:`~partita_cpu.gemm.packing.kernels.pack_blocks` shall do.

    Attributes:
        weights: Float32, in the order of the table.
        result: As flat uint16.
        table: See there.
    """

    weights: Array
    result: Array
    table: Table


def pack_all(jobs: Sequence[Job], threads: int) -> int:
    """Packs weights, shared among so many threads where that is worth it.

    Returns:
        The largest bit pattern of an absolute value that became bfloat16.

    Raises:
        CompileError: The kernel cannot be compiled.
        InferError: It failed.
    """
    form = _form(threads)
    scratch = np.empty(form.scratch_words, np.int64)
    found = scratch[:threads]
    found[:] = 0
    tables = np.array([job.table for job in jobs], np.int64)
    slots = np.empty((len(jobs), form.entry.slots), np.int64)
    slots[:] = form.values
    slots[:, form.scratch] = scratch.ctypes.data + form.offsets
    slots[:, form.weights] = [job.weights.ctypes.data for job in jobs]
    results = np.array([(job.result.ctypes.data, job.result.size) for job in jobs], np.int64)
    for place, width in ((form.whole, 2), (form.halves, 1)):
        slots[:, place] = results[:, 0]
        # An array's size stands before its address, and behind it as that of its dimension.
        slots[:, place - 2] = slots[:, place + 1] = results[:, 1] // width
    slots[:, form.table] = tables.ctypes.data + tables.strides[0] * np.arange(len(jobs))
    calls = slots.ctypes.data + slots.strides[0] * np.arange(len(jobs))
    is_worth_it = threads > 1 and 2 * results[:, 1].sum() >= _WAKING_BYTES
    pool = team_of(threads, 0).pool if is_worth_it else None
    if pool is not None:
        _run_shared(pool, form.entry, calls, 2 * results[:, 1] >= _SHARED_BYTES, threads)
    else:
        for call in calls.tolist():
            if invoke()(form.entry.trampoline, call, 0, 1) not in RETURNED:
                raise_failure(1, None)
    return int(found.max())


def _run_shared(pool: ThreadPool, entry: Entry, calls: Array, large: Array, threads: int) -> None:
    """Has calls made, of which the large ones are shared among all threads."""
    rows = np.zeros((len(calls), ROW), np.int64)
    rows[:, 0] = entry.trampoline
    rows[:, 1] = calls
    rows[:, 2] = np.multiply(large, threads)
    pool.run(Rows(rows.ctypes.data, 0, len(calls), True))


class _Form(NamedTuple):
    """What all calls by so many threads have in common.

    Attributes:
        entry: How the kernel is called.
        values: What a call's slots hold, but for addresses and sizes of weights and results.
        weights: The slot of the address of weights.
        whole: That of the result's, if it is kept whole.
        halves: That of the result's, if it is not.
        table: That of the table's.
        scratch: Those of what threads write to meanwhile, the numbers that they found last.
        offsets: Where these are, in bytes of one memory; the numbers at its start.
        scratch_words: How many int64 that memory takes.
    """

    entry: Entry
    values: Array
    weights: int
    whole: int
    halves: int
    table: int
    scratch: list[int]
    offsets: Array
    scratch_words: int


@functools.cache
def _form(threads: int) -> _Form:
    entry = entry_of(*PACKING)
    if entry is None:
        raise CompileError("Device CPU cannot compile what packs weights.")
    room = (
        np.empty((threads, PLACES), np.int64),
        np.empty((threads, PIECE), np.float32),
        np.empty((threads, PARTS * PIECE), np.uint16),
        np.empty(threads, np.int64),
    )
    values: list[int] = []
    result = np.empty(0, np.uint16)
    _, whole, halves, *scratch, table = append_call(
        values, entry, (0, result.view(np.float32), result, *room, np.empty(FIELDS, np.int64))
    )
    places, floats, parts, found = (array.nbytes for array in room)
    offsets = np.array([found, found + places, found + places + floats, 0])
    words = (found + places + floats + parts) // 8
    return _Form(entry, np.array(values), 1, whole, halves, table, scratch, offsets, words)
