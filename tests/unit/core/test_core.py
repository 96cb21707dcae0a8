"""Core: from device strings to compiled models, and whom it blames when that fails."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
from models import affine, model_of, neg, node, value
from toy_device import ToyCompiled, ToyDevice, ToyRunner, ToyTensor, core_with

import partita as ov
from partita.contract.query import QueryResult
from partita.errors import (
    BlobError,
    CompileError,
    DeviceMemoryError,
    DeviceNotFoundError,
    DeviceStringError,
    DeviceUnavailableError,
    InferError,
    ModelFormatError,
    ModelNotFoundError,
    PartitaError,
    PluginError,
    PropertyError,
    UnsupportedOpError,
)

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


def raising(error):
    def method(*args):
        raise error

    return method


# ------------------------------------------------------------------- names and aliases


def test_devices_are_listed_with_their_ids():
    core = core_with(ToyDevice("ONE"), ToyDevice("TWO", kinds=("cpu", "gpu")))
    assert {"ONE", "TWO.0", "TWO.1"} <= set(core.available_devices)
    assert core.get_available_devices() == core.available_devices


def test_a_name_without_id_is_the_first_device():
    core = core_with(ToyDevice(kinds=("cpu", "gpu")))
    assert core.resolve_device("TOY") == "TOY.0"
    assert core.resolve_device("TOY.1") == "TOY.1"
    assert core.device_info("TOY.1").kind == "gpu"
    assert core_with(ToyDevice()).resolve_device("TOY") == "TOY"


def test_unknown_ids():
    core = core_with(ToyDevice(kinds=("cpu", "gpu")))
    with pytest.raises(DeviceNotFoundError, match=r"no device 'TOY.7'; 'TOY' has TOY.0, TOY.1"):
        core.compile_model(neg(), "TOY.7")
    with pytest.raises(DeviceNotFoundError, match=r"no device 'CPU.1'; 'CPU' has CPU"):
        core.device_info("CPU.1")


def test_an_alias_counts_the_devices_of_its_kind():
    aliases = {"NPU": "npu", "TPU": "tpu"}
    core = core_with(ToyDevice(kinds=("cpu", "npu", "cpu", "npu"), aliases=aliases))
    assert core.resolve_device("NPU") == core.resolve_device("NPU.0") == "TOY.1"
    assert core.resolve_device("NPU.1") == "TOY.3"
    said = (
        "There is no device 'NPU.2': 'TOY' has 2 of kind 'npu'. It has TOY.0 (cpu, toy 0), "
        "TOY.1 (npu, toy 1), TOY.2 (cpu, toy 2), TOY.3 (npu, toy 3)."
    )
    with pytest.raises(DeviceNotFoundError) as caught:
        core.compile_model(neg(), "NPU.2")
    assert str(caught.value) == said
    for absent in ("TPU", "TPU.0", "NPU.x", "NPU.-1", "NPU.00", "NPU._1"):
        with pytest.raises(DeviceNotFoundError, match=rf"no device '{absent}': 'TOY' has"):
            core.resolve_device(absent)


def test_aliases_are_listed():
    toy = ToyDevice(kinds=("cpu", "npu"), aliases={"TPU": "tpu", "NPU": "npu"})
    assert {"NPU", "TPU"} <= set(core_with(toy).aliases)
    assert core_with(toy).aliases == sorted(core_with(toy).aliases)


def test_a_device_of_that_name_hides_an_alias():
    core = core_with(ToyDevice(kinds=("cpu", "npu"), aliases={"NPU": "npu"}))
    assert core.resolve_device("NPU") == "TOY.1"
    core.register_plugin(ToyDevice("NPU"))
    assert core.resolve_device("NPU") == "NPU"


def test_an_alias_of_a_plugin_without_driver():
    plugin = ToyDevice(aliases={"NPU": "npu"})
    plugin.device_ids = raising(OSError("no libnpu"))
    with pytest.raises(
        DeviceUnavailableError, match=r"'NPU' is unavailable: .* OSError: no libnpu"
    ):
        core_with(plugin).compile_model(neg(), "NPU")


def test_a_device_that_cannot_be_described():
    plugin = ToyDevice(aliases={"NPU": "npu"})
    core = core_with(plugin)
    plugin.device_info = raising(OSError("no libnpu"))
    said = "Device 'TOY' cannot be described: OSError: no libnpu"
    for ask in (
        lambda: core.device_info("TOY"),
        lambda: core.get_property("TOY", "FULL_DEVICE_NAME"),
        lambda: core.get_versions("TOY"),
        lambda: core.resolve_device("NPU"),
    ):
        with pytest.raises(DeviceUnavailableError, match=said):
            ask()


def test_a_list_for_a_device_that_takes_none(core):
    said = "'CPU' takes no device list; write 'HETERO:CPU,REFERENCE' for several devices"
    with pytest.raises(DeviceStringError, match=said):
        core.compile_model(neg(), "CPU:REFERENCE")


def test_what_is_used_where_no_device_is_named(core):
    assert (core.default_device, core.reference_device) == ("HETERO", "REFERENCE")


def test_nothing_is_used_where_no_plugin_offers_itself(monkeypatch):
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "hetero,reference,opencl")
    core = ov.Core()
    with pytest.raises(DeviceNotFoundError, match=r"There is no reference device.*one of .*CPU"):
        core.reference_device  # noqa: B018  # a property
    with pytest.raises(DeviceNotFoundError, match=r"There is no default device.* CPU"):
        core.compile_model(neg())
    with pytest.raises(DeviceStringError, match=r"'CPU' takes no device list\.$"):
        core.compile_model(neg(), "CPU:CPU")


def test_a_device_of_its_own_may_offer_itself(monkeypatch):
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "hetero,reference")
    toy = ToyDevice()
    toy.is_default = toy.is_reference = True
    core = core_with(toy)
    assert (core.default_device, core.reference_device) == ("TOY", "TOY")


class RefusingDevice(ToyDevice):
    """Takes nothing."""

    def compile_model(self, model, properties):
        QueryResult(f"TOY.{properties.DEVICE_ID}", {}).require_all(model)


def refused(core, device):
    with pytest.raises(UnsupportedOpError) as caught:
        core.compile_model(neg(), device)
    return str(caught.value).splitlines()[1:]


def test_what_to_do_about_operations_that_a_device_does_not_take(monkeypatch):
    advice = "Put other devices behind it: 'HETERO:TOY.1,{}'."
    refusing = RefusingDevice(kinds=("cpu", "gpu"))
    assert refused(core_with(refusing), "TOY.1") == [advice.format("CPU,REFERENCE")]
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "cpu")
    assert refused(core_with(refusing), "TOY.1") == [advice.format("REFERENCE")]
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", "cpu,reference")
    assert refused(core_with(refusing), "TOY.1") == []
    refusing.is_reference = True
    assert refused(core_with(refusing), "TOY.1") == []


def test_versions(core):
    core.register_plugin(ToyDevice())
    assert core.get_versions("TOY") == {"TOY": ov.Version("toy ", "toy 1")}
    versions = core.get_versions("HETERO:TOY,CPU")
    assert list(versions) == ["HETERO", "TOY", "CPU"]
    assert ov.__version__ in versions["HETERO"].build_number


# ------------------------------------------------------------------ compile and query


def test_compile_takes_whatever_can_be_read(core, tmp_path):
    core.register_plugin(ToyDevice())
    path = tmp_path / "neg.onnx"
    path.write_bytes(neg().SerializeToString())
    for source in (path, str(path), path.read_bytes(), neg(), core.read_model(path)):
        np.testing.assert_array_equal(core.compile_model(source, "TOY")(X)[0], -X)
        assert core.query_model(source, "TOY") == {"neg": "TOY"}


def test_the_device_is_checked_before_the_model_is_read(core):
    with pytest.raises(DeviceNotFoundError):
        core.compile_model("absent.onnx", "NONE")
    with pytest.raises(PropertyError):
        core.compile_model("absent.onnx", "CPU", {"NONE": 1})
    with pytest.raises(ModelNotFoundError):
        core.compile_model("absent.onnx", "CPU")


def test_a_model_edited_after_compilation_leaves_the_compiled_one_alone(core):
    core.register_plugin(ToyDevice())
    model = core.read_model(neg([2, 3]))
    compiled = core.compile_model(model, "TOY")
    model.reshape([5, 5])
    model.ops[0].affinity = "CPU"
    assert compiled.model.inputs[0].shape == (2, 3)
    assert compiled.model.ops[0].affinity is None
    assert core.import_model(compiled.export_model(), "TOY").inputs[0].shape == (2, 3)


def test_reading_through_core(core):
    assert core.read_model(neg()).name == "m"
    with pytest.raises(ModelFormatError, match=r"does not accept 'weights'"):
        core.read_model(neg(), weights="w.bin")


def test_compile_without_a_core():
    compiled = ov.compile_model(neg(), "REFERENCE")
    np.testing.assert_array_equal(compiled(X)[0], -X)


@pytest.mark.parametrize("error", [ValueError("bad"), RuntimeError("bad"), MemoryError("bad")])
def test_whatever_a_plugin_raises_names_the_device(error):
    plugin = ToyDevice()
    core = core_with(plugin)
    blob = core.compile_model(neg(), "TOY").export_model()
    plugin.compile_model = plugin.query_model = raising(error)
    kind = type(error).__name__
    with pytest.raises(CompileError, match=rf"'TOY' failed to compile model 'm': {kind}: bad") as e:
        core.compile_model(neg(), "TOY")
    assert e.value.__cause__ is error
    with pytest.raises(CompileError, match=rf"'TOY' failed to compile model 'm': {kind}: bad"):
        core.import_model(blob, "TOY")
    with pytest.raises(PluginError, match=rf"'TOY' failed to answer query_model .*: {kind}: bad"):
        core.query_model(neg(), "TOY")


def test_errors_of_the_tree_pass_unchanged():
    plugin, error = ToyDevice(), DeviceUnavailableError("unplugged")
    plugin.compile_model = plugin.query_model = raising(error)
    core = core_with(plugin)
    for call in (core.compile_model, core.query_model):
        with pytest.raises(DeviceUnavailableError) as caught:
            call(neg(), "TOY")
        assert caught.value is error


def test_answers_of_a_wrong_type():
    plugin = ToyDevice()
    plugin.compile_model = plugin.query_model = lambda model, properties: {"neg": "TOY"}
    core = core_with(plugin)
    with pytest.raises(
        PluginError, match=r"answered compile_model with dict; expected a DeviceModel"
    ):
        core.compile_model(neg(), "TOY")
    with pytest.raises(
        PluginError, match=r"answered query_model with dict; expected a QueryResult"
    ):
        core.query_model(neg(), "TOY")


def test_answers_with_wrong_parts():
    plugin = ToyDevice()
    plugin.query_model = lambda model, properties: QueryResult.of("TOY", {"neg": "no"})
    with pytest.raises(
        PluginError, match=r"reasons of query_model for 'neg' with 'no'; expected a Reason"
    ):
        core_with(plugin).query_model(neg(), "TOY")
    plugin.query_model = lambda model, properties: QueryResult("TOY", {}, ["no"])
    with pytest.raises(
        PluginError, match=r"reasons of query_model with \['no'\]; expected a dict of op"
    ):
        core_with(plugin).query_model(neg(), "TOY")


class Endless:
    """What cannot be written."""

    def __repr__(self):
        raise RuntimeError("nobody can tell")


WRITTEN = {
    "raises": Endless(),
    "text": "x" * 10**6,
    "list": [0] * 10**6,
    "number": 10**9999,
    "within": [Endless()],
}


@pytest.mark.parametrize("answer", WRITTEN.values(), ids=WRITTEN)
def test_what_is_told_of_a_wrong_answer_is_short_and_needs_no_code_of_the_plugin(answer):
    plugin = ToyDevice()
    plugin.query_model = lambda model, properties: QueryResult("TOY", {}, {"neg": answer})
    told = f"for 'neg' with {type(answer).__name__}; expected a Reason"
    with pytest.raises(PluginError, match=told):
        core_with(plugin).query_model(neg(), "TOY")
    plugin.device_ids = lambda: [answer, None]
    with pytest.raises(
        DeviceUnavailableError, match="answered device_ids with list; expected different"
    ):
        core_with(plugin).compile_model(neg(), "TOY")


def test_a_plugin_whose_ids_have_no_end():
    plugin = ToyDevice()
    plugin.device_ids = lambda: itertools.repeat("0")
    with pytest.raises(
        DeviceUnavailableError, match="answered device_ids with list; expected different"
    ):
        core_with(plugin).compile_model(neg(), "TOY")


FACTS = ["execution_devices", "optimal_number_of_infer_requests", "explain", "extra_properties"]


def look_at_facts(compiled):
    """Asks a compiled model for all that it tells of itself."""
    for name in compiled.get_property("SUPPORTED_PROPERTIES"):
        compiled.get_property(name)
    compiled.get_runtime_model()
    assert compiled.execution_devices
    assert compiled.optimal_number_of_infer_requests


@pytest.mark.parametrize("member", FACTS)
@pytest.mark.parametrize("answer", [None, 7.5, [None], {None: 1}, raising(ValueError("lost"))])
def test_facts_of_wrong_types_are_blamed_on_the_device(monkeypatch, member, answer):
    given = answer if callable(answer) else lambda *_: answer
    is_property = isinstance(getattr(ov.DeviceModel, member), property)
    monkeypatch.setattr(ToyCompiled, member, property(given) if is_property else given)
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    with pytest.raises(PluginError, match=rf"'TOY' answered {member} with |'TOY' failed to .*lost"):
        look_at_facts(compiled)


def test_facts_of_the_right_types():
    look_at_facts(core_with(ToyDevice()).compile_model(neg(), "TOY"))


@pytest.mark.parametrize(
    "member", ["profiling_info", "device_spans", "explain_execution", "cancel"]
)
def test_what_a_runner_fails_to_tell_is_blamed_on_the_device(monkeypatch, gate, gated, member):
    monkeypatch.setattr(ToyRunner, member, raising(ValueError("lost")))
    request = gated[1].create_infer_request()
    request.start_async({"x": np.ones((2, 3), np.float32)})
    with pytest.raises(InferError, match=r"Device 'TOY' failed to .*ValueError: lost"):
        getattr(request, member.replace("profiling_info", "get_profiling_info"))()
    gate.set()


@pytest.mark.parametrize("member", ["for_request", "host_array"])
def test_a_model_that_fails_to_serve_a_request_is_blamed(monkeypatch, member):
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    monkeypatch.setattr(ToyCompiled, member, raising(ValueError("lost")))
    with pytest.raises(PluginError, match=f"'TOY' failed to answer {member}: ValueError: lost"):
        compiled.create_infer_request().start_async({"x": np.ones((2, 3), np.float32)})
    monkeypatch.setattr(ToyCompiled, member, lambda *_: None)
    with pytest.raises(PluginError, match=r"'TOY' .*(for_request|host array).*; expected "):
        compiled.create_infer_request().start_async({"x": np.ones((2, 3), np.float32)})


def test_a_runner_that_fails_to_bind_is_blamed_on_the_device(monkeypatch):
    monkeypatch.setattr(ToyRunner, "bind", raising(ValueError("lost")))
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    with pytest.raises(InferError, match=r"Device 'TOY' failed to bind a run: ValueError: lost"):
        for _ in range(5):
            request.infer({"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("member", ["device", "model", "properties", "inputs", "outputs"])
def test_a_model_with_a_part_of_a_wrong_type(member):
    class Odd(ToyDevice):
        def compile_model(self, model, properties):
            compiled = super().compile_model(model, properties)
            setattr(compiled, member, [3])
            return compiled

    with pytest.raises(PluginError, match=r"with ToyCompiled; expected one that is complete"):
        core_with(Odd()).compile_model(neg(), "TOY")


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
def test_a_model_whose_ports_are_in_another_order(kind):
    class Turned(ToyDevice):
        def compile_model(self, model, properties):
            compiled = super().compile_model(model, properties)
            setattr(compiled, kind, tuple(reversed(getattr(compiled, kind))))
            return compiled

    two = model_of([node("Neg", ["x"], "y"), node("Abs", ["u"], "v")], ["x", "u"], ["y", "v"])
    with pytest.raises(PluginError, match=rf"'TOY' .* whose {kind} are .* in their order"):
        core_with(Turned()).compile_model(two, "TOY")


def test_facts_that_are_asked_for_as_properties_are_looked_at_too(monkeypatch):
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    for member in ("execution_devices", "optimal_number_of_infer_requests"):
        monkeypatch.setattr(ToyCompiled, member, "none")
        with pytest.raises(PluginError, match=f"'TOY' answered {member} with 'none'"):
            compiled.get_property(member.upper())


def test_results_that_cannot_be_copied_to_the_host(monkeypatch):
    core = core_with(ToyDevice())
    x = np.ones((2, 3), np.float32)
    monkeypatch.setattr(ToyRunner, "run", lambda *_: [ToyTensor(x)])
    monkeypatch.setattr(ToyTensor, "numpy", raising(OSError("bus")))
    with pytest.raises(InferError, match=r"'TOY' failed to copy 'y' to the host: OSError: bus"):
        core.compile_model(neg(), "TOY")({"x": x})
    monkeypatch.setattr(ToyTensor, "numpy", lambda _: x[0])
    with pytest.raises(PluginError, match=r"'y' .* as float32\[3\]; it is float32\[2, 3\]"):
        core.compile_model(neg(), "TOY")({"x": x})


class _ReturnsInputs(ToyRunner):
    """Returns the array that it was given, and has calls bound that write to what it returned."""

    def run(self, inputs, outputs=None):
        return [ov.HostTensor(inputs[0].numpy())]

    def bind(self, inputs, outputs, scratch=None):
        class Call(ov.BoundCall):
            def __call__(self):
                outputs[0].numpy()[...] = inputs[0].numpy()

        return Call()


@pytest.mark.parametrize("elements", [6, 60_000])
def test_no_call_is_bound_to_write_to_an_input_that_a_device_returned(elements, monkeypatch):
    monkeypatch.setattr(ToyCompiled, "create_runner", lambda model: _ReturnsInputs(model.plugin))
    shape = (2, elements // 2)
    identity = model_of([node("Identity", ["x"], "y")], [value("x", shape)], ["y"])
    request = core_with(ToyDevice()).compile_model(identity, "TOY").create_infer_request()
    given = [np.full(shape, number, np.float32) for number in range(6)]
    for array in given:
        np.testing.assert_array_equal(request.infer({"x": array}, share_inputs=True)[0], array)
    assert [array.flat[0] for array in given] == [*range(6)]


def test_no_call_is_bound_to_write_to_an_array_that_is_only_read(monkeypatch):
    class Frozen(_ReturnsInputs):
        def run(self, inputs, outputs=None):
            result = np.array(inputs[0].numpy())
            result.setflags(write=False)
            return [ov.HostTensor(result)]

    monkeypatch.setattr(ToyCompiled, "create_runner", lambda model: Frozen(model.plugin))
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    for number in range(6):
        x = np.full((2, 3), number, np.float32)
        np.testing.assert_array_equal(request.infer({"x": x})[0], x)


def test_an_export_that_is_no_bytes(monkeypatch):
    monkeypatch.setattr(ToyCompiled, "export_model", lambda model: "text")
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    with pytest.raises(
        PluginError, match=r"'TOY' answered export_model with 'text'; expected bytes"
    ):
        compiled.export_model()


def test_a_model_whose_base_was_not_made():
    class Bare(ov.DeviceModel):
        def __init__(self):
            pass

        def create_runner(self):
            raise NotImplementedError

    plugin = ToyDevice()
    plugin.compile_model = lambda model, properties: Bare()
    with pytest.raises(PluginError, match=r"'TOY' answered .* with Bare; .* must call super\(\)"):
        core_with(plugin).compile_model(neg(), "TOY")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (raising(OSError("no handles")), InferError, "'TOY' failed on model 'm': OSError: no han"),
        (raising(MemoryError()), DeviceMemoryError, "'TOY' has no room to run: MemoryError$"),
        (
            lambda: None,
            PluginError,
            "'TOY' answered create_runner with NoneType; expected a Runner",
        ),
    ],
)
def test_runners_that_are_none(make, kind, message):
    compiled = core_with(ToyDevice()).compile_model(neg(), "TOY")
    compiled.device_model.create_runner = make
    with pytest.raises(kind, match=message):
        compiled.create_infer_request()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (raising(RuntimeError("bad")), "'TOY' failed to give its identity: RuntimeError: bad"),
        (lambda properties: 7, "'TOY' answered identity with 7; expected a text"),
    ],
)
def test_identities_that_are_none(tmp_path, answer, message):
    plugin = ToyDevice()
    plugin.identity = answer
    with pytest.raises(PluginError, match=message):
        core_with(plugin).compile_model(neg(), "TOY", {"CACHE_DIR": str(tmp_path)})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (raising(RuntimeError("bad")), "RuntimeError: bad"),
        (lambda: {"weights": object()}, "'weights' is object; expected an array of numbers"),
        (lambda: max, "export_state gave builtin_function_or_method; expected arrays by name"),
    ],
)
def test_a_state_that_cannot_be_kept_costs_the_cache_only(tmp_path, caplog, answer, message):
    plugin = ToyDevice()
    make = plugin.compile_model

    def compile_model(model, properties):
        made = make(model, properties)
        made.export_state = answer
        return made

    plugin.compile_model = compile_model
    compiled = core_with(plugin).compile_model(neg(), "TOY", {"CACHE_DIR": str(tmp_path)})
    assert f"is not cached: Device 'TOY' failed to export its state: {message}" in caplog.text
    with pytest.raises(PluginError, match=message):
        compiled.export_model()
    np.testing.assert_array_equal(compiled(X)[0], -X)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


class MutePartitaError(PartitaError):
    __str__ = Mute.__str__


FAILURES = [
    (SystemExit(3), "SystemExit: 3"),
    (Mute(), "Mute, whose message cannot be told"),
    (MutePartitaError(), "MutePartitaError, whose message cannot be told"),
]


@pytest.mark.parametrize(("failure", "told"), FAILURES)
def test_failures_of_any_kind_are_told_with_the_devices_name(failure, told):
    plugin = ToyDevice(compute=raising(failure))
    core = core_with(plugin)
    compiled = core.compile_model(neg(), "TOY")
    with pytest.raises(InferError, match=f"'TOY' failed on model 'm': {told}"):
        compiled({"x": X})
    request = compiled.create_infer_request()
    request.start_async({"x": X})
    with pytest.raises(InferError, match=f"'TOY' failed on model 'm': {told}"):
        request.wait()
    compiled.device_model.create_runner = raising(failure)
    with pytest.raises(InferError, match=f"'TOY' failed on model 'm': {told}"):
        compiled.create_infer_request()
    plugin.compile_model = plugin.query_model = plugin.identity = raising(failure)
    with pytest.raises(CompileError, match=f"'TOY' failed to compile model 'm': {told}"):
        core.compile_model(neg(), "TOY")
    with pytest.raises(PluginError, match=f"'TOY' failed to answer query_model .*: {told}"):
        core.query_model(neg(), "TOY")


def test_an_interrupt_passes_through_plugins():
    plugin = ToyDevice(compute=raising(KeyboardInterrupt()))
    core = core_with(plugin)
    with pytest.raises(KeyboardInterrupt):
        core.compile_model(neg(), "TOY")({"x": X})
    plugin.query_model = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        core.query_model(neg(), "TOY")


def broken_off():
    """What a plugin may make of an interrupt."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise CompileError("the compiler was ended") from error


