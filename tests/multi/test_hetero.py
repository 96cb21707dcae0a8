"""HETERO over fake devices: placement, cuts, permutes, fallbacks, executors, reports."""

from __future__ import annotations

import random
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import (
    CompileError,
    DeviceError,
    DeviceNotFoundError,
    InferError,
    PropertyError,
    UnsupportedOpError,
)
from partita.query import ReasonCode

from .fakes import FakeDevice, core_with, evaluate

X = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], np.float32)


def model_of(nodes, outputs, inputs=("x",), initializers=(), shape=(2, 3)):
    def info(name, dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    graph = helper.make_graph(
        nodes,
        "m",
        [info(name, shape) for name in inputs],
        [info(name, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in initializers],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op_type, inputs, output, name=None, **attributes):
    return helper.make_node(op_type, inputs, [output], name=name or output, **attributes)


CHAIN = model_of(
    [
        node("Relu", ["x"], "a"),
        node("Exp", ["a"], "b"),
        node("Neg", ["b"], "c"),
        node("Abs", ["c"], "d"),
    ],
    ["d"],
)


def run(core, proto, device, pins=None, config=None, feeds=None):
    model = core.read_model(proto)
    for op in model.ops:
        if pins and op.name in pins:
            op.affinity = pins[op.name]
    compiled = core.compile_model(model, device, config)
    feeds = feeds or {"x": X}
    for _ in range(2):  # the second run reuses every buffer of the first
        got = compiled(feeds).to_tuple()
        for have, want in zip(got, evaluate(proto, feeds), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5)
            assert have.dtype == want.dtype
    return compiled


def devices_of(compiled):
    return {op.name: op.device for op in compiled.explain().ops}


# ------------------------------------------------------------------------------- placement


def test_priority_order_decides_and_refusals_fall_to_the_next():
    core = core_with(FakeDevice("A", refuses=["Exp", "Abs"]), FakeDevice("B", refuses=["Abs"]))
    compiled = run(core, CHAIN, "HETERO:A,B,REFERENCE")
    assert devices_of(compiled) == {"a": "A", "b": "B", "c": "A", "d": "REFERENCE"}
    why = compiled.explain()
    assert why["a"].reason.code is ReasonCode.PRIORITY
    assert why["d"].reason.code is ReasonCode.FALLBACK
    assert why["d"].refused["A"].detail == "no Abs"
    assert list(why["d"].refused) == ["A", "B"]
    assert compiled.get_property("EXECUTION_DEVICES") == ["A", "B", "REFERENCE"]
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 4
    assert "A 2 ops, B 1 ops, REFERENCE 1 ops in 4 subgraphs" in why.summary()


def test_everything_on_the_first_device_is_one_submodel():
    compiled = run(core_with(FakeDevice("A")), CHAIN, "HETERO:A,REFERENCE")
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 1
    assert compiled.explain().boundaries[0].source is None


def test_a_pinned_operation_stays_and_the_rest_is_automatic():
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    assert devices_of(compiled) == {"a": "A", "b": "B", "c": "A", "d": "A"}
    assert compiled.explain()["b"].reason.code is ReasonCode.PINNED


def test_a_pin_may_name_a_device_outside_the_list():
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    assert devices_of(run(core, CHAIN, "HETERO:A", pins={"c": "B"}))["c"] == "B"


def test_query_edit_write_back_compile():
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    model = core.read_model(CHAIN)
    supported = core.query_model(model, "HETERO:A,B")
    assert dict(supported) == {"a": "A", "b": "B", "c": "A", "d": "A"}
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = supported[op.get_friendly_name()]
    model.ops[3].affinity = "B"
    assert dict(core.query_model(model, "HETERO:A,B")) == dict(supported), "affinities are ignored"
    assert devices_of(core.compile_model(model, "HETERO:A,B"))["d"] == "B"


def test_a_pin_that_its_device_refuses_moves_on_with_the_reason():
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:B", pins={"b": "A"})
    row = compiled.explain()["b"]
    assert row.device == "B"
    assert row.reason.code is ReasonCode.FALLBACK
    assert row.refused["A"].detail == "no Exp"


def test_strict_refuses_to_move_a_pin():
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    with pytest.raises(UnsupportedOpError, match=r"'b' \(Exp\) is pinned to 'A'.*no Exp.*STRICT"):
        run(core, CHAIN, "HETERO:B", pins={"b": "A"}, config={"STRICT": "YES"})


def test_a_pin_on_a_device_that_does_not_exist():
    core = core_with(FakeDevice("A"))
    with pytest.raises(
        DeviceNotFoundError, match=r"'b' has the affinity 'NPU'.*no device 'NPU'.*A"
    ):
        run(core, CHAIN, "HETERO:A", pins={"b": "NPU"})


def test_an_operation_that_no_device_takes_names_each_reason():
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B", refuses=["Exp", "Neg"]))
    with pytest.raises(UnsupportedOpError) as caught:
        run(core, CHAIN, "HETERO:A,B")
    assert "No device takes 1 of 4" in str(caught.value)
    assert "'b' (Exp): A: UNSUPPORTED_OP: no Exp; B: UNSUPPORTED_OP: no Exp" in str(caught.value)


def test_query_of_an_operation_that_no_device_takes():
    core = core_with(FakeDevice("A", refuses=["Exp"]))
    result = core.query_model(core.read_model(CHAIN), "HETERO:A")
    assert "b" not in result
    assert "no Exp" in result.reasons["b"].detail


def test_each_device_is_asked_once_and_only_if_needed():
    first, second = FakeDevice("A"), FakeDevice("B")
    core_with(first, second).compile_model(CHAIN, "HETERO:A,B")
    assert (first.queries, second.queries) == (1, 0)


# ------------------------------------------------------------------------- device strings


def test_default_list_prefers_accelerators_and_ends_with_the_reference():
    core = core_with(FakeDevice("ACC"), FakeDevice("G", kind="gpu"))
    listed = core.compile_model(CHAIN).get_property("MULTI_DEVICE_PRIORITIES").split(",")
    assert listed[:2] == ["G", "ACC"]
    assert listed[-1] == "REFERENCE"


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("HETERO:A,A", DeviceError, "lists 'A' twice"),
        ("HETERO:A,NPU", DeviceNotFoundError, "no device 'NPU'"),
        ("HETERO:HETERO", DeviceNotFoundError, "cannot be one of its own"),
        ("HETERO:A,,B", DeviceError, "empty name"),
    ],
)
def test_bad_lists(device, error, message):
    with pytest.raises(error, match=message):
        core_with(FakeDevice("A")).compile_model(CHAIN, device)


