"""What this process and those that it has started take is no load of others."""

from __future__ import annotations

import os
import subprocess
import sys

from partita_hetero.cost import clock

BURN = """
import sys, time
while time.process_time() < 0.3:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def test_the_time_of_processes_that_this_one_has_started_is_not_that_of_others(monkeypatch):
    def own():
        """What is taken off, with the time of the processors held still."""
        found = clock.others_seconds()
        assert found is not None
        return -found * len(clock.allowed_processors()) - clock.processor_seconds()

    monkeypatch.setattr(clock, "busy_ticks", lambda *_: 0)
    before = own()
    child = subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"done\n"
        while_it_lives = own()
    ended = own()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert while_it_lives - before >= 0.3 - 2 * tick
    assert ended - before >= 0.3 - 2 * tick
