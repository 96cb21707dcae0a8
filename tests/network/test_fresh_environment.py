"""Third parties' plugins, pip-installed beside Partita into a fresh environment elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sampling import THOROUGH

from partita_conformance.bench.checks import names_of
from partita_conformance.runs.collect import Selection, collect

pytestmark = pytest.mark.timeout(900)  # each waits for the environment, or for the kit

ROOT = Path(__file__).parents[2]
EXAMPLES = {"ORT": "partita-onnxruntime", "OV": "partita-openvino"}
SOME = ["plugin/*", "properties/*", "request/*", "async/*", "threads/*", "memory/*", "faults/*"]
SOME += ["random/*/0", "hetero/network/*/1"]
# But "p" and "w": what asks for a thousand operators. OpenVINO takes half a second for some.
FORM = ["query/[!pw]*", "compiled/[!hm]*", "blob/[!bn]*"]
CHECKS = {  # ORT and the template are judged by more in tests/device/conformance
    "OV": [*SOME, *FORM],
    "FRESH": [*SOME, *FORM, "*/Add*", "*/Relu*"],
    "ORT": ["plugin/*", "request/*", "random/*/0"],
}
EVERY = {} if THOROUGH else {"OV": 3}
"""Of a device's checks a gate makes the first of so many each: OpenVINO takes long to compile."""


def checks_of(device):
    """Names of the checks that a device is asked."""
    return names_of(collect(Selection(tuple(CHECKS[device]))))[:: EVERY.get(device, 1)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fresh")


@pytest.fixture(scope="module")
def run(scratch):
    """Runs a command of the fresh environment, far from this repository, and returns its output."""
    venv.create(scratch / "venv", with_pip=True)
    commands = scratch / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    ours = ("PYTHON", "POCL_EXTRA_BUILD_FLAGS")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(ours)}

    def call(name, *arguments, cwd=scratch):
        done = subprocess.run(
            [str(commands / name), *map(str, arguments)],
            cwd=cwd,
            env=plain,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name} {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    call("pip", "install", "-q", f"{ROOT}[conformance,opencl]")
    call("partita", "new-plugin", "fresh", "--into", scratch)
    folders = [scratch / "partita-fresh", *(ROOT / "examples" / name for name in EXAMPLES.values())]
    call("pip", "install", "-q", *folders)
    return call


@pytest.fixture(scope="module")
def reports(run):
    """What the kit says of each device, once it is through with it; it tests two at a time."""

    def report(device, *options):
        return json.loads(run("partita", "conformance", "-d", device, "--json", *options))

    with ThreadPoolExecutor(2) as pool:
        started = {}
        for device in CHECKS:
            options = [part for name in checks_of(device) for part in ("--check", name)]
            if device in EXAMPLES:
                path = ROOT / "examples" / EXAMPLES[device] / "expectations.toml"
                options += ["--expectations", path]
            started[device] = pool.submit(report, device, *options)
        yield started


def test_devices_are_there_once_installed(run):
    devices = json.loads(run("partita", "devices", "--json"))["devices"]
    assert {"FRESH", "ORT", "OV", "CPU", "OPENCL.0", "REFERENCE", "HETERO"} <= set(devices)


def test_a_new_plugin_passes_its_own_tests(run, scratch):
    assert " passed" in run("python", "-m", "pytest", "-q", cwd=scratch / "partita-fresh")


def test_a_new_plugin_passes_the_kit(reports):
    report = reports["FRESH"].result()
    assert set(report["counts"]) <= {"passed", "declined", "skipped"}
    assert report["counts"]["passed"] > 100


@pytest.mark.parametrize("device", EXAMPLES)
def test_example_conforms(reports, device):
    counts = reports[device].result()["counts"]
    assert sum(counts.values()) == len(checks_of(device)) > 100
    assert counts["passed"] > 0.75 * len(checks_of(device))
    for code in (ROOT / "examples" / EXAMPLES[device]).glob("*.py"):
        assert len(code.read_text().splitlines()) <= 100


def test_examples_mix_with_other_devices(run, scratch):
    script = scratch / "mix.py"
    script.write_text(
        "import numpy as np, partita\n"
        "from partita_conformance.inputs.models import networks\n"
        "core = partita.Core()\n"
        "for sample in networks():\n"
        "    model = core.read_model(sample.proto)\n"
        "    for i, op in enumerate(model.ops):\n"
        "        op.affinity = ('ORT', 'OV', 'OPENCL', 'CPU')[i % 4]\n"
        "    mixed = core.compile_model(model, 'HETERO:ORT,OV,OPENCL,CPU')\n"
        "    alone = core.compile_model(sample.proto, 'REFERENCE')(sample.feeds())\n"
        "    for have, want in zip(mixed(sample.feeds()).to_tuple(), alone.to_tuple()):\n"
        "        np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4)\n"
        "    print(sample.name, *sorted({place.device for place in mixed.explain().ops}))\n"
    )
    mixes = [line.split() for line in run("python", script).splitlines()]
    assert len(mixes) == 6
    assert all({"CPU", "OPENCL", "ORT", "OV"} <= set(mix) for mix in mixes)
