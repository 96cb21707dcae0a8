"""What pages tell of one placement, measured or planned; kept as JSON, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from partita.errors import ReportError
from partita_hetero.planner.simulation.timeline import Timeline


@dataclass(frozen=True, slots=True)
class DeviceCost:
    """What an operation takes on a device.

    Attributes:
        us: Microseconds.
        is_measured: Whether that was measured, or estimated from other operations.
    """

    us: float
    is_measured: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, or in a plan all that always share a device.

    Attributes:
        name: The operation.
        op_type: Its operator; several, with commas, for several operations.
        device: Where it runs.
        part: The submodel that holds it; ``None`` if it needs no place of its own.
        us: Its time; ``None`` where the device reported none.
        nbytes: What it reads and writes, weights included; ``None`` where sizes are not known.
        kernel: What computed it, as far as its device tells.
        computed_with: The operation whose time includes that of this one; empty if it has its own.
        reason: Code of the reason why it is there.
        why: The reason, and those of devices that did not take it.
        next_best: The next best device, and what it would cost, where that is known.
        change: What would change its place.
        elsewhere: Device to what it costs there by itself, where that was asked.
    """

    name: str
    op_type: str
    device: str
    part: int | None
    us: float | None
    nbytes: int | None
    kernel: str
    computed_with: str
    reason: str
    why: str
    next_best: str
    change: str
    elsewhere: Mapping[str, DeviceCost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubmodelRecord:
    """One submodel.

    Attributes:
        number: From 1.
        device: Where it runs.
        ops: How many operations it has.
        us: What it took; ``None`` where that is not known.
    """

    number: int
    device: str
    ops: int
    us: float | None


@dataclass(frozen=True, slots=True)
class Crossing:
    """One tensor that crosses between submodels.

    Attributes:
        value: Its name.
        source: The submodel that computes it; ``None`` for an input of the model.
        target: The submodel that reads it; ``None`` for an output of the model.
        how: Whether it is shared or copied, and which way.
        nbytes: Its size; ``None`` while that is not known.
    """

    value: str
    source: int | None
    target: int | None
    how: str
    nbytes: int | None


@dataclass(frozen=True)
class PlacementRecord:
    """One placement, and one run of it.

    Attributes:
        model: Its name.
        device: The device string, or the devices of a plan.
        run: Which run is described, as ``"the median of 10 runs"``.
        run_us: How long it took.
        facts: What else there is to say of the whole, by name.
        notes: What a person should know, in order.
        operations: In the model's order.
        parts: The submodels, in order of their numbers.
        crossings: Tensors between them.
        timelines: The run, and what was foreseen of it; none where one device does everything.
        steps: Submodel, step, and what executed it.
    """

    model: str
    device: str
    run: str
    run_us: float
    facts: Mapping[str, str]
    notes: Sequence[str]
    operations: Sequence[Operation]
    parts: Sequence[SubmodelRecord]
    crossings: Sequence[Crossing]
    timelines: Sequence[Timeline]
    steps: Sequence[tuple[int | None, str, str]] = ()


_RECORD = TypeAdapter(PlacementRecord)


def load(path: Path) -> PlacementRecord:
    """Reads what ``partita report --output REPORT.json`` has written.

    Raises:
        ReportError: The file cannot be read or is something else; says what is wrong and where.
    """
    try:
        return _RECORD.validate_json(path.read_bytes())
    except OSError as error:
        raise ReportError(f"The report '{path}' cannot be read: {error}.") from error
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))
        what = f"at {place}: {fault['msg']}" if place else fault["msg"]
        raise ReportError(
            f"'{path}' is not a report ({what}). Write one with 'partita report MODEL --output "
            "REPORT.json'."
        ) from error