def lost_while_cleaning_up():
    try:
        raise KeyboardInterrupt
    finally:
        raise ValueError("no such file")


@pytest.mark.parametrize("made", [broken_off, lost_while_cleaning_up])
def test_what_a_plugin_makes_of_an_interrupt_is_the_interrupt(made):
    plugin = ToyDevice()
    plugin.compile_model = plugin.query_model = lambda *_: made()
    core = core_with(plugin)
    with pytest.raises(KeyboardInterrupt):
        core.compile_model(neg(), "TOY")
    with pytest.raises(KeyboardInterrupt):
        core.query_model(neg(), "TOY")


def test_an_error_of_a_plugin_that_is_asked_after_an_interrupt_is_an_error():
    plugin = ToyDevice()
    plugin.compile_model = raising(ValueError("no such file"))
    core = core_with(plugin)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(CompileError, match="no such file"):
            core.compile_model(neg(), "TOY")


@pytest.mark.parametrize("name", [[], {}, 5, np.arange(3), bytearray(b"a")])
def test_names_of_properties_are_texts(name):
    core = core_with(ToyDevice())
    compiled = core.compile_model(neg(), "TOY")
    for ask in (core.get_property, lambda n: core.get_property("TOY", n), compiled.get_property):
        with pytest.raises(PropertyError, match="Property names are strings; found"):
            ask(name)


