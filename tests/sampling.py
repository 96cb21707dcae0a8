"""How many random examples a test draws: enough for a gate, or many for a night."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
"""Whether time is of no matter."""


def examples(count: int) -> settings:
    """Settings of a test that draws so many examples if thorough, else a quarter, at most 25."""
    return settings(max_examples=count if THOROUGH else max(min(count // 4, 25), 1))


def load_profile() -> None:
    """Sets what all tests of random examples have in common.

    Examples compile kernels, and other processes may want the processor: none has a deadline.
    """
    settings.register_profile(
        "here",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=500 if THOROUGH else 25,
    )
    settings.load_profile("here")
