"""The kit's suite ``decoder``: our devices pass, and a fault of each operator is caught."""

from __future__ import annotations

import decoder_devices
import pytest

from partita_conformance.bench.bench import Target
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import InProcess


def outcomes_of(name, device, check="*"):
    checks = collect(Selection((f"decoder/{check}",)))
    target = Target(device, f"decoder_devices:{name}Device" if name else "")
    return [*map(InProcess(target).run, checks)]


@pytest.mark.parametrize("device", ["CPU", "REFERENCE"])
def test_our_devices(device):
    outcomes = outcomes_of("", device)
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}
    assert len(outcomes) >= 20


@pytest.mark.parametrize("name", decoder_devices.FAULTS)
def test_a_fault_is_caught(name):
    fault = decoder_devices.FAULTS[name]
    op = next(base.__name__ for base in fault.__mro__ if base.__module__.startswith("partita_"))
    outcomes = outcomes_of(name, "FAULTY", f"{op}/*")
    assert any(outcome.bad for outcome in outcomes), "the kit missed it"
