"""Functions of one quantized tensor become look-up tables of 256 entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from partita.lowering.fusion.quantized.levels import BYTES, Levels
from partita.lowering.fusion.rewriting import Accepts, origins
from partita.lowering.graph import Graph, Node, Value
from partita.model.op_traits import Trait, having

_FUNCTIONS = having(Trait.ELEMENTWISE) | {"Identity", "Swish"}
_FUNCTIONS |= {f"com.microsoft::{name}" for name in ("FastGelu", "Gelu", "QuickGelu")}
_OF_LEVELS = {
    **{f"com.microsoft::QLinear{name}": (0,) for name in ("LeakyRelu", "Sigmoid")},
    **{f"com.microsoft::QLinear{name}": (0, 3) for name in ("Add", "Mul")},
}
"""onnxruntime's operators that take levels and return levels, and where they take them."""


def tabulate_levels(graph: Graph, accepts: Accepts) -> None:
    """What DequantizeLinear, element-wise functions and QuantizeLinear make of levels is looked up.

    ``partita::LevelTable`` has the inputs ``(levels, table)``: bytes of any shape, and the 256
    results in the order of the bytes from 0 to 255. The functions are left to be computed of all
    levels as constants are folded, by the kernels that would have computed them of the tensor; so
    results stay what they were. All other inputs must be scalars that are constants. What else
    reads an intermediate value still finds it. Changes the graph, and bodies in it, in place.

    Args:
        graph: The graph, before constants are folded.
        accepts: Whether the back-end has a kernel for a node.
    """
    for node in graph.nodes:
        for body in node.graphs():
            tabulate_levels(body, accepts)
    kind = np.dtype(np.uint8)
    probe = Node("LevelTable", [Value("", kind), Value("", kind)], [Value()], domain="partita")
    found = _Functions(graph)
    if found.quantized and accepts(probe):
        _put_tables(graph, found)


class _Functions:
    """Values of a graph that are functions of one tensor of levels.

    Attributes:
        sources: The levels that a value is a function of.
        makers: The nodes that compute these values.
        quantized: The nodes among them whose results are levels again.
    """

    def __init__(self, graph: Graph) -> None:
        self.sources: dict[Value, Value] = {}
        self.makers: dict[Value, Node] = {}
        self.quantized: set[Node] = set()
        self._ranks: dict[Value, int] = {}
        for node in graph.nodes:
            self._visit(node)

    def _visit(self, node: Node) -> None:
        result = node.result
        if result is None or any(node.outputs[1:]):
            return
        if node.kind == "DequantizeLinear" and (rank := _scalar_rank(node.inputs)) is not None:
            self._ranks[result] = rank
            return
        source = self._source(node)
        if source is None:
            return
        self.sources[result], self.makers[result] = source, node
        if node.kind == "QuantizeLinear" or node.kind in _OF_LEVELS:
            self.quantized.add(node)

    def _source(self, node: Node) -> Value | None:
        """The levels that a node's result is a function of; ``None`` if there is more to it."""
        if node.kind == "DequantizeLinear":
            x = node.inputs[0]
            return self._levels(x) if x is not None and _has_one_scale(node, x.dtype) else None
        if node.kind == "QuantizeLinear":
            x = node.inputs[0]
            whole = x is not None and _has_one_scale(node, np.dtype(np.uint8))
            return self.sources.get(x) if x is not None and whole else None
        if node.kind in _OF_LEVELS:
            return self._common(node, _OF_LEVELS[node.kind])
        return self._common(node, ()) if node.kind in _FUNCTIONS else None

    def _levels(self, x: Value) -> Value | None:
        """What bytes are a function of: themselves, if of nothing else."""
        own = x if x.dtype in BYTES and x.const is None else None
        return self.sources.get(x, own)

    def _common(self, node: Node, places: tuple[int, ...]) -> Value | None:
        """The only levels that the inputs of a node are functions of, scalars left out.

        Args:
            node: The node.
            places: Those of inputs that are levels.
        """
        found: set[Value] = set()
        highest = 0
        for place, value in enumerate(node.inputs):
            if value is None:
                continue
            rank = self._ranks.get(value, _scalar_rank([value]))
            if rank is not None:
                highest = max(highest, rank)
                continue
            source = self._levels(value) if place in places else self.sources.get(value)
            if source is None:
                return None
            found.add(source)
        if len(found) != 1:
            return None
        (source,) = found
        rank = 0 if source.shape is None else len(source.shape)
        return source if highest <= rank else None


def _scalar_rank(values: Iterable[Value | None]) -> int | None:
    """The most dimensions of constants of one element each; ``None`` if not all are that."""
    consts = [value.const for value in values if value is not None]
    ranks = [const.ndim for const in consts if const is not None and const.size == 1]
    return max(ranks) if len(ranks) == len(consts) else None


def _has_one_scale(node: Node, dtype: np.dtype[np.generic] | None) -> bool:
    """Whether a node makes bytes of floats, or floats of bytes, by one constant scale."""
    levels = Levels.named(node, dtype)
    return levels is not None and levels.scale.size == 1 and levels.scale.ndim <= 1


def _put_tables(graph: Graph, found: _Functions) -> None:
    """Puts tables in the place of nodes, and in front of each what computes it."""
    copies: dict[tuple[Value, Value], Value] = {}
    tables: dict[Node, Node] = {}
    nodes: list[Node] = []
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        result = node.result
        if result is None or node not in found.quantized:
            nodes.append(node)
            continue
        source = found.sources[result]
        for step in sorted(_behind(node, found), key=places.__getitem__):
            nodes += _copied(step, source, copies)
        inputs = [source, copies[source, result]]
        table = Node("LevelTable", inputs, node.outputs[:1], domain="partita", name=node.name)
        table.stand_for([node])
        nodes.append(table)
        tables[table] = node
    graph.nodes = nodes
    graph.prune()
    claimed = set(graph.nodes)
    for table in graph.nodes:
        if table in tables:
            # Operations that are computed no more are those of the first table that stands for them
            group = [step for step in _behind(tables[table], found) if step not in claimed]
            claimed.update(group)
            table.origins = origins(sorted(group, key=places.__getitem__))


def _copied(step: Node, source: Value, copies: dict[tuple[Value, Value], Value]) -> Iterator[Node]:
    """What computes a function of all levels that a tensor may have, unless it is there already.

    Args:
        step: What computes it of the tensor.
        source: The tensor.
        copies: For tensor and function, the function of all its levels; gets this one's.
    """
    result = step.result
    if result is None or (source, result) in copies:
        return
    if (source, source) not in copies:
        every = np.arange(256, dtype=np.uint8)
        signed = source.dtype == np.int8
        copies[source, source] = Value.constant(every.view(np.int8) if signed else every)
    inputs = [None if v is None else copies.get((source, v), v) for v in step.inputs]
    made = copies[source, result] = Value("", result.dtype)
    yield step.like(inputs, [made], origins=())


def _behind(node: Node, found: _Functions) -> list[Node]:
    """A node and those that its function is made of, each once."""
    queue, seen = [node], {node: None}
    while queue:
        reads = queue.pop().inputs
        makers = [found.makers.get(value) for value in reads if value is not None]
        new = [maker for maker in makers if maker is not None and maker not in seen]
        seen.update(dict.fromkeys(new))
        queue += new
    return list(seen)
