"""What libraries keep for the whole process, and no device may change: settings, tables, hooks."""

from __future__ import annotations

import codecs
import decimal
import faulthandler
import gc
import logging
import os
import re
import signal
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir

import partita

_MODULES: tuple[types.ModuleType, ...] = (np, np.random, onnx, onnx.helper, onnx_ir, os)
_MODULES += (time, threading)
_CLASSES: tuple[type, ...] = (
    *(partita.Core, partita.Model, partita.CompiledModel, partita.InferRequest, partita.HostTensor),
    *(partita.DevicePlugin, partita.DeviceModel, partita.Runner, partita.Op, onnx_ir.Model),
    *(onnx_ir.Node, onnx_ir.Value, onnx_ir.Tensor, threading.Thread),
)
_COMM = Path("/proc/self/comm")
_NUMBER = re.compile(r"(?<=^Thread-)\d+")
"""What Python counts threads by that nobody has named."""


def known_operators() -> int:
    """How many operators ONNX knows, which takes longer to count than all else to look at."""
    return len(onnx.defs.get_all_schemas_with_history())


def further_state() -> dict[str, Any]:
    """Settings, tables and functions of libraries that everybody in the process shares."""
    context = decimal.getcontext()
    return {
        "how decimals are computed": (context.rounding, dict(context.traps), context.Emax),
        "the handler of faults": faulthandler.is_enabled(),
        "the arguments of the program": list(sys.argv),
        "the name of the process": _COMM.read_text() if _COMM.exists() else "",
        "the name of the thread": _NUMBER.sub("", threading.current_thread().name),
        "the time zone": (time.tzname, time.timezone),
        "how libraries are loaded": _dlopen_flags(),
        "the pipe of signals": _wakeup(),
        "how codecs bear errors": codecs.lookup_error("strict"),
        "levels of loggers": _levels(),
        "functions of libraries": [_functions(vars(module)) for module in _MODULES],
        "methods of Partita's classes": [_functions(vars(one)) for one in _CLASSES],
        "how exceptions unseen are shown": (sys.unraisablehook, sys.breakpointhook),
        "standard streams": (sys.__stdout__, sys.__stderr__, sys.stdin, sys.stderr),
        "debugging of collections": gc.get_debug(),
        "the hooks of imports": (sys.getswitchinterval(), sys.dont_write_bytecode),
        "waiting for child processes": _signal_of_children(),
    }


def _functions(members: Any) -> frozenset[tuple[str, int]]:
    """Functions and classes of a module or a class, as they are, and not by their names."""
    kinds = (types.FunctionType, types.BuiltinFunctionType, type, property, np.ufunc)
    return frozenset(
        (name, id(one)) for name, one in list(members.items()) if isinstance(one, kinds)
    )


def _levels() -> dict[str, tuple[int, bool, bool, int]]:
    """Of loggers that are not of the device itself: level, whether they are on, and handlers."""
    ours = ("partita", "onnx", "onnx_ir", "numpy", "asyncio", "py", "concurrent")
    loggers = logging.root.manager.loggerDict
    return {
        name: (one.level, one.disabled, one.propagate, len(one.handlers))
        for name, one in list(loggers.items())
        if name.partition(".")[0] in ours and isinstance(one, logging.Logger)
        and name.count("_") < 2 and (one.level or one.disabled or one.handlers)
    }  # fmt: skip


def _dlopen_flags() -> int:
    flags = getattr(sys, "getdlopenflags", None)
    return int(flags()) if flags else 0


def _wakeup() -> int:
    """The file that signals write to; -1 for none, and beside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return -1
    pipe = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(pipe)
    return pipe


def _signal_of_children() -> Any:
    number = getattr(signal, "SIGCHLD", None)
    return None if number is None else signal.getsignal(number)
