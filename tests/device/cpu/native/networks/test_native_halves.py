"""What lies between convolutions: kernels for parts of images, and images kept in bfloat16."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.lowering import ActivationCode
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles
from partita_cpu.gemm.packing.weights import pack, pack_bias
from partita_cpu.gemm.product_records import Epilogue, InputScaling, ProductArrays, TileContext
from partita_cpu.gemm.tile_kernels import ACTIVATE_NARROW, single_kernel, tile_kernels
from partita_cpu.llvm.epilogue import VECTORS
from partita_cpu.llvm.levels import EVERY
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc.channel_slice import ChannelSlice
from partita_cpu.nhwc.pixel_steps import SecondImage, combine_images, gate_images, take_pixels

from ..conftest import Guarded, own_share_left
from ..gemm.test_native_storage import KINDS, NARROW, SENTINEL, loaded, stored
from ..gemm.test_native_tiles import ACTIVATIONS, convolve
from .test_native_layout import Net, check, compiled
from .test_native_passes import steps_of

INF = float("inf")
BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
MODES = [({"EXECUTION_MODE_HINT": "ACCURACY"}, 4e-6), (BF16, 3e-2)]
ROUNDING = 2**-8

besides = st.tuples(*[st.sampled_from([0, 1, 20])] * 6)


@pytest.fixture(params=MODES, ids=["accuracy", "bf16"])
def mode(request):
    return {"config": request.param[0], "tolerance": request.param[1]}


def require(found, first, wanted, half):
    """Rounded once at most; what lies beside is as it was."""
    there = slice(first, first + wanted.shape[-1])
    tolerance = {"rtol": ROUNDING if half else 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(found[..., there], wanted, **tolerance)
    found[..., there] = SENTINEL
    np.testing.assert_array_equal(found, SENTINEL)


@pytest.mark.parametrize(("verb", "combined"), [("add", np.add), ("mul", np.multiply)])
@pytest.mark.parametrize(("level", "half"), KINDS)
@examples(40)
@given(
    channels=st.integers(1, 150),
    pixels=st.integers(1, 20),
    beside=besides,
    threads=st.integers(1, 3),
)
def test_sums_and_products_of_parts(level, half, verb, combined, channels, pixels, beside, threads):
    rng = np.random.default_rng(channels)
    guarded = Guarded()
    pitches = [beside[2 * n] + channels + beside[2 * n + 1] for n in range(3)]
    a, b = (stored(rng.standard_normal((pixels, pitch)), half) for pitch in pitches[:2])
    y = guarded.array(stored(np.full((pixels, pitches[2]), SENTINEL), half))
    for tid in range(threads):
        combine_images(
            guarded.array(a).reshape(-1),
            guarded.array(b).reshape(-1),
            y.reshape(-1),
            single_kernel(level, f"{verb}_halves" if half else f"{verb}_rows"),
            ChannelSlice(channels, pitches[0], beside[0], pitches[2], beside[4]),
            SecondImage(pitches[1], beside[2]),
            tid,
            threads,
        )
    parts = (
        np.asarray(loaded(x)[:, first : first + channels], np.float64)
        for x, first in ((a, beside[0]), (b, beside[2]))
    )
    require(loaded(y), beside[4], combined(*parts), half)
    guarded.release()


@pytest.mark.parametrize(("level", "half"), KINDS)
@examples(25)
@given(
    channels=st.integers(1, 70),
    batch=st.integers(1, 3),
    pixels=st.integers(1, 9),
    beside=besides,
    threads=st.integers(1, 3),
)
def test_gates_of_parts(level, half, channels, batch, pixels, beside, threads):
    rng = np.random.default_rng(channels)
    guarded = Guarded()
    before_x, after_x, before_y, after_y = beside[:4]
    x = stored(rng.standard_normal((batch, pixels, before_x + channels + after_x)), half)
    factor = rng.standard_normal((batch, channels)).astype(np.float32)
    y = guarded.array(
        stored(np.full((batch, pixels, before_y + channels + after_y), SENTINEL), half)
    )
    for tid in range(threads):
        gate_images(
            guarded.array(x).reshape(-1),
            guarded.array(factor).reshape(-1),
            guarded.array(np.zeros(channels, np.float32)),
            y.reshape(-1),
            single_kernel(level, "scale_halves" if half else "scale"),
            ChannelSlice(channels, x.shape[2], before_x, y.shape[2], before_y),
            tid,
            threads,
        )
    part = np.asarray(loaded(x)[..., before_x : before_x + channels], np.float64)
    require(loaded(y), before_y, part * factor[:, None], half)
    guarded.release()


@pytest.mark.parametrize(("level", "half"), KINDS)
@examples(25)
@given(
    channels=st.integers(1, 70),
    shape=st.tuples(*[st.integers(1, 5)] * 3),
    sizes=st.tuples(*[st.integers(1, 9)] * 2),
    beside=besides,
    threads=st.integers(1, 3),
)
def test_pixels_of_parts(level, half, channels, shape, sizes, beside, threads):
    rng = np.random.default_rng(channels)
    guarded = Guarded()
    before_x, after_x, before_y, after_y = beside[:4]
    x = stored(rng.standard_normal((*shape, before_x + channels + after_x)), half)
    down, across = (rng.integers(0, n, m) for n, m in zip(shape[1:], sizes, strict=True))
    y = np.full((shape[0], *sizes, before_y + channels + after_y), SENTINEL)
    y = guarded.array(stored(y, half))
    for tid in range(threads):
        take_pixels(
            guarded.array(x).reshape(-1),
            y.reshape(-1),
            down,
            across,
            single_kernel(level, "copy_halves" if half else "copy"),
            ChannelSlice(channels, x.shape[3], before_x, y.shape[3], before_y),
            *shape[1:],
            tid,
            threads,
        )
    part = loaded(x)[..., before_x : before_x + channels]
    require(loaded(y), before_y, part[:, down][:, :, across], half)
    guarded.release()


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("code", ACTIVATIONS)
@pytest.mark.parametrize("columns", [1, 16, 21, 32])
def test_activations_that_end_in_bfloat16(level, code, columns, guarded):
    """Of rows of a tile; what lies between rows of the result is not touched."""
    kernels = tile_kernels(level, Arithmetic.BF16, half_out=True, activation=code)
    rng = np.random.default_rng(0)
    width = 16 * VECTORS
    numbers = np.concatenate([np.linspace(-120, 120, 4001), [0, -0.0, INF, -INF, np.nan, 1e-38]])
    x = np.resize(numbers, (numbers.size // width + 1, width)).astype(np.float32)
    bias = rng.standard_normal(width).astype(np.float32)
    y = guarded.array(stored(np.full((len(x), columns + 3), SENTINEL), True))
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(int(kernels[ACTIVATE_NARROW]))
    tile, offset = guarded.array(x), guarded.array(bias)
    places = tile.ctypes.data, offset.ctypes.data, y.ctypes.data
    call(len(y), *places, 2 * (columns + 3), columns)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = ACTIVATIONS[code]((x + bias).astype(np.float64))[:, :columns]
    found = loaded(y)
    there, nan = found[:, :columns], np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(there), nan)
    np.testing.assert_allclose(there[~nan], wanted[~nan], rtol=ROUNDING, atol=2e-7)
    np.testing.assert_array_equal(found[:, columns:], SENTINEL)


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("code", [*ACTIVATIONS, ActivationCode.TANH])
@pytest.mark.parametrize("width", [9, 33])
def test_products_with_activations_that_end_in_bfloat16(level, code, width, guarded):
    """By a kernel of their own, or by loops where there is none."""
    rng = np.random.default_rng(1)
    images = Images(1, 5, width, 16, 37, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 5, width)
    x = stored(rng.standard_normal((5 * width, 16)), True)
    w = (rng.standard_normal((37, 16, 3, 3)) / 12).astype(np.float32)
    bias = rng.standard_normal(37).astype(np.float32)
    cut = plan(images, MachineModel(level), Arithmetic.BF16, 1, Storage(True, True))
    y = guarded.array(np.zeros((5 * width, 37), np.uint16))
    multiply_tiles(
        guarded.array(x).reshape(-1),
        ProductArrays(
            guarded.array(pack(cut, w)),
            guarded.array(pack_bias(cut, bias)),
            *[y.reshape(-1)] * 2,
        ),
        InputScaling(*[np.zeros(1, np.float32)] * 2),
        TileContext(
            np.full(cut.thread_bytes, 255, np.uint8),
            cut.offsets,
            tile_kernels(level, Arithmetic.BF16, True, True, cut.step, code),
            cut.table,
            own_share_left(0, 1),
        ),
        Epilogue(0, -INF, INF, 0, int(code), 0.0, 0.0),
        0,
        1,
    )
    sums = convolve(images, loaded(x), w) + bias
    wanted = np.tanh(sums) if code is ActivationCode.TANH else ACTIVATIONS[code](sums)
    assert np.abs(loaded(y) - wanted).max() <= 1.5e-2 * np.abs(wanted).max()


def stays_in_halves(net, *outputs):
    """Whether all steps of a model but those that read its input read images in bfloat16."""
    device = compiled(net.model(*outputs), **BF16)
    specs = [(port.shape, port.dtype) for port in device.inputs]
    steps = device.device_model.specializer.program(specs, None).steps
    names = "swap_axes", "transpose_planes", "join_slices"
    kinds = [step.args[0].dtype for step in steps if step.fn.__name__ not in names]
    return set(kinds[1:]) == {np.dtype(np.uint16)}


def split_blocks():
    """What detectors are made of: slices, sums, a Concat and an enlarged image, all with SiLU."""
    net = Net(1, 8, 12, 10)

    def conv(x, channels, outputs, kernel=3, **attrs):
        y = net.conv(x, channels, outputs, kernel, **attrs)
        return net.add("Mul", y, net.add("Sigmoid", y))

    image = conv("x", 8, 32)
    bounds = [net.const(values=np.array([n])) for n in (0, 16, 32, 1)]
    first, second = (net.add("Slice", image, *bounds[n : n + 2], bounds[3]) for n in (0, 1))
    total = net.add("Add", second, conv(conv(second, 16, 16), 16, 16))
    more = net.add("Add", total, conv(total, 16, 16))
    joined = conv(net.add("Concat", first, second, total, more, axis=1), 64, 24, 1)
    small = conv(joined, 24, 20, strides=[2, 2])
    scales = net.const(values=np.array([1, 1, 2, 2], np.float32))
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    large = net.add("Resize", small, "", scales, **asymmetric)
    pooled = net.add("MaxPool", joined, kernel_shape=[3, 3], pads=[1] * 4)
    return net, net.conv(net.add("Concat", large, joined, pooled, axis=1), 68, 12, 1)


def test_blocks_of_detectors(level, mode):
    net, y = split_blocks()
    check(net, y, **mode)
    found = steps_of(net, y, **mode["config"])
    assert {"combine_images", "take_pixels"} <= set(found)
    assert not {"copy_nd", "put_channels"} & set(found)
    if EVERY[level].keeps_bfloat16 and mode["config"] == BF16:
        assert stays_in_halves(net, y)


@pytest.mark.parametrize("kernel", [2, 4])
def test_blocks_of_a_u_net(level, mode, kernel):
    """Transposed convolutions, by blocks and by phases, beside what they are joined with."""
    net = Net(1, 8, 16, 12)
    wide = net.add("Relu", net.conv("x", 8, 16))
    small = net.add("MaxPool", wide, kernel_shape=[2, 2], strides=[2, 2])
    small = net.add("Relu", net.conv(small, 16, 32))
    w = net.const(values=net.rng.standard_normal((32, 16, kernel, kernel)).astype(np.float32) / 11)
    pads = [(kernel - 2) // 2] * 4
    large = net.add("ConvTranspose", small, w, net.const(16), strides=[2, 2], pads=pads)
    y = net.conv(net.add("Concat", wide, large, axis=1), 32, 12)
    check(net, y, **mode)
    if EVERY[level].keeps_bfloat16 and mode["config"] == BF16:
        assert stays_in_halves(net, y)


@pytest.mark.parametrize("batch", [1, 2])
def test_gates_over_images(level, mode, batch):
    net = Net(batch, 8, 9, 7)
    image = net.add("Relu", net.conv("x", 8, 20))
    gate = net.add("Relu", net.conv(net.add("GlobalAveragePool", image), 20, 6, 1))
    gate = net.add("HardSigmoid", net.conv(gate, 6, 20, 1))
    other = net.add("Relu", net.conv("x", 8, 20, 1))
    gated = net.add("Add", net.add("Mul", gate, image), other)
    y = net.conv(gated, 20, 12)
    check(net, y, **mode)
    assert {"combine_images", "gate_images"} <= set(steps_of(net, y, **mode["config"]))


@pytest.mark.parametrize("groups", [1, 40])
def test_products_of_halves_of_channels(level, mode, groups):
    """As restoration networks have them in place of activations: nothing is copied."""
    net = Net(2, 8, 9, 7)
    image = net.conv("x", 8, 40)
    image = net.conv(image, 40, 40, group=groups) if groups > 1 else image
    bounds = [net.const(values=np.array([n])) for n in (0, 20, 40, 1)]
    parts = [net.add("Slice", image, *bounds[n : n + 2], bounds[3]) for n in (0, 1)]
    gated = net.add("Mul", *parts)
    y = net.conv(gated, 20, 12, 1)
    check(net, y, **mode)
    found = steps_of(net, y, **mode["config"])
    assert "combine_images" in found
    assert not {"copy_nd", "put_channels"} & set(found)
    if EVERY[level].keeps_bfloat16 and mode["config"] == BF16:
        assert stays_in_halves(net, y)


def test_products_that_are_no_gates(level, mode):
    """Of images of one pixel, of two whole ones, and of one whose channels repeat."""
    net = Net(2, 8, 9, 7)
    a, b = net.conv("x", 8, 20), net.conv("x", 8, 20)
    one = net.add("GlobalAveragePool", a)
    row = net.conv("x", 8, 1)
    results = [net.add("Mul", *pair) for pair in ((one, one), (a, b), (row, a), (a, one))]
    check(net, *(net.conv(x, 20, 6, 1) for x in results), **mode)
    results = [net.add("Add", *pair) for pair in ((one, a), (a, a), (a, row))]
    check(net, *(net.conv(x, 20, 6, 1) for x in results), **mode)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("group", [1, 24])
@pytest.mark.parametrize(
    "order", [("Mul", "Add"), ("Add",), ("Mul",), ("Add", "Mul"), ("Mul",) * 2]
)
def test_scaled_gates(level, mode, group, order):
    """HardSwish with a factor and a summand, as PP-LCNetV3 has it."""
    net = Net(1, 24, 9, 7)
    x = net.add("HardSwish", net.conv("x", 24, 24, group=group))
    for n, op_type in enumerate(order):
        number = net.const(values=np.full([1] * n, 0.75 - n, np.float32))
        x = net.add(op_type, *((x, number) if n else (number, x)))
    y = net.conv(net.add("MaxPool", x, kernel_shape=[3, 3]), 24, 12)
    check(net, y, x, **mode)
    found = steps_of(net, y, **mode["config"])
    rest = [name for name in found if name.startswith(("map", "broadcast", "combine_nest"))]
    assert bool(rest) == (order == ("Add", "Mul"))


def test_gates_that_are_scaled_for_some_readers_only(level, mode):
    net = Net(1, 24, 9, 7)
    x = net.add("HardSwish", net.conv("x", 24, 24))
    number, none = net.const(values=np.float32(1.5)), net.const(values=np.float32(0))
    scaled = net.add("Mul", x, number)
    row = net.add("Add", net.add("HardSwish", net.conv("x", 24, 24)), net.const(1, 24, 1, 1))
    nothing = net.add("Mul", net.add("HardSwish", net.conv("x", 24, 24)), none)
    results = [net.conv(value, 24, 12) for value in (x, scaled, row)]
    check(net, *results, nothing, **mode)


@pytest.mark.parametrize(
    ("mode_of_resize", "factors"),
    [
        *(("nearest", factors) for factors in [(1, 1, 2, 2), (1, 2, 2, 1), (2, 1, 1, 1)]),
        ("nearest", (1, 1, 1, 1)),
        ("linear", (1, 1, 2, 2)),
    ],
)
def test_images_resized_between_others(level, mode, mode_of_resize, factors):
    net = Net(1, 8, 6, 7)
    scales = net.const(values=np.array(factors, np.float32))
    large = net.add("Resize", net.conv("x", 8, 12), "", scales, mode=mode_of_resize)
    joined = net.add("Concat", large, net.add("Neg", large), large, axis=1)
    channels = 12 * factors[1]
    check(net, net.conv(joined, 3 * channels, 8), net.conv(large, channels, 6, 1), **mode)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(("volumes", "slices"), [(1, 4), (2, 30)])
def test_volumes(level, mode, depth, volumes, slices):
    """Slices under a window added up, joined in the channels, or by themselves; and pools."""
    net = Net(volumes, 3, slices, 9, 8)

    def conv(x, channels, outputs):
        shape = outputs, channels, depth, 3, 3
        scale = np.float32(1 / np.sqrt(channels * depth * 9))
        w = net.const(values=net.rng.standard_normal(shape).astype(np.float32) * scale)
        pads = [depth // 2, 1, 1] * 2
        return net.add("Relu", net.add("Conv", x, w, net.const(outputs), pads=pads))

    x = conv("x", 3, 16)
    x = net.add("MaxPool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    x = conv(x, 16, 20)
    x = net.add("AveragePool", x, kernel_shape=[1, 2, 2])
    y = conv(conv(x, 20, 24), 24, 8)
    check(net, y, **mode)
    if EVERY[level].keeps_bfloat16 and mode["config"] == BF16:
        assert stays_in_halves(net, y)
