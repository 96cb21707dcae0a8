"""Lets tests take decoders from ``benchmarks/random_decoders.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
