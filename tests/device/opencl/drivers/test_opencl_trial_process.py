"""A process that computes without end ends all the same: with its parent, or by the system.

What is slow does not hang, and what no driver did is told apart.
"""

import contextlib
import itertools
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from partita.system import memory_limits
from partita.system.threads import joint_work
from partita_opencl.drivers import fork_server, trial_process
from partita_opencl.drivers.trial_process import TrialProcess
from partita_opencl.drivers.trial_seconds import LONGEST, SilenceTimer

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
process = TrialProcess("looping", {}, 600.0, lasting=sys.argv[2] == "True")
print(next(process.answers())["pid"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

STARVED = """
import time

def main(request, answer):
    while time.process_time() < request["seconds"]:
        time.sleep(0.1)
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
    answer({"done": True})
"""

FAILING = """
import os

def main(request, answer):
    answer({"there": True})
    if request["error"] == "exits":
        os._exit(3)
    raise {"ImportError": ImportError, "OSError": OSError}[request["error"]]("no plugin")
"""

REFUSED = """
import os, sys, threading
from partita_opencl.drivers.program_cache import built_program

class Program:
    def _build(self, options, devices):
        raise MemoryError("std::bad_alloc")

def main(request, answer):
    if request["lacks"] == "memory":
        threading.Thread(target=built_program, args=(Program(), "", None)).start()
    else:
        print("Resource temporarily unavailable", file=sys.stderr, flush=True)
        os.abort()
    threading.Event().wait()  # as one that builds something while PoCL's compiler is locked
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module, which processes import too."""

    def module(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    return module


@pytest.fixture
def looping(module):
    return module("looping", LOOPING)


started_or_forked = pytest.mark.parametrize("lasting", [False, True])
"""Lasting processes are forked from one that has imported their module."""


def there(pid):
    """Whether a process runs; one that has ended may wait for its parent."""
    if not sys.platform.startswith("linux"):  # where not every machine has ps
        told = subprocess.run([PS, "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        return told.stdout.strip()[:1] not in ("", "Z")
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@started_or_forked
def test_it_ends_with_the_one_that_started_it(looping, lasting):
    command = [sys.executable, "-c", PARENT, str(looping), str(lasting)]
    pid = int(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    while there(pid):
        time.sleep(0.1)


@started_or_forked
@pytest.mark.usefixtures("looping")
def test_an_interrupt_of_who_waits_ends_it(lasting):
    pids = queue.SimpleQueue()

    def tries():
        with TrialProcess("looping", {}, 600.0, lasting=lasting) as process:
            for answer in process.answers():
                pids.put(answer["pid"])

    with pytest.raises(KeyboardInterrupt), joint_work.workers(1) as pool:
        pool.submit(tries)
        pid = pids.get(timeout=60)
        raise KeyboardInterrupt
    assert not there(pid)


def test_an_interrupt_ends_the_wait_for_a_process_that_imports(module):
    folder = module("slow_to_import", "import time\nopen('begun', 'w').close()\ntime.sleep(600)\n")

    def tries():
        TrialProcess("slow_to_import", {}, 600.0, lasting=True)

    with contextlib.chdir(folder), pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with fork_server.ended_if_interrupted(), joint_work.workers(1) as pool:
            waiting = pool.submit(tries)
            while not (folder / "begun").exists():
                time.sleep(0.01)
            raise KeyboardInterrupt
    assert isinstance(waiting.exception(), KeyboardInterrupt)
    with contextlib.suppress(ChildProcessError):  # there is none, or only some that have ended
        assert os.waitpid(-1, os.WNOHANG)[0] >= 0


def test_a_server_ends_where_no_thread_can_be_started_to_wait_for_it(monkeypatch):
    def refuses(thread):
        raise RuntimeError("can't start new thread")

    fork_server.prepare("import time; time.sleep(600)")
    monkeypatch.setattr(threading.Thread, "start", refuses)
    with pytest.raises(KeyboardInterrupt), fork_server.ended_if_interrupted():
        raise KeyboardInterrupt


@started_or_forked
@pytest.mark.usefixtures("looping")
def test_the_system_ends_what_computes_for_too_long(monkeypatch, lasting):
    start = trial_process.START.replace(
        "import {module}\n", "trial_process.PROCESSOR_SECONDS = 1\nimport {module}\n"
    )
    monkeypatch.setattr(trial_process, "START", start)
    with TrialProcess("looping", {}, 600.0, lasting=lasting) as process:
        assert [set(answer) for answer in process.answers()] == [{"pid"}]
    assert "ended by SIGXCPU" in process.fault
    assert not process.is_transient


@started_or_forked
@pytest.mark.usefixtures("looping")
def test_what_says_nothing_for_long_is_given_up(lasting):
    with TrialProcess("looping", {}, 1.0, lasting=lasting) as process:
        assert len(list(process.answers())) == 1
    assert process.hangs
    assert process.fault == "it said nothing for 1 s"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells what others compute")
def test_what_is_kept_from_computing_is_not_taken_to_hang(module):
    module("starved", STARVED)
    began = time.monotonic()
    with TrialProcess("starved", {"seconds": 0.6}, 2.0) as process:
        assert list(process.answers()) == [{"done": True}]
    assert time.monotonic() - began > 2.0
    assert not process.hangs
    assert not process.fault


def hangs_at(computed):
    """When a process is taken to hang that is allowed 60 s, by what it has computed at a time."""
    silence = SilenceTimer(60.0, 0.0, computed(0))
    return next(n for n in range(1, 10_000) if silence.is_too_long(n, computed(n)))


def test_silence_is_counted_in_what_is_computed():
    assert hangs_at(lambda now: 5.0 + now / 10) == 601


def test_what_computes_by_many_threads_has_as_long_by_the_clock():
    assert hangs_at(lambda now: 16.0 * now) == 61


def test_what_stands_still_hangs():
    """It loads for 30 s; then it only looks for its parent."""
    assert hangs_at(lambda now: min(now, 30) + now / 1e5) == 91


def test_nothing_is_waited_for_without_end():
    assert hangs_at(lambda now: now / 100) == 60 * LONGEST + 1


def test_where_nobody_tells_what_is_computed_the_clock_decides():
    assert hangs_at(lambda _: None) == 61


@started_or_forked
@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_an_error_of_python_is_no_fault_of_a_driver(module, error, lasting):
    module("failing", FAILING)
    with TrialProcess("failing", {"error": error}, 60.0, lasting=lasting) as process:
        assert list(process.answers()) == [{"there": True}]
    assert process.is_transient
    assert process.fault == f"it could not be tried ({error}: no plugin)"


@pytest.mark.parametrize(
    ("lacks", "fault", "advice"),
    [
        ("memory", "it could not be tried (MemoryError: std::bad_alloc)", ""),
        (
            "threads",
            "the process that tried it ended by SIGABRT (Resource temporarily unavailable)",
            "let the process have more, by RLIMIT_NPROC",
        ),
    ],
)
def test_what_the_system_refuses_is_no_fault_of_a_driver(module, lacks, fault, advice):
    module("refused", REFUSED)
    with TrialProcess("refused", {"lacks": lacks}, 600.0) as process:
        assert not list(process.answers())
    assert process.is_transient
    assert process.fault == fault
    assert process.advice.startswith(advice)


def test_where_memory_is_limited_what_stands_still_is_told_of_and_ended_soon(
    module, monkeypatch, caplog
):
    module("standing", "import time\n\ndef main(request, answer):\n    time.sleep(3600)\n")
    for where in (memory_limits, trial_process):
        monkeypatch.setattr(where, "memory_limits", lambda: {"address space": 800 << 20})
    monkeypatch.setattr(trial_process, "TELLS_SECONDS", 0.2)
    with TrialProcess("standing", {}, 4.0, doing="the trial of 'x.icd'") as process:
        assert not list(process.answers())
    assert process.hangs
    assert process.fault == "it said nothing for 1 s"
    assert process.advice.startswith("this process may have 800 MiB of address space: let it")
    assert (
        "Waiting for the trial of 'x.icd', which makes no progress; giving up after 1 s. This "
        "process may have 800 MiB of address space" in caplog.text
    )


def test_nothing_is_told_of_what_computes_in_silence(module, monkeypatch, caplog):
    """A process is looked at each 0.05 s, and has computed something each time."""
    module("busy", "import time\n\ndef main(request, answer):\n    time.sleep(0.5)\n")
    computed = itertools.count(0.0, 0.002)
    monkeypatch.setattr(trial_process, "group_seconds", lambda _: next(computed))
    monkeypatch.setattr(trial_process, "TELLS_SECONDS", 0.06)
    with TrialProcess("busy", {}, 1.0) as process:
        assert not list(process.answers())
    assert not process.hangs
    assert not caplog.text


@started_or_forked
def test_a_driver_may_end_the_process_with_a_code(module, lasting):
    module("failing", FAILING)
    with TrialProcess("failing", {"error": "exits"}, 60.0, lasting=lasting) as process:
        assert list(process.answers()) == [{"there": True}]
    assert not process.is_transient
    assert process.fault == "the process that tried it ended by exit code 3"


@started_or_forked
def test_what_cannot_be_imported_is_no_fault_of_a_driver(lasting):
    with TrialProcess("no_such_module", {}, 60.0, lasting=lasting) as process:
        assert not list(process.answers())
    assert process.is_transient
    assert "ModuleNotFoundError: No module named 'no_such_module'" in process.fault


ECHOING = """
import os

ready = []

def get_ready():
    ready.append(os.getpid())

def main(request, answer):
    told = {"pid": os.getpid(), "parent": os.getppid(), "mark": os.environ.get("MARK")}
    answer({**told, "ready": ready})
"""


def told(process):
    """What the process answers next."""
    return next(process.answers())


@pytest.mark.skipif(not fork_server.POSSIBLE, reason="processes are forked on Linux")
def test_lasting_processes_are_forks_of_one_that_has_imported_their_module(module):
    module("echoing", ECHOING)
    with (
        TrialProcess("echoing", {}, 60.0, lasting=True) as one,
        TrialProcess("echoing", {}, 60.0, lasting=True) as other,
    ):
        first, second = told(one), told(other)
        assert first["parent"] == second["parent"] != os.getpid()
        assert first["ready"] == second["ready"] == [first["parent"]]
        assert (first["pid"], second["pid"]) == (one.process.pid, other.process.pid)
        one.ask({})
        assert told(one) == first


@pytest.mark.skipif(not fork_server.POSSIBLE, reason="processes are forked on Linux")
def test_a_fork_finds_the_environment_as_it_is_now(module, monkeypatch):
    module("echoing", ECHOING)
    with TrialProcess("echoing", {}, 60.0, lasting=True) as earlier:
        assert told(earlier)["mark"] is None
        monkeypatch.setenv("MARK", "set since")
        with TrialProcess("echoing", {}, 60.0, lasting=True) as later:
            assert told(later)["mark"] == "set since"
        earlier.ask({})  # what was forked before goes on
        assert told(earlier)["mark"] is None


@pytest.mark.skipif(not fork_server.POSSIBLE, reason="processes are forked on Linux")
def test_if_the_server_is_killed_another_one_forks_and_no_driver_is_blamed(module):
    module("echoing", ECHOING)
    with TrialProcess("echoing", {}, 60.0, lasting=True) as orphan:
        os.kill(told(orphan)["parent"], signal.SIGKILL)
        with TrialProcess("echoing", {}, 60.0, lasting=True) as other:
            assert told(other)["pid"] == other.process.pid
        assert not list(orphan.answers())
    assert orphan.is_transient


@pytest.mark.skipif(not fork_server.POSSIBLE, reason="processes are forked on Linux")
def test_the_server_ends_with_python_which_starts_no_thread_then(module, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    module("echoing", ECHOING)
    with TrialProcess("echoing", {}, 60.0, lasting=True) as process:
        parent = told(process)["parent"]
    monkeypatch.setattr(threading.Thread, "start", refuse)  # as from Python 3.12 on
    fork_server.end()
    assert not Path(f"/proc/{parent}").exists()  # it has ended, and was waited for


@pytest.mark.skipif(not fork_server.POSSIBLE, reason="processes are forked on Linux")
def test_descriptors_may_have_any_number(module):
    import resource

    module("echoing", ECHOING)
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1500 if high < 0 else min(1500, high), high))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (low, high))
        taken = [os.open(os.devnull, os.O_RDONLY)]
        stack.callback(lambda: [os.close(one) for one in taken])
        while taken[-1] < 1100:
            taken.append(os.dup(taken[0]))
        process = stack.enter_context(TrialProcess("echoing", {}, 60.0, lasting=True))
        assert isinstance(process.process, fork_server.Forked)
        assert told(process)["pid"] == process.process.pid
        assert process.process.poll() is None


WITHOUT_MEMORY = """
import threading, types
from partita.errors import DeviceMemoryError
from partita_opencl.drivers import processor_name
from partita_opencl.drivers.program_cache import built_program

turn = threading.Lock()
builds = []

class Program:
    def _build(self, options, devices):
        builds.append(self)
        turn.acquire()  # and it is never released, as PoCL's
        while len(threading.enumerate()) < 3:
            pass
        raise MemoryError("std::bad_alloc")

def build():
    try:
        built_program(Program(), "", device)
    except DeviceMemoryError as error:
        print(f"{error}\\n", end="")  # at once, beside the other thread

platform = types.SimpleNamespace(name=processor_name.POCL)
device = types.SimpleNamespace(name="cpu-x", platform=platform)
threads = [threading.Thread(target=build, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
build()
print(len(builds))
"""


def test_nothing_waits_for_the_compiler_of_pocl_once_it_had_no_memory():
    """Neither what another thread builds then nor what is built later."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, timeout=60
    )
    *told, builds = ended.stdout.splitlines()
    assert ended.stderr == ""
    assert builds == "1"
    assert len(told) == 3
    for line in told:
        assert "The OpenCL driver of 'cpu-x' ran out of memory while it built a program" in line
        assert "more memory (`ulimit -v` shows its limit)" in line
