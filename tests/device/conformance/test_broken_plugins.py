"""The script that runs the kit on all broken devices: which it finds, and in what processes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import broken_plugins
import pytest
import test_broken_devices
from clean_children import ENDED, Child

OF_THE_PROCESS = ("memory/failures_give_back", "resources/processes_are_waited_for")
OF_THE_PROCESS += ("resources/arrays_are_let_go", "lives/a_layer")

CHILDREN = """
import gc, os, threading
from clean_children import results_of


def work(asked):
    if asked == "ends":
        os._exit(3)
    if asked == "hangs":
        threading.Event().wait()
    loop = [None]
    loop[0] = loop
    del loop
    return asked, gc.collect() > 0, threading.current_thread() is threading.main_thread()


def ask(*all_of_it):
    answers = []
    for asked in all_of_it:
        answers.append((yield asked))
    return answers


tasks = [ask("one", "two"), ask("ends", "three"), ask("hangs")]
found = {number: result for number, result, _ in results_of(work, tasks, 2, 8)}
print([found[number] for number in sorted(found)])
"""


def names_of(sets):
    return {f"{cls.__module__}.{cls.__name__}" for cls in broken_plugins.plugins(sets)}


def test_those_of_the_tests_are_found():
    found = broken_plugins.plugins(())
    assert {*test_broken_devices.FAULTS, *test_broken_devices.ALONE} <= {*found}
    assert {"broken_choices", "broken_weights"} <= {cls.__module__ for cls in found}
    assert not {cls.__name__ for cls in found} & test_broken_devices.FRAMES


def test_sets_are_found_whether_they_have_a_base_of_their_own_or_not():
    found = names_of(("*",))
    modules = {name.split(".")[1] for name in found}
    folder = Path(broken_plugins.FOLDER, "unseen")
    of_frames_alone = {"__init__", "outer_form"}
    assert modules == {path.stem for path in folder.glob("*.py")} - of_frames_alone
    assert "unseen.late_numerics.PassesThePadAsFloat" in found
    assert "unseen.late_runtime.SwapsInputsWhereTheyLie" in found
    assert "unseen.runs.HandsOutItsInputs" in found  # others are derived from it
    frames = ("late_runtime.Broken", "late_numerics.Kernel", "outer_form.Kernel", "runs.Delivers")
    assert not {f"unseen.{frame}" for frame in frames} & found


def test_sets_are_those_whose_names_match():
    assert {name.split(".")[1] for name in names_of(("late_*", "blind_graphs"))} == {
        "late_numerics",
        "late_runtime",
        "blind_graphs",
    }
    assert names_of(("outer_form",)) == set()


def run(*args):
    return subprocess.run(
        [sys.executable, *args],
        cwd=Path(broken_plugins.__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="forks its children")
def test_the_correct_device_passes_what_looks_at_its_process():
    done = run("broken_plugins.py", "--correct", "2", "--jobs", "2", "--checks", *OF_THE_PROCESS)
    assert "the correct device passes 2 of 2 times" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="forks its children")
def test_children_collect_and_end_and_hang_each_for_itself():
    done = run("-c", CHILDREN)
    clean = [("one", True, True), ("two", True, True)]
    expected = [clean, [ENDED, ("three", True, True)], [[]]]
    assert done.stdout.strip() == str(expected), done.stderr


def test_no_child_is_forked_beside_other_threads():
    free = threading.Event()
    thread = threading.Thread(target=free.wait)
    thread.start()
    try:
        with pytest.raises(RuntimeError, match=r"beside \d+ other threads.*start it before them"):
            Child(str, "nothing", 1)
    finally:
        free.set()
        thread.join()
