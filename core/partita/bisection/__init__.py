"""Bisection: finds the first operation whose results are out of tolerance, and shows it alone."""

from __future__ import annotations

from partita.bisection.finding import Bisection, Finding, ValueDifference
from partita.bisection.search import bisect

__all__ = ["Bisection", "Finding", "ValueDifference", "bisect"]
