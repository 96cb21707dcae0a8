"""Numbers that a convolution's HardSwish is multiplied by and added to, as part of the activation.

Works on graphs with channels last. Networks that learn a factor and a summand for each activation
(PP-LCNetV3) have them as Mul and Add by one constant, each a pass over the image.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from partita.lowering import Activation, ActivationCode, Graph, Node, Value
from partita.lowering.nhwc.conversion import DOMAIN, SINGLE

_CONV = f"{DOMAIN}::Conv"


def scale_gates(graph: Graph) -> None:
    """Lets convolutions multiply and add what alone reads their HardSwish."""
    uses, outputs = graph.uses(), set(graph.outputs)
    gates: dict[Value, Node] = {}  # what became of a convolution's result, and the convolution
    nodes: list[Node] = []
    for node in graph.nodes:
        conv = _read_by(node, gates)
        scaled = None if conv is None else _scaled(conv, node)
        if conv is not None and scaled is not None:
            nodes[nodes.index(conv)] = scaled
        else:
            nodes.append(node)
        last = scaled or node
        result = last.result
        gates_it = last.kind == _CONV and _gate(last) is not None and result not in outputs
        if gates_it and result is not None and len(uses.get(result, [])) == 1:
            gates[result] = last
    graph.nodes = nodes


def _read_by(node: Node, gates: dict[Value, Node]) -> Node | None:
    """The convolution whose gate is one of two inputs of a node, and the other one a constant."""
    if node.kind not in ("Add", "Mul"):
        return None
    found = [gates[value] for value in node.inputs if value in gates]
    return found[0] if len(found) == 1 else None


def _gate(conv: Node) -> Activation | None:
    activation = conv.attrs.get("activation")
    is_gate = activation is not None and activation.code is ActivationCode.HARD_SWISH
    return activation if is_gate else None


def _scaled(conv: Node, node: Node) -> Node | None:
    """The convolution with a product or sum as part of its activation; ``None``: it is another."""
    gate = _gate(conv)
    numbers = [value.const for value in node.reads() if value.const is not None]
    if gate is None or len(numbers) != 1 or numbers[0].size != 1 or numbers[0].dtype != SINGLE:
        return None
    if numbers[0].ndim > 4:
        return None
    number = float(numbers[0].reshape(-1)[0])
    if node.kind == "Add":
        gate = replace(gate, beta=gate.beta + number)
    else:
        factor = float(np.float32((gate.alpha or 1.0) * number))
        if factor == 0 or gate.beta:
            return None
        gate = replace(gate, alpha=factor)
    origins = (*conv.origins, *node.origins)
    return conv.like(outputs=node.outputs, attrs={"activation": gate}, origins=origins)
