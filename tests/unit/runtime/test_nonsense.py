"""Answers of plugins that cannot be true are refused where they enter, with the device's name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import parser
from toy_device import ToyCompiled, ToyDevice, ToyRunner, ToyTensor, core_with

import partita
from partita.contract.device_plugin import DeviceInfo
from partita.contract.profiling import ProfilingInfo
from partita.errors import (
    DeviceUnavailableError,
    InferError,
    PluginError,
    raised_as,
)

MODEL = parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> g (float[N, 3] x) => (float[N, 3] y) { y = Neg(x) }'
)
X = np.ones((2, 3), np.float32)


def plugin_with(**members):
    """A toy device of whose plugin, device model or runner some members are others."""

    class Runner(ToyRunner):
        pass

    class Compiled(ToyCompiled):
        def create_runner(self):
            return Runner(self.plugin)

    class Device(ToyDevice):
        def compile_model(self, model, properties):
            return Compiled(model, properties, self)

    for name, member in members.items():
        owner = next((one for one in (Device, Compiled, Runner) if hasattr(one, name)), None)
        assert owner is not None, name
        setattr(owner, name, member)
    return Device()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_bytes", -5),
        ("memory_bytes", "1"),
        ("memory_bytes", float("nan")),
        ("memory_bytes", 10**40),
        ("memory_bytes", True),
        ("memory", ["a"]),
        ("driver", None),
        ("details", None),
        ("details", {1: {2}}),
        ("kind", None),
        ("full_name", b"x"),
    ],
)
def test_descriptions_are_of_the_types_that_they_have(field, value):
    info = dataclasses.replace(DeviceInfo("TOY", "toy"), **{field: value})
    core = core_with(plugin_with(device_info=lambda self, device_id: info))
    with pytest.raises(DeviceUnavailableError, match=f"'TOY' answered {field} of device_info"):
        core.device_info("TOY")


class Told(ToyTensor):
    """Says of itself what it is told to."""

    def __init__(self, array, **said):
        super().__init__(array, "host")
        for name, value in said.items():
            setattr(self, name, value)


class Elsewhere(Told):
    def numpy(self):
        return self.elements


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda y: Told(y, dtype="float32"), "whose dtype is 'float32'"),
        (lambda y: Told(y, shape="ab"), "whose shape is 'ab'"),
        (lambda y: Told(y, shape=None), "whose shape is NoneType"),
        (lambda y: Told(y, memory=None), "whose memory is NoneType"),
        (lambda y: Elsewhere(y, elements=None), "whose elements are NoneType"),
        (lambda y: Elsewhere(y, elements=y[:1]), r"whose elements are float32\[1, 3\]"),
        (lambda y: Elsewhere(y, elements=y.astype(float)), r"whose elements are float64\[2, 3\]"),
        (Elsewhere, "that cannot be looked at: AttributeError"),
    ],
)
def test_tensors_that_contradict_themselves_are_refused(made, message):
    plugin = plugin_with(run=lambda self, inputs, outputs=None: [made(-inputs[0].numpy())])
    request = core_with(plugin).compile_model(MODEL, "TOY").create_infer_request()
    for _ in range(3):
        with pytest.raises(PluginError, match=f"'TOY' returned as 'y' a tensor .*{message}"):
            request.infer([X])


@pytest.mark.parametrize("text", ["\udcff", "a\ud800"])
def test_halves_of_characters_are_no_identity(text, tmp_path):
    core = core_with(plugin_with(identity=lambda self, properties: text))
    with pytest.raises(PluginError, match="'TOY' answered identity"):
        core.compile_model(MODEL, "TOY", {"CACHE_DIR": str(tmp_path)})


@pytest.mark.parametrize("name", [1, "\udcff"])
def test_states_are_named_by_texts_that_can_be_written(name):
    plugin = plugin_with(export_state=lambda self: {name: np.zeros(2)})
    with pytest.raises(PluginError, match=r"'TOY' failed to export its state: .* named an array"):
        core_with(plugin).compile_model(MODEL, "TOY").export_model()


@pytest.mark.parametrize("answer", [None, 5, [None], {"a": ProfilingInfo("a", "b")}])
def test_counters_are_a_list_of_counters(answer):
    plugin = plugin_with(profiling_info=lambda self: answer)
    request = core_with(plugin).compile_model(MODEL, "TOY").create_infer_request()
    with pytest.raises(PluginError, match="'TOY' answered profiling_info"):
        request.get_profiling_info()


def test_an_execution_is_explained_by_an_execution():
    plugin = plugin_with(explain_execution=lambda self: None)
    request = core_with(plugin).compile_model(MODEL, "TOY").create_infer_request()
    with pytest.raises(PluginError, match="'TOY' answered explain_execution"):
        request.explain_execution()


def test_an_error_without_a_message_names_the_device():
    def fails(self, inputs, outputs=None):
        raise InferError

    request = core_with(plugin_with(run=fails)).compile_model(MODEL, "TOY").create_infer_request()
    with pytest.raises(InferError, match="'TOY' failed on model 'g': InferError"):
        request.infer([X])


def test_what_is_no_exception_passes_and_says_where_it_came_from():
    class PanicException(BaseException):
        pass

    with pytest.raises(PanicException) as raised, raised_as(PluginError, "Device 'X' failed"):
        raise PanicException
    assert raised.value.__notes__ == ["Device 'X' failed"]


@pytest.mark.parametrize("answer", ["", b"", None, 3])
def test_a_tensor_taken_over_is_a_tensor(answer):
    core = core_with(plugin_with(transfer_to=lambda self, tensor, device_id="": answer))
    with pytest.raises(PluginError, match="'TOY' answered transfer_to"):
        core.device_api.transfer_to("TOY", partita.HostTensor(X))


def test_a_tensor_taken_over_stays_what_it_is():
    other = partita.HostTensor(X.astype(np.int8))
    core = core_with(plugin_with(transfer_to=lambda self, tensor, device_id="": other))
    with pytest.raises(PluginError, match="'TOY' failed to take over a tensor: it made"):
        core.device_api.transfer_to("TOY", partita.HostTensor(X))
