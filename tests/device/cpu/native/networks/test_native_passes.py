"""Whole small graphs: Concat without copies, scaling on the way, images kept in bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from partita.lowering import Graph, Node, Value
from partita_cpu.llvm.levels import EVERY
from partita_cpu.passes.inplace_concat import write_in_place

from .test_native_layout import Net, check, compiled, places_written_over

CONFIGS = [
    ({"EXECUTION_MODE_HINT": "ACCURACY"}, 4e-6),
    ({"EXECUTION_MODE_HINT": "PERFORMANCE"}, 4e-5),
    ({"INFERENCE_PRECISION_HINT": "bf16"}, 3e-2),
]


pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""


@pytest.fixture(params=CONFIGS, ids=["accuracy", "performance", "bf16"])
def mode(request):
    return {"config": request.param[0], "tolerance": request.param[1]}


def normalized(net, x, channels):
    parts = [net.const(channels) for _ in range(3)]
    variance = net.const(values=net.rng.random(channels).astype(np.float32) + 0.5)
    return net.add("BatchNormalization", x, *parts, variance)


def steps_of(net, *outputs, **config):
    """Names of the kernels that a compiled model calls."""
    device = compiled(net.model(*outputs), **config)
    specs = [(port.shape, port.dtype) for port in device.inputs]
    return [step.fn.__name__ for step in device.device_model.specializer.program(specs, None).steps]


def dense_block():
    net = Net(2, 3, 20, 17)
    x = net.add("Relu", net.conv("x", 3, 32, 3, strides=[2, 2]))
    channels = 32
    for _ in range(3):
        a = net.add("Relu", normalized(net, x, channels))
        b = net.add("Relu", normalized(net, net.conv(a, channels, 40, 1, bias=False), 40))
        x = net.add("Concat", x, net.conv(b, 40, 12, 3), axis=1)
        channels += 12
    y = net.conv(net.add("Relu", normalized(net, x, channels)), channels, 20, 1)
    return net, net.add("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])


def test_a_block_where_everything_is_concatenated(mode):
    net, y = dense_block()
    check(net, y, **mode)


def test_no_copies_where_all_is_written_in_place():
    net, y = dense_block()
    found = steps_of(net, y)
    # Some levels lay out a picture of such short lines first.
    assert {*found} - {"swap_axes"} == {"transpose_planes", "multiply_tiles", "slide"}
    assert found.count("multiply_tiles") == 8


def test_branches_and_pools(mode):
    net = Net(1, 5, 15, 16)
    x = net.add("Relu", net.conv("x", 5, 24))
    for _ in range(2):
        a = net.add("Relu", net.conv(x, 24, 8, 1))
        b = net.add("Relu", net.conv(net.conv(x, 24, 10, 1), 10, 6, 3))
        c = net.add("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)
        c = net.add("Relu", net.conv(c, 24, 3, 1))
        d = net.add("MaxPool", net.conv(x, 24, 7, 1), kernel_shape=[3, 3], pads=[1] * 4)
        x = net.add("Concat", a, b, c, d, axis=1)
        channels = 24
    assert channels == 8 + 6 + 3 + 7
    assert set(steps_of(net, x)) == {"swap_axes", "transpose_planes", "multiply_tiles", "slide"}
    pooled = net.add("GlobalAveragePool", x)
    check(net, net.conv(x, 24, 9), pooled, **mode)


def test_means_of_windows_lie_as_convolutions_behind_them_read(mode):
    """Windows that move by two pixels are averaged with channels last; with two channels, apart."""

    def pooled(channels, levels=False):
        net = Net(1, channels, 15, 16)
        x = net.add("AveragePool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
        for kind in ("QuantizeLinear", "DequantizeLinear") if levels else ():
            x = net.add(kind, x, net.const(values=np.array(0.01, np.float32)))
        return net, net.conv(x, channels, 24)

    for given in ((16,), (16, True), (2,)):
        net, y = pooled(*given)
        apart = {"fold_windows_add_term", "divide_windows"} & set(steps_of(net, y))
        assert bool(apart) == (given == (2,))
    check(*pooled(16), **mode)


def test_parts_that_others_need_whole(mode):
    net = Net(1, 6, 9, 9)
    a = net.add("Relu", net.conv("x", 6, 8))
    b = net.conv(a, 8, 12, 1)
    joined = net.add("Concat", a, b, a, "x", axis=1)
    again = net.add("Concat", b, joined, axis=1)
    c = net.add("Softmax", b, axis=1)
    d = net.conv(net.add("Add", net.conv(joined, 34, 12), b), 12, 4)
    check(net, net.conv(again, 46, 5), c, d, **mode)


def split_block(bounds, order):
    """An image's slices along the channels; the last goes on, then some are put together again."""
    net = Net(1, 6, 9, 9)
    image = net.add("Relu", net.conv("x", 6, 16))
    parts = []
    for bound in bounds:
        numbers = (net.const(values=np.array([number])) for number in (*bound, 1))
        parts.append(net.add("Slice", image, *numbers))
    channels = bounds[-1][1] - bounds[-1][0]
    on = net.add("Relu", net.conv(parts[-1], channels, channels))
    parts.append(net.add("Add", on, parts[-1]))
    joined = net.add("Concat", *(parts[n] for n in order), axis=1)
    sizes = [stop - start for start, stop in bounds] + [channels]
    return net, parts, net.conv(joined, sum(sizes[n] for n in order), 12, 1)


