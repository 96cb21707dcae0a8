"""Properties: what is accepted, what is said about the rest, and who overrides whom."""

from __future__ import annotations

import enum

import pytest
from models import neg
from pydantic import Field
from toy_device import ToyDevice, core_with

import partita as ov
from partita import properties
from partita.errors import PropertyError
from partita.properties import DeviceProperties, device, hint, merge, normalize, read_only, validate


class Speed(enum.StrEnum):
    FAST = "FAST"
    SAFE = "SAFE"


class Sample(DeviceProperties):
    THREADS: int = Field(0, ge=0, description="Threads.")
    SCALE: float = Field(1.0, description="A number.")
    SPEED: Speed = Field(Speed.SAFE, description="What to prefer.")
    TABLE: dict[str, dict[str, int]] = Field(default_factory=dict, description="Numbers by name.")
    SERIAL: str = read_only("none", "Set by nobody.")


def sample(values, base=None):
    return validate(Sample, values, "Device 'SAMPLE'", base)


# ------------------------------------------------------------------------- validate


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("PERF_COUNT", "YES", True),
        ("PERF_COUNT", "NO", False),
        ("PERF_COUNT", "true", True),
        ("PERF_COUNT", 1, True),
        ("THREADS", "4", 4),
        ("THREADS", 4, 4),
        ("SCALE", "0.5", 0.5),
        ("SCALE", 2, 2.0),
        ("SPEED", "FAST", Speed.FAST),
        ("SPEED", Speed.FAST, Speed.FAST),
        ("DEVICE_ID", "1", "1"),
    ],
)
def test_text_is_converted(key, given, expected):
    assert getattr(sample({key: given}), key) == expected


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"THREDS": 1}, "Device 'SAMPLE' has no property 'THREDS'. Did you mean 'THREADS'?"),
        ({"threads": 1}, "has no property 'threads'. Did you mean 'THREADS'?"),
        ({"XYZ": 1}, "has no property 'XYZ'. It accepts DEVICE_ID (str), PERF_COUNT (bool), CAC"),
        ({"XYZ": 1}, "SPEED (FAST | SAFE)"),
        ({"THREADS": "many"}, "'THREADS' of device 'SAMPLE' cannot be 'many': Input should be a v"),
        ({"THREADS": 1.5}, "cannot be 1.5"),
        (
            {"THREADS": -1},
            "cannot be -1: Input should be greater than or equal to 0. It takes int.",
        ),
        ({"SPEED": "SLOW"}, "cannot be 'SLOW'"),
        ({"SPEED": "SLOW"}, "It takes FAST | SAFE."),
        ({"PERF_COUNT": "maybe"}, "It takes bool."),
        ({"PERF_COUNT": None}, "cannot be None"),
        (
            {"SERIAL": "1"},
            "Property 'SERIAL' of device 'SAMPLE' is read-only. It accepts DEVICE_ID",
        ),
    ],
)
def test_what_is_refused_and_what_is_said(values, said):
    with pytest.raises(PropertyError) as caught:
        sample(values)
    assert said in str(caught.value)
    assert "SERIAL (" not in str(caught.value)


def test_base_settings_are_kept_and_instances_are_frozen():
    base = sample({"THREADS": 3, "TABLE": {"a": {"x": 1}}})
    both = sample({"SCALE": 2, "TABLE": {"a": {"y": 2}, "b": {"z": 3}}}, base)
    assert (both.THREADS, both.SCALE) == (3, 2.0)
    assert both.TABLE == {"a": {"x": 1, "y": 2}, "b": {"z": 3}}
    assert base.TABLE == {"a": {"x": 1}}
    with pytest.raises(Exception, match=r"frozen"):
        base.THREADS = 4


def test_merge_lays_dicts_over_one_another():
    assert merge({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"b": {"c": 3}, "e": 4}) == {
        "a": 1,
        "b": {"c": 3, "d": 2},
        "e": 4,
    }
    assert merge({"a": {"b": 1}}, {"a": 2}) == {"a": 2}
    assert merge() == {}


# ------------------------------------------------------------------------ normalize


