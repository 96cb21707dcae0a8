"""How a placement comes within the accuracy budget, and the same as the database keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from partita.contract.query import Reason, ReasonCode

Excluded = dict[tuple[int, str], Reason]
"""Operation and device that it must not be on, with why."""


@dataclass(frozen=True)
class Fit:
    """How a placement comes within the budget.

    Attributes:
        excluded: Operations that a device loses, with their error as the reason.
        exact: Devices that have to compute in float32.
        error: Of the model's outputs, as measured.
        notes: For the explanation.
    """

    excluded: Excluded = field(default_factory=dict)
    exact: Sequence[str] = ()
    error: float = 0.0
    notes: Sequence[str] = ()

    @property
    def changes(self) -> bool:
        """Whether anything has to change."""
        return bool(self.excluded or self.exact)


def merged(moves: Sequence[Excluded]) -> Excluded:
    """All exclusions of some moves."""
    return {key: why for excluded in moves for key, why in excluded.items()}


def store(found: Fit) -> dict[str, Any]:
    """As plain data."""
    return {
        "excluded": [[op, device, why.detail] for (op, device), why in found.excluded.items()],
        "exact": list(found.exact),
        "error": found.error,
        "notes": list(found.notes),
    }


def restore(known: Mapping[str, Any]) -> Fit:
    """What :func:`store` made."""
    return Fit(
        {
            (int(op), str(device)): Reason(ReasonCode.ACCURACY, str(detail))
            for op, device, detail in known["excluded"]
        },
        tuple(known["exact"]),
        float(known["error"]),
        [str(note) for note in known["notes"]],
    )
