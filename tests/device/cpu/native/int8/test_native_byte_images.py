"""Networks of bytes with channels last, against onnxruntime and sums of whole numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from judge import onnxruntime_results, weight_range
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import partita
from partita.lowering.geometry.windows import Window
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.precision_policy import PrecisionPolicy
from partita_cpu.gemm.tile_kernels import (
    CONFIGURE,
    byte_kernels,
    byte_window_kernels,
    quad_window_kernels,
)
from partita_cpu.jit.isa import available
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.kernels.int8.byte_tiles import TILE, TOGETHER
from partita_cpu.kernels.int8.convolution_groups import group_panels, merged_groups
from partita_cpu.kernels.int8.convolution_lines import convolve_lines
from partita_cpu.kernels.int8.convolution_windows import gather_windows
from partita_cpu.kernels.int8.depthwise_lines import (
    in_quad_order,
    neighbours_of,
    quad_weights,
    slide_lines,
)
from partita_cpu.kernels.int8.line_table import THREAD_BYTES, ChannelGroups, line_table
from partita_cpu.llvm.images.depthwise_quads import takes_quads
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc.window_int8 import largest_bytes, slide_bytes

from ..conftest import CACHES, Guarded

LEVELS = list(available())
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
F32 = TensorProto.FLOAT


class Bytes:
    """A graph of quantized operators, put together line by line."""

    def __init__(self, dtype, *shape, seed=0):
        self.rng, self.dtype, self.shape = np.random.default_rng(seed), dtype, shape
        self.nodes, self.weights = [], []
        self.info = np.iinfo(dtype)

    def const(self, value, dtype):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def scale(self, low, high):
        return self.const(self.rng.uniform(low, high), np.float32)

    def zero(self):
        return self.const(self.rng.integers(self.info.min + 90, self.info.max - 90), self.dtype)

    def weight(self, *shape):
        low, high = weight_range()
        return self.const(self.rng.integers(low, high + 1, shape), np.int8)

    def add(self, op_type, *inputs, domain="", **attrs):
        name = f"v{len(self.nodes)}"
        node = helper.make_node(op_type, inputs, [name], name=name, domain=domain, **attrs)
        self.nodes.append(node)
        return name

    def conv(self, x, channels, outputs, kernel=1, group=1, bias=True, **attrs):
        shape = outputs, channels // group, *[kernel] * (len(self.shape) - 2)
        scale = self.rng.uniform(0.5, 1.5, outputs) * 0.05 / np.sqrt(np.prod(shape[1:]))
        x_zero, w = self.zero(), self.weight(*shape)
        inputs = [x, self.scale(0.5, 0.6), x_zero, w, self.const(scale, np.float32)]
        inputs += [self.const(np.zeros(outputs), np.int8), self.scale(0.9, 1.1), self.zero()]
        if bias:
            inputs.append(self.const(self.rng.integers(-2000, 2000, outputs), np.int32))
        attrs.setdefault("pads", [kernel // 2] * 2 * (len(self.shape) - 2))
        return self.add("QLinearConv", *inputs, group=group, **attrs)

    def sum(self, x, y):
        inputs = [x, self.scale(0.5, 1), self.zero(), y, self.scale(0.5, 1), self.zero()]
        inputs += [self.scale(0.8, 1), self.zero()]
        return self.add("QLinearAdd", *inputs, domain="com.microsoft")

    def model(self, *outputs, kind=None):
        kind = KINDS[self.dtype] if kind is None else kind
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", KINDS[self.dtype], self.shape)],
            [helper.make_tensor_value_info(name, kind, None) for name in outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def check(self, *outputs, kind=None):
        """Compares with onnxruntime; returns what computed each node."""
        model = self.model(*outputs, kind=kind)
        x = self.rng.integers(self.info.min, self.info.max + 1, self.shape).astype(self.dtype)
        wanted = onnxruntime_results(model, {"x": x}, optimized=True)
        device = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True})
        request = device.create_infer_request()
        for _ in range(2):
            results = request.infer({"x": x})
            for index, expected in enumerate(wanted):
                found = np.asarray(results[index])
                assert found.dtype == expected.dtype
                np.testing.assert_array_equal(found, expected)
        return {info.node_name: info.exec_type for info in request.get_profiling_info()}


@pytest.fixture(params=[level.name for level in LEVELS])
def level(request, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", request.param)
    return request.param


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("channels", [32, 20, 3])
def test_a_residual_network(level, dtype, channels):
    size = (5, 7) if level == "portable" else (17, 13)  # Python goes through it item by item
    net = Bytes(dtype, 2, channels, *size)
    a = net.conv("x", channels, 40, 3)
    b = net.add("MaxPool", a, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    c = net.conv(net.conv(b, 40, 24), 24, 40, 3, bias=False)
    d = net.sum(b, c)
    e = net.conv(d, 40, 40, 3, group=40, strides=[2, 2])
    f = net.conv(e, 40, 70, 5, dilations=[2, 2], pads=[4, 4, 4, 4])
    kinds = net.check(f, d)
    moved = [name for name in kinds if name.startswith("permute")]
    # The input comes, and both outputs go; nothing is turned in between.
    assert len(moved) == (0 if level == "portable" else 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("channels", "outputs", "size", "kernel", "pads"),
    [
        (64, 70, (15, 9), 3, [1, 1, 1, 1]),  # threads share lines
        (192, 130, (9, 9), 3, [0, 2, 1, 0]),  # threads share columns, rows of the kernel are cut
        (32, 16, (12, 7), 4, [2, 3, 0, 1]),
        (128, 40, (40, 70), 3, [1, 1, 1, 1]),  # several bands of lines
        (64, 64, (1, 90), 5, [2, 2, 2, 2]),
        (3, 33, (30, 23), 7, [3, 3, 3, 3]),  # rows of the kernel are no whole quads
    ],
)
def test_windows_that_overlap(level, dtype, channels, outputs, size, kernel, pads):
    net = Bytes(dtype, 2, channels, *size)
    net.check(net.conv("x", channels, outputs, kernel, pads=pads))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_windows_of_sequences(dtype):
    net = Bytes(dtype, 2, 6, 90)
    net.check(net.conv(net.conv("x", 6, 20, 5), 20, 7, 3, strides=[2]))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("channels", "size", "kernel", "attrs"),
    [
        (3, (40, 33), 7, {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
        (8, (23, 41), 3, {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
        (16, (30, 24), 1, {"strides": [2, 2], "pads": [0, 0, 0, 0]}),  # lines stay as they lie
        (12, (20, 20), 3, {"strides": [1, 2], "dilations": [3, 1], "pads": [2, 1, 4, 1]}),
    ],
)
def test_windows_that_move_on(level, dtype, channels, size, kernel, attrs):
    net = Bytes(dtype, 2, channels, *size)
    net.check(net.conv("x", channels, 70, kernel, **attrs))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("channels", "outputs", "group", "kernel", "attrs"),
    [
        (32, 32, 8, 3, {}),  # four groups fill a vector
        (48, 48, 3, 3, {"strides": [2, 2]}),
        (12, 24, 12, 3, {}),  # each channel has two results
        (40, 80, 2, 1, {}),
        (6, 140, 2, 5, {"dilations": [2, 1], "pads": [4, 2, 4, 2]}),  # several panels of a group
    ],
)
def test_convolutions_in_groups(level, dtype, channels, outputs, group, kernel, attrs):
    net = Bytes(dtype, 2, channels, 11, 14)
    a = net.conv("x", channels, channels, 1)
    b = net.conv(a, channels, outputs, kernel, group=group, **attrs)
    kinds = net.check(net.conv(b, outputs, 8))
    moved = [name for name in kinds if name.startswith("permute")]
    assert len(moved) == (0 if level == "portable" else 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_groups_that_lines_do_not_serve(dtype):
    net = Bytes(dtype, 1, 8, 11, 14)
    a = net.conv("x", 8, 16, 3, group=2, dilations=[1, 2], pads=[1, 2, 1, 2])
    net.check(a)
    sequence = Bytes(dtype, 2, 8, 30)
    sequence.check(sequence.conv("x", 8, 16, 3, group=4))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_shuffled_channels(level, dtype):
    net = Bytes(dtype, 2, 24, 7, 9)
    a = net.conv("x", 24, 24)
    b = net.add("Reshape", a, net.const([2, 3, 8, 7, 9], np.int64))
    c = net.add("Transpose", b, perm=[0, 2, 1, 3, 4])
    d = net.add("Reshape", c, net.const([2, 24, 7, 9], np.int64))
    net.check(net.conv(d, 24, 24, 3, group=24))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_matrix_of_bytes_and_a_bias(level, dtype):
    net = Bytes(dtype, 7, 50)
    weights = net.weight(33, 50)
    zero = net.const(0, np.int8)
    bias = net.const(net.rng.integers(-3000, 3000, 33), np.int32)
    x = ["x", net.scale(0.01, 0.02), net.zero()]
    w = [weights, net.scale(0.01, 0.02), zero, bias]
    y = net.add("QGemm", *x, *w, net.scale(0.2, 0.3), net.zero(), domain="com.microsoft", transB=1)
    net.check(y)
    floats = net.add("QGemm", *x, *w, domain="com.microsoft", transB=1)
    net.check(floats, kind=F32)


def quantized_around(relu, same, dtype=np.uint8):
    """Floats between DequantizeLinear and QuantizeLinear: a sum of a pooled image and itself."""
    net = Bytes(dtype, 1, 8, 12, 10)
    scale, zero = net.const(0.05, np.float32), net.const(net.info.min, dtype)
    other = scale if same else net.const(0.07, np.float32)
    x = net.add("DequantizeLinear", "x", scale, zero)
    parts = []
    for width in (1, 2):
        pool = net.add("MaxPool", x, kernel_shape=[2, width], strides=[2, 2])
        levels = net.add("QuantizeLinear", pool, other, zero)
        parts.append(net.add("DequantizeLinear", levels, other, zero))
    total = net.add("Add", *parts)
    total = net.add("Relu", total) if relu else total
    return net, net.add("QuantizeLinear", total, net.const(0.09, np.float32), zero)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_sums_and_maxima_of_levels(relu, same, dtype):
    net, y = quantized_around(relu, same, dtype)
    executed = net.check(y)
    floats = [n.name for n in net.nodes if n.op_type in ("DequantizeLinear", "QuantizeLinear")]
    there = [name for name in floats if executed[name]]
    # Where scales differ, the maxima are floats; the sum is one of levels in any case.
    assert len(there) == (0 if same else 3)


def windows(data, side_by_side=False):
    """(height, width, down, across, strides, dilations, begin, end, out) of a small window.

    Side by side, places and windows follow one another without gaps.
    """
    sizes = []
    for _ in range(2):
        most = (4, 1, 1) if side_by_side else (4, 3, 2)
        kernel, stride, dilation = (data.draw(st.integers(1, n)) for n in most)
        begin, end = (data.draw(st.integers(0, 2)) for _ in range(2))
        reach = (kernel - 1) * dilation + 1
        size = data.draw(st.integers(max(1, reach - begin - end), 19))
        out = (size + begin + end - reach) // stride + 1
        sizes.append((size, kernel, stride, dilation, begin, end, out))
    return list(zip(*sizes, strict=True))


def table_of(columns):
    size, kernel, stride, dilation, begin, _, out = columns
    parts = [(1, *size), (1, *kernel), (1, *stride), (1, *dilation), (0, *begin), (1, *out)]
    return np.array(list(itertools.chain(*parts)), np.int64)


def taps_of(x, columns, blank):
    """Elements (taps, N, rows, columns, channels) under all windows, padded with a number."""
    _, kernel, stride, dilation, begin, end, out = columns
    pads = [(0, 0), *zip(begin, end, strict=True), (0, 0)]
    padded = np.pad(x.astype(np.int64), pads, constant_values=blank)
    found = []
    for a, b in itertools.product(range(kernel[0]), range(kernel[1])):
        rows = slice(a * dilation[0], None, stride[0])
        across = slice(b * dilation[1], None, stride[1])
        found.append(padded[:, rows, across][:, : out[0], : out[1]])
    return np.stack(found)


@pytest.mark.parametrize("level", [level for level in LEVELS if level.native])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@examples(30)
@given(data=st.data())
def test_lines_stay_within_their_memory(level, dtype, data):
    number = data.draw(st.sampled_from([1, 1, 2, 6]))
    on_tiles = level.tiles and number == 1
    columns = windows(data, side_by_side=on_tiles)
    of_group = data.draw(st.sampled_from([1, 64, 70, 130] if number == 1 else [1, 5, 16, 70]))
    size, kernel, stride, dilation, begin, end, out = columns
    each = 64 if on_tiles else data.draw(st.integers(1, 12))
    channels, outputs = number * each, number * of_group
    assume(1 in (kernel[1], dilation[1]))
    rng, info = np.random.default_rng(data.draw(st.integers(0, 99))), np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (2, *size, channels)).astype(dtype)
    w = rng.integers(-128, 128, (outputs, each, *kernel)).astype(np.int8)
    scale, blank, level_of_zero = 0.001, int(rng.integers(info.min, info.max + 1)), 3
    factors = rng.random(outputs).astype(np.float32)
    bias = rng.integers(-99, 99, outputs).astype(np.int32)
    merged = merged_groups(number, of_group, each, kernel[1])
    groups = ChannelGroups(number // merged, merged * each, merged * of_group)
    threads = data.draw(st.integers(1, 3))
    parts = (
        (1, *size),
        (1, *kernel),
        (1, *stride),
        (1, *dilation),
        (0, *begin),
        (0, *end),
        (1, *out),
    )
    policy = PrecisionPolicy(
        MachineModel(level, caches=CACHES["smallest"]), Arithmetic.F32, threads
    )
    shift = 0 if dtype == np.uint8 else 128
    table = line_table(Window(*parts, 2), x.shape, groups, shift, np.dtype(np.uint8), policy, 2)
    guarded = Guarded()
    y = guarded.array(np.zeros((2, *out, outputs), np.uint8))
    memory = np.zeros(threads * int(table[THREAD_BYTES]), np.uint8)
    arrays = x, np.array([blank], dtype), group_panels(w, number, groups)
    arrays += w.sum((1, 2, 3), dtype=np.int32), np.array([scale], np.float32), factors, bias
    arrays += np.array([level_of_zero], np.uint8), y
    given_arrays = [guarded.array(a).reshape(-1) for a in arrays[:-1]] + [y.reshape(-1)]
    rest = np.full(threads * TOGETHER * TILE, -1, np.int32), memory
    in_registers = data.draw(st.booleans())
    for tid in range(threads):
        kernels = byte_kernels(level, 64, in_registers).copy()
        kernels[CONFIGURE] *= on_tiles
        convolve_lines(*given_arrays, *map(guarded.array, rest), kernels, table, tid, threads)
    taps = taps_of(x, columns, blank) - blank
    taps = taps.reshape(*taps.shape[:-1], number, each)
    weights = w.astype(np.int64).reshape(number, of_group, each, -1)
    sums = np.einsum("tnhwgc,goct->nhwgo", taps, weights).reshape(2, *out, outputs)
    exact = (sums + bias).astype(np.float32) * (np.float32(scale) * factors)
    np.testing.assert_array_equal(y, np.clip(np.round(exact) + level_of_zero, 0, 255))
    guarded.release()


@pytest.mark.parametrize("level", [level for level in LEVELS if takes_quads(level)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@examples(30)
@given(data=st.data())
def test_depthwise_lines_at_the_edge_of_memory(level, dtype, data):
    columns = windows(data)
    size, kernel, stride, dilation, begin, end, out = columns
    assume(1 in (kernel[1], dilation[1]))
    channels = data.draw(st.sampled_from([1, 3, 8, 24, 48, 64, 65, 130]))
    rng, info = np.random.default_rng(data.draw(st.integers(0, 99))), np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (2, *size, channels)).astype(dtype)
    w = rng.integers(-128, 128, (channels, 1, *kernel)).astype(np.int8)
    bias = rng.integers(-500, 500, channels).astype(np.int32)
    factors = rng.uniform(0.001, 0.01, channels).astype(np.float32)
    x_zero, y_zero = (np.array([rng.integers(info.min, info.max)], dtype) for _ in range(2))
    threads, shift = data.draw(st.integers(1, 3)), 128 if dtype is np.int8 else 0
    edges = (0, *begin), (0, *end)
    moves = (1, *stride), (1, *dilation)
    window = Window((1, *size), (1, *kernel), *moves, *edges, (1, *out), 2)
    policy = PrecisionPolicy(
        MachineModel(level, caches=CACHES["smallest"]), Arithmetic.F32, threads
    )
    groups = ChannelGroups(1, channels, channels)
    table = line_table(window, x.shape, groups, shift, np.dtype(dtype), policy, 1)
    times = neighbours_of(window, channels)
    terms = bias - (int(x_zero[0]) + shift) * w.sum((1, 2, 3), dtype=np.int32)
    parts = quad_weights(w, times), in_quad_order(np.tile(terms, times))
    parts += in_quad_order(np.tile(factors, times)), x_zero, y_zero
    guarded = Guarded()
    try:
        y = guarded.array(np.zeros((2, *out, channels), dtype))
        read = [guarded.array(a).reshape(-1) for a in (x, *parts)]
        memory = guarded.array(np.zeros(threads * int(table[THREAD_BYTES]), np.uint8))
        for tid in range(threads):
            numbers = table, times, tid, threads
            slide_lines(*read, y.reshape(-1), memory, quad_window_kernels(level), *numbers)
    finally:
        guarded.release()
    weights = w[:, 0].astype(np.int64).reshape(channels, -1)
    sums = np.einsum("tnhwc,ct->nhwc", taps_of(x, columns, int(x_zero[0])) - x_zero[0], weights)
    wanted = np.round((sums + bias).astype(np.float32) * factors) + y_zero[0].astype(np.float32)
    np.testing.assert_array_equal(y, np.clip(wanted, info.min, info.max))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("channels", "kernel", "attrs"),
    [
        (24, 3, {}),  # eight pixels are computed as one
        (144, 3, {"strides": [2, 2]}),
        (40, 5, {"dilations": [2, 1], "pads": [4, 2, 4, 2]}),
        (20, 3, {"dilations": [1, 2], "pads": [1, 2, 1, 2]}),  # taps across lie apart
        (64, 4, {"pads": [0, 3, 1, 2]}),
    ],
)
def test_depthwise_convolutions(level, dtype, channels, kernel, attrs):
    net = Bytes(dtype, 2, 8, 13, 19)
    a = net.conv("x", 8, channels)
    net.check(net.conv(a, channels, channels, kernel, group=channels, **attrs))


@pytest.mark.parametrize("level", [level for level in LEVELS if level.native])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@examples(30)
@given(data=st.data())
def test_depthwise_sums_at_the_edge_of_memory(level, dtype, data):
    columns, channels = windows(data), data.draw(st.integers(1, 40))
    rng, info = np.random.default_rng(data.draw(st.integers(0, 99))), np.iinfo(dtype)
    shape = (2, *columns[0], channels)
    x = rng.integers(info.min, info.max + 1, shape).astype(dtype)
    taps = columns[1][0] * columns[1][1]
    w = rng.integers(-127, 128, (taps, channels)).astype(np.float32)
    bias = rng.integers(-500, 500, channels).astype(np.float32)
    factors = rng.uniform(0.001, 0.01, channels).astype(np.float32)
    x_zero, y_zero = (np.array([rng.integers(info.min, info.max)], dtype) for _ in range(2))
    sums = np.einsum("tnhwc,tc->nhwc", taps_of(x, columns, int(x_zero[0])) - x_zero[0], w) + bias
    wanted = np.round(sums.astype(np.float32) * factors) + y_zero[0].astype(np.float32)
    wanted = np.clip(wanted, info.min, info.max)
    guarded = Guarded()
    try:
        y = guarded.array(np.zeros((2, *columns[6], channels), dtype))
        read = [guarded.array(a).reshape(-1) for a in (x, w, bias, factors, x_zero, y_zero)]
        numbers = np.array([info.min, info.max, channels], np.int64)
        kernels = byte_window_kernels(level, np.dtype(dtype).name)
        for tid in range(2):
            args = (*read, y.reshape(-1), kernels, table_of(columns), numbers, tid, 2)
            slide_bytes(*args)
    finally:
        guarded.release()
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@examples(30)
@given(data=st.data())
def test_windows_gathered_at_the_edge_of_memory(level, dtype, data):
    columns, channels = windows(data), data.draw(st.sampled_from([1, 3, 21, 64, 70]))
    info = np.iinfo(dtype)
    shift = 128 if dtype is np.int8 else 0
    zero = np.array([data.draw(st.integers(info.min, info.max))], dtype)
    x = np.random.default_rng(0).integers(info.min, info.max + 1, (2, *columns[0], channels))
    x = x.astype(dtype)
    taps = taps_of(x, columns, int(zero[0])) + shift  # (taps, N, rows, columns, channels)
    rows = taps[0, ..., 0].size
    terms = taps.shape[0] * channels
    length = terms + data.draw(st.integers(0, 5))
    wanted = np.zeros((rows, length), np.uint8)
    wanted[:, :terms] = np.moveaxis(taps, 0, 3).reshape(rows, terms)
    copy = 0 if not level.native else addresses(level).get("copy_runs", 0)
    guarded = Guarded()
    try:
        packed = guarded.array(np.full((rows, length), 7, np.uint8))
        totals = guarded.array(np.zeros(rows, np.int32))
        for tid in range(2):
            sizes = (2, channels, length, shift, 1, copy)
            outputs = (packed.reshape(-1), totals, table_of(columns), *sizes, tid, 2)
            gather_windows(guarded.array(x).reshape(-1), zero, *outputs)
    finally:
        guarded.release()
    np.testing.assert_array_equal(packed, wanted)
    np.testing.assert_array_equal(totals, wanted.sum(1, dtype=np.int64))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@examples(30)
@given(data=st.data())
def test_maxima_at_the_edge_of_memory(level, dtype, data):
    columns, channels = windows(data), data.draw(st.integers(1, 140))
    kernel = 0 if not level.native else addresses(level).get(f"max_{np.dtype(dtype).name}", 0)
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max + 1, (2, *columns[0], channels))
    x = x.astype(dtype)
    guarded = Guarded()
    try:
        y = guarded.array(np.zeros((2, *columns[6], channels), dtype))
        source = guarded.array(x).reshape(-1)
        for tid in range(2):
            largest_bytes(
                source, y.reshape(-1), table_of(columns), channels, info.min, kernel, tid, 2
            )
    finally:
        guarded.release()
    np.testing.assert_array_equal(y, taps_of(x, columns, info.min).max(0))
