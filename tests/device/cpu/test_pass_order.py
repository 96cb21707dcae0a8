"""The order of the passes of device CPU: it is as the passes ask for."""

import pytest

from partita_cpu.passes.pipeline import PASSES

NAMES = [one.name for one in PASSES]


def test_names_are_those_of_one_pass_each():
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("one", PASSES, ids=NAMES)
def test_passes_run_after_those_that_they_need(one):
    assert set(one.after) <= set(NAMES[: NAMES.index(one.name)])
    assert one.reason.endswith(".")
