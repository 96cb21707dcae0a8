"""Suite ``ports``: names that collide, many ports, ports without nodes, values read twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from partita_conformance.bench.bench import Bench
from partita_conformance.bench.checks import check
from partita_conformance.judging.compare import compare
from partita_conformance.judging.requirements import NotApplicableError, require

Array = np.ndarray[Any, Any]

UNARY = ("Neg", "Relu", "Abs", "Exp", "Sigmoid", "Tanh", "Sqrt", "Identity")
BINARY = ("Sub", "Add", "Mul", "Max")
LONG = "a_name_that_is_longer_than_the_tables_of_most_drivers_have_room_for/"
NAMES = (
    *("a.b", "a/b", "a_b", "a:b", "a b", "A_B", "a-b", "a\\b", 'a"b'),
    *("x:0", "x:1", "outer/same", "inner/same", "for", "None", "__class__", "1st", "_1st"),
    *("größe", "größe/2", "入力", f"{LONG}1", f"{LONG}2", "0", "1", "10"),
)
"""Names of values that many ways of making identifiers of them make equal."""
_SHAPE = (2, 3)


def _value(name: str, shape: Sequence[int | str] = _SHAPE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """A model of opset 17."""
    tensors = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "ports", list(inputs), list(outputs), tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def numbers(count: int, seed: int = 0) -> list[Array]:
    """Arrays of positive numbers, no two of them alike."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.uniform(0.1, 2, _SHAPE) + i, np.float32) for i in range(count)]


def first_taken(bench: Bench, models: Iterator[onnx.ModelProto], what: str) -> onnx.ModelProto:
    """The first model that the device takes.

    Raises:
        NotApplicableError: It takes none of them.
    """
    refusals = []
    for proto in models:
        refused = bench.refusals(proto)
        if not refused:
            return proto
        refusals.append(refused[0])
    raise NotApplicableError(f"the device takes no model of {what}: {'; '.join(refusals)}")


def agree(bench: Bench, proto: onnx.ModelProto, feeds: dict[str, Array], what: str) -> None:
    """Compiles, runs twice in one request and compares with what is right, names of ports too."""
    compiled = bench.compile(proto)
    for have, due in ((compiled.inputs, proto.graph.input), (compiled.outputs, proto.graph.output)):
        names = [port.name for port in have], [value.name for value in due]
        require(names[0] == names[1], f"{what}: ports are {names[0]}, not {names[1]}.")
    request = compiled.create_infer_request()
    expected = bench.expected(proto, feeds)
    for turn in range(2):
        result = request.infer(feeds).to_tuple()
        compare(result, expected, f"{what}, run {turn + 1}")


@check("ports", values=True)
def names_stay_apart(bench: Bench) -> None:
    """Values, weights and nodes whose names differ in a sign, a capital or late are not mixed."""

    def made(op: str) -> onnx.ModelProto:
        nodes, outputs, weights = [], [], {}
        for i, name in enumerate(NAMES):
            weights[f"w{name}"] = numbers(1, i)[0] + 40
            nodes.append(helper.make_node(op, [name, f"w{name}"], [f"{name}.m"], name=f"n{name}"))
            nodes.append(helper.make_node(op, [f"{name}.m", name], [f"{name}'"], name=f"o{name}"))
            outputs.append(_value(f"{name}'"))
        return model(nodes, [_value(name) for name in NAMES], outputs, weights)

    proto = first_taken(bench, map(made, BINARY), "two inputs of each operation")
    feeds = dict(zip(NAMES, numbers(len(NAMES)), strict=True))
    agree(bench, proto, feeds, "names that are nearly equal")


@check("ports", values=True)
def names_may_be_any_text(bench: Bench) -> None:
    """One small model per odd name compiles and runs."""
    for name in NAMES:
        nodes = [[helper.make_node(op, [name], [f"{name}'"], name=name)] for op in UNARY]
        models = (model(n, [_value(name)], [_value(f"{name}'")]) for n in nodes)
        proto = first_taken(bench, models, "one operation")
        agree(bench, proto, {name: numbers(1)[0]}, f"the name {name!r}")


@check("ports", values=True)
def models_may_have_any_name(bench: Bench) -> None:
    """A model of no name, of a path or of a long text for its name compiles and runs."""
    sample = bench.sample("plain")
    for name in ("", "a/b\\c:d", "..", "\u5165\u529b ", LONG * 5):
        proto = type(sample.proto)()
        proto.CopyFrom(sample.proto)
        proto.graph.name = name
        agree(bench, proto, sample.feeds(15), f"the model's name {name!r}")


