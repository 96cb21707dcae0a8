"""A placement that was chosen by measurement, and how it is stored between compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from partita.contract.explanation import Decision
from partita.contract.query import Reason, ReasonCode
from partita.shapes.sample_shapes import Shape
from partita_hetero.placement.by_priority import PreferredDevices
from partita_hetero.planner.simulation.timeline import Span, Timeline


@dataclass(frozen=True, slots=True)
class DeviceAlternative:
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
class Replica:
    """The model on other devices, for some of the requests.

    Attributes:
        preferred: Operation to device and reason, for the same operations as those of the choice.
        share: The share of the requests that it should get.
    """

    preferred: PreferredDevices
    share: float


@dataclass(frozen=True)
class ChosenPlacement:
    """Where operations go, and how that was found.

    Attributes:
        preferred: Operation to device and reason; operations that are missing go by priority.
        decision: What was compared; ``None`` if nothing was.
        predicted: The run that the cost model foresees, if it was asked.
        elsewhere: For each operation what it would cost elsewhere.
        shapes: Input to the shape that it was found for, where input shapes vary.
        keeps_limits: Whether memory limits were counted when it was found.
        replicas: The model on further devices; ``preferred`` get the requests that these leave.
    """

    preferred: PreferredDevices
    decision: Decision | None
    predicted: Timeline | None = None
    elsewhere: Mapping[int, DeviceAlternative] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    keeps_limits: bool = False
    replicas: Sequence[Replica] = ()

    @property
    def busy(self) -> float:
        """The share of the processors that others used while it was found."""
        return 0.0 if self.decision is None else self.decision.busy

    @property
    def every(self) -> tuple[PreferredDevices, ...]:
        """The wishes of all replicas, the first one's first."""
        return (self.preferred, *(one.preferred for one in self.replicas))

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the requests that each placement should get, the first one's first."""
        others = [one.share for one in self.replicas]
        return (1.0 - sum(others), *others)


def store(choice: ChosenPlacement) -> dict[str, Any]:
    """As plain data."""
    return {
        "wishes": _stored(choice.preferred),
        "replicas": [[_stored(one.preferred), one.share] for one in choice.replicas],
        "decision": None if choice.decision is None else asdict(choice.decision),
        "elsewhere": [[op, *astuple(other)] for op, other in choice.elsewhere.items()],
        "predicted": None if choice.predicted is None else asdict(choice.predicted),
    }


def restore(data: Mapping[str, Any], ops: int) -> ChosenPlacement | None:
    """What :func:`store` made; ``None`` if it is something else, and then all is decided anew.

    Args:
        data: From the database, which other programs may have written to.
        ops: How many operations the model has.
    """
    try:
        preferred = _restored(data["wishes"])
        replicas = [Replica(_restored(one), float(share)) for one, share in data["replicas"]]
        decision = replace(Decision.from_dict(data["decision"]), from_database=True)
        elsewhere = {int(op): DeviceAlternative(*facts) for op, *facts in data["elsewhere"]}
        predicted = data["predicted"]
        if predicted is not None:
            spans = tuple(Span(**span) for span in predicted["spans"])
            predicted = Timeline(
                spans, predicted["name"], tuple(predicted["devices"]), predicted["peak_bytes"]
            )
    except (KeyError, TypeError, ValueError):
        return None
    every = [preferred, *(one.preferred for one in replicas)]
    if not all(0 <= op < ops for one in every for op in one):
        return None
    choice = ChosenPlacement(preferred, decision, predicted, elsewhere, replicas=replicas)
    return choice if all(share > 0 for share in choice.shares) else None


def _stored(preferred: PreferredDevices) -> list[list[int | str]]:
    return [
        [op, device, str(reason.code), reason.detail] for op, (device, reason) in preferred.items()
    ]


def _restored(rows: Any) -> dict[int, tuple[str, Reason]]:
    return {
        int(op): (str(device), Reason(ReasonCode(code), str(detail)))
        for op, device, code, detail in rows
    }
