"""Activations spelled out in several nodes become one node."""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from partita.lowering.fusion.rewriting import (
    Rewriter,
    fusion_pass,
    is_scalar,
    origins,
    other_input,
    scalar,
    scalar_input,
)
from partita.lowering.graph import Node, Value

_ROUNDED = {np.dtype(np.float16): 2.0**-11, np.dtype(ml_dtypes.bfloat16): 2.0**-8}
"""How far a number is off, relatively, that a type of 16 bits rounds."""


@fusion_pass(20)
def fuse_hard_activations(rewriter: Rewriter) -> None:
    """``clip(x + 3, 0, 6) / 6`` becomes HardSigmoid, and that times x HardSwish.

    Known spellings: division by 6 or multiplication by 1/6, before or after multiplying by x, and
    a HardSigmoid that is in the model already.
    """
    for node in rewriter.nodes():
        if node.kind == "Add":
            _fuse_clip(rewriter, node)
    for node in rewriter.nodes():
        if node.kind == "HardSigmoid":
            _fuse_hard_swish(rewriter, node)


@fusion_pass(30)
def fuse_silu(rewriter: Rewriter) -> None:
    """``x * sigmoid(x)`` becomes ``partita::Silu``."""
    for node in rewriter.nodes():
        product = rewriter.only_user(node.outputs[0], "Mul") if node.kind == "Sigmoid" else None
        if product is not None and other_input(product, node.outputs[0]) is node.inputs[0]:
            group = [node, product]
            rewriter.replace(group, _node("Silu", 1, node.inputs[0], product, group, "partita"))


@fusion_pass(40)
def fuse_gelu(rewriter: Rewriter) -> None:
    """``x / 2 * (1 + erf(x / sqrt(2)))`` and the form with tanh become Gelu."""
    for node in rewriter.nodes():
        if node.kind == "Erf":
            inner, group = _erf_argument(rewriter, node)
        elif node.kind == "Tanh":
            inner, group = _tanh_argument(rewriter, node)
            if inner is None:
                inner, group = _factored_argument(rewriter, node)
        else:
            continue
        plus = rewriter.only_user(node.outputs[0], "Add")
        added = None if plus is None else other_input(plus, node.outputs[0])
        if inner is None or plus is None or not is_scalar(added, 1.0):
            continue
        tail = _half_product(rewriter, plus, inner)
        if tail is None:
            continue
        group = [*group, node, plus, *tail]
        if rewriter.inner(group, tail[-1].outputs[0] or inner):
            attrs = {"approximate": "none" if node.kind == "Erf" else "tanh"}
            fused = _node("Gelu", 20, inner, tail[-1], group)
            fused.attrs = attrs
            rewriter.replace(group, fused)


def _fuse_clip(rewriter: Rewriter, plus: Node) -> None:
    found = scalar_input(plus)
    clip = rewriter.only_user(plus.outputs[0], "Clip")
    if found is None or not math.isclose(found[1], 3.0) or clip is None or not _is_0_to_6(clip):
        return
    x = found[0]
    sixth = _sixth(rewriter, clip.outputs[0])
    if sixth is not None:
        group = [plus, clip, sixth]
        fused = _node("HardSigmoid", 6, x, sixth, group)
        fused.attrs = {"alpha": 1 / 6, "beta": 0.5}
        rewriter.replace(group, fused)
        return
    product = rewriter.only_user(clip.outputs[0], "Mul")
    if product is None or other_input(product, clip.outputs[0]) is not x:
        return
    sixth = _sixth(rewriter, product.outputs[0])
    if sixth is not None:
        group = [plus, clip, product, sixth]
        rewriter.replace(group, _node("HardSwish", 14, x, sixth, group))


def _fuse_hard_swish(rewriter: Rewriter, sigmoid: Node) -> None:
    alpha, beta = sigmoid.number("alpha", 0.2), sigmoid.number("beta", 0.5)
    product = rewriter.only_user(sigmoid.outputs[0], "Mul")
    if product is None or other_input(product, sigmoid.outputs[0]) is not sigmoid.inputs[0]:
        return
    double = sigmoid.inputs[0] is not None and sigmoid.inputs[0].dtype == np.float64
    near = 0 if double else 1e-4  # in float64 a slope of float32 is another one
    if math.isclose(alpha, 1 / 6, rel_tol=near) and math.isclose(beta, 0.5, rel_tol=1e-6):
        group = [sigmoid, product]
        rewriter.replace(group, _node("HardSwish", 14, sigmoid.inputs[0], product, group))


def _is_0_to_6(clip: Node) -> bool:
    if clip.version < 11:
        return clip.attrs.get("min") == 0.0 and clip.attrs.get("max") == 6.0
    return scalar(clip.input(1)) == 0.0 and scalar(clip.input(2)) == 6.0


def _sixth(rewriter: Rewriter, value: Value | None) -> Node | None:
    """The node that divides a value by 6, if it is the only one that reads it."""
    node = rewriter.only_user(value, "Div", "Mul")
    if node is None:
        return None
    if node.kind == "Div":
        divides = node.inputs[0] is value and is_scalar(node.inputs[1], 6.0, 1e-6)
        return node if divides else None
    return node if is_scalar(other_input(node, value), 1 / 6) else None


def _spelling(node: Node) -> float:
    """How far off, relatively, constants may be that belong to numbers of a node's type."""
    value = node.inputs[0]
    return _ROUNDED.get(value.dtype, 1e-4) if value is not None and value.dtype else 1e-4


