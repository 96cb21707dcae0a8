"""Devices measured while others use the machine: what is used, kept, measured again, and said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from random_decoders import decoder

from partita.cli.main import main
from partita.contract.explanation import QUIET
from partita_hetero.cost import clock, machine_load
from partita_hetero.cost import device_speed as probes
from partita_hetero.cost.database import Cost, Database
from partita_hetero.cost.launch_cost import launch_cost
from partita_hetero.cost.link_cost import link_costs
from partita_hetero.cost.machine_load import LoadWatch, MachineLoad, busy_note
from partita_hetero.cost.token_work import PLAIN
from partita_hetero.placement.device_list import DeviceList
from partita_hetero.properties import HeteroProperties
from partita_hetero.tuning.decoders import decoder_plan

from ..fakes import FakeDevice, core_with
from ..virtual_time import TIME, install
from .planned_decoders import CONTEXT, told_speeds

RUN = 0.001
"""Seconds of a run of the device."""

BYTES = 1 << 16


@pytest.fixture(autouse=True)
def time(monkeypatch):
    """Virtual time, in which other processes may use the processors."""
    install(monkeypatch)
    monkeypatch.setattr(TIME, "load", 0.0)
    monkeypatch.setattr(TIME, "loaded_until", float("inf"))
    for name, value in (("READ_BYTES", (BYTES,)), ("SIDES", (64,)), ("MANY_SIDE", 64)):
        monkeypatch.setattr(probes, name, value)
    monkeypatch.setattr(probes, "MANY_ROWS", 4)
    return TIME


class Bench:
    """One device, measured again and again with the same database."""

    def __init__(self, folder):
        self.path = folder / "costs.sqlite3"

    def measure(self):
        """The device's speed, and how many runs that took."""
        device = FakeDevice("F", delay_s=RUN)
        speed = self._ask(device, lambda devices, database: self._speed(devices, database))
        return speed, device.runs

    @staticmethod
    def _speed(devices, database):
        probed = probes.ProbedDevice(devices, "F", "key", database, MachineLoad())
        return probes.device_speed(probed, probes.DecoderSizes(set(), 1000, 64))

    def _ask(self, device, call):
        properties = HeteroProperties(MULTI_DEVICE_PRIORITIES="F")
        devices = DeviceList(core_with(device).device_api, "HETERO", properties)
        with Database(self.path) as database:
            return call(devices, database)

    def launch(self):
        """What a launch takes, and how many runs that took."""
        device = FakeDevice("F", delay_s=RUN)
        call = lambda devices, database: launch_cost(  # noqa: E731
            devices, "F", "key", database, MachineLoad()
        )
        return self._ask(device, call), device.runs


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_on_a_quiet_machine_everything_is_measured_once(bench, time):
    speed, runs = bench.measure()
    assert runs
    assert speed.busy == 0
    assert speed.read[PLAIN] == pytest.approx(BYTES / RUN, rel=0.01)
    time.load = 0.9  # what is known from a quiet machine stays
    assert bench.measure() == (speed, 0)


def test_what_was_measured_beside_others_is_used_and_marked(bench, time):
    time.load = 0.6
    speed, runs = bench.measure()
    assert runs
    assert speed.busy == pytest.approx(0.6)
    assert speed.read[PLAIN] == pytest.approx(0.4 * BYTES / RUN, rel=0.01)
    assert bench.measure() == (speed, 0)  # as busy as before: nothing would be better


def test_it_is_measured_again_when_the_machine_is_quiet(bench, time):
    time.load = 0.6
    bench.measure()
    time.load = 0.0
    speed, again = bench.measure()
    assert again
    assert speed.busy == 0
    assert speed.read[PLAIN] == pytest.approx(BYTES / RUN, rel=0.01)
    time.load = 0.6
    assert bench.measure() == (speed, 0)


@pytest.mark.parametrize(("load", "better"), [(0.5, False), (0.35, False), (0.29, True)])
def test_it_is_measured_again_under_half_the_load_and_no_more(bench, time, load, better):
    time.load = 0.6
    bench.measure()
    time.load = load
    speed, again = bench.measure()
    assert bool(again) is better
    assert speed.busy == pytest.approx(load if better else 0.6)


def test_what_ends_while_it_is_measured_is_waited_for_by_measuring_again(bench, time):
    time.load, time.loaded_until = 0.6, time.now + 0.4
    speed, _ = bench.measure()
    assert speed.busy <= QUIET
    assert speed.read[PLAIN] == pytest.approx(BYTES / RUN, rel=0.01)


