"""HETERO_SCHEDULE=COST on devices whose speed is known."""

from __future__ import annotations

import json
import multiprocessing

import numpy as np
import pytest
from models import model_of, node, value, weight
from onnx import TensorProto

from partita.errors import InputError
from partita_hetero.cost import clock
from partita_hetero.planner.simulation.timeline import chrome_trace

from ..fakes import core_with, evaluate
from ..graphs import X
from ..paced import PacedDevice
from ..virtual_time import install

TYPES = ["Atan", "Sinh", "Tan", "Asinh"]  # none of these is ever grouped with another one
CHAIN = model_of(
    [node(t, [f"v{i}"], f"v{i + 1}", t.lower()) for i, t in enumerate(TYPES)],
    [value("v0", [2, 3])],
    ["v4"],
)
COST = {"HETERO_SCHEDULE": "COST"}
SLOW, FAST = 0.01, 0.0002


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    install(monkeypatch)
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    return tmp_path


def pair(**options):
    """A is slow at Sinh, B at everything else."""
    times = dict.fromkeys(TYPES, FAST)
    return (
        PacedDevice("A", {**times, "Sinh": SLOW}, **options),
        PacedDevice("B", dict.fromkeys(TYPES, SLOW) | {"Sinh": FAST}, **options),
    )


def compile_for(devices, proto=CHAIN, device="HETERO:A,B", **config):
    return core_with(*devices).compile_model(proto, device, {**COST, **config})


def placed(compiled):
    return {op.op_type: op.device for op in compiled.explain().ops}


SPLIT = {"Atan": "A", "Sinh": "B", "Tan": "A", "Asinh": "A"}


@pytest.mark.parametrize("options", [{}, {"counts": True}, {"memory": "own", "copy": FAST}])
def test_each_operation_goes_where_it_is_fast(options):
    a, b = pair(**options)
    if "memory" in options:
        a.memory, b.memory = "A's", "B's"
    compiled = compile_for((a, b))
    assert placed(compiled) == SPLIT
    decision = compiled.explain().decision
    assert decision.chosen == "plan"
    assert decision.objective == "LATENCY"
    assert {c.name for c in decision.candidates} == {"only A", "only B", "plan"}
    assert decision["plan"].ops == {"A": 3, "B": 1}
    assert decision["plan"].submodels == 3
    assert decision["plan"].measured_us < decision["only A"].measured_us
    assert decision["only A"].measured_us < decision["only B"].measured_us
    np.testing.assert_allclose(compiled({"v0": X})[0], evaluate(CHAIN, {"v0": X})[0], rtol=1e-5)


def test_what_one_kernel_computes_costs_something_in_each_of_its_operations():
    times = dict.fromkeys(TYPES, FAST)
    fused = PacedDevice("A", times, counts=True, fuses=True)
    slower = PacedDevice("B", dict.fromkeys(TYPES, 2 * FAST), counts=True)
    compiled = compile_for((fused, slower))
    assert set(placed(compiled).values()) == {"A"}
    own = [op.own_us for op in compiled.explain().ops]
    assert own == pytest.approx([FAST * 1e6] * 4, rel=0.1)


def test_reasons_are_told():
    explanation = compile_for(pair()).explain()
    assert str(explanation["sinh"].reason.code) == "CHEAPER_BY"
    assert "than on A" in explanation["sinh"].reason.detail
    lines = str(explanation).splitlines()
    assert any(
        line.startswith("placed by costs, LATENCY: kept 'plan' (measured now") for line in lines
    )
    assert any(line.startswith("  only A (A 4 ops in 1 subgraph): measured ") for line in lines)
    data = json.loads(explanation.to_json())
    assert data["decision"]["chosen"] == "plan"
    assert {c["name"] for c in data["decision"]["candidates"]} == {"only A", "only B", "plan"}


def test_crossing_can_cost_more_than_it_saves():
    a = PacedDevice("A", {"Sinh": SLOW}, memory="A's", copy=SLOW)
    b = PacedDevice("B", dict.fromkeys(["Atan", "Tan", "Asinh"], SLOW), memory="B's", copy=SLOW)
    compiled = compile_for((a, b))
    assert set(placed(compiled).values()) == {"A"}
    assert compiled.explain().decision.chosen == "only A"


