"""Fixtures for tests of the OPENCL devices."""

import pytest

from partita_opencl.device.device import find_device


@pytest.fixture
def apart(monkeypatch):
    """Makes the first device one with a memory of its own, as GPUs are, whatever it is here."""
    monkeypatch.setitem(vars(find_device("")), "shares_host", False)
