"""What a process shares, and no device may change: how it is, and how it is made unusual."""

from __future__ import annotations

import atexit
import contextlib
import decimal
import gc
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def state() -> dict[str, Any]:
    """What the whole process shares, and no device may change."""
    handlers = {s.name: signal.getsignal(s) for s in signal.Signals if s.name != "SIGKILL"}
    randoms = np.random.get_state(legacy=False)  # that of everybody
    key = randoms["state"]["key"].tobytes() if isinstance(randoms, dict) else b""
    return {
        "the working directory": Path.cwd(),
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
    }


def arithmetic() -> dict[str, Any]:
    """How this thread computes floats: modes of the processor that libraries switch."""
    third = [float(np.float32(sign) / np.float32(3)) for sign in (1, -1)]
    return {
        "how small floats are computed": float(np.float32(1e-40) * np.float32(0.5)),
        "how floats are rounded": third,
    }


def _processors() -> frozenset[int]:
    """The processors that this thread may run on; none where the system does not tell."""
    told = getattr(os, "sched_getaffinity", None)
    return frozenset(told(0)) if told else frozenset()


def _mask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def _noticed(number: int, frame: Any) -> None:
    """A handler of signals that no device has set."""


@contextlib.contextmanager
def unusual_state() -> Iterator[None]:
    """Lets the process be in a state that nobody wants, so that setting it anew shows.

    A device that sets something when it compiles has set it long ago, in other checks.
    """
    folder, environment = Path.cwd(), dict(os.environ)
    limit, mask, filters = sys.getrecursionlimit(), os.umask(0o37), list(warnings.filters)
    handlers = {number: signal.getsignal(number) for number in _HANDLED}
    level, loggers = logging.root.level, list(logging.root.handlers)
    elsewhere = tempfile.mkdtemp(prefix="partita-conformance-")
    try:
        with np.errstate(all="warn"):
            os.chdir(elsewhere)
            _set_environment(_ENVIRONMENT)
            sys.setrecursionlimit(limit + 7)
            warnings.filterwarnings("default", message="nobody says this", append=False)
            if threading.current_thread() is threading.main_thread():
                for number in handlers:
                    signal.signal(number, _noticed)
            if _PROCESSORS:
                os.sched_setaffinity(0, _PROCESSORS)
            gc.enable()
            logging.root.handlers[:] = []
            logging.root.setLevel(_LEVEL)
            np.random.set_state(np.random.RandomState(7).get_state())  # that of everybody
            yield
    finally:
        os.chdir(folder)
        Path(elsewhere).rmdir()
        _set_environment(environment)
        sys.setrecursionlimit(limit)
        os.umask(mask)
        logging.root.setLevel(level)
        logging.root.handlers[:] = loggers
        warnings.filters[:] = filters  # type: ignore[index]  # a list, whatever typeshed says
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


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
