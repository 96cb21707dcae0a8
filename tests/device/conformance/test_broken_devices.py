"""The kit itself: it catches every broken device, passes a correct one, and sees through zeros."""

from __future__ import annotations

import builtins
import gc
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import warnings

import broken_aftermath
import broken_claims
import broken_form
import broken_lasting
import broken_promises
import broken_requests
import broken_runs
import broken_state
import broken_usage
import broken_values
import numpy as np
import pytest
from broken_form import Broken
from good_device import Two
from sampling import THOROUGH

from partita_conformance.bench.bench import Target
from partita_conformance.runs import running
from partita_conformance.runs.collect import Selection, collect
from partita_conformance.runs.running import (
    CRASHED,
    DECLINED,
    FAILED,
    PASSED,
    SKIPPED,
    TIMEOUT,
    InProcess,
    Isolated,
)

MODULES = (broken_claims, broken_form, broken_lasting, broken_promises, broken_requests)
MODULES += (broken_runs, broken_state, broken_usage, broken_values, broken_aftermath)
ALONE = (broken_runs.Crashes, broken_runs.Hangs, broken_runs.IsInterrupted)
ALONE += (broken_runs.BreaksAtCreation,)
"""Faults that each have a test of their own, as they end, stop or prevent the run."""
FRAMES = {"Broken", "BrokenState", "Rewrites", "Packed", "OwnBlobs", "Setting"}
FRAMES |= {"KnowsProgramsBy", "OwnTable", "_ByTheFirst"}
APART = {*FRAMES, *(fault.__name__ for fault in ALONE)}
FAULTS = [
    cls
    for module in MODULES
    for cls in vars(module).values()
    if isinstance(cls, type)
    and issubclass(cls, (Broken, broken_state.BrokenState, Two))
    and cls.__module__ == module.__name__
    and cls.__name__ not in APART
]
PARTS = {
    "what it says": ("plugin/*", "properties/*", "query/*", "compiled/*", "members/*"),
    "what it keeps": ("blob/*", "weights/*", "memory/*", "resources/*", "sharing/*"),
    "its runs": ("request/*", "async/*", "threads/*", "faults/*", "ports/*", "turns/*", "given/*"),
    "its days": ("walks/*", "makeups/*"),
    "its lives": ("lives/*",),
}
"""What a correct device is asked in the tests of its own, each some ten seconds if thorough."""
FORM = tuple(pattern for part in PARTS.values() for pattern in part)
CASES = ("operators/*seq*", "operators/string*", "operators/nllloss_NCd1*", "operators/det_*")
SAMPLE = ("random/*/0", "hetero/network/*/0", "hetero/operator/C*")
SHARE = 1 if THOROUGH else 5
"""Of all checks, which the first correct device passes, a gate makes one of so many of others."""


@pytest.fixture(autouse=True)
def settings_of_the_process():
    """As they were, for the tests after those of devices that change them."""
    prints, thresholds, folder = np.get_printoptions(), gc.get_threshold(), tempfile.tempdir
    shown, rounded, disabled = warnings.showwarning, builtins.round, logging.root.manager.disable
    yield
    np.set_printoptions(**prints)
    gc.set_threshold(*thresholds)
    logging.disable(disabled)
    tempfile.tempdir, warnings.showwarning, builtins.round = folder, shown, rounded


def runs_of(name, module, patterns, device="BROKEN", draws=4, but=(), every=1):
    """Runs one check after another, as they are asked for, but those of the patterns `but`.

    With `every`, of the rest the first of so many each.
    """
    target = Target(device, f"{module}:{name}")
    left_out = {check.name for check in collect(Selection(but, draws=draws))} if but else ()
    checks = collect(Selection(tuple(patterns), draws=draws))
    rest = [check for check in checks if check.name not in left_out]
    return map(InProcess(target).run, rest[::every])


def outcomes_of(*what, **options):
    return [*runs_of(*what, **options)]


def test_there_are_enough_faults():
    assert len(FAULTS) + len(ALONE) >= 95


@pytest.mark.usefixtures("lives_as_they_failed")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_is_caught(fault):
    patterns = [p for p in fault.suites if not p.startswith("operators")]
    outcomes = runs_of(fault.__name__, fault.__module__, patterns, draws=12)
    assert any(outcome.bad for outcome in outcomes), "the kit missed it"


@pytest.mark.parametrize("patterns", [*PARTS.values(), SAMPLE], ids=[*PARTS, "samples"])
def test_correct_device_passes(patterns):
    every = 1 if THOROUGH else 2
    outcomes = outcomes_of("Good", "good_device", patterns, "GOOD", every=every)
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}
    assert sum(o.status == PASSED for o in outcomes) > 0.9 * len(outcomes) > 20 / every


def test_correct_device_that_takes_little_passes():
    outcomes = outcomes_of("Picky", "good_device", FORM + SAMPLE, "PICKY", every=SHARE)
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}
    assert sum(o.status == PASSED for o in outcomes) > 180 / SHARE


@pytest.mark.parametrize("check", ["random/GridSample/0", "hetero/operator/GridSample"])
def test_what_a_device_declines_is_not_computed(monkeypatch, check):
    """By the judges, that is: it may be that none of them can."""
    judge = "partita_conformance.bench.bench._expected"
    monkeypatch.setattr(judge, lambda *_: pytest.fail("it was computed"))
    assert [o.status for o in outcomes_of("Picky", "good_device", (check,), "PICKY")] == [DECLINED]


