"""Difficult topologies, permutes and executors of HETERO give the right answer."""

from __future__ import annotations

import random
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import partita
from partita.contract.query import ReasonCode

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN, X, devices_of, model_of, node, run


def test_an_input_that_is_an_output_and_a_weight_that_is_an_output():
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto = model_of(
        [node("Add", ["x", "w"], "y"), node("Identity", ["x"], "through")],
        ["y", "w", "through"],
        initializers=[("w", weight)],
    )
    compiled = run(core_with(FakeDevice("A")), proto, "HETERO:A,REFERENCE", pins={"y": "REFERENCE"})
    assert compiled.output(1).name == "w"


def test_a_model_input_that_is_directly_an_output():
    proto = model_of([node("Relu", ["x"], "y")], ["y", "x"])
    core = core_with(FakeDevice("A"))
    compiled = core.compile_model(proto, "HETERO:A")
    x = X.copy()
    results = compiled({"x": x}, share_outputs=True)
    x[:] = 0
    np.testing.assert_array_equal(results["x"], X)


def test_a_weight_that_is_an_output_may_be_written_to():
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto = model_of([node("Relu", ["x"], "y")], ["y", "w"], initializers=[("w", weight)])
    compiled = core_with(FakeDevice("A")).compile_model(proto, "HETERO:A")
    for _ in range(2):
        results = compiled({"x": X}, share_outputs=True)
        np.testing.assert_array_equal(results["w"], weight)
        results["w"][:] = 99


def test_a_model_of_constants_only():
    shape = numpy_helper.from_array(np.array([2], np.int64), "s")
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("ConstantOfShape", ["s"], ["c"], name="c")],
            "m",
            [],
            [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2])],
            [shape],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    compiled = core_with(FakeDevice("A")).compile_model(proto, "HETERO:A")
    np.testing.assert_array_equal(compiled({})[0], np.zeros(2, np.float32))


def test_constant_operations_follow_their_readers():
    proto = model_of(
        [
            node("Neg", ["w"], "nw"),
            node("Add", ["x", "nw"], "a"),
            node("Mul", ["a", "nw"], "b"),
        ],
        ["b"],
        initializers=[("w", np.float32(2) * np.ones((2, 3), np.float32))],
    )
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    compiled = run(core, proto, "HETERO:A,B", pins={"b": "B", "a": "A"})
    assert compiled.explain()["nw"].reason.code is ReasonCode.CONSTANT
    crossing = [edge.value for edge in compiled.explain().boundaries if edge.source and edge.target]
    assert crossing == ["a"], "the constant does not cross"


def test_a_constant_operation_that_its_reader_cannot_take_keeps_a_place():
    proto = model_of(
        [node("Neg", ["w"], "nw"), node("Add", ["x", "nw"], "a")],
        ["a"],
        initializers=[("w", np.ones((2, 3), np.float32))],
    )
    core = core_with(FakeDevice("A", refuses=["Neg"]), FakeDevice("B"))
    compiled = run(core, proto, "HETERO:A,B")
    assert devices_of(compiled) == {"nw": "B", "a": "A"}


def test_what_depends_on_a_constant_that_has_a_place_has_one_too():
    proto = model_of(
        [
            node("Neg", ["w"], "nw"),
            node("Abs", ["nw"], "anw"),
            node("Add", ["x", "anw"], "a"),
            node("Exp", ["a"], "b"),
        ],
        ["b"],
        initializers=[("w", np.ones((2, 3), np.float32))],
    )
    core = core_with(FakeDevice("A", refuses=["Neg"]), FakeDevice("B"))
    compiled = run(core, proto, "HETERO:A,B", config={"STRICT": True})
    assert devices_of(compiled) == {"nw": "B", "anw": "A", "a": "A", "b": "A"}


def test_an_operation_that_no_output_needs_is_left_out():
    proto = model_of([node("Relu", ["x"], "y"), node("Exp", ["x"], "unused")], ["y"])
    compiled = run(core_with(FakeDevice("A", refuses=["Exp"])), proto, "HETERO:A")
    assert compiled.explain()["unused"].reason.code is ReasonCode.UNUSED


def test_one_value_on_three_devices_and_an_output_that_is_used_inside():
    proto = model_of(
        [
            node("Relu", ["x"], "r"),
            node("Exp", ["r"], "e"),
            node("Neg", ["r"], "n"),
            node("Add", ["r", "r"], "twice"),
            node("Sum", ["e", "n", "twice"], "s"),
        ],
        ["r", "s"],
    )
    core = core_with(FakeDevice("A"), FakeDevice("B", memory="b"), FakeDevice("C", memory="c"))
    pins = {"r": "B", "e": "C", "n": "A", "twice": "B", "s": "C"}
    compiled = run(core, proto, "HETERO:A,B,C", pins=pins)
    downloads = [
        step
        for step in compiled.device_model.assembly.plan.steps
        if getattr(step, "value", "") == "r"
    ]
    assert len(downloads) == 2, "r goes to the host once and to C once, however many read it"


def test_a_body_of_if_reads_a_value_of_another_device():
    then_body = helper.make_graph(
        [node("Add", ["h", "h"], "t")],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, None)],
    )
    else_body = helper.make_graph(
        [node("Identity", ["x"], "e")],
        "else",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, None)],
    )
    proto = model_of(
        [
            node("Relu", ["x"], "h"),
            node("ReduceSum", ["x"], "total", keepdims=0),
            node("Greater", ["zero", "total"], "cond"),
            node("If", ["cond"], "y", then_branch=then_body, else_branch=else_body),
            node("Neg", ["y"], "z"),
        ],
        ["z"],
        initializers=[("zero", np.float32(0))],
    )
    core = core_with(FakeDevice("A", memory="a"), FakeDevice("B"))
    for feeds in ({"x": X}, {"x": -X}):
        run(core, proto, "HETERO:A,B", pins={"h": "A", "y": "B", "z": "A"}, feeds=feeds)


