"""Experts that are branches of their own become one node, which knows what each token chose.

A branch is taken or not while the model runs, so that each choice of experts would be a program of
its own. The node has the rows of each expert multiplied by its weights, and those of no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from partita.lowering.fusion.activation import Activation, ActivationCode
from partita.lowering.fusion.rewriting import (
    Rewriter,
    fusion_pass,
    origins,
    other_input,
    scalar,
    scalar_input,
)
from partita.lowering.graph import Graph, Node, Value

_BLOCKS = "com.microsoft::MatMulNBits"
_FLOATS = tuple(np.dtype(kind) for kind in ("float32", "float16"))


@fusion_pass(95)
def fuse_mixtures(rewriter: Rewriter) -> None:
    """A Sum of Ifs over the experts of a TopK becomes ``partita::Mixture``.

    Its inputs are the tokens (..., terms), the experts that each chose (..., k), their shares, and
    for each of three products (gate, up, down) and each expert its weights, scales, zero points and
    bias as MatMulNBits has them; of weights that are floats, (terms, columns), there are no others.
    Attribute `experts` is how many there are, `parts` has for each product its
    terms, columns, the terms of a block and bits, both 0 for floats. An expert is
    ``down(silu(gate(x)) * up(x))``; or with attribute `swiglu`, which is alpha, beta and limit,
    ``down(g * sigmoid(alpha * g) * (clip(up(x), -limit, limit) + beta))`` with
    ``g = min(gate(x), limit)``.
    """
    for node in rewriter.nodes():
        if node.kind == "Sum":
            _fuse(rewriter, node)


def expert_ifs(graph: Graph) -> frozenset[Node]:
    """The Ifs of a graph that are experts: what tokens do not choose would be zeros anyway.

    A back-end that takes ``partita::Mixture``, and no If, can take these by
    :func:`compute_both_branches` where experts of a mixture are missing, or all that chose them:
    what an If computes tells that it is an expert, wherever its share comes from.
    """
    ifs = [node for node in graph.nodes if node.kind == "If"]
    return frozenset(node for node in ifs if _expert(node) is not None)


def compute_both_branches(graph: Graph) -> None:
    """Lets experts that are no part of a mixture be computed whether or not they are chosen.

    Their branches become nodes of the graph, and a Where picks the result of one.
    """
    experts = expert_ifs(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node not in experts:
            nodes.append(node)
            continue
        results = []
        for name in ("then_branch", "else_branch"):
            body = node.attrs[name]
            nodes += body.nodes
            results += body.outputs
        nodes.append(node.step("Where", [node.inputs[0], *results], node.result))
    graph.nodes = nodes


def _fuse(rewriter: Rewriter, total: Node) -> None:
    ifs = [rewriter.maker(value, "If") for value in total.inputs]
    experts = [found for node in ifs if node is not None and (found := _expert(node))]
    result = total.outputs[0]
    if not experts or len(experts) < len(ifs) or result is None:
        return
    first = experts[0]
    split = rewriter.maker(first.share, "Split")
    choice = None if split is None else _choice(rewriter, split)
    alike = all(one.x is first.x for one in experts)
    same = all(one.form == first.form for one in experts)
    if split is None or choice is None or not alike or not same:
        return
    if [one.share for one in experts] != list(split.outputs):
        return
    weights = [
        value
        for part in range(len(first.parts))
        for expert in experts
        for value in expert.parts[part].values
    ]
    tests = [_test(rewriter, one, number, choice.shares) for number, one in enumerate(experts)]
    if any(test is None for test in tests):
        return
    group = [total, *(expert.node for expert in experts)]
    around = [split, *choice.nodes, *(node for test in tests for node in test or ())]
    if rewriter.inner([*group, *around], result):
        group += around
    fused = Node(
        "Mixture",
        [first.x, choice.places, choice.of_places, *weights],
        [result],
        {"experts": len(experts), "parts": first.sizes, "swiglu": first.swiglu},
        domain="partita",
        name=total.name,
        origins=origins(group),
    )
    if rewriter.inner(group, result):
        rewriter.replace(group, fused)


class _Product(NamedTuple):
    """A product by constant weights.

    Attributes:
        x: What is multiplied.
        values: Weights, scales, zero points, biases.
        sizes: Terms, columns, terms of a block, bits.
    """

    x: Value
    values: tuple[Value | None, ...]
    sizes: tuple[int, int, int, int]


SwiGlu = tuple[float, float, float]
"""Alpha, beta and limit."""


class _Gated(NamedTuple):
    """What one product lets through of another.

    Attributes:
        gate: What is activated.
        up: What is let through.
        swiglu: Numbers of the activation; ``None`` for SiLU.
    """

    gate: _Product
    up: _Product
    swiglu: SwiGlu | None = None


class _Expert(NamedTuple):
    """An expert.

    Attributes:
        node: The If.
        condition: Whether any token chose it.
        share: What its result is multiplied by; one for each token.
        x: Tokens.
        parts: Gate, up, down.
        swiglu: Numbers of the activation; ``None`` for SiLU.
    """

    node: Node
    condition: Value
    share: Value
    x: Value
    parts: tuple[_Product, _Product, _Product]
    swiglu: SwiGlu | None

    @property
    def sizes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Of its products."""
        return tuple(part.sizes for part in self.parts)

    @property
    def form(self) -> tuple[object, ...]:
        """What experts have alike whose numbers can lie side by side: sizes and types."""
        values = [value for part in self.parts for value in part.values]
        kinds = (None if value is None else value.dtype for value in values)
        return (*self.sizes, self.swiglu, *kinds)


