"""Threads that stay where they are put, and what a terminal shows while kernels are compiled."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import partita
import partita_cpu.runtime.kernel_loading as entry
from partita.errors import PropertyError
from partita.lowering import Step
from partita_cpu.nhwc.window import slide
from partita_cpu.properties import MOST_THREADS, CpuProperties
from partita_cpu.system import portable
from partita_cpu.threads import step_team
from partita_cpu.threads.step_team import team_of

PINNED = """
    import os, pathlib, sys
    import numpy as np
    from onnx import TensorProto, helper
    import partita

    shape = [1, 64, 64, 64]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    node = helper.make_node(sys.argv[1], ["x"], ["y"])
    model = helper.make_model(
        helper.make_graph([node], "g", ports[:1], ports[1:]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )
    core = partita.Core()
    before = os.sched_getaffinity(0)
    config = {"ENABLE_CPU_PINNING": True, "INFERENCE_NUM_THREADS": 3}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", config)
    compiled({"x": np.ones(shape, np.float32)})
    found = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        allowed = os.sched_getaffinity(int(task.name))
        if allowed != before:
            found.append(sorted(allowed))
    assert os.sched_getaffinity(0) == before  # the caller's thread is the caller's
    print(sorted(found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's /proc")
@pytest.mark.parametrize("level", ["portable", ""])
def test_pinned_threads(level):
    there = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "PARTITA_CPU_ISA": level}
    command = [sys.executable, "-c", textwrap.dedent(PINNED), "Relu"]
    found = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
    wanted = sorted([there[tid % len(there)]] for tid in (1, 2))
    if len(there) == 1:
        wanted = []
    assert found.strip() == str(wanted)


def test_who_asks_for_a_team_at_once_gets_the_same(monkeypatch):
    met = threading.Barrier(2)

    class Slow(step_team.Team):
        def __init__(self, *args):
            super().__init__(*args)
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait(0.2)  # for one that is made meanwhile

    monkeypatch.setattr(step_team, "Team", Slow)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: team_of(2, 96), range(2))
    assert one is other


def test_a_system_that_cannot_pin(monkeypatch):
    monkeypatch.setattr(step_team, "this_system", lambda: portable)
    with pytest.raises(
        PropertyError, match=r"ENABLE_CPU_PINNING is set, and .* cannot pin threads"
    ):
        team_of(2, 97, pinned=True)


def test_more_threads_than_a_pool_has_room_for():
    core = partita.Core()
    with pytest.raises(PropertyError, match=r"INFERENCE_NUM_THREADS.*less than or equal to 4095"):
        core.set_property("CPU", {"INFERENCE_NUM_THREADS": 4096})


@given(threads=st.integers(1, MOST_THREADS), streams=st.integers(0, MOST_THREADS))
@pytest.mark.parametrize("hint", ["LATENCY", "THROUGHPUT"])
def test_streams_share_the_threads(hint, threads, streams):
    properties = CpuProperties(
        INFERENCE_NUM_THREADS=threads, NUM_STREAMS=streams, PERFORMANCE_HINT=hint
    )
    each = threads // properties.streams
    assert each >= 1
    assert each * properties.streams <= threads
    assert not streams or properties.streams == min(streams, threads)


class Program:
    def __init__(self, count):
        self.steps = [Step(slide, (0,) * number, None, shares=True) for number in range(count)]


@pytest.mark.parametrize("patience", [-1.0, 60.0])
def test_a_bar_while_kernels_are_compiled(monkeypatch, capsys, patience):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(entry, "PATIENCE_S", patience)
    made = []
    monkeypatch.setattr(entry, "entry_of", lambda fn, args: made.append(args))
    monkeypatch.setattr(entry, "callable_of", lambda fn, args: made.append(args))
    program = Program(3)
    entry.load_kernels(program)
    assert made == [step.args for step in program.steps]
    assert (entry.DESCRIPTION in capsys.readouterr().err) == (patience < 0)
