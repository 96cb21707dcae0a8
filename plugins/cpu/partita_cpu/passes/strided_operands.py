"""Arithmetic and comparisons read what Slice, Split and Transpose take of tensors where it lies.

Splines, rotary embeddings, recurrent cells that are spelled out and decoders of boxes take parts of
rows and combine them. A copy of each part is written and read once more than it has to be; kernels
of rows read rows at any distance.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from partita.lowering import Graph, Node, Value
from partita.lowering.fusion.rewriting import origins
from partita.lowering.fusion.strided_values import Strided, is_reshape, seen_through, takes_elements
from partita.lowering.geometry.broadcasting import repeating_strides
from partita.lowering.nhwc.conversion import SINGLE, Shapes
from partita.lowering.shapes.symbolic_size import found_equal
from partita_cpu.kernels.elementwise.broadcast_loops import merged_loops, strides_in
from partita_cpu.kernels.elementwise.strided_rows import OPERATORS, STRIDED

_Part = tuple[Strided, list[Node]]
"""Where elements lie, and the nodes that take them from there."""


def read_strided(graph: Graph, shapes: Shapes) -> None:
    """Gives such operators the tensors that their operands are parts of, with domain `STRIDED`.

    Only where a copy is saved: where all that read it can read where it was taken from.

    Args:
        graph: Changed in place; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.
    """
    if any(takes_elements(node) and not is_reshape(node) for node in graph.nodes):
        _Reading(graph, shapes).run()


class _Reading:
    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self._graph = graph
        self._shapes = shapes
        self._makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}

    def run(self) -> None:
        """Rewrites the list of nodes."""
        found = {node: parts for node in self._graph.nodes if (parts := self._parts(node))}
        gone = self._gone(found)
        instead: dict[Node, Node] = {}
        for node, parts in found.items():
            kept = {
                place: part
                for place, part in parts.items()
                if gone.issuperset(step for step in part[1] if not is_reshape(step))
            }
            if kept and self._loops(node, kept):
                instead[node] = self._strided(node, kept, gone)
        if instead:
            self._graph.nodes = [instead.get(node, node) for node in self._graph.nodes]
            self._graph.drop_unread(gone)

    def _parts(self, node: Node) -> dict[int, _Part]:
        """By its place, each operand that is a part of a tensor."""
        if node.kind not in OPERATORS or node.attrs or node.result not in self._shapes:
            return {}
        if len(node.inputs) != 2 or not all(self._is_known(value) for value in node.inputs):
            return {}
        parts = {
            place: part
            for place, value in enumerate(node.inputs)
            if value is not None and (part := self._part(value)) is not None
        }
        while parts and not self._loops(node, parts):
            parts.popitem()
        return parts

    def _part(self, value: Value) -> _Part | None:
        """The tensor that a value is a part of; ``None`` where it is none that is copied."""
        path: list[tuple[Node, Value]] = []
        best: _Part | None = None
        while (node := self._makers.get(value)) is not None and takes_elements(node):
            source = node.inputs[0]
            path.append((node, value))
            if source is None or source not in self._shapes or source.const is not None:
                break
            view: Strided | None = Strided.whole(source, self._shapes[source])
            for step, result in reversed(path):
                view = view and seen_through(step, result, view, self._shapes)
            if view is None:
                break
            steps = [step for step, _ in path]
            if _lies_in_rows(view) and not all(is_reshape(step) for step in steps):
                best = view, steps
            value = source
        return best

    def _gone(self, found: Mapping[Node, Mapping[int, _Part]]) -> set[Node]:
        """The nodes whose results nobody reads any longer if all parts are read where they lie."""
        uses, outputs = self._graph.uses(), set(self._graph.outputs)
        gone: set[Node] = set()

        def passed(user: Node, value: Value) -> bool:
            parts = found.get(user, {})
            places = [place for place, read in enumerate(user.inputs) if read is value]
            return user in gone or (bool(places) and all(place in parts for place in places))

        for node in reversed(self._graph.nodes):
            results = [value for value in node.outputs if value is not None]
            reads = [(user, value) for value in results for user in uses.get(value, [])]
            is_inside = takes_elements(node) and outputs.isdisjoint(results)
            if is_inside and all(itertools.starmap(passed, reads)):
                gone.add(node)
        return gone

    def _strides(self, node: Node, parts: Mapping[int, _Part]) -> list[list[int]]:
        """Of both operands, along the axes of the result."""
        shape = self._shape_of(node.result)
        return [
            repeating_strides(parts[place][0].shape, parts[place][0].strides, shape)
            if place in parts
            else strides_in(self._shape_of(value), shape)
            for place, value in enumerate(node.inputs)
        ]

    def _is_known(self, value: Value | None) -> bool:
        """Whether a value is of floats and of known shape."""
        if value is None or value.dtype != SINGLE:
            return False
        return value.const is not None or value in self._shapes

    def _shape_of(self, value: Value | None) -> Sequence[int]:
        if value is None:
            return ()
        return self._shapes[value] if value.const is None else value.const.shape

    def _loops(self, node: Node, parts: Mapping[int, _Part]) -> bool:
        """Whether there are loops for it."""
        shape = self._shape_of(node.result)
        return merged_loops(shape, self._strides(node, parts)) is not None

    def _strided(self, node: Node, parts: Mapping[int, _Part], gone: set[Node]) -> Node:
        passed = [step for _, steps in parts.values() for step in steps if step in gone]
        inputs = [
            parts[place][0].base if place in parts else value
            for place, value in enumerate(node.inputs)
        ]
        starts = [parts[place][0].start if place in parts else 0 for place in range(2)]
        first, second = self._strides(node, parts)
        attrs = {
            "shape": list(self._shape_of(node.result)),
            "starts": starts,
            "first": first,
            "second": second,
        }
        return node.like(inputs, attrs=attrs, origins=origins([*passed, node]), domain=STRIDED)


def _lies_in_rows(view: Strided) -> bool:
    """Whether elements along the last axis that is longer than 1 lie side by side."""
    axes = zip(reversed(view.shape), reversed(view.strides), strict=True)
    return next((step for size, step in axes if not found_equal(size, 1)), 1) == 1