def test_priorities_by_config_and_by_property():
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    by_config = core.compile_model(CHAIN, "HETERO", {"MULTI_DEVICE_PRIORITIES": "B,A"})
    assert by_config.get_property("EXECUTION_DEVICES") == ["B"]
    by_object = core.compile_model(CHAIN, "HETERO", partita.properties.device.priorities("B", "A"))
    assert by_object.get_property("EXECUTION_DEVICES") == ["B"]
    core.set_property("HETERO", {partita.properties.device.priorities: "A,B"})
    assert core.compile_model(CHAIN, "HETERO").get_property("EXECUTION_DEVICES") == ["A"]
    assert core.compile_model(CHAIN, "HETERO:B").get_property("EXECUTION_DEVICES") == ["B"]


# ------------------------------------------------------------------------------ properties


def test_properties_reach_only_the_device_that_owns_them():
    first, second = FakeDevice("A", refuses=["Exp"]), FakeDevice("B")
    core = core_with(first, second)
    settings = partita.properties.device.properties("B", {"FLAVOUR": "mint"})
    core.compile_model(CHAIN, "HETERO:A,B", dict([settings]))
    assert {p.FLAVOUR for p in first.seen_properties} == {"plain"}
    assert {p.FLAVOUR for p in second.seen_properties} == {"mint"}