@check("ports", values=True)
def twenty_of_them_keep_their_places(bench: Bench) -> None:
    """Of twenty inputs and twenty outputs each is where it belongs, whatever the alphabet says."""
    names = [f"p{(7 * i) % 20}" for i in range(20)]

    def made(op: str) -> onnx.ModelProto:
        nodes = [helper.make_node(op, [name], [f"{name}_out"]) for name in names]
        outputs = [_value(f"{name}_out") for name in reversed(names)]
        return model(nodes, [_value(name) for name in names], outputs)

    proto = first_taken(bench, map(made, UNARY), "one operation per input")
    agree(bench, proto, dict(zip(names, numbers(20), strict=True)), "20 inputs and outputs")


@check("ports", values=True)
def an_operation_may_have_many(bench: Bench) -> None:
    """Concat, Sum, Max and Min of twenty inputs read them all; Split writes twenty outputs."""
    names = [f"x{i}" for i in range(20)]
    feeds = dict(zip(names, numbers(20, 3), strict=True))
    tried = 0
    for op in ("Concat", "Sum", "Max", "Min", "Mean"):
        given: dict[str, Any] = {"axis": 0} if op == "Concat" else {}
        out = _value("y", (40, 3) if op == "Concat" else _SHAPE)
        for order in (names, names[::-1]):
            nodes = [helper.make_node(op, order, ["y"], **given)]
            proto = model(nodes, [_value(name) for name in names], [out])
            if not bench.refusals(proto):
                tried += 1
                agree(bench, proto, feeds, f"{op} of 20 inputs")
    parts = [_value(f"y{i}", (1, 3)) for i in range(20)]
    split = helper.make_node("Split", ["x", "s"], [part.name for part in parts], axis=0)
    proto = model([split], [_value("x", (20, 3))], parts, {"s": np.ones(20, np.int64)})
    if not bench.refusals(proto):
        tried += 1
        agree(bench, proto, {"x": np.arange(60, dtype=np.float32).reshape(20, 3)}, "Split in 20")
    if not tried:
        raise NotApplicableError("the device takes none of Concat, Sum, Max, Min, Mean, Split")


@check("ports", values=True)
def ports_may_have_no_node(bench: Bench) -> None:
    """An input or a weight that is an output, an unused input, and a model without inputs work."""
    weight = numbers(1, 8)[0]
    for op in UNARY:
        node = helper.make_node(op, ["x"], ["y"])
        if not bench.refusals(model([node], [_value("x")], [_value("y")])):
            break
    else:
        raise NotApplicableError(f"the device takes none of {', '.join(UNARY)}")
    x, y, w, z = (_value(name) for name in "xywz")
    feeds = {"x": numbers(1)[0], "z": numbers(1, 5)[0] + 7}
    fixed = helper.make_node(op, ["w"], ["y"])
    for what, proto in {
        "an input as output": model([node], [x], [x, y]),
        "a weight as output": model([node], [x], [w, y], {"w": weight}),
        "an input that nobody reads": model([node], [z, x], [y]),
        "inputs as outputs, exchanged": model([node], [x, z], [z, x, y]),
        "no inputs": model([fixed], [], [y], {"w": weight}),
        "no nodes": model([], [x, z], [z, x]),
    }.items():
        wanted = {value.name for value in proto.graph.input}
        agree(bench, proto, {k: v for k, v in feeds.items() if k in wanted}, what)


@check("ports", values=True)
def values_are_read_more_than_once(bench: Bench) -> None:
    """A value read twice by one operation, or again after another one read it, stays as it was."""
    tried = 0
    for unary, binary in itertools.product(UNARY[:-1], BINARY):
        nodes = [
            helper.make_node(unary, ["x"], ["a"]),
            helper.make_node(unary, ["a"], ["b"]),
            helper.make_node(binary, ["a", "a"], ["c"]),
            helper.make_node(binary, ["b", "a"], ["d"]),
            helper.make_node(binary, ["d", "x"], ["y"]),
        ]
        proto = model(nodes, [_value("x")], [_value("y"), _value("c")])
        if bench.refusals(proto):
            continue
        x = numbers(1, 9)[0] - 0.9
        agree(bench, proto, {"x": x}, f"{unary} and {binary} of values read twice")
        tried += 1
    if not tried:
        raise NotApplicableError(f"the device takes no pair of {UNARY} and {BINARY}")


