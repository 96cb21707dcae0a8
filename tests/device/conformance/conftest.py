"""Lets tests use the benchmark script that runs the kit on all broken devices, and fail early."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))


@pytest.fixture
def lives_as_they_failed(monkeypatch):
    """Spares a life that failed the search for its fewest steps: up to sixty more lives.

    For tests that ask only whether it fails; `test_life_checks` looks at what the search finds.
    """
    from partita_conformance.suites.lives import suite_lives

    def as_they_are(bench, form, of_code, steps, error):
        return steps, error

    monkeypatch.setattr(suite_lives, "shortest", as_they_are)