def test_forms_of_a_configuration():
    expected = {"PERF_COUNT": True}
    assert normalize(None) == {}
    assert normalize(expected) == expected
    assert normalize(("PERF_COUNT", True)) == expected
    assert normalize([("PERF_COUNT", True)]) == expected
    assert normalize(properties.enable_profiling(True)) == expected
    assert normalize([properties.enable_profiling(True)]) == expected
    assert normalize({properties.enable_profiling: True}) == expected
    assert normalize({hint.inference_precision: ov.Type.f16}) == {"INFERENCE_PRECISION_HINT": "f16"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("PERF_COUNT", "Properties are a dict of name to value; found str"),
        (3, "found int"),
        ([1, 2], "found list"),
        ([("A", 1, 2)], "found list"),
        ({"CPU:ROWS": 32}, r"written {'DEVICE_PROPERTIES': {'CPU': {'ROWS': 32}}}\.$"),
        ({1: 2}, "Property names are strings; found 1"),
        ([(None, 2)], "Property names are strings; found None"),
    ],
)
def test_what_is_no_configuration(wrong, said):
    with pytest.raises(PropertyError, match=said):
        normalize(wrong)


def test_property_objects():
    assert device.priorities("GPU", "CPU") == ("MULTI_DEVICE_PRIORITIES", "GPU,CPU")
    assert device.priorities() == "MULTI_DEVICE_PRIORITIES"
    assert properties.enable_profiling() == "PERF_COUNT"
    for_gpu = ("DEVICE_PROPERTIES", {"GPU": {"PERF_COUNT": True, "NUM_STREAMS": 2}})
    assert device.properties("GPU", {"PERF_COUNT": True, "NUM_STREAMS": 2}) == for_gpu
    both = (properties.enable_profiling(True), properties.num_streams(2))
    assert device.properties("GPU", *both) == for_gpu
    assert device.properties({"GPU": {"PERF_COUNT": True, "NUM_STREAMS": 2}}) == for_gpu
    assert device.properties() == "DEVICE_PROPERTIES"


def test_pairs_for_several_devices_add_up():
    pairs = [device.properties("GPU", {"A": 1}), device.properties("CPU", {"B": 2})]
    assert normalize(pairs) == {"DEVICE_PROPERTIES": {"GPU": {"A": 1}, "CPU": {"B": 2}}}


# ------------------------------------------------------------------- Core, one device


def test_set_and_get(core):
    core.register_plugin(ToyDevice())
    core.set_property("TOY", {"LEVEL": "4"})
    assert core.get_property("TOY", "LEVEL") == 4
    core.set_property("TOY", ("FLAVOUR", "sour"))
    assert core.get_property("TOY", "LEVEL") == 4
    assert core.get_property("TOY", "FLAVOUR") == "sour"
    core.set_property(device_name="TOY", properties=properties.enable_profiling(True))
    assert core.get_property("TOY", properties.enable_profiling) is True


def test_facts(core):
    core.register_plugin(ToyDevice(kinds=("cpu", "gpu")))
    assert core.get_property("TOY", "AVAILABLE_DEVICES") == ["0", "1"]
    assert core.get_property("TOY.1", "FULL_DEVICE_NAME") == "toy 1"
    assert core.get_property("TOY.1", device.type) == "gpu"
    assert core.get_property("TOY.1", "DEVICE_ID") == "1"
    assert core.get_property("TOY", "SERIAL") == "none"
    supported = core.get_property("TOY", "SUPPORTED_PROPERTIES")
    assert {"AVAILABLE_DEVICES", "LEVEL", "SERIAL", "PERF_COUNT"} <= set(supported)
    with pytest.raises(PropertyError, match=r"'TOY' has no property 'SPEED'; it has AVAILABLE_DEV"):
        core.get_property("TOY", "SPEED")


def test_what_a_device_accepts(core):
    core.register_plugin(ToyDevice())
    assert core.accepts_property("TOY", "LEVEL")
    assert not core.accepts_property("TOY", "SERIAL")
    assert not core.accepts_property("TOY", "NONSENSE")
    own = ["LEVEL", "FLAVOUR"]
    assert core.writable_properties("TOY") == ["DEVICE_ID", "PERF_COUNT", "CACHE_DIR", *own]


