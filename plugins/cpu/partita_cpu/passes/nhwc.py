"""Layout conversion to channels last: the rules of device CPU, beyond those for all back-ends.

Convolutions always do; see :class:`~partita.lowering.ChannelsLast` for the walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partita.lowering import Array, Graph, Node, Value
from partita.lowering.fusion.epilogue import activation_of
from partita.lowering.fusion.norm import affine_rows
from partita.lowering.nhwc.conversion import BYTES, DOMAIN, SINGLE, Rule, Shapes
from partita.lowering.nhwc.convolutions import constant_weights, transposed_window
from partita.lowering.nhwc.movement import MovedChannelsLast
from partita_cpu.kernels.int8.convolution_groups import fits_groups
from partita_cpu.kernels.nhwc.int8_operators import fits_depthwise
from partita_cpu.kernels.nhwc.placement import SLICES
from partita_cpu.kernels.nhwc.transposed_blocks import touches
from partita_cpu.kernels.nhwc.transposed_phases import phases_of
from partita_cpu.llvm.images.planar_to_interleaved import CHANNELS

REORDERS = ("ToChannelsLast", "ToChannelsFirst")
"""Operators that change the order of axes in memory and nothing else."""

_LEVEL_STEPS = ("QuantizeLinear", "DequantizeLinear")
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceSumSquare")

_MOVED_CHANNELS = 8
"""Images of fewer are not moved for the sake of means of windows."""


def channels_last(graph: Graph, shapes: Shapes) -> None:
    """Rewrites a graph's nodes; values that callers see stay as they are.

    Args:
        graph: Changed in place; its nodes are not, new ones take their places.
        shapes: Of all values that nodes compute.
    """
    _Walk(graph, shapes).run()


class _Walk(MovedChannelsLast):
    def __init__(self, graph: Graph, shapes: Shapes) -> None:
        super().__init__(graph, shapes, declared=(SINGLE, *BYTES))

    def rules_by_kind(self) -> dict[str, Rule]:
        """The rule for each kind of node, convolutions and operators on bytes too."""
        own: dict[str, Rule] = {
            "QLinearConv": self._byte_conv,
            "partita::LevelConv": self._byte_conv,
            "com.microsoft::QLinearAdd": self._byte_sum,
            "QuantizeLinear": self._quantize,
            "DequantizeLinear": self._quantize,
            "partita::LevelTable": self._on_levels,
            "partita::LevelScaleShift": self._on_levels,
            "Conv": self._conv,
            "partita::Conv": self._conv,
            "ConvTranspose": self._conv_transpose,
            "partita::ConvTranspose": self._conv_transpose,
            "BatchNormalization": self._batch_normalization,
            "GroupNormalization": self._groups,
            "InstanceNormalization": self._groups,
            "partita::ChannelNormalization": self._rows,
            "Add": self._pair,
            "Mul": self._gate,
            "Resize": self._resize,
            "RoiAlign": self._regions,
            **dict.fromkeys(_REDUCTIONS, self._over_pixels),
            "DepthToSpace": self.follow,
            "SpaceToDepth": self.follow,
        }
        kinds = "Conv", "SummedConv", "ConvTranspose", "Join", "MaxPool", "AveragePool"
        own |= {f"{SLICES}::{kind}": self._slices for kind in kinds}
        return super().rules_by_kind() | own

    def _conv(self, node: Node) -> bool:
        x, w, bias, residual = (node.input(i) for i in range(4))
        weights = constant_weights(node, (SINGLE,))
        if not self.is_image(x) or x is None or weights is None:
            return False
        filters, channels = weights.shape[:2]
        groups = int(node.attrs.get("group", 1))
        depthwise = 1 < groups == filters == filters // channels
        if groups > 1 and not depthwise and channels < 4:
            return False
        if residual is not None and not self.is_image(residual):
            return False
        planar = self._is_picture(x, weights)
        inputs: list[Value | None] = [self.source(x) if planar else self.bring(x, node), w, bias]
        if residual is not None and depthwise:
            self._sum_after(node, inputs, residual)
            return True
        if residual is not None:
            inputs.append(self.bring(residual, node))
        attrs = {**node.attrs, "planar": True} if planar else node.attrs
        self.append(node, inputs, node.outputs[0], "Conv", DOMAIN, attrs, node.origins)
        return True

    def _sum_after(self, node: Node, inputs: list[Value | None], residual: Value) -> None:
        """A convolution, its sum with an image, and an activation behind, by a step each."""
        result, activation = node.result, node.attrs.get("activation")
        if result is None:
            return
        shape = self._last_shape(result)
        alone = Value(f"{result.name}:alone", SINGLE, shape)
        summed = Value(f"{result.name}:summed", SINGLE, shape)
        attrs = {**node.attrs, "activation": None}
        self.put(node.step("Conv", inputs, alone, attrs, domain=DOMAIN))
        pair: list[Value | None] = [alone, self.bring(residual, node)]
        if activation is None:
            self.append(node, pair, result, "Add", DOMAIN, {}, node.origins)
            return
        self.put(node.step("Add", pair, summed, domain=DOMAIN))
        channels = shape[3] if shape is not None else 0
        same = Value.constant(np.ones(channels, np.float32))
        none = Value.constant(np.zeros(channels, np.float32))
        finish = {"activation": activation}
        self.append(node, [summed, same, none], result, "ScaleShift", DOMAIN, finish, node.origins)

    def _slices(self, node: Node) -> bool:
        """What is computed slice by slice exists with channels last alone."""
        x, residual = node.inputs[0], node.input(3)
        if x is None:
            return False
        w = node.input(1) if node.op_type == "SummedConv" else None
        planar = w is not None and w.const is not None and self._is_picture(x, w.const)
        first = self.source(x) if planar else self.bring(x, node)
        inputs: list[Value | None] = [first, *node.inputs[1:3]]
        if residual is not None:
            inputs.append(self.bring(residual, node))
        attrs = {**node.attrs, "planar": True} if planar else node.attrs
        output = node.outputs[0]
        self.append(node, inputs, output, node.op_type, node.domain, attrs, node.origins)
        return True

    def _is_picture(self, x: Value, w: Array) -> bool:
        """Whether windows of some width move over a picture whose channels lie apart."""
        return not self.is_last(x) and w.shape[1] == CHANNELS and w.shape[-1] > 1

    def _byte_conv(self, node: Node) -> bool:
        x, w = node.inputs[0], node.inputs[3]
        if not self.is_image(x) or x is None or w is None or w.const is None or w.const.ndim != 4:
            return False
        shape = self.shape(x)
        if not w.const.size or shape is None:
            return False
        if int(node.attrs.get("group", 1)) > 1 and not (
            fits_depthwise(node) or fits_groups(node, shape)
        ):
            return False
        self.replace(node, [self.bring(x, node), *node.inputs[1:]], node.op_type, DOMAIN)
        return True

    def _byte_sum(self, node: Node) -> bool:
        """Sums of two images of the same shape, where one of them is there already."""
        a, b = node.inputs[0], node.inputs[3]
        if a is None or b is None or not (self.is_image(a) and self.is_image(b)):
            return False
        if self.shape(a) != self.shape(b) or not (self.is_last(a) or self.is_last(b)):
            return False
        first, second = self.bring(a, node), self.bring(b, node)
        inputs = [first, *node.inputs[1:3], second, *node.inputs[4:]]
        self.replace(node, inputs, node.op_type, node.domain)
        return True

    def _quantize(self, node: Node) -> bool:
        """To bytes and back, with one scale for the whole image."""
        x, scale = node.inputs[0], node.inputs[1]
        if x is None or scale is None or not self.is_last(x) or self.shape(scale) not in ((), (1,)):
            return False
        if node.outputs[0] is None or node.attrs.get("block_size"):
            return False
        self.replace(node, [self.bring(x, node), *node.inputs[1:]], node.op_type, node.domain)
        return True

    def _on_levels(self, node: Node) -> bool:
        """Functions of levels, which a table holds or each channel has its own numbers for."""
        x = node.inputs[0]
        if x is None or not self.is_last(x):
            return False
        domain = DOMAIN if node.op_type == "LevelScaleShift" else node.domain
        self.replace(node, [self.bring(x, node), *node.inputs[1:]], node.op_type, domain)
        return True

    def _window(self, node: Node) -> bool:
        x = node.inputs[0]
        if x is None or x.dtype not in BYTES:
            if x is not None and not self.is_last(x) and self._is_worth_moving(node):
                self.bring(x, node)
            return super()._window(node)
        if node.op_type != "MaxPool" or not self.is_last(x) or any(node.outputs[1:]):
            return False
        self.replace(node, [self.bring(x, node)], "MaxPoolOfBytes", DOMAIN)
        return True

    def _is_worth_moving(self, node: Node) -> bool:
        """Whether means of windows that move by several pixels are for convolutions alone.

        Kernels of images whose channels lie apart take single pixels there, ten times as long.
        """
        x, moves = node.inputs[0], node.attrs.get("strides") or (1,)
        shape = self.shape(x) if x is not None and self.is_image(x) else None
        if node.op_type != "AveragePool" or shape is None or x is None or x.dtype != SINGLE:
            return False
        return max(moves) > 1 and shape[1] >= _MOVED_CHANNELS and self._is_for_convolutions(node)

    def _is_for_convolutions(self, node: Node) -> bool:
        """Whether convolutions, of levels or not, are all that reads a result."""
        value = node.outputs[0]
        readers = self.uses.get(value, []) if value is not None else []
        if not readers or value in self.outputs:
            return False
        return all(
            reader.op_type in ("Conv", "LevelConv", "QLinearConv")
            or (reader.op_type in _LEVEL_STEPS and self._is_for_convolutions(reader))
            for reader in readers
        )

    def shape(self, value: Value) -> tuple[int, ...] | None:
        """The value's dimensions in the model's order; those of constants too."""
        return super().shape(value) if value.const is None else value.const.shape

    def _conv_transpose(self, node: Node) -> bool:
        """Those of one group that are products, by blocks or by phases; others stay behind."""
        x, w, bias = (node.input(i) for i in range(3))
        weights = constant_weights(node, (SINGLE,))
        shape = None if x is None else self.shape(x)
        if x is None or shape is None or not self.is_image(x) or weights is None:
            return False
        window = transposed_window(node, shape[2:], weights.shape[2:])
        if window is None or (not touches(window) and phases_of(window) is None):
            return False
        self.replace(node, [self.bring(x, node), w, bias], "ConvTranspose", DOMAIN)
        return True

    def _batch_normalization(self, node: Node) -> bool:
        x, rows = node.inputs[0], affine_rows(node)
        if x is None or not self.is_last(x) or any(node.outputs[1:]):
            return False
        if rows is None or node.version < 9:
            return False
        inputs: list[Value | None] = [self.bring(x, node)]
        inputs += [Value.constant(row.astype(np.float32)) for row in rows]
        self._with_activation(node, inputs, "ScaleShift", {})
        return True

    def _with_activation(
        self, node: Node, inputs: list[Value | None], op_type: str, given: Mapping[str, object]
    ) -> None:
        """Puts a node in the place of one and of the activation that alone reads its result."""
        last, activation = node, None
        users = self.uses.get(node.outputs[0], []) if node.outputs[0] is not None else []
        if len(users) == 1 and node.outputs[0] not in self.outputs:
            activation = activation_of(users[0])
            if activation is not None and users[0].inputs[0] is node.outputs[0]:
                last = users[0]
                self.take_with(last)
        origins = node.origins if last is node else (*node.origins, *last.origins)
        attrs = {**given, "activation": activation if last is not node else None}
        self.append(node, inputs, last.outputs[0], op_type, DOMAIN, attrs, origins)

    def _groups(self, node: Node) -> bool:
        """Normalization over pixels and groups of channels, or each channel for itself."""
        x, scale, bias = node.inputs[:3]
        if x is None or not self.is_last(x) or x.dtype != SINGLE or scale is None or bias is None:
            return False
        channels = (self.shape(x) or (0, 0))[1]
        groups, rows = channels, [scale, bias]
        if node.op_type == "GroupNormalization":
            groups = int(node.attrs["num_groups"])
            if node.version < 21:
                if scale.const is None or bias.const is None or groups < 1:
                    return False
                within = channels // groups
                rows = [Value.constant(np.repeat(row, within)) for row in (scale.const, bias.const)]
        if groups < 1 or channels % groups or any(self.shape(row) != (channels,) for row in rows):
            return False
        attrs = {"groups": groups, "epsilon": node.number("epsilon", 1e-5)}
        self._with_activation(node, [self.bring(x, node), *rows], "GroupNormalization", attrs)
        return True

    def _rows(self, node: Node) -> bool:
        """Normalization of each pixel's channels, which are rows where they lie last.

        By rows it is computed in any case, so that the image is moved for it if need be.
        """
        x, output = node.inputs[0], node.outputs[0]
        if x is None or not self.is_image(x) or output is None:
            return False
        attrs = {"axis": -1, "epsilon": node.number("epsilon", 1e-5)}
        inputs = [self.bring(x, node), *node.inputs[1:]]
        self.append(node, inputs, output, "LayerNormalization", "", attrs, node.origins)
        return True

    def _pair(self, node: Node) -> bool:
        """Two images of one shape, which are read and written where others want them."""
        pair = [v for v in node.inputs if v is not None and self.is_image(v)]
        same = len(pair) == 2 and self.shape(pair[0]) == self.shape(pair[1])
        if not same or not any(map(self.is_last, pair)) or not self._are_single(pair):
            return self._elementwise(node)
        self.replace(node, [self.bring(value, node) for value in pair], node.op_type, DOMAIN)
        return True

    def _gate(self, node: Node) -> bool:
        """Images times one another, or a number for each channel (squeeze and excitation)."""
        pair = [v for v in node.inputs if v is not None and self.is_image(v)]
        if len(pair) != 2 or not self._are_single(pair):
            return self._elementwise(node)
        if self.shape(pair[0]) == self.shape(pair[1]):
            return self._pair(node)
        x, factor = pair if self._is_pixel(pair[1]) else pair[::-1]
        gates = self._is_pixel(factor) and not self._is_pixel(x) and self.is_last(x)
        if not gates or (self.shape(x) or ())[:2] != (self.shape(factor) or ())[:2]:
            return self._elementwise(node)
        self.replace(node, [self.bring(x, node), self.bring(factor, node)], "Gate", DOMAIN)
        return True

    def _is_pixel(self, value: Value) -> bool:
        """Whether images have one pixel."""
        return (self.shape(value) or ())[2:] == (1, 1)

    def _are_single(self, values: Sequence[Value]) -> bool:
        return all(value.dtype not in BYTES for value in values)

    def _resize(self, node: Node) -> bool:
        """By the nearest pixels, by kernels that read and write parts of images; else as it is."""
        inputs = self.resized_inputs(node)
        if inputs is None:
            return False
        domain = DOMAIN if self._takes_pixels(node) else node.domain
        self.replace(node, inputs, node.op_type, domain)
        return True

    def _regions(self, node: Node) -> bool:
        """Regions of an image, each of which is an image."""
        x = node.inputs[0]
        if x is None or not self.is_last(x) or x.dtype != SINGLE:
            return False
        self.replace(node, [self.bring(x, node), *node.inputs[1:]], "RoiAlign", DOMAIN)
        return True

    def _over_pixels(self, node: Node) -> bool:
        """Reductions over all pixels, whose results are images of one pixel."""
        x, given = node.inputs[0], node.input(1)
        if x is None or x.dtype in BYTES or not self.reduces_pixels(node):
            return False
        inputs: list[Value | None] = [self.bring(x, node)]
        attrs = dict(node.attrs)
        if given is None:
            attrs["axes"] = [1, 2]
        else:
            inputs.append(Value.constant(np.array([1, 2], np.int64)))
        self.append(node, inputs, node.outputs[0], node.op_type, "", attrs, node.origins)
        return True

    def _takes_pixels(self, node: Node) -> bool:
        """Whether a Resize takes the nearest pixel for each, and no other channels or images."""
        x, attrs = node.inputs[0], node.attrs
        stretches = attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
        nearest = attrs.get("mode", "nearest") == "nearest" and stretches
        if x is None or x.dtype in BYTES or not nearest:
            return False
        shape = self.shape(x) or ()
        for value in node.inputs[2:4]:
            found = None if value is None else self.resized_to(node, value)
            if found is not None and found.size:
                kept = (1, 1) if found.dtype.kind == "f" else shape[:2]
                return tuple(found[:2]) == kept
        return False

    def _reshape(self, node: Node) -> bool:
        return self._shuffle(node) or super()._reshape(node)

    def _shuffle(self, node: Node) -> bool:
        """Groups of channels interleaved: Reshape, Transpose and Reshape (ShuffleNet)."""
        x = node.inputs[0]
        if x is None or not self.is_last(x):
            return False
        n, c, h, w = self.shape(x) or (0, 0, 0, 0)
        transpose = self.only_reader(node, "Transpose")
        last = None if transpose is None else self.only_reader(transpose, "Reshape")
        parts = self.shape(node.outputs[0]) if node.outputs[0] is not None else None
        if transpose is None or last is None or parts is None or len(parts) != 5:
            return False
        if list(transpose.attrs.get("perm", ())) != [0, 2, 1, 3, 4]:
            return False
        groups = parts[1]
        fits = parts == (n, groups, c // max(groups, 1), h, w)
        whole = last.outputs[0] is not None and self.shape(last.outputs[0]) == (n, c, h, w)
        if not fits or not whole:
            return False
        for later in (transpose, last):
            self.take_with(later)
        origins = (*node.origins, *transpose.origins, *last.origins)
        attrs = {"groups": groups}
        inputs = [self.bring(x, node)]
        self.append(node, inputs, last.outputs[0], "ShuffleChannels", DOMAIN, attrs, origins)
        return True