@pytest.mark.parametrize(
    ("bounds", "order"),
    [
        ([(0, 8), (8, 16)], (0, 1, 2)),
        ([(0, 4), (4, 12), (12, 16)], (0, 1, 2, 3)),
        ([(0, 8), (8, 16)], (2, 0, 1)),
        ([(0, 8), (8, 16)], (0, 1, 0, 1)),
        ([(0, 8), (8, 16)], (1, 0, 2)),
        ([(0, 8), (7, 16)], (0, 1, 2)),
        ([(0, 8), (8, 15)], (0, 1, 2)),
        ([(0, 8), (8, 16)], (0, 0, 1)),
    ],
)
def test_slices_that_are_put_together_again(bounds, order, mode):
    net, parts, y = split_block(bounds, order)
    check(net, y, **mode)
    check(net, parts[0], y, **mode)


def test_an_image_that_is_put_together_again_is_not_copied():
    net, _, y = split_block([(0, 8), (8, 16)], (0, 1, 2))
    found = steps_of(net, y, EXECUTION_MODE_HINT="ACCURACY")
    assert "copy_nd" not in found  # the half that goes on is read where it lies
    assert "put_channels" not in found  # nor is the sum, which is written there


def enlarged(kernel, outputs, **attrs):
    """Transposed convolutions of an image and of a part of another, beside a convolution."""
    net = Net(2, 6, 9, 7)
    image = net.add("Relu", net.conv("x", 6, 20))
    whole = net.add("Concat", net.conv("x", 6, 5), image, axis=1)
    weights = (
        net.const(values=net.rng.standard_normal((20, outputs, *kernel)).astype(np.float32) / 9)
        for _ in range(2)
    )
    first, second = (
        net.add("ConvTranspose", image, w, net.const(outputs), **attrs) for w in weights
    )
    large = net.const(values=np.array([1, 1, *attrs["strides"]], np.float32))
    beside = net.conv(net.add("Resize", whole, "", large, mode="nearest"), 25, 7)
    joined = net.add("Concat", net.add("Sigmoid", first), beside, net.add("Relu", second), axis=1)
    return net, net.conv(joined, 7 + 2 * outputs, 9)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("outputs", [1, 3, 18])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((2, 2), {"strides": [2, 2]}),
        ((1, 3), {"strides": [1, 3]}),
        ((3, 1), {"strides": [3, 1]}),
        ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
)
def test_transposed_convolutions_of_parts_into_parts(kernel, attrs, outputs, mode):
    net, y = enlarged(kernel, outputs, **attrs)
    check(net, y, **mode)


def test_transposed_convolutions_are_not_copied():
    net, y = enlarged((2, 2), 18, strides=[2, 2])
    found = steps_of(net, y, EXECUTION_MODE_HINT="ACCURACY")
    assert found.count("spread_blocks") == 2
    assert "put_channels" not in found


def test_depthwise_convolutions_of_parts(mode):
    net = Net(1, 8, 14, 13)
    a = net.add("HardSwish", net.conv("x", 8, 16, 1))
    b = net.add("HardSwish", net.conv(a, 16, 16, 3, 16))
    c = net.add("Sigmoid", net.conv(a, 16, 16, 5, 16))
    joined = net.add("Concat", b, c, b, axis=1)
    d = net.conv(joined, 48, 48, 3, 48, strides=[2, 2])
    e = net.add("HardSwish", net.add("Add", net.conv(d, 48, 20, 1), net.conv(d, 48, 20, 1)))
    check(net, net.conv(e, 20, 7, 1), **mode)


@pytest.mark.parametrize("channels", [16, 24, 144, 50, 64, 7])
def test_pointwise_convolutions_of_any_depth(channels, mode):
    net = Net(1, 8, 13, 17)
    a = net.add("Relu", net.conv("x", 8, channels, 1))
    b = net.add("Relu", net.conv(a, channels, 40, 1))
    c = net.add("Add", net.conv(b, 40, channels, 3), a)
    check(net, net.conv(c, channels, 9, 1), **mode)


def test_residuals_and_activations_after_them(mode):
    net = Net(1, 32, 9, 10)
    a = net.add("Relu", net.conv("x", 32, 64))
    b = net.add("Relu", net.add("Add", net.conv(a, 64, 64), a))
    c = net.add("Sigmoid", net.add("Add", net.conv(b, 64, 64, 1), b))
    d = net.add("MaxPool", net.conv(c, 64, 32), kernel_shape=[2, 2])
    check(net, d, **mode)


