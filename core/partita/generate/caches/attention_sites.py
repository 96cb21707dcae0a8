"""Attention over caches that grow, found in a graph as exporters spell it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from partita.model.model import value_shape
from partita.model.variables import Variable

if TYPE_CHECKING:
    import onnx_ir as ir

HEADS_BEHIND = [0, 2, 1, 3]
"""The transposition between (batch, tokens, heads, size) and (batch, heads, tokens, size)."""

_TRANSPOSED = [0, 1, 3, 2]

_NEVER = -1e4
"""A key with such a score does not count, whatever is added to it."""


class UnusualCacheError(Exception):
    """A cache is read in a way that is not known here; says which and how."""


@dataclass(frozen=True, eq=False)
class CacheGrowth:
    """How a cache becomes longer.

    Attributes:
        past: What it was, an input of the graph.
        new: What is put behind it.
        present: What it becomes, an output of the graph.
        heads: Heads of keys or values.
        size: Elements of one of them.
    """

    past: ir.Value
    new: ir.Value
    present: ir.Value
    heads: int
    size: int


@dataclass(frozen=True)
class Site:
    """One attention: ``softmax(query @ keys.T * factors + biases) @ values``.

    Attributes:
        query: (batch, heads, tokens, size).
        heads: Heads of queries.
        keys: The cache of the keys.
        values: That of the values.
        factors: ``Mul`` or ``Div``, and the scalar that scores are multiplied with or divided by.
        biases: What is added to the scores.
        replaced: Where a condition does not hold, a score is the number instead.
        mix: The product of shares and values.
    """

    query: ir.Value
    heads: int
    keys: CacheGrowth
    values: CacheGrowth
    factors: Sequence[tuple[str, ir.Value]]
    biases: Sequence[ir.Value]
    replaced: Sequence[tuple[ir.Value, ir.Value]]
    mix: ir.Node


def growths(graph: ir.Graph, caches: Sequence[Variable], axis: int) -> dict[ir.Value, CacheGrowth]:
    """How each cache grows, by what it becomes.

    Args:
        graph: A decoder.
        caches: Its caches, of shape (batch, heads, tokens, size).
        axis: That of the tokens.

    Raises:
        UnusualCacheError: One is not joined of past and new along the axis.
    """
    inputs = {value.name: value for value in graph.inputs}
    outputs = {value.name: value for value in graph.outputs}
    found = [_growth(inputs[one.read], outputs[one.written], axis) for one in caches]
    return {growth.present: growth for growth in found}


def _growth(past: ir.Value, present: ir.Value, axis: int) -> CacheGrowth:
    node, shape = maker(present, "Concat"), value_shape(past)
    if node is None or len(node.inputs) != 2 or node.inputs[0] is not past:
        raise UnusualCacheError(f"'{present.name}' is not made by a Concat of past and new")
    new = node.inputs[1]
    known = shape is not None and len(shape) == 4
    if new is None or not known or node.attributes["axis"].as_int() % 4 != axis:
        raise UnusualCacheError(f"'{present.name}' does not grow along axis {axis} of four")
    _, heads, _, size = shape or ()
    if not isinstance(heads, int) or not isinstance(size, int):
        raise UnusualCacheError(f"how many heads '{past.name}' has is not known")
    return CacheGrowth(past, new, present, heads, size)


def sites(graph: ir.Graph, caches: Mapping[ir.Value, CacheGrowth]) -> list[Site]:
    """The attentions over caches, in the order of the graph.

    Args:
        graph: A decoder.
        caches: How each cache grows, by what it becomes; see `growths`.

    Raises:
        UnusualCacheError: Not each cache is read by one.
    """
    found = []
    for node in graph:
        site = _site(node, caches) if node.op_type == "Softmax" and not node.domain else None
        if site is not None:
            found.append(site)
    read = [growth for site in found for growth in (site.keys, site.values)]
    for growth in caches.values():
        if read.count(growth) != 1:
            raise UnusualCacheError(
                f"'{growth.past.name}' is read by {read.count(growth)} attentions of two products "
                "and a Softmax; one is known"
            )
    return found


def _site(softmax: ir.Node, caches: Mapping[ir.Value, CacheGrowth]) -> Site | None:
    mix = _mix(softmax)
    if mix is None or not _is_along_keys(softmax):
        return None
    inner, biases, replaced = _unmasked(softmax.inputs[0])
    product, factors = _unscaled(inner, "MatMul")
    if product is None or product.inputs[0] is None:
        return None
    transposed, others = _unscaled(product.inputs[1], "Transpose")
    if transposed is None or not permutes(transposed, _TRANSPOSED):
        return None
    keys, values = (_cache_of(x, caches) for x in (transposed.inputs[0], mix.inputs[1]))
    if keys is None or values is None:
        return None
    query = product.inputs[0]
    if (keys.heads, keys.size) != (values.heads, values.size):
        raise UnusualCacheError(f"'{keys.past.name}' and '{values.past.name}' are not alike")
    heads = _heads(query, transposed.inputs[0], keys)
    return Site(query, heads, keys, values, [*factors, *others], biases, replaced, mix)


def _heads(query: ir.Value, repeated: ir.Value | None, keys: CacheGrowth) -> int:
    """How many heads of queries there are."""
    if repeated is keys.present:
        return keys.heads
    for value in (query, repeated):
        shape = None if value is None else value_shape(value)
        count = shape[1] if shape is not None and len(shape) == 4 else None
        if isinstance(count, int) and count % keys.heads == 0:
            return count
    raise UnusualCacheError(f"how many heads read '{keys.past.name}' is not known")


def _mix(softmax: ir.Node) -> ir.Node | None:
    """The product of a softmax's shares and values, behind what guards them."""
    value = softmax.outputs[0]
    while True:
        readers = {use.node for use in value.uses()}
        guards = [node for node in readers if node.op_type == "IsNaN"]
        others = [node for node in readers if node.op_type != "IsNaN"]
        if len(others) != 1 or value.is_graph_output():
            return None
        (node,) = others
        if node.op_type == "MatMul":
            return node if node.inputs[0] is value and not guards else None
        guarded = node.op_type == "Where" and node.inputs[2] is value and len(guards) == 1
        if guarded and node.inputs[0] is guards[0].outputs[0]:
            zero = number(node.inputs[1])
            if zero != 0:
                return None
        elif guards or node.op_type not in ("Cast", "Identity", "Dropout"):
            return None
        value = node.outputs[0]


