"""Whole small graphs with channels last, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import partita
from partita_cpu.llvm.levels import EVERY

F32 = TensorProto.FLOAT
LEVELS = [level.name for level in float_levels()[1:]]
SETTINGS = [{"EXECUTION_MODE_HINT": "ACCURACY"}, {}]


class Net:
    """A graph that is put together line by line."""

    def __init__(self, *shape, seed=0):
        self.rng = np.random.default_rng(seed)
        self.shape = shape
        self.nodes, self.weights = [], []
        self.count = 0

    def const(self, *shape, values=None):
        self.count += 1
        name = f"c{self.count}"
        array = self.rng.standard_normal(shape).astype(np.float32) if values is None else values
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op_type, *inputs, **attrs):
        self.count += 1
        name = f"v{self.count}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attrs))
        return name

    def conv(self, x, channels, outputs, kernel=3, group=1, bias=True, **attrs):
        scale = np.float32(1 / np.sqrt(channels // group * kernel * kernel))
        shape = (outputs, channels // group, kernel, kernel)
        w = self.const(values=self.rng.standard_normal(shape).astype(np.float32) * scale)
        inputs = (x, w, self.const(outputs)) if bias else (x, w)
        attrs.setdefault("pads", [kernel // 2] * 4)
        return self.add("Conv", *inputs, group=group, **attrs)

    def model(self, *outputs):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", F32, self.shape)],
            [helper.make_tensor_value_info(name, F32, None) for name in outputs],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def compiled(model, **config):
    """For two threads: on many, what small images are computed in depends on how many there are."""
    config = {"INFERENCE_NUM_THREADS": 2, **config}
    return partita.Core().compile_model(
        partita.Core().read_model(model.SerializeToString()), "CPU", config
    )


def places_written_over(device, *functions):
    """Where results and what they may be written over lie in the arena, of steps that have both.

    Of certain functions all steps are told; an error if one of them has not.
    """
    specs = [(port.shape, port.dtype) for port in device.inputs]
    program = device.device_model.specializer.program(specs, None)
    return [
        [program.offsets[operand.root] for operand in step.over]
        for step in program.steps
        if (step.fn.__name__ in functions if functions else step.over is not None)
    ]


def check(net, *outputs, config=None, tolerance=4e-6):
    model = net.model(*outputs)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    wanted = onnxruntime_results(model, {"x": x})
    config = {} if config is None else config
    device = compiled(model, PERF_COUNT=True, **config)
    request = device.create_infer_request()
    for _ in range(2):
        results = request.infer({"x": x})
        for index, expected in enumerate(wanted):
            found = np.asarray(results[index])
            assert found.shape == expected.shape
            scale = max(float(np.abs(expected).max(initial=0)), 1e-6)
            assert float(np.abs(found - expected).max(initial=0)) <= tolerance * scale
    return {info.node_name: info.exec_type for info in request.get_profiling_info()}


pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""


@pytest.mark.parametrize("config", SETTINGS)
def test_a_residual_block(config, level):
    net = Net(2, 36, 15, 13)
    a = net.add("Relu", net.conv("x", 36, 40, 1))
    b = net.add("Relu", net.conv(a, 40, 40, 3))
    c = net.add("Add", net.conv(b, 40, 36, 1), "x")
    d = net.add("Relu", c)
    e = net.conv(d, 36, 70, 3, strides=[2, 2])
    kinds = check(net, e, config=config, tolerance=4e-6 if config else 4e-5)
    wanted = f"{EVERY[level].vectors}_f32"
    if level == "amx":
        wanted = "amx_bf16x6" if config else "amx_bf16x3"
    assert kinds[e] == wanted
    assert kinds[a] != "amx_bf16x3"  # a short sum


def narrowest(level):
    """What products are computed in where bfloat16 is asked for."""
    able = EVERY[level]
    return "amx_bf16" if able.tiles else f"{able.vectors}_{'bf16' if able.dots_bfloat16 else 'f32'}"


def test_bfloat16_where_it_is_asked_for(level):
    net = Net(1, 32, 14, 14)
    y = net.conv(net.add("Relu", net.conv("x", 32, 64)), 64, 32)
    config = {"INFERENCE_PRECISION_HINT": "bf16"}
    kinds = check(net, y, config=config, tolerance=2e-2 if EVERY[level].dots_bfloat16 else 4e-6)
    direct = EVERY[level].dots_bfloat16
    assert kinds[y] == narrowest(level) + ("" if direct else "_winograd")


@pytest.mark.parametrize("axes", [[-1, -2], [2, 3]])
def test_means_over_images_need_no_turning(axes):
    net = Net(2, 16, 9, 11)
    a = net.add("Relu", net.conv("x", 16, 24))
    pooled = net.add("ReduceMean", a, axes=axes, keepdims=1)
    gate = net.add("Sigmoid", net.conv(pooled, 24, 24, 1))
    y = net.conv(net.add("Mul", a, gate), 24, 10, 1)
    kinds = check(net, y, tolerance=1e-5)
    assert not any(name.startswith("permute") and pooled in name for name in kinds)


@pytest.mark.parametrize("activation", ["HardSwish", "Sigmoid", "LeakyRelu", "HardSigmoid"])
def test_activations_and_a_gate(activation):
    net = Net(1, 16, 9, 11)
    a = net.add(activation, net.conv("x", 16, 24))
    pooled = net.add("GlobalAveragePool", a)
    gate = net.add("HardSigmoid", net.conv(pooled, 24, 24, 1))
    y = net.conv(net.add("Mul", a, gate), 24, 10, 1)
    check(net, y, a, gate, tolerance=1e-5)


def test_means_over_many_pixels_are_as_exact_as_over_few():
    net = Net(1, 16, 160, 160)
    image = net.conv("x", 16, 16, 1, bias=False)
    mean = net.add("GlobalAveragePool", image)
    x = net.rng.uniform(1, 2, net.shape).astype(np.float32)
    net.weights = [numpy_helper.from_array(np.eye(16, dtype=np.float32)[..., None, None], "c1")]
    results = compiled(net.model(mean, image)).create_infer_request().infer({"x": x})
    np.testing.assert_array_equal(results[1], x)
    exact = x.astype(np.float64).mean(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(results[0], exact, rtol=1e-6)


def test_concat_pooling_and_values_that_are_outputs_too():
    net = Net(2, 8, 17, 12)
    a = net.conv("x", 8, 12)
    b = net.conv(a, 12, 20, 1)
    c = net.add("MaxPool", a, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    d = net.add("Concat", a, b, c, axis=1)
    e = net.add("AveragePool", d, kernel_shape=[2, 3], strides=[2, 1], pads=[0, 1, 1, 1])
    f = net.add("AveragePool", d, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
    check(net, e, f, b)


def test_constants_that_broadcast():
    net = Net(1, 6, 10, 10)
    a = net.conv("x", 6, 9)
    b = net.add("Relu", net.add("Mul", a, net.const(9, 1, 1)))
    c = net.add("Add", b, net.const(1, 1, 10, 10))
    d = net.add("Sub", net.const(values=np.float32(2)), c)
    e = net.add("PRelu", d, net.const(9, 1, 1))
    check(net, net.conv(e, 9, 4))


def test_normalization_before_a_convolution():
    net = Net(1, 6, 10, 10)
    a = net.conv("x", 6, 32)
    parts = [net.const(32) for _ in range(3)]
    parts.append(net.const(values=net.rng.random(32).astype(np.float32) + 0.5))
    b = net.add(
        "BatchNormalization",
        net.add("Concat", a, a, axis=1),
        *[
            net.const(values=np.tile(numpy_helper.to_array(w), 2))
            for w in net.weights
            if w.name in parts
        ],
    )
    c = net.add("Relu", b)
    d = net.conv(c, 64, 8)
    e = net.add(
        "BatchNormalization",
        net.add("MaxPool", d, kernel_shape=[2, 2]),
        *[net.const(8), net.const(8), net.const(8), net.const(values=np.ones(8, np.float32))],
    )
    check(net, e, tolerance=1e-5)


def test_operators_that_stay_behind():
    net = Net(1, 8, 8, 8)
    a = net.conv("x", 8, 8)
    b = net.add("Softmax", a, axis=1)
    c = net.add("Reshape", a, net.const(values=np.array([1, 8, 64], np.int64)))
    d = net.add("Transpose", net.conv(b, 8, 4), perm=[0, 2, 3, 1])
    check(net, c, d)


@st.composite
def windows(draw):
    kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 2))
    pads = draw(st.lists(st.integers(0, kernel - 1), min_size=4, max_size=4))
    reach = (kernel - 1) * dilation + 1
    height, width = (draw(st.integers(max(1, reach - 1), 25)) for _ in range(2))
    pads = [max(p, reach - size) for p, size in zip(pads, [height, width] * 2, strict=True)]
    return kernel, stride, dilation, pads, height, width


@examples(25)
@given(window=windows(), channels=st.integers(1, 70), seed=st.integers(0, 99))
def test_depthwise(window, channels, seed):
    kernel, stride, dilation, pads, height, width = window
    net = Net(2, channels, height, width, seed=seed)
    attrs = {"pads": pads, "strides": [stride] * 2, "dilations": [dilation] * 2}
    a = net.conv("x", channels, channels, kernel, channels, **attrs)
    check(net, net.add("Clip", a, net.const(values=np.float32(-0.5)), ""))


@examples(25)
@given(window=windows(), channels=st.integers(1, 40), include=st.booleans(), up=st.booleans())
def test_pooling(window, channels, include, up):
    kernel, stride, _, pads, height, width = window
    net = Net(1, channels, height, width)
    a = net.conv("x", channels, channels, 1)
    attrs = {
        "kernel_shape": [kernel] * 2,
        "strides": [stride] * 2,
        "pads": [min(p, kernel - 1) for p in pads],
        "ceil_mode": int(up),
    }
    b = net.add("MaxPool", a, **attrs)
    c = net.add("AveragePool", a, count_include_pad=int(include), **attrs)
    check(net, b, c)


def test_groups_and_shuffled_channels():
    net = Net(1, 24, 12, 12)
    a = net.conv("x", 24, 48, 1, group=3)
    b = net.add("Reshape", a, net.const(values=np.array([1, 3, 16, 12, 12], np.int64)))
    c = net.add("Transpose", b, perm=[0, 2, 1, 3, 4])
    d = net.add("Reshape", c, net.const(values=np.array([1, 48, 12, 12], np.int64)))
    e = net.conv(d, 48, 48, 3, group=48, strides=[2, 2])
    check(net, net.conv(e, 48, 96, 3, group=4))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_channels_that_become_pixels_and_back(mode, level):
    net = Net(2, 24, 5, 8)
    a = net.conv("x", 24, 36, 1)
    b = net.conv(net.add("DepthToSpace", a, blocksize=2, mode=mode), 9, 6, 3)
    c = net.conv(net.add("SpaceToDepth", b, blocksize=2), 24, 8, 1)
    kinds = check(net, c)
    moved = [name for name in kinds if name.startswith("permute")]
    assert len(moved) == (0 if level == "portable" else 2)


@pytest.mark.parametrize("block", [(2, 2), (1, 3), (4, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolutions_that_do_not_overlap(block, bias):
    net = Net(2, 12, 7, 9)
    a = net.conv("x", 12, 20)
    inputs = (a, net.const(20, 5, *block), *([net.const(5)] if bias else []))
    b = net.add("ConvTranspose", *inputs, strides=list(block))
    check(net, net.add("Sigmoid", net.conv(net.add("Relu", b), 5, 3)), tolerance=1e-5)


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh", "HardSwish", "Relu"])
def test_transposed_convolutions_of_few_outputs(outputs, activation):
    net = Net(2, 12, 7, 9)
    x = net.conv("x", 12, 24)
    w = net.const(values=net.rng.standard_normal((24, outputs, 2, 2)).astype(np.float32) / 5)
    y = net.add("ConvTranspose", x, w, net.const(outputs), strides=[2, 2])
    check(net, net.add(activation, y), tolerance=1e-5)


def test_transposed_convolutions_that_overlap_or_are_padded():
    net = Net(1, 8, 6, 6)
    a = net.conv("x", 8, 8)
    b = net.add("ConvTranspose", a, net.const(8, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    c = net.add("ConvTranspose", b, net.const(4, 4, 2, 2), strides=[2, 2], output_padding=[1, 1])
    check(net, c, tolerance=1e-5)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        ((3, 5), {"strides": [1, 1], "pads": [1, 0, 0, 2]}),
        ((5, 4), {"strides": [2, 3], "pads": [2, 0, 1, 1]}),
        ((3, 3), {"strides": [2, 2], "output_shape": [15, 18]}),
        ((6, 3), {"strides": [3, 2], "auto_pad": "SAME_UPPER"}),
        ((2, 2), {"strides": [2, 2], "output_padding": [1, 1]}),
    ],
)
def test_transposed_convolutions_by_phases(kernel, attrs):
    net = Net(2, 12, 7, 9)
    a = net.conv("x", 12, 20)
    w = net.const(values=net.rng.standard_normal((20, 33, *kernel)).astype(np.float32) / 20)
    b = net.add("Relu", net.add("ConvTranspose", a, w, net.const(33), **attrs))
    executed = check(net, net.conv(b, 33, 8), tolerance=1e-5)
    moved = [name for name in executed if name.startswith("permute")]
    assert len(moved) <= 2


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 2), {"strides": [2, 2]}),  # pixels that no tap reaches
        ((4, 4), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),  # the edge of the input is left out
        ((3, 3), {"strides": [2, 2], "dilations": [2, 2]}),
        ((9, 9), {"strides": [9, 8]}),  # too many phases
    ],
)
def test_transposed_convolutions_without_phases(kernel, attrs):
    net = Net(1, 8, 6, 5)
    a = net.conv("x", 8, 8)
    w = net.const(values=net.rng.standard_normal((8, 4, *kernel)).astype(np.float32) / 8)
    check(net, net.add("ConvTranspose", a, w, **attrs), tolerance=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_between_convolutions(mode):
    net = Net(1, 8, 6, 5)
    a = net.conv("x", 8, 16)
    scales = net.const(values=np.array([1, 1, 2, 3], np.float32))
    b = net.add("Resize", a, "", scales, mode=mode)
    sizes = net.const(values=np.array([1, 16, 7, 9], np.int64))
    c = net.add("Resize", a, "", "", sizes, mode=mode)
    check(net, net.conv(b, 16, 4), net.conv(c, 16, 4), tolerance=1e-5)


@pytest.mark.parametrize("config", [*SETTINGS, {"INFERENCE_PRECISION_HINT": "bf16"}])
@pytest.mark.parametrize("activation", [None, "Relu", "Sigmoid"])
@pytest.mark.parametrize("kernel", [3, 7])
def test_sums_behind_depthwise_convolutions(config, activation, kernel, level):
    """They were computed with channels first, by a loop, and images turned round for it."""
    net = Net(2, 24, 15, 13)
    x = net.conv("x", 24, 24, 1)
    y = net.add("Add", x, net.conv(net.conv(x, 24, 24), 24, 24, kernel, group=24))
    y = y if activation is None else net.add(activation, y)
    exact = "INFERENCE_PRECISION_HINT" not in config
    kinds = check(net, net.conv(y, 24, 8), config=config, tolerance=1e-5 if exact else 4e-2)
    assert sum(name.startswith("permute") for name in kinds) <= 2


def test_dynamic_batch_and_read_only_input():
    net = Net("n", 3, 9, 9)
    model = net.model(net.add("Relu", net.conv("x", 3, 5)))
    device = compiled(model)
    for batch in (1, 3, 0, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 9, 9)).astype(np.float32)
        raw = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:]
        unaligned = raw.view(np.float32).reshape(x.shape)
        assert not unaligned.flags.writeable
        wanted = onnxruntime_results(model, {"x": x}, optimized=True)[0]
        np.testing.assert_allclose(device(unaligned)[0], wanted, rtol=1e-4, atol=1e-5)


def test_the_portable_cap_uses_no_native_kernel(monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", "portable")
    net = Net(1, 4, 6, 6)
    kinds = check(net, net.conv("x", 4, 4))
    assert not any("avx" in kind or "amx" in kind for kind in kinds.values())


def test_products_of_one_input_share_what_they_read(level):
    """In bfloat16 the input is converted once, not by every product and thread."""
    net = Net(2, 20, 64)
    a, b = (net.add("MatMul", "x", net.const(64, 96)) for _ in range(2))
    y = net.add("Add", a, b)
    config = {"INFERENCE_PRECISION_HINT": "bf16"}
    kinds = check(net, y, config=config, tolerance=2e-2 if EVERY[level].dots_bfloat16 else 4e-6)
    if EVERY[level].dots_bfloat16:
        assert kinds[a] == kinds[b] == narrowest(level)


@pytest.mark.parametrize("config", [*SETTINGS, {"INFERENCE_PRECISION_HINT": "bf16"}])
@pytest.mark.parametrize("kernel", [3, 7])
@pytest.mark.parametrize("side", [(40, 60), (9, 8)])
def test_pictures_are_read_as_they_are(config, kernel, side):
    net = Net(2, 3, *side)
    a = net.add("Relu", net.conv("x", 3, 20, kernel, strides=[2, 2]))
    b = net.add("MaxPool", "x", kernel_shape=[2, 2])
    y = net.conv(b, 3, 7, kernel)
    tolerance = 2e-2 if "INFERENCE_PRECISION_HINT" in config else 4e-6
    kinds = check(net, a, y, config=config, tolerance=tolerance)
    if side[0] > 9:
        assert list(kinds.values()).count("reorder") == 2  # of what callers see


@pytest.mark.parametrize("config", [*SETTINGS, {"INFERENCE_PRECISION_HINT": "bf16"}])
def test_pictures_under_dilated_windows(config):
    """Tiles that multiply pairs have room for a fourth channel between two taps."""
    net = Net(2, 3, 30, 40)
    y = net.conv("x", 3, 20, dilations=[1, 2], pads=[1, 2, 1, 2])
    tolerance = 2e-2 if "INFERENCE_PRECISION_HINT" in config else 4e-6
    check(net, y, config=config, tolerance=tolerance)


@pytest.mark.parametrize("config", SETTINGS)
def test_small_images_are_matrices(config, level):
    """A residual, an activation that bounds do not express, and one input for two products."""
    net = Net(1, 544, 9, 8)
    a = net.add("Relu", net.conv("x", 544, 520, 1))
    b = net.add("Relu", net.add("Add", net.conv(a, 520, 544, 1), "x"))
    c = net.add("Sigmoid", net.conv(b, 544, 130, 1))
    d = net.conv(b, 544, 140, 1, bias=False)
    kinds = check(net, c, d, config=config, tolerance=4e-6 if config else 4e-5)
    if level == "amx":
        assert kinds[d] == ("amx_bf16x6" if config else "amx_bf16x3")


SLICES = [
    ([0], [5], [1], None),
    ([-3, 1], [99, -2], [1, 3], None),
    ([0, 0, 2, 7], [1, 9, 9, 0], None, [1, 2, 3, -2]),
]
"""Starts, ends, axes and steps."""


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize(("starts", "ends", "axes", "by"), SLICES)
def test_slices_stay_with_channels_last(starts, ends, axes, by, kind):
    net = Net(1, 3, 9, 11)
    x = net.add("Relu", net.conv("x", 3, 12))
    bounds = [net.const(values=np.array(numbers, kind)) for numbers in (starts, ends)]
    bounds.append("" if axes is None else net.const(values=np.array(axes, kind)))
    bounds += [] if by is None else [net.const(values=np.array(by, kind))]
    piece = net.add("Slice", x, *bounds)
    channels = len(range(12)[slice(*(n[1 if axes is None else 0] for n in (starts, ends)))])
    channels = len(range(12)[0:9:2]) if axes is None else channels
    check(net, net.add("Add", net.conv(piece, channels, 4, 1), net.const(1)), piece)
    steps = check(net, net.conv(piece, channels, 4, 1))
    assert not [name for name in steps if f"{piece}/layout" in name]


@pytest.mark.parametrize("sizes", [None, [4, 7, 1]])
def test_pieces_of_the_channels_stay_with_channels_last(sizes):
    net = Net(2, 3, 9, 11)
    x = net.add("Relu", net.conv("x", 3, 12))
    given = [] if sizes is None else [net.const(values=np.array(sizes))]
    names = ["p", "q", "r"]
    net.nodes.append(helper.make_node("Split", [x, *given], names, name="split", axis=1))
    parts = [net.conv(name, n, 4) for name, n in zip(names, sizes or [4] * 3, strict=True)]
    steps = check(net, net.add("Sum", *parts))
    assert not [name for name in steps if "split/layout" in name]


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_regions_of_images_need_no_turning(mode, ratio):
    net = Net(2, 12, 15, 13)
    corners = net.rng.uniform(-2, 12, (5, 2))
    boxes = np.hstack([corners, corners + net.rng.uniform(0.5, 9, (5, 2))]).astype(np.float32)
    inputs = net.const(values=boxes), net.const(values=np.array([0, 1, 1, 0, 1]))
    attributes = {"output_height": 5, "output_width": 4, "sampling_ratio": ratio, "mode": mode}
    image = net.conv("x", 12, 20)
    regions = net.add("RoiAlign", image, *inputs, **attributes)
    names = check(net, net.conv(regions, 20, 9), config=SETTINGS[0])
    assert f"permute {regions}/layout" not in names
