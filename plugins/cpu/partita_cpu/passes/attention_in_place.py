"""Attention reads queries, keys and values where a product has written them, in one step.

Exporters take them out of the rows of one product by reshapes, transpositions and splits, and spell
attention over windows in ways that need shapes to be understood: products by `Einsum`, windows
beside batches, one mask for the places of a window and one for the windows (Swin Transformer, "Swin
Transformer V2: Scaling Up Capacity and Resolution", "MaxViT: Multi-Axis Vision Transformer"),
queries and keys divided by their lengths with a factor for each head. All of it becomes one node of
domain `HEADS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from partita.lowering import Array, Graph, Node, Value
from partita.lowering.fusion.rewriting import Rewriter, origins, scalar_input
from partita.lowering.fusion.strided_values import Strided, is_reshape, seen_through, takes_elements
from partita.lowering.geometry.broadcasting import is_repeated_to, repeating_strides
from partita.lowering.geometry.heads_first import heads_first
from partita.lowering.nhwc.conversion import SINGLE, Shapes
from partita.lowering.shapes.symbolic_size import always_equal, found_equal
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.kernels.attention.heads_in_place import HEADS
from partita_cpu.nhwc.attention import fits_in_cache
from partita_cpu.nhwc.attention_table import HeadSizes

_MOST_MASKS = 2


def attend_in_place(graph: Graph, shapes: Shapes, policy: PrecisionPolicy) -> None:
    """Joins attention that is spelled out, and lets it read what reshapes and the like move.

    Args:
        graph: Its list of nodes is changed; the nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.
        policy: How native kernels compute.
    """
    if any(node.kind in ("Softmax", "partita::Attention") for node in graph.nodes):
        _Joining(graph, shapes, policy).run()


@dataclass
class _Part:
    """Queries, keys or values.

    Attributes:
        view: Where they lie.
        scale: A factor that they are multiplied by.
        least: They are divided by their lengths, or by this if they are shorter; or ``None``.
        size: Elements that a length is of.
        passed: Nodes on the way.
    """

    view: Strided
    scale: float = 1.0
    least: float | None = None
    size: int = 0
    passed: list[Node] = field(default_factory=list)

    def transposed(self, *order: int) -> _Part:
        """With the last axes in another order."""
        rank = len(self.view.shape)
        axes = [*range(rank - len(order)), *(rank + axis for axis in order)]
        return replace(self, view=self.view.transposed(axes))

    def behind(self, *nodes: Node, **changes: Any) -> _Part:
        """The same after more nodes."""
        return replace(self, passed=[*self.passed, *nodes], **changes)

    def place(self) -> list[int] | None:
        """Start, and elements between batches, places of the sequence and heads.

        ``None`` if elements of a head do not lie side by side, or batches in no one order.
        """
        *batches, _, _, size = self.view.shape
        *_, head, row, element = self.view.strides
        if (element != 1 and size != 1) or (self.least is not None and size != self.size):
            return None
        strides = self.view.strides[:-3]
        step = _batch_step(batches, strides, always_equal)
        if step is None:
            step = _batch_step(batches, strides, found_equal)
        return None if step is None else [self.view.start, step, row, head]


def _batch_step(
    batches: Sequence[int], strides: Sequence[int], same: Callable[[int, int], bool]
) -> int | None:
    """Elements from a batch to the next; ``None`` if that is not told to be one number."""
    step, reached = 0, 1
    for count, stride in zip(batches[::-1], strides[::-1], strict=True):
        if same(count, 1):
            continue
        if same(reached, 1):
            step = stride
        elif not same(stride, step * reached):
            return None
        reached *= count
    return step


@dataclass
class _Scores:
    """What the softmax is of.

    Attributes:
        product: Queries by keys.
        shape: What comes of it, (..., heads, queries, keys).
        scale: A factor.
        factors: Factors of heads, or ``None``.
        masks: What is added, and the steps of it.
        passed: Nodes between.
    """

    product: Node
    shape: tuple[int, ...]
    scale: float = 1.0
    factors: Array | None = None
    masks: list[tuple[Value, list[int]]] = field(default_factory=list)
    passed: list[Node] = field(default_factory=list)


class _Joining:
    def __init__(self, graph: Graph, shapes: Shapes, policy: PrecisionPolicy) -> None:
        self._graph = graph
        self._shapes = shapes
        self._policy = policy
        self._lookup = Rewriter(graph, lambda _: True, shapes)  # only asked: nothing is replaced
        self._new: dict[Node, tuple[Node, list[Node]]] = {}

    def run(self) -> None:
        """Rewrites the list of nodes."""
        for node in self._graph.nodes:
            if node.kind == "Softmax":
                self._join(node)
            elif node.kind == "partita::Attention":
                self._settle(node)
        if not self._new:
            return
        nodes = [self._new[node][0] if node in self._new else node for node in self._graph.nodes]
        self._graph.nodes = nodes
        passed = {node for _, group in self._new.values() for node in group}
        gone = self._graph.drop_unread(passed)
        for new, group in self._new.values():
            new.origins = origins([*(node for node in group if node in gone), new])

    # ------------------------------------------------------------------ attention in one node

    def _settle(self, node: Node) -> None:
        """Takes attention that is one node already."""
        *first, turned = heads_first(node)
        parts = [
            self._part(value, moved=None if before else (-2, -3, -1))
            for value, before in zip(node.inputs, first, strict=False)
        ]
        result, mask = node.result, node.input(3)
        if result is None or any(part is None for part in parts):
            return
        q, k, v = (part for part in parts if part is not None)
        batch, heads, queries = q.view.shape[:3]
        scores = (batch, heads, queries, k.view.shape[2])
        found = _Scores(node, scores, node.attrs["scale"])
        if mask is not None:
            steps = _mask_steps(self._shape(mask), scores)
            if steps is None or mask.dtype != SINGLE:
                return
            found.masks.append((mask, steps))
        nan_is_zero = bool(node.attrs.get("nan_is_zero", 0))
        self._replace(node, result, found, (q, k, v), not turned, [], nan_is_zero)

    # ------------------------------------------------------------------ attention spelled out

    def _join(self, softmax: Node) -> None:
        scores, weights = softmax.inputs[0], softmax.outputs[0]
        shape = None if scores is None else self._shapes.get(scores)
        axis = softmax.attrs.get("axis", 1 if softmax.version < 13 else -1)
        if scores is None or shape is None or len(shape) < 3 or axis not in (-1, len(shape) - 1):
            return
        mix = self._lookup.only_user(weights)
        product = None if mix is None else _factors(mix)
        found = self._scores(scores, tuple(shape[-3:]))
        if mix is None or product is None or found is None or product[0] is not weights:
            return
        queries = _factors(found.product)
        if product[2] or queries is None or mix.result is None:
            return
        group, result, heads_last = [softmax, mix], mix.result, False
        after = self._lookup.only_user(result)
        if after is not None and self._moves_heads(after) and after.result is not None:
            group, result, heads_last = [*group, after], after.result, True
        q = self._part(queries[0], divided=True)
        k = self._part(queries[1], divided=True, moved=None if queries[2] else (-1, -2))
        v = self._part(product[1])
        if q is None or k is None or v is None or q.least != k.least:
            return
        self._replace(group[-1], result, found, (q, k, v), heads_last, group)

    def _scores(self, value: Value, last: tuple[int, ...], adds: bool = True) -> _Scores | None:
        """What a value is that ends in an axis of heads, one of queries and one of keys."""
        node, shape = self._lookup.maker(value), self._shapes.get(value)
        if node is None or shape is None or shape[-3:] != last:
            return None
        if self._lookup.only_user(value) is None:
            return None
        if _factors(node) is not None:
            return _Scores(node, shape, passed=[node])
        found = None
        if is_reshape(node) and node.inputs[0] is not None:
            found = self._scores(node.inputs[0], last, adds)
        elif node.kind == "Add" and adds:
            found = self._masked(node, shape)
        elif node.kind in ("Mul", "Div"):
            found = self._scaled(node, last)
        if found is not None:
            found.passed.append(node)
        return found

    def _masked(self, node: Node, shape: tuple[int, ...]) -> _Scores | None:
        for scores, mask in (node.inputs, node.inputs[::-1]):
            if scores is None or mask is None or self._shapes.get(scores) != shape:
                continue
            steps = _mask_steps(self._shape(mask), shape)
            found = None if steps is None else self._scores(scores, shape[-3:])
            if found is None or steps is None or mask.dtype != SINGLE:
                continue
            found.masks.append((mask, steps))
            return found if len(found.masks) <= _MOST_MASKS else None
        return None

    def _scaled(self, node: Node, last: tuple[int, ...]) -> _Scores | None:
        scaled = scalar_input(node)
        if scaled is not None:
            source, factor = scaled
            if node.kind == "Div" and (source is not node.inputs[0] or not factor):
                return None
            found = self._scores(source, last, adds=False)
            if found is not None:
                found.scale *= 1 / factor if node.kind == "Div" else factor
            return found
        for other, factors in (node.inputs, node.inputs[::-1]):
            given = None if factors is None else factors.const
            if node.kind != "Mul" or other is None or given is None or given.dtype != SINGLE:
                continue
            rank = len(self._shapes.get(other, ()))
            if given.shape[-2:] != (1, 1) or given.size != last[0] or given.ndim > rank:
                continue
            if given.shape[-3] != last[0]:
                continue
            found = self._scores(other, last, adds=False)
            if found is not None and found.factors is None:
                found.factors = given.reshape(-1)
                return found
        return None

    # ------------------------------------------------------------------ queries, keys, values

    def _part(
        self, value: Value | None, divided: bool = False, moved: Sequence[int] | None = None
    ) -> _Part | None:
        """Where a value lies whose last axes, in the order `moved`, are heads, rows, elements.

        Args:
            value: The value.
            divided: Whether factors and divisions by lengths may be left to attention.
            moved: What becomes of the last axes.
        """
        if value is None or value.const is not None or value not in self._shapes:
            return None
        path: list[tuple[Node, Value]] = []
        source: Value = value
        while (node := self._lookup.maker(source)) is not None:
            before = self._taken_from(node, divided)
            if before is None or before not in self._shapes or before.const is not None:
                break
            path.append((node, source))
            source = before
        part = _Part(Strided.whole(source, self._shapes[source]))
        for node, result in reversed(path):
            part = self._follow(part, node, result)
        whole = _Part(Strided.whole(value, self._shapes[value]))
        for one in (part, whole):
            one = one if moved is None else one.transposed(*moved)
            is_single = one.view.base.dtype == SINGLE and len(one.view.shape) >= 3
            if is_single and all(one.view.shape) and one.place() is not None:
                return one
        return None

    def _taken_from(self, node: Node, divided: bool) -> Value | None:
        """What a node takes elements of, or multiplies or divides so that attention can do it."""
        if takes_elements(node):
            return node.inputs[0]
        if not divided:
            return None
        scaled = scalar_input(node) if node.kind == "Mul" else None
        if scaled is not None:
            return scaled[0]
        return None if self._least_length(node) is None else node.inputs[0]

    def _follow(self, part: _Part, node: Node, result: Value) -> _Part:
        """A part behind a node; all of what the node computes where attention cannot do that."""
        view = part.view
        if takes_elements(node):
            seen = seen_through(node, result, view, self._shapes)
            if seen is not None:
                return part.behind(node, view=seen)
        elif node.kind == "Mul" and (scaled := scalar_input(node)) is not None:
            return part.behind(node, scale=part.scale * scaled[1])
        elif part.scale == 1 and part.least is None and view.strides[-1] == 1:
            least, size = self._least_length(node), view.shape[-1]
            if least is not None and size != 1:
                return part.behind(*self._lengths(node), node, least=least, size=size)
        return _Part(Strided.whole(result, self._shapes[result]))

    def _least_length(self, node: Node) -> float | None:
        """If a node divides rows by their lengths, what shorter ones are divided by."""
        found = self._lengths(node)
        if not found:
            return None
        least, norm = found[-1].input(1), found[0]
        axes = norm.input(1)
        given = norm.attrs.get("axes") if axes is None or axes.const is None else axes.const
        source = node.inputs[0]
        rank = 0 if source is None else len(self._shapes.get(source, ()))
        if norm.inputs[0] is not source or source is None or not norm.attrs.get("keepdims", 1):
            return None
        if given is None or list(given) not in ([-1], [rank - 1]) or found[-1].input(2) is not None:
            return None
        if least is None or least.const is None or least.const.dtype != SINGLE:
            return None
        number = float(least.const.reshape(-1)[0])
        return number if least.const.size == 1 and number > 0 else None

    def _lengths(self, node: Node) -> list[Node]:
        """Nodes that make what a node divides by: lengths, and a bound below; none if others do."""
        if node.kind != "Div" or node.inputs[1] is None:
            return []
        bound = self._lookup.maker(node.inputs[1])
        expand = bound if bound is not None and bound.kind == "Expand" else None
        if expand is not None and expand.inputs[0] is not None:
            bound = self._lookup.maker(expand.inputs[0])
        if bound is None or bound.kind != "Clip" or bound.inputs[0] is None:
            return []
        norm = self._lookup.maker(bound.inputs[0])
        if norm is None or norm.kind != "ReduceL2":
            return []
        return [norm, *([] if expand is None else [expand]), bound]

    # ------------------------------------------------------------------------------ the node

    def _replace(
        self,
        last: Node,
        result: Value,
        scores: _Scores,
        parts: tuple[_Part, _Part, _Part],
        heads_last: bool,
        group: list[Node],
        nan_is_zero: bool = False,
    ) -> None:
        """Puts attention in the place of the last of its nodes, if it can be computed so.

        Args:
            last: The last of its nodes.
            result: What it computes.
            scores: What is known of the scores.
            parts: Queries, keys and values.
            heads_last: Whether heads of the result come behind tokens.
            group: All nodes in whose place it stands.
            nan_is_zero: Whether rows that see no key are zeros.
        """
        *batches, heads, queries, keys = scores.shape
        around, (q, k, v) = (*batches, heads), parts
        depth, outputs = q.view.shape[-1], v.view.shape[-1]
        wanted = ((*around, queries, depth), (*around, keys, depth), (*around, keys, outputs))
        if any(part.view.shape != shape for part, shape in zip(parts, wanted, strict=True)):
            return
        sizes = HeadSizes(math.prod(batches), heads, 1, queries, keys, depth, outputs)
        if not fits_in_cache(self._policy, sizes) or result.dtype != SINGLE:
            return
        row = heads * outputs
        steps = (row, outputs) if heads_last else (outputs, queries * outputs)
        attrs: dict[str, Any] = {
            "shape": tuple(self._shapes[result]),
            "sizes": (sizes.batches, heads, 1, queries, keys, depth, outputs),
            "places": [number for part in parts for number in part.place() or ()],
            "result_steps": (queries * row, *steps),
            "masks": [step for _, steps in scores.masks for step in steps],
            "scale": float(scores.scale * q.scale * k.scale),
            "becomes_zero": 2 if nan_is_zero else 0,
        }
        if q.least is not None:
            attrs["least"] = q.least
        masks: list[Value | None] = [mask for mask, _ in scores.masks]
        masks += [None] * (_MOST_MASKS - len(masks))
        factors = None if scores.factors is None else Value.constant(scores.factors)
        bases = [part.view.base for part in parts]
        new = Node(
            "Attention", [*bases, *masks, factors], [result], attrs, domain=HEADS, name=last.name
        )
        group = [*group, *scores.passed, *(node for part in parts for node in part.passed)]
        new.stand_for([last])
        new.origins = last.origins
        self._new[last] = new, [*group, last]

    def _moves_heads(self, node: Node) -> bool:
        """Whether a node moves heads behind the sequence."""
        order = list(node.attrs.get("perm", ()))
        rank = len(order)
        wanted = [*range(rank - 3), rank - 2, rank - 3, rank - 1]
        return node.kind == "Transpose" and rank >= 3 and order == wanted

    def _shape(self, value: Value) -> tuple[int, ...] | None:
        return self._shapes.get(value) if value.const is None else value.const.shape


def _factors(node: Node) -> tuple[Value, Value, bool] | None:
    """The factors of a product of matrices, and whether rows of the second one are its columns."""
    if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    if node.kind == "MatMul":
        return node.inputs[0], node.inputs[1], False
    if node.kind != "Einsum":
        return None
    terms, _, result = node.attrs["equation"].replace(" ", "").partition("->")
    first, _, second = terms.partition(",")
    before, rest = result[:-2], (first[-2:], second[-2:], result[-2:])
    letters = {*rest[0], *rest[1]}
    if not before.isalpha() or first[:-2] != before or second[:-2] != before:
        return None
    if len(letters) != 3 or letters & {*before} or len({*before}) != len(before):
        return None
    (row, term), (one, other), (a, c) = rest
    if (row, term, one, other) == (a, one, term, c):
        return node.inputs[0], node.inputs[1], False
    swapped = (row, term, one, other) == (a, other, c, term)
    return (node.inputs[0], node.inputs[1], True) if swapped else None


def _mask_steps(mask: tuple[int, ...] | None, scores: tuple[int, ...]) -> list[int] | None:
    """The steps of `Mask` of what is added to scores (..., heads, queries, keys).

    ``None`` if it is broadcast along axes within those of batches, or is larger than the scores.
    """
    if mask is None or len(mask) > len(scores):
        return None
    dims = (1,) * (len(scores) - len(mask)) + mask
    if not all(map(is_repeated_to, dims, scores)):
        return None
    whole = [math.prod(dims[n + 1 :]) for n in range(len(dims))]
    steps = repeating_strides(dims, whole, scores)
    period, repeats = 1, False
    # Of axes outside of all that the mask has, no size is asked.
    given = next(
        (axis for axis, n in enumerate(dims[:-3]) if not always_equal(n, 1)), len(dims) - 3
    )
    for n, m in reversed([*zip(dims[given:-3], scores[given:-3], strict=True)]):
        if n == m and repeats and n != 1:
            return None
        repeats = repeats or n != m
        period *= 1 if repeats else n
    batch = 0 if always_equal(period, 1) else math.prod(dims[-3:])
    return [batch, period, *steps[-3:]]
