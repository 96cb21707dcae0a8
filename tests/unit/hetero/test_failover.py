"""What requests share, apart from compiling: devices that get their operations back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from models import add_sub

import partita
from partita.contract.query import Reason, ReasonCode
from partita.errors import CompileError
from partita_hetero.properties import HeteroProperties
from partita_hetero.runtime.failover import Failover, Remedy

FAILED = Reason(ReasonCode.RUN_FAILED, "fell over")


class Assembling:
    """In place of a compilation: its assemblies are what was excluded, with notes.

    Attributes:
        before: Called once, before the next assembly is made.
    """

    def __init__(self):
        core = partita.Core()
        self.model = core.read_model(add_sub())
        self.devices = SimpleNamespace(
            core=SimpleNamespace(resolve_device=str.upper), names=["A", "B"]
        )
        self.before = lambda: None
        self.forgotten = []

    def assemble(self, excluded, notes=()):
        before, self.before = self.before, lambda: None
        before()
        return SimpleNamespace(excluded=dict(excluded), explanation=SimpleNamespace(notes=notes))

    def forget(self, device):
        self.forgotten.append(device)


@pytest.fixture
def compilation():
    return Assembling()


@pytest.fixture
def failover(compilation):
    return Failover(compilation, None, HeteroProperties())


def lose(failover, op, device):
    """Has a device lose an operation, beside those that are lost already."""
    start = failover.assembly
    excluded = {**start.excluded, (op, device): FAILED}
    notes = [*start.explanation.notes, f"{device} fell over"]
    after = failover.compilation.assemble(excluded, notes)
    assert failover.adopt(Remedy(start, after, excluded, [device]))


def test_what_others_lose_meanwhile_stays_lost(failover, compilation):
    lose(failover, 0, "A")
    compilation.before = lambda: lose(failover, 1, "B")
    failover.enable_device("a")
    assert failover.assembly.excluded == {(1, "B"): FAILED}
    assert failover.assembly.explanation.notes == ["B fell over"]
    assert failover.failures == {"B": 1}


def test_a_device_that_cannot_compile_again_changes_nothing(failover, compilation):
    def fail():
        raise CompileError("out of order")

    lose(failover, 0, "A")
    before = failover.assembly
    compilation.before = fail
    with pytest.raises(CompileError, match="out of order"):
        failover.enable_device("A")
    assert failover.assembly is before
    assert failover.failures == {"A": 1}
    lose(failover, 1, "B")
    failover.enable_device("B")
    assert failover.assembly.excluded == {(0, "A"): FAILED}
