"""Linux made to look like Windows and macOS: nothing that those lack is imported or called.

A child process imports what is not ours first, since the standard library and numba look at the
system once. Then it takes away what the other system lacks, refuses what it refuses (names of files
with a colon, files that are replaced or deleted while they are mapped), imports every module of
every package, and computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("other_system.py")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes Linux's own things away")
@pytest.mark.parametrize("system", ["win32", "darwin", "freebsd14"])
def test_everything_works_without_what_only_linux_has(system, tmp_path):
    environment = dict(os.environ)
    environment.pop("PARTITA_CPU_ISA", None)
    command = [sys.executable, "-W", "ignore", str(CHILD), system, str(tmp_path)]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all is well" in run.stdout
