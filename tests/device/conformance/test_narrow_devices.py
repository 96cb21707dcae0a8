"""The kit looks at a device that takes none of its usual models, which are of float32."""

from __future__ import annotations

import pytest

from partita_conformance.bench.bench import Target
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import PASSED, InProcess

SUITES = "plugin/*", "request/*", "async/*", "blob/*", "compiled/*", "threads/*", "turns/*"


def outcomes_of(name, *patterns):
    runner = InProcess(Target("NARROW", f"narrow_devices:{name}"))
    return [runner.run(check) for check in collect(Selection(patterns))]


def test_a_device_of_images_in_float16_passes():
    outcomes = outcomes_of("Narrow", *SUITES)
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}
    assert sum(o.status == PASSED for o in outcomes) > len(outcomes) / 2


@pytest.mark.parametrize("suite", ["request", "async", "turns"])
def test_a_fault_of_such_a_device_is_caught(suite):
    assert any(outcome.bad for outcome in outcomes_of("Stale", f"{suite}/*"))
