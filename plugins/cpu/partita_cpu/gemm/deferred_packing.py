"""Packing of a model's weights that is put off, so that few calls pack all of them."""

from __future__ import annotations

from partita.lowering import Array
from partita.system.memory_map import give_back
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_cpu.gemm.packing.packing_calls import Job, pack_all
from partita_cpu.gemm.packing.packing_table import Table

_MOST_BYTES = 1 << 23
"""Results that wait together. Both they and the model's weights are in memory when they are made,
and only then."""


class DeferredWeights:
    """What is to be packed for the programs of one model. Thread-safe.

    Whoever adds a result may hand it on, but nobody may read it before :meth:`finish` was called.

    Args:
        threads: Threads that share the work.
        most: Bytes of results that wait together.
    """

    def __init__(self, threads: int, most: int = _MOST_BYTES) -> None:
        self._threads, self._most = threads, most
        self._lock = InterruptSafeLock()
        self._jobs: list[Job] = []
        self._bytes = 0

    def add(self, weights: Array, result: Array, table: Table) -> None:
        """Has weights packed in float32, later or at once; the arrays are kept until then."""
        with self._lock:
            self._jobs.append(Job(weights, result, table))
            self._bytes += result.nbytes
            if self._bytes >= self._most:
                self._run()

    def finish(self) -> None:
        """Packs what waits; returns when all results are there, those of other threads too."""
        with self._lock:
            if self._jobs:
                self._run()

    def _run(self) -> None:
        # Interrupted, it leaves all of them to the next one: results that others have been handed.
        pack_all(self._jobs, self._threads)
        jobs, self._jobs, self._bytes = self._jobs, [], 0
        for job in jobs:
            give_back(job.weights)
