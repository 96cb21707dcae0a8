"""Images with channels last: which operators of device OPENCL compute so, beyond what all may.

Convolutions do where there are matrix units for halves; see
:class:`~partita.lowering.ChannelsLast` for the walk.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.lowering import Array, Graph, Node, Value
from partita.lowering.fusion.norm import affine_rows
from partita.lowering.geometry.windows import Window
from partita.lowering.nhwc.conversion import DOMAIN, Rule, Shapes
from partita.lowering.nhwc.convolutions import constant_weights, transposed_window
from partita.lowering.nhwc.movement import MovedChannelsLast
from partita_opencl.passes.half_precision import HALF, SINGLE

UNIT = 8
"""Halves that are read together: channels in memory are a multiple of it."""

FEW = 4
"""Channels of a picture, filled up: rows of its pixels are channels of a convolution in y alone."""

_MOST_TAPS = 1 << 16
"""Of a pool's window: kernels for channels last walk through those beside the image, too."""

_MOST_ELEMENTS = 2**31 - 1
"""Elements of an image, all of its batch, that kernels address by an int."""


def filled(count: int) -> int:
    """The count, filled up to whole units."""
    return -(-count // UNIT) * UNIT


def channels_last(graph: Graph, shapes: Shapes, *, narrowed: bool) -> None:
    """Rewrites a graph's nodes; values that callers see stay as they are.

    Args:
        graph: Changed in place; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.
        narrowed: Whether what the model declares as float32 is float16 in memory.
    """
    _Walk(graph, shapes, narrowed).run()


class Blocks(NamedTuple):
    """A transposed convolution whose results come as blocks, one for each place of a window.

    A block has a pixel for each step of the stride; each is a product of the same few pixels of the
    input, by other taps of the kernel. All pairs are of y and x; of a sequence, y is 1.

    Attributes:
        steps: Pixels of a block.
        out: Blocks.
        taps: Pixels of the input that a block follows from.
        first: The first of them, counted from the block's place.
    """

    steps: tuple[int, int]
    out: tuple[int, int]
    taps: tuple[int, int]
    first: tuple[int, int]


def blocks_of(window: Window) -> Blocks | None:
    """The blocks that a transposed convolution computes; ``None`` if results are not whole ones.

    Args:
        window: As :func:`partita.lowering.geometry.windows.resolve_transposed` gives it.
    """
    if window.rank > 2 or window.dilation[1:] != (1, 1):
        return None
    found = [_blocks_along(*window.along(axis)) for axis in (1, 2)]
    if any(blocks is None for blocks in found):
        return None
    y, x = (blocks for blocks in found if blocks is not None)
    return Blocks(*((a, b) for a, b in zip(y, x, strict=True)))


def _blocks_along(
    size: int, kernel: int, stride: int, gap: int, begin: int, end: int, count: int
) -> tuple[int, int, int, int] | None:
    """Of one axis: pixels of a block, blocks, taps, and the first of them.

    Args:
        size: Pixels of the input.
        kernel: Taps of the kernel.
        stride: From window to window.
        gap: From tap to tap; not asked for, but one of `Window.along`.
        begin: What is added before the first pixel.
        end: What is added behind the last one.
        count: Windows.
    """
    first = -((kernel - 1 - begin) // stride)
    taps = (stride - 1 + begin) // stride - first + 1
    out = size // stride
    if size % stride or size <= 0 or taps < 1 or (taps == 1 and (first or out != count)):
        return None
    return stride, out, taps, first


class _Walk(MovedChannelsLast):
    def __init__(self, graph: Graph, shapes: Shapes, narrowed: bool) -> None:
        super().__init__(graph, shapes, HALF, (SINGLE, HALF) if narrowed else (HALF,), UNIT)
        self._narrowings: dict[Value, Node] = {}

    def rules_by_kind(self) -> dict[str, Rule]:
        """The rule for each kind of node, convolutions and changes of types too."""
        own: dict[str, Rule] = {
            "Conv": self._conv,
            "partita::Conv": self._conv,
            "BatchNormalization": self._batch_normalization,
            "GroupNormalization": self._groups,
            "ConvTranspose": self._conv_transpose,
            "partita::ConvTranspose": self._conv_transpose,
            "partita::Narrow": self._narrow,
            "partita::Widen": self._widen,
        }
        return super().rules_by_kind() | own

    def _conv(self, node: Node) -> bool:
        x, w, bias, residual = (node.input(i) for i in range(4))
        weights = constant_weights(node, (SINGLE, HALF))
        if x is None or not self.is_image(x) or weights is None:
            return False
        if residual is not None and not self.is_image(residual):
            return False
        filters, channels = weights.shape[:2]
        groups = int(node.attrs.get("group", 1))
        depthwise = 1 == channels < groups == filters
        if groups > 1 and not depthwise and (channels % UNIT or filters // groups % UNIT):
            return False
        if any(map(self._is_large, (x, node.outputs[0]))):
            return False
        picture = not self.is_last(x) and self._is_picture(node, weights)
        source = self.source(x) if picture else self.bring(x, node)
        inputs: list[Value | None] = [source, w, bias]
        if residual is not None:
            inputs.append(self.bring(residual, node))
        attrs = {**node.attrs, "picture": True} if picture else node.attrs
        self.append(node, inputs, node.outputs[0], "Conv", DOMAIN, attrs, node.origins)
        return True

    def _conv_transpose(self, node: Node) -> bool:
        """Those whose results are whole blocks of as many pixels as windows step by."""
        x, w, bias = (node.input(i) for i in range(3))
        weights = constant_weights(node, (SINGLE, HALF))
        shape = None if x is None else self.shape(x)
        if x is None or shape is None or not self.is_image(x) or weights is None:
            return False
        if any(map(self._is_large, (x, node.outputs[0]))):
            return False
        window = transposed_window(node, shape[2:], weights.shape[2:])
        if window is None or blocks_of(window) is None:
            return False
        self.replace(node, [self.bring(x, node), w, bias], "ConvTranspose", DOMAIN)
        return True

    def _batch_normalization(self, node: Node) -> bool:
        """By constant statistics: a product and a sum for each channel."""
        x, result, rows = node.inputs[0], node.result, affine_rows(node)
        if x is None or result is None or not self.is_last(x) or any(node.outputs[1:]):
            return False
        if rows is None or node.version < 9:
            return False
        more = [(0, filled(rows[0].size) - rows[0].size)]
        factor, summand = (Value.constant(np.pad(row, more).astype(np.float32)) for row in rows)
        product = Value(f"{result.name}:scaled", HALF)
        self.put(node.step("Mul", [self.bring(x, node), factor], product))
        self.append(node, [product, summand], result, "Add", "", {}, node.origins)
        return True

    def _groups(self, node: Node) -> bool:
        """Over pixels and groups of channels, where these are whole units."""
        x, scale, bias = node.inputs[:3]
        if x is None or not self.is_last(x) or scale is None or bias is None or node.version < 21:
            return False
        channels, groups = (self.shape(x) or (0, 0))[1], int(node.attrs["num_groups"])
        if groups < 1 or channels % groups or channels // groups % UNIT:
            return False
        attrs = {"groups": groups, "epsilon": node.number("epsilon", 1e-5)}
        inputs = [self.bring(x, node), scale, bias]
        output = node.outputs[0]
        self.append(node, inputs, output, node.op_type, DOMAIN, attrs, node.origins)
        return True

    def reads_images(self, reader: Node) -> bool:
        """Whatever may compute with channels last: nothing is lost where it does not."""
        return reader.kind in self.rules and reader.kind != "Reshape"

    def _window(self, node: Node) -> bool:
        if math.prod(node.attrs.get("kernel_shape", ())) > _MOST_TAPS:
            return False
        return super()._window(node)

    def _is_picture(self, node: Node, w: Array) -> bool:
        """Whether windows over few channels start at whole units if rows of taps are channels."""
        if w.shape[1] > FEW or node.attrs.get("group", 1) != 1:
            return False
        across = (node.attrs.get("strides") or [1, 1])[1]
        even = bool(across * FEW % UNIT == 0)
        dense = bool((node.attrs.get("dilations") or [1, 1])[1] == 1)
        return even and dense and w.shape[3] > 1

    def _is_large(self, value: Value | None) -> bool:
        shape = (None if value is None else self.shape(value)) or (0, 0)
        elements = math.prod((*shape[:1], *shape[2:], filled(shape[1])))
        return elements > _MOST_ELEMENTS

    def _narrow(self, node: Node) -> bool:
        """Waits for a reader: one that takes channels last reads what the caller gave."""
        if node.outputs[0] is not None:
            self._narrowings[node.outputs[0]] = node
        return True

    def _widen(self, node: Node) -> bool:
        x, y = node.inputs[0], node.outputs[0]
        if x is None or y is None or not self.is_pending(x):
            return False
        channels = (self.shape(x) or (0, 0))[1]
        attrs = {"channels": channels, "single": True}
        self.put(
            Node(
                "ToChannelsFirst",
                [self.bring(x, node)],
                [y],
                attrs,
                domain=DOMAIN,
                name=node.name,
                origins=node.origins,
            )
        )
        return True

    def stored(self, node: Node, source: Value, target: Value) -> Node:
        """A narrowing, which does nothing to halves."""
        return node.step("Narrow", [source], target, domain="partita")

    def source(self, value: Value) -> Value:
        """What reorders may read for a value: what it was narrowed from."""
        node = self._narrowings.get(value)
        found = None if node is None else node.inputs[0]
        return value if found is None else found

    def bring_back(self, value: Value, node: Node | None) -> None:
        """Makes sure that the value itself is computed, its narrowing included."""
        narrowing = self._narrowings.pop(value, None)
        if narrowing is not None:
            self.put(narrowing)
        super().bring_back(value, node)
