"""Memory that requests leave is used for the next ones, where the C library is glibc."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from partita_serve.heap import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def use():
    blocks = [np.ones(3 << 20, np.uint8) for _ in range(6)]

for _ in range(5):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what it sets is glibc's")
def test_freed_memory_is_used_again_without_page_faults():
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
            ).stdout
        )
        for how in ("kept", "as it is")
    }
    assert faults["kept"] < 100
    assert faults["as it is"] > 20 * faults["kept"]


def test_other_systems_are_left_as_they_are(monkeypatch):
    from partita_serve import heap

    monkeypatch.setattr(heap.sys, "platform", "darwin")
    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: pytest.fail("no library is asked for"))
    heap.keep_freed_memory()
