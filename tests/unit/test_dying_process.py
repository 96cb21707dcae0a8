"""A process that dies under a test fails that test by name, and no other one."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

DYING = """
import os

def test_before(): pass
def test_dies(): os.abort()
def test_behind(): pass
"""


def test_the_documented_command_outlives_a_test_that_ends_its_process(tmp_path):
    (tmp_path / "test_dying.py").write_text(DYING)
    command = re.findall(r"^\$ .*? -m (pytest .*)$", (ROOT / "README.md").read_text(), re.M)[0]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), "-p", "no:cacheprovider", "test_dying.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"crashed while running '.*test_dies'", done.stdout), done.stdout
    assert "1 failed, 2 passed" in done.stdout
