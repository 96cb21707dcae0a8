"""Processes that fork, start others, or end while something is computed: none hangs or crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import partita

SCRIPT = Path(__file__).parents[1] / "forked.py"
WAYS = [
    "fork",
    "fork while others compute",
    "fork while others compile",
    "exit while others compute",
    "exit while requests run",
    "spawn",
    "forkserver",
]


def run(way, device, level=""):
    return subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), way, device],
        env={**os.environ, "PARTITA_CPU_ISA": level},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("way", WAYS)
def test_cpu(way):
    done = run(way, "CPU")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("way", [*WAYS[:2], WAYS[3]])
def test_portable_kernels_whose_products_are_numpys(way):
    done = run(way, "CPU", "portable")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("way", ["fork", "exit while others compute"])
def test_hetero(way):
    done = run(way, "HETERO:CPU,REFERENCE")
    assert (done.returncode, done.stderr) == (0, "")


FORKED = """
import os, signal, sys, traceback
sys.path.insert(0, sys.argv[1])
import numpy as np
import partita
from forked import ended_well, model, x

core = partita.Core()
compiled = core.compile_model(model(), "OPENCL.0")
request = compiled.create_infer_request()
result = request.infer({"x": x()})[0]

def refuse_all():
    said = []
    for act in (
        lambda: request.infer({"x": x()}),
        lambda: core.compile_model(model(), "OPENCL.0"),
        lambda: partita.Core().device_info("OPENCL.0"),
        lambda: compiled.create_infer_request().infer({"x": x()}),
    ):
        try:
            act()
        except partita.PartitaError as error:
            said.append(f"{type(error).__name__}: {error}")
    why = "forked from one that had used OpenCL"
    assert len(said) == 4 and all(why in text for text in said), said
    there = core.compile_model(model(), "HETERO:OPENCL,CPU")({"x": x()})[0]
    np.testing.assert_allclose(there, result, 1e-3)

child = os.fork()
if not child:
    signal.alarm(300)
    try:
        refuse_all()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # what a driver wants done at the end of a process does not survive a fork either
ended_well(child)
np.testing.assert_array_equal(request.infer({"x": x()})[0], result)
"""


@pytest.mark.skipif(
    not any(name.startswith("OPENCL") for name in partita.Core().available_devices)
    or not hasattr(os, "fork"),
    reason="there is no OpenCL device, or no fork",
)
def test_opencl_says_that_drivers_do_not_survive_a_fork():
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(SCRIPT.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