def test_what_a_body_reads_for_nothing_is_computed_nowhere():
    """Devices leave out what nobody reads, and so claimed what they could not compute alone."""
    bodies = [
        helper.make_graph(
            [
                node("Exp", ["b"], f"{name}_exp"),
                node("Neg", [f"{name}_exp"], f"{name}_unread"),
                node("Abs", ["x"], f"{name}_abs"),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_abs", TensorProto.FLOAT, None)],
        )
        for name in ("then", "else")
    ]
    proto = model_of(
        [
            node("Optional", ["x"], "a"),
            node("OptionalGetElement", ["a"], "b"),
            node("ReduceSum", ["x"], "total", keepdims=0),
            node("Greater", ["zero", "total"], "cond"),
            node("If", ["cond"], "y", then_branch=bodies[0], else_branch=bodies[1]),
            node("Neg", ["y"], "z"),
        ],
        ["z"],
        initializers=[("zero", np.float32(0))],
    )
    core = partita.Core()  # CPU has no kernels for Optional
    config = {"STRICT": True, "HETERO_PINS": ["y=REFERENCE"]}
    compiled = core.compile_model(proto, "HETERO:CPU,REFERENCE", config)
    np.testing.assert_array_equal(compiled({"x": X})["z"], -np.abs(X))
    reasons = [compiled.explain()[name].reason.code for name in ("a", "b")]
    assert reasons == [ReasonCode.UNUSED] * 2


def test_permutes_are_visible_and_happen_once():
    first, second = FakeDevice("A", memory="a"), FakeDevice("B", memory="b")
    core = core_with(first, second)
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    names = [
        step.name for step in compiled.device_model.assembly.plan.steps if hasattr(step, "value")
    ]
    assert names == [
        "permute x (host to A)",
        "permute a (A to host)",
        "permute a (host to B)",
        "permute b (B to host)",
        "permute b (host to A)",
        "permute d (A to host)",
    ]
    assert [edge.how for edge in compiled.explain().boundaries] == [
        "upload",
        "host",
        "host",
        "download",
    ]
    assert (first.uploads, second.uploads) == (0, 0)  # each run brings what it alone reads
    counted = core.compile_model(compiled.model, "HETERO:A,B", {"PERF_COUNT": True})
    counted.create_infer_request().infer({"x": X})
    assert (first.uploads, second.uploads) == (2, 1)
    assert compiled.explain().bytes_crossing == 4 * X.nbytes


def test_devices_of_one_memory_share_without_permutes():
    core = core_with(FakeDevice("A", memory="m"), FakeDevice("B", memory="m"))
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    inner = [edge for edge in compiled.explain().boundaries if edge.source and edge.target]
    assert {edge.how for edge in inner} == {"shared"}
    assert sum(hasattr(step, "value") for step in compiled.device_model.assembly.plan.steps) == 2


def test_parallel_runs_independent_branches_at_the_same_time():
    proto = model_of(
        [node("Exp", ["x"], "a"), node("Neg", ["x"], "b"), node("Add", ["a", "b"], "y")], ["y"]
    )
    meeting = threading.Barrier(2, timeout=60)
    core = core_with(FakeDevice("A", meet=meeting), FakeDevice("B", meet=meeting), FakeDevice("C"))
    pins = {"a": "A", "b": "B", "y": "C"}
    run(core, proto, "HETERO:A,B,C", pins=pins, config={"HETERO_EXECUTOR": "PARALLEL"})


def test_cancelling_stops_between_steps():
    core = core_with(FakeDevice("A", delay_s=0.2, refuses=["Exp"]), FakeDevice("B"))
    request = core.compile_model(CHAIN, "HETERO:A,B").create_infer_request()
    request.start_async({"x": X})
    request.cancel()
    with pytest.raises(partita.errors.InferCancelledError):
        request.wait()


@st.composite
def random_models(draw):
    """A graph of element-wise operations with several outputs and a device for each operation."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    values, nodes = ["x", "w"], []
    for index in range(rng.randint(1, 14)):
        op_type = rng.choice(["Add", "Mul", "Sub", "Relu", "Neg", "Tanh", "Max"])
        count = 1 if op_type in ("Relu", "Neg", "Tanh") else 2
        nodes.append(node(op_type, [rng.choice(values) for _ in range(count)], f"v{index}"))
        values.append(f"v{index}")
    outputs = rng.sample(values[2:], rng.randint(1, len(nodes)))
    proto = model_of(nodes, outputs, initializers=[("w", X * np.float32(0.5))])
    pins = {n.name: rng.choice(["A", "B", "C"]) for n in nodes if rng.random() < 0.8}
    return proto, pins, rng.choice(["LINEAR", "DATAFLOW", "PARALLEL"])


@examples(60)
@given(random_models())
def test_any_affinity_on_any_model_gives_the_right_answer(case):
    proto, pins, executor = case
    core = core_with(FakeDevice("A"), FakeDevice("B", memory="b"), FakeDevice("C", memory="c"))
    config = {"HETERO_EXECUTOR": executor, "STRICT": True}  # so that nothing is hidden by recovery
    run(core, proto, "HETERO:A,B,C", pins=pins, config=config)
