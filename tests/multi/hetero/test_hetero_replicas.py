"""Whole replicas: a request stays on one of several devices that compute alike."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import onnx
import pytest
from cache_device import ROOM, CacheDevice, CacheTensor, row
from decoders import decoder, step
from models import model_of, node, value, weight

import partita
from partita.cli.main import main
from partita.errors import PlanError
from partita_hetero.placement.lock_file import Lock, graph_digest

from ..fakes import FakeDevice, core_with, evaluate
from ..graphs import X
from ..lossy import LossyDevice
from ..paced import PacedDevice, PacedTwins
from ..test_state_in_place import CONTEXT, close, judged
from ..virtual_time import install
from .test_hetero_state import column, due, fill, two_layers

TYPES = ["Atan", "Sinh", "Tan", "Asinh"]  # none of these is ever grouped with another one
CHAIN = model_of(
    [node(t, [f"v{i}"], f"v{i + 1}", t.lower()) for i, t in enumerate(TYPES)],
    [value("v0", [2, 3])],
    ["v4"],
)
MANY = {"HETERO_SCHEDULE": "COST", "PERFORMANCE_HINT": "THROUGHPUT"}
BOTH = "HETERO:T.0,T.1"
CHOSEN = "replicas on T.0, T.1"
FAST = 0.0002
UNEVEN = {"Atan": 4 * FAST, "Sinh": FAST, "Tan": FAST, "Asinh": FAST}
"""No cut in two halves is even: the larger takes 4, all of it 7."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    install(monkeypatch)
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))


def twins(*slower, times=UNEVEN, **options):
    """Two devices of one plugin, the second so many times as slow as the first."""
    factors = [1.0, *(slower or [1.0])]
    return PacedTwins(
        "T",
        *(
            PacedDevice("T", {t: factor * s for t, s in times.items()}, **options)
            for factor in factors
        ),
    )


def compile_for(*devices, device=BOTH, proto=CHAIN, **config):
    return core_with(*devices).compile_model(proto, device, {**MANY, **config})


def ran(plugin, request, times=1):
    """How often each device has run, of so many runs of a request."""
    before = [member.runs for member in plugin.members.values()]
    for _ in range(times):
        (found,) = request.infer({"v0": X}).to_tuple()
        np.testing.assert_allclose(found, evaluate(CHAIN, {"v0": X})[0], rtol=1e-5)
    after = [member.runs for member in plugin.members.values()]
    return [now - then for now, then in zip(after, before, strict=True)]


def seats(plugin, compiled, count):
    """The device of each of so many new requests, which are kept alive meanwhile."""
    requests = [compiled.create_infer_request() for _ in range(count)]
    return [int(np.argmax(ran(plugin, request))) for request in requests]


def test_requests_are_spread_over_replicas_where_that_is_faster():
    plugin = twins()
    compiled = compile_for(plugin)
    decision = compiled.explain().decision
    assert decision.chosen == CHOSEN
    replicas = decision[CHOSEN]
    assert (replicas.ops, replicas.submodels) == ({"T.0": 4, "T.1": 4}, 2)
    assert replicas.predicted_us == pytest.approx(3.5e6 * FAST, rel=0.05)
    assert replicas.measured_us == pytest.approx(3.5e6 * FAST, rel=0.05)
    assert decision["plan"].measured_us == pytest.approx(4e6 * FAST, rel=0.05)
    for _ in range(4):
        request = compiled.create_infer_request()
        assert sorted(ran(plugin, request, 3)) == [0, 3]  # it stays where it is


def test_new_requests_take_turns_and_closed_ones_make_room():
    plugin = twins()
    compiled = compile_for(plugin)
    requests = [compiled.create_infer_request() for _ in range(4)]
    assert [ran(plugin, request).index(1) for request in requests] == [0, 1, 0, 1]
    del requests[1], requests[2]
    assert seats(plugin, compiled, 2) == [1, 1]
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2


def test_a_faster_device_gets_more_requests():
    plugin = twins(3.0)
    compiled = compile_for(plugin)
    assert compiled.explain().replicas == pytest.approx({"T.0": 0.75, "T.1": 0.25}, abs=0.01)
    assert Counter(seats(plugin, compiled, 8)) == {0: 6, 1: 2}


