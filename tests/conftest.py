"""Fixtures for all tests."""

from __future__ import annotations

import platform

import pytest
from hypothesis import HealthCheck, settings

import partita

# Examples compile kernels, and other processes may want the processor: no example has a deadline.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

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