def test_values_in_messages_are_cut_where_they_are_long():
    core = core_with(ToyDevice())
    for given in ({"LEVEL": "a" * 10_000}, {"LEVEL": Mute()}, {"a" * 10_000: 1}):
        with pytest.raises(PropertyError) as caught:
            core.set_property("TOY", given)
        assert len(str(caught.value)) < 1000


def test_a_description_that_is_none():
    plugin = ToyDevice()
    plugin.device_info = lambda device_id: None
    with pytest.raises(DeviceUnavailableError, match=r"'TOY' cannot be described: .*returned None"):
        core_with(plugin).device_info("TOY")


# -------------------------------------------------------------------- compiled models


def test_properties_of_a_compiled_model(core):
    core.register_plugin(ToyDevice())
    compiled = core.compile_model(affine(), "TOY", {"LEVEL": 3})
    assert compiled.get_property("LEVEL") == 3
    assert compiled.get_property("NETWORK_NAME") == "affine"
    assert compiled.get_property(ov.properties.execution_devices) == ["TOY"]
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1
    supported = compiled.get_property(ov.properties.supported_properties())
    assert {"SUPPORTED_PROPERTIES", "EXECUTION_DEVICES", "LEVEL", "PERF_COUNT"} <= set(supported)
    for name in supported:
        compiled.get_property(name)
    with pytest.raises(PropertyError, match=r"'affine' has no property 'X'; it has NETWORK_NAME"):
        compiled.get_property("X")
    assert repr(compiled) == "<CompiledModel 'affine' on TOY>"


