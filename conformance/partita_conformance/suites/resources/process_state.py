"""What a process shares, and no device may change: how it is, and how it is made unusual."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import decimal
import gc
import locale
import logging
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import tracemalloc
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from partita_conformance.suites.resources.library_state import further_state, known_operators

try:
    import resource
except ImportError:  # this system has no such limits
    resource = None  # type: ignore[assignment]  # and none are looked at


def state() -> dict[str, Any]:
    """What the whole process shares, and no device may change."""
    return {**state_at_hand(), "operators that ONNX knows": known_operators()}


def state_at_hand() -> dict[str, Any]:
    """That of it which is looked at in a moment, as behind each of many steps."""
    handlers = {s.name: signal.getsignal(s) for s in signal.Signals if s.name != "SIGKILL"}
    randoms = np.random.get_state(legacy=False)  # that of everybody
    key = randoms["state"]["key"].tobytes() if isinstance(randoms, dict) else b""
    return {
        "the working directory": Path.cwd(),
        "what lies in the working directory": sorted(path.name for path in Path.cwd().iterdir()),
        "what lies in the home directory": _visible(Path.home()),
        "environment variables": dict(os.environ),
        "numpy's handling of floating-point errors": np.geterr(),
        "numpy's random numbers": key,
        "the recursion limit": sys.getrecursionlimit(),
        "the filters of warnings": list(warnings.filters),
        "handlers of signals": handlers,
        "the locale": locale.setlocale(locale.LC_ALL),
        "the mask of new files": _mask(),
        "the search path of modules": list(sys.path),
        "the tracer": sys.gettrace(),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "the processors to run on": _processors(),
        "handlers of the root logger": (logging.root.level, list(logging.root.handlers)),
        "what is done with uncaught errors": (sys.excepthook, threading.excepthook),
        "Python's random numbers": random.getstate(),
        "the precision of decimals": decimal.getcontext().prec,
        "how numpy prints": np.get_printoptions(),
        "the timeout of sockets": socket.getdefaulttimeout(),
        "functions called at exit": atexit._ncallbacks(),  # nothing else counts them
        "how processes are started": multiprocessing.get_start_method(allow_none=True),
        "the interval of thread switches": sys.getswitchinterval(),
        "the profiler": (sys.getprofile(), threading.getprofile(), threading.gettrace()),
        "standard output and error": (sys.stdin, sys.stderr, sys.displayhook),
        "how warnings are shown": warnings.showwarning,
        "the class and the level of all loggers": (
            logging.getLoggerClass(),
            logging.root.manager.disable,
            logging.raiseExceptions,
        ),
        "the functions that everybody calls": [getattr(builtins, name) for name in _EVERYBODYS],
        "what numpy calls for errors": np.geterrcall(),
        "numpy's buffer": np.getbufsize(),
        "the folder of temporary files": tempfile.tempdir,
        "the stacks of threads": threading.stack_size(),
        "the digits of integers": sys.get_int_max_str_digits(),
        "how modules are found": (list(sys.meta_path), list(sys.path_hooks)),
        "tracing of memory": tracemalloc.is_tracing(),
        "the collector's callbacks": list(gc.callbacks),
        "the priority and limits of the process": _limits(),
        "signals that are held back": _held_back(),
        "timers": _timers(),
        "the environment of native code": _native_environment(),
        **further_state(),
    }


def _visible(folder: Path) -> list[str]:
    """Names of a folder but those that begin with a dot, where programs keep what is theirs."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(entry.name for entry in entries if not entry.name.startswith("."))


def _limits() -> tuple[Any, ...]:
    """Priority, scheduler and limits; nothing where the system does not say."""
    if resource is None:
        return ()
    names = ("NOFILE", "CORE", "STACK", "AS", "DATA", "MEMLOCK")
    limits = [resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in names]
    return (os.getpriority(os.PRIO_PROCESS, 0), *limits)


def _held_back() -> frozenset[int]:
    """Signals that do not reach this thread."""
    mask = getattr(signal, "pthread_sigmask", None)
    return frozenset(mask(signal.SIG_BLOCK, ())) if mask else frozenset()


def _timers() -> tuple[bool, ...]:
    """Which timers of the process run."""
    get_timer = getattr(signal, "getitimer", None)
    names = ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
    return tuple(get_timer(getattr(signal, name))[0] > 0 for name in names) if get_timer else ()


def _native_environment() -> frozenset[bytes]:
    """Variables as native code sees them, which may set some beside Python."""
    try:
        entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    except (OSError, TypeError, ValueError):  # another system, which keeps them elsewhere
        return frozenset()
    found: list[bytes] = []
    while entries and (entry := entries[len(found)]) is not None:
        found.append(entry)
    return frozenset(found)


_EVERYBODYS = ("print", "open", "input", "__import__", "sorted", "sum", "min", "max", "round")


def arithmetic() -> dict[str, Any]:
    """How this thread computes floats: modes of the processor that libraries switch."""
    third = [float(np.float32(sign) / np.float32(3)) for sign in (1, -1)]
    long = np.longdouble(1) / np.longdouble(3)
    return {
        "how small floats are computed": float(np.float32(1e-40) * np.float32(0.5)),
        "how floats are rounded": third,
        "how long floats are computed": str(long),
        "how small doubles are computed": float(np.float64(5e-324) * np.float64(1)),
        "which errors of arithmetic stop the process": _trapped(),
    }


