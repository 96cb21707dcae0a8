"""HETERO is a device like others for the conformance kit, its counters too."""

from partita_conformance.bench.bench import Target
from partita_conformance.expectations import Expectations
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import PASSED, InProcess, run_expected


def test_counters_of_submodels_are_of_operations():
    checks = collect(Selection(("properties/counters*",)))
    runner = InProcess(Target("HETERO:CPU,REFERENCE"))
    outcomes = [run_expected(one, runner, Expectations()) for one in checks]
    assert {o.check.name: (o.status, o.detail) for o in outcomes if o.status != PASSED} == {}
    assert len(outcomes) == len(checks) > 1
