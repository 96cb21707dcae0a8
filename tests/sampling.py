"""How many examples and combinations a test takes: enough for a gate, or many for a night."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pytest

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
"""Whether time is of no matter."""


def examples(count: int) -> settings:
    """Settings of a test that draws so many examples if thorough, else a quarter, at most 25."""
    return settings(max_examples=count if THOROUGH else max(min(count // 4, 25), 1))


def is_sampled(item: pytest.Item) -> bool:
    """Whether a test runs: always, but for ``@pytest.mark.sampled(share)`` in a gate.

    Of its combinations of parameters, those run whose positions add up to a multiple of ``share``.
    Each parameter's values are all among them, and of three parameters all pairs of values, as
    long as none has fewer values than ``share``.
    """
    mark = item.get_closest_marker("sampled")
    if mark is None or THOROUGH:
        return True
    params = item.callspec.params  # type: ignore[attr-defined]  # a test that is marked has them
    places = [_place(*one.args, params) for one in item.iter_markers("parametrize")]
    return sum(places) % mark.args[0] == 0


def _place(names: str | Sequence[str], rows: Iterable[Any], params: Mapping[str, Any]) -> int:
    """Which row of ``parametrize`` gave a test its parameters; pytest numbers all together."""
    if isinstance(names, str):
        names, rows = [names], ([value] for value in rows)
    due = [params[name] for name in names]
    return next(
        n for n, row in enumerate(rows) if all(a is b for a, b in zip(row, due, strict=True))
    )


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