def test_export_and_import(core, tmp_path):
    core.register_plugin(plugin := ToyDevice(kinds=("cpu", "cpu")))
    blob = core.compile_model(neg(), "TOY.1", {"LEVEL": 3, "FLAVOUR": "sour"}).export_model()
    core.import_model(blob, "TOY")
    assert (plugin.seen[-1].LEVEL, plugin.seen[-1].FLAVOUR) == (3, "sour")
    core.set_property("TOY", {"LEVEL": 4})
    (tmp_path / "blob").write_bytes(blob)
    with (tmp_path / "blob").open("rb") as stream:
        core.import_model(stream, "TOY.1", {"PERF_COUNT": True})
    seen = plugin.seen[-1]
    assert (seen.LEVEL, seen.FLAVOUR, seen.PERF_COUNT, seen.DEVICE_ID) == (4, "sour", True, "1")
    np.testing.assert_array_equal(core.import_model(io.BytesIO(blob), "TOY")(X)["y"], -X)


@pytest.mark.parametrize("target", ["model.blob", 7])
def test_exporting_to_what_is_no_stream(core, target):
    core.register_plugin(ToyDevice())
    compiled = core.compile_model(neg(), "TOY")
    with pytest.raises(BlobError, match=r"to a stream; found (str|int)\. Open the file"):
        compiled.export_model(target)


