"""What the campaign must notice, one fault a seed; for its own test."""

from __future__ import annotations

import ctypes
import gc
import os

import numpy as np
from onnx import helper, numpy_helper

import partita
from partita.errors import CompileError, ModelFormatError
from partita_cpu.runtime import bound_program

from . import guard
from .cores import guarded_core
from .patience import ended_after


def case(seed):
    """Ends as the seed says."""
    yield f"fault {seed}"
    match seed:
        case 1:
            _beyond(1)
        case 2:
            raise KeyError("raw")
        case 3:
            while True:
                pass
        case 4:
            raise ModelFormatError("Operation 'x' has an axis of 9.")
        case 5:
            raise CompileError("Device 'CPU' failed to compile model 'm': KeyError") from KeyError(
                1
            )
        case 6:
            _beyond(-1)
        case 7:
            np.ones(1 << 40, np.uint8)
        case 8:
            raise SystemExit(3)
        case 9:
            with ended_after(0.2):
                while True:
                    pass
        case 10:
            partita.Tensor(_Demanding())
        case 11:
            os.abort()
        case 12:
            os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'")
            os.abort()
        case 13:
            _beyond_an_intermediate(at_end=True)
        case 14:
            _beyond_an_intermediate(at_end=False)


class _Demanding:
    """Raises from within what the framework calls."""

    def __array__(self, dtype=None, copy=None):
        raise MemoryError("2 GiB")


def _beyond(step):
    """Reads the element behind the last one, or before the first one."""
    array = guard.guarded(np.arange(5, dtype=np.float32), at_end=step > 0)
    ctypes.string_at(array.ctypes.data + (20 if step > 0 else -4), 4)


def _beyond_an_intermediate(at_end):
    """The same of a tensor between two operations of device CPU."""
    guard.DEVICE["at_end"] = at_end
    core = guarded_core()
    nodes = [
        helper.make_node("Sin", ["x"], ["s"]),
        helper.make_node("CumSum", ["s", "axis"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [5]) for name in "xy")
    axis = [numpy_helper.from_array(np.array(0), "axis")]
    model = helper.make_model(helper.make_graph(nodes, "two", [x], [y], axis), ir_version=9)
    request = core.compile_model(core.read_model(model), "CPU").create_infer_request()
    request.infer([np.ones(5, np.float32)])
    (memory,) = (one for one in gc.get_objects() if isinstance(one, bound_program.Memory))
    (address,) = (memory.array(one).ctypes.data for one in memory.intermediates)
    ctypes.string_at(address + 64 if at_end else address - 1, 1)
