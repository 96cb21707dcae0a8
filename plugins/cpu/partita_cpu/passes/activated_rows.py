"""Activations between rows and a convolution are computed of the rows, before they are transposed.

Encoders of speech normalize the channels of each step of a sequence, transpose, activate, and
convolve. With the activation in front of the transposition, the rows are the image that the
convolution reads, channels last.
"""

from __future__ import annotations

from collections.abc import Sequence

from partita.lowering import Graph, Node, Value
from partita.lowering.nhwc.conversion import IMAGE_READERS, Shapes
from partita.model.op_traits import Trait, having


def activate_rows(graph: Graph, shapes: Shapes) -> Shapes:
    """Moves what is computed element by element behind a Transpose in front of it.

    Args:
        graph: Changed in place; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.

    Returns:
        Shapes of all values, with those that are new.
    """
    uses, outputs, known = graph.uses(), set(graph.outputs), dict(shapes)
    instead: dict[Node, Sequence[Node]] = {}
    for node in graph.nodes:
        rows = node.inputs[0] if _makes_channels_second(node) else None
        if rows is None or rows not in known:
            continue
        steps: list[Node] = []
        last = node.result
        while last is not None and last not in outputs and len(uses.get(last, ())) == 1:
            step = uses[last][0]
            if not _is_of_elements(step, last, known):
                break
            steps.append(step)
            last = step.result
        readers = [] if last is None else uses.get(last, [])
        if not steps or not any(reader.op_type in IMAGE_READERS for reader in readers):
            continue
        instead.update(dict.fromkeys(steps, ()))
        instead[node] = _transposed_last(node, rows, steps, known)
    if instead:
        graph.nodes = [new for node in graph.nodes for new in instead.get(node, (node,))]
    return known


def _makes_channels_second(node: Node) -> bool:
    """Whether a node moves the last axis behind the first one."""
    perm = list(node.attrs.get("perm") or ())
    return node.kind == "Transpose" and perm == [0, len(perm) - 1, *range(1, len(perm) - 1)]


def _is_of_elements(node: Node, value: Value, shapes: Shapes) -> bool:
    """Whether a node computes each element of its result from one of a value, and numbers."""
    if node.kind not in having(Trait.ELEMENTWISE) or len(node.outputs) != 1:
        return False
    if node.result is None or shapes.get(node.result) != shapes.get(value):
        return False
    others = [read for read in node.reads() if read is not value]
    single = all(read.const is not None and read.const.size == 1 for read in others)
    return single and sum(read is value for read in node.inputs) == 1


def _transposed_last(
    transpose: Node, rows: Value, steps: Sequence[Node], known: dict[Value, tuple[int, ...]]
) -> list[Node]:
    """The steps, of rows, and the transposition of their result."""
    nodes, before, now = [], transpose.result, rows
    for step in steps:
        made = now.like(f"{now.name}:activated")
        known[made] = known[rows]
        inputs = [now if read is before else read for read in step.inputs]
        nodes.append(step.like(inputs, [made]))
        before, now = step.result, made
    return [*nodes, transpose.like([now], [before])]