def _expert(node: Node) -> _Expert | None:
    """The expert that an If computes where it was chosen."""
    body, other = node.attrs.get("then_branch"), node.attrs.get("else_branch")
    condition = node.inputs[0]
    if not isinstance(body, Graph) or not isinstance(other, Graph) or condition is None:
        return None
    makers = {value: one for one in body.nodes for value in one.outputs if value is not None}
    last = makers.get(body.outputs[0])
    if len(body.outputs) != 1 or last is None or last.kind != "Mul":
        return None
    for share in last.inputs:
        whole = other_input(last, share)
        down = _product(makers, whole)
        if share is None or share in makers or down is None:
            continue
        gated = _gated(makers, down.x)
        if gated is None or gated.gate.x is not gated.up.x or gated.gate.x in makers:
            continue
        x, parts = gated.gate.x, (gated.gate, gated.up, down)
        if _is_row_each(share, x) and _is_zero(other, share, down.sizes[1]):
            return _Expert(node, condition, share, x, parts, gated.swiglu)
    return None


def _gated(makers: Mapping[Value, Node], value: Value) -> _Gated | None:
    """The products of which one lets the other through."""
    product = makers.get(value)
    if product is None or product.kind != "Mul":
        return None
    for first, second in (product.inputs, product.inputs[::-1]):
        if (bounded := _swiglu(makers, first, second)) is not None:
            return bounded
        node, up = makers.get(first) if first else None, _product(makers, second)
        if node is None or up is None:
            continue
        gate = None
        if (gates := _silu_of(makers, node)) is not None:
            gate = _product(makers, gates)
        elif _activates(node):
            gate = _product(makers, first, activated=True)
        if gate is not None:
            return _Gated(gate, up)
    return None


def _swiglu(
    makers: Mapping[Value, Node], active: Value | None, more: Value | None
) -> _Gated | None:
    """What a product of two values is, if one is an activated gate, and both are bounded."""
    through = _with_scalar(makers, more, "Add")
    clip = None if through is None else makers.get(through[0])
    swish = makers.get(active) if active else None
    if through is None or clip is None or clip.kind != "Clip" or swish is None:
        return None
    least, most = scalar(clip.input(1)), scalar(clip.input(2))
    up = _product(makers, clip.inputs[0])
    if up is None or most is None or least != -most or swish.kind != "Mul":
        return None
    for bounded, other in (swish.inputs, swish.inputs[::-1]):
        sigmoid, gate = makers.get(other) if other else None, _with_scalar(makers, bounded, "Min")
        if sigmoid is None or sigmoid.kind != "Sigmoid" or gate is None or gate[1] != most:
            continue
        steep, product = _with_scalar(makers, sigmoid.inputs[0], "Mul"), _product(makers, gate[0])
        if steep is not None and steep[0] is bounded and product is not None:
            return _Gated(product, up, (steep[1], through[1], most))
    return None


def _with_scalar(
    makers: Mapping[Value, Node], value: Value | None, kind: str
) -> tuple[Value, float] | None:
    """What an operation of a kind makes a value of, with the constant scalar that it reads too."""
    node = None if value is None else makers.get(value)
    return None if node is None or node.kind != kind else scalar_input(node)


def _silu_of(makers: Mapping[Value, Node], node: Node) -> Value | None:
    """What a node multiplies by its own sigmoid, if it does that; back-ends may not fuse it."""
    if node.kind == "partita::Silu":
        return node.inputs[0]
    if node.kind != "Mul":
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        sigmoid = makers.get(other) if other else None
        if sigmoid is not None and sigmoid.kind == "Sigmoid" and sigmoid.inputs[0] is x:
            return x
    return None


def _activates(node: Node) -> bool:
    activation = node.attrs.get("activation")
    silu = isinstance(activation, Activation) and activation.code is ActivationCode.SILU
    return node.kind == "partita::MatMul" and silu


def _product(
    makers: Mapping[Value, Node], value: Value | None, activated: bool = False
) -> _Product | None:
    node = None if value is None else makers.get(value)
    if node is None or node.inputs[0] is None:
        return None
    if node.kind == _BLOCKS:
        return _in_blocks(node, node.inputs[0])
    kinds = ("partita::MatMul",) if activated else ("MatMul",)
    w = node.inputs[1] if node.kind in kinds else None
    if w is None or any(extra is not None for extra in node.inputs[2:]):
        return None
    cast = makers.get(w)
    if cast is not None and cast.kind == "Cast" and w.dtype == _FLOATS[0]:
        w = cast.inputs[0]
    const = None if w is None else w.const
    if w is None or const is None or const.ndim != 2:
        return None
    if const.dtype not in _FLOATS and const.dtype.name != "bfloat16":
        return None
    return _Product(node.inputs[0], (w, None, None, None), (*const.shape, 0, 0))


