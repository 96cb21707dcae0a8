"""Inception v3 with random weights, after Szegedy et al., https://arxiv.org/abs/1512.00567.

The branches, channels and sizes of the published network for pictures of 299 x 299 pixels, with
normalizations folded into the convolutions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Pair = tuple[int, int]


class _Builder:
    """Adds operations one by one; a value is known by its name and its number of channels."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.channels: dict[str, int] = {"x": 3}
        self._rng = np.random.default_rng(0)

    def conv(
        self, x: str, channels: int, kernel: Pair, stride: int = 1, pads: Pair | None = None
    ) -> str:
        """A convolution with bias and Relu; same padding unless pads are given."""
        name = f"conv{len(self.nodes)}"
        fan = self.channels[x] * kernel[0] * kernel[1]
        shape = (channels, self.channels[x], *kernel)
        weights = self._rng.standard_normal(shape, np.float32) * np.float32((2 / fan) ** 0.5)
        self.weights += [
            numpy_helper.from_array(weights, f"{name}_w"),
            numpy_helper.from_array(np.zeros(channels, np.float32), f"{name}_b"),
        ]
        high, wide = pads if pads is not None else (kernel[0] // 2, kernel[1] // 2)
        self._node(
            op_type="Conv",
            inputs=[x, f"{name}_w", f"{name}_b"],
            output=f"{name}_y",
            channels=channels,
            kernel_shape=kernel,
            strides=[stride] * 2,
            pads=[high, wide, high, wide],
        )
        return self._node("Relu", [f"{name}_y"], name, channels)

    def pool(self, x: str, kind: str, stride: int, pad: int) -> str:
        """A pooling over 3 x 3."""
        return self._node(
            op_type=f"{kind}Pool",
            inputs=[x],
            output=f"pool{len(self.nodes)}",
            channels=self.channels[x],
            kernel_shape=[3, 3],
            strides=[stride] * 2,
            pads=[pad] * 4,
        )

    def concat(self, *values: str) -> str:
        """Channels one behind the other."""
        total = sum(self.channels[value] for value in values)
        return self._node("Concat", list(values), f"block{len(self.nodes)}", total, axis=1)

    def _node(
        self, op_type: str, inputs: list[str], output: str, channels: int, **attributes: Any
    ) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], f"{output}_op", **attributes))
        self.channels[output] = channels
        return output


def inception_v3(size: int = 299) -> Any:
    """The model as an ``onnx.ModelProto``, for one picture."""
    b = _Builder()
    x = b.conv("x", 32, (3, 3), 2, (0, 0))
    x = b.conv(x, 32, (3, 3), 1, (0, 0))
    x = b.pool(b.conv(x, 64, (3, 3)), "Max", 2, 0)
    x = b.conv(b.conv(x, 80, (1, 1)), 192, (3, 3), 1, (0, 0))
    x = b.pool(x, "Max", 2, 0)
    for features in (32, 64, 64):
        x = _block_a(b, x, features)
    x = _reduction_a(b, x)
    for channels in (128, 160, 160, 192):
        x = _block_c(b, x, channels)
    x = _reduction_b(b, x)
    for _ in range(2):
        x = _block_e(b, x)
    b._node("GlobalAveragePool", [x], "pooled", 2048)
    b._node("Flatten", ["pooled"], "flat", 2048)
    rng = np.random.default_rng(1)
    b.weights.append(
        numpy_helper.from_array(rng.standard_normal((2048, 1000), np.float32) * 0.02, "fc_w")
    )
    b._node("MatMul", ["flat", "fc_w"], "logits", 1000)
    b._node("Softmax", ["logits"], "y", 1000, axis=1)
    picture = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1000])
    graph = helper.make_graph(b.nodes, "inception_v3", [picture], [answer], b.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _block_a(b: _Builder, x: str, features: int) -> str:
    one = b.conv(x, 64, (1, 1))
    five = b.conv(b.conv(x, 48, (1, 1)), 64, (5, 5))
    three = b.conv(b.conv(b.conv(x, 64, (1, 1)), 96, (3, 3)), 96, (3, 3))
    pooled = b.conv(b.pool(x, "Average", 1, 1), features, (1, 1))
    return b.concat(one, five, three, pooled)


def _reduction_a(b: _Builder, x: str) -> str:
    three = b.conv(x, 384, (3, 3), 2, (0, 0))
    double = b.conv(b.conv(b.conv(x, 64, (1, 1)), 96, (3, 3)), 96, (3, 3), 2, (0, 0))
    return b.concat(three, double, b.pool(x, "Max", 2, 0))


def _block_c(b: _Builder, x: str, channels: int) -> str:
    one = b.conv(x, 192, (1, 1))
    seven = b.conv(b.conv(b.conv(x, channels, (1, 1)), channels, (1, 7)), 192, (7, 1))
    double = b.conv(x, channels, (1, 1))
    for kernel in ((7, 1), (1, 7), (7, 1)):
        double = b.conv(double, channels, kernel)
    double = b.conv(double, 192, (1, 7))
    pooled = b.conv(b.pool(x, "Average", 1, 1), 192, (1, 1))
    return b.concat(one, seven, double, pooled)


def _reduction_b(b: _Builder, x: str) -> str:
    three = b.conv(b.conv(x, 192, (1, 1)), 320, (3, 3), 2, (0, 0))
    seven = b.conv(b.conv(b.conv(x, 192, (1, 1)), 192, (1, 7)), 192, (7, 1))
    seven = b.conv(seven, 192, (3, 3), 2, (0, 0))
    return b.concat(three, seven, b.pool(x, "Max", 2, 0))


def _block_e(b: _Builder, x: str) -> str:
    one = b.conv(x, 320, (1, 1))
    three = b.conv(x, 384, (1, 1))
    double = b.conv(b.conv(x, 448, (1, 1)), 384, (3, 3))
    pooled = b.conv(b.pool(x, "Average", 1, 1), 192, (1, 1))
    return b.concat(
        one,
        b.conv(three, 384, (1, 3)),
        b.conv(three, 384, (3, 1)),
        b.conv(double, 384, (1, 3)),
        b.conv(double, 384, (3, 1)),
        pooled,
    )