def test_an_operation_says_that_it_runs_on_either():
    compiled = compile_for(twins())
    explanation = compiled.explain()
    assert explanation.ops_per_device == {"T.0": 4, "T.1": 4}
    for op in explanation.ops:
        assert (op.device, op.also, op.where) == ("T.0", ("T.1",), "T.0 or T.1")
        assert str(op.reason) == "REPLICATED: each of T.0, T.1 runs it, for requests of its own"
        assert (op.alternative, op.change) == ("", "a pin")
    assert explanation.summary().startswith("m: T.0 or T.1 4 ops in 1 subgraph;")
    assert "each request stays on one of 2 replicas: T.0 50%, T.1 50%" in str(explanation)
    assert compiled.get_property("EXECUTION_DEVICES") == ["T.0", "T.1"]
    assert compiled.get_property("HETERO_NUMBER_OF_REPLICAS") == 2
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 1
    assert set(compiled.get_property("DEVICE_PROPERTIES")) == {"T.0", "T.1"}


def test_pictures_say_so_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compile_for(twins(), HETERO_DUMP_GRAPH_DOT=True)
    for name in ("affinity", "subgraphs"):
        assert "T.0 or T.1" in (tmp_path / f"hetero_{name}_m.dot").read_text()


def test_what_only_another_device_takes_is_shared_by_the_replicas():
    """T refuses Sinh; C computes it for both, and is the busiest device if it is slow."""
    plugin = twins()
    for member in plugin.members.values():
        member.refuses = {"Sinh"}
    other = PacedDevice("C", {"Sinh": FAST}, refuses={"Atan", "Tan", "Asinh"})
    compiled = compile_for(plugin, other, device=f"{BOTH},C")
    explanation = compiled.explain()
    assert explanation.decision.chosen == f"{CHOSEN} with C"
    assert explanation.replicas == pytest.approx({"T.0 with C": 0.5, "T.1 with C": 0.5})
    assert (explanation["sinh"].where, explanation["tan"].where) == ("C", "T.0 or T.1")
    assert explanation.decision[f"{CHOSEN} with C"].ops == {"T.0": 3, "C": 1, "T.1": 3}
    assert Counter(seats(plugin, compiled, 4)) == {0: 2, 1: 2}


def test_what_is_best_for_one_replica_is_tried_on_each():
    """Sinh is slow on T and quick on C, which can do it for both: no candidate without replicas."""
    slow = {**UNEVEN, "Sinh": 30 * FAST}
    other = PacedDevice("C", {"Sinh": FAST, **{t: 60 * FAST for t in slow if t != "Sinh"}})
    explanation = compile_for(twins(times=slow), other, device=f"{BOTH},C").explain()
    assert explanation.decision.chosen == f"{CHOSEN} with C"
    assert (explanation["sinh"].where, explanation["tan"].where) == ("C", "T.0 or T.1")


def test_a_second_compile_finds_them():
    first, second = compile_for(twins()), compile_for(plugin := twins())
    assert [member.runs for member in plugin.members.values()] == [0, 0]
    assert second.explain().decision.from_database
    assert second.explain().replicas == first.explain().replicas
    assert second.explain().ops == first.explain().ops
    assert Counter(seats(plugin, second, 4)) == {0: 2, 1: 2}


def test_they_are_found_for_each_of_several_sizes():
    """Short inputs: replicas; long ones: C, of another plugin, is faster than both together."""
    varying = model_of(CHAIN.graph.node, [value("v0", ["rows", 3])], ["v4"])
    each = dict.fromkeys(TYPES, FAST / 3)
    plugin = PacedTwins("T", *(PacedDevice("T", per_element=each) for _ in range(2)))
    steady = PacedDevice("C", launch=30 * FAST)
    sizes = {"HETERO_SAMPLE_SHAPES": "v0=2x3; v0=4x3; v0=64x3"}
    compiled = compile_for(plugin, steady, device=f"{BOTH},C", proto=varying, **sizes)
    explanation = compiled.explain()
    assert explanation.replicas == pytest.approx({"T.0": 0.5, "T.1": 0.5})
    assert explanation.planned_for == "v0=2x3; v0=4x3"
    (far,) = explanation.near.values()
    assert (far.ops_per_device, far.replicas) == ({"C": 4}, {})
    requests = [compiled.create_infer_request() for _ in range(2)]
    assert [ran(plugin, request).index(1) for request in requests] == [0, 1]
    long = np.ones((64, 3), np.float32)
    for request in requests:
        before = steady.runs
        request.infer({"v0": long})
        assert steady.runs == before + 1
    assert [ran(plugin, request).index(1) for request in requests] == [0, 1]
    imported = core_with(plugin, steady).import_model(compiled.export_model(), f"{BOTH},C")
    assert imported.explain().replicas == explanation.replicas
    assert imported.explain().near.keys() == explanation.near.keys()


