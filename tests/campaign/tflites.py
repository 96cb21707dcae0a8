"""TFLite files that were changed: tensors, operators, options, and bytes anywhere."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path

import numpy as np

from .cores import guarded_core
from .numbers import FLOATS, hostile_integer

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "unit" / "tflite")]


def case(seed):
    """Reads one file, compiles it for device CPU, and runs it."""
    rng = np.random.default_rng(seed)
    name, data = changed(rng)
    yield f"{name}, {len(data)} bytes"
    core = guarded_core()
    model = core.read_model(data)
    yield f"{name}, read"
    request = core.compile_model(model, "CPU").create_infer_request()
    yield f"{name}, compiled"
    feeds = {}
    for port in model.inputs:
        shape = [1 if not isinstance(dim, int) else dim for dim in port.shape or ()]
        if np.prod(shape, dtype=float) > 1e6:
            return
        feeds[port.name] = np.ones(shape, port.dtype)
    request.infer(feeds)


def changed(rng):
    """The name of a case of the unit tests, and its file with parts or bytes changed."""
    from ai_edge_litert import schema_py_generated as schema
    from tflite_files import packed

    name = list(files())[rng.integers(len(files()))]
    data = files()[name]
    kind = rng.integers(4)
    if kind < 3:
        table = schema.ModelT.InitFromPackedBuf(data, 0)
        for _ in range(rng.integers(1, 4)):
            change_a_part(rng, table)
        # What cannot be written stays as it was.
        with contextlib.suppress(TypeError, ValueError, OverflowError, AttributeError):
            data = packed(table)
    if kind >= 2:
        broken = bytearray(data)
        for _ in range(rng.integers(1, 6)):
            broken[rng.integers(8, len(broken))] = rng.choice([0, 1, 127, 128, 255])
        if rng.random() < 0.2:
            del broken[rng.integers(8, len(broken)) :]
        data = bytes(broken)
    return name, data


def change_a_part(rng, table):
    """Changes a tensor, an operator, an option or what is given and returned."""
    graph = table.subgraphs[rng.integers(len(table.subgraphs))]
    tensor = graph.tensors[rng.integers(len(graph.tensors))]
    operator = graph.operators[rng.integers(len(graph.operators))]
    operator.inputs = [] if operator.inputs is None else [int(place) for place in operator.inputs]
    match rng.integers(8):
        case 0:
            shape = list(tensor.shape if tensor.shape is not None else [])
            if shape and rng.random() < 0.7:
                shape[rng.integers(len(shape))] = int(hostile_integer(rng)) % 2**31
            else:
                shape.append(int(rng.integers(-1, 9)))
            tensor.shape = shape
        case 1:
            tensor.type = int(rng.integers(0, 20))
        case 2:
            tensor.buffer = int(rng.integers(0, len(table.buffers) + 1))
        case 3 if operator.inputs:
            place = rng.integers(len(operator.inputs))
            operator.inputs[place] = int(rng.integers(-1, len(graph.tensors) + 1))
        case 4 if operator.inputs:
            operator.inputs = operator.inputs[: rng.integers(len(operator.inputs) + 1)]
        case 5 if operator.builtinOptions is not None:
            fields = list(vars(operator.builtinOptions))
            if fields:
                small = bool(rng.random() < 0.5)
                value = int(rng.integers(-3, 9)) if small else int(hostile_integer(rng)) % 2**31
                setattr(operator.builtinOptions, fields[rng.integers(len(fields))], value)
        case 6 if tensor.quantization is not None:
            tensor.quantization.scale = [FLOATS[rng.integers(len(FLOATS))]]
        case _:
            for code in table.operatorCodes:
                code.builtinCode = int(rng.integers(0, 209))
                code.deprecatedBuiltinCode = min(code.builtinCode, 127)


@functools.cache
def files():
    """Sound files, by the names of the unit tests' cases."""
    import test_tflite_files as whole
    import test_tflite_operators as operators

    made = {name: make()[0] for name, make in operators.CASES.items()}
    loops = (whole.branches, whole.doubling, whole.variable, whole.two_signatures)
    return made | {make.__name__: make() for make in loops}
