"""Properties of HETERO as OpenVINO documents them: from where they come, and whom they reach."""

from __future__ import annotations

import numpy as np
import pytest

import partita as ov
from partita.errors import DeviceError, PropertyError
from partita_cpu.jit.isa import isa
from partita_cpu.pair_rate import multiplies_pairs
from partita_hetero.options import property_names

from ..fakes import FakeDevice, core_with
from ..graphs import CHAIN, X, devices_of, run

props = ov.properties


def core_of_two(**settings):
    a, b = FakeDevice("A", **settings), FakeDevice("B")
    return core_with(a, b), a, b


@pytest.mark.parametrize(
    ("device", "config", "expected"),
    [
        ("HETERO:B,A", None, "B"),
        ("HETERO", {"MULTI_DEVICE_PRIORITIES": "B,A"}, "B"),
        ("HETERO", {"MULTI_DEVICE_PRIORITIES": ["B", "A"]}, "B"),
        ("HETERO", props.device.priorities("B", "A"), "B"),
        ("HETERO", {props.device.priorities: "B,A"}, "B"),
        ("HETERO", [props.device.priorities("B", "A"), props.enable_profiling(True)], "B"),
        ("HETERO:A,B", {"MULTI_DEVICE_PRIORITIES": "B,A"}, "A"),  # the string has the last word
    ],
)
def test_priorities_from_string_and_configuration(device, config, expected):
    core, *_ = core_of_two()
    compiled = core.compile_model(CHAIN, device, config)
    assert compiled.get_property("EXECUTION_DEVICES") == [expected]
    want = "A,B" if expected == "A" else "B,A"
    assert compiled.get_property(props.device.priorities) == want


@pytest.mark.parametrize(
    "setting",
    [
        ({"MULTI_DEVICE_PRIORITIES": "B,A"},),
        (props.device.priorities("B", "A"),),
        ({props.device.priorities: "B,A"},),
    ],
)
def test_priorities_from_set_property(setting):
    core, *_ = core_of_two()
    core.set_property("HETERO", *setting)
    assert core.get_property("HETERO", "MULTI_DEVICE_PRIORITIES") == "B,A"
    assert core.compile_model(CHAIN, "HETERO").get_property("EXECUTION_DEVICES") == ["B"]
    assert core.compile_model(CHAIN, "HETERO:A").get_property("EXECUTION_DEVICES") == ["A"]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("HETERO:A,A", "'A' twice"),
        ("HETERO:A,NOTHERE", "no device 'NOTHERE'"),
        ("HETERO:A,,B", "an empty name"),
        ("HETERO:A,HETERO", "cannot be one of its own devices"),
    ],
)
def test_lists_that_make_no_sense(device, message):
    core, *_ = core_of_two()
    with pytest.raises(DeviceError, match=message):
        core.compile_model(CHAIN, device)


SOUR = {"FLAVOUR": "sour"}


@pytest.mark.parametrize(
    "config",
    [
        {"DEVICE_PROPERTIES": {"A": SOUR}},
        props.device.properties("A", SOUR),
        [props.device.properties("A", SOUR)],
        [props.device.properties("A", ("FLAVOUR", "sour"))],
        {props.device.properties(): {"A": SOUR}},
        [props.device.properties({"A": SOUR, "B": {"PERF_COUNT": "YES"}})],
        [props.device.properties("A", SOUR), props.device.properties("B", {"PERF_COUNT": True})],
    ],
)
def test_properties_in_every_spelling_reach_the_device_that_owns_them(config):
    core, a, b = core_of_two(refuses=["Exp"])
    compiled = core.compile_model(CHAIN, "HETERO:A,B", config)
    assert {p.FLAVOUR for p in a.seen_properties} == {"sour"}
    assert {p.FLAVOUR for p in b.seen_properties} == {"plain"}
    assert not any(p.PERF_COUNT for p in a.seen_properties)
    owned = compiled.get_property("DEVICE_PROPERTIES")
    assert owned["A"]["FLAVOUR"] == "sour"
    assert owned["B"]["FLAVOUR"] == "plain"
    assert owned["A"]["EXECUTION_DEVICES"] == ["A"]


def test_keys_of_one_device_never_reach_another():
    """REFERENCE has no FLAVOUR: it would refuse the key, if it got it."""
    core, a, _ = core_of_two(refuses=["Exp"])
    compiled = run(core, CHAIN, "HETERO:A,REFERENCE", config=SOUR)
    assert {p.FLAVOUR for p in a.seen_properties} == {"sour"}
    assert devices_of(compiled)["b"] == "REFERENCE"
    core.set_property("A", {"FLAVOUR": "sweet"})
    run(core, CHAIN, "HETERO:A,REFERENCE")
    assert a.seen_properties[-1].FLAVOUR == "sweet"
    run(core, CHAIN, "HETERO:A,REFERENCE", config={"DEVICE_PROPERTIES": {"A": SOUR}})
    assert a.seen_properties[-1].FLAVOUR == "sour"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"DEVICE_PROPERTIES": {"B": {"NONSENSE": 1}}}, "sets 'NONSENSE' for 'B', which has no"),
        ({"DEVICE_PROPERTIES": {"REFERENCE": SOUR}}, "sets 'FLAVOUR' for 'REFERENCE'"),
        ({"DEVICE_PROPERTIES": {"NOTHERE": SOUR}}, "names 'NOTHERE'"),
        ({"NONSENSE": 1}, "Neither HETERO nor any of A, B has a property 'NONSENSE'"),
    ],
)
def test_keys_of_nobody_are_refused_even_where_the_device_gets_nothing_to_do(config, message):
    core, *_ = core_of_two()
    with pytest.raises(PropertyError, match=message):
        core.compile_model(CHAIN, "HETERO:A,B", config)


