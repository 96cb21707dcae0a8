"""Quotients of parts of one product in float32: the parts may be beyond halves, they are not.

Linear attention divides so (Cai et al., EfficientViT, 2023): a product with ones beside the values
has the sums of weights in its last column, which grow with the number of keys.
"""

from __future__ import annotations

from partita.lowering import Graph, Node, Value
from partita_opencl.passes.half_precision import SINGLE, WIDE


def compute_quotients_wide(graph: Graph) -> None:
    """Has products whose parts are divided by one another, and what is in between, in float32.

    Args:
        graph: One that is computed in halves; changed in place.
    """
    uses, results = graph.uses(), set(graph.outputs)
    wide: dict[Node, None] = {}
    for node in graph.nodes:
        result = node.result
        divides = node.kind == "Div" and result is not None and result.dtype == SINGLE
        chain = _chain(node, uses) if divides else []
        inner = {value for one in chain if one is not node for value in one.outputs if value}
        users = {user for value in inner for user in uses.get(value, ())}
        if users <= set(chain) and inner.isdisjoint(results):
            wide |= dict.fromkeys(chain)
    widened: dict[Value, Value] = {}
    nodes = []
    for node in graph.nodes:
        if node in wide:
            if node.kind == "MatMul":
                nodes += _widen_inputs(node, wide, widened)
            node.attrs[WIDE] = tuple(range(len(node.inputs)))
        nodes.append(node)
    graph.nodes = nodes


def _chain(division: Node, uses: dict[Value, list[Node]]) -> list[Node]:
    """What computes a quotient of parts of one product; nothing if it is none."""
    found, sources = {division: None}, []
    for value in division.inputs:
        step = _producer(value)
        if step is not None and step.kind == "Add":
            others = [x for x in step.inputs if x is not None and x.const is None]
            if len(others) != 1:
                return []
            found[step] = None
            step = _producer(others[0])
        if step is None or step.kind not in ("Slice", "Split"):
            return []
        found[step] = None
        sources.append(step.inputs[0])
    product = _producer(sources[0])
    if sources[0] is not sources[1] or product is None or not _multiplies_results(product):
        return []
    found[product] = None
    for value in product.inputs:
        before = _producer(value)
        if value is None or before is None or not _multiplies_results(before):
            continue
        if uses[value] == [product]:
            found[before] = None
    return list(found)


def _multiplies_results(node: Node) -> bool:
    """Whether it is a product without weights, which may have a form of their own."""
    return node.kind == "MatMul" and all(x is not None and x.const is None for x in node.inputs)


def _producer(value: Value | None) -> Node | None:
    return None if value is None else value.producer


def _widen_inputs(product: Node, wide: dict[Node, None], widened: dict[Value, Value]) -> list[Node]:
    """Gives a product float32; the conversions that it needs beside those that are there."""
    made = []
    for at, value in enumerate(product.inputs):
        if value is None or value.producer in wide:
            continue
        if value not in widened:
            widened[value] = Value(value.name, SINGLE, value.shape)
            made.append(
                Node(
                    "Widen",
                    [value],
                    [widened[value]],
                    domain="partita",
                    name=f"{product.name} (float32)",
                    origins=(),
                )
            )
        product.inputs[at] = widened[value]
    return made
