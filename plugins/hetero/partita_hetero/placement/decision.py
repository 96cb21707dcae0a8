"""A placement that measurements chose, and the form in which it is kept between compiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from partita.contract.explanation import Decision
from partita.contract.query import Reason, ReasonCode
from partita_hetero.options.sample_shapes import Shape
from partita_hetero.placement.by_priority import Wishes
from partita_hetero.planner.simulation.timeline import Span, Timeline


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An operation on another device than the one that it got.

    Attributes:
        own_us: What it takes where it is, with those that are always computed along.
        device: The next best device; empty if no other takes it.
        extra_us: What the whole run would take longer with it there.
        change: What would change its place.
    """

    own_us: float
    device: str
    extra_us: float | None
    change: str


@dataclass(frozen=True)
class Choice:
    """Where operations go, and how that was found.

    Attributes:
        wishes: Operation to device and reason; operations that are missing go by priority.
        decision: What was compared.
        predicted: The run that the cost model foresees, if it was asked.
        elsewhere: For each operation what it would cost elsewhere.
        shapes: Input to the shape that it was found for, where input shapes vary.
        keeps_limits: Whether memory limits were counted when it was found.
    """

    wishes: Wishes
    decision: Decision
    predicted: Timeline | None = None
    elsewhere: Mapping[int, Elsewhere] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    keeps_limits: bool = False


def store(choice: Choice) -> dict[str, Any]:
    """As plain data."""
    return {
        "wishes": [
            [op, device, str(reason.code), reason.detail]
            for op, (device, reason) in choice.wishes.items()
        ],
        "decision": asdict(choice.decision),
        "elsewhere": [[op, *astuple(other)] for op, other in choice.elsewhere.items()],
        "predicted": None if choice.predicted is None else asdict(choice.predicted),
    }


def restore(data: Mapping[str, Any], ops: int) -> Choice | None:
    """What :func:`store` made; ``None`` if it is something else, and then all is decided anew.

    Args:
        data: From the database, which other programs may have written to.
        ops: How many operations the model has.
    """
    try:
        wishes = {
            int(op): (str(device), Reason(ReasonCode(code), str(detail)))
            for op, device, code, detail in data["wishes"]
        }
        decision = replace(Decision.from_dict(data["decision"]), from_database=True)
        elsewhere = {int(op): Elsewhere(*facts) for op, *facts in data["elsewhere"]}
        predicted = data["predicted"]
        if predicted is not None:
            spans = tuple(Span(**span) for span in predicted["spans"])
            predicted = Timeline(
                spans, predicted["name"], tuple(predicted["devices"]), predicted["peak_bytes"]
            )
    except (KeyError, TypeError, ValueError):
        return None
    if not all(0 <= op < ops for op in wishes):
        return None
    return Choice(wishes, decision, predicted, elsewhere)
