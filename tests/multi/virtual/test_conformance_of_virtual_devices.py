"""AUTO, MULTI and BATCH are devices like others for the conformance kit."""

import pytest

from partita_conformance.bench.bench import Target
from partita_conformance.expectations import Expectations
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import PASSED, InProcess, run_expected

CHECKS = Selection(("async/*",))


@pytest.mark.parametrize("device", ["AUTO:CPU", "MULTI:CPU,REFERENCE", "BATCH:CPU(2)"])
def test_requests_beside_each_other_pass(device):
    runner = InProcess(Target(device))
    checks = collect(CHECKS)
    outcomes = [run_expected(one, runner, Expectations()) for one in checks]
    assert {o.check.name: (o.status, o.detail) for o in outcomes if o.status != PASSED} == {}
    assert len(outcomes) > 5
