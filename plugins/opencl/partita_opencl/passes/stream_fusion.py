"""Products that stream through matrix units take in what stands round them, shapes being known.

Three products that make queries, keys and values become one; a layer normalization goes with the
product that reads it; a result of the model leaves the product as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from partita.lowering import Activation, Graph, Node, Value
from partita.lowering.fusion.rewriting import Rewriter, origins
from partita.lowering.geometry.heads_first import heads_first
from partita.lowering.nhwc.conversion import Shapes
from partita_opencl.passes.attention_places import PLACES, Place
from partita_opencl.passes.half_precision import WIDE
from partita_opencl.passes.nhwc import UNIT

_PRODUCTS = ("MatMul", "partita::MatMul")
_NORMALIZED = "partita::NormalizedMatMul"

_MOST_COLUMNS = 2048
"""Columns of rows that a warp holds in registers."""


class Merger:
    """Rewrites graphs of one model; keeps the constants that it makes, for all shapes."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, ...], tuple[list[Value], Value]] = {}

    def run(self, graph: Graph, shapes: Shapes, accepts: Callable[[Node], bool]) -> None:
        """Rewrites the graph's nodes."""
        self._merge_heads(graph, shapes)
        self._merge_norms(graph, shapes)
        rewriter = Rewriter(graph, accepts, shapes)
        for node in rewriter.nodes():
            if node.kind == "partita::Widen":
                self._widen(rewriter, node)
        rewriter.finish()
        self._widen_sums(graph, shapes)

    # ------------------------------------------------------------------ queries, keys, values

    def _merge_heads(self, graph: Graph, shapes: Shapes) -> None:
        uses = graph.uses()
        makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        kept = set(graph.outputs)
        replaced: dict[Node, list[Node]] = {}
        gone: set[Node] = set()
        for node in graph.nodes:
            if node.kind != "partita::Attention" or any(heads_first(node).inputs):
                continue
            parts = [self._part(value, makers, uses, kept, shapes) for value in node.inputs[:3]]
            if any(part is None for part in parts):
                continue
            pairs = [part for part in parts if part is not None]
            products = [product for _, product in pairs]
            weights = [product.inputs[1] for product in products]
            if len({product.inputs[0] for product in products}) > 1 or len(set(products)) < 3:
                continue
            if len({None if w is None or w.const is None else w.const.shape for w in weights}) > 1:
                continue
            shape = shapes[node.inputs[0]]  # type: ignore[index]  # a part has a shape
            merged = self._product(products, shape[2] * shape[3])
            if merged is None:
                continue
            replaced[node] = [merged, self._attention(node, merged.outputs[0], shapes)]
            gone.update(n for pair in pairs for n in pair)
        graph.nodes = [
            new for node in graph.nodes if node not in gone for new in replaced.get(node, [node])
        ]

    @staticmethod
    def _part(
        value: Value | None,
        makers: dict[Value, Node],
        uses: Any,
        kept: set[Value],
        shapes: Shapes,
    ) -> tuple[Node, Node] | None:
        """The Reshape that makes an input of attention, and the product before it."""
        reshape = makers.get(value) if value is not None else None
        if value is None or reshape is None or reshape.kind != "Reshape" or value in kept:
            return None
        source = reshape.inputs[0]
        product = makers.get(source) if source is not None else None
        if source is None or product is None or product.kind not in _PRODUCTS or source in kept:
            return None
        sizes, flat = shapes.get(value), shapes.get(source)
        if len(uses.get(value, ())) != 1 or len(uses.get(source, ())) != 1:
            return None
        if sizes is None or flat is None or len(sizes) != 4 or len(flat) != 3:
            return None
        if sizes[:2] != flat[:2] or not _streams(product) or product.input(3) is not None:
            return None
        return reshape, product

    def _product(self, products: list[Node], width: int) -> Node | None:
        """One product for three; ``None`` if one has more than a bias."""
        weights, biases = [], []
        for product in products:
            w, bias = product.inputs[1], product.input(2)
            if isinstance(product.attrs.get("activation"), Activation) or w is None:
                return None
            if w.const is None or w.const.shape[1] != width:
                return None
            if bias is not None and (bias.const is None or bias.const.shape != (width,)):
                return None
            weights.append(w)
            biases.append(bias)
        zeros = np.zeros(width, np.float32)
        rows = [zeros if bias is None else bias.const for bias in biases]
        bias = self._joined([b for b in biases if b is not None] or weights, rows, 0)
        first = products[0]
        target = Value(f"{first.name}:heads", first.outputs[0].dtype if first.outputs[0] else None)
        return Node(
            "MatMul",
            [first.inputs[0], self._joined(weights, [w.const for w in weights], 1), bias, None],
            [target],
            {"activation": None},
            domain="partita",
            name=first.name,
            origins=origins(products),
        )

    def _joined(self, sources: list[Value], arrays: list[Any], axis: int) -> Value:
        key = (axis, *(id(value) for value in sources))
        if key not in self._made:
            # The sources are kept: their ids are the key.
            self._made[key] = (sources, Value.constant(np.concatenate(arrays, axis)))
        return self._made[key][1]

    @staticmethod
    def _attention(node: Node, rows: Value | None, shapes: Shapes) -> Node:
        """Attention over rows that hold all heads of queries, then of keys, then of values."""
        places = []
        for part, value in enumerate(node.inputs[:3]):
            batch, count, heads, size = shapes[value]  # type: ignore[index]  # a part has a shape
            width = heads * size
            steps = 3 * count * width, size, 3 * width, part * width
            places.append(Place((batch, count, heads, size), steps))
        return node.like([rows, rows, rows, node.input(3)], attrs={PLACES: places})

    # --------------------------------------------------------------- what stands round a product

    @staticmethod
    def _merge_norms(graph: Graph, shapes: Shapes) -> None:
        """A layer normalization goes into the first product that reads its result."""
        uses = graph.uses()
        replaced: dict[Node, Node] = {}
        gone: set[Node] = set()
        for node in graph.nodes:
            x, scale, shift = (node.input(i) for i in range(3))
            y = node.result
            if node.kind != "LayerNormalization" or x is None or y is None or any(node.outputs[1:]):
                continue
            shape = shapes.get(y, ())
            user = next(
                (n for n in uses.get(y, ()) if n.kind in _PRODUCTS and n.inputs[0] is y), None
            )
            if user is None or user.input(3) is not None or not _streams(user) or user in gone:
                continue
            last = bool(shape) and int(node.attrs.get("axis", -1)) % len(shape) == len(shape) - 1
            rows = all(
                v is not None and v.const is not None and v.const.shape == shape[-1:]
                for v in (scale, shift)
            )
            if not last or not rows or shape[-1] > _MOST_COLUMNS or shape[-1] % UNIT:
                continue
            attrs = {"activation": None, **user.attrs}
            replaced[node] = Node(
                "NormalizedMatMul",
                [x, user.inputs[1], user.input(2), None, scale, shift],
                [user.outputs[0], y],
                {**attrs, "epsilon": node.number("epsilon", 1e-5)},
                domain="partita",
                name=user.name,
                origins=origins([node, user]),
            )
            gone.add(user)
        graph.nodes = [replaced.get(node, node) for node in graph.nodes if node not in gone]

    # ------------------------------------------------------------ what rounding would add up in

    @staticmethod
    def _widen_sums(graph: Graph, shapes: Shapes) -> None:
        """Sums that layers add to stay float32: a rounding of each would add up.

        These are results of products, and normalized rows, that are only normalized or added to
        results of products of the same kind. What products multiply is of halves all the same.
        """
        uses = graph.uses()

        def of(node: Node) -> Value | None:
            """The tensor that a node could leave in float32."""
            return node.outputs[-1] if node.kind == _NORMALIZED else node.outputs[0]

        def fits(node: Node) -> bool:
            y = of(node)
            if y is None or y in graph.outputs or not uses.get(y):
                return False
            if len(shapes.get(y, ())) < 2 or shapes[y][-1] % UNIT:
                return False
            return all(_takes(user, y, wide) for user in uses[y])

        wide = {n for n in graph.nodes if n.kind == _NORMALIZED or _is_stream(n)}
        while True:
            fitting = {node for node in wide if fits(node)}
            if fitting == wide:
                break
            wide = fitting
        results = {of(node) for node in wide}
        replaced = {}
        for node in graph.nodes:
            positions = tuple(i for i, v in enumerate(node.inputs) if v in results)
            if node not in wide and not positions:
                continue
            attrs: dict[str, object] = {"activation": None, **node.attrs, WIDE: positions}
            if node in wide:
                attrs["normal_single" if node.kind == _NORMALIZED else "single"] = True
            product = node.kind in _PRODUCTS
            replaced[node] = Node(
                node.op_type,
                [node.input(i) for i in range(4)] if product else node.inputs,
                node.outputs,
                attrs,
                domain="partita" if product else node.domain,
                version=node.version,
                name=node.name,
                origins=node.origins,
            )
        graph.nodes = [replaced.get(node, node) for node in graph.nodes]

    @staticmethod
    def _widen(rewriter: Rewriter, node: Node) -> None:
        """Lets what comes before write float32: a product, or a normalization."""
        maker = rewriter.maker(node.inputs[0], *_PRODUCTS, "LayerNormalization")
        if maker is None or rewriter.only_user(node.inputs[0]) is not node:
            return
        product = maker.op_type == "MatMul"
        if any(maker.outputs[1:]) or (product and not _streams(maker)):
            return
        inputs = [maker.input(i) for i in range(4 if product else 3)]
        attrs = {"activation": None} if product else {}
        group = [maker, node]
        rewriter.replace(
            group,
            Node(
                maker.op_type,
                inputs,
                node.outputs[:1],
                {**attrs, **maker.attrs, "single": True},
                domain="partita" if product else maker.domain,
                version=maker.version,
                name=maker.name,
                origins=origins(group),
            ),
        )


def _takes(node: Node, x: Value, wide: set[Node]) -> bool:
    """Whether a node reads a tensor in float32 only: as rows to normalize, or as a residual.

    A residual in float32 is added to a result in float32.
    """
    positions = [i for i, v in enumerate(node.inputs) if v is x]
    if node.kind == _NORMALIZED or (node.kind == "LayerNormalization" and "single" in node.attrs):
        return positions == [0]
    return positions == [3] and _is_stream(node) and node in wide


def _is_stream(node: Node) -> bool:
    return node.kind in _PRODUCTS and _streams(node)


def _streams(product: Node) -> bool:
    """Whether a product is one by a constant matrix, with what its kernel can add."""
    w, bias = product.inputs[1], product.input(2)
    if w is None or w.const is None or w.const.ndim != 2 or w.const.shape[0] % UNIT:
        return False
    return bias is None or (bias.const is not None and bias.const.size in (1, w.const.shape[1]))
