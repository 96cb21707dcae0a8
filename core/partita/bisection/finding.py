"""What a bisection found: plain data, as text and as JSON."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from partita.model.compare import Difference


class Kind(enum.StrEnum):
    """What is wrong.

    ``OPERATION``: one operation, given the reference's inputs, is wrong by itself.
    ``FUSED``: operations that are right one by one are wrong when they are compiled together, and
    no value between them is asked for.
    ``ACCUMULATED``: every operation is right by itself, and their small errors add up.
    """

    OPERATION = "OPERATION"
    FUSED = "FUSED"
    ACCUMULATED = "ACCUMULATED"


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One value of the model.

    Attributes:
        value: Its name.
        op: The operation that computes it, or ``""`` for an input.
        op_type: Its operator.
        device: Where it runs.
        difference: From the reference's.
    """

    value: str
    op: str
    op_type: str
    device: str
    difference: Difference


@dataclass(frozen=True)
class Finding:
    """The fault.

    Attributes:
        kind: What is wrong.
        ops: The operations that show it together, in order.
        op_types: Their operators.
        devices: Where each runs.
        value: The value that is out of tolerance.
        difference: How far, when only these operations run, fed with the reference's values.
        inside: The bodies that were descended into, e.g. ``"Loop 'decode', iteration 3"``.
        model: The file that shows the fault, once written.
        data: The folder with its inputs and expected outputs, in ONNX's layout.
        verified: Whether the file, read again, showed the fault.
    """

    kind: Kind
    ops: Sequence[str]
    op_types: Sequence[str]
    devices: Sequence[str]
    value: str
    difference: Difference
    inside: Sequence[str] = ()
    model: Path | None = None
    data: Path | None = None
    verified: bool = False

    def __str__(self) -> str:
        named = [
            f"'{op}' ({op_type} on {device})"
            for op, op_type, device in zip(self.ops, self.op_types, self.devices, strict=True)
        ]
        shown = ", ".join(named[:6]) + (f" and {len(named) - 6} more" if len(named) > 6 else "")
        within = f", in {', '.join(self.inside)}" if self.inside else ""
        detail = (
            f"value '{self.value}' is {self.difference}" if self.value else self.difference.what
        )
        match self.kind:
            case Kind.OPERATION:
                return f"{shown} is wrong by itself{within}: {detail}"
            case Kind.FUSED:
                return f"{shown} are right one by one and wrong together{within}: {detail}"
            case _:
                return (
                    f"no operation is wrong by itself; errors add up over {len(self.ops)} of "
                    f"them{within}: {shown}; {detail}"
                )


@dataclass(frozen=True)
class Bisection:
    """The result.

    Attributes:
        model: The model's name.
        device: What was tested.
        against: What it was compared with.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        outputs: The model's outputs, run as it is.
        values: Every intermediate value, in the order of the operations; all of them were made
            outputs for that run. Empty if the device could not run so.
        finding: The fault, or ``None``.
        notes: What else a person should know.
    """

    model: str
    device: str
    against: str
    rtol: float
    atol: float
    outputs: Sequence[ValueDifference]
    values: Sequence[ValueDifference]
    finding: Finding | None
    notes: Sequence[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is out of tolerance."""
        return self.finding is None

    def __str__(self) -> str:
        bad = [v for v in self.values if not v.difference.ok]
        wrong = [v for v in self.outputs if not v.difference.ok]
        lines = [
            f"{self.model} on {self.device}, compared with {self.against} "
            f"(rtol {self.rtol:g}, atol {self.atol:g}):",
            f"{len(wrong)} of {len(self.outputs)} outputs and {len(bad)} of {len(self.values)} "
            "intermediate values are out of tolerance",
        ]
        lines += [
            f"  {v.value}: {v.difference}  [{v.op_type} '{v.op}' on {v.device}]" for v in bad[:10]
        ]
        lines += [f"  and {len(bad) - 10} more"] * (len(bad) > 10)
        lines += [str(self.finding)] if self.finding else ["nothing to find"]
        return "\n".join([*lines, *self.notes])
