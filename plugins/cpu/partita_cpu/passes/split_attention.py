"""Attention over groups of channels or branches (ResNeSt, SKNet) as weighted sums of images.

Models put such images on one axis of five and reduce it, also when each is multiplied by a weight
for each of its channels. Written as sums and products of images of four axes, which are slices of
one image or branches as they are, all of it stays with channels last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.lowering import Graph, Node, Value
from partita.lowering.nhwc.conversion import Shapes

_MOST = 8
"""Images that are added one by one, at most: each sum is written and read again."""

_SLICES_BY_INPUTS = 10
"""Opset from which on Slice takes what it cuts as inputs."""


def add_images_apart(graph: Graph, shapes: Shapes) -> Shapes:
    """Makes sums of images of what reduces an axis that images were put on.

    Returns:
        Shapes of all values, with those that are new.
    """
    if not any(node.kind == "ReduceSum" for node in graph.nodes):
        return shapes
    return _Rewriting(graph, shapes).run()


class _Rewriting:
    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self._graph = graph
        self._shapes = dict(shapes)
        self._uses = graph.uses()
        self._outputs = set(graph.outputs)
        self._makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self._new: dict[Node, list[Node]] = {}  # what comes in the place of a node

    def run(self) -> Shapes:
        for node in self._graph.nodes:
            if node.kind in ("Reshape", "Concat") and node.version >= _SLICES_BY_INPUTS:
                self._take_apart(node)
        self._graph.nodes = [
            new for node in self._graph.nodes for new in self._new.get(node, [node])
        ]
        return self._shapes

    def _take_apart(self, node: Node) -> None:
        """Replaces what puts images on one axis, and all that reads the result."""
        joined = node.outputs[0]
        shape = None if joined is None else self._shapes.get(joined)
        if joined is None or joined in self._outputs or shape is None or len(shape) != 5:
            return
        if joined.dtype != np.float32 or type(shape[1]) is not int or not 2 <= shape[1] <= _MOST:
            return
        readers = list(dict.fromkeys(self._uses.get(joined, [])))
        sums = [self._sum_of(reader, joined) for reader in readers]
        images = self._images(node, joined)
        if images is None or not sums or None in sums:
            return
        parts, before = images
        self._new[node] = before
        for reader, total in zip(readers, sums, strict=True):
            if total is reader:
                self._new[reader] = self._added(reader, parts)
            elif total is not None:
                self._new[reader] = []
                weighed, products = self._weighed(reader, joined, parts)
                self._new[total] = [*products, *self._added(total, weighed)]

    def _sum_of(self, reader: Node, joined: Value) -> Node | None:
        """What reduces the axis of images: a reader, or what alone reads its product by weights."""
        if self._reduces(reader, joined):
            return reader
        result, weights = reader.outputs[0], self._weights(reader, joined)
        if weights is None or result is None or result in self._outputs:
            return None
        n, count, channels, *_ = self._shapes[joined]
        readers = self._uses.get(result, [])
        alone = len(readers) == 1 and self._reduces(readers[0], result)
        of_channels = self._shapes.get(weights) == (n, count, channels, 1, 1)
        return readers[0] if alone and of_channels and weights.dtype == joined.dtype else None

    def _weights(self, node: Node, joined: Value) -> Value | None:
        """What a Mul multiplies the images by, unless it is constant."""
        if node.kind != "Mul" or node.inputs.count(joined) != 1:
            return None
        other = node.inputs[1] if node.inputs[0] is joined else node.inputs[0]
        return None if other is None or other.const is not None else other

    def _reduces(self, node: Node, joined: Value) -> bool:
        """Whether a node is the sum over the axis of images, which it leaves out."""
        if node.kind != "ReduceSum" or node.inputs[0] is not joined:
            return False
        given = node.input(1)
        axes = node.attrs.get("axes")
        if given is not None:
            axes = None if given.const is None else given.const.reshape(-1).tolist()
        return list(axes or ()) in ([1], [-4]) and not node.attrs.get("keepdims", 1)

    def _images(self, node: Node, joined: Value) -> tuple[list[Value], list[Node]] | None:
        """The images of four axes, and what computes them in the node's place."""
        n, count, channels, *size = self._shapes[joined]
        if node.kind == "Concat":
            if node.attrs.get("axis") not in (1, -4) or len(node.inputs) != count:
                return None
            makers = [None if value is None else self._makers.get(value) for value in node.inputs]
            found = [None if maker is None else maker.inputs[0] for maker in makers]
            spread = all(maker is not None and maker.kind == "Unsqueeze" for maker in makers)
            images = [value for value in found if value is not None]
            fits = all(self._shapes.get(value) == (n, channels, *size) for value in images)
            return (images, []) if spread and fits and len(images) == count else None
        x = node.inputs[0]
        if x is None or type(channels) is not int:
            return None
        maker = self._makers.get(x)
        if maker is None or maker.op_type not in ("Conv", "ConvTranspose"):
            return None
        if self._shapes.get(x) != (n, count * channels, *size):
            return None
        return self._slices(node, x, count)

    def _slices(self, node: Node, x: Value, count: int) -> tuple[list[Value], list[Node]]:
        """Equal parts of the channels of an image, and what cuts them."""
        n, channels, *size = self._shapes[x]
        images, nodes = [], []
        for place in range(count):
            within = channels // count
            made = self._value(f"{x.name}:{place} of {count}", (n, within, *size))
            bounds = [place * within, (place + 1) * within, 1]
            inputs = [x, *(Value.constant(np.array([number])) for number in bounds)]
            nodes.append(node.step("Slice", inputs, made))
            images.append(made)
        return images, nodes

    def _weighed(
        self, node: Node, joined: Value, parts: Sequence[Value]
    ) -> tuple[list[Value], list[Node]]:
        """Each image times its weights, and what computes that."""
        weights = self._weights(node, joined)
        n, count, channels, *_ = self._shapes[joined]
        rows = self._value(f"{node.name}:weights", (n, count * channels, 1, 1))
        shape = Value.constant(np.array([0, count * channels, 1, 1]))
        of_images, cuts = self._slices(node, rows, count)
        nodes, results = [node.step("Reshape", [weights, shape], rows), *cuts], []
        for part, factor in zip(parts, of_images, strict=True):
            made = self._value(f"{part.name}:weighed", self._shapes[part])
            nodes.append(node.step("Mul", [part, factor], made))
            results.append(made)
        return results, nodes

    def _added(self, node: Node, parts: Sequence[Value]) -> list[Node]:
        """The sum of images, in the place of a node."""
        nodes, total = [], parts[0]
        for place, part in enumerate(parts[1:]):
            last = place == len(parts) - 2
            to = (
                node.outputs[0] if last else self._value(f"{node.name}:{place}", self._shapes[part])
            )
            nodes.append(node.step("Add", [total, part], to))
            total = to if to is not None else total
        return nodes

    def _value(self, name: str, shape: tuple[int, ...]) -> Value:
        value = Value(name, np.dtype(np.float32), shape)
        self._shapes[value] = shape
        return value