@check("ports", values=True)
def outputs_may_be_left_out(bench: Bench) -> None:
    """Of TopK, MaxPool and LSTM, a later output may be wanted without the first one."""
    x = np.array([[3, 1, 2, 5], [0, 9, 8, 7]], np.float32)
    indices = helper.make_tensor_value_info("i", TensorProto.INT64, [2, 2])
    topk = helper.make_node("TopK", ["x", "k"], ["", "i"])
    rng = np.random.default_rng(4)
    w = {n: np.asarray(rng.standard_normal([1, 12, 3]), np.float32) for n in ("w", "r")}
    lstm = helper.make_node("LSTM", ["x", "w", "r"], ["", "", "c"], hidden_size=3)
    sequence = np.asarray(rng.standard_normal([4, 2, 3]), np.float32)
    tried = 0
    for what, proto, feeds in (
        ("TopK", model([topk], [_value("x", (2, 4))], [indices], {"k": np.array([2])}), x),
        ("LSTM", model([lstm], [_value("x", (4, 2, 3))], [_value("c", (1, 2, 3))], w), sequence),
    ):
        if not bench.refusals(proto):
            tried += 1
            agree(bench, proto, {"x": feeds}, f"{what} without its first output")
    if not tried:
        raise NotApplicableError("the device takes neither TopK nor LSTM")


@check("ports", values=True)
def values_may_be_of_unknown_rank(bench: Bench) -> None:
    """What a shape that is an input makes has any rank, inside the model and as its output."""
    unknown = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    shape = helper.make_tensor_value_info("s", TensorProto.INT64, ["K"])
    tried = 0
    for op in UNARY:
        nodes = [
            helper.make_node("Reshape", ["x", "s"], ["a"]),
            helper.make_node(op, ["a"], ["y"]),
        ]
        proto = model(nodes, [_value("x"), shape], [unknown])
        if bench.refusals(proto):
            continue
        tried += 1
        for dims in ([6], [3, 1, 2], [2, 3]):
            feeds = {"x": numbers(1)[0], "s": np.array(dims, np.int64)}
            agree(bench, proto, feeds, f"{op} of an unknown rank that is {len(dims)}")
        break
    if not tried:
        raise NotApplicableError("the device takes nothing of unknown rank")


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
        inputs = [_value(n, s) for n, s in shapes.items()]
        return model(nodes, inputs, [_value(f"y{n}", s) for n, s in shapes.items()], weights)

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
        ports = [_value(name, (side, side)) for name in "xy"]
        return model([node], ports[:1], ports[1:], {"w": weight})

    op = first_taken(bench, map(made, BINARY), "an input and a weight").graph.node[0].op_type
    feeds = {"x": np.full((side, side), 2, np.float32)}
    for place in (0, side * side - 1, side * side // 2, 1000):
        agree(bench, made(op, place), feeds, f"a weight that differs in element {place}")


@check("ports", values=True)
def inputs_of_equal_bytes_keep_their_shapes(bench: Bench) -> None:
    """Inputs of the same bytes in other shapes are not taken for one another."""
    shapes = {"a": (2, 3), "b": (3, 2), "c": (6,), "d": (1, 6, 1)}

    def made(op: str) -> onnx.ModelProto:
        nodes = [helper.make_node(op, [n], [f"y{n}"]) for n in shapes]
        inputs = [_value(n, s) for n, s in shapes.items()]
        return model(nodes, inputs, [_value(f"y{n}", s) for n, s in shapes.items()])

    proto = first_taken(bench, map(made, UNARY), "one input of each operation")
    feeds = {n: np.arange(1, 7, dtype=np.float32).reshape(s) for n, s in shapes.items()}
    agree(bench, proto, feeds, "inputs of equal bytes")


@check("ports", values=True)
def long_models_work(bench: Bench) -> None:
    """A chain of 300 operations that are all taken compiles and runs."""

    def made(op: str) -> onnx.ModelProto:
        names = [f"v{i}" for i in range(301)]
        nodes = [helper.make_node(op, [a, "w"], [b]) for a, b in itertools.pairwise(names)]
        weight = np.full(_SHAPE, 0.5 if op in ("Add", "Sub") else 1.01, np.float32)
        return model(nodes, [_value("v0")], [_value("v300")], {"w": weight})

    proto = first_taken(bench, map(made, BINARY), "two inputs of each operation")
    agree(bench, proto, {"v0": numbers(1)[0]}, "300 operations")