def test_two_correct_devices_pass():
    outcomes = outcomes_of("Two", "good_device", ("plugin/*",), "TWO")
    assert {o.check.name: o.detail for o in outcomes if o.bad} == {}
    assert sum(o.status == PASSED for o in outcomes) >= 12


def test_state_that_is_updated_rightly_passes():
    outcomes = outcomes_of("GoodState", "broken_state", ("state/*",), "STATE")
    assert {o.check.name: o.status for o in outcomes} == {o.check.name: PASSED for o in outcomes}
    assert len(outcomes) == len(collect(Selection(("state/*",))))


@pytest.mark.parametrize(
    ("patterns", "of_values"),
    [
        *zip(PARTS.values(), (25, 30, 75, 25, 25), strict=True),
        (SAMPLE + CASES, 200),
    ],
    ids=[*PARTS, "samples"],
)
def test_zeros_fail_exactly_the_checks_of_values(patterns, of_values):
    outcomes = outcomes_of("Null", "good_device", patterns, "NULL", every=SHARE)
    made = [o for o in outcomes if o.status not in (DECLINED, SKIPPED)]
    wrong = {o.check.name: (o.check.values, o.detail) for o in made if o.bad != o.check.values}
    assert wrong == {}
    assert sum(o.check.values for o in made) >= of_values // SHARE


def test_crash_costs_its_check_only():
    selection = Selection(("random/Exp/0", "random/Relu/0", "random/Abs/0"))
    runner = Isolated(Target("BROKEN", "broken_runs:Crashes"), selection, 60)
    try:
        outcomes = [*map(runner.run, collect(selection))]
    finally:
        runner.close()
    assert {o.check.op: o.status for o in outcomes} == {
        "Abs": PASSED,
        "Relu": PASSED,
        "Exp": CRASHED,
    }
    assert "exit code 139" in next(o.detail for o in outcomes if o.status == CRASHED)


def test_a_worker_that_has_grown_is_replaced(monkeypatch):
    monkeypatch.setattr(running, "MOST_RESIDENT", 1)
    selection = Selection(("random/Exp/0", "random/Abs/0"))
    runner = Isolated(Target("REFERENCE"), selection, 60)
    try:
        for check in collect(selection):
            assert runner.run(check).status == PASSED
            assert not multiprocessing.active_children()
    finally:
        runner.close()


def test_an_interrupted_worker_ends_quietly(capfd):
    selection = Selection(("random/Exp/0",))
    runner = Isolated(Target("BROKEN", "broken_runs:IsInterrupted"), selection, 60)
    try:
        (outcome,) = map(runner.run, collect(selection))
    finally:
        runner.close()
    assert (outcome.status, outcome.detail) == (CRASHED, "the process ended with exit code 130")
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_whose_result_comes_too_late_ends_quietly(capfd):
    selection = Selection(("random/Exp/0",))
    runner = Isolated(Target("REFERENCE"), selection, 0.0)
    try:
        (outcome,) = map(runner.run, collect(selection))
    finally:
        runner.close()
    assert outcome.status == TIMEOUT
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="signals that wait are POSIX's")
def test_a_worker_that_is_interrupted_while_it_starts_ends_quietly(capfd):
    def interrupt():
        while not (children := multiprocessing.active_children()):
            time.sleep(0.001)
        os.kill(children[0].pid, signal.SIGINT)

    selection = Selection(("random/Exp/0",))
    runner = Isolated(Target("REFERENCE"), selection, 60)
    interrupts = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's jobs
    interrupts.start()
    try:
        (outcome,) = map(runner.run, collect(selection))
    finally:
        interrupts.join()
        runner.close()
        signal.signal(signal.SIGINT, before)
    assert (outcome.status, outcome.detail) == (CRASHED, "the process ended with exit code 130")
    assert "Traceback" not in capfd.readouterr().err


def test_hang_costs_its_check_only():
    selection = Selection(("random/Abs/0", "random/Exp/0", "random/Relu/0"))
    runner = Isolated(Target("BROKEN", "broken_runs:Hangs"), selection, 5)
    try:
        outcomes = [*map(runner.run, collect(selection))]
    finally:
        runner.close()
    assert {o.check.op: o.status for o in outcomes} == {
        "Abs": PASSED,
        "Relu": PASSED,
        "Exp": TIMEOUT,
    }


def test_device_that_breaks_at_creation_is_broken_not_absent():
    state, reason = Target("BROKEN", "broken_runs:BreaksAtCreation").presence()
    assert state == "broken"
    assert "libdevice.so" in reason


def test_device_that_is_not_there_is_absent():
    state, reason = Target("NOBODY").presence()
    assert state == "absent"
    assert "NOBODY" in reason


@pytest.mark.parametrize("disabled", ["", "newdev"])
def test_device_whose_plugin_does_not_load_is_broken_unless_disabled(
    tmp_path, monkeypatch, disabled
):
    about = tmp_path / "partita_newdev-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: partita-newdev\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[partita]\nnewdev = does_not_load\n")
    (tmp_path / "does_not_load.py").write_text("raise OSError('libnewdev.so is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PARTITA_DISABLE_PLUGINS", disabled)
    state, reason = Target("NEWDEV").presence()
    assert state == ("absent" if disabled else "broken")
    assert disabled or "libnewdev.so is missing" in reason
    assert Target("CPU").presence() == ("present", "")


def test_what_a_device_lets_through_is_a_failure_that_names_it():
    outcomes = outcomes_of("AnswersWithADict", "broken_form", ["query/*"])
    (first, *_) = [o for o in outcomes if o.bad]
    assert first.status == FAILED
    assert "QueryResult" in first.detail
