"""HETERO places operations: priorities, pins, device strings, properties."""

from __future__ import annotations

import pytest

import partita
from partita.contract.query import ReasonCode
from partita.errors import (
    DeviceError,
    DeviceNotFoundError,
    PropertyError,
    UnsupportedOpError,
)

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN, X, devices_of, model_of, node, run


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


def test_an_affinity_on_a_device_that_does_not_exist_is_let_go(caplog):
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    pins = {"a": "B", "b": "NPU", "c": "NPU"}
    compiled = run(core, CHAIN, "HETERO:A,B", pins=pins)
    assert devices_of(compiled) == {"a": "B", "b": "A", "c": "A", "d": "A"}
    (note,) = compiled.explain().notes
    assert note in caplog.text
    assert note.startswith("Operation 'b' has the affinity 'NPU', which is not a usable device. ")
    assert note.endswith(
        "So 2 operations have it. Such affinities are ignored; with STRICT they are an error."
    )
    with pytest.raises(
        DeviceNotFoundError, match=r"'b' has the affinity 'NPU'.*no device 'NPU'.*A"
    ):
        run(core, CHAIN, "HETERO:A,B", pins=pins, config={"STRICT": True})


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


def test_default_list_prefers_accelerators_and_ends_with_the_reference():
    core = core_with(FakeDevice("ACC"), FakeDevice("G", kind="gpu"))
    listed = core.compile_model(CHAIN).get_property("MULTI_DEVICE_PRIORITIES").split(",")
    assert [device for device in listed if device in ("G", "ACC")] == ["G", "ACC"]
    assert listed.index("ACC") < listed.index("CPU")
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


def test_a_second_hetero_does_not_count_as_a_device():
    core = core_with(FakeDevice("A"))
    core.register_plugin("partita_hetero", "HETERO2")
    listed = core.compile_model(CHAIN, "HETERO2").get_property("MULTI_DEVICE_PRIORITIES")
    assert "HETERO" not in listed
    assert "A" in listed.split(",")


def test_a_device_that_cannot_be_described_is_left_out_of_the_default_list(monkeypatch):
    broken = FakeDevice("A")
    monkeypatch.setattr(broken, "device_info", lambda device_id: 1 / 0)
    listed = (
        core_with(broken).compile_model(CHAIN, "HETERO").get_property("MULTI_DEVICE_PRIORITIES")
    )
    assert "A" not in listed.split(",")


def test_settings_of_a_name_without_id_reach_each_of_its_devices():
    first = FakeDevice("A", refuses=["Exp"])
    core = core_with(first)
    config = {"DEVICE_PROPERTIES": {"A": {"FLAVOUR": "lime"}}}
    core.compile_model(CHAIN, "HETERO:A,REFERENCE", config)
    assert {p.FLAVOUR for p in first.seen_properties} == {"lime"}


ROUND_TRIPS = model_of(
    [
        node("Identity", ["x"], "a"),
        node("Tanh", ["a"], "b"),
        node("Transpose", ["b"], "c"),
        node("Tanh", ["c"], "d"),
        node("Identity", ["d"], "e"),
        node("Neg", ["e"], "f"),
    ],
    ["f"],
)
"""A device without Tanh has no neighbours of ``a`` and ``c``, and one of ``e``."""


def test_what_computes_nothing_follows_its_neighbours():
    core = core_with(FakeDevice("A", refuses=["Tanh"]), FakeDevice("B"))
    compiled = run(core, ROUND_TRIPS, "HETERO:A,B")
    assert devices_of(compiled) == dict(zip("abcdef", "BBBBAA", strict=True))
    row = compiled.explain()["c"]
    assert row.reason.code is ReasonCode.FOLLOWS
    assert row.reason.detail == "computes nothing, and A has none of its neighbours"
    assert (row.refused, row.elsewhere, row.change) == ({}, "A", "a pin")
    answer = core.query_model(core.read_model(ROUND_TRIPS), "HETERO:A,B")
    assert dict(answer) == devices_of(compiled)
    assert answer.reasons["c"] == row.reason


def test_pins_and_affinities_keep_what_computes_nothing():
    core = core_with(FakeDevice("A", refuses=["Tanh"]), FakeDevice("B"))
    compiled = run(core, ROUND_TRIPS, "HETERO:A,B", {"c": "A"}, {"HETERO_PINS": ["a=A"]})
    assert devices_of(compiled) == dict(zip("abcdef", "ABABAA", strict=True))


def test_nothing_follows_to_a_reference():
    core = core_with(FakeDevice("A", refuses=["Tanh"]))
    compiled = run(core, ROUND_TRIPS, "HETERO:A,REFERENCE")
    assert devices_of(compiled)["c"] == "A"


def test_a_device_that_refuses_part_of_a_region_gets_none_of_it():
    core = core_with(
        FakeDevice("A", refuses=["Tanh"]), FakeDevice("B", refuses=["Transpose"]), FakeDevice("C")
    )
    compiled = run(core, ROUND_TRIPS, "HETERO:A,B,C")
    assert devices_of(compiled) == dict(zip("abcdef", "BBABAA", strict=True))