def test_the_guard_rejects_a_plan_that_is_slower_than_it_looks():
    lies = {"parts": 4 * SLOW, "counts": True}
    compiled = compile_for(pair(**lies))
    decision = compiled.explain().decision
    assert decision.chosen == "only A"
    assert decision["plan"].measured_us > 2 * decision["only A"].measured_us
    assert set(placed(compiled).values()) == {"A"}


def test_greedy_competes_too():
    a, b = pair()
    a.refuses = {"Sinh"}
    decision = compile_for((a, b)).explain().decision
    assert {c.name for c in decision.candidates} >= {"priority", "only B"}
    assert decision.chosen == "priority"
    assert decision.gap is not None


# --------------------------------------------------------------------------- sample inputs


FAR = model_of(
    [
        node("Mul", ["i", "ten"], "j", "mul"),
        node("Gather", ["data", "j"], "g", "gather"),
        node("Tan", ["g"], "y", "tan"),
    ],
    [value("i", [30], TensorProto.INT64)],
    ["y"],
    [weight("ten", np.array([10])), weight("data", np.ones((5, 2), np.float32))],
)
"""Reads what is not there, unless its input is 0."""


def far_pair():
    return PacedDevice("A", {"Tan": SLOW}), PacedDevice("B", {"Tan": FAST})


def test_made_up_inputs_that_cannot_be_are_told(caplog):
    decision = compile_for(far_pair(), FAR).explain().decision
    assert decision.chosen == "priority"
    assert all(candidate.failure for candidate in decision.candidates)
    assert decision.notes[-1] == (
        "Candidates ran on made-up inputs, which may be impossible for the model: name real ones "
        "with HETERO_SAMPLE_INPUTS."
    )


def test_samples_are_measured_on_and_other_ones_again(tmp_path):
    path = tmp_path / "samples.npz"
    zeros = np.zeros(30, np.int64)
    for content, known in (({"i": zeros}, False), ({"i": zeros}, True), ({"i": -zeros}, True)):
        np.savez(path, **content)
        decision = compile_for(far_pair(), FAR, HETERO_SAMPLE_INPUTS=path).explain().decision
        assert decision.chosen == "only B"
        assert not any("made-up" in note for note in decision.notes)
        assert decision.from_database == known
    np.savez(path, i=zeros, more=zeros)
    compiled = compile_for(far_pair(), FAR, HETERO_SAMPLE_INPUTS=path)
    assert not compiled.explain().decision.from_database


def test_samples_that_do_not_fit_are_an_error(tmp_path):
    path = tmp_path / "samples.npz"
    np.savez(path, i=np.zeros(29, np.int64))
    with pytest.raises(InputError, match=r"'i' takes int64\[30\]; found int64\[29\]"):
        compile_for(far_pair(), FAR, HETERO_SAMPLE_INPUTS=path)
    np.savez(path, j=np.zeros(30, np.int64))
    with pytest.raises(InputError, match=r"HETERO_SAMPLE_INPUTS: .* cannot be used"):
        compile_for(far_pair(), FAR, HETERO_SAMPLE_INPUTS=path)


# ------------------------------------------------------------------------------ the database


def test_a_second_compile_runs_nothing():
    first = compile_for(pair())
    a, b = pair()
    second = compile_for((a, b))
    assert (a.runs, b.runs) == (0, 0)
    assert (a.uploads, b.uploads) == (0, 0)
    assert [len(model.ops) for model in a.compiled + b.compiled] == [1, 2, 1]
    assert placed(second) == placed(first)
    assert second.explain().decision.from_database
    assert not first.explain().decision.from_database
    assert second.explain().decision.candidates == first.explain().decision.candidates
    assert second.explain()["sinh"].reason == first.explain()["sinh"].reason
    assert second.device_model.predicted == first.device_model.predicted
    assert "times of an earlier compile" in str(second.explain())


def test_another_model_of_the_same_operations_takes_their_costs():
    compile_for(pair())
    longer = model_of(
        [
            node(t, ["x" if i == 0 else f"v{i}"], f"v{i + 1}", f"op{i}")
            for i, t in enumerate(["Atan", "Sinh", "Tan", "Asinh", "Sinh"])
        ],
        [value("x", [2, 3])],
        ["v5"],
    )
    a, b = pair()
    compiled = compile_for((a, b), longer)
    assert [placed(compiled)[t] for t in ("Atan", "Sinh")] == ["A", "B"]
    alone = [m for m in a.compiled + b.compiled if len(m.ops) == 1]
    assert len(alone) <= 4  # those of the plan


