"""Whole small networks on device OPENCL, against onnxruntime."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ..comparison import build, check, floats, int64s


class Network:
    """Collects nodes and weights of a model."""

    def __init__(self):
        self.nodes = []
        self.weights = []

    def weight(self, *shape, scale=0.2, array=None):
        name = f"w{len(self.weights)}"
        array = floats(*shape, seed=len(self.weights)) * scale if array is None else array
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op_type, *inputs, **attrs):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attrs))
        return name

    def conv(self, x, inputs, outputs, size, stride=1, group=1):
        w = self.weight(outputs, inputs // group, size, size)
        pads = [size // 2] * 4
        return self.add("Conv", x, w, strides=[stride, stride], pads=pads, group=group)

    def normalize(self, x, channels):
        parts = [self.weight(channels) for _ in range(3)]
        variance = self.weight(array=np.abs(floats(channels, seed=99)) + 0.5)
        return self.add("BatchNormalization", x, *parts, variance)


def residual_blocks(net, x):
    x = net.add("Relu", net.normalize(net.conv(x, 3, 16, 7, 2), 16))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for channels, stride in ((16, 1), (40, 2)):
        inputs = 16
        y = net.add("Relu", net.normalize(net.conv(x, inputs, channels, 3, stride), channels))
        y = net.normalize(net.conv(y, channels, channels, 3), channels)
        if channels != inputs:
            x = net.normalize(net.conv(x, inputs, channels, 1, stride), channels)
        x = net.add("Relu", net.add("Add", y, x))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.add("Softmax", net.add("Gemm", x, net.weight(40, 10), net.weight(10)))


def mobile_blocks(net, x):
    x = net.add("HardSwish", net.normalize(net.conv(x, 3, 8, 3, 2), 8))
    for stride in (1, 2):
        y = net.add("HardSwish", net.conv(x, 8, 24, 1))
        y = net.add("HardSwish", net.conv(y, 24, 24, 5, stride, group=24))
        s = net.add("Relu", net.conv(net.add("GlobalAveragePool", y), 24, 6, 1))
        y = net.add("Mul", y, net.add("HardSigmoid", net.conv(s, 6, 24, 1)))
        y = net.conv(y, 24, 8, 1)
        x = net.add("Add", x, y) if stride == 1 else y
    sizes = net.weight(array=int64s(1, 8, 24, 20))
    up = net.add("Resize", x, "", "", sizes, mode="linear")
    return net.add("ConvTranspose", up, net.weight(8, 2, 2, 2), strides=[2, 2])


def encoder(net, x):
    width, heads = 24, 3
    q, k, v = (
        net.add("Add", net.add("MatMul", x, net.weight(width, width)), net.weight(width))
        for _ in range(3)
    )
    split = net.weight(array=int64s(0, 0, heads, width // heads))
    joined = net.weight(array=int64s(0, 0, width))
    q, k, v = (
        net.add("Transpose", net.add("Reshape", part, split), perm=order)
        for part, order in ((q, [0, 2, 1, 3]), (k, [0, 2, 3, 1]), (v, [0, 2, 1, 3]))
    )
    scores = net.add("Div", net.add("MatMul", q, k), net.weight(array=np.float32(8**0.5)))
    y = net.add("MatMul", net.add("Softmax", scores), v)
    y = net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]), joined)
    y = net.add("Add", net.add("MatMul", y, net.weight(width, width)), x)
    y = net.add("LayerNormalization", y, net.weight(width), net.weight(width))
    half = net.weight(array=np.float32(0.5))
    one = net.weight(array=np.float32(1.0))
    root = net.weight(array=np.float32(2**0.5))
    z = net.add("MatMul", y, net.weight(width, 4 * width))
    erf = net.add("Add", net.add("Erf", net.add("Div", z, root)), one)
    z = net.add("Mul", net.add("Mul", z, half), erf)
    return net.add("Add", net.add("MatMul", z, net.weight(4 * width, width)), y)


IMAGE = (2, 3, 48, 40)
NETWORKS = [(residual_blocks, IMAGE), (mobile_blocks, (1, 3, 48, 40)), (encoder, (2, 9, 24))]


@pytest.mark.parametrize(("network", "shape"), NETWORKS, ids=[n.__name__ for n, _ in NETWORKS])
def test_network(network, shape):
    net = Network()
    output = network(net, "x")
    feeds = {"x": floats(*shape)}
    model = build(net.nodes, feeds, [output], net.weights)
    check(model, feeds, feeds, rtol=1e-3, atol=1e-4)


def test_an_encoder_for_several_lengths():
    net = Network()
    output = encoder(net, "x")
    model = build(net.nodes, {"x": floats(1, 1, 24)}, [output], net.weights, dynamic=True)
    runs = [{"x": floats(n, length, 24)} for n, length in ((1, 5), (3, 12), (2, 1), (1, 5))]
    check(model, *runs, rtol=1e-3, atol=1e-4)
