"""Launches that no family's trial made are made by another process before this one builds them."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from partita.errors import CompileError, UnsupportedOpError
from partita.lowering import lower
from partita.storage import cache_folder
from partita_opencl.device.device import find_device
from partita_opencl.drivers import verdicts
from partita_opencl.properties import Precision
from partita_opencl.trials import (
    failed_operations,
    rehearsal,
    rehearsed_launch,
    standing_processes,
)
from partita_opencl.trials.kernel_trial import Mode

from ..comparison import compiled, core
from .broken_drivers import ABORT, broken_pocl, needs_pocl_of_pypi

REGISTERS = Mode(local_tiles=False, precision=Precision.F32)
SHAPE = (2, 3, 4, 5)
X = np.linspace(-1, 1, 120, dtype=np.float32).reshape(SHAPE)
ROW = np.arange(5, dtype=np.float32)
COLUMN = np.arange(3, dtype=np.float32).reshape(3, 1, 1)
OTHER = np.linspace(0, 1, 3, dtype=np.float32).reshape(3, 1, 1)


def network():
    """A chain that is of eight dimensions if it is fused, a sum of three, and another kernel."""
    nodes = [
        helper.make_node("Add", ["x", "row"], ["r"], "row"),
        helper.make_node("Mul", ["r", "column"], ["c"], "column"),
        helper.make_node("Add", ["x", "other"], ["m"], "sum"),
        helper.make_node("Softmax", ["x"], ["s"], "softmax"),
    ]
    weights = {"row": ROW, "column": COLUMN, "other": OTHER}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, SHAPE)],
        [helper.make_empty_tensor_value_info(name) for name in "cms"],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def wanted():
    powers = np.exp(X.astype(np.float64))
    return {"c": (X + ROW) * COLUMN, "m": X + OTHER, "s": powers / powers.sum(-1, keepdims=True)}


PROGRAM = """
import json, sys
import numpy as np
import partita
from partita_opencl.trials import standing_processes

if sys.argv[2:]:  # what was tried must not be tried again
    standing_processes.TrialProcess = None