def test_nothing_is_half_applied(core):
    core.register_plugin(ToyDevice(kinds=("cpu", "cpu")))
    core.set_property("TOY", {"LEVEL": 2})
    for wrong in ({"LEVEL": 3, "FLAVOR": "x"}, {"FLAVOUR": "x", "LEVEL": 99}, {"LEVEL": 3, 1: 2}):
        with pytest.raises(PropertyError):
            core.set_property("TOY", wrong)
    with pytest.raises(PropertyError, match=r"read-only"):
        core.set_property("TOY.1", {"LEVEL": 3, "SERIAL": "x"})
    assert core.get_property("TOY", "LEVEL") == core.get_property("TOY.1", "LEVEL") == 2
    assert core.get_property("TOY", "FLAVOUR") == "plain"


def test_devices_and_cores_are_isolated():
    core, other = core_with(ToyDevice("A"), ToyDevice("B")), core_with(ToyDevice("A"))
    core.set_property("A", {"LEVEL": 5})
    assert core.get_property("B", "LEVEL") == other.get_property("A", "LEVEL") == 1


# --------------------------------------------------------------------- who overrides


def level(plugin, core, name, config=None):
    """LEVEL, FLAVOUR and DEVICE_ID as the plugin sees them when it compiles."""
    core.compile_model(neg(), name, config)
    seen = plugin.seen[-1]
    return seen.LEVEL, seen.FLAVOUR, seen.DEVICE_ID


def test_plugin_then_device_then_configuration():
    plugin = ToyDevice(kinds=("cpu", "cpu"))
    core = core_with(plugin)
    assert level(plugin, core, "TOY") == (1, "plain", "0")
    core.set_property("TOY", {"LEVEL": 2, "FLAVOUR": "sweet"})
    core.set_property("TOY.1", {"LEVEL": 3})
    assert level(plugin, core, "TOY") == (2, "sweet", "0")
    assert level(plugin, core, "TOY.0") == (2, "sweet", "0")
    assert level(plugin, core, "TOY.1") == (3, "sweet", "1")
    assert level(plugin, core, "TOY.1", {"LEVEL": 4}) == (4, "sweet", "1")
    core.set_property("TOY", {"LEVEL": 5})
    assert level(plugin, core, "TOY.1") == (3, "sweet", "1")
    assert core.get_property("TOY.1", "LEVEL") == 3


def test_a_device_chosen_by_device_id_has_its_own_settings():
    plugin = ToyDevice(kinds=("cpu", "cpu"))
    core = core_with(plugin)
    core.set_property("TOY.0", {"LEVEL": 7})
    core.set_property("TOY.1", {"LEVEL": 3})
    assert level(plugin, core, "TOY", {"DEVICE_ID": "1"}) == (3, "plain", "1")
    assert level(plugin, core, "TOY", {"DEVICE_ID": 1}) == (3, "plain", "1")
    assert level(plugin, core, "TOY.1", {"DEVICE_ID": "1"}) == (3, "plain", "1")
    core.set_property("TOY", device.id(1))
    assert level(plugin, core, "TOY") == (3, "plain", "1")
    assert level(plugin, core, "TOY.0") == (7, "plain", "0")
    assert core.get_property("TOY", "LEVEL") == 3


def test_device_properties_of_the_one_device():
    plugin = ToyDevice(kinds=("gpu", "gpu"), aliases={"GPUS": "gpu"})
    core = core_with(plugin)
    for name in ("TOY", "TOY.1", "GPUS"):
        config = {"FLAVOUR": "sweet", "DEVICE_PROPERTIES": {name: {"LEVEL": 4}}}
        got = level(plugin, core, name, config)
        assert got == (4, "sweet", "1" if name == "TOY.1" else "0")
    core.set_property("TOY", {"DEVICE_PROPERTIES": {"TOY": {"LEVEL": 5}}})
    assert core.get_property("TOY", "LEVEL") == 5
    with pytest.raises(PropertyError, match=r"sets properties of 'CPU', and 'TOY.0' is another"):
        core.compile_model(neg(), "TOY", {"DEVICE_PROPERTIES": {"CPU": {"LEVEL": 4}}})
    with pytest.raises(PropertyError, match="has 3 for 'TOY'; expected a dict of properties"):
        core.compile_model(neg(), "TOY", {"DEVICE_PROPERTIES": {"TOY": 3}})


