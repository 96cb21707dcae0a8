"""Networks with random weights, as their papers have them, for benchmarks: batch 1.

Weights keep the scale of what passes through, so that precisions can be compared at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Feeds = dict[str, np.ndarray[Any, Any]]


class Builder:
    """Convolutional networks with random weights that keep the scale of what passes through."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: Any) -> str:
        """The name of a new constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """A node's output."""
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attrs))
        return name

    def normal(self, *shape: int, fan: int) -> str:
        """Random weights for sums of `fan` products."""
        return self.weight(self.rng.standard_normal(shape).astype(np.float32) * fan**-0.5)

    def conv(self, x: str, c: int, o: int, k: int = 1, s: int = 1, group: int = 1) -> str:
        """A convolution of c to o channels, kernel k, stride s."""
        w = self.normal(o, c // group, k, k, fan=c // group * k * k)
        bias = self.weight(np.full(o, 0.01, np.float32))
        pads = [k // 2] * 4
        return self.add("Conv", x, w, bias, pads=pads, strides=[s, s], group=group)

    def conv_relu(self, x: str, c: int, o: int, k: Any = 1, s: int = 1, same: bool = True) -> str:
        """A convolution with kernel k (of any two sizes), stride s, and Relu."""
        down, across = (k, k) if isinstance(k, int) else k
        w = self.normal(o, c, down, across, fan=c * down * across // 2)
        pads = [down // 2, across // 2] * 2 if same else [0] * 4
        bias = self.weight(np.full(o, 0.01, np.float32))
        return self.add("Relu", self.add("Conv", x, w, bias, pads=pads, strides=[s, s]))

    def normalized(self, x: str, c: int) -> str:
        """Batch normalization and Relu."""
        rows = [self.rng.uniform(0.8, 1.2, c) for _ in range(2)]
        means = [self.rng.uniform(-0.1, 0.1, c) for _ in range(2)]
        numbers = [rows[0], means[0], means[1], rows[1]]
        inputs = [self.weight(row.astype(np.float32)) for row in numbers]
        return self.add("Relu", self.add("BatchNormalization", x, *inputs))

    def pool(self, op_type: str, x: str, k: int, s: int, pad: int = 0) -> str:
        """A pooling with kernel k and stride s."""
        return self.add(op_type, x, kernel_shape=[k, k], strides=[s, s], pads=[pad] * 4)

    def dense(self, x: str, c: int, o: int) -> str:
        """A product with a bias."""
        product = self.add("MatMul", x, self.normal(c, o, fan=c))
        return self.add("Add", product, self.weight(np.full(o, 0.01, np.float32)))

    def model(self, shape: Sequence[int], result: str) -> tuple[bytes, Feeds]:
        """The model, and an input for it."""
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        x = self.rng.standard_normal(shape).astype(np.float32)
        return model.SerializeToString(), {"x": x}


def with_symbols(model: bytes, symbols: Mapping[int, str]) -> bytes:
    """A model some of whose input's dimensions, by their axes, have names instead of sizes."""
    proto = onnx.load_model_from_string(model)
    for axis, symbol in symbols.items():
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = symbol
    return proto.SerializeToString()


def resnet50() -> tuple[bytes, Feeds]:
    """Version 1.5, batch 1, batch normalization folded."""
    b = Builder()
    x = b.add("Relu", b.conv("x", 3, 64, 7, 2))
    x = b.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            side = x if block else b.conv(x, channels, 4 * width, 1, stride)
            y = b.add("Relu", b.conv(x, channels, width))
            y = b.add("Relu", b.conv(y, width, width, 3, stride))
            x = b.add("Relu", b.add("Add", b.conv(y, width, 4 * width), side))
            channels = 4 * width
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    return b.model((1, 3, 224, 224), b.dense(x, 2048, 1000))


def mobilenetv2() -> tuple[bytes, Feeds]:
    """Width 1, batch 1, batch normalization folded."""
    b = Builder()
    bounds = (b.weight(np.float32(0)), b.weight(np.float32(6)))

    def relu6(y: str) -> str:
        return b.add("Clip", y, *bounds)

    x, channels = relu6(b.conv("x", 3, 32, 3, 2)), 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    for expand, out, repeat, first in (*table, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for number in range(repeat):
            stride, wide, y = (1 if number else first), channels * expand, x
            if expand > 1:
                y = relu6(b.conv(y, channels, wide))
            y = relu6(b.conv(y, wide, wide, 3, stride, wide))
            y = b.conv(y, wide, out)
            x = b.add("Add", y, x) if stride == 1 and channels == out else y
            channels = out
    x = b.add("Flatten", b.add("GlobalAveragePool", relu6(b.conv(x, 320, 1280))))
    return b.model((1, 3, 224, 224), b.dense(x, 1280, 1000))


def encoder(
    layers: int = 4, tokens: int = 128, width: int = 768, heads: int = 12, symbol: str = ""
) -> tuple[bytes, Feeds]:
    """Layers of a transformer encoder of BERT-base's sizes; takes embeddings.

    Args:
        layers: How many.
        tokens: Rows of the input.
        width: Columns of the input.
        heads: Heads of attention.
        symbol: The name of the number of rows, where that may be another one in each request.
    """
    b = Builder()
    rows = -1 if symbol else tokens
    split = b.weight(np.array([1, rows, heads, width // heads], np.int64))
    join = b.weight(np.array([1, rows, width], np.int64))
    factor = b.weight(np.float32((width // heads) ** -0.5))
    half, one = b.weight(np.float32(0.5)), b.weight(np.float32(1))
    root = b.weight(np.float32(2**0.5))

    def norm(y: str) -> str:
        scale = b.weight(np.ones(width, np.float32))
        return b.add("LayerNormalization", y, scale, b.weight(np.zeros(width, np.float32)))

    x = "x"
    for _ in range(layers):
        parts = []
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            part = b.add("Reshape", b.dense(x, width, width), split)
            parts.append(b.add("Transpose", part, perm=perm))
        scores = b.add("Softmax", b.add("Mul", b.add("MatMul", *parts[:2]), factor), axis=-1)
        mixed = b.add("Transpose", b.add("MatMul", scores, parts[2]), perm=[0, 2, 1, 3])
        x = norm(b.add("Add", b.dense(b.add("Reshape", mixed, join), width, width), x))
        y = b.dense(x, width, 4 * width)
        gate = b.add("Add", b.add("Erf", b.add("Div", y, root)), one)
        y = b.add("Mul", b.add("Mul", y, gate), half)
        x = norm(b.add("Add", b.dense(y, 4 * width, width), x))
    model, feeds = b.model((1, tokens, width), x)
    return with_symbols(model, {1: symbol} if symbol else {}), feeds


def squeezenet() -> tuple[bytes, Feeds]:
    """Version 1.0."""
    b = Builder()
    x, channels = b.pool("MaxPool", b.conv_relu("x", 3, 96, 7, 2, same=False), 3, 2), 96
    for number, width in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        squeezed = b.conv_relu(x, channels, width)
        parts = [b.conv_relu(squeezed, width, 4 * width, k) for k in (1, 3)]
        x, channels = b.add("Concat", *parts, axis=1), 8 * width
        if number in (2, 6):
            x = b.pool("MaxPool", x, 3, 2)
    x = b.add("GlobalAveragePool", b.conv_relu(x, channels, 1000))
    return b.model((1, 3, 224, 224), b.add("Flatten", x))


def densenet121() -> tuple[bytes, Feeds]:
    """Growth 32; the normalization after each 1x1 convolution folded."""
    b = Builder()
    x, channels = b.pool("MaxPool", b.conv_relu("x", 3, 64, 7, 2), 3, 2, 1), 64
    for number, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            y = b.conv_relu(b.normalized(x, channels), channels, 128)
            x = b.add("Concat", x, b.conv(y, 128, 32, 3), axis=1)
            channels += 32
        x = b.normalized(x, channels)
        if number < 3:
            x = b.pool("AveragePool", b.conv(x, channels, channels // 2), 2, 2)
            channels //= 2
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    return b.model((1, 3, 224, 224), b.dense(x, channels, 1000))


def inception_v3() -> tuple[bytes, Feeds]:
    """Without the auxiliary classifier, batch normalization folded."""
    b = Builder()

    def chain(x: str, c: int, *steps: tuple[int, Any]) -> str:
        for o, k in steps:
            x, c = b.conv_relu(x, c, o, k), o
        return x

    def join(*parts: str) -> str:
        return b.add("Concat", *parts, axis=1)

    x = b.conv_relu(b.conv_relu("x", 3, 32, 3, 2, same=False), 32, 32, 3, same=False)
    x = b.pool("MaxPool", b.conv_relu(x, 32, 64, 3), 3, 2)
    x = b.conv_relu(b.conv_relu(x, 64, 80), 80, 192, 3, same=False)
    x, c = b.pool("MaxPool", x, 3, 2), 192
    for width in (32, 64, 64):
        pooled = chain(b.pool("AveragePool", x, 3, 1, 1), c, (width, 1))
        double = chain(x, c, (64, 1), (96, 3), (96, 3))
        x = join(chain(x, c, (64, 1)), chain(x, c, (48, 1), (64, 5)), double, pooled)
        c = 224 + width
    double = b.conv_relu(chain(x, c, (64, 1), (96, 3)), 96, 96, 3, 2, same=False)
    x = join(b.conv_relu(x, c, 384, 3, 2, same=False), double, b.pool("MaxPool", x, 3, 2))
    c = 768
    for n in (128, 160, 160, 192):
        once = chain(x, c, (n, 1), (n, (1, 7)), (192, (7, 1)))
        twice = chain(x, c, (n, 1), (n, (7, 1)), (n, (1, 7)), (n, (7, 1)), (192, (1, 7)))
        pooled = chain(b.pool("AveragePool", x, 3, 1, 1), c, (192, 1))
        x = join(chain(x, c, (192, 1)), once, twice, pooled)
    short = b.conv_relu(chain(x, c, (192, 1)), 192, 320, 3, 2, same=False)
    long = chain(x, c, (192, 1), (192, (1, 7)), (192, (7, 1)))
    long = b.conv_relu(long, 192, 192, 3, 2, same=False)
    x, c = join(short, long, b.pool("MaxPool", x, 3, 2)), 1280
    for _ in range(2):
        once = chain(x, c, (384, 1))
        twice = chain(x, c, (448, 1), (384, 3))
        pairs = [chain(y, 384, (384, k)) for y in (once, twice) for k in ((1, 3), (3, 1))]
        pooled = chain(b.pool("AveragePool", x, 3, 1, 1), c, (192, 1))
        x = join(chain(x, c, (320, 1)), *pairs, pooled)
        c = 2048
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    return b.model((1, 3, 299, 299), b.dense(x, c, 1000))


def pp_lcnet() -> tuple[bytes, Feeds]:
    """Width 1, batch normalization folded."""
    b = Builder()

    def gated(x: str, c: int) -> str:
        """Squeeze and excitation."""
        y = b.add("Relu", b.conv(b.add("GlobalAveragePool", x), c, c // 4))
        y = b.add("HardSigmoid", b.conv(y, c // 4, c), alpha=0.2, beta=0.5)
        return b.add("Mul", x, y)

    x, c = b.add("HardSwish", b.conv("x", 3, 16, 3, 2)), 16
    table = [(3, 32, 1), (3, 64, 2), (3, 64, 1), (3, 128, 2), (3, 128, 1), (3, 256, 2)]
    for k, o, s in [*table, *[(5, 256, 1)] * 5, (5, 512, 2), (5, 512, 1)]:
        x = b.add("HardSwish", b.conv(x, c, c, k, s, c))
        if o == 512:
            x = gated(x, c)
        x, c = b.add("HardSwish", b.conv(x, c, o)), o
    x = b.add("HardSwish", b.conv(b.add("GlobalAveragePool", x), c, 1280))
    return b.model((1, 3, 224, 224), b.dense(b.add("Flatten", x), 1280, 1000))


def volumes() -> tuple[bytes, Feeds]:
    """Five convolutions over 16 pictures of 112 x 112, with kernels of 3 x 3 x 3."""
    b = Builder()
    x, c = "x", 3
    for o, s in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        w = b.normal(o, c, 3, 3, 3, fan=c * 27 // 2)
        bias = b.weight(np.full(o, 0.01, np.float32))
        x, c = b.add("Relu", b.add("Conv", x, w, bias, pads=[1] * 6, strides=[1, s, s])), o
    return b.model((1, 3, 16, 112, 112), x)


def pooled_volumes(kind: str = "MaxPool") -> tuple[bytes, Feeds]:
    """Four convolutions over 16 pictures of 56 x 56, each with a pool behind it but the last."""
    b = Builder()
    x, c = "x", 3
    for o, k in ((32, [1, 2, 2]), (64, [2, 2, 2]), (128, [2, 2, 2])):
        w = b.normal(o, c, 3, 3, 3, fan=c * 27 // 2)
        bias = b.weight(np.full(o, 0.01, np.float32))
        x, c = b.add("Relu", b.add("Conv", x, w, bias, pads=[1] * 6)), o
        x = b.add(kind, x, kernel_shape=k, strides=k)
    x = b.add(kind, x, kernel_shape=[3, 3, 3], pads=[1] * 6)
    return b.model((1, 3, 16, 56, 56), b.add("Conv", x, b.normal(16, c, 1, 1, 1, fan=c)))


def unet(kernel: int = 2, size: int = 256) -> tuple[bytes, Feeds]:
    """A U-Net of five scales, 32 to 512 channels: ConvTranspose makes images twice as large.

    Args:
        kernel: Of ConvTranspose; with more than 2 its windows overlap.
        size: Of the picture.
    """
    b = Builder()

    def twice(y: str, c: int, o: int) -> str:
        return b.conv_relu(b.conv_relu(y, c, o, 3), o, o, 3)

    def enlarged(y: str, c: int, o: int) -> str:
        w = b.normal(c, o, kernel, kernel, fan=c * kernel * kernel // 4)
        bias = b.weight(np.full(o, 0.01, np.float32))
        pads = [(kernel - 2) // 2] * 4
        return b.add("ConvTranspose", y, w, bias, strides=[2, 2], pads=pads)

    x, c, kept = "x", 3, []
    for o in (32, 64, 128, 256):
        x, c = twice(x, c, o), o
        kept.append(x)
        x = b.pool("MaxPool", x, 2, 2)
    x, c = twice(x, c, 512), 512
    for o, beside in zip((256, 128, 64, 32), reversed(kept), strict=True):
        x = twice(b.add("Concat", beside, enlarged(x, c, o), axis=1), 2 * o, o)
        c = o
    return b.model((1, 3, size, size), b.conv(x, c, 2))


def unet_overlapping() -> tuple[bytes, Feeds]:
    """The same with windows of 4 x 4, which overlap."""
    return unet(kernel=4)


def mlp_float16(tokens: int = 128, width: int = 768, whole: bool = True) -> tuple[bytes, Feeds]:
    """Six blocks of two products, a residual and Relu, with weights in float16.

    Args:
        tokens: Rows.
        width: Of a row; four times as wide in the middle.
        whole: Whether float16 is what is computed in; else weights are cast to float32.
    """
    b = Builder()
    rng = b.rng

    def half(*shape: int, fan: int) -> str:
        w = b.weight((rng.standard_normal(shape) * fan**-0.5).astype(np.float16))
        return w if whole else b.add("Cast", w, to=TensorProto.FLOAT)

    x = b.add("Cast", "x", to=TensorProto.FLOAT16) if whole else "x"
    for _ in range(6):
        y = b.add("Relu", b.add("MatMul", x, half(width, 4 * width, fan=width)))
        x = b.add("Add", x, b.add("MatMul", y, half(4 * width, width, fan=8 * width)))
    x = b.add("Cast", x, to=TensorProto.FLOAT) if whole else x
    return b.model((tokens, width), x)


def mlp_float16_cast() -> tuple[bytes, Feeds]:
    """The same, with weights that are cast to float32."""
    return mlp_float16(whole=False)


def gated_4bit(
    tokens: int = 512, width: int = 576, middle: int = 1536, blocks: int = 2
) -> tuple[bytes, Feeds]:
    """Feed-forward parts of a decoder that reads a prompt: gates by Silu, weights of 4 bits.

    Args:
        tokens: Rows.
        width: Of a row.
        middle: Of a row between the products; both are multiples of 32.
        blocks: How many such parts there are; each adds to its input.
    """
    b = Builder()

    def product(x: str, terms: int, columns: int) -> str:
        bits = b.rng.integers(0, 256, (columns, terms // 32, 16)).astype(np.uint8)
        scales = b.rng.uniform(0.5, 1, columns * terms // 32).astype(np.float32)
        weights = b.weight(bits), b.weight(scales * np.float32(terms**-0.5 / 3.5))
        sizes = {"K": terms, "N": columns, "bits": 4, "block_size": 32}
        return b.add("MatMulNBits", x, *weights, domain="com.microsoft", **sizes)

    x = "x"
    for _ in range(blocks):
        gate, other = (product(x, width, middle) for _ in range(2))
        gate = b.add("Mul", gate, b.add("Sigmoid", gate))
        x = b.add("Add", x, product(b.add("Mul", gate, other), middle, width))
    model, feeds = b.model((tokens, width), x)
    proto = onnx.load_model_from_string(model)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto.SerializeToString(), feeds


def in_float16(network: Callable[[], tuple[bytes, Feeds]]) -> tuple[bytes, Feeds]:
    """A network whose weights and numbers are float16; what goes in and comes out is float32."""
    content, feeds = network()
    model = onnx.load_from_string(content)
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            halves = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halves, tensor.name))
    given, made = graph.input[0].name, graph.output[0].name
    for node in graph.node:
        node.input[:] = ["halves in" if name == given else name for name in node.input]
        node.output[:] = ["halves out" if name == made else name for name in node.output]
    first = helper.make_node("Cast", [given], ["halves in"], to=TensorProto.FLOAT16)
    last = helper.make_node("Cast", ["halves out"], [made], to=TensorProto.FLOAT)
    nodes = [first, *graph.node, last]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return model.SerializeToString(), feeds


def mobilenetv2_float16() -> tuple[bytes, Feeds]:
    """MobileNetV2 in float16."""
    return in_float16(mobilenetv2)


def encoder_float16() -> tuple[bytes, Feeds]:
    """The encoder in float16."""
    return in_float16(encoder)


def detector(size: int = 640, symbols: Sequence[str] = ()) -> tuple[bytes, Feeds]:
    """Like YOLOv8 of its medium depth and small width: split blocks, a pyramid, boxes by bins.

    Args:
        size: Of the picture, both ways; a multiple of 32.
        symbols: The names of its height and width, where they may be others in each request.
    """
    b = Builder()

    def conv(y: str, c: int, o: int, k: int = 1, s: int = 1) -> str:
        y = b.conv(y, c, o, k, s)
        return b.add("Mul", y, b.add("Sigmoid", y))

    def split_block(y: str, c: int, o: int, repeat: int, residual: bool = True) -> str:
        """Half of the channels pass through ever more pairs of convolutions; all are joined."""
        half = o // 2
        y = conv(y, c, o)
        sides = [
            b.add("Slice", y, *(b.weight(np.array([n])) for n in (at, at + half, 1)))
            for at in (0, half)
        ]
        for _ in range(repeat):
            z = conv(conv(sides[-1], half, half, 3), half, half, 3)
            sides.append(b.add("Add", z, sides[-1]) if residual else z)
        return conv(b.add("Concat", *sides, axis=1), half * len(sides), o)

    def upsampled(y: str) -> str:
        scales = b.weight(np.float32([1, 1, 2, 2]))
        return b.add("Resize", y, "", scales, mode="nearest")

    def head(y: str, c: int, cells: int) -> str:
        """Boxes by 16 bins a side, and scores of 80 classes, of each cell."""
        sides = b.conv(conv(conv(y, c, 64, 3), 64, 64, 3), 64, 64)
        scores = b.conv(conv(conv(y, c, 80, 3), 80, 80, 3), 80, 80)
        bins = b.add("Reshape", sides, b.weight(np.array([1, 4, 16, cells])))
        shares = b.add("Softmax", b.add("Transpose", bins, perm=[0, 1, 3, 2]), axis=-1)
        steps = b.weight(np.arange(16, dtype=np.float32).reshape(16, 1))
        boxes = b.add("Reshape", b.add("MatMul", shares, steps), b.weight(np.array([1, 4, cells])))
        flat = b.add("Reshape", scores, b.weight(np.array([1, 80, cells])))
        return b.add("Concat", boxes, b.add("Sigmoid", flat), axis=1)

    x, c, levels = conv("x", 3, 32, 3, 2), 32, []
    for o, repeat in ((64, 2), (128, 4), (256, 4), (512, 2)):
        x, c = split_block(conv(x, c, o, 3, 2), o, o, repeat), o
        levels.append(x)
    y = pooled = conv(x, c, c // 2)
    joined = [y]
    for _ in range(3):
        pooled = b.pool("MaxPool", pooled, 5, 1, 2)
        joined.append(pooled)
    top = conv(b.add("Concat", *joined, axis=1), 2 * c, c)
    middle = b.add("Concat", upsampled(top), levels[2], axis=1)
    middle = split_block(middle, 768, 256, 2, residual=False)
    low = b.add("Concat", upsampled(middle), levels[1], axis=1)
    low = split_block(low, 384, 128, 2, residual=False)
    middle = b.add("Concat", conv(low, 128, 128, 3, 2), middle, axis=1)
    middle = split_block(middle, 384, 256, 2, residual=False)
    top = b.add("Concat", conv(middle, 256, 256, 3, 2), top, axis=1)
    top = split_block(top, 768, 512, 2, residual=False)
    heads = [
        head(y, c, -1 if symbols else (size // stride) ** 2)
        for y, c, stride in ((low, 128, 8), (middle, 256, 16), (top, 512, 32))
    ]
    model, feeds = b.model((1, 3, size, size), b.add("Concat", *heads, axis=2))
    return with_symbols(model, dict(enumerate(symbols, 2))), feeds


def forest(
    trees: int = 100, depth: int = 12, rows: int = 256, width: int = 20
) -> tuple[bytes, Feeds]:
    """A regression by trees whose branches end at random, as scikit-learn's converter writes it."""
    rng = np.random.default_rng(0)
    nodes: list[tuple[int, int, int, float, str, int, int]] = []
    leaves: list[tuple[int, int]] = []
    for tree in range(trees):
        waiting, count = [(0, 0)], 1
        while waiting:
            node, level = waiting.pop()
            if level == depth or (level > 4 and rng.random() < 0.2):
                nodes.append((tree, node, 0, 0.0, "LEAF", 0, 0))
                leaves.append((tree, node))
                continue
            feature, limit = int(rng.integers(width)), float(rng.standard_normal() / 2)
            nodes.append((tree, node, feature, limit, "BRANCH_LEQ", count, count + 1))
            waiting += [(count, level + 1), (count + 1, level + 1)]
            count += 2
    names = ["treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids"]
    told = {
        f"nodes_{name}": items for name, items in zip(names, zip(*nodes, strict=True), strict=True)
    }
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        target_treeids=[tree for tree, _ in leaves], target_nodeids=[leaf for _, leaf in leaves],
        target_weights=rng.standard_normal(len(leaves)).tolist(), target_ids=[0] * len(leaves),
        **told,
    )  # fmt: skip
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, size])
            for name, size in (("x", width), ("y", 1))]  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "forest", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model.SerializeToString(), {"x": rng.standard_normal((rows, width)).astype(np.float32)}


BUILT: dict[str, Callable[[], tuple[bytes, Feeds]]] = {
    "resnet50": resnet50,
    "inception_v3": inception_v3,
    "densenet121": densenet121,
    "squeezenet": squeezenet,
    "mobilenetv2": mobilenetv2,
    "mobilenetv2_float16": mobilenetv2_float16,
    "pp_lcnet": pp_lcnet,
    "encoder": encoder,
    "encoder_float16": encoder_float16,
    "detector": detector,
    "volumes": volumes,
    "pooled_volumes": pooled_volumes,
    "mlp_float16": mlp_float16,
    "mlp_float16_cast": mlp_float16_cast,
    "gated_4bit": gated_4bit,
    "unet": unet,
    "unet_overlapping": unet_overlapping,
}

OTHERS: dict[str, Callable[[], tuple[bytes, Feeds]]] = {"forest": forest}
"""Models that are no networks, and that not every engine takes."""
