"""Lets tests use the benchmark script that runs the kit on all broken devices."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