@pytest.mark.parametrize("change", [{"driver": "2"}, {"FLAVOUR": "other"}, {"swap": True}])
def test_what_changes_the_devices_is_measured_again(change):
    compile_for(pair())
    a, b = pair()
    a.driver = change.get("driver", "1")
    config = {"FLAVOUR": "other"} if "FLAVOUR" in change else {}
    order = "HETERO:B,A" if "swap" in change else "HETERO:A,B"
    decision = compile_for((a, b), device=order, **config).explain().decision
    assert not decision.from_database
    assert a.runs > 0


def _compile_in_a_process(results):
    install(pytest.MonkeyPatch())
    devices = pair()
    compiled = compile_for(devices)
    results.put((compiled.explain().decision.from_database, placed(compiled)))


def test_two_processes_share_the_database():
    compile_for(pair())
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_compile_in_a_process, args=(results,))
    process.start()
    assert results.get(timeout=600) == (True, SPLIT)
    process.join()


def test_a_damaged_decision_is_made_again(folder):
    import sqlite3

    compile_for(pair())
    connection = sqlite3.connect(folder / "hetero" / "costs.sqlite3")
    connection.execute('UPDATE decision SET content = \'{"wishes": [[99, "A"]]}\'')
    connection.commit()
    connection.close()
    compiled = compile_for(pair())
    assert not compiled.explain().decision.from_database
    assert placed(compiled) == SPLIT


# --------------------------------------------------------------------------------- limits


def test_one_device_leaves_nothing_to_decide():
    a, b = pair()
    compiled = compile_for((a, b), device="HETERO:A")
    assert compiled.explain().decision.notes == [
        "COST has nothing to decide: only one device can take each operation."
    ]
    assert a.runs == 0


def test_pins_may_leave_nothing_to_decide():
    a, b = pair()
    a.refuses = {"Tan"}
    pins = {"HETERO_PINS": ["type:Atan=A", "type:Sinh=B", "type:Asinh=A"]}
    compiled = compile_for((a, b), **pins)
    assert placed(compiled) == {"Atan": "A", "Sinh": "B", "Tan": "B", "Asinh": "A"}
    assert compiled.explain().decision.notes == [
        "COST has nothing to decide: each operation is pinned, or one device alone takes it."
    ]


def test_pins_are_kept():
    core = core_with(*pair())
    model = core.read_model(CHAIN)
    model.ops[1].affinity = "A"
    compiled = core.compile_model(model, "HETERO:A,B", COST)
    assert placed(compiled)["Sinh"] == "A"
    assert str(compiled.explain()["sinh"].reason) == "PINNED: affinity 'A'"
    compiled = core.compile_model(CHAIN, "HETERO:A,B", {**COST, "HETERO_PINS": "type:Tan=B"})
    assert placed(compiled)["Tan"] == "B"


def test_a_device_that_cannot_compile_loses_its_operations(caplog):
    a, b = pair()
    b.breaks_on = {"Sinh"}
    compiled = compile_for((a, b))
    assert placed(compiled)["Sinh"] == "A"
    assert any("B claimed" in note for note in compiled.explain().notes)


def test_a_candidate_that_fails_is_not_kept(caplog):
    a, b = pair()
    b.fails_on = {"Sinh"}
    compiled = compile_for((a, b))
    assert placed(compiled)["Sinh"] == "A"
    decision = compiled.explain().decision
    assert decision["only B"].failure == "it failed: B cannot run it after all"
    assert decision["only B"].measured_us is None
    assert "only B (B 4 ops in 1 subgraph): it failed: B cannot" in str(compiled.explain())
    np.testing.assert_allclose(compiled({"v0": X})[0], evaluate(CHAIN, {"v0": X})[0], rtol=1e-5)


def test_a_reference_is_the_last_resort():
    a = PacedDevice("A", dict.fromkeys(TYPES, SLOW), refuses=["Tan"])
    b = PacedDevice("B", kind="reference")
    compiled = compile_for((a, b))
    assert placed(compiled) == {"Atan": "A", "Sinh": "A", "Tan": "B", "Asinh": "A"}
    assert compiled.explain().decision.notes == [
        "COST has nothing to decide: each operation has one device that takes it; B, a reference, "
        "gets what no other takes."
    ]


