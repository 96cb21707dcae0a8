"""Named difficult cuts, each run on devices with memories of their own and compared."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ..fakes import FakeDevice, core_with
from ..graphs import X, devices_of, model_of, node, run

W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
EXECUTORS = ["LINEAR", "DATAFLOW", "PARALLEL"]

CASES = {
    # name: (nodes, outputs, weights, pins, number of subgraphs; one for PARALLEL if it differs)
    "A-B-A-B": (
        [
            node("Relu", ["x"], "a1"),
            node("Exp", ["a1"], "b1"),
            node("Neg", ["b1"], "a2"),
            node("Abs", ["a2"], "b2"),
        ],
        ["b2"],
        [],
        {"a1": "A", "b1": "B", "a2": "A", "b2": "B"},
        4,
    ),
    "nested re-entry with a skip": (
        [
            node("Relu", ["x"], "a1"),
            node("Exp", ["a1"], "b1"),
            node("Neg", ["b1"], "a2"),
            node("Abs", ["a2"], "b2"),
            node("Add", ["b2", "a1"], "a3"),
        ],
        ["a3"],
        [],
        {"a1": "A", "b1": "B", "a2": "A", "b2": "B", "a3": "A"},
        5,
    ),
    "a shared constant that re-enters": (
        [
            node("Neg", ["w"], "k"),
            node("Add", ["x", "k"], "a1"),
            node("Mul", ["a1", "k"], "b1"),
            node("Sub", ["b1", "k"], "a2"),
        ],
        ["a2"],
        [("w", W)],
        {"k": "C", "a1": "A", "b1": "B", "a2": "A"},
        3,
    ),
    "a shared constant that is an output too": (
        [
            node("Neg", ["w"], "k"),
            node("Add", ["x", "k"], "a1"),
            node("Mul", ["a1", "k"], "b1"),
        ],
        ["b1", "k"],
        [("w", W)],
        {"k": "C", "a1": "A", "b1": "B"},
        3,
    ),
    "a weight read on every device": (
        [
            node("Add", ["x", "w"], "a1"),
            node("Mul", ["a1", "w"], "b1"),
            node("Sub", ["b1", "w"], "c1"),
        ],
        ["c1"],
        [("w", W)],
        {"a1": "A", "b1": "B", "c1": "C"},
        3,
    ),
    "a cycle through three submodels": (
        [
            node("Relu", ["x"], "a1"),
            node("Exp", ["a1"], "b1"),
            node("Neg", ["b1"], "c1"),
            node("Add", ["c1", "a1"], "a2"),
        ],
        ["a2"],
        [],
        {"a1": "A", "b1": "B", "c1": "C", "a2": "A"},
        4,
    ),
    "pass-through beside a cut": (
        [node("Relu", ["x"], "a1"), node("Exp", ["a1"], "b1")],
        ["x", "b1", "w"],
        [("w", W)],
        {"a1": "A", "b1": "B"},
        2,
    ),
    "constant-only beside a cut": (
        [
            node("Neg", ["w"], "k1"),
            node("Exp", ["k1"], "k2"),
            node("Relu", ["x"], "a1"),
            node("Abs", ["a1"], "b1"),
        ],
        ["k2", "b1"],
        [("w", W)],
        {"k1": "A", "k2": "B", "a1": "A", "b1": "B"},
        (2, 3),  # PARALLEL leaves k2 and b1 apart
    ),
    "one output to two submodels of one device": (
        [
            node("Relu", ["x"], "a1"),
            node("Exp", ["a1"], "b1"),
            node("Neg", ["b1"], "c1"),
            node("Add", ["c1", "a1"], "b2"),
        ],
        ["b2", "b1"],
        [],
        {"a1": "A", "b1": "B", "c1": "C", "b2": "B"},
        4,
    ),
    "the same tensor twice": (
        [
            node("Relu", ["x"], "a1"),
            node("Mul", ["a1", "a1"], "b1"),
            node("Add", ["b1", "b1"], "a2"),
            node("Sum", ["a2", "a1", "a2"], "b2"),
        ],
        ["b2", "a2"],
        [],
        {"a1": "A", "b1": "B", "a2": "A", "b2": "B"},
        4,
    ),
    "an operation with outputs on two devices": (
        [
            helper.make_node("Split", ["x", "two"], ["s", "t"], name="s", axis=1),
            node("Exp", ["s"], "b1"),
            node("Neg", ["t"], "c1"),
            node("Concat", ["b1", "t", "c1"], "a1", axis=1),
        ],
        ["a1", "t"],
        [("two", np.array([1, 2], np.int64))],
        {"s": "A", "b1": "B", "c1": "C", "a1": "A"},
        4,
    ),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_named_case(name, executor):
    nodes, outputs, weights, pins, count = CASES[name]
    if isinstance(count, tuple):
        count = count[executor == "PARALLEL"]
    proto = model_of(nodes, outputs, initializers=weights)
    core = core_with(FakeDevice("A", memory="a"), FakeDevice("B", memory="b"), FakeDevice("C"))
    config = {"HETERO_EXECUTOR": executor, "STRICT": True}
    compiled = run(core, proto, "HETERO:A,B,C", pins=pins, config=config)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == count
    placed = {op: device for op, device in devices_of(compiled).items() if device != "-"}
    assert placed == {op: pins[op] for op in placed}


def body(nodes, inputs, outputs):
    def info(name, kind=TensorProto.FLOAT, dims=None):
        return helper.make_tensor_value_info(name, kind, dims)

    return helper.make_graph(
        nodes,
        "body",
        [info(*entry) if isinstance(entry, tuple) else info(entry) for entry in inputs],
        [info(*entry) if isinstance(entry, tuple) else info(entry) for entry in outputs],
    )


def loop_model():
    """h on one device; a Loop that reads h and the input; what follows on another."""
    step = body(
        [
            node("Identity", ["go"], "on"),
            node("Add", ["state", "h"], "sum"),
            node("Mul", ["sum", "x"], "next"),
            node("ReduceSum", ["next"], "total", keepdims=0),
        ],
        [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("state", 1, [2, 3])],
        [("on", TensorProto.BOOL, []), ("next", 1, [2, 3]), ("total", 1, [])],
    )
    return model_of(
        [
            node("Relu", ["x"], "h"),
            helper.make_node("Loop", ["n", "yes", "h"], ["last", "totals"], name="loop", body=step),
            node("Neg", ["last"], "y"),
            node("Abs", ["totals"], "z"),
        ],
        ["y", "z"],
        initializers=[("n", np.array(3, np.int64)), ("yes", np.array(True))],
    )


def scan_model():
    """A Scan over the rows whose body reads a value of another device."""
    step = body(
        [node("Add", ["state", "row"], "kept"), node("Mul", ["kept", "scale"], "out")],
        [("state", 1, [3]), ("row", 1, [3])],
        [("kept", 1, [3]), ("out", 1, [3])],
    )
    return model_of(
        [
            node("ReduceMax", ["x"], "scale", keepdims=0),
            helper.make_node(
                *("Scan", ["start", "x"], ["kept_last", "rows"]),
                name="scan",
                body=step,
                num_scan_inputs=1,
            ),
            node("Sub", ["rows", "kept_last"], "y"),
        ],
        ["y"],
        initializers=[("start", np.zeros(3, np.float32))],
    )


def nested_if_model():
    """An If in an If; the inner branches read values that two other devices made."""

    def branch(nodes, output):
        return helper.make_graph(
            nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        )

    inner = node(
        *("If", ["cond"], "picked"),
        then_branch=branch([node("Add", ["h", "g"], "t1")], "t1"),
        else_branch=branch([node("Sub", ["h", "x"], "e1")], "e1"),
    )
    return model_of(
        [
            node("Relu", ["x"], "h"),
            node("Exp", ["x"], "g"),
            node("ReduceSum", ["x"], "total", keepdims=0),
            node("Greater", ["total", "zero"], "cond"),
            node(
                *("If", ["cond"], "y"),
                then_branch=branch([inner], "picked"),
                else_branch=branch([node("Mul", ["g", "g"], "e2")], "e2"),
            ),
            node("Neg", ["y"], "z"),
        ],
        ["z"],
        initializers=[("zero", np.float32(0))],
    )


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("proto", "pins"),
    [
        (loop_model(), {"h": "A", "loop": "B", "y": "A", "z": "C"}),
        (scan_model(), {"scale": "A", "scan": "B", "y": "C"}),
        (nested_if_model(), {"h": "A", "g": "C", "total": "A", "cond": "C", "y": "B", "z": "A"}),
    ],
    ids=["Loop", "Scan", "If in If"],
)
def test_bodies_read_values_of_other_devices(proto, pins, executor):
    core = core_with(FakeDevice("A", memory="a"), FakeDevice("B", memory="b"), FakeDevice("C"))
    config = {"HETERO_EXECUTOR": executor, "STRICT": True}
    model = core.read_model(proto)
    for op in model.ops:
        op.affinity = pins[op.name]
    compiled = core.compile_model(model, "HETERO:A,B,C", config)
    assert devices_of(compiled) == pins
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for feeds in ({"x": X}, {"x": -X}, {"x": X}):
        for have, want in zip(compiled(feeds).to_tuple(), session.run(None, feeds), strict=True):
            assert have.shape == want.shape
            np.testing.assert_allclose(have, want, rtol=1e-5)


def test_weights_behind_a_cut_are_shared_and_not_copied():
    weight = np.random.default_rng(0).standard_normal((512, 3), dtype=np.float32)
    proto = model_of(
        [node("Gemm", ["x", "w"], "a1", transB=1), node("Gemm", ["a1", "w"], "b1")],
        ["b1"],
        initializers=[("w", weight)],
    )
    a, b = FakeDevice("A"), FakeDevice("B")
    run(core_with(a, b), proto, "HETERO:A,B", pins={"a1": "A", "b1": "B"})
    first, second = (device.compiled[0].ir.graph.initializers["w"].const_value for device in (a, b))
    assert first is second
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), first.numpy())
