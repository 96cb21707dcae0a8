"""A process that computes without end ends all the same: with its parent, or by the system."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from partita_opencl.drivers import trial_process
from partita_opencl.drivers.trial_process import TrialProcess

pytestmark = pytest.mark.skipif(os.name != "posix", reason="parents and limits are POSIX's")

PS = shutil.which("ps") or "ps"

LOOPING = """
import os

def main(request, answer):
    answer({"pid": os.getpid()})
    while True:
        pass
"""

PARENT = """
import os, signal, sys
from partita_opencl.drivers.trial_process import TrialProcess

sys.path.insert(0, sys.argv[1])
process = TrialProcess("looping", {}, 600.0)
print(next(process.answers())["pid"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def looping(tmp_path, monkeypatch):
    (tmp_path / "looping.py").write_text(LOOPING)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def there(pid):
    """Whether a process runs; one that has ended may wait for its parent."""
    told = subprocess.run([PS, "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return told.stdout.strip()[:1] not in ("", "Z")


def test_it_ends_with_the_one_that_started_it(looping):
    command = [sys.executable, "-c", PARENT, str(looping)]
    pid = int(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    while there(pid):
        time.sleep(0.1)


def test_the_system_ends_what_computes_for_too_long(looping, monkeypatch):
    start = trial_process.START.replace(
        "trial_process.serve(", "trial_process.PROCESSOR_SECONDS = 1\ntrial_process.serve("
    )
    monkeypatch.setattr(trial_process, "START", start)
    with TrialProcess("looping", {}, 600.0) as process:
        assert [set(answer) for answer in process.answers()] == [{"pid"}]
    assert "ended by SIGXCPU" in process.fault
    assert not process.by_chance


def test_what_says_nothing_for_long_is_given_up(looping):
    with TrialProcess("looping", {}, 1.0) as process:
        assert len(list(process.answers())) == 1
    assert process.hangs
    assert process.fault == "it said nothing for 1 s"