@pytest.mark.parametrize("name", ["TOY", "TOY.0"])
def test_a_device_id_that_does_not_exist_or_contradicts(name):
    core = core_with(ToyDevice(kinds=("cpu", "cpu")))
    wrong = "2" if name == "TOY" else "1"
    said = f"DEVICE_ID of device 'TOY' cannot be '{wrong}' here; it can be '0'"
    with pytest.raises(PropertyError, match=said):
        core.compile_model(neg(), name, {"DEVICE_ID": wrong})
    with pytest.raises(PropertyError, match=said):
        core.set_property(name, {"DEVICE_ID": wrong, "LEVEL": 5})
    assert core.get_property("TOY", "LEVEL") == 1


def test_an_alias_stands_for_all_devices_of_its_kind():
    plugin = ToyDevice(kinds=("cpu", "gpu", "gpu"), aliases={"GPUS": "gpu"})
    core = core_with(plugin)
    core.set_property("GPUS", {"LEVEL": 4})
    assert [level(plugin, core, f"TOY.{i}")[0] for i in range(3)] == [1, 4, 4]
    core.set_property("GPUS.1", {"LEVEL": 6})
    assert [level(plugin, core, f"TOY.{i}")[0] for i in range(3)] == [1, 4, 6]
    assert level(plugin, core, "GPUS") == (4, "plain", "1")
    assert level(plugin, core, "GPUS.1") == (6, "plain", "2")
    assert level(plugin, core, "GPUS", {"DEVICE_ID": "2"}) == (6, "plain", "2")
    with pytest.raises(PropertyError, match=r"cannot be '0' here; it can be '1', '2'"):
        level(plugin, core, "GPUS", {"DEVICE_ID": "0"})


# ------------------------------------------------------------------- Core and HETERO


def test_properties_of_core_itself(core):
    assert core.get_property("LOG_LEVEL") == "WARNING"
    core.set_property({"LOG_LEVEL": "ERROR"})
    assert core.get_property("LOG_LEVEL") == "ERROR"
    core.set_property(("LOG_LEVEL", "WARNING"))
    with pytest.raises(PropertyError, match=r"Property 'LOG_LEVEL' of Core cannot be 'LOUD'"):
        core.set_property({"LOG_LEVEL": "LOUD"})
    with pytest.raises(PropertyError, match=r"Core has no property 'PERF_COUNT'. It accepts LOG_L"):
        core.set_property({"PERF_COUNT": True})
    with pytest.raises(PropertyError, match=r"Core has no property 'NONSENSE'; it has LOG_LEVEL"):
        core.get_property("NONSENSE")


def test_the_device_string_has_the_last_word(core):
    core.set_property("HETERO", device.priorities("CPU", "REFERENCE"))
    assert core.get_property("HETERO", device.priorities) == "CPU,REFERENCE"
    assert core.get_property("HETERO:REFERENCE", device.priorities) == "REFERENCE"
    core.set_property("HETERO:REFERENCE,CPU", {})
    assert core.get_property("HETERO", device.priorities) == "REFERENCE,CPU"


def test_keys_of_other_devices_wait_in_hetero_until_it_compiles(core):
    plugin = ToyDevice()
    core.register_plugin(plugin)
    core.set_property("HETERO", {"FLAVOUR": "sour", "MULTI_DEVICE_PRIORITIES": "TOY"})
    core.set_property("HETERO", device.properties("TOY", {"LEVEL": 3}))
    core.compile_model(neg(), "HETERO", device.properties("TOY", {"PERF_COUNT": True}))
    assert (plugin.seen[-1].FLAVOUR, plugin.seen[-1].LEVEL) == ("sour", 3)
    assert plugin.seen[-1].PERF_COUNT is True
    with pytest.raises(PropertyError, match=r"Device 'HETERO' has no property 'FLAVOR'"):
        core.set_property("HETERO", {"FLAVOR": "sour"})


class Capable(DeviceProperties):
    """Has a fact that is a list."""

    FORMATS: list[str] = read_only(["FP32"], "What it computes.")


class CapableDevice(ToyDevice):
    properties_type = Capable


def test_lists_that_are_read_are_the_callers():
    core = core_with(CapableDevice())
    compiled = core.compile_model(neg(), "TOY")
    for read in (
        lambda: compiled.get_property("FORMATS"),
        lambda: core.get_property("TOY", "FORMATS"),
    ):
        read().append("FP16")
        assert read() == ["FP32"]
