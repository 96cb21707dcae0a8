"""Random placements with STRICT, a few of the campaign in ``benchmarks/strict_placements.py``."""

from __future__ import annotations

import pytest
from random_models import random_model
from strict_placements import campaign, core_of, draw, play, subject

from partita.errors import CompileError

from ..fakes import FakeDevice, FakeRunner

DEVICES = ["CPU", "CPU2", "REFERENCE"]


@pytest.mark.parametrize("number", range(6))
def test_all_agree_and_nothing_recovers(number):
    names = [f"random:{number}"]
    rows = list(campaign(names, DEVICES, range(4 * number, 4 * number + 4)))
    assert [row["wrong"] for row in rows] == [""] * 4
    assert not any(row["recovered"] for row in rows)


def test_models_are_alike_each_time():
    for seed in (0, 7):
        (model, feeds), (again, same) = random_model(seed), random_model(seed)
        assert model.SerializeToString() == again.SerializeToString()
        assert [f.keys() for f in feeds] == [f.keys() for f in same]
        assert len({feed["n0"].tobytes() for feed in feeds}) == 3


class Liar(FakeDevice):
    """Claims everything and fails at one thing."""

    fails_at = ""

    def compile_model(self, model, properties):
        if self.fails_at == "compile":
            raise CompileError("cannot after all")
        compiled = super().compile_model(model, properties)
        compiled.create_runner = lambda: LiarRunner(compiled)
        return compiled


class LiarRunner(FakeRunner):
    def run(self, inputs, outputs=None):
        results = super().run(inputs)
        if self.plugin.fails_at == "run":
            raise ValueError("lost")
        if self.plugin.fails_at == "elements":
            results[0].numpy()[...] = 7
        return results


@pytest.mark.parametrize(
    ("fault", "said"),
    [("compile", "cannot after all"), ("run", "lost"), ("elements", "off by"), ("", "")],
)
def test_the_campaign_finds_a_device_at_fault(fault, said):
    core = core_of(["CPU"])
    device = Liar("LIAR")
    device.fails_at = fault
    core.register_plugin(device)
    what = subject("random:1")
    model = core.read_model(what.source)
    places = ["LIAR" if op.op_type == "LayerNormalization" else "CPU" for op in model.ops]
    assert "LIAR" in places
    row = play(core, what, model, places, "LINEAR")
    assert said in row["wrong"]
    assert bool(row["wrong"]) == bool(said)


def test_what_recovers_counts_as_wrong(monkeypatch):
    """Were STRICT not obeyed, the campaign would see it."""
    core = core_of(["CPU"])
    device = Liar("LIAR")
    device.fails_at = "run"
    core.register_plugin(device)
    what = subject("random:1")
    model = core.read_model(what.source)
    places = ["LIAR" if op.op_type == "LayerNormalization" else "CPU" for op in model.ops]
    plain = core.compile_model
    monkeypatch.setattr(core, "compile_model", lambda model, device, config: plain(model, device))
    row = play(core, what, model, places, "LINEAR")
    assert row["recovered"]
    assert "failed to run" in row["wrong"]


def test_only_devices_that_claim_are_drawn():
    import random

    claimed = [["A"], ["A", "B"], ["B"], ["A", "B"]] * 5
    for seed in range(20):
        chosen, _ = draw(random.Random(seed), claimed, large=False)
        assert all(device in devices for device, devices in zip(chosen, claimed, strict=True))
