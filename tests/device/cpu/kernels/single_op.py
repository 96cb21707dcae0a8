"""Runs one operator on device CPU and on onnxruntime, and compares."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import numpy as np
import onnx
from judge import onnxruntime_results
from onnx import helper, numpy_helper

from partita.lowering import Graph, Node, Value, lower_proto
from partita_cpu.runtime import bound_program
from partita_cpu.runtime.device_model import run_graph

Inputs = Sequence[np.ndarray | None]


def model_of(
    op_type: str,
    inputs: Inputs,
    *,
    outputs: int = 1,
    opset: int = 21,
    domain: str = "",
    constants: Sequence[int] = (),
    **attributes,
) -> onnx.ModelProto:
    """A model of one node; inputs at the positions of ``constants`` are initializers."""
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    given = [(k, x) for k, x in enumerate(inputs) if x is not None]
    infos = [
        helper.make_tensor_value_info(names[k], helper.np_dtype_to_tensor_dtype(x.dtype), None)
        for k, x in given
        if k not in constants
    ]
    initializers = [numpy_helper.from_array(x, names[k]) for k, x in given if k in constants]
    ends = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], "single", infos, ends, initializers)
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run_shared(graph: Graph, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What device CPU computes, each step shared among three threads however small it is."""
    with mock.patch.object(bound_program, "PARALLEL_WORK", 0):
        return run_graph(graph, feeds, threads=3)


def assert_same(got: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> None:
    """Equal type and shape; integers and bools equal, floats close."""
    expected = np.asarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol
        )


def check(
    op_type: str,
    inputs: Inputs,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-4,
    constants: Sequence[int] = (),
    **model_arguments,
) -> None:
    """Device CPU, alone and with several threads, agrees with onnxruntime."""
    model = model_of(op_type, inputs, constants=constants, **model_arguments)
    feeds = {f"x{k}": x for k, x in enumerate(inputs) if x is not None and k not in constants}
    expected = onnxruntime_results(model, feeds)
    graph = lower_proto(model)
    arrays = list(feeds.values())
    for results in (run_graph(graph, arrays), run_shared(graph, arrays)):
        for got, want in zip(results, expected, strict=True):
            assert_same(got, want, rtol, atol)


def run_ours(op_type: str, inputs: Inputs, **model_arguments) -> list[np.ndarray]:
    """What device CPU computes for one operator, whatever onnxruntime says."""
    model = model_of(op_type, inputs, **model_arguments)
    constants = model_arguments.get("constants", ())
    feeds = [x for k, x in enumerate(inputs) if x is not None and k not in constants]
    return run_graph(lower_proto(model), feeds)


def run_fused(op_type: str, inputs: Inputs, **attributes) -> np.ndarray:
    """What device CPU computes for one operator of domain ``partita``."""
    values = [None if x is None else Value(f"x{k}", x.dtype) for k, x in enumerate(inputs)]
    result = Value("y")
    node = Node(op_type, values, [result], attributes, domain="partita", name="fused")
    graph = Graph([v for v in values if v is not None], [result], [node])
    return run_shared(graph, [x for x in inputs if x is not None])[0]


def normal(seed: int, *shape: int, dtype: type = np.float32) -> np.ndarray:
    """Normally distributed numbers; for integers four times as wide."""
    numbers = np.random.default_rng(seed).standard_normal(shape)
    if np.dtype(dtype).kind in "iu":
        return np.round(numbers * 4).astype(np.int64).astype(dtype)
    return numbers.astype(dtype)