# ------------------------------------------------------------------------------ when not


@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT"])
def test_only_throughput_has_them(hint):
    compiled = compile_for(twins(), PERFORMANCE_HINT=hint)
    assert bool(compiled.explain().replicas) == (hint == "THROUGHPUT")


def test_a_plan_that_is_faster_is_kept():
    """Each half is on the device that is fast at it."""
    plugin = PacedTwins(
        "T",
        PacedDevice("T", {"Atan": FAST, "Sinh": FAST, "Tan": 9 * FAST, "Asinh": 9 * FAST}),
        PacedDevice("T", {"Atan": 9 * FAST, "Sinh": 9 * FAST, "Tan": FAST, "Asinh": FAST}),
    )
    explanation = compile_for(plugin).explain()
    assert (explanation.decision.chosen, explanation.replicas) == ("plan", {})
    assert explanation.decision[CHOSEN].measured_us > explanation.decision["plan"].measured_us


def test_devices_of_two_plugins_have_none():
    """Results of a request would depend on which of them it is bound to."""
    devices = [PacedDevice(name, UNEVEN) for name in "AB"]
    explanation = compile_for(*devices, device="HETERO:A,B").explain()
    assert not explanation.replicas
    assert not any("replicas" in one.name for one in explanation.decision.candidates)


@pytest.mark.parametrize("kind", ["gpu", "accelerator"])
def test_devices_of_two_kinds_have_none(kind):
    plugin = twins()
    plugin.members["1"].kind = kind
    assert bool(compile_for(plugin).explain().replicas) == (kind == "accelerator")


def test_devices_with_other_properties_have_none():
    settings = {"DEVICE_PROPERTIES": {"T.1": {"FLAVOUR": "other"}}}
    assert not compile_for(twins(), **settings).explain().replicas
    both = {"DEVICE_PROPERTIES": {"T": {"FLAVOUR": "other"}}}
    assert compile_for(twins(), **both).explain().replicas


def test_a_pin_keeps_its_device():
    explanation = compile_for(twins(), HETERO_PINS=["tan=T.1"]).explain()
    assert (explanation.replicas, explanation["tan"].device) == ({}, "T.1")


def test_each_replica_needs_room_for_all_weights():
    rng = np.random.default_rng(0)
    big = model_of(
        [node("MatMul", ["v0", "w0"], "m", "first"), node("MatMul", ["m", "w1"], "y", "second")],
        [value("v0", [4, 256])],
        ["y"],
        [weight(name, rng.random((256, 256), np.float32)) for name in ("w0", "w1")],
    )
    for limit, has_replicas in (("1MiB", True), ("300KiB", False)):
        plugin = twins(times={"MatMul": FAST})
        limits = {"HETERO_MEMORY_LIMITS": {"T.0": "1MiB", "T.1": limit}}
        explanation = compile_for(plugin, proto=big, **limits).explain()
        names = [one.name for one in explanation.decision.candidates]
        assert (CHOSEN in names) == has_replicas


# ------------------------------------------------------------------------- failures, files


