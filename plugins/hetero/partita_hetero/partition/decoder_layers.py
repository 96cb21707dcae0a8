"""The layers of a decoder: which operations stay together when a language model is placed.

A layer is found by its cache, not by names. The level of an operation is how many caches of past
keys and values lie before it, one behind the other; where a cache is read, a level begins. Most
operations of a level end one layer (the feed-forward part), the others begin the next (its norm,
its projections): between the two lies the residual stream, which leads to the next cache and goes
around it as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partita.model.value_uses import bodies, values_read
from partita_hetero.partition.op_graph import OpGraph

if TYPE_CHECKING:
    import onnx_ir as ir

    from partita.model.model import Model

MIXTURES = ("MoE", "QMoE")
"""Operators that hold all experts of a layer."""


@dataclass(frozen=True)
class LayerOps:
    """Operations that stay together.

    Attributes:
        name: ``"embedding"``, ``"layer 0"``, ..., ``"head"``.
        ops: Their indices, ascending.
        experts: Those of them that are the experts of a mixture; they may be elsewhere, and what
            chooses among them and adds up their results goes with them.
        caches: Inputs of the model that hold the layer's past.
    """

    name: str
    ops: tuple[int, ...]
    experts: tuple[int, ...] = ()
    caches: tuple[str, ...] = ()


def cache_inputs(model: Model) -> dict[str, str]:
    """Inputs that hold a decoder's past, with the outputs that hold it after the run.

    By the model's variables; in files that have none by the names that exporters give them,
    ``past_key_values.0.key`` and ``present.0.key``.
    """
    variables = {one.read: one.written for one in model.variables}
    if variables:
        return variables
    outputs = {port.name for port in model.outputs}
    named = {
        port.name: "present" + port.name.removeprefix("past_key_values").removeprefix("past")
        for port in model.inputs
        if port.name.startswith("past")
    }
    return {past: present for past, present in named.items() if present in outputs}


def model_context(model: Model) -> int:
    """Tokens that the model's cache holds; 0 where that is open."""
    caches = cache_inputs(model)
    dims = [
        port.shape[2]
        for port in model.inputs
        if port.name in caches and port.shape is not None and len(port.shape) == 4
    ]
    return min((dim for dim in dims if isinstance(dim, int)), default=0)


def decoder_layers(model: Model, op_graph: OpGraph) -> list[LayerOps]:
    """Embedding, layers and head of a decoder as they run; empty if the model is none.

    Constant operations, and those that no output depends on, are in none.

    Args:
        model: The model.
        op_graph: Its operations.
    """
    caches = cache_inputs(model)
    level = _levels(op_graph, caches)
    depth = max(level, default=0)
    members: list[list[int]] = [[] for _ in range(depth + 2)]  # embedding, layers, head
    for number in range(depth + 1):
        own = [op for op, at in enumerate(level) if at == number]
        ends = (
            _before_head(op_graph, own)
            if number == depth
            else _stream(op_graph, level, own, caches)
        )
        before = _with_sources(op_graph, ends, own)
        for op in own:
            if op_graph.live[op] and not op_graph.constant[op]:
                members[number if op in before else number + 1].append(op)
    if depth == 0:
        return []
    return [
        LayerOps(
            _name(index, depth),
            tuple(ops),
            _experts(op_graph, ops),
            tuple(name for name in caches if any(name in op_graph.reads[op] for op in ops)),
        )
        for index, ops in enumerate(members)
        if ops
    ]


def _experts(op_graph: OpGraph, ops: Sequence[int]) -> tuple[int, ...]:
    """The experts among a layer's operations, with what only stands between choice and result.

    A device that gets all that can make one node of it.
    """
    experts = {op for op in ops if _is_expert(op_graph.nodes[op])}
    branches = {op for op in experts if op_graph.nodes[op].op_type == "If"}
    if not branches:
        return tuple(sorted(experts))
    choices = [op for op in ops if op_graph.nodes[op].op_type == "TopK"]
    chosen = _reached(op_graph.succs, choices, ops)
    leading = _with_sources(op_graph, branches, ops)
    found = experts | (chosen & leading)
    found |= set(_sums_of(op_graph, branches, ops))
    for op in sorted(leading - found, reverse=True):
        plain = all(value.const_value is None for value in weights_read(op_graph.nodes[op]))
        if plain and op not in chosen and found.issuperset(op_graph.succs[op]):
            found.add(op)
    return tuple(sorted(found))


