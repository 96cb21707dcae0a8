"""What a run says of a device's claims: which operators and types it took, and which were tried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from partita_conformance.runs.running import (
    CRASHED,
    FAILED,
    PASSED,
    SKIPPED,
    TIMEOUT,
    XFAILED,
    XPASSED,
    Outcome,
)

_TRIED = (PASSED, FAILED, CRASHED, TIMEOUT, XFAILED, XPASSED)
_ASKED = ("types", "values", "operators")
"""Suites whose checks ask the device first, and are skipped only if it takes the operator."""
LEAST_SHARE = 0.25
"""A device that was tried on less of the operators' checks is not said to conform."""


@dataclass(frozen=True)
class Claims:
    """Operators and element types that a device took in a run.

    Attributes:
        tried: Pairs ``"Op type"`` of which a result was looked at.
        never_tried: Pairs that the device took and whose results nobody could judge.
        checks: How many checks of operators there were.
        made: How many of them were made, not declined or skipped.
    """

    tried: tuple[str, ...]
    never_tried: tuple[str, ...]
    checks: int
    made: int

    @property
    def share(self) -> float:
        """The part of the operators' checks that was made; 1 of none."""
        return self.made / self.checks if self.checks else 1.0

    def verdict(self) -> str:
        """What may be said of a device that fails no check."""
        if not self.checks:
            return "conforms in the checks chosen, none of which is about operators"
        tried = f"{self.made} of {self.checks} checks of operators tried, {self.share:.0%}"
        if self.share < LEAST_SHARE:
            return f"passes, but supports too few operators to conform ({tried})"
        return f"conforms ({tried})"

    def lines(self) -> list[str]:
        """What a person reads about pairs that were taken and never tried."""
        if not self.never_tried:
            return []
        count = len(self.tried) + len(self.never_tried)
        shown = ", ".join(self.never_tried[:12])
        more = "" if len(self.never_tried) <= 12 else f" and {len(self.never_tried) - 12} more"
        head = f"taken, never tried: {len(self.never_tried)} of {count} operators and types"
        return [f"{head}: {shown}{more}"]


def claims_of(outcomes: Sequence[Outcome]) -> Claims:
    """The claims that outcomes support.

    A check that was skipped had been taken by the device before no judge was found.
    """
    of = [outcome for outcome in outcomes if outcome.check.op]
    statuses: dict[str, set[str]] = defaultdict(set)
    for outcome in of:
        if outcome.status != SKIPPED or outcome.check.suite in _ASKED:
            statuses[f"{outcome.check.op} {outcome.check.dtype}"].add(outcome.status)
    tried = sorted(pair for pair, seen in statuses.items() if seen & set(_TRIED))
    never = sorted(p for p, seen in statuses.items() if SKIPPED in seen and p not in set(tried))
    made = sum(outcome.status in _TRIED for outcome in of)
    return Claims(tuple(tried), tuple(never), len(of), made)
