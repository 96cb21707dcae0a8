"""Weights that end a file of whole pages: no kernel reads a byte behind them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_levels import float_levels

HERE = Path(__file__).parent


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", [level.name for level in float_levels()])
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_nothing_is_read_behind_the_end_of_a_file(kind, level):
    path = [os.environ.get("PYTHONPATH", ""), str(HERE.parents[1])]
    environment = os.environ | {"PARTITA_CPU_ISA": level, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, str(HERE / "file_ends.py"), kind],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"ended by {done.returncode} at {done.stdout}: {done.stderr}"
