"""What a device of HETERO answers wrongly is said of it, not of HETERO or of its neighbour."""

from __future__ import annotations

import numpy as np
import pytest

from partita.contract.profiling import ProfilingInfo
from partita.errors import PartitaError

from ..fakes import FakeCompiled, FakeDevice, FakeRunner, FakeTensor, core_with
from ..graphs import CHAIN, X


def odd(**members):
    """Device A, which takes half of the chain; some members of its models or runners are others."""

    class Runner(FakeRunner):
        pass

    class Compiled(FakeCompiled):
        def create_runner(self):
            return Runner(self)

    class Device(FakeDevice):
        def compile_model(self, model, properties):
            return Compiled(model, properties, "A", self)

    for name, member in members.items():
        setattr(Compiled if hasattr(Compiled, name) else Runner, name, member)
    return core_with(Device("A", refuses=["Neg", "Abs"]), FakeDevice("B"))


def short(self, inputs, outputs=None):
    """A tensor that says that it has all of its elements."""
    (result,) = FakeRunner.run(self, inputs, outputs)
    fake = FakeTensor(result.numpy()[:1].copy(), "A", "host")
    fake.shape = result.shape
    return [fake]


def asked(core, what):
    compiled = core.compile_model(CHAIN, "HETERO:A,B", {"PERF_COUNT": True, "STRICT": True})
    request = compiled.create_infer_request()
    request.start_async({"x": X})
    request.wait()
    request.infer({"x": X})
    return what(compiled, request)


@pytest.mark.parametrize(
    ("member", "answer", "what"),
    [
        ("scratch_bytes", property(lambda self: "many"), None),
        ("scratch_bytes", property(lambda self: -8), None),
        ("optimal_number_of_infer_requests", property(lambda self: 0), None),
        ("host_array", lambda self, shape, dtype: np.zeros(shape, np.int8), None),
        ("run", short, None),
        ("profiling_info", lambda self: None, lambda _, request: request.get_profiling_info()),
        ("profiling_info", lambda self: [5], lambda _, request: request.get_profiling_info()),
        ("explain_execution", lambda self: 5, lambda _, request: request.explain_execution()),
        (
            "extra_properties",
            lambda self: {1: ProfilingInfo("a", "b")},
            lambda compiled, _: compiled.get_property("DEVICE_PROPERTIES"),
        ),
    ],
)
def test_the_device_that_answered_is_named(member, answer, what):
    with pytest.raises(PartitaError, match="Device 'A'"):
        asked(odd(**{member: answer}), what)