@pytest.mark.parametrize("dead", ["0", "1"])
def test_requests_of_a_device_that_dies_go_to_the_other(dead):
    plugin = twins()
    compiled = compile_for(plugin)
    requests = [compiled.create_infer_request() for _ in range(4)]
    for request in requests:
        ran(plugin, request)
    member = plugin.members[dead]
    member.fails_at_run = range(1, 1000)
    other = "1" if dead == "0" else "0"
    for request in requests:
        assert ran(plugin, request)[int(other)] == 1
    explanation = compiled.explain()
    assert (explanation.replicas, explanation.ops_per_device) == ({}, {f"T.{other}": 4})
    assert f"T.{dead} claimed 4 operations (from 'atan') and failed to run" in str(explanation)
    assert explanation["tan"].reason.detail == (
        "the other devices that ran it for requests of their own are gone"
    )
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1
    member.fails_at_run = ()
    compiled.device_model.enable_device(f"T.{dead}")
    assert [ran(plugin, request).index(1) for request in requests] == [0, 1, 0, 1]


@pytest.mark.parametrize("dead", ["", "0", "1"])
def test_an_imported_model_has_them_too(dead):
    blob = compile_for(twins()).export_model()
    plugin = twins()
    imported = core_with(plugin).import_model(blob, BOTH)
    explanation = imported.explain()
    assert explanation.replicas == pytest.approx({"T.0": 0.5, "T.1": 0.5})
    assert explanation["tan"].where == "T.0 or T.1"
    assert explanation.decision.chosen == CHOSEN
    if dead:
        plugin.members[dead].fails_at_run = range(1, 1000)
        seats_now = {1 - int(dead)}
    else:
        seats_now = {0, 1}
    requests = [imported.create_infer_request() for _ in range(4)]
    for request in requests:
        request.infer({"v0": X})
    assert {ran(plugin, request).index(1) for request in requests} == seats_now


def test_cached_models_have_them_too(tmp_path):
    config = {"CACHE_DIR": str(tmp_path / "cache")}
    first = compile_for(twins(), **config)
    again = compile_for(plugin := twins(), **config)
    assert again.get_property("LOADED_FROM_CACHE")
    assert again.explain().replicas == first.explain().replicas
    assert Counter(seats(plugin, again, 4)) == {0: 2, 1: 2}


def test_requests_that_run_at_the_same_time_are_right():
    compiled = compile_for(twins())
    rng = np.random.default_rng(0)
    feeds = [rng.random((2, 3), np.float32) for _ in range(32)]
    wanted = [evaluate(CHAIN, {"v0": x})[0] for x in feeds]
    found = {}
    queue = partita.AsyncInferQueue(compiled, 6)
    queue.set_callback(
        lambda request, number: found.update({number: np.array(request.get_output_tensor().data)})
    )
    for number, x in enumerate(feeds):
        queue.start_async({"v0": x}, number)
    queue.wait_all()
    for number, result in found.items():
        np.testing.assert_allclose(result, wanted[number], rtol=1e-5)
    assert len(found) == len(feeds)


