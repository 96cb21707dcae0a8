"""Nodes that do nothing are removed."""

from __future__ import annotations

import numpy as np

from partita.lowering.fusion.rewriting import Rewriter, fusion_pass
from partita.lowering.graph import Node, Value


@fusion_pass(10)
def remove_idle(rewriter: Rewriter) -> None:
    """Removes Identity, Dropout in inference, and Cast, Transpose, Pad, Concat that change nothing.

    Dropout stays where its mask is read or where it may be in training mode.
    """
    for node in rewriter.nodes():
        source = node.input(0)
        if source is not None and _is_idle(node, source) and not any(node.outputs[1:]):
            rewriter.remove(node, source)


_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"})


@fusion_pass(12)
def drop_expansions(rewriter: Rewriter) -> None:
    """Lets operators that broadcast read what Expand repeated to the shape of their other input.

    Exporters divide vectors by their lengths so: the lengths were written once for each element.
    """
    for node in rewriter.nodes():
        if node.kind not in _BROADCASTING or len(node.inputs) != 2:
            continue
        for place, other in enumerate(reversed(node.inputs)):
            expand = rewriter.maker(node.inputs[place], "Expand")
            repeated = None if expand is None else expand.outputs[0]
            if expand is None or repeated is None or other is None or other is repeated:
                continue
            if rewriter.same_shape(repeated, other):
                _read_unexpanded(rewriter, node, expand, place)
                break


def _read_unexpanded(rewriter: Rewriter, node: Node, expand: Node, place: int) -> None:
    result = node.outputs[0]
    if result is None:
        return
    inputs = [*node.inputs[:place], expand.inputs[0], *node.inputs[place + 1 :]]
    new = Node(
        node.op_type,
        inputs,
        [result],
        node.attrs,
        domain=node.domain,
        version=node.version,
        name=node.name,
    )
    both = [expand, node]
    rewriter.replace(both if rewriter.inner(both, result) else [node], new)


def _is_idle(node: Node, source: Value) -> bool:
    match node.kind:
        case "Identity":
            return True
        case "Dropout":
            return _dropout_is_idle(node)
        case "Cast":
            return source.dtype is not None and _cast_target(node) == source.dtype
        case "Transpose":
            perm = node.attrs.get("perm")
            return perm is not None and perm == list(range(len(perm)))
        case "Pad":
            return _pads_nothing(node)
        case "Concat":
            return len(node.inputs) == 1
    return False


def _dropout_is_idle(node: Node) -> bool:
    if node.version < 7:
        return bool(node.attrs.get("is_test", 0))
    training = node.input(2)
    return training is None or (training.const is not None and not training.const.any())


def _cast_target(node: Node) -> np.dtype[np.generic] | None:
    import onnx_ir as ir

    from partita.model.model import numpy_dtype

    target = node.attrs.get("to")
    return numpy_dtype(ir.DataType(target)) if isinstance(target, int) else None


def _pads_nothing(node: Node) -> bool:
    pads = node.attrs.get("pads") or node.attrs.get("paddings")
    if pads is None:
        value = node.input(1)
        if value is None or value.const is None or value.const.ndim != 1:
            return False
        pads = value.const.tolist()
    return not any(pads)
