"""Further checks of suite ``ports``: weights and constants keep their types, digits and shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError
from partita_conformance.suites.contract.suite_ports import (
    BINARY,
    SHAPE,
    Array,
    agree,
    first_taken,
    model,
    value_of,
)

_WEIGHTS: dict[str, Array] = {
    "double": np.array([1 / 3, 1e300, -1 - 2.0**-40]),
    "int64": np.array([2**53 + 1, -(2**62) - 1, 2**31]),
    "int32": np.array([2**24 + 1, -(2**31), 5], np.int32),
    "uint64": np.array([2**63 + 1, 2**64 - 1, 5], np.uint64),
    "uint8": np.array([200, 255, 0], np.uint8),
    "float16": np.array([6e-8, 65504, -0.1], np.float16),
    "bool": np.array([True, False, True]),
    "float": np.array([1e-40, 16777217, -1 / 3], np.float32),
}
"""Weights that no other type holds, by element type."""


@check("ports", values=True)
def weights_of_every_type_stay_as_they_are(bench: Bench) -> None:
    """Weights reach outputs with all their digits, whatever their type."""
    tried = 0
    infinite = {"infinities": np.array([np.inf, -np.inf, np.nan], np.float32)}
    for name, weight in (_WEIGHTS | infinite).items():
        element = helper.np_dtype_to_tensor_dtype(weight.dtype)
        x = helper.make_tensor_value_info("x", element, [1])
        y = helper.make_tensor_value_info("y", element, [4])
        node = helper.make_node("Concat", ["w", "x"], ["y"], axis=0)
        proto = model([node], [x], [y], {"w": weight})
        if bench.refusals(proto):
            continue
        tried += 1
        due = np.concatenate([weight, weight[:1]])
        (have,) = bench.compile(proto)({"x": weight[:1]}).to_tuple()
        compare([have], [due], f"a weight of {name}", 0, 0)
    if not tried:
        raise NotApplicableError("the device does not take Concat")


CONSTANTS: dict[str, tuple[Any, Array]] = {
    "value_float": (0.5, np.array(0.5, np.float32)),
    "value_floats": ([0.5, -2.0], np.array([0.5, -2], np.float32)),
    "value_int": (-7, np.array(-7)),
    "value_ints": ([3, -(2**40)], np.array([3, -(2**40)])),
    "value_string": ("one text", np.array("one text", object)),
    "value_strings": (["a", "b c"], np.array(["a", "b c"], object)),
    "value": (numpy_helper.from_array(np.array([[True]])), np.array([[True]])),
}
"""Attributes of Constant, each with a value and what it is as an array."""


@check("ports", values=True)
def constants_are_told_in_any_way(bench: Bench) -> None:
    """Constant hands on numbers, texts and tensors, whatever attribute they stand in."""
    tried = 0
    for name, (value, due) in CONSTANTS.items():
        element = helper.np_dtype_to_tensor_dtype(due.dtype)
        y = helper.make_tensor_value_info("y", element, due.shape)
        nodes = [
            helper.make_node("Constant", [], ["c"], **{name: value}),
            helper.make_node("Identity", ["c"], ["y"]),
        ]
        proto = model(nodes, [], [y])
        if not bench.refusals(proto):
            tried += 1
            compare(bench.compile(proto)({}).to_tuple(), [due], f"Constant with {name}")
    if not tried:
        raise NotApplicableError("the device does not take Identity")


@check("ports", values=True)
def equal_weights_keep_their_shapes(bench: Bench) -> None:
    """Weights of the same bytes in other shapes are not taken for one another."""
    shapes = {"a": (2, 3), "b": (3, 2), "c": (6,), "d": (1, 6, 1)}
    weights = {f"w{n}": np.arange(1, 7, dtype=np.float32).reshape(s) for n, s in shapes.items()}

    def made(op: str) -> onnx.ModelProto:
        nodes = [helper.make_node(op, [n, f"w{n}"], [f"y{n}"]) for n in shapes]
        inputs = [value_of(n, s) for n, s in shapes.items()]
        return model(nodes, inputs, [value_of(f"y{n}", s) for n, s in shapes.items()], weights)

    proto = first_taken(bench, map(made, BINARY), "two inputs of each operation")
    feeds = {n: np.full(s, 2, np.float32) for n, s in shapes.items()}
    agree(bench, proto, feeds, "weights of equal bytes")


@check("ports", values=True)
def weights_are_known_by_all_their_elements(bench: Bench) -> None:
    """Models that differ in one element of a weight, wherever, are not taken for one another."""
    side = 41

    def made(op: str, place: int = 0) -> onnx.ModelProto:
        weight = np.ones((side, side), np.float32)
        weight.reshape(-1)[place] = 7
        node = helper.make_node(op, ["x", "w"], ["y"])
        ports = [value_of(name, (side, side)) for name in "xy"]
        return model([node], ports[:1], ports[1:], {"w": weight})

    op = first_taken(bench, map(made, BINARY), "an input and a weight").graph.node[0].op_type
    feeds = {"x": np.full((side, side), 2, np.float32)}
    for place in (0, side * side - 1, side * side // 2, 1000):
        agree(bench, made(op, place), feeds, f"a weight that differs in element {place}")


def _all_but(count: int, place: int) -> Array:
    weight = np.ones((count, count), np.float32)
    weight.reshape(-1)[place] = 7
    return weight


_LAID: dict[str, Callable[[Array], Array]] = {
    "by columns": np.asfortranarray,
    "as every other one": lambda a: np.repeat(a, 2, -1)[..., ::2],
    "backwards": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "turned": lambda a: np.ascontiguousarray(a.T).T,
    "as one number": lambda a: np.broadcast_to(a[:1, :1], a.shape),
}


@check("ports", values=True)
def weights_may_lie_in_any_order(bench: Bench) -> None:
    """Weights of a model that was built in memory are arrays, which may lie in any way."""

    def made(op: str) -> onnx.ModelProto:
        node = helper.make_node(op, ["x", "w"], ["y"])
        weight = np.arange(12, dtype=np.float32).reshape(3, 4)
        ports = [value_of(name, (3, 4)) for name in "xy"]
        return model([node], ports[:1], ports[1:], {"w": weight})

    proto = first_taken(bench, map(made, BINARY), "an input and a weight")
    x = np.full((3, 4), 2, np.float32)
    for what, lay in _LAID.items():
        weight = lay(numpy_helper.to_array(proto.graph.initializer[0]))
        built = bench.read(proto)
        built.ir.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
        due_of = onnx.ModelProto()
        due_of.CopyFrom(proto)
        held = numpy_helper.from_array(np.ascontiguousarray(weight, np.float32), "w")
        due_of.graph.initializer[0].CopyFrom(held)
        due = bench.expected(due_of, {"x": x})
        have = bench.core.compile_model(built, bench.device, bench.target.config)({"x": x})
        compare(have.to_tuple(), due, f"a weight that lies {what}", 0, 0)


_ALIKE: dict[str, Sequence[Array]] = {
    "equal to the sign of zero": (np.zeros(SHAPE, np.float32), -np.zeros(SHAPE, np.float32)),
    "equal but for one element": [_all_but(41, n) for n in (0, 1680, 840, 1000, 1679, 63)],
    "of the same elements in another order": (
        np.arange(1, 7, dtype=np.float32).reshape(SHAPE),
        np.arange(6, 0, -1, dtype=np.float32).reshape(SHAPE),
    ),
    "of one sum": (np.full(SHAPE, 2, np.float32), np.array([[1, 2, 3], [3, 2, 1]], np.float32)),
    "of neighbouring numbers": (
        np.full(SHAPE, 1, np.float32),
        np.full(SHAPE, np.nextafter(np.float32(1), np.float32(0)), np.float32),
    ),
}
"""Weights of one model that are nearly the same."""


@check("ports", values=True)
def weights_of_a_model_stay_apart(bench: Bench) -> None:
    """Weights of one model that have a form, a beginning, a sum or nearly all in common are two."""
    tried = 0
    for what, arrays in _ALIKE.items():
        shape = arrays[0].shape
        weights = {f"w{i}": array for i, array in enumerate(arrays)}
        for op in ("Div", "Sub", "Add", "Mul"):
            nodes = [helper.make_node(op, ["x", name], [f"y{name}"]) for name in weights]
            outputs = [value_of(f"y{name}", shape) for name in weights]
            proto = model(nodes, [value_of("x", shape)], outputs, weights)
            if bench.refusals(proto):
                continue
            tried += 1
            x = np.full(shape, 1, np.float32)
            due = bench.expected(proto, {"x": x})
            have = bench.compile(proto)({"x": x}).to_tuple()
            compare(have, due, f"{op} of weights {what}", 0, 0)
    if not tried:
        raise NotApplicableError("the device takes none of the models")
