"""The main loop of a compile process: takes jobs, and writes machine code to disk.

It is started by :mod:`partita_cpu.jit.compile_pool`. Jobs come through a socket that all copies of
the process share, so that whoever is idle takes the next one; what goes back says which file was
tried. The process that sent the job looks for the file, and compiles by itself if it is not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

IDLE_S = 20.0
"""After so long without a job a process ends."""

MESSAGE_BYTES = 1 << 16

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

Message = dict[str, Any]
"""A job, as `partita_cpu.jit.compile_pool.Job` is sent."""


def main(descriptor: int, copies: int, levels: list[Message]) -> None:
    """Works until no jobs come any more.

    Args:
        descriptor: The socket.
        copies: How many processes take jobs.
        levels: Jobs that need no numba; each gets a process of its own, at once.
    """
    if os.fork():
        os._exit(0)  # so that whoever started this need not wait for its end
    jobs = socket.socket(fileno=descriptor)
    jobs.settimeout(IDLE_S)
    gc.disable()
    for job in levels:
        _start(functools.partial(_do, job, jobs))
    count = len(levels)
    with contextlib.suppress(TimeoutError):
        if jobs.recv(1, socket.MSG_PEEK):
            _learn()
            for _ in range(copies):
                _start(lambda: _serve(jobs))
            count += copies
    for _ in range(count):
        _, status = os.wait()
        if status:
            os.killpg(0, signal.SIGKILL)  # the job of the one that died would stay unanswered


def _start(work: Callable[[], None]) -> None:
    """Lets a copy of this process work; it ends when this one does."""
    parent = os.getpid()
    if os.fork():
        return
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == parent:
        work()
    os._exit(0)


def _learn() -> None:
    """Imports what all copies need; that takes longer than most jobs.

    Other modules of kernels are imported by the copy that gets a kernel of them, and numba by one
    that finds a kernel which is for numba alone.
    """
    sys.modules["scipy"] = None  # type: ignore[assignment]  # numba asks for it, kernels do not
    from partita_cpu.jit.translation import object_code
    from partita_cpu.runtime import first_kernels  # noqa: F401  # imports those of most models

    object_code.prepare()


def _serve(jobs: socket.socket) -> None:
    with contextlib.suppress(OSError):  # nothing to do for long, or nobody to do it for
        while message := jobs.recv(MESSAGE_BYTES):
            _do(json.loads(message), jobs)


def _do(job: Message, jobs: socket.socket) -> None:
    from partita.storage.cache_folder import CACHE_VARIABLE
    from partita_cpu.jit import dispatch, llvm_kernel
    from partita_cpu.llvm.levels import EVERY

    os.environ[CACHE_VARIABLE] = job["cache"]
    with contextlib.suppress(Exception):  # the sender will see the error when it tries by itself
        if "part" in job:
            llvm_kernel.make_level(EVERY[job["level"]], job["part"])
        elif job["kernel"]:
            dispatch.make_for(job["file"], job["module"], job["kernel"], tuple(job["kinds"]))
    jobs.send(job["file"].encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
