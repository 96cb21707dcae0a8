"""Concat and slices along channels without a copy: images are parts of larger images.

Works on graphs with channels last. What a Concat joins is written where it belongs in its result.
All its inputs share a node ``Buffer``; who writes to it has it as last input and the place in
attribute ``into``, who reads a part finds it in ``channels``. Values that must be whole by
themselves are still copied. A Concat whose first input is a Concat (DenseNet) shares one buffer
with it. Slices that a Concat puts together again (split blocks of detectors) are the image that
they were cut from, and a slice whose readers can take some channels of an image is that image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from partita.lowering import Graph, Node, Value
from partita.lowering.nhwc.conversion import DOMAIN

_CONV, _SCALE = f"{DOMAIN}::Conv", f"{DOMAIN}::ScaleShift"
_TRANSPOSED, _RESIZE = f"{DOMAIN}::ConvTranspose", f"{DOMAIN}::Resize"
_PAIRS, _GATE = (f"{DOMAIN}::Add", f"{DOMAIN}::Mul"), f"{DOMAIN}::Gate"
_GROUPS = f"{DOMAIN}::GroupNormalization"
_POOLS = (f"{DOMAIN}::MaxPool", f"{DOMAIN}::AveragePool")
_MEANS = (f"{DOMAIN}::GlobalAveragePool", f"{DOMAIN}::GlobalMaxPool")

_TARGET = {_CONV: 6, _SCALE: 3, _TRANSPOSED: 3, **dict.fromkeys(_POOLS, 1)}
_TARGET |= {**dict.fromkeys(_PAIRS, 2), _GATE: 2, _RESIZE: 4, _GROUPS: 3}
"""Who can write to a part of a buffer, and the position of the input that is the buffer."""

_READERS = frozenset({*_TARGET, *_MEANS, "Concat"})
"""Who can read some channels of a larger image."""


def write_in_place(graph: Graph) -> None:
    """Takes the copies out of every Concat along the channels of images with channels last."""
    if any(map(_along_channels, graph.nodes)):
        _put_together(graph)
    elif not any(_range_of(node) for node in graph.nodes):
        return
    _Slices(graph).run()


def _put_together(graph: Graph) -> None:
    """Lets every Concat read an image in the place of slices that are all of it, in order."""
    makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
    graph.nodes = [
        node.like(_whole_images(node.inputs, makers)) if _along_channels(node) else node
        for node in graph.nodes
    ]
    read = {*graph.uses(), *graph.outputs}
    graph.nodes = [
        node for node in graph.nodes if _range_of(node) is None or node.outputs[0] in read
    ]


def _whole_images(
    inputs: Sequence[Value | None], makers: Mapping[Value, Node]
) -> list[Value | None]:
    """Inputs of a Concat with images in the places of all their slices."""
    found: list[Value | None] = []
    pieces: list[Value | None] = []  # the last inputs, which are an image's first channels
    image, end = None, 0
    for value in inputs:
        slice_ = None if value is None else makers.get(value)
        piece = None if slice_ is None else _range_of(slice_)
        source = None if slice_ is None or piece is None else slice_.inputs[0]
        if piece is None or (piece[0] and (source is not image or piece[0] != end)):
            found += [*pieces, value]
            image, pieces = None, []
            continue
        if not piece[0]:
            found += pieces
            pieces = []
        pieces.append(value)
        image, end = source, piece[1]
        if source is not None and end == _channels(source):
            found.append(source)
            image, pieces = None, []
    return [*found, *pieces]


def _range_of(node: Node) -> tuple[int, int] | None:
    """First channel and the one behind the last of a Slice of nothing but channels."""
    source, bounds = node.input(0), [node.input(n) for n in range(1, 5)]
    if node.kind != "Slice" or source is None or not _channels(source):
        return None
    numbers = [None if value is None else value.const for value in bounds]
    if any(n is not None and n.size != 1 for n in numbers):
        return None
    starts, ends, axes, steps = (None if n is None else int(n.reshape(-1)[0]) for n in numbers)
    if starts is None or ends is None or axes != 3 or steps not in (None, 1):
        return None
    first, last, _ = slice(starts, ends).indices(_channels(source))
    return (first, last) if first < last else None


def _along_channels(node: Node) -> bool:
    return node.kind == "Concat" and node.attrs.get("axis") == 3


def _channels(value: Value) -> int:
    """Channels of an image with channels last; 0 of what is none, or if they are not known."""
    last = value.shape[3] if value.shape is not None and len(value.shape) == 4 else None
    return last if isinstance(last, int) else 0


@dataclass(eq=False)
class _Buffer:
    """A tensor that several nodes write to."""

    value: Value
    shape: tuple[Any, ...]
    half: bool
    parts: list[Node] = field(default_factory=list)  # who writes to it


class _Slices:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._uses = graph.uses()
        self._outputs = set(graph.outputs)
        self._producer = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self._order = {node: number for number, node in enumerate(graph.nodes)}
        self._concats: dict[Node, bool] = {}
        self._places: dict[Value, tuple[_Buffer, int]] = {}
        self._views: dict[Value, tuple[Value, int]] = {}  # slices: of what, from which channel on
        self._new: dict[Node, list[Node]] = {}  # what comes in a Concat's place
        self._buffers: list[_Buffer] = []

    def run(self) -> None:
        for node in reversed(self._graph.nodes):
            if self._is_concat(node) and node not in self._new:
                self._open(node)
            self._see(node)
        if not self._buffers and not self._views:
            return
        first: dict[int, list[_Buffer]] = {}
        for buffer in self._buffers:
            start = min(self._order[part] for part in buffer.parts)
            first.setdefault(start, []).append(buffer)
        nodes: list[Node] = []
        for number, node in enumerate(self._graph.nodes):
            nodes += [self._memory(buffer) for buffer in first.get(number, ())]
            if node.result not in self._views:
                nodes += [self._placed(n) for n in self._new.get(node, [node])]
        for value, (buffer, _) in self._places.items():
            value.shape = buffer.shape
        self._graph.nodes = nodes

    def _is_concat(self, node: Node) -> bool:
        """Whether it joins images with channels last; all that read and make them ask."""
        found = self._concats.get(node)
        if found is None:
            found = self._concats[node] = self._joins_images(node)
        return found

    def _joins_images(self, node: Node) -> bool:
        if not _along_channels(node) or node.outputs[0] is None:
            return False
        values = [value for value in node.inputs if value is not None]
        known = all(v.const is None and _channels(v) for v in [*values, node.outputs[0]])
        # With channels last, if what comes in is: only such nodes make such values.
        return known and any(self._makes_images(self._producer.get(v)) for v in values)

    def _makes_images(self, node: Node | None) -> bool:
        if node is None:
            return False
        if node.kind == "Concat":
            return self._is_concat(node)
        return node.kind in _TARGET

    def _see(self, node: Node) -> None:
        """Notes a slice that is no image of its own."""
        piece, source, output = _range_of(node), node.input(0), node.result
        if piece is None or source is None or output is None or output in self._outputs:
            return
        if all(self._reads_part(reader, output) for reader in self._uses.get(output, [])):
            self._views[output] = source, piece[0]

    def _reads_part(self, reader: Node, value: Value) -> bool:
        """Whether a node can read a value that is some channels of a larger image."""
        if _range_of(reader) is not None or reader.kind in _PAIRS:
            return True
        if reader.kind == "Concat":
            return self._is_concat(reader)
        reads = reader.kind in _READERS and reader.inputs[0] is value
        return reads and reader.inputs.count(value) == 1

    def _open(self, concat: Node) -> None:
        """Makes a buffer for a Concat's result."""
        output = concat.outputs[0]
        if output is None or output.shape is None:
            return
        shape = output.shape
        value = Value(f"{output.name}:buffer", output.dtype, shape)
        buffer = _Buffer(value, shape, bool(concat.attrs.get("half")))
        self._buffers.append(buffer)
        self._fill(concat, buffer, 0)

    def _fill(self, concat: Node, buffer: _Buffer, offset: int) -> None:
        """Lets the Concat's inputs be written behind one another from a channel on."""
        copies: list[Node] = []
        joined: list[Value | None] = []
        for value in concat.inputs:
            if value is None:
                continue
            maker = self._producer.get(value)
            if maker is not None and self._can_move(value, maker, concat):
                self._places[value] = buffer, offset
                if maker.kind == "Concat":
                    self._fill(maker, buffer, offset)
                else:
                    buffer.parts.append(maker)
                joined.append(value)
            else:
                copies.append(self._copy(concat, value, buffer, offset))
                joined.append(copies[-1].outputs[0])
            offset += _channels(value)
        if copies:
            buffer.parts.append(concat)
        self._new[concat] = [*copies, self._node("Joined", concat, joined, concat.outputs[0])]

    def _can_move(self, value: Value, maker: Node, concat: Node) -> bool:
        """Whether a value may lie in a part of a buffer from the start."""
        if value in self._outputs or value in self._places or concat.inputs.count(value) > 1:
            return False
        if maker.kind == "Concat":
            if not self._is_concat(maker) or maker in self._new:
                return False
        elif maker.kind not in _TARGET or maker.input(3 if maker.kind == _CONV else 9) is not None:
            return False
        return all(self._reads_part(reader, value) for reader in self._uses.get(value, []))

    def _copy(self, concat: Node, value: Value, buffer: _Buffer, offset: int) -> Node:
        copied = Value(f"{value.name}:part", value.dtype, buffer.shape)
        node = self._node("PutChannels", concat, [value, buffer.value], copied)
        node.attrs["into"] = offset
        return node

    @staticmethod
    def _node(op_type: str, owner: Node, inputs: list[Value | None], output: Value | None) -> Node:
        return Node(
            op_type, inputs, [output], domain=DOMAIN, name=owner.name, origins=owner.origins
        )

    def _memory(self, buffer: _Buffer) -> Node:
        attrs = {"shape": buffer.shape, "half": buffer.half}
        return Node("Buffer", [], [buffer.value], attrs, domain=DOMAIN, name=buffer.value.name)

    def _place(self, value: Value | None) -> tuple[Value, int] | None:
        """The tensor that a value is some channels of, and the first of them."""
        if value in self._views:
            source, first = self._views[value]
            whole, before = self._place(source) or (source, 0)
            return whole, before + first
        return (value, self._places[value][1]) if value in self._places else None

    def _placed(self, node: Node) -> Node:
        """The node with what it has to know about the places of what it reads and writes."""
        if node.op_type == "Joined":
            return node
        attrs: dict[str, object] = {}
        inputs = list(node.inputs)
        for position, name in enumerate(("channels", "second")[: 1 + (node.kind in _PAIRS)]):
            value = node.input(position)
            place = self._place(value)
            if value is None or place is None:
                continue
            inputs[position], first = place
            piece = _range_of(node)
            if piece is not None:
                bounds = [Value.constant(np.array([first + channel])) for channel in piece]
                return node.like([place[0], *bounds, *node.inputs[3:]])
            attrs[name] = first, _channels(value)
        output = node.outputs[0]
        if output in self._places:
            buffer, offset = self._places[output]
            attrs["into"] = offset
            inputs += [None] * (_TARGET[node.kind] - len(inputs))
            inputs.append(buffer.value)
        if not attrs:
            return node
        return node.like(inputs, attrs=attrs)
