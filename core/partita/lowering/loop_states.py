"""Loop-invariant states: removed from Loop and Scan, and what follows from them computed once.

Exporters of TensorFlow and Paddle pass all that a body reads as states, weights among them. States
are copied in each iteration, and are neither folded nor packed as constants are. Values that depend
on such states alone, as the keys of cross-attention, are hoisted out of the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from partita.lowering.graph import Graph, Node, Value

T = TypeVar("T")


_OF_ANY = frozenset(
    {"Abs", "Cast", "Erf", "Exp", "Identity", "Neg", "Not", "Relu", "Sigmoid", "Sqrt", "Tanh"}
)
"""Operators of one input that take whatever shape it has."""


def release_states(graph: Graph) -> None:
    """Lets the bodies of Loop and Scan read what their states would hold throughout, in place.

    What they compute of it alone is computed before the loop, if it cannot fail: a loop may have no
    iteration. Inner loops first, so that what they leave alone may be no state of an outer one
    either.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        for body in node.graphs():
            release_states(body)
        links = _release(node)
        nodes += [*_lifted(node), node, *links]
    graph.nodes = nodes


def _lifted(node: Node) -> list[Node]:
    """The nodes of a loop's body that compute the same each time, taken out of it."""
    if node.kind not in ("Loop", "Scan") or not isinstance(node.attrs.get("body"), Graph):
        return []
    body: Graph = node.attrs["body"]
    changing = {*body.inputs, *(value for inner in body.nodes for value in inner.outputs)}
    lifted: list[Node] = []
    for inner in body.nodes:
        reads = [value for value in inner.inputs if value is not None]
        if reads and changing.isdisjoint(reads) and _cannot_fail(inner):
            lifted.append(inner)
            changing.difference_update(inner.outputs)
    if lifted:
        gone = set(lifted)
        body.nodes = [inner for inner in body.nodes if inner not in gone]
    return lifted


def _cannot_fail(node: Node) -> bool:
    """Whether a node computes something of any tensors that its inputs may be."""
    if node.domain or None in node.inputs:
        return False
    values = [value for value in node.inputs if value is not None]
    x, *others = [value.shape for value in values]
    if any(value.dtype is None or value.dtype.hasobject for value in values):
        return False
    if node.op_type in _OF_ANY:
        return not others
    if x is None:
        return False
    if node.op_type == "Transpose":
        return sorted(node.attrs.get("perm") or range(len(x))) == list(range(len(x)))
    w = others[0] if len(others) == 1 else None
    if w is None or not x or not isinstance(x[-1], int):
        return False
    if node.op_type == "MatMul":
        return len(x) > 1 and len(w) == 2 and w[0] == x[-1]
    return node.op_type in ("Add", "Mul", "Sub") and w in ((x[-1],), (1,))


def _release(node: Node) -> list[Node]:
    """Takes away the states of a node that stay as they are; returns names for what they end as."""
    counts = _counts(node)
    if counts is None:
        return []
    states, inputs, inner, outer = counts
    body: Graph = node.attrs["body"]
    sources = _sources(body)
    kept: list[int] = []
    known: dict[Value, Value] = {}
    for state in range(states):
        given, held = node.inputs[inputs + state], body.inputs[inner + state]
        left = body.outputs[outer + state]
        if given is not None and sources.get(left, left) is held:
            known[held] = given
        else:
            kept.append(state)
    if not known:
        return []
    links = [
        Node("Identity", [known[body.inputs[inner + state]]], [target], name=node.name, origins=())
        for state, target in enumerate(node.outputs[:states])
        if target is not None and state not in kept
    ]
    _replace(body, known)
    node.inputs = _without(node.inputs, inputs, states, kept)
    node.outputs = _without(node.outputs, 0, states, kept)
    body.inputs = _without(body.inputs, inner, states, kept)
    body.outputs = _without(body.outputs, outer, states, kept)
    return links


def _counts(node: Node) -> tuple[int, int, int, int] | None:
    """How many states a loop has; where they begin among its inputs, the body's, its outputs.

    ``None`` for what is no loop, or has other inputs or outputs than its body: whoever compiles it
    says what is wrong.
    """
    if node.domain or not isinstance(node.attrs.get("body"), Graph):
        return None
    body: Graph = node.attrs["body"]
    if node.op_type == "Loop":
        states = len(node.inputs) - 2
        if states < 1 or len(body.inputs) != 2 + states or len(body.outputs) < 1 + states:
            return None
        fits = len(node.outputs) <= len(body.outputs) - 1
        return (states, 2, 2, 1) if fits else None
    if node.op_type == "Scan" and node.version >= 9:  # before it had an axis of batches
        states = len(node.inputs) - int(node.attrs.get("num_scan_inputs", 0))
        if not 0 < states < len(node.inputs) or len(body.inputs) != len(node.inputs):
            return None
        fits = states <= len(body.outputs) and len(node.outputs) <= len(body.outputs)
        return (states, 0, 0, 0) if fits else None
    return None


def _sources(body: Graph) -> dict[Value, Value]:
    """For the results of Identity nodes what they are names of."""
    sources: dict[Value, Value] = {}
    for node in body.nodes:
        if node.kind == "Identity" and len(node.inputs) == len(node.outputs) == 1:
            source, target = node.inputs[0], node.outputs[0]
            if source is not None and target is not None:
                sources[target] = sources.get(source, source)
    return sources


def _replace(graph: Graph, known: Mapping[Value, Value]) -> None:
    """Lets everything in a graph read other values, bodies included."""
    for node in graph.nodes:
        node.inputs = [value if value is None else known.get(value, value) for value in node.inputs]
        for body in node.graphs():
            _replace(body, known)
    graph.outputs = [known.get(value, value) for value in graph.outputs]


def _without(values: list[T], start: int, states: int, kept: list[int]) -> list[T]:
    """Values without those of the states that are not kept; outputs may end among them."""
    end = start + states
    states_of = values[start:end]
    return [
        *values[:start],
        *(states_of[state] for state in kept if state < len(states_of)),
        *values[end:],
    ]