def test_supported_properties_say_what_can_be_set():
    core, *_ = core_of_two()
    of_device = core.get_property("A", props.supported_properties)
    assert of_device["FLAVOUR"] == of_device["PERF_COUNT"] == "RW"
    assert of_device["FULL_DEVICE_NAME"] == of_device["SUPPORTED_PROPERTIES"] == "RO"
    of_hetero = core.get_property("HETERO", "SUPPORTED_PROPERTIES")
    assert of_hetero["MULTI_DEVICE_PRIORITIES"] == of_hetero["DEVICE_PROPERTIES"] == "RW"
    compiled = core.compile_model(CHAIN, "HETERO:A,B")
    listed = compiled.get_property("SUPPORTED_PROPERTIES")
    assert set(listed.values()) == {"RO"}
    openvino_s = {
        *("NETWORK_NAME", "OPTIMAL_NUMBER_OF_INFER_REQUESTS", "EXECUTION_DEVICES"),
        *("LOADED_FROM_CACHE", "HETERO_NUMBER_OF_SUBMODELS", "SUPPORTED_PROPERTIES"),
        *("DEVICE_PROPERTIES", "MULTI_DEVICE_PRIORITIES"),
    }
    assert openvino_s <= set(listed)
    for key in listed:
        compiled.get_property(key)


def test_the_facts_of_a_compiled_model():
    core, *_ = core_of_two(refuses=["Exp"])
    compiled = core.compile_model(CHAIN, "HETERO:A,B")
    assert compiled.get_property(property_names.number_of_submodels) == 3
    assert compiled.get_property(props.execution_devices) == ["A", "B"]
    assert compiled.get_property(props.model_name) == "m"
    assert compiled.get_property(props.optimal_number_of_infer_requests) >= 2
    assert core.get_property("A", props.available_devices) == []


def test_query_does_not_look_at_affinities_and_its_answer_can_be_edited():
    core, *_ = core_of_two(refuses=["Exp"])
    model = core.read_model(CHAIN)
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = "B"
    assert core.query_model(model, "A") == {"a": "A", "c": "A", "d": "A"}
    supported = core.query_model(model, "HETERO:A,B")
    assert supported == {"a": "A", "b": "B", "c": "A", "d": "A"}
    supported["d"] = "B"
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = supported[op.get_friendly_name()]
    compiled = core.compile_model(model, "HETERO:A,B")
    assert devices_of(compiled) == supported
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == 4


def test_precision_on_one_device_and_profiling_on_another():
    core = ov.Core()
    core.register_plugin("partita_cpu", "CPU2")
    model = core.read_model(CHAIN)
    for index, op in enumerate(model.ops):
        op.affinity = ("CPU", "CPU2")[index // 2]
    config = [
        props.device.properties("CPU", props.enable_profiling(True)),
        props.device.properties("CPU2", {props.hint.inference_precision: ov.Type.bf16}),
    ]
    compiled = core.compile_model(model, "HETERO:CPU,CPU2", config)
    owned = compiled.get_property("DEVICE_PROPERTIES")
    assert (owned["CPU"]["PERF_COUNT"], owned["CPU2"]["PERF_COUNT"]) == (True, False)
    assert owned["CPU"]["INFERENCE_PRECISION_HINT"] == "f32"
    able = multiplies_pairs(isa())
    assert owned["CPU2"]["INFERENCE_PRECISION_HINT"] == ("bf16" if able else "f32")
    assert any("CPU2: INFERENCE" in note for note in compiled.explain().notes) != able
    request = compiled.create_infer_request()
    request.infer({"x": X})
    counted = {info.node_name for info in request.get_profiling_info()}
    assert {name.split(":")[0] for name in counted} == {"subgraph1"}


def test_several_tensors_at_once():
    core, *_ = core_of_two()
    request = core.compile_model(CHAIN, "HETERO:A,B").create_infer_request()
    target = np.zeros_like(X)
    request.set_input_tensors({"x": X})
    request.set_output_tensors({0: target})
    request.infer()
    np.testing.assert_allclose(target, np.exp(np.maximum(X, 0)), rtol=1e-6)
    request.set_input_tensors({0: X * 2})
    request.set_output_tensors({"d": target})
    request.infer()
    np.testing.assert_allclose(target, np.exp(np.maximum(X * 2, 0)), rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"HETERO_MEMORY_LIMITS": [1, 2]},
        {"HETERO_MEMORY_LIMITS": (1, 2)},
        {"HETERO_MEMORY_LIMITS": [("CPU",)]},
        {"HETERO_PINS": "\ud800"},
        {"HETERO_PINS": ["a=\ud800"]},
        {"HETERO_SAMPLE_SHAPES": "\ud800"},
    ],
)
def test_whatever_a_value_is_made_of_it_is_refused_by_a_property_error(config):
    (key,) = config
    with pytest.raises(PropertyError, match=key) as caught:
        ov.Core().set_property("HETERO", config)
    assert str(caught.value).encode()  # can be printed
