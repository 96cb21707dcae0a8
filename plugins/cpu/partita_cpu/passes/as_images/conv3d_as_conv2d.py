"""Convolutions and pools over volumes become ones over images, for which there are kernels.

A volume is seen as one tall image, its slices one below another. A convolution that extends in
depth is computed slice by slice, of the slices under each window. Where there are many slices or
several volumes these are joined instead: each output slice's channels are those of all slices
under its window, so that it is a convolution of images with as many times more channels. Pools
that read what is lifted already are computed slice by slice, then across slices; what normalizes
over all places of a channel, and Concat, do not see that there are slices. A transposed convolution
whose windows touch makes a block of each place.
"""

from __future__ import annotations

from partita.errors import CompileError
from partita.lowering import Array, Node, Value
from partita.lowering.geometry.windows import (
    Window,
    count_places,
    resolve,
    resolve_transposed,
)
from partita.lowering.shapes.symbolic_size import evaluated, settled
from partita_cpu.kernels.nhwc.placement import SLICES
from partita_cpu.kernels.nhwc.transposed_blocks import touches
from partita_cpu.passes.as_images.lifting import Lifting, constant_weights

_CONVOLUTIONS = ("Conv", "partita::Conv")
_TRANSPOSED = ("ConvTranspose", "partita::ConvTranspose")
_POOLS = ("MaxPool", "AveragePool")
_NORMALIZATIONS = ("InstanceNormalization", "GroupNormalization", "BatchNormalization")
_IMAGE_AXES = {0: 0, 1: 1, 2: 2, 4: 3}
"""Axes of volumes along which the tall images can be put together, too."""

_SUMMED_SLICES = 1024
"""More slices under all windows together are joined: each would be a step of its own."""
_FLAT = 4
"""Fewer channels of a group than this are faster computed with channels first."""


