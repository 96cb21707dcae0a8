"""A placement that measurements chose, as plain data: what is kept of it between compiles."""

from __future__ import annotations

from dataclasses import dataclass

from partita.explain import Decision
from partita_hetero.affinity import Wishes
from partita_hetero.planner.timeline import Timeline


@dataclass(frozen=True)
class Choice:
    """Where operations go, and how that was found.

    Attributes:
        wishes: Operation to device and reason; operations that are missing go by priority.
        decision: What was compared.
        predicted: The run that the cost model foresees, if it was asked.
    """

    wishes: Wishes
    decision: Decision
    predicted: Timeline | None = None
