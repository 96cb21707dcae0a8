"""What tests of requests beside the calling thread share."""

from __future__ import annotations

import threading

import pytest
from models import neg
from toy_device import ToyDevice, core_with


@pytest.fixture
def gate():
    """Closed until it is set; opened at the end so that no thread is left waiting."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def gated(gate):
    """A plugin whose runs wait at the gate, and a compiled model on it."""
    plugin = ToyDevice(gate=gate)
    return plugin, core_with(plugin).compile_model(neg(), "TOY")
