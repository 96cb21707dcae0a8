"""What onnxruntime computes for a model: in this process, or in one of another Python.

Where onnxruntime cannot run beside the code under test (its wheel for 64-bit ARM ends the process
under emulation), the environment variable PARTITA_TEST_JUDGE names a Python that has it. That one
runs this file, which then needs nothing but numpy, ml_dtypes and onnxruntime.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes  # noqa: F401  # lets numpy know bfloat16 by name
import numpy as np

VARIABLE = "PARTITA_TEST_JUDGE"
"""Environment variable: the Python that judges; this process if it is not set."""


def onnxruntime_results(
    model: Any, feeds: Mapping[str, np.ndarray], *, optimized: bool = False
) -> list[Any]:
    """What onnxruntime computes, with graph optimizations off unless they are wanted."""
    content = model if isinstance(model, bytes) else model.SerializeToString()
    if os.environ.get(VARIABLE):
        return other_runtime().ask(content, feeds, optimized)
    return _run(content, dict(feeds), optimized)


@functools.cache
def weight_range() -> tuple[int, int]:
    """The int8 numbers that onnxruntime multiplies with any uint8 rightly on this processor.

    With AVX2 alone it adds up two products in 16 bits and saturates beyond them, whatever its
    options say. There weights of this size make it a judge; those of ours are wider.
    """
    from onnx import TensorProto, helper

    of = helper.make_tensor_value_info
    x, w = of("x", TensorProto.UINT8, [8, 64]), of("w", TensorProto.INT8, [64, 64])
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x, w], [of("y", TensorProto.INT32, [8, 64])])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.full((8, 64), 255, np.uint8), "w": np.full((64, 64), 127, np.int8)}
    (found,) = onnxruntime_results(model, feeds)
    return (-128, 127) if (found == 255 * 127 * 64).all() else (-64, 64)


def _run(model: bytes, feeds: dict[str, np.ndarray], optimized: bool) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # to start others, which spin, takes longer than small models
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


class JudgeError(Exception):
    """The other process could not compute a model."""


@functools.cache
def other_runtime() -> Judge:
    return Judge(os.environ[VARIABLE])


class Judge:
    """A process of another Python that computes what it is asked, one model after the other."""

    def __init__(self, python: str) -> None:
        hidden = ("PYTHONPATH", "PYTHONHOME", VARIABLE)
        self._process = subprocess.Popen(
            [python, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in hidden},
        )
        atexit.register(self.close)

    def ask(self, model: bytes, feeds: Mapping[str, np.ndarray], optimized: bool) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        _send(
            self._process.stdin,
            {"optimized": optimized, "names": [*feeds]},
            [model, *feeds.values()],
        )
        head, results = _receive(self._process.stdout)
        if "error" in head:
            raise JudgeError(head["error"])
        return results

    def close(self) -> None:
        self._process.communicate()


def _send(pipe: BinaryIO, head: dict[str, Any], values: list[Any]) -> None:
    """Writes a JSON object and values: bytes, arrays, None, or lists of them."""
    content: list[bytes] = []
    kinds = [_describe(value, content) for value in values]
    text = json.dumps({**head, "values": kinds}).encode()
    pipe.write(struct.pack("<QQ", len(text), sum(map(len, content))))
    pipe.write(text)
    pipe.writelines(content)
    pipe.flush()


def _describe(value: Any, content: list[bytes]) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_describe(item, content) for item in value]
    if isinstance(value, bytes):
        content.append(value)
        return {"size": len(value)}
    array = np.asarray(value)
    if array.dtype == object:
        array = array.astype(str)  # texts
    content.append(array.tobytes())
    known = array.dtype.name if array.dtype.kind != "U" else array.dtype.str
    return {"dtype": known, "shape": array.shape}


def _receive(pipe: BinaryIO) -> tuple[dict[str, Any], list[Any]]:
    """What :func:`_send` wrote; EOFError if there is nothing more."""
    sizes = pipe.read(16)
    if len(sizes) < 16:
        raise EOFError("The process that judges has ended.")
    text, content = struct.unpack("<QQ", sizes)
    head = json.loads(pipe.read(text))
    data = memoryview(pipe.read(content))
    values = []
    for kind in head.pop("values"):
        value, data = _restore(kind, data)
        values.append(value)
    return head, values


def _restore(kind: Any, data: memoryview) -> tuple[Any, memoryview]:
    if kind is None:
        return None, data
    if isinstance(kind, list):
        values = []
        for item in kind:
            value, data = _restore(item, data)
            values.append(value)
        return values, data
    if "size" in kind:
        return bytes(data[: kind["size"]]), data[kind["size"] :]
    dtype = np.dtype(kind["dtype"])
    size = dtype.itemsize * int(np.prod(kind["shape"]))
    array = np.frombuffer(data[:size], dtype).reshape(kind["shape"]).copy()
    return array.astype(object) if dtype.kind == "U" else array, data[size:]


def _main() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while True:
        try:
            head, (model, *arrays) = _receive(requests)
        except EOFError:
            return
        try:
            results = _run(model, dict(zip(head["names"], arrays, strict=True)), head["optimized"])
        except Exception as error:  # noqa: BLE001  # whatever it is, the test is told
            _send(answers, {"error": f"{type(error).__name__}: {error}"}, [])
        else:
            _send(answers, {}, results)


if __name__ == "__main__":
    _main()