def _erf_argument(rewriter: Rewriter, erf: Node) -> tuple[Value | None, list[Node]]:
    """The x of ``erf(x / sqrt(2))``."""
    scale = rewriter.maker(erf.inputs[0], "Div", "Mul")
    if scale is None:
        return None, []
    if scale.kind == "Div" and is_scalar(scale.inputs[1], math.sqrt(2), _spelling(erf)):
        return scale.inputs[0], [scale]
    found = scalar_input(scale) if scale.kind == "Mul" else None
    if found is not None and math.isclose(found[1], math.sqrt(0.5), rel_tol=_spelling(erf)):
        return found[0], [scale]
    return None, []


def _tanh_argument(rewriter: Rewriter, tanh: Node) -> tuple[Value | None, list[Node]]:
    """The x of ``tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))``."""
    outer = rewriter.maker(tanh.inputs[0], "Mul")
    found = None if outer is None else scalar_input(outer)
    if found is None or not math.isclose(found[1], math.sqrt(2 / math.pi), rel_tol=_spelling(tanh)):
        return None, []
    plus = rewriter.maker(found[0], "Add")
    if plus is None or outer is None:
        return None, []
    for x, rest in (plus.inputs, plus.inputs[::-1]):
        inner = rewriter.maker(rest, "Mul")
        factor = None if inner is None else scalar_input(inner)
        if (
            inner is None
            or factor is None
            or not math.isclose(factor[1], 0.044715, rel_tol=_spelling(tanh))
        ):
            continue
        cube = _cube_of(rewriter, factor[0], x)
        if cube:
            return x, [outer, plus, inner, *cube]
    return None, []


def _factored_argument(rewriter: Rewriter, tanh: Node) -> tuple[Value | None, list[Node]]:
    """The x of ``tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x * x))``."""
    factors, number, nodes = _factors(rewriter, tanh.inputs[0])
    if len(factors) != 2 or not math.isclose(
        number, math.sqrt(2 / math.pi), rel_tol=_spelling(tanh)
    ):
        return None, []
    for x, other in (factors, factors[::-1]):
        plus = rewriter.maker(other, "Add")
        found = None if plus is None else scalar_input(plus)
        if plus is None or found is None or not math.isclose(found[1], 1.0):
            continue
        squares, cubic, inner = _factors(rewriter, found[0])
        if squares == [x, x] and math.isclose(cubic, 0.044715, rel_tol=_spelling(tanh)):
            return x, [*nodes, plus, *inner]
    return None, []


def _factors(
    rewriter: Rewriter, value: Value | None
) -> tuple[list[Value | None], float, list[Node]]:
    """Of a product the factors, the numbers among them multiplied, and the nodes that compute it.

    What another node reads too is a factor as it is.
    """
    number = scalar(value)
    if number is not None:
        return [], number, []
    node = rewriter.maker(value, "Mul") if rewriter.only_user(value) is not None else None
    if node is None:
        return [value], 1.0, []
    parts = [_factors(rewriter, read) for read in node.inputs]
    numbers = math.prod(part[1] for part in parts)
    nodes = [node, *(inner for part in parts for inner in part[2])]
    return [factor for part in parts for factor in part[0]], numbers, nodes


def _cube_of(rewriter: Rewriter, value: Value, x: Value | None) -> list[Node]:
    """The nodes that compute ``x ** 3``; none if ``value`` is something else."""
    node = rewriter.maker(value, "Pow", "Mul")
    if node is None:
        return []
    if node.kind == "Pow":
        return [node] if node.inputs[0] is x and is_scalar(node.inputs[1], 3.0) else []
    square = rewriter.maker(other_input(node, x), "Mul", "Pow")
    if square is None or square.inputs[0] is not x:
        return []
    if square.kind == "Pow":
        return [node, square] if is_scalar(square.inputs[1], 2.0) else []
    return [node, square] if square.inputs[1] is x else []


def _half_product(rewriter: Rewriter, plus: Node, x: Value) -> list[Node] | None:
    """The nodes that multiply ``plus`` by x and by one half, in any order; the result is last."""
    first = rewriter.only_user(plus.outputs[0], "Mul")
    if first is None:
        return None
    factor = other_input(first, plus.outputs[0])
    half = rewriter.maker(factor, "Mul", "Div")
    if half is not None and half is not plus and _is_half_of(half, x):
        return [half, first]
    second = rewriter.only_user(first.outputs[0], "Mul", "Div")
    if second is None:
        return None
    if factor is x and _halves(second, first.outputs[0]):
        return [first, second]
    if is_scalar(factor, 0.5) and second.kind == "Mul":
        return [first, second] if other_input(second, first.outputs[0]) is x else None
    return None


def _is_half_of(node: Node, x: Value) -> bool:
    return any(value is x for value in node.inputs) and _halves(node, x)


def _halves(node: Node, value: Value | None) -> bool:
    if node.kind == "Div":
        return node.inputs[0] is value and is_scalar(node.inputs[1], 2.0)
    return is_scalar(other_input(node, value), 0.5)


def _node(
    op_type: str, version: int, x: Value | None, last: Node, group: list[Node], domain: str = ""
) -> Node:
    """A node of one input that takes over the result of ``last``.

    Args:
        op_type: The operator.
        version: Its opset.
        x: The input.
        last: The node whose result and name it takes over.
        group: All nodes in whose place it stands.
        domain: The operator's.
    """
    return Node(
        op_type,
        [x],
        [last.outputs[0]],
        domain=domain,
        version=version,
        name=last.name,
        origins=origins(_in_order(group)),
    )


def _in_order(group: list[Node]) -> Iterator[Node]:
    yield from group