def test_a_key_of_the_devices_is_passed_through_and_one_of_nobody_is_refused():
    first = FakeDevice("A", refuses=["Exp"])
    core = core_with(first)
    core.compile_model(CHAIN, "HETERO:A,REFERENCE", {"FLAVOUR": "rose"})
    assert {p.FLAVOUR for p in first.seen_properties} == {"rose"}
    with pytest.raises(PropertyError, match=r"Neither HETERO nor any of A has a property 'FLAVOR'"):
        core.compile_model(CHAIN, "HETERO:A", {"FLAVOR": "rose"})
    with pytest.raises(PropertyError, match="DEVICE_PROPERTIES names 'NPU'"):
        core.compile_model(CHAIN, "HETERO:A", {"DEVICE_PROPERTIES": {"NPU": {}}})


def test_profiling_on_one_device_only():
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    core.set_property("A", {"PERF_COUNT": "YES"})
    compiled = core.compile_model(CHAIN, "HETERO:A,B")
    request = compiled.create_infer_request()
    request.infer({"x": X})
    names = [info.node_name for info in request.get_profiling_info()]
    assert [name.partition(":")[0] for name in names] == ["subgraph1", "subgraph3"]


def test_counters_have_the_documented_lines():
    core = core_with(FakeDevice("A", refuses=["Exp"], memory="vram"))
    compiled = core.compile_model(CHAIN, "HETERO:A,REFERENCE", {"PERF_COUNT": True})
    request = compiled.create_infer_request()
    request.infer({"x": X})
    text = partita.format_counters(request.get_profiling_info())
    assert "subgraph1: 1. " in text
    assert "subgraph2: 1. " in text
    assert "permute a (A to host)" in text
    assert "EXECUTED" in text
    assert "realTime: " in text
    assert text.splitlines()[-1].startswith("Total time: ")
    assert text.splitlines()[-1].endswith(" microseconds")


# ------------------------------------------------------------------------------- fallbacks


