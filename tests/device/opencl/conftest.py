"""Fixtures for tests of the OPENCL devices."""

from dataclasses import replace
from importlib.util import find_spec

import pytest

import partita
from partita_opencl.device.device import find_device
from partita_opencl.runtime import device_model

HAS_DEVICE = any(name.startswith("OPENCL") for name in partita.Core().available_devices)


@pytest.fixture(autouse=True)
def needs_a_device():
    """Where extra ``opencl`` brings a driver, one is there; other systems may have none."""
    if not HAS_DEVICE and find_spec("pocl_binary_distribution") is None:
        pytest.skip("there is no OpenCL driver, and PyPI has none for this system")


@pytest.fixture
def apart(monkeypatch):
    """Makes the first device one with a memory of its own, as GPUs are, whatever it is here."""
    monkeypatch.setitem(vars(find_device("")), "shares_host", False)


@pytest.fixture
def matrix_units(monkeypatch):
    """Kernels for matrix units, computing without them where the device has none."""
    device = find_device("")
    monkeypatch.setattr(device, "limits", replace(device.limits, matrix_units=True))
    if not device.limits.is_nvidia:
        monkeypatch.setattr(device_model, "objections", lambda _, wanted: dict.fromkeys(wanted, ""))
