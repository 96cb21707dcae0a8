"""A pool of processes that compile kernels which are not on disk yet, for this process to load.

They know this process's code and nothing else of it: they are fresh interpreters that import this
package, not copies of this process, and do not run its main module. Where they cannot be started,
or end early, files are missing, and this process compiles by itself, one thing after the other.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import partita
import partita_cpu
from partita.errors import CompileError
from partita.system.processor_time import group_seconds
from partita.system.processors import usable_processors
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock
from partita_cpu.jit import disk_cache
from partita_cpu.jit.isa import cap
from partita_cpu.llvm.levels import PORTABLE
from partita_cpu.system import this_system

MOST = 8
"""Processes that compile at the same time."""

PATIENCE_S = 60.0
"""After so long without an answer this process goes on alone, if nothing was computed either.

Where processors are slow, or many want them, a kernel can take minutes.
"""

BUDGET_VARIABLE = "PARTITA_COMPILE_SECONDS"
"""Environment variable: what the processes may compute together without finishing a kernel."""

BUDGET_S = 1800.0
"""Seconds of processor time of that budget, unless told otherwise. A kernel takes some seconds on
processors of today; what computes for half an hour will not end."""

_LOOK_S = 0.1


class Job(NamedTuple):
    """What to compile, as `compile_worker` receives it.

    Attributes:
        file: The name of the file of `disk_cache` that shall be there.
        spec: What it is compiled from: the module, the function and the types of its arguments.
    """

    file: str
    spec: dict[str, Any]

    def to_json(self, root: Path) -> dict[str, Any]:
        """The job as JSON takes it, with the folder of caches in which the file shall be."""
        return {"file": self.file, "cache": str(root), **self.spec}


_READY = Job("ready", {"module": __name__, "kernel": "", "kinds": ()})
"""Names no kernel: whoever takes it has imported what all jobs need."""


Report = Callable[[int], None]
"""Called again and again with the number of jobs that are done."""


def order(jobs: Sequence[Job]) -> None:
    """Has files made, the first ones first; does not wait. Those under way are not made twice.

    Args:
        jobs: Each makes one file.
    """
    global current_workers
    root = disk_cache.root_with_room() if jobs and workers_possible() else None
    if root is None:
        return
    with _lock:
        if current_workers is not None and current_workers.is_alive():
            current_workers.send(jobs, root)
            return
        if current_workers is not None:
            current_workers.leave()
        current_workers = None
        with contextlib.suppress(OSError):
            current_workers = _WorkerGroup(jobs, root)


def start_workers() -> None:
    """Has processes get ready for jobs that will come, on a machine's first day; does not wait.

    They import the compiler while this process still imports what it needs itself.
    """
    if disk_cache.is_new() and cap() is not PORTABLE:
        order([_READY])


def wait(files: Collection[str], report: Report | None = None) -> None:
    """Returns when all files that were ordered are made, or will not be.

    Args:
        files: Names of the files.
        report: Called with how many of them are there, again and again.

    Raises:
        CompileError: The processes have used their budget up without finishing one.
    """
    timeout = _AnswerTimeout()
    while True:
        with _lock:
            workers = current_workers
            left = 0 if workers is None else workers.listen(files)
        if report is not None:
            report(len(files) - left)
        if workers is None or not left:
            return
        if timeout.is_at_end(workers, left):
            stop_workers()
            return
        if timeout.spent > budget():
            unfinished = workers.unfinished(files)
            stop_workers()
            raise CompileError(_endless(unfinished, timeout.spent))
        try:
            workers.sleep()
        except BaseException:
            stop_workers()  # what the user gives up nobody shall compile
            raise


def budget() -> float:
    """Seconds of processor time that compiling may take without finishing a kernel.

    Raises:
        CompileError: The environment variable holds no such number.
    """
    text = os.environ.get(BUDGET_VARIABLE, "")
    if not text:
        return BUDGET_S
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise CompileError(
        f"Environment variable {BUDGET_VARIABLE} is '{text}'; it takes a number of seconds above 0."
    )


def _endless(files: Sequence[str], spent: float) -> str:
    kernels = ", ".join(f"'{file.rpartition('-')[0] or file}'" for file in files[:5])
    return (
        f"Compiling {len(files)} kernels for this processor ({kernels}) took {spent:.0f} s of "
        f"processor time without finishing one; {budget():g} s are allowed. If this machine is "
        f"that slow, set {BUDGET_VARIABLE} to more; else run the model on another device."
    )


class _AnswerTimeout:
    """For how long there was no answer.

    Attributes:
        spent: Processor seconds used since the first look after an answer.
    """

    def __init__(self) -> None:
        self.spent = 0.0
        self._left = -1
        self._since = 0.0
        self._first: float | None = None
        self._last: float | None = None

    def is_at_end(self, workers: _WorkerGroup, left: int) -> bool:
        """Whether processes with so many files left have stopped computing."""
        now = time.monotonic()
        if left != self._left:
            self._left, self._since, self.spent = left, now, 0.0
            self._first = self._last = None
            return False
        if now - self._since <= PATIENCE_S:
            return False
        self._since = now
        before, self._last = self._last, workers.processor_seconds()
        if self._first is None:
            self._first = self._last
        self.spent = self._last - self._first
        return self._last == before


def stop_workers() -> None:
    """Ends the processes, whatever they are doing."""
    global current_workers
    with _lock:
        if current_workers is not None and current_workers.pid == os.getpid():
            current_workers.end()
        current_workers = None


class _WorkerGroup:
    """The processes that were started together."""

    def __init__(self, jobs: Sequence[Job], root: Path) -> None:
        self.pid = os.getpid()
        self._open: set[str] = set()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            self._socket = ours
            first = [job for job in jobs if "part" in job.spec]
            request = json.dumps([job.to_json(root) for job in first])
            copies = min(usable_processors(), MOST)
            starter = subprocess.Popen(
                [*_python(), str(theirs.fileno()), str(copies), request],
                pass_fds=[theirs.fileno()],
                env=child_environment(),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.group = starter.pid
        starter.wait()  # it leaves others of its group behind
        self._open.update(job.file for job in first)
        self.send(jobs, root)

    def is_alive(self) -> bool:
        """Whether they still work, and for this process: after a fork they do for another one."""
        return self.pid == os.getpid() and self.listen(()) == 0 and self.group != 0

    def send(self, jobs: Sequence[Job], root: Path) -> None:
        """Adds jobs that are not under way, whose files shall be in this folder of caches."""
        for job in jobs:
            if job.file not in self._open:
                try:
                    self._socket.send(json.dumps(job.to_json(root)).encode())
                except OSError:
                    return  # too many at once, or nobody is there: a file will be missing
                self._open.add(job.file)

    def listen(self, files: Collection[str]) -> int:
        """Takes in what is done; returns how many of some files are under way."""
        with contextlib.suppress(BlockingIOError):
            while self.group:
                try:
                    answer = self._socket.recv(1 << 10)
                except ConnectionError:
                    answer = b""
                if answer:
                    self._open.discard(answer.decode())
                else:
                    self.leave()
        return len(self.unfinished(files))

    def sleep(self) -> None:
        """Waits for an answer, not for long."""
        with (
            contextlib.suppress(OSError, ValueError),  # another thread has closed it
            selectors.DefaultSelector() as selector,
        ):
            selector.register(self._socket, selectors.EVENT_READ)
            selector.select(_LOOK_S)

    def unfinished(self, files: Collection[str]) -> list[str]:
        """Those of some files that are under way."""
        return [file for file in files if file in self._open]

    def processor_seconds(self) -> float:
        """What they have computed so far; it changes while one computes, if the system says so."""
        return group_seconds(self.group) or 0.0

    def end(self) -> None:
        """Ends them."""
        if self.group:
            with contextlib.suppress(OSError):
                os.killpg(self.group, signal.SIGKILL)
        self.leave()

    def leave(self) -> None:
        """Sends them no more jobs."""
        self.group = 0
        self._open.clear()
        self._socket.close()


def workers_possible() -> bool:
    """Whether there is an interpreter to start, and a folder where it can leave files."""
    if not this_system().walks_programs:
        return False  # machine code could not be loaded, and the processes are made as Linux does
    name = Path(sys.executable or "").name
    return name.startswith("python") and not getattr(sys, "frozen", False) and disk_cache.keeps()


def _python() -> list[str]:
    optimize = ["-" + "O" * sys.flags.optimize] if sys.flags.optimize else []
    return [
        sys.executable,
        *optimize,
        "-P",
        "-W",
        "ignore",
        "-m",
        "partita_cpu.runtime.compile_worker",
    ]


def child_environment() -> dict[str, str]:
    """So that the same packages are found, and no folder that this process does not search."""
    homes = [Path(package.__path__[0]).parent for package in (partita, partita_cpu)]
    places = [place for place in sys.path if Path(place).is_absolute()]
    places += [str(home) for home in homes if str(home) not in places]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(places),
        "OPENBLAS_NUM_THREADS": "1",
        # numba paints the message of each attempt that fails, and there are thousands of them.
        "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING": "1",
    }


current_workers: _WorkerGroup | None = None
_lock = InterruptSafeLock()
atexit.register(stop_workers)
