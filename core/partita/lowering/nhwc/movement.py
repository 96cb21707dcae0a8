"""Slice, Split and Reshape with channels last, as part of the layout conversion.

Vision transformers reshape an image to rows of pixels, with all channels of a pixel in a row, and
back; where channels are last, that is a view.
"""

from __future__ import annotations

import numpy as np

from partita.lowering.geometry.axes import axis_of
from partita.lowering.graph import Node, Value
from partita.lowering.nhwc.conversion import (
    IMAGE_READERS,
    TO_LAST,
    ChannelsLast,
    Rule,
)
from partita.lowering.shapes.symbolic_size import integers

_BETWEEN = ("Concat", "Resize")
"""Operators that follow images with channels last."""


class MovedChannelsLast(ChannelsLast):
    """A walk by which Slice, Split and Reshape follow images, too.

    Where channels are filled up in memory, only what starts and ends at whole units does.
    """

    pattern_heads = frozenset({"Reshape", "Transpose"})

    def rules_by_kind(self) -> dict[str, Rule]:
        """The rule for each kind of node, those that move parts of images too."""
        own: dict[str, Rule] = {
            "Reshape": self._reshape,
            "Slice": self._slice,
            "Split": self._split,
        }
        return super().rules_by_kind() | own

    def _reshape(self, node: Node) -> bool:
        return self._rows_of_pixels(node)

    def _slice(self, node: Node) -> bool:
        """Ranges that are constants, along any axes."""
        x, bounds = node.inputs[0], node.inputs[1:]
        if x is None or not self.is_last(x) or node.version < 10:
            return False
        if any(value is not None and value.const is None for value in bounds):
            return False
        starts, ends, axes, steps = (*bounds, None, None)[:4]
        if starts is None or starts.const is None:
            return False
        along = range(starts.const.size) if axes is None or axes.const is None else axes.const
        axes_last = [TO_LAST.index(axis_of(node, int(n), 4)) for n in along]
        if self.unit > 1 and 3 in axes_last:
            return False
        moved = Value.constant(np.array(axes_last, starts.const.dtype))
        inputs = [self.bring(x, node), starts, ends, moved, steps]
        self.replace(node, inputs, node.op_type, node.domain)
        return True

    def _split(self, node: Node) -> bool:
        """Pieces of the channels, each as a slice of its own."""
        x = node.inputs[0]
        if x is None or not self.is_last(x) or self.unit > 1:
            return False
        if axis_of(node, node.attrs.get("axis", 0), 4) != 1:
            return False
        pieces: list[tuple[Value, int]] = []
        for value in node.outputs:
            shape = None if value is None else self.shape(value)
            if value is None or shape is None or type(shape[1]) is not int:
                return False
            pieces.append((value, shape[1]))
        start, image = 0, self.bring(x, node)
        for output, count in pieces:
            end = start + count
            numbers = (Value.constant(np.array([number])) for number in (start, end, 3))
            self.append(node, [image, *numbers], output, "Slice", "", {}, node.origins)
            start = end
        return True

    def _transpose(self, node: Node) -> bool:
        """Rows of a pixel's channels that become an image are one with channels last already."""
        if list(node.attrs.get("perm", ())) != [0, 2, 1]:
            return self.is_image(node.result) and super()._transpose(node)
        rows, last = node.inputs[0], self.only_reader(node, "Reshape")
        image = None if last is None else last.outputs[0]
        if rows is None or last is None or image is None or not self.is_image(image):
            return False
        n, c, h, w = self.shape(image) or (0, 0, 0, 0)
        if not self._is_whole(n, c, h, w) or self.shape(rows) != (n, h * w, c):
            return False
        if not self._leads_to_readers(image):
            return False
        self.take_with(last)
        inputs = [rows, Value.constant(integers([n, h, w, c]))]
        self.append(last, inputs, image, "Reshape", "", {}, (*node.origins, *last.origins))
        return True

    def _leads_to_readers(self, image: Value) -> bool:
        """Whether an image is read by what wants it with channels last, resized or joined first."""
        images, seen = [image], {image}
        while images:
            for reader in self.uses.get(images.pop(), []):
                if reader.op_type in IMAGE_READERS:
                    return True
                made = reader.result if reader.kind in _BETWEEN else None
                if made is not None and made not in seen and self.is_image(made):
                    seen.add(made)
                    images.append(made)
        return False

    def _rows_of_pixels(self, node: Node) -> bool:
        """An image that becomes rows of a pixel's channels is those with channels last already."""
        x = node.inputs[0]
        transpose = self.only_reader(node, "Transpose")
        if x is None or transpose is None or not self.is_last(x) or transpose.outputs[0] is None:
            return False
        n, c, h, w = self.shape(x) or (0, 0, 0, 0)
        flat = None if node.outputs[0] is None else self.shape(node.outputs[0])
        swaps = list(transpose.attrs.get("perm", ())) == [0, 2, 1]
        if not swaps or not self._is_whole(n, c, h, w) or flat != (n, c, h * w):
            return False
        self.take_with(transpose)
        self.put(
            Node(
                "Reshape",
                [self.bring(x, node), Value.constant(integers([n, h * w, c]))],
                [transpose.outputs[0]],
                version=node.version,
                name=transpose.name,
                origins=(*node.origins, *transpose.origins),
            )
        )
        return True

    def _is_whole(self, n: int, c: int, h: int, w: int) -> bool:
        """Whether an image has elements, and in memory none beside them."""
        return n * c * h * w != 0 and c % self.unit == 0

    def only_reader(self, node: Node, kind: str) -> Node | None:
        """Who alone reads a node's result, as its first input, if that is no output."""
        value = node.outputs[0]
        if value is None or value in self.outputs:
            return None
        readers = self.uses.get(value, [])
        alone = len(readers) == 1 and readers[0].kind == kind and readers[0].inputs[0] is value
        return readers[0] if alone else None