compiled = partita.Core().compile_model(sys.argv[1], "HETERO:OPENCL,CPU")
x = np.linspace(-1, 1, 120, dtype="f4").reshape(2, 3, 4, 5)
results = compiled({"x": x})
ops = compiled.explain().ops
print(json.dumps({
    "devices": {op.name: op.device for op in ops},
    "reasons": {op.name: {d: str(r) for d, r in op.refused.items()} for op in ops},
    "results": {name: np.array(results[name]).tolist() for name in "cms"},
}))
"""


@pytest.fixture
def run_with(tmp_path):
    """Runs the network in a process whose only driver is PoCL with lines before every kernel."""
    import onnx

    def run(header, *more):
        folder = tmp_path / "driver"
        if not folder.exists():
            folder.mkdir()
            broken_pocl(folder, header)
            onnx.save(network(), tmp_path / "model.onnx")
        environment = {
            **os.environ,
            "OCL_ICD_VENDORS": str(folder / "broken.icd"),
            "OCL_ICD_FILENAMES": "",
            "PARTITA_CACHE_DIR": str(tmp_path / "cache"),
            "POCL_CACHE_DIR": str(tmp_path / "pocl"),
        }
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "model.onnx"), *more],
            env=environment,
            capture_output=True,
            text=True,
            timeout=420,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        for name, array in wanted().items():
            np.testing.assert_allclose(found["results"][name], array, rtol=1e-4, atol=1e-5)
        return found

    return run


@pytest.mark.timeout(900)  # a dozen processes, some of which end early
@needs_pocl_of_pypi
def test_a_kernel_that_no_family_has_costs_its_operation_alone(run_with):
    """The families are tried by chains of other numbers of dimensions."""
    header = f"#if DIMS == 3\n{ABORT}\n#endif"
    found = run_with(header)
    here = "OPENCL"
    assert found["devices"] == {"row": here, "column": here, "sum": "CPU", "softmax": here}
    reason = found["reasons"]["sum"][here]
    assert reason.startswith("DRIVER_FAULT: the process that tried it ended by SIGABRT (LLVM ERROR")
    assert run_with(header, "again") == found  # by the verdicts on disk


@pytest.mark.timeout(900)
@needs_pocl_of_pypi
def test_another_form_of_such_a_kernel_is_used(run_with):
    found = run_with(f"#if DIMS == 3 && !defined(PLAIN)\n{ABORT}\n#endif")
    assert set(found["devices"].values()) == {"OPENCL"}


class Scripted:
    """A process that tells what a test says of each kernel, or dies at it."""

    def __init__(self, module, request, seconds, *, lasting, doing):
        assert module == standing_processes.WORKER
        assert lasting
        self.fault, self.advice, self.is_transient = "", "", False
        self.request = None
        self.own = []
        self.asked.append(self.own)

    def ask(self, request, doing=""):
        self.request = request or None
        if request:
            self.own.append([launch["kernel"] for launch in request["launches"]])

    def answers(self):
        if self.request is None:
            yield {"ready": True}
            return
        whats = [self.script(launch) for launch in self.request["launches"]]
        if self.request["side_by_side"] and any(what != "lasts" for what in whats if what):
            if "dies" not in whats:
                yield {"again": True}
            return
        for launch, what in zip(self.request["launches"], whats, strict=True):
            if what == "lasts" and not launch.get("to_its_end"):
                yield {"unfinished": True}
                return
            if what == "dies":
                self.fault = "the process that tried it ended by SIGSEGV"
                return
            yield {"fault": what.removeprefix("lasts"), "lasts": True}

    def close(self):
        self.asked.append("closed")


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """Lets a function say what fails at a launch; returns what processes were asked for."""

    def make(script):
        rehearsal.forget()
        standing_processes.end_all()
        monkeypatch.setenv(cache_folder.CACHE_VARIABLE, str(tmp_path / "cache"))
        monkeypatch.setattr(Scripted, "asked", [], raising=False)
        monkeypatch.setattr(Scripted, "script", staticmethod(script), raising=False)
        monkeypatch.setattr(standing_processes, "TrialProcess", Scripted)
        return Scripted.asked

    yield make
    rehearsal.forget()
    standing_processes.end_all()


def steps():
    """Three launches of the network."""
    plan = next(iter(compiled(network()).device_model.plans.values()))
    assert len(plan.steps) == 3
    return plan.steps


@pytest.fixture
def alone(monkeypatch):
    """The device, as a processor's, all of whose launches one process makes."""
    device = find_device("")
    monkeypatch.setattr(device, "limits", replace(device.limits, is_cpu=True))
    return device


def test_launches_that_pass_are_made_once(scripted, alone):
    launches, device = steps(), alone
    asked = scripted(lambda _: "")
    rehearsal.require(device, launches)
    rehearsal.require(device, launches)
    rehearsal.forget()  # the next time, verdicts come from disk
    rehearsal.require(device, launches)
    assert [[len(request) for request in each] for each in asked] == [[3]]


def test_launches_are_made_beside_what_the_host_does_where_the_device_has_room(scripted, alone):
    launches, device = steps(), alone
    begun = threading.Event()
    asked = scripted(lambda _: "" if begun.wait(60) else "the block has not begun")
    with rehearsal.beside(device, launches, lambda: 0):
        begun.set()
    assert [[len(request) for request in each] for each in asked] == [[3]]


def test_launches_are_made_before_what_would_fill_the_device(scripted, alone):
    launches, device = steps(), alone
    asked = scripted(lambda _: "")
    with rehearsal.beside(device, launches, lambda: device.limits.memory_bytes):
        assert [[len(request) for request in each] for each in asked] == [[3]]


def test_launches_that_were_made_ask_for_no_room(scripted, alone):
    launches, device = steps(), alone
    asked = scripted(lambda _: "")
    rehearsal.require(device, launches)
    with rehearsal.beside(device, launches, lambda: pytest.fail("asked what they take")):
        assert [[len(request) for request in each] for each in asked] == [[3]]


