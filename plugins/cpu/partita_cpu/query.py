"""Queries: which operations of a model device CPU supports, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator

from partita import Model, QueryResult, Reason
from partita.lowering import Graph, Node, expand_functions, lower
from partita.lowering.shapes.type_rules import mixed_types
from partita_cpu.kernels.operator_table import TABLE

NATIVE = frozenset({"Identity", "If", "Constant"})
"""Operators that lowering itself resolves."""


def query(model: Model, device: str) -> QueryResult:
    """Looks up every operation in the kernel table, those in bodies included.

    Args:
        model: The model; it stays as it is.
        device: The name that the answers give.
    """
    return verdict(model, device, lower(model, for_query=True))


def verdict(model: Model, device: str, graph: Graph) -> QueryResult:
    """The answer for a model that was lowered already; expands what is taken in parts, in place."""
    reasons = refusals(graph)
    if reasons:
        expand_functions(graph, takes)
        reasons = refusals(graph)
    return QueryResult.of(device, {op.name: reasons.get(op.name) for op in model.ops})


def refusals(graph: Graph) -> dict[str, Reason]:
    """Operation name to the reason why it is not taken; operations that are taken are absent.

    Args:
        graph: As `lower` makes it for a query.
    """
    found: dict[str, Reason] = {}
    for node in graph.nodes:
        for part in _parts(node):
            reason = mixed_types(part) or _refuse(part)
            if reason is not None:
                if part is not node:
                    detail = f"its body holds '{part.name}': {reason.detail}"
                    reason = Reason(reason.code, detail)
                for name in node.origins:
                    found.setdefault(name, reason)
                break
    return found


def takes(node: Node) -> bool:
    """Whether there is a kernel for a node; called by fusion before it makes one."""
    return _refuse(node) is None


def _parts(node: Node) -> Iterator[Node]:
    yield node
    for graph in node.graphs():
        yield from graph.all_nodes()


def _refuse(node: Node) -> Reason | None:
    if node.kind in NATIVE:
        return None
    entry = TABLE.find(node.domain, node.op_type, node.version)
    if entry is None:
        return TABLE.missing(node)
    return entry.refuse(node, [None if value is None else value.dtype for value in node.inputs])