def _is_along_keys(softmax: ir.Node) -> bool:
    axis = softmax.attributes.get("axis")
    return (-1 if axis is None else axis.as_int()) in (-1, 3)


def _unmasked(
    value: ir.Value | None,
) -> tuple[ir.Value | None, list[ir.Value], list[tuple[ir.Value, ir.Value]]]:
    """Scores without what is added to them, and without what takes their places."""
    biases: list[ir.Value] = []
    replaced: list[tuple[ir.Value, ir.Value]] = []
    while True:
        node = maker(value, "Add", "Where", "Cast")
        if node is None:
            return value, biases, replaced
        if node.op_type == "Cast":
            value = node.inputs[0]
            continue
        if node.op_type == "Where":
            condition, value, far = node.inputs
            low = number(far)
            if condition is None or far is None or low is None or low > _NEVER:
                return node.outputs[0], biases, replaced
            replaced.append((condition, far))
            continue
        inner = [x for x in node.inputs if _leads_to_product(x)]
        if len(inner) != 1:
            return node.outputs[0], biases, replaced
        biases += [x for x in node.inputs if x is not None and x is not inner[0]]
        value = inner[0]


def _leads_to_product(value: ir.Value | None) -> bool:
    """Whether scores come this way: back through what may be done to them there is a product."""
    for _ in range(8):
        node = maker(value, "Add", "Where", "Cast", "Mul", "Div", "MatMul")
        if node is None or node.op_type == "MatMul":
            return node is not None
        if node.op_type == "Add":
            return any(map(_leads_to_product, node.inputs))
        value = node.inputs[1 if node.op_type == "Where" else 0]
    return False


def _unscaled(
    value: ir.Value | None, op_type: str
) -> tuple[ir.Node | None, list[tuple[str, ir.Value]]]:
    """What an operator has made, and what scalars it is multiplied with or divided by since."""
    factors: list[tuple[str, ir.Value]] = []
    while True:
        node = maker(value, op_type, "Mul", "Div")
        if node is None or node.op_type == op_type:
            return node, factors
        inner, factor = node.inputs
        if node.op_type == "Mul" and _is_scalar(inner):
            inner, factor = factor, inner
        if factor is None or not _is_scalar(factor):
            return None, factors
        factors.append((node.op_type, factor))
        value = inner


def _cache_of(value: ir.Value | None, caches: Mapping[ir.Value, CacheGrowth]) -> CacheGrowth | None:
    """The cache that a value is, or whose heads it repeats side by side."""
    if value is not None and value in caches:
        return caches[value]
    reshape = maker(value, "Reshape")
    expand = maker(reshape.inputs[0], "Expand") if reshape else None
    unsqueeze = maker(expand.inputs[0], "Unsqueeze") if expand else None
    if unsqueeze is None or reshape is None or _axes(unsqueeze) != [2]:
        return None
    dims, source = reshape.inputs[1], unsqueeze.inputs[0]
    is_of_four = dims is not None and value_shape(dims) == (4,)
    return caches.get(source) if is_of_four and source is not None else None


def repeated(growth: CacheGrowth) -> Iterator[ir.Value]:
    """What a cache is with its heads repeated."""
    for use in growth.present.uses():
        values = [*use.node.outputs]
        for op_type in ("Expand", "Reshape"):
            uses = [one.node for value in values for one in value.uses()]
            values = [node.outputs[0] for node in uses if node.op_type == op_type]
        yield from values


def _axes(unsqueeze: ir.Node) -> list[int] | None:
    attribute = unsqueeze.attributes.get("axes")
    if attribute is not None:
        return list(attribute.as_ints())
    axes = unsqueeze.inputs[1] if len(unsqueeze.inputs) > 1 else None
    held = None if axes is None else axes.const_value
    return None if held is None else [int(axis) for axis in held.numpy().ravel()]


def _is_scalar(value: ir.Value | None) -> bool:
    shape = None if value is None else value_shape(value)
    return shape is not None and all(size == 1 for size in shape) and len(shape) <= 1


def number(value: ir.Value | None) -> float | None:
    """The one number that a value is known to be, through casts."""
    while value is not None and value.const_value is None:
        node = maker(value, "Cast", "CastLike", "Identity")
        value = None if node is None else node.inputs[0]
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return float(np.asarray(value.const_value.numpy(), np.float64).reshape(-1)[0])


def maker(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The operation that makes a value, if it is one of ONNX's of these names."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in op_types and not node.domain else None


def permutes(node: ir.Node, order: Sequence[int]) -> bool:
    """Whether an operation is ONNX's Transpose with exactly this ``perm``."""
    perm = node.attributes.get("perm")
    known = node.op_type == "Transpose" and not node.domain and perm is not None
    return known and list(perm.as_ints()) == list(order)  # type: ignore[union-attr]