@pytest.mark.parametrize("nbytes", [0, 1 << 60])
def test_launches_that_fail_beside_something_are_told(scripted, alone, nbytes):
    launches, device = steps(), alone
    scripted(lambda _: "dies")
    with (
        pytest.raises(rehearsal.LaunchError, match="SIGSEGV"),
        rehearsal.beside(device, launches, lambda: nbytes),
    ):
        pass


def test_what_fails_beside_launches_is_told(scripted, alone):
    launches, device = steps(), alone
    scripted(lambda _: "")
    with pytest.raises(ValueError, match="no room"), rehearsal.beside(device, launches, lambda: 0):
        raise ValueError("no room")


@pytest.mark.parametrize("failing", [None, 0, 1, 2])
def test_processes_share_the_launches_of_a_graphics_card(scripted, monkeypatch, failing):
    launches, device = steps(), find_device("")
    told = [rehearsed_launch.to_json(launch) for launch in launches]
    assert len({json.dumps(launch["program"]) for launch in told}) == 3
    monkeypatch.setattr(device, "limits", replace(device.limits, is_cpu=False))
    monkeypatch.setattr(standing_processes, "best_count", lambda *_: 2)
    asked = scripted(lambda launch: "wrong" if told.index(launch) == failing else "")
    if failing is None:
        rehearsal.require(device, launches)
        assert [len(request) for each in asked for request in each] == [1, 1, 1]
        assert len(asked) <= 2
        return
    with pytest.raises(rehearsal.LaunchError, match="wrong") as caught:
        rehearsal.require(device, launches)
    op = launches[failing].op
    assert set(caught.value.reasons) == {op.name, *op.origins}


@pytest.mark.parametrize("how", ["dies", "wrong options"])
def test_what_fails_side_by_side_is_found_one_by_one(scripted, alone, how):
    launches, device = steps(), alone
    bad = (
        rehearsed_launch.to_json(launches[1])["kernel"],
        rehearsed_launch.to_json(launches[1])["args"],
    )
    asked = scripted(lambda launch: how if (launch["kernel"], launch["args"]) == bad else "")
    with pytest.raises(rehearsal.LaunchError, match=r"SIGSEGV|wrong options") as caught:
        rehearsal.require(device, launches)
    op = launches[1].op
    assert set(caught.value.reasons) == {op.name, *op.origins}
    processes = [a for a in asked if a != "closed"]
    # All at once, one by one until it fails, and what was left: each by a process of its own.
    assert [[len(request) for request in each] for each in processes] == [[3], [3], [1]]


@pytest.mark.parametrize("long", [0, 1, 2])
def test_a_launch_that_runs_for_long_is_made_with_few_groups(scripted, alone, long):
    launches, device = steps(), alone
    told = [rehearsed_launch.to_json(launch) for launch in launches]
    made = []

    def script(launch):
        made.append(launch["sizes"])
        return "lasts" if launch["args"] == told[long]["args"] else ""

    asked = scripted(script)
    rehearsal.require(device, launches)
    closed = asked.index("closed")
    assert closed == 1  # it computes still
    assert [len(one) for one in asked[2]] == [3 - long]
    assert made[3] == rehearsed_launch.cut(told[long])["sizes"]


def test_a_launch_that_never_ends_fails(scripted, alone):
    launches, device = steps(), alone

    def script(launch):
        return "dies" if launch.get("to_its_end") else "lasts"

    asked = scripted(script)
    with pytest.raises(rehearsal.LaunchError, match="SIGSEGV"):
        rehearsal.require(device, launches)
    assert sum(one != "closed" for one in asked) == 2 * len(launches)


