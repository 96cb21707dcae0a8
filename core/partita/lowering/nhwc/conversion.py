"""Layout conversion: moves convolutions and what lies between them to channels last (NHWC).

One walk over a graph whose shapes are known, for a back-end's :attr:`Target.refine`. The back-end's
rules say which operators always compute with channels last (convolutions); pooling, element-wise
operators, Concat and the like follow where their input is in that layout already. A value is
converted back only where an operator that has not followed, or a caller, reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import numpy as np

from partita.lowering.geometry.axes import axis_of
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array
from partita.model.op_traits import Trait, having

DOMAIN = "partita.nhwc"
"""Domain of operators that differ from ONNX's by the layout of their images."""

SINGLE: np.dtype[Any] = np.dtype(np.float32)

BYTES = (np.dtype(np.int8), np.dtype(np.uint8))
"""Element types of quantized images."""

Shapes = Mapping[Value, tuple[int, ...]]

Rule = Callable[[Node], bool]
"""What a walk does with a kind of node; false if it left the node as it is."""

TO_LAST = (0, 2, 3, 1)
"""Axes of an image in memory where channels are last."""

_TO_FIRST = (0, 3, 1, 2)

IMAGE_READERS = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"})
"""Operators for whose sake it is worth it to have an image with channels last."""


