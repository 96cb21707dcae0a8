"""Fixtures for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

import partita

# Examples compile kernels, and other processes may want the processor: no example has a deadline.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_FIRST_STATES = {}


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