def test_few_groups_are_one_where_a_kernel_does_not_ask_how_many_there_are():
    chain = rehearsed_launch.to_json(steps()[0])
    chain["sizes"] = (512, 6, 4), (64, 2, 1)  # it goes on by as many rows and planes
    assert rehearsed_launch.cut(chain)["sizes"] == [[64, 6, 4], (64, 2, 1)]
    softmax = next(t for t in map(rehearsed_launch.to_json, steps()) if "softmax" in t["kernel"])
    softmax["sizes"] = (512, 6, 4), (64, 2, 1)
    assert rehearsed_launch.cut(softmax)["sizes"] == [[64, 2, 1], (64, 2, 1)]


def pool(side, taps):
    node = helper.make_node("AveragePool", ["x"], ["y"], "pool", kernel_shape=[taps, taps])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, (1, 1, side, side))],
        [helper.make_empty_tensor_value_info("y")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_a_model_that_runs_for_minutes_is_compiled_without_running_for_them(monkeypatch):
    compiled(pool(4, 2))  # lets the family be tried
    monkeypatch.setattr(rehearsal.verdicts, "read", lambda *_: None)
    monkeypatch.setattr(rehearsal.verdicts, "write", lambda *args: args[-1])
    rehearsal.forget()
    compiled(pool(6000, 1000))


def test_an_interrupt_ends_a_compile_and_what_it_began(monkeypatch):
    """The interrupt comes while another process makes a launch of minutes."""
    compiled(pool(4, 2))  # lets the family be tried
    monkeypatch.setattr(rehearsal.verdicts, "read", lambda *_: None)
    rehearsal.forget()
    standing_processes.end_all()
    before = {*threading.enumerate()}
    lent = []
    lend = standing_processes.lend

    def lend_and_interrupt(device):
        lent.append(lend(device))
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        return lent[-1]

    monkeypatch.setattr(standing_processes, "lend", lend_and_interrupt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled(pool(6000, 1000))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [process.process.wait() for process in lent] == [-signal.SIGKILL]
    for thread in {*threading.enumerate()} - before:
        thread.join(60)
        assert not thread.is_alive()
    monkeypatch.setattr(standing_processes, "lend", lend)
    monkeypatch.setattr(rehearsal.verdicts, "write", lambda *args: args[-1])
    assert compiled(pool(4, 2))({"x": np.ones((1, 1, 4, 4), np.float32)})["y"].shape == (1, 1, 3, 3)


def test_what_ends_a_process_by_chance_is_not_kept(scripted, monkeypatch):
    launches, device = steps(), find_device("")
    scripted(lambda _: "dies")
    monkeypatch.setattr(rehearsal.verdicts, "write", None)  # nothing may be kept

    def dies(self):
        yield from () if self.request else ({"ready": True},)
        self.is_transient, self.fault = True, "it ended by SIGKILL"

    monkeypatch.setattr(Scripted, "answers", dies)
    with pytest.raises(rehearsal.LaunchError, match="ended by SIGKILL"):
        rehearsal.require(device, launches)


def test_without_a_process_nothing_is_used_and_nothing_kept(scripted, monkeypatch):
    launches, device = steps(), find_device("")
    scripted(lambda _: "")

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(standing_processes, "TrialProcess", refuse)
    with pytest.raises(CompileError, match=r"no process can be started to try it \(no more"):
        rehearsal.require(device, launches)
    assert not list(cache_folder.cache_folder(verdicts.KIND).iterdir())


def test_an_operation_that_fails_in_every_form_is_refused_by_name(scripted):
    compiled(network())  # lets the families be tried
    asked = scripted(lambda launch: "" if "softmax" in launch["kernel"] else "wrong")
    with pytest.raises(UnsupportedOpError, match=r"'sum'.*DRIVER_FAULT: wrong") as caught:
        compiled(network())
    assert set(caught.value.reasons) == {"row", "column", "sum"}
    tried = {kernel for each in asked if each != "closed" for request in each for kernel in request}
    assert len(tried) > 1


def refused(model):
    """The reasons of the operations that a query refuses."""
    answer = core().query_model(core().read_model(model), "OPENCL")
    return {name: str(reason) for name, reason in answer.reasons.items()}


def test_what_compiling_failed_at_the_next_query_says(scripted):
    compiled(network())  # lets the families be tried
    scripted(lambda launch: "wrong" if "softmax" in launch["kernel"] else "")
    assert not refused(network())
    with pytest.raises(UnsupportedOpError):
        compiled(network())
    rehearsal.forget()
    assert refused(network()) == {"softmax": "DRIVER_FAULT: wrong"}
    asked = scripted(None)
    with pytest.raises(UnsupportedOpError, match=r"'softmax'.*DRIVER_FAULT: wrong"):
        compiled(network())
    assert not asked  # it is known
    graph, halves = lower(core().read_model(network())), replace(REGISTERS, precision=Precision.F16)
    assert not failed_operations.known_failures(find_device(""), halves, graph)  # other kernels
    other = network()
    other.graph.node[3].attribute.append(helper.make_attribute("axis", 1))
    assert not refused(other)


def test_nothing_is_kept_of_what_fails_by_chance_or_has_open_shapes(scripted, monkeypatch):
    compiled(network())
    scripted(lambda launch: "wrong" if "softmax" in launch["kernel"] else "")
    with monkeypatch.context() as patch, pytest.raises(UnsupportedOpError):
        patch.setattr(rehearsal.verdicts, "write", lambda *args: args[-1])
        compiled(network())
    scripted(None)
    assert not refused(network())
    model = network()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    graph = lower(core().read_model(model))
    device = find_device("")
    failure = rehearsal.Failure(frozenset({"softmax"}), "wrong", lasts=True)
    failed_operations.keep_failures(device, REGISTERS, graph, [failure])
    assert not failed_operations.known_failures(device, REGISTERS, graph)


def test_failures_that_are_kept_are_bounded(scripted, monkeypatch):
    scripted(None)
    monkeypatch.setattr(failed_operations, "MOST", 2)
    device = find_device("")
    graph = lower(core().read_model(network()))
    for name in ("row", "column", "sum"):
        failure = rehearsal.Failure(frozenset({name}), f"fails at {name}", lasts=True)
        failed_operations.keep_failures(device, REGISTERS, graph, [failure])
    found = failed_operations.known_failures(device, REGISTERS, graph)
    assert found == {"column": "fails at column", "sum": "fails at sum"}


def test_a_chain_that_fails_is_computed_by_a_kernel_per_operation(scripted):
    steps()  # tries the families of kernels, by processes that are no scripts
    scripted(lambda launch: "wrong" if "t1 = " in launch["program"]["generated"] else "")
    built = compiled(network())
    assert not built.device_model.fuse_chains
    results = built({"x": X})
    for name, array in wanted().items():
        np.testing.assert_allclose(results[name], array, rtol=1e-5, atol=1e-6)


def test_a_process_rehearses_the_next_model_too_and_tries_families(scripted):
    launches, device = steps(), find_device("")
    asked = scripted(lambda _: "")
    for launch in launches:
        rehearsal.require(device, [launch])
    assert [len(each) for each in asked] == [3]
    process = standing_processes.lend(device)
    assert process.own is asked[0]


def test_a_fault_of_the_driver_is_told_and_not_that_memory_is_short(monkeypatch):
    device = find_device("")
    launch = rehearsed_launch.to_json(steps()[0])
    assert rehearsed_launch.make_launch(device, launch) == {"fault": "", "lasts": True}
    missing = {**launch, "kernel": "no_such_kernel"}
    assert "INVALID_KERNEL_NAME" in rehearsed_launch.make_launch(device, missing)["fault"]
    large = {**launch, "buffers": [{"bytes": 1 << 60}] * len(launch["buffers"])}
    assert rehearsed_launch.make_launch(device, large) == {"fault": "", "lasts": False}


def test_a_model_runs_after_its_launches_were_made():
    model = core().read_model(network())
    results = core().compile_model(model, "OPENCL")({"x": X})
    for name, array in wanted().items():
        np.testing.assert_allclose(results[name], array, rtol=1e-5, atol=1e-6)