def test_a_device_that_claims_and_cannot_compile_loses_only_its_part():
    core = core_with(FakeDevice("A", breaks_on=["Neg"], refuses=["Exp"]), FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B")
    assert devices_of(compiled) == {"a": "A", "b": "B", "c": "B", "d": "B"}
    row = compiled.explain()["c"]
    assert row.refused["A"].code is ReasonCode.COMPILE_FAILED
    assert "cannot compile Neg" in row.refused["A"].detail
    assert "A claimed 2 operations" in compiled.explain().notes[0]


def test_submodels_that_did_not_change_are_not_compiled_again():
    good = FakeDevice("A", refuses=["Exp"])
    core = core_with(good, FakeDevice("B", breaks_on=["Exp"]))
    run(core, CHAIN, "HETERO:A,B,REFERENCE")
    assert len(good.compiled) == 2


def test_strict_raises_what_the_device_raised():
    core = core_with(FakeDevice("A", breaks_on=["Neg"]), FakeDevice("B"))
    with pytest.raises(CompileError, match=r"Device 'A' claimed 4 operations.*cannot compile Neg"):
        run(core, CHAIN, "HETERO:A,B", config={"STRICT": True})


def test_if_every_device_fails_the_error_names_all():
    core = core_with(FakeDevice("A", breaks_on=["Neg"]), FakeDevice("B", breaks_on=["Neg"]))
    with pytest.raises(UnsupportedOpError, match=r"A: COMPILE_FAILED.*B: COMPILE_FAILED"):
        run(core, CHAIN, "HETERO:A,B")


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_a_failing_run_is_an_error_if_strict_and_the_request_can_be_used_again(executor):
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B", fails_at_run=[1]))
    config = {"HETERO_EXECUTOR": executor, "STRICT": True}
    compiled = core.compile_model(CHAIN, "HETERO:A,B", config)
    request = compiled.create_infer_request()
    with pytest.raises(InferError, match="fell over"):
        request.infer({"x": X})
    np.testing.assert_allclose(request.infer({"x": X})[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
def test_a_device_that_fails_while_running_loses_only_its_part(executor):
    flaky = FakeDevice("A", refuses=["Exp"], fails_at_run=[1])
    core = core_with(flaky, FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B", config={"HETERO_EXECUTOR": executor})
    assert devices_of(compiled) == {"a": "B", "b": "B", "c": "A", "d": "A"}
    assert compiled.explain()["a"].refused["A"].code is ReasonCode.RUN_FAILED
    assert "A claimed 1 operations (from 'a') and failed to run" in compiled.explain().notes[0]


def test_after_three_failures_a_device_is_left_alone_until_it_is_enabled():
    flaky = FakeDevice("A", refuses=["Exp"], fails_at_run=[2, 4, 6])
    core = core_with(flaky, FakeDevice("B"))
    nodes = [node("Relu", ["x"], "v0")]
    for index in range(1, 9):
        nodes.append(node("Exp" if index % 2 else "Neg", [f"v{index - 1}"], f"v{index}"))
    proto = model_of(nodes, ["v8"])
    compiled = run(core, proto, "HETERO:A,B")
    assert "A" not in devices_of(compiled).values()
    assert "enable_device('A')" in compiled.explain().notes[-1]
    compiled.enable_device("A")
    assert devices_of(compiled)["v0"] == "A"
    assert not compiled.explain().notes
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(proto, {"x": X})[0], rtol=1e-5)
    with pytest.raises(DeviceNotFoundError, match="not among the devices"):
        compiled.enable_device("REFERENCE")


def test_what_fails_on_every_device_changes_nothing():
    core = core_with(FakeDevice("A", fails_at_run=[1]), FakeDevice("B", fails_at_run=[1]))
    compiled = core.compile_model(CHAIN, "HETERO:A,B")
    with pytest.raises(InferError, match="fell over"):
        compiled({"x": X})
    assert set(devices_of(compiled).values()) == {"A"}
    assert not compiled.explain().notes
    np.testing.assert_allclose(compiled({"x": X})[0], evaluate(CHAIN, {"x": X})[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"returned float32\[1, 3\] as 'a'; float32\[2, 3\] is due"),
        ("dtype", "returned float64"),
        ("count", "returned 0 tensors; 1 are due"),
        ("nan", "returned NaN in 'a'"),
        ("hang", "did not answer within 200 ms"),
        ("crash", "KeyError"),
    ],
)
def test_wrong_answers_count_as_failures(fault, message):
    core = core_with(FakeDevice("A", refuses=["Exp"], fault=fault), FakeDevice("B"))
    config = {"REJECT_NAN": True, "HETERO_TIMEOUT_MS": 200}
    compiled = run(core, CHAIN, "HETERO:A,B", config=config)
    assert set(devices_of(compiled).values()) == {"B"}
    strict = core.compile_model(CHAIN, "HETERO:A,B", {**config, "STRICT": True})
    with pytest.raises(InferError, match=message):
        strict({"x": X})


# ---------------------------------------------------------------------- difficult topologies


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
    downloads = [step for step in compiled.assembly.plan.steps if getattr(step, "value", "") == "r"]
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


# ----------------------------------------------------------------------------------- permutes


def test_permutes_are_visible_and_happen_once():
    first, second = FakeDevice("A", memory="a"), FakeDevice("B", memory="b")
    core = core_with(first, second)
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    names = [step.name for step in compiled.assembly.plan.steps if hasattr(step, "value")]
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
    assert (first.uploads, second.uploads) == (4, 2)  # two runs
    assert compiled.explain().bytes_crossing == 4 * X.nbytes


def test_devices_of_one_memory_share_without_permutes():
    core = core_with(FakeDevice("A", memory="m"), FakeDevice("B", memory="m"))
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    inner = [edge for edge in compiled.explain().boundaries if edge.source and edge.target]
    assert {edge.how for edge in inner} == {"shared"}
    assert sum(hasattr(step, "value") for step in compiled.assembly.plan.steps) == 2


# ---------------------------------------------------------------------------------- executors


def test_parallel_runs_independent_branches_at_the_same_time():
    proto = model_of(
        [node("Exp", ["x"], "a"), node("Neg", ["x"], "b"), node("Add", ["a", "b"], "y")], ["y"]
    )
    meeting = threading.Barrier(2, timeout=20)
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


@settings(max_examples=60, deadline=None)
@given(random_models())
def test_any_affinity_on_any_model_gives_the_right_answer(case):
    proto, pins, executor = case
    core = core_with(FakeDevice("A"), FakeDevice("B", memory="b"), FakeDevice("C", memory="c"))
    run(core, proto, "HETERO:A,B,C", pins=pins, config={"HETERO_EXECUTOR": executor})


# ------------------------------------------------------------------------------------ reports


def test_dot_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    core.compile_model(CHAIN, "HETERO:A,B", {"HETERO_DUMP_GRAPH_DOT": True})
    affinity = (tmp_path / "hetero_affinity_m.dot").read_text()
    subgraphs = (tmp_path / "hetero_subgraphs_m.dot").read_text()
    assert affinity.startswith("digraph affinity {")
    assert "op0 -> op1;" in affinity
    assert 'label="b\\nExp\\nB, subgraph 2"' in affinity
    assert "s1 -> s2" in subgraphs
    assert "inputs -> s1" in subgraphs
    assert "-> outputs" in subgraphs


def test_dot_files_by_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARTITA_HETERO_DUMP_GRAPH_DOT", "1")
    core_with(FakeDevice("A")).compile_model(CHAIN, "HETERO:A")
    assert len(list(tmp_path.glob("hetero_*_m.dot"))) == 2


def test_explanation_as_table_and_json():
    import json

    core = core_with(FakeDevice("A", refuses=["Exp"]), FakeDevice("B"))
    why = core.compile_model(CHAIN, "HETERO:A,B").explain()
    assert "not A: UNSUPPORTED_OP: no Exp" in str(why)
    data = json.loads(why.to_json())
    assert data["ops"][1]["device"] == "B"
    assert data["summary"] == why.summary()


def test_export_and_import_keep_the_placement():
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    restored = core.import_model(compiled.export_model(), "HETERO")
    assert devices_of(restored) == devices_of(compiled)
    np.testing.assert_allclose(restored({"x": X})[0], compiled({"x": X})[0])


def test_requests_of_one_compiled_model_are_independent():
    core = core_with(FakeDevice("A", delay_s=0.01), FakeDevice("B", delay_s=0.01))
    compiled = run(core, CHAIN, "HETERO:A,B", pins={"b": "B"})
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2
    queue = partita.AsyncInferQueue(compiled)
    assert len(queue) == 2
    found = {}
    queue.set_callback(lambda request, key: found.__setitem__(key, request.results[0].copy()))
    for key in range(12):
        queue.start_async({"x": X * key}, key)
    queue.wait_all()
    for key in range(12):
        np.testing.assert_allclose(
            found[key], evaluate(CHAIN, {"x": X * np.float32(key)})[0], rtol=1e-6
        )


def test_dynamic_shapes_cross():
    proto = model_of(CHAIN.graph.node, ["d"], shape=("n", 3))
    core = core_with(FakeDevice("A"), FakeDevice("B", memory="b"))
    compiled = run(core, proto, "HETERO:A,B", pins={"b": "B"})
    for rows in (1, 5, 0, 2):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_allclose(compiled({"x": x})[0], evaluate(proto, {"x": x})[0])
