"""Rows of the explanation, one per operation: its device, the reason, and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partita.contract.explanation import OpPlacement
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita_hetero.partition.op_graph import OpGraph
from partita_hetero.partition.submodels import Submodel
from partita_hetero.placement.by_priority import Placement
from partita_hetero.placement.decision import ChosenPlacement


def rows(
    op_graph: OpGraph,
    placement: Placement,
    submodels: Sequence[Submodel],
    choice: ChosenPlacement | None,
    devices: Sequence[str],
    answers: Mapping[str, QueryResult],
) -> list[OpPlacement]:
    """The rows, in the model's order.

    Args:
        op_graph: The model's operations.
        placement: Where they are, and why.
        submodels: The submodels.
        choice: What measurements chose, if they did.
        devices: The device list.
        answers: What devices said so far; none is asked.
    """
    home = {op: submodel.number for submodel in submodels for op in submodel.ops}
    found = []
    for op, node in enumerate(op_graph.nodes):
        device, reason, refused = placement.device[op], placement.reason[op], placement.refused[op]
        known = choice.elsewhere.get(op) if choice is not None else None
        planned = choice is not None and device == choice.preferred.get(op, ("",))[0]
        if known is not None and planned:
            other, extra, own, change = known.device, known.extra_us, known.own_us, known.change
        else:
            taking = (
                name
                for name in devices
                if name not in (device, *refused) and node.name in answers.get(name, ())
            )
            other = next(taking, "") if device is not None else ""
            extra = own = None
            change = _change(reason, refused)
        found.append(
            OpPlacement(
                name=node.name or "",
                op_type=node.op_type,
                device=device or "-",
                subgraph=home.get(op),
                reason=reason,
                refused=refused,
                own_us=own,
                alternative=other,
                extra_us=extra,
                change=change,
            )
        )
    return found


def _change(reason: Reason, refused: Mapping[str, Reason]) -> str:
    """What would change the place of an operation that no measurement put there."""
    first = next(iter(refused), "")
    match reason.code:
        case ReasonCode.PINNED:
            return "dropping its pin"
        case ReasonCode.MEMORY_LIMIT:
            return f"a higher limit for {first}"
        case ReasonCode.ACCURACY:
            return "a larger accuracy budget"
        case ReasonCode.FALLBACK:
            return f"{first} taking it ({refused[first].code})" if first else ""
        case ReasonCode.PRIORITY:
            return "a pin, another order, or COST"
        case ReasonCode.FOLLOWS | ReasonCode.REPLICATED:
            return "a pin"
        case _:
            return ""
