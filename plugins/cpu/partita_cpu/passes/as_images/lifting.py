"""Base of passes that compute values of another rank as images."""

from __future__ import annotations

import abc

from partita.lowering import Array, Graph, Node, Value
from partita.lowering.fusion import Shapes
from partita.lowering.nhwc.conversion import SINGLE
from partita.lowering.shapes.symbolic_size import integers
from partita.model.op_traits import Trait, having


class Lifting(abc.ABC):
    """One walk over a graph whose shapes are known, before images get their channels last.

    Convolutions of such values become ones of images, and what follows them element by element
    computes with images too. Values that others read keep their shapes: an image is a view.

    Args:
        graph: Changed in place by :meth:`run`; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.
    """

    rank: int
    """Dimensions of the values that are lifted."""

    mark: str
    """What names of new values and nodes end in."""

    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        self.graph = graph
        self.shapes = dict(shapes)
        self.lifted: dict[Value, Value] = {}
        self.nodes: list[Node] = []

    @abc.abstractmethod
    def is_convolution(self, node: Node) -> bool:
        """Whether a node shall be computed with images."""

    @abc.abstractmethod
    def lift(self, node: Node, output: Value) -> None:
        """Adds a node that computes an output's image, by :meth:`bring` and :meth:`finish`."""

    @abc.abstractmethod
    def image_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Of the image that a value of a shape is seen as."""

    @abc.abstractmethod
    def constant_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """What a constant that is spread over a value becomes; ``None`` if it cannot be spread."""

    def run(self) -> Shapes:
        """Rewrites the graph's nodes; returns the shapes, and those of the new values."""
        if not any(map(self.is_convolution, self.graph.nodes)):
            return self.shapes
        for node in self.graph.nodes:
            output = node.result
            if output is not None and (self.is_convolution(node) or self.follows(node)):
                self.lift(node, output)
            else:
                self.nodes.append(node)
        self.graph.nodes = self.nodes
        uses, outputs = self.graph.uses(), set(self.graph.outputs)
        dead = {v for v in self.lifted if v not in uses and v not in outputs}
        self.graph.nodes = [node for node in self.nodes if not dead.intersection(node.outputs)]
        return self.shapes

    def holds(self, value: Value | None) -> bool:
        """Whether a value can be lifted."""
        if value is None or value.const is not None or value.dtype not in (None, SINGLE):
            return False
        return len(self.shapes.get(value, ())) == self.rank

    def follows(self, node: Node) -> bool:
        """Whether a node works element by element, on values that are lifted already."""
        if node.kind not in having(Trait.ELEMENTWISE):
            return False
        if len(node.outputs) != 1 or not self.holds(node.outputs[0]):
            return False
        return all(
            value in self.lifted
            or (value.const is not None and self.constant_shape(value.const.shape) is not None)
            for value in node.reads()
        )

    def bring(self, value: Value, node: Node) -> Value:
        """A value as an image; one of another rank, as a bias is, stays what it is."""
        if value.const is not None:
            shape = self.constant_shape(value.const.shape)
            if shape is None or shape == value.const.shape:
                return value
            return Value.constant(value.const.reshape(shape), value.name)
        if len(self.shapes[value]) != self.rank:
            return value
        found = self.lifted.get(value)
        if found is None:
            found = self.lifted[value] = self.image(value, self.image_shape(self.shapes[value]))
            self.nodes.append(self._view(value, found, node))
        return found

    def finish(self, output: Value, node: Node) -> None:
        """Adds a node that computes an output's image, and the view that is the output."""
        image = self.lifted[output] = self.image(output, self.image_shape(self.shapes[output]))
        self.nodes.append(node.like(outputs=[image]))
        self.nodes.append(self._view(image, output, node))

    def image(self, value: Value, shape: tuple[int, ...]) -> Value:
        """A new value of a shape."""
        new = Value(f"{value.name}:{self.mark}", SINGLE, shape)
        self.shapes[new] = shape
        return new

    def _view(self, source: Value, target: Value, owner: Node) -> Node:
        shape = Value.constant(integers(self.shapes[target]))
        name = f"{owner.name}/{self.mark}"
        attrs = {"allowzero": 1}  # an axis of no elements is none that is copied
        return Node("Reshape", [source, shape], [target], attrs, name=name, origins=owner.origins)


def constant_weights(node: Node, rank: int) -> Array | None:
    """The weights of a convolution, if they are constant float32 numbers of that rank."""
    w = node.input(1)
    if w is None or w.const is None or w.const.ndim != rank or w.const.dtype != SINGLE:
        return None
    return w.const