def test_scaling_that_several_read(mode):
    net = Net(1, 12, 8, 9)
    a = net.conv("x", 12, 33)
    joined = net.add("Concat", a, net.conv(a, 33, 20), axis=1)
    b = net.add("Relu", normalized(net, joined, 53))
    c = net.add("Sigmoid", normalized(net, joined, 53))
    d = net.add("Add", net.conv(b, 53, 16, 1), net.conv(b, 53, 16, 3))
    check(net, d, net.conv(c, 53, 4, 1), **mode)


def shuffled(net, x, shape, groups, perm=(0, 2, 1, 3, 4)):
    n, c, h, w = shape
    split = net.const(values=np.array([n, groups, c // groups, h, w], np.int64))
    y = net.add("Transpose", net.add("Reshape", x, split), perm=list(perm))
    return net.add("Reshape", y, net.const(values=np.array(shape, np.int64)))


def test_shuffled_channels(mode):
    net = Net(2, 24, 9, 8)
    a = net.add("Relu", net.conv("x", 24, 48, 1, 3))
    b = shuffled(net, a, (2, 48, 9, 8), 3)
    c = net.conv(b, 48, 48, 3, 48, strides=[2, 2])
    y = net.conv(c, 48, 24, 1, 3)
    reorders = {"swap_axes", "transpose_planes", "interleave_groups"}
    assert set(steps_of(net, y)) <= {"multiply_tiles", "depthwise_images"} | reorders
    check(net, y, **mode)


def test_what_looks_like_a_shuffle(mode):
    net = Net(1, 8, 4, 4)
    a = net.conv("x", 8, 8)
    b = shuffled(net, a, (1, 8, 4, 4), 2, (0, 2, 1, 4, 3))
    c = shuffled(net, a, (1, 8, 4, 4), 4)
    seen = net.nodes[-2].output[0]
    d = net.add("Reshape", a, net.const(values=np.array([1, 2, 4, 16], np.int64)))
    e = net.add("Add", net.conv(b, 8, 4), net.conv(c, 8, 4))
    check(net, e, seen, net.conv(d, 2, 3), **mode)


def test_weights_beyond_bfloat16(mode):
    net = Net(1, 8, 6, 6)
    a = net.conv("x", 8, 8)
    w = np.zeros((8, 8, 1, 1), np.float32)
    w[0, 0] = np.finfo(np.float32).max
    b = net.add("Conv", net.add("Mul", a, net.const(values=np.float32(1e-9))), net.const(values=w))
    check(net, net.conv(b, 8, 4, 1), **mode)


def test_the_same_from_run_to_run():
    net, y = dense_block()
    for config, _ in CONFIGS:
        device = compiled(net.model(y), **config)
        x = net.rng.standard_normal(net.shape).astype(np.float32)
        first = np.array(device(x)[0])
        for _ in range(3):
            np.testing.assert_array_equal(np.asarray(device(x)[0]), first)


def test_a_concat_of_other_images_stays():
    x, y, z = (Value(name, np.dtype(np.float32), (1, 2, 3, 4)) for name in "xyz")
    graph = Graph([x, y], [z], [Node("Concat", [x, y], [z], {"axis": 3})], "g")
    write_in_place(graph)
    assert [node.op_type for node in graph.nodes] == ["Concat"]


def test_halves_are_used_where_there_is_arithmetic_for_them(level):
    net = Net(1, 32, 8, 8)
    y = net.conv(net.conv("x", 32, 32, 1), 32, 32, 1)
    device = compiled(net.model(y), INFERENCE_PRECISION_HINT="bf16")
    specs = [(port.shape, port.dtype) for port in device.inputs]
    steps = device.device_model.specializer.program(specs, None).steps
    kinds = {arg.dtype for step in steps for arg in step.args[:1]}
    assert (np.dtype(np.uint16) in kinds) == EVERY[level].keeps_bfloat16
    assert numpy_helper.to_array(net.weights[0]).dtype == np.float32


@pytest.mark.parametrize("block", ["convolution", "product"])
def test_sums_are_made_where_their_residuals_lie(level, block):
    """Twice, one upon the other. Matrix units may compute rows again, and have places apart."""
    net = Net(1, 16, 9, 11)

    def linear(x, channels, outputs):
        if block == "convolution":
            return net.conv(x, channels, outputs, 1)
        return net.add("MatMul", x, net.const(channels, outputs))

    x = "x" if block == "convolution" else net.add("Transpose", "x", perm=[0, 2, 3, 1])
    x = net.add("Relu", linear(x, 16, 40))
    for _ in range(2):
        y = net.add("Relu", linear(x, 40, 24))
        x = net.add("Relu", net.add("Add", linear(y, 24, 40), x))
    y = linear(x, 40, 8)
    strict = {"EXECUTION_MODE_HINT": "ACCURACY"}
    check(net, y, config=strict)
    places = places_written_over(compiled(net.model(y), **strict))
    assert all(made == read for made, read in places)
    assert EVERY[level].tiles or len(places) == 2


def test_a_picture_s_convolution_before_others_in_a_concat(mode):
    net = Net(1, 3, 32, 32)
    one, two = net.conv("x", 3, 8), net.conv("x", 3, 16)
    check(net, net.add("Concat", one, two, one, axis=1), **mode)