class Measured:
    """Something to measure that takes its time, under loads given one after another."""

    def __init__(self, time, *loads):
        self.time, self.loads, self.count = time, list(loads), 0

    def __call__(self):
        self.time.load = self.loads[self.count]
        self.count += 1
        watch = LoadWatch()
        self.time.rest(1.0)
        return Cost("d", "w", float(self.count), 1, "measured", "", watch.share())


def test_the_quietest_of_all_measurements_is_kept(time):
    load, measured = MachineLoad(), Measured(time, 0.8)
    first = load.best(None, measured)
    assert (first.seconds, measured.count) == (1.0, 1)  # it was as busy afterwards
    time.load = 0.3
    time.rest(2 * machine_load.LATELY)
    assert load.best(first, Measured(time, 0.9)) is first  # quieter at first, and then not
    time.rest(2 * machine_load.LATELY)
    time.load = 0.0
    found = load.best(first, Measured(time, 0.0))
    assert found.busy == 0
    assert load.best(found, Measured(time)) is found


def test_what_cannot_be_measured_leaves_what_is_known(time):
    time.load = 0.0
    known = Cost("d", "w", 1.0, 1, "measured", "", 0.5)
    assert MachineLoad().best(known, lambda: None) is known
    assert MachineLoad().best(None, lambda: None) is None


def test_launches_are_measured_again_too(bench, time):
    time.load = 0.5
    slow, _ = bench.launch()
    assert slow.busy == pytest.approx(0.5)
    assert bench.launch() == (slow, 0)
    time.load = 0.0
    fast, again = bench.launch()
    assert again
    assert fast.seconds == pytest.approx(slow.seconds / 2, rel=0.01)
    assert bench.launch() == (fast, 0)


def test_links_are_measured_again_too(tmp_path, time):
    core = core_with(FakeDevice("F", memory="f", kind="gpu")).device_api

    def links(load):
        time.load = load
        with Database(tmp_path / "costs.sqlite3") as database:
            return link_costs(core, "F", "key", database, MachineLoad())

    busy = links(0.5)
    assert busy.busy == pytest.approx(0.5)
    assert links(0.5) == busy
    assert links(0.0).busy == 0
    assert links(0.5).busy == 0


def test_where_the_system_does_not_tell_a_thread_that_counts_does(monkeypatch):
    monkeypatch.setattr(clock, "others_seconds", lambda: None)
    monkeypatch.setattr(clock, "lost_share", lambda seconds: 0.25)
    assert LoadWatch().share() == 0.25


def test_processes_of_lower_priority_make_way():
    columns = "cpu0 {} {} 5 100 0 0 0 0 0 0"
    ticks = [clock.busy_ticks(columns.format(user, nice), [0]) for user, nice in ((1, 9), (9, 1))]
    assert ticks == [6, 14]


def test_a_quiet_machine_needs_no_note():
    assert busy_note("Speeds of A", QUIET) == ""
    assert busy_note("Speeds of A", 0.456).startswith("Speeds of A were measured while other proc")
    assert "used 46% of the processors" in busy_note("Speeds of A", 0.456)


@pytest.fixture
def core(monkeypatch, tmp_path):
    """Devices A and C, of which A was measured beside other processes."""

    def speeds(**args):
        return [replace(one, busy=0.63 * (one.name == "A")) for one in told_speeds(**args)]

    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(decoder_plan, "describe_devices", speeds)
    return core_with(FakeDevice("A", memory="a", kind="gpu"), FakeDevice("C", kind="cpu"))


NOTE = "Speeds of A were measured while other processes used 63% of the processors"


def test_the_command_says_so(core, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("partita_hetero.cli.plan.Core", lambda: core)
    decoder("tiny", "q4").save(path := tmp_path / "decoder.onnx")
    command = ["plan", str(path), "-d", "HETERO:A,C", "--context", str(CONTEXT)]
    assert main(command) == 0
    assert NOTE in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert [note[: len(NOTE)] for note in json.loads(capsys.readouterr().out)["notes"]] == [NOTE]


def test_a_compiled_model_says_so(core):
    model = decoder("tiny", "f32", context=CONTEXT)
    explained = core.compile_model(model, "HETERO:A,C", {"HETERO_CONTEXT": CONTEXT}).explain()
    assert any(note.startswith(NOTE) for note in explained.decision.notes)