def test_an_imported_model_is_not_measured_again(folder):
    blob = compile_for(pair()).export_model()
    for file in (folder / "hetero").iterdir():
        file.unlink()
    a, b = pair()
    compiled = core_with(a, b).import_model(blob, "HETERO")
    assert placed(compiled) == SPLIT
    assert (a.runs, b.runs) == (0, 0)


# ------------------------------------------------------------------ executors and objectives


BRANCHES = model_of(
    [
        node("Sinh", ["x"], "a", "a"),
        node("Sinh", ["x"], "b", "b"),
        node("Concat", ["a", "b"], "y", "y", axis=0),
    ],
    [value("x", [2, 3])],
    ["y"],
)


def test_parallel_runs_branches_on_two_devices():
    devices = [PacedDevice(name, {"Sinh": SLOW}) for name in "AB"]
    compiled = compile_for(devices, BRANCHES, HETERO_EXECUTOR="PARALLEL")
    decision = compiled.explain().decision
    assert decision.objective == "PARALLEL"
    assert decision.chosen == "plan"
    assert {compiled.explain()[name].device for name in "ab"} == {"A", "B"}


def test_one_after_another_branches_stay_together():
    devices = [PacedDevice(name, {"Sinh": SLOW}, launch=FAST) for name in "AB"]
    compiled = compile_for(devices, BRANCHES)
    assert compiled.explain().decision.chosen in ("only A", "only B")


def test_throughput_splits_a_chain():
    devices = [PacedDevice(name, {"Sinh": SLOW, "Tan": SLOW}) for name in "AB"]
    proto = model_of(
        [
            node("Sinh", ["x"], "a", "a"),
            node("Tan", ["a"], "y", "y"),
        ],
        [value("x", [2, 3])],
        ["y"],
    )
    compiled = compile_for(devices, proto, PERFORMANCE_HINT="THROUGHPUT")
    decision = compiled.explain().decision
    assert decision.objective == "THROUGHPUT"
    assert decision.chosen == "plan"
    assert set(decision["plan"].ops) == {"A", "B"}


# ----------------------------------------------------------------------------- timelines


def test_spans_of_a_request_name_devices_in_the_order_of_the_run():
    request = compile_for(pair(), PERF_COUNT=True).create_infer_request()
    assert request.device_spans() == ()
    before = clock.seconds()
    request.infer({"v0": X})
    spans = request.device_spans()
    assert [(span.device, span.kind) for span in spans] == [(name, "compute") for name in "ABA"]
    assert [span.name for span in spans] == ["subgraph1", "subgraph2", "subgraph3"]
    times = [time for span in spans for time in (span.start_s, span.end_s)]
    assert times == sorted(times)
    assert before - 1e-6 <= times[0]  # they were microseconds in between
    assert times[-1] <= clock.seconds() + 1e-6
    assert compile_for(pair()).create_infer_request().device_spans() == ()


def test_predicted_and_measured_lie_side_by_side():
    compiled = compile_for(pair(), PERF_COUNT=True)
    assert compiled.device_model.predicted.name == "predicted"
    assert compiled.device_model.measured is None
    compiled({"v0": X})
    assert type(compiled.device_model.measured) is type(compiled.device_model.predicted)
    assert [span.device for span in compiled.device_model.measured.spans] == ["A", "B", "A"]
    computed = [span for span in compiled.device_model.predicted.spans if span.kind == "compute"]
    assert [(span.device, span.name) for span in computed] == [
        ("A", "atan"),
        ("B", "sinh"),
        ("A", "tan"),
        ("A", "asinh"),
    ]
    assert (
        len(
            chrome_trace([compiled.device_model.predicted, compiled.device_model.measured])[
                "traceEvents"
            ]
        )
        > 7
    )


def test_compiled_by_priority_foresees_nothing():
    compiled = core_with(*pair()).compile_model(CHAIN, "HETERO:A,B")
    assert compiled.device_model.predicted is None
    assert compiled.explain().decision is None
    assert "HETERO_SCHEDULE" not in str(compiled.explain())
