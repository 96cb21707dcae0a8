"""Where threads of device CPU wait: for each step of a network, and for steps that do nothing.

    python benchmarks/cpu_waits.py [--threads 2] [--mode mixed] [--runs 200] [MODEL ...]

Models and modes are those of `cpu_peers`. Every share of every step notes when it begins and ends,
by a kernel that is put in front of the step's own. Prints, in microseconds: how long a step takes
from its first share's start to the last one's end, what passes between the step before and it, the
longest share, the mean of all threads, and the first over the second; medians of the faster half of
all runs. Sums come last: what they have above the mean is waited. Before that, what a step of
nothing costs on so many threads and on fewer: the thread pool's own time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from typing import Any

import numpy as np
from cpu_peers import OURS, load

import partita
from partita.lowering import Program
from partita_cpu.jit.dispatch import entry_of
from partita_cpu.jit.intrinsics.atomics import call_clock, call_share
from partita_cpu.jit.kernel import jit
from partita_cpu.jit.trampoline import Entry, fill
from partita_cpu.runtime.call_table import CallTable
from partita_cpu.threads.thread_pool import ROW, Rows, ThreadPool, function_address

Array = np.ndarray[Any, Any]

WORDS = 8
"""Of the log for a share: seconds and nanoseconds at its start and at its end, on a line."""

EMPTY_STEPS = 200
MONOTONIC = 1


@jit
def _nothing(cells: Array, tid: int, nt: int) -> None:
    cells[8 * tid] += 1


@jit
def _timed(trampoline: int, slots: int, log: int, clock: int, tid: int, nt: int) -> None:
    """Calls a share of a step, and notes when."""
    at = log + 64 * tid
    call_clock(clock, (MONOTONIC, at))
    call_share(trampoline, (slots, tid, nt))
    call_clock(clock, (MONOTONIC, at + 16))


def entry_for(kernel: Any, *args: Any) -> Entry:
    """What a thread pool calls a kernel by."""
    entry = entry_of(kernel, args)
    if entry is None:
        raise RuntimeError("device CPU compiles no kernels here")
    return entry


def empty_step(threads: int) -> float:
    """Microseconds of a step that does nothing, among others like it."""
    taken = []
    for steps in (1, 1 + EMPTY_STEPS):
        cells = np.zeros(8 * threads, np.int64)
        entry = entry_for(_nothing, cells)
        slots = np.zeros(entry.slots, np.int64)
        fill(slots, entry, (cells,))
        table = np.zeros((steps, ROW), np.int64)
        table[:, :3] = entry.trampoline, slots.ctypes.data, threads
        rows, pool = Rows(table.ctypes.data, 0, steps, True), ThreadPool(threads)
        times = []
        for _ in range(400):
            start = time.perf_counter()
            pool.run(rows)
            times.append(time.perf_counter() - start)
        pool.stop()
        taken.append(statistics.median(times))
    return (taken[1] - taken[0]) / EMPTY_STEPS * 1e6


class Timed:
    """A network whose steps note when their shares begin and end."""

    def __init__(self, name: str, threads: int, mode: str) -> None:
        model, feeds = load(name)
        core = partita.Core()
        config = {"INFERENCE_NUM_THREADS": threads, **OURS[mode]}
        compiled = core.compile_model(core.read_model(model), "CPU", config)
        self.request = compiled.create_infer_request()
        for key, array in feeds.items():
            self.request.set_tensor(key, partita.Tensor(array))
        for _ in range(50):  # by then calls are bound
            self.request.infer()
        found = gc.get_objects()
        steps = max((one.steps for one in found if isinstance(one, Program)), key=len)
        table = max((one._rows for one in found if isinstance(one, CallTable)), key=len)
        self.names = [getattr(step.fn, "__qualname__", "") for step in steps]
        self._threads = threads
        self._log = np.zeros(len(table) * threads * WORDS + WORDS, np.int64)
        first = -self._log.ctypes.data % 64 // 8
        self._view = self._log[first : first + len(table) * threads * WORDS]
        clock = function_address("clock_gettime")
        entry = entry_for(_timed, 0, 0, 0, 0)
        self._slots = np.zeros((len(table), entry.slots), np.int64)
        for number, (row, slots) in enumerate(zip(table, self._slots, strict=True)):
            log = self._view.ctypes.data + 64 * threads * number
            fill(slots, entry, (int(row[0]), int(row[1]), log, clock))
            if row[0]:
                row[:2] = entry.trampoline, slots.ctypes.data

    def run(self) -> tuple[Array, Array]:
        """Starts and ends of a run, (steps, threads) microseconds; NaN where there was no share."""
        self._view[:] = 0
        self.request.infer()
        words = self._view.reshape(-1, self._threads, WORDS).astype(np.float64)
        times = words[..., 0:4:2] * 1e6 + words[..., 1:4:2] / 1e3
        times -= times[times > 0].min()
        times[times < 0] = np.nan
        return times[..., 0], times[..., 1]


def measure(name: str, threads: int, mode: str, runs: int) -> None:
    """Prints the table of a network."""
    timed = Timed(name, threads, mode)
    starts, ends = map(np.array, zip(*(timed.run() for _ in range(runs)), strict=True))
    total = np.nanmax(ends, axis=(1, 2))
    quiet = total <= np.median(total)
    starts, ends = starts[quiet], ends[quiet]
    first, last = np.nanmin(starts, axis=2), np.nanmax(ends, axis=2)
    between = np.diff(first, axis=1, prepend=0.0)
    between[:, 1:] = first[:, 1:] - last[:, :-1]
    shares = ends - starts
    figures = [last - first, between, np.nanmax(shares, axis=2)]
    figures.append(np.nansum(shares, axis=2) / threads)
    print(f"{name}, {mode}, {threads} threads: {np.median(total):.0f} us")
    print(f"{'':4}{'step':26}{'takes':>9}{'before':>9}{'longest':>9}{'mean':>9}{'ratio':>9}")
    medians = np.array([np.median(figure, axis=0) for figure in figures])
    for number, (kind, values) in enumerate(zip(timed.names, medians.T, strict=True)):
        print(f"{number:3} {kind:26}", row_of(values))
    print(f"{'':4}{'all':26}", row_of(medians.sum(axis=1)), flush=True)


def row_of(values: Array) -> str:
    """A row of the table: times of a step, the longest share and the mean last, and their ratio."""
    return " ".join(f"{value:8.1f}" for value in values) + f" {values[2] / values[3]:8.2f}"


def main() -> None:
    """Measures what the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mode", choices=OURS, default="mixed")
    parser.add_argument("--runs", type=int, default=200)
    args = parser.parse_args()
    counts = [n for n in (2, 4, 8) if n < args.threads] + [args.threads]
    costs = ", ".join(f"{n}: {empty_step(n):.2f}" for n in counts)
    print(f"us of a step that does nothing, by threads: {costs}")
    for name in args.models:
        measure(name, args.threads, args.mode, args.runs)


if __name__ == "__main__":
    main()