def _is_bias(value: Value, columns: int) -> bool:
    return value.const is not None and value.const.shape == (columns,)


def _in_blocks(node: Node, x: Value) -> _Product | None:
    """A product by weights in blocks, if they are constant and as many as they are to be."""
    w, scales, zeros = node.inputs[1], node.inputs[2], node.input(3)
    terms, columns = node.attrs["K"], node.attrs["N"]
    size, bits = node.attrs["block_size"], node.attrs.get("bits", 4)
    order, bias = node.input(4), node.input(5)
    if w is None or scales is None or order is not None:
        return None
    if bias is not None and not _is_bias(bias, columns):
        return None
    if w.const is None or scales.const is None or (zeros is not None and zeros.const is None):
        return None
    blocks = -(-terms // size)
    points = blocks if zeros is None or zeros.dtype != np.uint8 else -(-blocks * bits // 8)
    due = columns * blocks * size * bits // 8, columns * blocks, columns * points
    found = (w, scales, scales if zeros is None else zeros)
    if any(
        value.const is None or value.const.size != count
        for value, count in zip(found, due, strict=True)
    ):
        return None
    return _Product(x, (w, scales, zeros, bias), (terms, columns, size, bits))


def _is_row_each(share: Value, x: Value) -> bool:
    """Whether each token has one share: what is left out has the shape of a result then."""
    if not share.shape or not x.shape:
        return False
    return share.shape == (*x.shape[:-1], 1)


def _is_zero(body: Graph, share: Value, columns: int) -> bool:
    """Whether a branch is a row of zeros for each share."""
    node = body.nodes[0] if len(body.nodes) == 1 else None
    if node is None or node.kind != "Mul" or body.outputs != node.outputs:
        return False
    row = other_input(node, share)
    return (
        row is not None
        and row.const is not None
        and row.const.shape == (columns,)
        and not np.any(row.const)
    )


class _Choice(NamedTuple):
    """What tokens chose.

    Attributes:
        places: Experts of each token.
        of_places: Their shares.
        shares: The shares of all experts, 0 of those that were not chosen.
        nodes: What computes these.
    """

    places: Value
    of_places: Value
    shares: Value
    nodes: Sequence[Node]


def _choice(rewriter: Rewriter, split: Node) -> _Choice | None:
    """The choice whose shares a Split parts, expert by expert."""
    shares = split.inputs[0]
    scatter = rewriter.maker(shares, "ScatterElements")
    if shares is None or scatter is None or not _is_last(scatter, shares):
        return None
    zeros, places, of_places = scatter.inputs
    best = rewriter.maker(places, "TopK")
    maker = rewriter.maker(zeros, "ConstantOfShape")
    count = len(split.outputs)
    if best is None or maker is None or places is None or of_places is None:
        return None
    scores = best.inputs[0]
    if scores is None or not scores.shape or scores.shape[-1] != count:
        return None
    filled = maker.attrs.get("value")
    if filled is not None and np.any(filled):
        return None
    if shares.shape is None or shares.shape[-1] != count or not _is_last(best, scores):
        return None
    if not _is_last(split, shares) or scatter.attrs.get("reduction", "none") != "none":
        return None
    shape = rewriter.maker(maker.inputs[0], "Shape")
    nodes = [scatter, maker, *([] if shape is None else [shape])]
    return _Choice(places, of_places, shares, nodes)


def _is_last(node: Node, value: Value) -> bool:
    """Whether a node works along the last axis of a value."""
    rank = len(value.shape or ())
    default = -1 if node.kind == "TopK" else 0
    return node.attrs.get("axis", default) in (-1, rank - 1) and rank > 0


def _test(rewriter: Rewriter, expert: _Expert, number: int, shares: Value) -> Sequence[Node] | None:
    """The nodes that test whether some share of an expert is more than nothing.

    ``None`` if its condition is another.
    """
    split = rewriter.maker(expert.condition, "Split")
    test = None if split is None else rewriter.maker(split.inputs[0], "Greater")
    most = None if test is None else rewriter.maker(test.inputs[0], "ReduceMax")
    if split is None or test is None or most is None or most.inputs[0] is not shares:
        return None
    rank = len(shares.shape or ())
    axes = most.input(1)
    over = [] if axes is None or axes.const is None else axes.const.reshape(-1).tolist()
    before = [*range(rank - 1)]
    found = sorted(axis % max(rank, 1) for axis in over), split.outputs.index(expert.condition)
    if found != (before, number) or scalar(test.inputs[1]) != 0:
        return None
    return split, test, most