class Volumes(Lifting):
    """(N, C, D, H, W) as (N, C, D x H, W)."""

    rank = 5
    mark = "slices"

    def is_convolution(self, node: Node) -> bool:
        """Convolutions by constant weights, in groups of some channels if they are flat."""
        if node.kind in _TRANSPOSED:
            return self._makes_blocks(node)
        if node.kind not in _CONVOLUTIONS or not self.holds(node.inputs[0]):
            return False
        w, residual, bias = constant_weights(node, self.rank), node.input(3), node.input(2)
        if w is None or not w.size or not (residual is None or self.holds(residual)):
            return False
        if bias is not None and (bias.const is None or bias.const.ndim != 1):
            return False
        groups = int(node.attrs.get("group", 1))
        window = self._window(node, w)
        if window is None or not all(self.shapes[value] for value in node.outputs if value):
            return False
        return groups == 1 or (w.shape[1] >= _FLAT and not _is_joined(window))

    def follows(self, node: Node) -> bool:
        """What works element by element, pools, and the like, on values that are lifted already."""
        if node.kind in _NORMALIZATIONS:
            return node.inputs[0] in self.lifted and not any(node.outputs[1:])
        if node.kind == "Concat":
            return self._puts_together(node)
        if node.kind not in _POOLS:
            return super().follows(node) and self._spreads(node)
        ours = node.inputs[0] in self.lifted and not any(node.outputs[1:])
        return ours and self.holds(node.inputs[0]) and self.holds(node.outputs[0])

    def holds(self, value: Value | None) -> bool:
        """Whether there are slices: where there is none, an image has forgotten their height."""
        return super().holds(value) and value is not None and self.shapes[value][2] != 0

    def _spreads(self, node: Node) -> bool:
        """Whether rows of all slices are spread over those of the output as they are volumes."""
        rows = [self.shapes[value][2:4] for value in node.outputs if value is not None]
        sources = [self.shapes[value][2:4] for value in node.reads() if value in self.lifted]
        return all(source in (*rows, (1, 1)) for source in sources)

    def _puts_together(self, node: Node) -> bool:
        """Whether a Concat does so along an axis that images have, of volumes lifted mostly."""
        axis = int(node.attrs["axis"]) % self.rank if self.holds(node.result) else None
        if axis not in _IMAGE_AXES or not all(map(self.holds, node.inputs)):
            return False
        shapes = [self.shapes[value] for value in node.reads()]
        if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1:
            return False  # said where the node is compiled as it is
        return 2 * sum(value in self.lifted for value in node.inputs) >= len(node.inputs)

    def _makes_blocks(self, node: Node) -> bool:
        """Whether it is a transposed convolution of one group whose windows touch."""
        x, w, bias = node.inputs[0], constant_weights(node, self.rank), node.input(2)
        if x is None or w is None or not w.size or not self.holds(x):
            return False
        if node.attrs.get("group", 1) != 1 or node.input(3) is not None:
            return False
        if bias is not None and (bias.const is None or bias.const.ndim != 1):
            return False
        try:
            window = resolve_transposed(node, self.shapes[x][2:], w.shape[2:])
        except CompileError:  # said where the node is compiled as it is
            return False
        return w.shape[0] == self.shapes[x][1] and touches(window)

    def _window(self, node: Node, w: Array) -> Window | None:
        value = node.inputs[0]
        if value is None:
            return None
        try:
            return resolve(node, self.shapes[value][2:], w.shape[2:])
        except CompileError:  # said where the node is compiled as it is
            return None

    def lift(self, node: Node, output: Value) -> None:
        """A convolution of slices; or the same operator, element by element."""
        x = node.inputs[0]
        if node.kind in _NORMALIZATIONS and x is not None:
            self.finish(output, node.like([self.bring(x, node), *node.inputs[1:]], []))
            return
        inputs = [None if value is None else self.bring(value, node) for value in node.inputs]
        w = constant_weights(node, self.rank)
        if node.kind in (*_POOLS, *_TRANSPOSED) and x is not None:
            attrs = {**node.attrs, "slices": self.shapes[x][2]}
            name, origins = node.name, node.origins
            alike = Node(node.op_type, inputs, [], attrs, domain=SLICES, name=name, origins=origins)
            self.finish(output, alike)
            return
        if node.kind == "Concat":
            axis = _IMAGE_AXES[int(node.attrs["axis"]) % self.rank]
            self.finish(output, node.like(inputs, [], {"axis": axis}))
            return
        if node.kind not in _CONVOLUTIONS or w is None or x is None or inputs[0] is None:
            self.finish(output, node.like(inputs, []))
            return
        window = resolve(node, self.shapes[x][2:], w.shape[2:])
        image = inputs[0]
        if _is_summed(window, self.shapes[x]) and int(node.attrs.get("group", 1)) == 1:
            self._sum(node, output, window, inputs)
            return
        if _is_joined(window):
            image = self._joined(node, image, window)
        attrs = {
            "slices": window.out[0],
            "strides": window.stride[1:],
            "dilations": window.dilation[1:],
            "pads": [*window.begin[1:], *window.end[1:]],
            "group": node.attrs.get("group", 1),
            "activation": node.attrs.get("activation"),
        }
        convolution = Node(
            "Conv",
            [image, node.input(1), *inputs[2:]],
            [],
            attrs,
            domain=SLICES,
            name=node.name,
            origins=node.origins,
        )
        self.finish(output, convolution)

    def _sum(self, node: Node, output: Value, window: Window, inputs: list[Value | None]) -> None:
        """Adds a sum of convolutions of single slices."""
        attrs = {
            "slices": window.size[0],
            "strides": window.stride,
            "dilations": window.dilation,
            "pads": [*window.begin, *window.end],
            "activation": node.attrs.get("activation"),
        }
        read = [inputs[0], node.input(1), *inputs[2:]]
        name, origins = node.name, node.origins
        total = Node("SummedConv", read, [], attrs, domain=SLICES, name=name, origins=origins)
        self.finish(output, total)

    def _joined(self, node: Node, x: Value, window: Window) -> Value:
        """The slices under each window, one behind another in the channels."""
        n, channels, _, width = self.shapes[x]
        shape = n, channels * window.kernel[0], window.out[0] * window.size[1], width
        joined = self.image(x, shape)
        attrs = {
            "slices": window.size[0],
            "out": window.out[0],
            "taps": window.kernel[0],
            "stride": window.stride[0],
            "dilation": window.dilation[0],
            "begin": window.begin[0],
        }
        name = f"{node.name}/join"
        self.nodes.append(Node("Join", [x], [joined], attrs, domain=SLICES, name=name, origins=()))
        return joined

    def image_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """All slices, one below another."""
        n, channels, depth, height, width = shape
        return n, channels, depth * height, width

    def constant_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Scalars, and one number per channel."""
        filled = (1,) * (self.rank - len(shape)) + shape
        if len(filled) != self.rank or filled[0] != 1 or filled[2:] != (1, 1, 1):
            return None
        return () if not shape else (filled[1], 1, 1)


def _is_joined(window: Window) -> bool:
    """Whether output slices are more than the input slices in order."""
    return (
        window.kernel[0] > 1
        or window.stride[0] > 1
        or bool(window.begin[0])
        or window.out[0] != window.size[0]
    )


def _is_summed(window: Window, shape: tuple[int, ...]) -> bool:
    """Whether output slices are sums of convolutions of single slices."""
    few = window.out[0] * window.kernel[0] <= _SUMMED_SLICES
    if not (window.kernel[0] > 1 and shape[0] == 1 and few):
        return False
    return bool(settled(evaluated(_covers, *window.along(0))))


def _covers(*along: int) -> bool:
    """Whether each window has a place in the input."""
    return bool(count_places(False, *along).all())