def _reached(succs: Sequence[Sequence[int]], ops: Iterable[int], own: Sequence[int]) -> set[int]:
    """Some operations of a layer, with all of the layer that depend on them."""
    inside, stack, found = set(own), list(ops), set(ops)
    while stack:
        for reader in succs[stack.pop()]:
            if reader in inside and reader not in found:
                found.add(reader)
                stack.append(reader)
    return found


def _is_expert(node: ir.Node) -> bool:
    """Whether an operation is a mixture, or one expert of it: products that run only if chosen."""
    if node.op_type == "If":
        return any(
            value.const_value is not None and len(value.const_value.shape) > 1
            for value in weights_read(node)
        )
    return node.op_type in MIXTURES


def weights_read(node: ir.Node) -> list[ir.Value]:
    """What an operation reads, in its bodies too: values from outside and weights of their own."""
    own = [value for body in bodies(node) for value in body.initializers.values()]
    return [*values_read(node), *own]


def _name(index: int, depth: int) -> str:
    if index == 0:
        return "embedding"
    return "head" if index == depth + 1 else f"layer {index - 1}"


def _levels(op_graph: OpGraph, caches: Collection[str]) -> list[int]:
    """By operation: how many caches lie before it, one behind the other, its own included."""
    level: list[int] = []
    for op, sources in enumerate(op_graph.preds):
        before = max((level[source] for source in sources), default=0)
        level.append(before + any(name in caches for name in op_graph.reads[op]))
    return level


def _stream(
    op_graph: OpGraph, level: Sequence[int], own: Sequence[int], caches: Collection[str]
) -> list[int]:
    """Of a level: operations whose results lead to the next cache and go around it as well.

    Of the first level those too whose results are read by several layers, such as masks.
    """
    number = level[own[0]]
    inside = set(own)
    to_cache = [
        op
        for op, at in enumerate(level)
        if at == number + 1 and any(name in caches for name in op_graph.reads[op])
    ]
    leading = _with_sources(op_graph, (s for op in to_cache for s in op_graph.preds[op]), own)
    anchors = set(to_cache)
    return [
        op
        for op in own
        if any(
            (op in leading and reader not in inside and reader not in anchors)
            or (number == 0 and level[reader] > 1)
            for reader in op_graph.succs[op]
        )
    ]


def _before_head(op_graph: OpGraph, own: Sequence[int]) -> list[int]:
    """Of the last level: products with weights, but for the last, which makes the logits.

    The sum of experts' results is with them.
    """
    ends = [op for op in own if _has_matrix(op_graph, op) and op_graph.live[op]][:-1]
    branches = {op for op in ends if op_graph.nodes[op].op_type == "If"}
    return [*ends, *_sums_of(op_graph, branches, own)]


def _sums_of(op_graph: OpGraph, branches: Collection[int], own: Iterable[int]) -> list[int]:
    """What reads results of such operations alone."""
    preds = op_graph.preds
    return [op for op in own if preds[op] and all(source in branches for source in preds[op])]


def _has_matrix(op_graph: OpGraph, op: int) -> bool:
    for value in weights_read(op_graph.nodes[op]):
        source = op_graph.producer.get(value.name or "")
        is_weight = value.const_value is not None or (
            source is not None and op_graph.constant[source]
        )
        if is_weight and value.shape is not None and len(value.shape) > 1:
            return True
    return False


def _with_sources(op_graph: OpGraph, ops: Iterable[int], own: Sequence[int]) -> set[int]:
    """Some operations of a level, with all of the level that they depend on."""
    inside = set(own)
    stack = [op for op in ops if op in inside]
    found = set(stack)
    while stack:
        for source in op_graph.preds[stack.pop()]:
            if source in inside and source not in found:
                found.add(source)
                stack.append(source)
    return found