def test_importing_a_blob_that_does_not_fit_the_device(core):
    class Older(ToyDevice):
        properties_type = ov.DeviceProperties

    core.register_plugin(ToyDevice())
    blob = core.compile_model(neg(), "TOY", {"LEVEL": 3}).export_model()
    older = core_with(Older())
    with pytest.raises(
        BlobError, match=r"does not fit its device: The blob has no property 'LEVEL'"
    ):
        older.import_model(blob, "TOY")


def test_a_plugin_that_restores_its_own_blobs():
    class Own(ToyDevice):
        def import_model(self, blob, properties):
            return self.compile_model(ov.Core().read_model(blob), properties)

    core = core_with(Own())
    assert core.import_model(neg().SerializeToString(), "TOY").model.name == "m"


def test_a_plugin_cannot_import_by_itself():
    with pytest.raises(CompileError, match=r"Device 'TOY' cannot import compiled models"):
        ToyDevice().import_model(b"", None)


# -------------------------------------------------------------------- tensors, defaults


def test_defaults_of_a_plugin():
    core = core_with(ToyDevice())
    assert core.device_api.can_share("TOY", "host")
    assert not core.device_api.can_share("TOY", "toy")
    brought = core.device_api.transfer_to("TOY", ToyTensor(X))
    assert brought.memory == "host"
    np.testing.assert_array_equal(brought.numpy(), X)


