"""Nonsense of a plugin is told with its device's name where a device made of others asks for it."""

from __future__ import annotations

import numpy as np
import pytest

from partita.errors import DeviceMemoryError, InferError, PartitaError, PluginError

from .fakes import FakeCompiled, FakeDevice, FakeRunner, core_with
from .graphs import model_of, node

NET = model_of([node("Neg", ["x"], "a"), node("Exp", ["a"], "y")], ["y"], shape=(1, 3))
X = np.ones((1, 3), np.float32)


def device_with(**members):
    """Device A, of whose compiled model or runner some members are others."""

    class Runner(FakeRunner):
        pass

    class Compiled(FakeCompiled):
        def create_runner(self):
            return Runner(self)

    class Device(FakeDevice):
        def compile_model(self, model, properties):
            super().compile_model(model, properties)
            return Compiled(model, properties, self.device_name, self)

    for name, member in members.items():
        setattr(Compiled if hasattr(FakeCompiled, name) else Runner, name, member)
    return Device("A")


def raising(error):
    def member(self, *args, **more):
        raise error

    return member


@pytest.mark.parametrize("device", ["HETERO:A,B", "MULTI:A", "AUTO:A", "BATCH:A(2)"])
@pytest.mark.parametrize("member", [lambda self: ("no", "explanation"), raising(KeyError("k"))])
def test_an_explanation_that_is_none(device, member):
    core = core_with(device_with(explain=member), FakeDevice("B", refuses=["Neg"]))
    with pytest.raises(PluginError, match=r"Device 'A' (answered|failed to answer) explain"):
        core.compile_model(NET, device).explain()


@pytest.mark.parametrize("device", ["MULTI:A", "AUTO:A", "BATCH:A(2)"])
@pytest.mark.parametrize("count", [None, {}, 0, -1, "4", 10**30])
def test_a_number_of_requests_that_is_none(device, count):
    core = core_with(device_with(optimal_number_of_infer_requests=count))
    with pytest.raises(PartitaError, match="Device 'A' answered optimal_number_of_infer_requests"):
        core.compile_model(NET, device).get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")


@pytest.mark.parametrize("device", ["MULTI:A", "AUTO:A", "BATCH:A", "BATCH:A(1)"])
def test_a_runner_that_is_none(device):
    core = core_with(device_with(create_runner=lambda self: {"a": 1}))
    with pytest.raises(PluginError, match="Device 'A' answered create_runner with"):
        core.compile_model(NET, device)(X)


@pytest.mark.parametrize("device", ["AUTO:A", "BATCH:A"])
def test_execution_devices_that_are_none(device):
    core = core_with(device_with(execution_devices=7))
    with pytest.raises(PluginError, match="Device 'A' answered execution_devices with 7"):
        assert core.compile_model(NET, device).execution_devices


@pytest.mark.parametrize("pairs", [[], {}])
def test_no_outputs_in_place(pairs):
    core = core_with(device_with(in_place_outputs=lambda self: pairs), FakeDevice("B"))
    found = core.compile_model(NET, "HETERO:A,B")(X)[0]
    np.testing.assert_allclose(found, np.exp(-X), rtol=1e-6)


@pytest.mark.parametrize("device", ["MULTI:A", "AUTO:A", "BATCH:A"])
@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ImportError("no driver"), InferError, "of A failed on model .*: ImportError: no driver"),
        (MemoryError("4 GB"), DeviceMemoryError, "of A has no room to run: 4 GB"),
    ],
)
def test_a_run_that_fails(device, error, kind, said):
    core = core_with(device_with(run=raising(error)))
    with pytest.raises(kind, match=said):
        core.compile_model(NET, device)(X)
