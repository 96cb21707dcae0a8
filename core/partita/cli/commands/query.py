"""``partita query``: which device would take each operation, and why it is that one."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from partita import Core, Model, QueryResult, Reason, ReasonCode
from partita.cli.arguments import (
    Commands,
    add_command,
    add_device,
    add_device_options,
    add_model,
    add_shapes,
    device_of,
    properties_of,
)
from partita.cli.feeds import reshape
from partita.cli.output import Output
from partita.devices.device_string import parse
from partita.zoo.naming import resolve
from partita.zoo.store import Store


@dataclass(frozen=True, slots=True)
class Verdict:
    """One operation.

    Attributes:
        name: The operation.
        op_type: Its operator.
        device: Who takes it, or ``None``.
        reason: Why nobody, or why that one.
    """

    name: str
    op_type: str
    device: str | None
    reason: Reason

    @property
    def why(self) -> str:
        """The reason in words."""
        if self.reason.code is ReasonCode.FALLBACK and self.reason.detail:
            return self.reason.detail  # it holds the codes of the devices that refused
        return str(self.reason)


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "query",
        run,
        "says which device would take each operation of a model, and why not the preferred ones",
        [
            "partita query model.onnx -d HETERO:GPU,CPU",
            "partita query model.onnx -d OPENCL.0 --only-refused",
            "partita query model.onnx --pin type:Softmax=CPU --lock plan.toml",
            "partita query zoo:ppocr-rec -d HETERO:OPENCL,CPU --by-type --shape x=1x3x48x320",
        ],
    )
    add_model(parser)
    add_device(parser)
    add_device_options(parser)
    add_shapes(parser)
    parser.add_argument(
        "--only-refused",
        action="store_true",
        help="only operations that do not go to the first device of the list",
    )
    parser.add_argument(
        "--by-type", action="store_true", help="one line per operator, device and reason"
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Prints the verdicts."""
    core = Core()
    device = device_of(args, core)
    model = core.read_model(resolve(args.model, Store(notify=out.note)).source)
    reshape(model, args.shapes)
    result = core.query_model(model, device, properties_of(args))
    everything = verdicts(model, result)
    if args.only_refused:
        shown = [v for v in everything if v.reason.code is not ReasonCode.PRIORITY]
    else:
        shown = everything
    counts = Counter(v.device or "no device" for v in everything)
    summary = ", ".join(f"{device} {count}" for device, count in counts.most_common())
    if args.json:
        out.json(
            {
                "model": args.model,
                "device": device,
                "operations": len(everything),
                "counts": counts,
                "by_type" if args.by_type else "ops": by_type(shown) if args.by_type else shown,
            }
        )
        return 0
    if args.by_type:
        out.table(
            ["type", "count", "device", "why"],
            [[g["op_type"], g["count"], g["device"] or "-", g["why"]] for g in by_type(shown)],
        )
    else:
        out.table(
            ["op", "type", "device", "why"],
            [[v.name, v.op_type, v.device or "-", v.why] for v in shown],
        )
    out.text("", f"{args.model}: {len(everything)} operations; {summary}")
    return 0


def verdicts(model: Model, result: QueryResult) -> list[Verdict]:
    """The answer of a device, operation by operation, in the model's order."""
    found = []
    for op in model.ops:
        device = result.get(op.name)
        reason = result.reasons.get(op.name) or _unchallenged(device, result.device)
        found.append(Verdict(op.name, op.op_type, device, reason))
    return found


def _unchallenged(device: str | None, asked: str) -> Reason:
    """Why a device takes an operation where the answer has no reason.

    Args:
        device: Who takes it, or ``None``.
        asked: The device that answered.
    """
    if device is None:
        return Reason(ReasonCode.UNSUPPORTED_OP, "the device gave no reason")
    if parse(device).name == parse(asked).name:
        return Reason(ReasonCode.PRIORITY, "the only device")
    return Reason(ReasonCode.PRIORITY, "first in the list")


def by_type(shown: Sequence[Verdict]) -> list[dict[str, object]]:
    """Operations of equal operator, device and reason counted, most frequent first."""
    groups = Counter((v.op_type, v.device, v.why) for v in shown)
    return [
        {"op_type": op_type, "count": count, "device": device, "why": why}
        for (op_type, device, why), count in groups.most_common()
    ]