def _trapped() -> int:
    """Errors of arithmetic that raise a signal on this thread; 0 where the system has no word."""
    try:
        enabled_traps = getattr(ctypes.CDLL(None), "fegetexcept", None)
    except (OSError, TypeError):  # another system
        return 0
    return int(enabled_traps()) if enabled_traps else 0


def _processors() -> frozenset[int]:
    """The processors that this thread may run on; none where the system does not say."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    return frozenset(get_affinity(0)) if get_affinity else frozenset()


def _run_on(processors: frozenset[int]) -> None:
    """Lets this thread run on some processors; none are for a system that does not say."""
    if processors:
        os.sched_setaffinity(0, processors)


def _mask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _noticed(number: int, frame: Any) -> None:
    """A handler of signals that no device has set."""


@contextlib.contextmanager
def unusual_state() -> Iterator[None]:
    """Lets the process be in an unusual state, so that a device that sets it anew is found out.

    A device that sets something when it compiles has set it long ago, in other checks.
    """
    folder, environment = Path.cwd(), dict(os.environ)
    limit, mask, filters = sys.getrecursionlimit(), os.umask(0o37), list(warnings.filters)
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    level, loggers = logging.root.level, list(logging.root.handlers)
    usual, collecting = _Usual(), gc.isenabled()
    elsewhere = tempfile.mkdtemp(prefix="partita-conformance-")
    home = tempfile.mkdtemp(dir=elsewhere)
    try:
        with np.errstate(all="warn"):
            os.chdir(elsewhere)
            _set_environment({**_ENVIRONMENT, "HOME": home})
            sys.setrecursionlimit(limit + 7)
            warnings.filterwarnings("default", message="nobody says this", append=False)
            if threading.current_thread() is threading.main_thread():
                for number in handlers:
                    signal.signal(number, _noticed)
            _run_on(_PROCESSORS)
            gc.enable()
            logging.root.handlers[:] = []
            logging.root.setLevel(_LEVEL)
            np.random.set_state(np.random.RandomState(7).get_state())  # that of everybody
            usual.change()
            yield
    finally:
        usual.restore()
        _run_on(_PROCESSORS)
        (gc.enable if collecting else gc.disable)()
        os.chdir(folder)
        shutil.rmtree(elsewhere, ignore_errors=True)
        _set_environment(environment)
        sys.setrecursionlimit(limit)
        os.umask(mask)
        logging.root.setLevel(level)
        logging.root.handlers[:] = loggers
        warnings.filters[:] = filters  # type: ignore[index]  # a list, whatever typeshed says
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


class _Usual:
    """Further settings of the process, as they are, to be changed and set back."""

    def __init__(self) -> None:
        self._thresholds, self._interval = gc.get_threshold(), sys.getswitchinterval()
        self._prints, self._precision = np.get_printoptions(), decimal.getcontext().prec
        self._timeout, self._digits = socket.getdefaulttimeout(), sys.get_int_max_str_digits()
        self._disabled, self._random = logging.root.manager.disable, random.getstate()
        self._buffer, self._folder = np.getbufsize(), tempfile.tempdir
        self._shown, self._hook = warnings.showwarning, sys.excepthook

    def change(self) -> None:
        """To what nobody sets."""
        gc.set_threshold(*(n + 3 for n in self._thresholds))
        sys.setswitchinterval(self._interval * 1.5)
        np.set_printoptions(precision=5, linewidth=91)
        decimal.getcontext().prec = self._precision + 3
        socket.setdefaulttimeout(91.0)
        sys.set_int_max_str_digits(9_100)
        logging.disable(3)
        np.setbufsize(16_384)
        tempfile.tempdir = tempfile.mkdtemp(dir=Path.cwd())  # goes with the folder around it
        warnings.showwarning = _shown
        sys.excepthook = _uncaught

    def restore(self) -> None:
        """To what they were."""
        gc.set_threshold(*self._thresholds)
        sys.setswitchinterval(self._interval)
        np.set_printoptions(**self._prints)
        decimal.getcontext().prec = self._precision
        socket.setdefaulttimeout(self._timeout)
        sys.set_int_max_str_digits(self._digits)
        logging.disable(self._disabled)
        random.setstate(self._random)
        np.setbufsize(self._buffer)
        tempfile.tempdir = self._folder
        warnings.showwarning, sys.excepthook = self._shown, self._hook


def _shown(*args: Any, **kwargs: Any) -> None:
    """What shows warnings, which no device has set."""


def _uncaught(*args: Any) -> None:
    """What shows uncaught errors, which no device has set."""


def _set_environment(variables: Mapping[str, str]) -> None:
    """Makes these all the environment variables there are."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


_LEVEL = 33  # of the root logger, which nobody else sets
_ENVIRONMENT = dict(os.environ)
"""The environment before the device could change it."""
_PROCESSORS = _processors()
"""The processors before the device could change them."""
ARITHMETIC = arithmetic()
"""How floats were computed before the device could switch it."""
_HANDLED = [signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGFPE]