def test_defaults_of_compiled_models_and_runners(core):
    compiled = core.compile_model(neg(), "REFERENCE")
    assert compiled.execution_devices == ["REFERENCE"]
    assert compiled.optimal_number_of_infer_requests == 1
    assert compiled.device_model.takes_memory("host")
    assert not compiled.device_model.takes_memory("toy")
    assert compiled.explain().ops_per_device == {"REFERENCE": 1}
    runner = compiled.device_model.create_runner()
    runner.cancel()
    runner.close()
    assert list(runner.profiling_info()) == []


# --------------------------------------------------------------------------- imports


def test_importing_partita_and_making_a_core_loads_no_engine():
    code = (
        "import sys, partita; core = partita.Core(); core.get_property('HETERO', 'PERF_COUNT')\n"
        "heavy = {'onnx', 'onnx_ir', 'numba', 'pyopencl', 'onnxruntime', 'openvino', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_fingerprint_holds_what_decides_how_fast_a_device_is(core):
    core.register_plugin("partita_cpu", "CPU2")
    one = core.device_api.fingerprint("CPU")
    assert one["device"] == core.device_info("CPU").full_name
    assert one["driver"] == core.device_info("CPU").driver
    assert one["plugin"].startswith("partita ")
    assert core.device_api.fingerprint("CPU2") == one
    assert core.device_api.fingerprint("CPU", {"PERF_COUNT": True}) == one
    assert core.device_api.fingerprint("CPU", {"INFERENCE_NUM_THREADS": 1}) != one
    core.set_property("CPU2", {"INFERENCE_NUM_THREADS": 1})
    assert core.device_api.fingerprint("CPU2") == core.device_api.fingerprint(
        "CPU", {"INFERENCE_NUM_THREADS": 1}
    )
    core.register_plugin(ToyDevice())
    assert core.device_api.fingerprint("TOY")["plugin"] == ""
