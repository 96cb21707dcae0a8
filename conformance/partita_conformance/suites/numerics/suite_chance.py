"""Suite ``chance``: random numbers are of the type, shape and distribution asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.judging.requirements import NotApplicableError, require
from partita_conformance.suites.numerics.suite_operators import claimed_compiles

_COUNT = 20_000
_SHAPE = (_COUNT // 4, 4)
_DOUBLE = TensorProto.DOUBLE
_FAIR = np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], np.float32))
_CHANCES = np.array([0.3, 0.1, 0.8, 0.5])
Number: TypeAlias = float | np.ndarray[Any, Any]

ASKED: Mapping[str, tuple[dict[str, Any], np.ndarray[Any, Any] | None, type, Number, Number]] = {
    "RandomNormal": (
        {"shape": _SHAPE, "mean": 3.0, "scale": 2.0, "dtype": _DOUBLE, "seed": 1.0},
        None,
        *(np.float64, 3.0, 2.0),
    ),
    "RandomUniform": (
        {"shape": _SHAPE, "low": 2.0, "high": 8.0, "dtype": _DOUBLE, "seed": 1.0},
        None,
        *(np.float64, 5.0, 6 / 12**0.5),
    ),
    "RandomNormalLike": (
        {"mean": 3.0, "scale": 2.0, "dtype": _DOUBLE, "seed": 1.0},
        np.zeros(_SHAPE, np.float32),
        *(np.float64, 3.0, 2.0),
    ),
    "RandomUniformLike": (
        {"low": 2.0, "high": 8.0, "dtype": _DOUBLE, "seed": 1.0},
        np.zeros(_SHAPE, np.float32),
        *(np.float64, 5.0, 6 / 12**0.5),
    ),
    "Bernoulli": (
        {"dtype": TensorProto.INT32, "seed": 1.0},
        np.tile(_CHANCES.astype(np.float32), (_SHAPE[0], 1)),
        *(np.int32, _CHANCES, np.sqrt(_CHANCES * (1 - _CHANCES))),
    ),
    "Multinomial": (
        {"sample_size": _COUNT // 2, "dtype": TensorProto.INT64, "seed": 1.0},
        _FAIR,
        *(np.int64, np.array([1.1, 0.5]), np.sqrt([0.49, 0.45])),
    ),
}
"""Operator to attributes, input, and the type, mean and deviation of its results.

Those of Bernoulli are of each column, those of Multinomial of each row.
"""


@check("chance", values=True)
def numbers_are_as_they_are_asked_for(bench: Bench) -> None:
    """Twenty thousand random numbers have about the mean and the deviation that are theirs."""
    tried = 0
    for op, (given, x, dtype, mean, deviation) in ASKED.items():
        proto = _model(op, given, x)
        if bench.refusals(proto):
            continue
        tried += 1
        feeds = {} if x is None else {"x": x}
        (y,) = claimed_compiles(bench, proto)(feeds).to_tuple()
        require(y.dtype == dtype, f"{op} with {given} gives {y.dtype}.")
        due = (2, _COUNT // 2) if op == "Multinomial" else _SHAPE
        require(y.shape == due, f"{op} with {given} gives the shape {y.shape}.")
        along = 1 if op == "Multinomial" else 0
        found, spread = np.mean(y, along), np.std(y, along)
        close = (np.abs(found - mean) < 0.06 * deviation) & (np.abs(spread / deviation - 1) < 0.06)
        statistics = f"means {found.round(3)} and deviations {spread.round(3)}"
        require(bool(close.all()), f"{op} with {given} has {statistics}.")
        low, high = given.get("low", -np.inf), given.get("high", np.inf)
        require(bool(np.all((y >= low) & (y <= high))), f"{op} with {given} leaves its range.")
    if not tried:
        raise NotApplicableError("the device makes no random numbers")


@check("chance", values=True)
def two_nodes_draw_numbers_of_their_own(bench: Bench) -> None:
    """Nodes without a seed, alike in all attributes and inputs, do not draw the same numbers."""
    tried = 0
    for op, (given, x, *_) in ASKED.items():
        unseeded = {name: value for name, value in given.items() if name != "seed"}
        proto = _model(op, unseeded, x)
        proto.graph.node.add().CopyFrom(proto.graph.node[0])
        proto.graph.node[1].output[0] = "z"
        proto.graph.output.add().CopyFrom(proto.graph.output[0])
        proto.graph.output[1].name = "z"
        if bench.refusals(proto):
            continue
        tried += 1
        y, z = claimed_compiles(bench, proto)({} if x is None else {"x": x}).to_tuple()
        require(not np.array_equal(y, z), f"Two nodes of {op} draw the same {y.size} numbers.")
    if not tried:
        raise NotApplicableError("the device makes no random numbers")


def _model(op: str, given: Mapping[str, Any], x: Any) -> Any:
    names = [] if x is None else ["x"]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in names]
    output = helper.make_tensor_value_info("y", given["dtype"], None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **given)], op, inputs, [output])
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)
