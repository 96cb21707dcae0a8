"""Fixtures for all tests."""

from __future__ import annotations

import gc
import itertools
import os
import platform
import signal
import time
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest
from sampling import is_sampled, load_profile

import partita
from partita.errors import DeviceUnavailableError
from partita.frontends.onnx.lazy_onnx_ir import import_onnx_ir

try:
    import fcntl
except ImportError:  # of Windows
    fcntl = None

# Kernels are many here and small: PoCL takes four times as long to optimize them. As users have it,
# it compiles for the demo and in fresh environments; set to a space, here too.
os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
load_profile()
import_onnx_ir()  # before a test does, which would bring sympy: a third of what is compiled here

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or what tests start is born deaf

_FIRST_STATES = {}


def pytest_report_header():
    """What the tests run on: a result holds for this processor, level and these drivers."""
    core = partita.Core()
    infos = [core.device_info(device) for device in core.available_devices]
    lines = [f"on: {platform.system()} {platform.machine()}, Python {platform.python_version()}"]
    for info in infos:
        details = "; ".join(f"{name}: {value}" for name, value in info.details.items())
        facts = ", ".join(part for part in (info.full_name, info.driver, details) if part)
        lines.append(f"device {info.device}: {facts}")
    return lines + [f"no {name}: {why}" for name, why in core.unavailable_devices.items()]


def pytest_collection_modifyitems(config, items):
    """Leaves out combinations of parameters that only thorough runs go through."""
    left_out = [item for item in items if not is_sampled(item)]
    if left_out:
        items[:] = [item for item in items if is_sampled(item)]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collects without searches for garbage, and takes the tests out of what later ones go through.

    Of the workers of a run one collects at a time: the next ones find compiled what it compiled.
    """
    gc.disable()
    try:
        with _alone() if hasattr(session.config, "workerinput") else nullcontext():
            return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@contextmanager
def _alone():
    """Waits for other processes that collect these tests, where the system has such locks."""
    with Path(__file__).open(encoding="utf-8") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)  # ends with the file, or with the process
        yield


def skipping_without_opencl():
    """Skips what needs an OpenCL device, if none is there and PyPI has no driver for the system."""
    try:
        return (yield)
    except DeviceUnavailableError as error:
        if "There is no OpenCL device" in str(error) and not find_spec("pocl_binary_distribution"):
            pytest.skip(str(error))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    """Looks at fixtures."""
    return (yield from skipping_without_opencl())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Looks at the test itself."""
    return (yield from skipping_without_opencl())


@pytest.fixture(autouse=True)
def own_numbers(request):
    """Lets a test draw the same numbers from its module's `RNG`, whichever tests ran before."""
    generator = getattr(getattr(request, "module", None), "RNG", None)
    if generator is not None:
        first = _FIRST_STATES.setdefault(request.module.__name__, generator.bit_generator.state)
        generator.bit_generator.state = first


@pytest.fixture
def core():
    """A Core of its own, so that properties set in one test do not reach another."""
    return partita.Core()


@pytest.fixture
def no_costs(tmp_path, monkeypatch):
    """No cost is known yet, and none that is measured will be; compiled kernels stay known."""
    folder = tmp_path / "costs"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr("partita_hetero.cost.database.cache_folder", lambda kind: folder)


@pytest.fixture
def busy_clock(monkeypatch):
    """A machine so busy that three seconds go by whenever somebody looks at the clock."""
    clock = itertools.count(0.0, 3.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
