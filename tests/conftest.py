"""Fixtures for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

import partita

# Examples compile kernels, and other processes may want the processor: no example has a deadline.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture
def core():
    """A Core of its own, so that properties set in one test do not reach another."""
    return partita.Core()
