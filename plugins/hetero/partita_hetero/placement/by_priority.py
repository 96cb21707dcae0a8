"""Placement by priority: asks the devices in order, applies pins, and keeps every reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.errors import UnsupportedOpError
from partita.extensions import advice, noted
from partita.model.op import Op
from partita_hetero.options.pins import Pin
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.placement.data_movement import follow

_log = logging.getLogger(__name__)

Query = Callable[[str], QueryResult]
"""Asks a device, named as the user spelled it, about the whole model."""

PreferredDevices = Mapping[int, tuple[str, Reason]]
"""Operation to the device that a plan chose for it, and why."""


@dataclass(frozen=True)
class Placement:
    """A device and a reason for every operation.

    Attributes:
        device: Device of each operation; ``None`` for those that need no place of their own
            (constant, or not needed for any output).
        reason: Why, for each operation.
        refused: For each operation, device to reason for those that were asked and said no.
        pinned_elsewhere: Operations that are not where the user pinned them.
    """

    device: list[str | None]
    reason: list[Reason]
    refused: list[dict[str, Reason]]
    pinned_elsewhere: list[int] = field(default_factory=list)

    def follows(self, preferred: PreferredDevices) -> bool:
        """Whether each operation that needs a place has the one that is wished for it."""
        homes = self.device
        return all(homes[op] in (None, device) for op, (device, _) in preferred.items())


def place(
    graph: OpGraph,
    devices: Sequence[str],
    pins: Mapping[int, Pin],
    query: Query,
    welcomes: Callable[[str], bool],
    excluded: Mapping[tuple[int, str], Reason],
    strict: bool,
    preferred: PreferredDevices = MappingProxyType({}),
) -> Placement:
    """Gives every operation the first device that takes it, or the one that it is pinned to.

    Operations that compute nothing go with their neighbours instead; see :mod:`followers`.

    Args:
        graph: The model.
        devices: In order of priority.
        pins: Operation to what the user wants.
        query: Asks a device; called at most once for each.
        welcomes: Whether operations that compute nothing may follow their neighbours to a device.
        excluded: Operations that a device claimed and then could not compile, with the reason.
        strict: Raise instead of moving a pinned operation.
        preferred: Operation to the device that a plan chose for it and why; pins are stronger.

    Raises:
        UnsupportedOpError: No device takes an operation, or a hard pin cannot be kept; every
            device's reason is in the message.
    """
    verdict = _verdicts(graph, query, excluded)
    result = _by_first_answer(graph, devices, pins, preferred, verdict)
    _enforce_hard_pins(graph, result, pins)
    homeless = [op for op, home in enumerate(result.device) if home is None and graph.live[op]]
    if homeless:
        raise _homeless_error(graph, homeless, result)
    _report_pins(graph, result, pins, strict)
    moved = follow(
        graph,
        result.device,
        [op not in pins and op not in preferred for op in range(len(result.device))],
        lambda op, device: welcomes(device) and verdict(op, device) is None,
        devices,
    )
    for op, device in moved.items():
        result.reason[op] = follows(result.device[op])
        result.device[op] = device
    _let_constants_follow(graph, result, verdict)
    return result


Verdict = Callable[[int, str], Reason | None]
"""Why a device does not take an operation, or ``None`` if it does."""


def _verdicts(graph: OpGraph, query: Query, excluded: Mapping[tuple[int, str], Reason]) -> Verdict:
    """What devices say; each is asked once, when its answer is first needed."""
    answers: dict[str, QueryResult] = {}
    names = graph.names()

    def verdict(op: int, device: str) -> Reason | None:
        if (op, device) in excluded:
            return excluded[op, device]
        if device not in answers:
            answers[device] = query(device)
        answer = answers[device]
        if names[op] in answer:
            return None
        return answer.reasons.get(
            names[op], Reason(ReasonCode.UNSUPPORTED_OP, "the device gave no reason")
        )

    return verdict


def _by_first_answer(
    graph: OpGraph,
    devices: Sequence[str],
    pins: Mapping[int, Pin],
    preferred: PreferredDevices,
    verdict: Verdict,
) -> Placement:
    """Every operation on the first device that takes it, if there is one: its pin's, its wish's."""
    count = len(graph.nodes)
    result = Placement(
        [None] * count, [Reason(ReasonCode.PRIORITY)] * count, [{} for _ in range(count)]
    )
    for op in range(count):
        if not graph.live[op]:
            result.reason[op] = Reason(ReasonCode.UNUSED, "no output depends on it")
            continue
        pin, wish = pins.get(op), preferred.get(op)
        chosen = [device for device in (pin and pin.device, wish and wish[0]) if device]
        for device in dict.fromkeys([*chosen, *devices]):
            refusal = verdict(op, device)
            if refusal is not None:
                result.refused[op][device] = refusal
                continue
            result.device[op] = device
            if wish and device == wish[0] and not (pin and device == pin.device):
                result.reason[op] = wish[1]
            else:
                result.reason[op] = _reason(device, pin, result.refused[op], devices)
            result.reason[op] = noted(graph.nodes[op], result.reason[op])
            break
        if pin is not None and result.device[op] != pin.device:
            result.pinned_elsewhere.append(op)
    return result


def follows(left: str | None) -> Reason:
    """The reason of an operation that went with its neighbours."""
    return Reason(ReasonCode.FOLLOWS, f"computes nothing, and {left} has none of its neighbours")


def _reason(
    device: str, pin: Pin | None, refused: Mapping[str, Reason], devices: Sequence[str]
) -> Reason:
    if pin is not None and device == pin.device:
        return Reason(ReasonCode.PINNED, pin.why)
    if pin is not None:
        return Reason(ReasonCode.FALLBACK, f"pinned to '{pin.device}', which refuses it")
    if not refused:
        return Reason(ReasonCode.PRIORITY, "first in the list")
    full = [name for name, why in refused.items() if why.code is ReasonCode.MEMORY_LIMIT]
    if full:
        return Reason(ReasonCode.MEMORY_LIMIT, f"no room on {', '.join(full)}")
    inexact = [name for name, why in refused.items() if why.code is ReasonCode.ACCURACY]
    if inexact:
        return Reason(ReasonCode.ACCURACY, f"not exact enough on {', '.join(inexact)}")
    return Reason(ReasonCode.FALLBACK, f"number {len(refused) + 1} of {len(devices)} in the list")


def _enforce_hard_pins(graph: OpGraph, result: Placement, pins: Mapping[int, Pin]) -> None:
    broken = [op for op in result.pinned_elsewhere if pins[op].hard]
    if broken:
        rules = ", ".join(dict.fromkeys(pins[op].why for op in broken))
        raise UnsupportedOpError(
            f"The {rules} cannot be kept: {_lines(graph, result, pins, broken)}. Make "
            "the pin soft ('DEVICE?'), or change it."
        )


def _lines(graph: OpGraph, result: Placement, pins: Mapping[int, Pin], ops: Sequence[int]) -> str:
    lines = [
        f"'{graph.nodes[op].name}' ({graph.nodes[op].op_type}) is pinned to '{pins[op].device}', "
        f"which refuses it: {result.refused[op][pins[op].device]}"
        for op in ops[:5]
    ]
    return "; ".join(lines) + (f"; and {len(ops) - 5} more" if len(ops) > 5 else "")


def _report_pins(graph: OpGraph, result: Placement, pins: Mapping[int, Pin], strict: bool) -> None:
    broken = [op for op in result.pinned_elsewhere if pins[op].loud]
    if not broken:
        return
    shown = _lines(graph, result, pins, broken)
    if strict:
        raise UnsupportedOpError(f"{shown}. Change the affinity, or set STRICT=NO.")
    _log.warning("%s. They go to the next device of the list.", shown)


def _let_constants_follow(graph: OpGraph, result: Placement, verdict: Verdict) -> None:
    """Operations on constants are computed in every submodel that reads them, if its device can.

    Where a reader's device cannot, the operation keeps a place of its own and its result crosses;
    so do then those that depend on it, since no submodel may feed a copied constant.
    """
    outputs = {graph.producer[name] for name in graph.outputs if name in graph.producer}
    follows = [
        graph.constant[op] and result.device[op] is not None and op not in outputs
        for op in range(len(graph.nodes))
    ]
    needed_on: list[set[str]] = []
    stable = False
    while not stable:
        stable = True
        needed_on = [set() for _ in graph.nodes]
        for op in range(len(graph.nodes) - 1, -1, -1):
            if not follows[op]:
                continue
            for reader in graph.succs[op]:
                home = result.device[reader]
                if follows[reader]:
                    needed_on[op] |= needed_on[reader]
                elif home is not None:
                    needed_on[op].add(home)
            if any(verdict(op, device) is not None for device in needed_on[op]):
                follows[op] = stable = False
        for op, sources in enumerate(graph.preds):
            if follows[op] and not all(follows[source] for source in sources):
                follows[op] = stable = False
    for op in range(len(graph.nodes)):
        if follows[op]:
            result.device[op] = None
            result.reason[op] = Reason(
                ReasonCode.CONSTANT, "computed once, on " + ", ".join(sorted(needed_on[op]))
            )


def _homeless_error(
    graph: OpGraph, homeless: Sequence[int], result: Placement
) -> UnsupportedOpError:
    lines = []
    for op in homeless[:10]:
        reasons = "; ".join(f"{device}: {reason}" for device, reason in result.refused[op].items())
        lines.append(f"  '{graph.nodes[op].name}' ({graph.nodes[op].op_type}): {reasons}")
    if len(homeless) > 10:
        lines.append(f"  and {len(homeless) - 10} more")
    return UnsupportedOpError(
        f"No device takes {len(homeless)} of {len(graph.nodes)} operations. Add a device to the "
        "list (REFERENCE takes every ONNX operator) or change these:"
    ).with_lines([*lines, *advice(Op(graph.nodes[op]) for op in homeless)])
