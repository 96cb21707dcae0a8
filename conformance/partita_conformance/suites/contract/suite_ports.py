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
    *("x1", "x\u00b9", "x\u2081", "\uff581", "\u00e5", "a\u030a", "fi", "\ufb01", "\u0445", "x"),
    *("stra\u00dfe", "strasse", "STRASSE", "a  b", "a\u00a0b", " a b", "a b ", "a\u200bb", "ab"),
)
"""Names of values that many ways of making identifiers of them make equal, or of Unicode's ways to
write a text in one form, to tell no capitals from small letters, or to leave out spaces."""
SHAPE = (2, 3)
"""Of most values."""


def value_of(name: str, shape: Sequence[int | str] = SHAPE) -> onnx.ValueInfoProto:
    """A port or value of float32."""
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
    return [np.asarray(rng.uniform(0.1, 2, SHAPE) + i, np.float32) for i in range(count)]


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
        first, second, outputs, weights = [], [], [], {}
        for i, name in enumerate(NAMES):
            weights[f"w{name}"] = numbers(1, i)[0] + 40
            first.append(helper.make_node(op, [name, f"w{name}"], [f"{name}.m"], name=f"n{name}"))
            second.append(helper.make_node(op, [f"{name}.m", name], [f"{name}'"], name=f"o{name}"))
            outputs.append(value_of(f"{name}'"))
        return model([*first, *second], [value_of(name) for name in NAMES], outputs, weights)

    uncancelled = BINARY[1:]  # by Sub, what is read twice would be taken from itself
    proto = first_taken(bench, map(made, uncancelled), "two inputs of each operation")
    feeds = dict(zip(NAMES, numbers(len(NAMES)), strict=True))
    agree(bench, proto, feeds, "names that are nearly equal")


@check("ports", values=True)
def names_may_be_any_text(bench: Bench) -> None:
    """One small model per odd name compiles and runs."""
    for name in NAMES:
        nodes = [[helper.make_node(op, [name], [f"{name}'"], name=name)] for op in UNARY]
        models = (model(n, [value_of(name)], [value_of(f"{name}'")]) for n in nodes)
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
        outputs = [value_of(f"{name}_out") for name in reversed(names)]
        return model(nodes, [value_of(name) for name in names], outputs)

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
        out = value_of("y", (40, 3) if op == "Concat" else SHAPE)
        for order in (names, names[::-1]):
            nodes = [helper.make_node(op, order, ["y"], **given)]
            proto = model(nodes, [value_of(name) for name in names], [out])
            if not bench.refusals(proto):
                tried += 1
                agree(bench, proto, feeds, f"{op} of 20 inputs")
    parts = [value_of(f"y{i}", (1, 3)) for i in range(20)]
    split = helper.make_node("Split", ["x", "s"], [part.name for part in parts], axis=0)
    proto = model([split], [value_of("x", (20, 3))], parts, {"s": np.ones(20, np.int64)})
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
        if not bench.refusals(model([node], [value_of("x")], [value_of("y")])):
            break
    else:
        raise NotApplicableError(f"the device takes none of {', '.join(UNARY)}")
    x, y, w, z = (value_of(name) for name in "xywz")
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
        proto = model(nodes, [value_of("x")], [value_of("y"), value_of("c")])
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
        ("TopK", model([topk], [value_of("x", (2, 4))], [indices], {"k": np.array([2])}), x),
        (
            "LSTM",
            model([lstm], [value_of("x", (4, 2, 3))], [value_of("c", (1, 2, 3))], w),
            sequence,
        ),
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
        proto = model(nodes, [value_of("x"), shape], [unknown])
        if bench.refusals(proto):
            continue
        tried += 1
        for dims in ([6], [3, 1, 2], [2, 3]):
            feeds = {"x": numbers(1)[0], "s": np.array(dims, np.int64)}
            agree(bench, proto, feeds, f"{op} of an unknown rank that is {len(dims)}")
        break
    if not tried:
        raise NotApplicableError("the device takes nothing of unknown rank")


@check("ports", values=True)
def inputs_of_equal_bytes_keep_their_shapes(bench: Bench) -> None:
    """Inputs of the same bytes in other shapes are not taken for one another."""
    shapes = {"a": (2, 3), "b": (3, 2), "c": (6,), "d": (1, 6, 1)}

    def made(op: str) -> onnx.ModelProto:
        nodes = [helper.make_node(op, [n], [f"y{n}"]) for n in shapes]
        inputs = [value_of(n, s) for n, s in shapes.items()]
        return model(nodes, inputs, [value_of(f"y{n}", s) for n, s in shapes.items()])

    proto = first_taken(bench, map(made, UNARY), "one input of each operation")
    feeds = {n: np.arange(1, 7, dtype=np.float32).reshape(s) for n, s in shapes.items()}
    agree(bench, proto, feeds, "inputs of equal bytes")


@check("ports", values=True)
def long_models_work(bench: Bench) -> None:
    """A chain of 300 operations that are all taken compiles and runs."""

    def made(op: str) -> onnx.ModelProto:
        names = [f"v{i}" for i in range(301)]
        nodes = [helper.make_node(op, [a, "w"], [b]) for a, b in itertools.pairwise(names)]
        weight = np.full(SHAPE, 0.5 if op in ("Add", "Sub") else 1.01, np.float32)
        return model(nodes, [value_of("v0")], [value_of("v300")], {"w": weight})

    proto = first_taken(bench, map(made, BINARY), "two inputs of each operation")
    agree(bench, proto, {"v0": numbers(1)[0]}, "300 operations")
