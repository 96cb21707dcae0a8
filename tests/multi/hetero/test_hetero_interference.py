"""HETERO tells of devices that slow each other: idle threads that spin, shared processors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import model_of, node, value
from onnx import TensorProto, save
from pydantic import Field

from partita import HostTensor
from partita.cli.main import main
from partita.properties import DeviceProperties
from partita_hetero.tuning import interference

from ..fakes import core_with
from ..paced import PacedDevice
from ..virtual_time import TIME, install

TYPES = ["Atan", "Sinh", "Tan", "Asinh"]
CHAIN = model_of(
    [node(t, [f"v{i}"], f"v{i + 1}", t.lower()) for i, t in enumerate(TYPES)],
    [value("v0", [2, 3])],
    ["v4"],
)
SLOW, FAST = 0.01, 0.001


class Engine(DeviceProperties):
    ALLOW_SPINNING: bool = Field(True, description="Whether idle threads look for work.")


class Spinning(PacedDevice):
    """Its threads spin, unless they are told to sleep."""

    properties_type = Engine

    def compile_model(self, model, properties):
        if not properties.ALLOW_SPINNING:
            self.spins = 0.0
        return super().compile_model(model, properties)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    install(monkeypatch)
    TIME.spins_until = 0.0
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    return tmp_path


def devices(kind=Spinning, spins=0.05):
    """A is slow at Sinh, B at everything else; threads of B spin."""
    a = PacedDevice("A", dict.fromkeys(TYPES, FAST) | {"Sinh": SLOW})
    return a, kind("B", dict.fromkeys(TYPES, SLOW) | {"Sinh": FAST}, spins=spins)


def notes(pair, device="HETERO:A,B", **config):
    compiled = core_with(*pair).compile_model(CHAIN, device, {"HETERO_SCHEDULE": "COST", **config})
    return compiled.explain().decision.notes


# Of A's three operations the two behind B take three times as long.
TOLD = "A ran 3.0 times slower beside B: 6.00 ms in the plan, 2.00 ms after a pause."


def test_threads_that_spin_are_told_of_with_what_to_set():
    (note,) = notes(devices())
    assert note.startswith(TOLD)
    assert "Threads of B spin: 5" in note  # 50 ms, and what is left of a slice
    assert note.endswith("set ALLOW_SPINNING=NO for B.")


def test_explanations_tell_it():
    compiled = core_with(*devices()).compile_model(CHAIN, "HETERO:A,B", {"HETERO_SCHEDULE": "COST"})
    assert TOLD in str(compiled.explain())


def test_an_engine_without_the_property_has_an_option_of_its_own():
    (note,) = notes(devices(PacedDevice))
    assert note.startswith(TOLD)
    assert note.endswith("set the option of B's engine that lets idle threads sleep.")


@pytest.mark.parametrize(
    "config", [{"DEVICE_PROPERTIES": {"B": {"ALLOW_SPINNING": False}}}, {"spins": 0.0}]
)
def test_threads_that_sleep_are_nothing_to_tell(config):
    spins = config.pop("spins", 0.05)
    assert notes(devices(spins=spins), **config) == []


def test_a_process_that_is_never_quiet_tells_nothing(monkeypatch):
    monkeypatch.setattr(interference.clock, "processor_seconds", TIME.seconds)
    assert notes(devices()) == []


def test_times_that_differ_for_another_reason_are_not_called_spinning():
    a, b = devices(PacedDevice, spins=0.0)
    run = TIME.sleep
    last = [""]

    def cold(seconds, device=""):
        """What runs behind another device takes longer, paused or not, as with cold caches."""
        slower = device not in ("", last[0])
        last[0] = device or last[0]
        run(seconds * (2 if slower else 1), device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TIME, "sleep", cold)
        assert notes((a, b)) == []


WIDE = model_of(
    [
        node("Atan", ["x"], "a", "left"),
        node("Sinh", ["x"], "b", "right"),
        node("Add", ["a", "b"], "y", "sum"),
    ],
    [value("x", [2, 3], TensorProto.FLOAT)],
    ["y"],
)


def test_parts_at_the_same_time_that_share_processors_are_told_of(monkeypatch):
    pair = devices(PacedDevice, spins=0.0)
    core = core_with(*pair)
    compiled = core.compile_model(
        WIDE,
        "HETERO:A,B",
        {"HETERO_EXECUTOR": "PARALLEL", "HETERO_PINS": ["left=A", "right=B", "sum=A"]},
    )
    crowd = TIME.run_parallel

    def crowded(schedule, run, cancelled):
        with pytest.MonkeyPatch.context() as patch:
            sleep = TIME.sleep
            patch.setattr(TIME, "sleep", lambda seconds, device="": sleep(2 * seconds, device))
            crowd(schedule, run, cancelled)

    monkeypatch.setattr(TIME, "run_parallel", crowded)
    model = compiled.device_model
    inputs = [HostTensor(np.ones((2, 3), np.float32))]
    found = interference.slowdowns(model.compilation, model.assembly, inputs)
    told = [one.describe(core) for one in found]
    assert {(one.device, one.neighbours) for one in found} == {("A", ("B",)), ("B", ("A",))}
    assert all("2.0 times slower beside" in text for text in told)
    assert all("at the same time: set INFERENCE_NUM_THREADS of each" in text for text in told)


def test_plans_that_are_slow_are_run_once_each_way():
    pair = devices(spins=0.0)
    for device in pair:
        device.times = dict.fromkeys(TYPES, 0.3)
    core = core_with(*pair)
    model = core.compile_model(CHAIN, "HETERO:A,B", {"HETERO_PINS": "type:Sinh=B"}).device_model
    inputs = [HostTensor(np.ones((2, 3), np.float32))]
    assert interference.slowdowns(model.compilation, model.assembly, inputs) == []
    assert [device.runs for device in pair] == [4, 2]  # A has the submodels before and behind


def test_it_may_be_its_own_threads_that_a_device_is_slowed_by():
    spun = interference.Slowdown("B", ("A",), 0.006, 0.002, 2, "B", 0.05)
    assert spun.describe(core_with(*devices())).endswith(
        "Threads of B spin: 50.0 ms of processor time in a pause; set ALLOW_SPINNING=NO for B."
    )


def test_plans_and_reports_tell_it(folder, monkeypatch, capsys):
    path = folder / "chain.onnx"
    save(CHAIN, path)
    monkeypatch.setattr("partita_hetero.cli.plan.Core", lambda: core_with(*devices()))
    monkeypatch.setattr("partita_hetero.cli.report.Core", lambda: core_with(*devices()))
    assert main(["plan", str(path), "-d", "HETERO:A,B"]) == 0
    assert TOLD in capsys.readouterr().out
    pins = ["--pin", "type:Sinh=B"]
    assert main(["report", str(path), "-d", "HETERO:A,B", *pins, "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["explanation"]["notes"]
    assert note.startswith(TOLD)
