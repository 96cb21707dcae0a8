"""The campaign of hostile files and tensors: that it notices faults, and a short form of it."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from partita.lowering import Operand
from tests.campaign import guard
from tests.campaign.__main__ import KINDS
from tests.campaign.watched_child import Child

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="guard pages are Linux's here"),
    pytest.mark.timeout(900),
]


def outcomes(first, count, hang=2.0):
    child = Child("faulty", first, count, hang)
    return {result["seed"]: result["outcome"] for result in child.results()}


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (2, ["raw:KeyError"]),
        (4, ["refused", "wrapped:KeyError", "signal:11"]),
        (7, ["memory", "died:3"]),
        (9, ["ended", "raw:MemoryError", "signal:6"]),
        (12, ["memory"]),
        (13, ["signal:11"]),
        (14, ["signal:11"]),
    ],
)
def test_every_fault_is_noticed(first, found):
    """Also behind others that do not end the process."""
    assert outcomes(first, len(found)) == dict(enumerate(found, first))


def test_a_case_that_never_ends_is_ended():
    assert outcomes(3, 2, hang=0.5)[3].startswith("hang:")


def test_cases_before_a_death_are_counted():
    assert outcomes(0, 3) == {0: "ok", 1: "signal:11"}


def test_a_constant_that_programs_share_is_copied_once():
    """Calls of the first program have the address of its copy, which nobody else keeps."""
    shared = Operand((3,), np.dtype(np.float32), np.ones(3, np.float32))
    made = guard.with_guarded_constant(lambda _: shared)
    builder = SimpleNamespace(options=None)
    copy = made(builder).const
    assert copy.ctypes.data % guard.PAGE and made(builder).const is copy


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_cases_of_each_kind(kind, tmp_path):
    """What the whole campaign found is in tests of its own; this holds that it still runs."""
    command = ["-m", "tests.campaign", "--kinds", kind, "--cases", "24", "--first", "900"]
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, *command, "--hang", "60", "--jobs", "2", "--report", str(report)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}: 24 cases, seeds 900 to 923:" in done.stdout
    told = json.loads(report.read_text())
    assert (told["cases"], told["wrong"]) == (24, 0)
    outcomes = told["kinds"][kind]["outcomes"]
    assert sum(outcomes.values()) == 24
    assert not [outcome for outcome in outcomes if outcome.startswith("wrapped")], done.stdout
