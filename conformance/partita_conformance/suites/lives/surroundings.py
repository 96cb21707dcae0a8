"""States of the process and its threads in which an application may call a device."""

from __future__ import annotations

import contextlib
import decimal
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import numpy as np

from partita_conformance.suites.resources.meeting import on_a_thread

_CLOCKS = ("time", "monotonic", "perf_counter")


class Clock:
    """The process's clocks, which can be put on."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._usual = {name: getattr(time, name) for name in _CLOCKS}

    def put_on(self, seconds: float) -> None:
        """Lets time have passed."""
        self._ahead_s += seconds

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Has everybody read these clocks who reads those of module ``time`` by its name."""

        def ahead(usual: Callable[[], float]) -> Callable[[], float]:
            return lambda: usual() + self._ahead_s

        for name, usual in self._usual.items():
            setattr(time, name, ahead(usual))
        try:
            yield
        finally:
            for name, usual in self._usual.items():
                setattr(time, name, usual)


@contextlib.contextmanager
def process(level: str, folder: str) -> Iterator[None]:
    """A process as an application may have it.

    Args:
        level: Of dimension ``process``.
        folder: One that may be the working directory.
    """
    with contextlib.ExitStack() as stack:
        match level:
            case "errors of arithmetic raise":
                stack.enter_context(np.errstate(all="raise"))
            case "warnings raise":
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("error")
            case "nothing is collected":
                was = gc.isenabled()
                gc.disable()
                stack.callback(gc.enable if was else gc.disable)
            case "threads switch often":
                stack.callback(sys.setswitchinterval, sys.getswitchinterval())
                sys.setswitchinterval(1e-5)
            case "elsewhere":
                stack.callback(os.chdir, Path.cwd())
                os.chdir(folder)
                stack.enter_context(_variables(TMPDIR=folder, LANG="tr_TR.UTF-8"))
            case "profiled":
                stack.callback(sys.setprofile, sys.getprofile())
                sys.setprofile(_profile)
            case "nothing is there to print to":
                stack.callback(setattr, sys, "stdout", sys.stdout)
                stack.callback(setattr, sys, "stderr", sys.stderr)
                sys.stdout = sys.stderr = None  # as without a console
            case "limits are its own":
                stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
                sys.setrecursionlimit(sys.getrecursionlimit() + 9)
                stack.callback(os.umask, os.umask(0o27))
                if get_affinity := getattr(os, "sched_getaffinity", None):
                    usual = get_affinity(0)
                    stack.callback(os.sched_setaffinity, 0, usual)
                    os.sched_setaffinity(0, {min(usual)})
            case "numbers are printed short":
                stack.enter_context(np.printoptions(precision=1, threshold=4, edgeitems=1))
                stack.enter_context(decimal.localcontext(prec=3))
        yield


def _profile(frame: FrameType, event: str, argument: object) -> None:
    """What an application's profiler is called as."""


@contextlib.contextmanager
def _variables(**variables: str) -> Iterator[None]:
    """Sets variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class Threads:
    """Where steps are made: here, on a new thread, or on one that has made others."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "partita-conformance-pool")

    def make(self, level: str, task: Callable[[], None]) -> None:
        """Makes a step; raises what it raises."""
        match level:
            case "a new thread":
                on_a_thread(task)()
            case "a thread of a pool":
                self._pool.submit(task).result()
            case _:
                task()

    def close(self) -> None:
        """Ends the pool."""
        self._pool.shutdown()