class ChannelsLast:
    """Moves what computes on images to channels last, node by node; a back-end adds its rules.

    A rule is called with a node and says whether it took it: then it has put another node in its
    place by :meth:`replace` or :meth:`append`, which reads images that :meth:`bring` returns::

        class Walk(ChannelsLast):
            def rules_by_kind(self):
                return super().rules_by_kind() | {"Conv": self._conv}

            def _conv(self, node):
                x, weights = node.inputs
                self.replace(node, [self.bring(x, node), weights], "Conv", DOMAIN)
                return True

    Nodes that no rule takes stay as they are, and read images in the model's own layout.

    Args:
        graph: Changed in place by :meth:`run`; its nodes are not, new ones take their places.
            Values that callers see stay as they are.
        shapes: Of all values that nodes compute.
        dtype: Element type of images in memory.
        declared: Element types that images have in the model, or ``None`` for that of memory.
        unit: Channels are a multiple of it in memory, filled up by elements that mean nothing.

    Attributes:
        pattern_heads: Kinds of nodes that begin patterns: their rules are always asked.
        uses: Readers of every value.
        unit: Channels are a multiple of it in memory.
    """

    pattern_heads: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        graph: Graph,
        shapes: Shapes,
        dtype: np.dtype[Any] = SINGLE,
        declared: Collection[np.dtype[Any]] | None = None,
        unit: int = 1,
    ) -> None:
        self.uses = graph.uses()
        self.outputs = set(graph.outputs)
        self.rules = self.rules_by_kind()
        self._graph = graph
        self._shapes = shapes
        self._dtype = dtype
        self._declared = {None, *((dtype,) if declared is None else declared)}
        self.unit = unit
        self._last: dict[Value, Value] = {}
        self._single: dict[Value, Value] = {}  # one channel, not filled up
        self._pending: set[Value] = set()  # computed with channels last only
        self._taken: set[Node] = set()
        self._nodes: list[Node] = []

    def rules_by_kind(self) -> dict[str, Rule]:
        """The rule for each kind of node, which is asked if the node makes an image.

        A subclass adds its own to those that it inherits.
        """
        return {
            "Resize": self._resize,
            "MaxPool": self._window,
            "AveragePool": self._window,
            "GlobalAveragePool": self.follow,
            "GlobalMaxPool": self.follow,
            "ReduceMean": self._mean,
            "Concat": self._concat,
            **dict.fromkeys(having(Trait.ELEMENTWISE), self._elementwise),
            f"{DOMAIN}::ToChannelsFirst": self._port_in,
            f"{DOMAIN}::ToChannelsLast": self._port_out,
            "Transpose": self._transpose,
        }

    def run(self) -> None:
        """Rewrites the graph's nodes."""
        for node in self._graph.nodes:
            if node in self._taken:
                continue
            rule = self.rules.get(node.kind)
            asked = self.is_image(node.result) or node.kind in self.pattern_heads
            if rule is None or not asked or not rule(node):
                node = self._with_known_shape(node)
                for value in node.reads():
                    self.bring_back(value, node)
                self._nodes.append(node)
        for value in self._graph.outputs:
            self.bring_back(value, None)
        self._graph.nodes = self._nodes

    def _with_known_shape(self, node: Node) -> Node:
        """A constant in place of what asks for the shape of an image whose layout is converted.

        The image would be brought back for it.
        """
        image = node.inputs[0] if node.kind in ("Shape", "Size") else None
        shape = self.shape(image) if image is not None and image in self._pending else None
        if shape is None or not all(type(size) is int for size in shape):
            return node
        start, end = node.attrs.get("start", 0), node.attrs.get("end")
        numbers = math.prod(shape) if node.kind == "Size" else shape[start:end]
        found = Value.constant(np.array(numbers, np.int64), f"{node.name}/shape")
        return Node("Identity", [found], node.outputs, name=node.name, origins=node.origins)

    # ------------------------------------------------------------------------- for rules

    def follow(self, node: Node) -> bool:
        """A rule: takes an operator of one image under its own name, if that has channels last."""
        x = node.inputs[0]
        if x is None or not self.is_last(x):
            return False
        self.replace(node, [self.bring(x, node)], node.op_type, DOMAIN)
        return True

    def take_with(self, node: Node) -> None:
        """Leaves out a later node of the graph, whose work one that was put there does as well."""
        self._taken.add(node)

    def replace(
        self, node: Node, inputs: list[Value | None] | list[Value], op_type: str, domain: str
    ) -> None:
        """Puts a node in the place of one of the graph.

        Args:
            node: Which one; it keeps its attributes, and its first output is the only one.
            inputs: What the new one reads.
            op_type: What the new one is.
            domain: That operator's domain.
        """
        self.append(node, inputs, node.outputs[0], op_type, domain, node.attrs, node.origins)

    def append(
        self,
        node: Node,
        inputs: list[Value | None] | list[Value],
        output: Value | None,
        op_type: str,
        domain: str,
        attrs: Mapping[str, object],
        origins: tuple[str, ...],
    ) -> None:
        """Adds a node that computes a value with channels last.

        Args:
            node: The one of the graph in whose name it does.
            inputs: What it reads.
            output: The value, in the model's layout; nothing is added for ``None``.
            op_type: What it is.
            domain: That operator's domain.
            attrs: Its attributes.
            origins: Names of the model's operations that it computes.
        """
        if output is None:
            return
        twin = Value(f"{output.name}:nhwc", self._stored(output), self._last_shape(output))
        self._last[output] = twin
        self._pending.add(output)
        self._nodes.append(
            Node(
                op_type,
                inputs,
                [twin],
                attrs,
                domain=domain,
                version=node.version,
                name=node.name,
                origins=origins,
            )
        )

    def bring(self, value: Value, node: Node) -> Value:
        """The twin of a value that has channels last.

        Args:
            value: In the model's layout.
            node: Who reads it; a reorder is added for it if nothing computes the twin.
        """
        twin = self._last.get(value)
        if twin is None:
            twin = Value(f"{value.name}:nhwc", self._stored(value), self._last_shape(value))
            self._last[value] = twin
            self._nodes.append(self._reorder("ToChannelsLast", self.source(value), twin, node))
        return twin

    def bring_back(self, value: Value, node: Node | None) -> None:
        """Makes sure that a value is computed in the model's layout, too.

        Args:
            value: Which one; nothing happens unless it is there with channels last only.
            node: Who reads it so; ``None`` for a caller.
        """
        if value in self._pending:
            self._pending.remove(value)
            owner = node or value.producer
            back = self._reorder("ToChannelsFirst", self._last[value], value, owner)
            back.attrs["channels"] = (self.shape(value) or (0, 0))[1]
            self._nodes.append(back)

    def _stored(self, value: Value) -> np.dtype[Any]:
        """An image's element type in memory: bytes stay bytes."""
        return value.dtype if value.dtype in BYTES else self._dtype

    def source(self, value: Value) -> Value:
        """What reorders may read for a value that is not there with channels last."""
        return value

    def put(self, node: Node) -> None:
        """Adds a node whose results have the model's own layout."""
        self._nodes.append(node)

    def is_pending(self, value: Value) -> bool:
        """Whether the value is there with channels last only."""
        return value in self._pending

    def _last_shape(self, value: Value) -> tuple[int, ...] | None:
        """The dimensions that the value has in memory with channels last."""
        shape = self.shape(value)
        if shape is None or len(shape) != 4:
            return None
        n, c, h, w = shape
        return n, h, w, -(-c // self.unit) * self.unit

    def is_last(self, value: Value | None) -> bool:
        """Whether the value is there with channels last."""
        return value in self._last

    def is_image(self, value: Value | None) -> bool:
        """Whether the value is no constant and has four dimensions, and a type that moves."""
        if value is None or value.dtype not in self._declared:
            return False
        shape = self.shape(value)
        return value.const is None and shape is not None and len(shape) == 4

    def shape(self, value: Value) -> tuple[int, ...] | None:
        """The value's dimensions in the model's order."""
        return self._shapes.get(value)

    # ----------------------------------------------------------------------------- rules

    def _port_in(self, node: Node) -> bool:
        """An image that a caller brings with channels last is there already."""
        source, target = node.inputs[0], node.outputs[0]
        if source is None or target is None or not self._lies_as(source, target):
            return False
        if source.dtype != self._dtype:
            # In memory it is of the other type, or is converted where it is not.
            twin = Value(f"{target.name}:nhwc", self._dtype, self._last_shape(target))
            self._nodes.append(self.stored(node, source, twin))
            source = twin
        self._last[target] = source
        self._pending.add(target)
        return True

    def _port_out(self, node: Node) -> bool:
        """A caller that wants an image with channels last gets it as it was computed."""
        source, target = node.inputs[0], node.outputs[0]
        if source is None or target is None or not self._lies_as(target, source):
            return False
        if not self.is_last(source):
            return False
        self._nodes.append(self._identity(node, self._last[source], target))
        return True

    def _lies_as(self, last: Value, image: Value) -> bool:
        """Whether the elements of a tensor (n, y, x, channels) are those of an image's twin."""
        shape = self.shape(image)
        if last.dtype is None or last.dtype not in self._declared or last.dtype != image.dtype:
            return False
        return shape is not None and len(shape) == 4 and shape[1] % self.unit == 0

    def stored(self, node: Node, source: Value, target: Value) -> Node:
        """What brings a tensor to the element type of images in memory, where it has another.

        Args:
            node: The node that it is part of.
            source: What is there.
            target: What becomes of it.
        """
        return self._identity(node, source, target)

    @staticmethod
    def _identity(node: Node, source: Value, target: Value) -> Node:
        return Node("Identity", [source], [target], name=node.name, origins=node.origins)

    def _transpose(self, node: Node) -> bool:
        """Leaves what a model of channels last transposes for a convolution, and back, as it is."""
        perm = tuple(node.attrs.get("perm", ()))
        if perm == TO_LAST:
            return self._port_out(node)
        if perm != _TO_FIRST or not self.is_image(node.inputs[0]):
            return False
        readers = self.uses.get(node.outputs[0], []) if node.outputs[0] is not None else []
        if not any(self.reads_images(reader) for reader in readers):
            return False
        return not self.is_last(node.inputs[0]) and self._port_in(node)

    def reads_images(self, reader: Node) -> bool:
        """Whether an image that lies with channels last is left so for the sake of a reader."""
        return reader.op_type in IMAGE_READERS

    def _resize(self, node: Node) -> bool:
        """The operator takes any axes, so that only its numbers per axis change places."""
        inputs = self.resized_inputs(node)
        if inputs is None:
            return False
        self.replace(node, inputs, node.op_type, node.domain)
        return True

    def resized_inputs(self, node: Node) -> list[Value | None] | None:
        """What a Resize of an image that is there reads with channels last; else ``None``."""
        x = node.inputs[0]
        if x is None or not self.is_last(x) or node.version < 11 or "axes" in node.attrs:
            return None
        if node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
            return None
        inputs: list[Value | None] = [None, None]
        for value in node.inputs[2:]:
            if value is None or (value.const is not None and value.const.size == 0):
                inputs.append(None)
                continue
            found = self.resized_to(node, value)
            if found is None or found.shape != (4,):
                return None
            numbers = found[list(TO_LAST)]
            if numbers.dtype.kind == "i":  # sizes
                numbers = numbers + np.array([0, 0, 0, -numbers[3] % self.unit])
            inputs.append(Value.constant(numbers, value.name))
        inputs[0] = self.bring(x, node)
        return inputs

    def resized_to(self, node: Node, given: Value) -> Array | None:
        """Scales or sizes that a Resize is given, if they are known.

        Sizes that the model computes, of another image's shape mostly, are what the result has.
        """
        if given.const is not None or given is not node.input(3):
            return given.const
        result = None if node.outputs[0] is None else self.shape(node.outputs[0])
        stretches = node.attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        if not stretches or result is None or not all(type(size) is int for size in result):
            return None
        return np.array(result, np.int64)

    def _window(self, node: Node) -> bool:
        if not self.is_image(node.inputs[0]) or any(node.outputs[1:]):
            return False
        return self.follow(node)

    def reduces_pixels(self, node: Node) -> bool:
        """Whether a reduction is over all pixels of an image with channels last, and leaves one."""
        axes, given, x = node.attrs.get("axes"), node.input(1), node.inputs[0]
        if given is not None and given.const is not None:
            axes = given.const.reshape(-1).tolist()
        if axes is None or sorted(axis + 4 if axis < 0 else axis for axis in axes) != [2, 3]:
            return False
        return x is not None and self.is_last(x) and bool(node.attrs.get("keepdims", 1))

    def _mean(self, node: Node) -> bool:
        """The mean over all pixels, where the result is an image again."""
        x = node.inputs[0]
        if x is None or not self.reduces_pixels(node):
            return False
        self.replace(node, [self.bring(x, node)], "GlobalAveragePool", DOMAIN)
        return True

    def _concat(self, node: Node) -> bool:
        if not all(self.is_image(value) for value in node.inputs):
            return False
        rank_axis = axis_of(node, node.attrs.get("axis", 1), 4)
        there = sum(self.is_last(value) for value in node.inputs)
        if 2 * there < len(node.inputs) or not there:
            return False
        values = [value for value in node.inputs if value is not None]
        channels = [(self.shape(value) or (0, 0))[1] for value in values]
        if rank_axis == 1 and any(count % self.unit for count in channels):
            return False
        inputs = [self.bring(value, node) for value in values]
        attrs = {**node.attrs, "axis": TO_LAST.index(rank_axis)}
        self.append(node, inputs, node.outputs[0], node.op_type, node.domain, attrs, node.origins)
        return True

    def _elementwise(self, node: Node) -> bool:
        there = others = 0
        for value in node.inputs:
            if value is None or value.const is not None:
                if value is not None and value.const is not None and value.const.ndim > 4:
                    return False
                continue
            if self.is_last(value):
                there += 1
            elif self.is_image(value):
                others += 1
            elif self.shape(value) != ():
                return False
        if not there or others > there:
            return False
        inputs = [None if value is None else self._beside(value, node) for value in node.inputs]
        self.replace(node, inputs, node.op_type, node.domain)
        return True

    def _beside(self, value: Value, node: Node) -> Value:
        """An element-wise operator's input as it must be for channels last."""
        if value.const is None:
            if self.shape(value) == ():
                return value
            return (
                self._spread(value, node) if self._spreads(value, node) else self.bring(value, node)
            )
        if value.const.ndim == 0:
            return value
        four = value.const.reshape((1,) * (4 - value.const.ndim) + value.const.shape)
        return Value.constant(self._filled(four.transpose(TO_LAST)), value.name)

    def _spreads(self, value: Value, node: Node) -> bool:
        """Whether an image's one channel, filled up in memory, is read by all of a result's."""
        result = None if node.outputs[0] is None else self.shape(node.outputs[0])
        one = (self.shape(value) or (0, 0))[1] == 1
        return self.unit > 1 and one and result is not None and result[1] != 1

    def _spread(self, value: Value, node: Node) -> Value:
        """The image with its one channel last, not filled up: all channels of others read that."""
        if value not in self._single:
            self.bring_back(value, node)
            n, _, h, w = self.shape(value) or (0, 0, 0, 0)
            single = Value(f"{value.name}:nhw1", value.dtype, (n, h, w, 1))
            attrs, name = {"perm": list(TO_LAST)}, f"{node.name}/layout"
            self.put(Node("Transpose", [value], [single], attrs, version=13, name=name, origins=()))
            self._single[value] = single
        return self._single[value]

    def _filled(self, array: Array) -> Array:
        """The array with so many channels as images have in memory, unless it has one."""
        channels = array.shape[3]
        more = -channels % self.unit if channels > 1 else 0
        return np.ascontiguousarray(np.pad(array, ((0, 0),) * 3 + ((0, more),)))

    @staticmethod
    def _reorder(op_type: str, source: Value, target: Value, owner: Node | None) -> Node:
        name = owner.name if owner is not None else target.name
        origins = owner.origins if owner is not None else ()
        return Node(
            op_type, [source], [target], domain=DOMAIN, name=f"{name}/layout", origins=origins
        )
