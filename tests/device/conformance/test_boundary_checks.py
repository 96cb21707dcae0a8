"""The kit's suite ``boundary``: a device that offers everything passes, each fault is caught."""

from __future__ import annotations

import boundary_devices
import pytest

from partita_conformance.bench.bench import Target
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import PASSED, SKIPPED, InProcess


def outcomes_of(name, device, check="*"):
    checks = collect(Selection((f"boundary/{check}",)))
    target = Target(device, f"boundary_devices:{name}" if name else "")
    return [*map(InProcess(target).run, checks)]


def test_a_device_that_offers_everything():
    outcomes = outcomes_of("Offering", "OFFERING")
    assert {o.check.name: o.detail for o in outcomes if o.status != PASSED} == {}
    assert len(outcomes) >= 5


def test_a_device_that_offers_nothing():
    outcomes = outcomes_of("", "REFERENCE")
    assert {o.status for o in outcomes} == {SKIPPED}


@pytest.mark.parametrize("device", ["CPU", "OPENCL"])
def test_our_devices(device, core):
    core.device_info(device)  # there is one
    outcomes = outcomes_of("", device)
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}


@pytest.mark.parametrize("name", boundary_devices.FAULTS)
def test_a_fault_is_caught(name):
    (outcome,) = outcomes_of(name, "FAULTY", boundary_devices.FAULTS[name].check)
    assert outcome.bad, "the kit missed it"