# ------------------------------------------------------------------------- plan, lock files


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs a command line over twins; returns the output."""
    model = tmp_path / "model.onnx"
    onnx.save(CHAIN, model)
    core = core_with(twins())
    for module in ("partita_hetero.cli.plan", "partita.cli.commands.run"):
        monkeypatch.setattr(f"{module}.Core", lambda: core)

    def run(name, *argv):
        assert main([name, str(model), "-d", BOTH, *map(str, argv)]) == 0
        return capsys.readouterr().out

    return run


def test_partita_plan_tells_of_them(command, tmp_path):
    page, lock = tmp_path / "plan.html", tmp_path / "plan.toml"
    throughput = ("--objective", "THROUGHPUT")
    data = json.loads(command("plan", *throughput, "--json", "--gantt", page))
    assert data["kept"] == CHOSEN
    assert data["value_us"] == pytest.approx(3.5e6 * FAST, rel=0.05)
    assert {task["device"] for task in data["tasks"]} == {"T.0 or T.1"}
    assert {task["reason"]["code"] for task in data["tasks"]} == {"REPLICATED"}
    assert [(part["number"], part["device"], part["ops"]) for part in data["parts"]] == [
        (1, "T.0", 4),
        (2, "T.1", 4),
    ]
    uses = {use["device"]: (use["ops"], use["load_us"]) for use in data["devices"]}
    assert uses == {name: (4, pytest.approx(3.5e6 * FAST, rel=0.05)) for name in ("T.0", "T.1")}
    assert "T.0 or T.1" in page.read_text()
    out = command("plan", *throughput, "--lock", lock, "--explain")
    assert f"'{CHOSEN}' is kept" in out
    assert re.search(r'^"?tan"? += "T.0 or T.1" +# Tan$', lock.read_text(), re.MULTILINE)


def test_a_table_of_costs_knows_which_devices_compute_alike(command, tmp_path, capsys):
    """What was measured is planned again with no device at hand, to the same replicas."""
    costs = tmp_path / "costs.json"
    hint = ("--property", "PERFORMANCE_HINT=THROUGHPUT")
    raced = json.loads(command("plan", *hint, "--save-costs", costs, "--json"))
    assert raced["kept"] == CHOSEN
    assert main(["plan", "--costs", str(costs), *hint, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["method"] == CHOSEN
    assert [task["device"] for task in data["tasks"]] == [t["device"] for t in raced["tasks"]]
    assert data["value_us"] == pytest.approx(raced["value_us"])


def test_a_lock_brings_them_back(command, tmp_path):
    lock = tmp_path / "plan.toml"
    command("plan", "--objective", "THROUGHPUT", "--lock", lock)
    plugin = twins()
    config = {"HETERO_PLACEMENT_LOCK": lock, "STRICT": True}
    compiled = core_with(plugin).compile_model(CHAIN, BOTH, config)
    explanation = compiled.explain()
    assert explanation.replicas == pytest.approx({"T.0": 0.5, "T.1": 0.5})
    assert (explanation["tan"].where, explanation.decision) == ("T.0 or T.1", None)
    assert seats(plugin, compiled, 4) == [0, 1, 0, 1]


def test_a_lock_can_be_edited(command, tmp_path):
    """One operation on one device, which crosses in the replica of the other; and other shares."""
    lock = tmp_path / "plan.toml"
    command("plan", "--objective", "THROUGHPUT", "--lock", lock)
    text = lock.read_text()
    assert 'shares = "0.500 0.500"' in text
    lines = text.replace("0.500 0.500", "3 1").split("\n")
    lines = [x.replace("T.0 or T.1", "T.1") if x.startswith("tan ") else x for x in lines]
    lock.write_text("\n".join(lines))
    compiled = core_with(twins()).compile_model(CHAIN, BOTH, {"HETERO_PLACEMENT_LOCK": lock})
    explanation = compiled.explain()
    assert (explanation["tan"].where, explanation["atan"].where) == ("T.1", "T.0 or T.1")
    assert explanation.replicas == pytest.approx({"T.0 with T.1": 0.75, "T.1": 0.25})
    (found,) = compiled({"v0": X}).to_tuple()
    np.testing.assert_allclose(found, evaluate(CHAIN, {"v0": X})[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            ("0.500 0.500", "1"),
            "'shares' in [plan] is '1'; expected positive numbers, one for each",
        ),
        (("0.500 0.500", "1 -1"), "'shares' in [plan] is '1 -1'; expected positive numbers"),
        (("0.500 0.500", "a b"), "of the replicas, of which there are 2."),
        (("T.1", "T.1 or T.0"), "has operations of 2 and of 3 devices joined by ' or '"),
        (("T.1", "T.2"), "gives operations to 'T.2', which [devices] does not list"),
    ],
)
def test_a_lock_that_makes_no_sense_is_an_error(command, tmp_path, edit, said):
    lock = tmp_path / "plan.toml"
    command("plan", "--objective", "THROUGHPUT", "--lock", lock)
    before, _, last = lock.read_text().rpartition(edit[0])
    lock.write_text(before + edit[1] + last)
    with pytest.raises(PlanError, match=re.escape(said)):
        core_with(twins()).compile_model(CHAIN, BOTH, {"HETERO_PLACEMENT_LOCK": lock})


# ------------------------------------------------------------------------------ state


def locked(core, proto, devices, path, **config):
    """A model of which each device has all, as a lock file says; nothing moves."""
    model = core.read_model(proto.SerializeToString())
    infos = [core.device_api.device_info(device) for device in devices]
    drivers = [", ".join(text for text in (i.full_name, i.driver) if text) for i in infos]
    ops = {op.name: " or ".join(devices) for op in model.ops}
    lock = Lock(model.name, graph_digest(model), dict(zip(devices, drivers, strict=True)), ops)
    lock.save(path / "replicas.toml")
    config = {"HETERO_PLACEMENT_LOCK": path / "replicas.toml", "STRICT": True, **config}
    return core.compile_model(model, f"HETERO:{','.join(devices)}", config)


def test_state_stays_where_its_request_is(tmp_path):
    devices = CacheDevice(name="CACHE"), CacheDevice(name="CACHE2")
    CacheTensor.downloads = 0
    compiled = locked(core_with(*devices), two_layers(), ["CACHE", "CACHE2"], tmp_path)
    requests = [compiled.create_infer_request() for _ in range(4)]
    also = compiled.create_infer_request(share_state_with=requests[1])
    for request in requests:
        fill(request, ROOM // 2)
    for at in range(ROOM // 2, ROOM):
        for request in (requests[0], also, *requests[2:]):
            assert request.infer(row(at + 1, at))["y.1"].flat[0] == due(at + 1)
    assert ([one.copied for one in devices], CacheTensor.downloads) == ([0, 0], 0)
    memories = [request.get_tensor("past.0").memory for request in (*requests, also)]
    assert memories == ["CACHE", "CACHE2", "CACHE", "CACHE2", "CACHE2"]
    for request in (*requests[:1], also, *requests[2:]):
        assert column(request, 0) == list(range(1, ROOM + 1))


def test_sequences_in_turns_are_those_of_onnxruntime(tmp_path):
    """A decoder on two devices with real kernels: each sequence has its own cache."""
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    compiled = locked(core, decoder(2, CONTEXT, True), ["CPU", "CPU2"], tmp_path)
    assert compiled.explain().replicas == pytest.approx({"CPU": 0.5, "CPU2": 0.5})
    requests = [compiled.create_infer_request() for _ in range(3)]
    parts = [([number + token for token in range(5)], 0) for number in range(3)]
    logits, _ = zip(*(judged([part]) for part in parts), strict=True)
    for request, (tokens, at), wanted in zip(requests, parts, logits, strict=True):
        close(request.infer(step(tokens, at))["logits"], wanted[0])
    for number, request in enumerate(requests):
        both = [parts[number], ([7], 5)]
        close(request.infer(step([7], 5))["logits"], judged(both)[0][1])


def test_each_replica_keeps_the_accuracy_budget(tmp_path):
    """T.1 is not exact enough at Sinh, so it gets nothing to do; T.0 is."""
    plugin = PacedTwins("T", FakeDevice("T"), LossyDevice("T", {"Sinh": 0.1}))
    for budget, devices in ((0.5, {"T.0": 4, "T.1": 4}), (1e-3, {"T.0": 4})):
        config = {"HETERO_ACCURACY_BUDGET": budget, "STRICT": False}
        compiled = locked(core_with(plugin), CHAIN, ["T.0", "T.1"], tmp_path, **config)
        assert compiled.explain().ops_per_device == devices
    for _ in range(2):
        (found,) = compiled.create_infer_request().infer({"v0": X}).to_tuple()
        np.testing.assert_allclose(found, evaluate(CHAIN, {"v0": X})[0], rtol=1e-3)


def test_copies_of_inputs_lie_where_the_replica_wants_them(monkeypatch):
    plugin = twins()
    given = {}
    for number, member in plugin.members.items():
        compile_one, arrays = member.compile_model, given.setdefault(number, [])

        def noting(*args, compile_one=compile_one, arrays=arrays):
            compiled = compile_one(*args)

            def host_array(shape, dtype):
                arrays.append(np.zeros(shape, dtype))
                return arrays[-1]

            monkeypatch.setattr(compiled, "host_array", host_array, raising=False)
            return compiled

        monkeypatch.setattr(member, "compile_model", noting)
    compiled = compile_for(plugin)
    requests = [compiled.create_infer_request() for _ in range(2)]
    for request in requests:
        request.start_async({"v0": X})
        request.wait()
    lie_in = [request.get_input_tensor().numpy() for request in requests]
    found = [
        [number for number, arrays in given.items() if any(one is array for one in arrays)]
        for array in lie_in
    ]
    assert sorted(found) == [["0"], ["1"]]
