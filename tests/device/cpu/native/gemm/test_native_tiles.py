"""The tile driver against float64 sums, on memory that ends where the tensors end."""

from __future__ import annotations

import ctypes
import itertools
import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import example, given
from hypothesis import strategies as st
from sampling import examples

from partita.lowering import ActivationCode
from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic, on_tiles
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles
from partita_cpu.gemm.packing.weights import pack, pack_bias
from partita_cpu.gemm.product_records import Epilogue, InputScaling, ProductArrays, TileContext
from partita_cpu.gemm.tile_fields import FLAT
from partita_cpu.gemm.tile_kernels import ACTIVATE, ACTIVATE_FLOATS, tile_kernels
from partita_cpu.jit.dispatch import unit_address
from partita_cpu.jit.isa import detected
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.llvm.activations import KERNELS
from partita_cpu.llvm.levels import AMX
from partita_cpu.machine_model import MachineModel
from partita_cpu.scalar.activations import activate_floats

from ..conftest import (
    CACHES,
    GATES,
    INFINITIES,
    NANS,
    TOLERANCE,
    Guarded,
    choices,
    gated,
    own_share_left,
)

INF = float("inf")


def run(
    guarded,
    cut,
    level,
    x,
    w,
    bias,
    residual,
    low=-INF,
    high=INF,
    code=0,
    threads=2,
    gate=0,
    in_kernel=True,
    claims=None,
    over=False,
):
    """The result; each thread computes its own share, or what it finds in `claims`.

    It is written over the residual if `over` says so, but by matrix units.
    """
    images = cut.images
    activation, merged = ActivationCode(code), images.merged_group_channels
    kernels = tile_kernels(level, cut.arithmetic, activation=activation, group_channels=merged)
    if not in_kernel:
        kernels = kernels.copy()
        kernels[ACTIVATE], kernels[ACTIVATE_FLOATS] = 0, unit_address(activate_floats)
    y = guarded.array(np.full((images.results * images.pixels, images.outputs), 7, np.float32))
    added = y if residual is None else guarded.array(residual)
    if over and not on_tiles(level, cut.arithmetic):
        y = added
    packed = pack(cut, w)
    scales = [np.zeros(1, np.float32)] * 2
    scratch = np.zeros(threads * cut.thread_bytes, np.uint8)
    scratch[:] = 255  # NaN, in every type
    for tid in range(threads):
        multiply_tiles(
            guarded.array(x).reshape(-1),
            ProductArrays(
                guarded.array(packed),
                guarded.array(pack_bias(cut, bias)),
                added.reshape(-1),
                y.reshape(-1),
            ),
            InputScaling(*scales),
            TileContext(
                scratch,
                cut.offsets,
                kernels,
                cut.table,
                own_share_left(tid, threads) if claims is None else claims,
            ),
            Epilogue(int(residual is not None), low, high, gate, int(code), 0.0, 0.0),
            tid,
            threads,
        )
    return y


def convolve(images, x, w):
    """In float64, tap by tap."""
    i = images
    x = x.reshape(i.batch, i.height, i.width, i.channels).astype(np.float64)
    (top, left), (bottom, right) = i.begin, i.end
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    y = np.zeros((i.batch, i.out_height, i.out_width, i.outputs))
    c, o = i.channels // i.groups, i.outputs // i.groups
    for g, a, b in itertools.product(range(i.groups), range(i.kernel[0]), range(i.kernel[1])):
        rows = slice(a * i.dilation[0], None, i.stride[0])
        columns = slice(b * i.dilation[1], None, i.stride[1])
        piece = x[:, rows, columns][:, : i.out_height, : i.out_width, g * c : (g + 1) * c]
        y[..., g * o : (g + 1) * o] += piece @ w[g * o : (g + 1) * o, :, a, b].T
    return y.reshape(i.pixels, i.outputs)


def usual_size(images, x, w):
    """What sums of such terms come to, if none happens to be small."""
    return convolve(images, x.astype(np.float64) ** 2, w.astype(np.float64) ** 2).max() ** 0.5


def check(y, expected, arithmetic, usual=0.0):
    scale = max(np.abs(expected).max(initial=0), usual, 1e-6)
    assert np.abs(y - expected).max(initial=0) <= TOLERANCE[arithmetic] * scale


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 33, 70])
def test_products_of_all_row_counts(level, arithmetic, columns, guarded):
    rng = np.random.default_rng(0)
    for rows in [*range(1, 35), 47]:
        depth = 1 + rows * 5 % 41
        x = rng.standard_normal((rows, depth)).astype(np.float32)
        w = rng.standard_normal((depth, columns)).astype(np.float32)
        # Of a machine whose cache leaves tiles all rows that there are kernels for.
        machine = MachineModel(level, caches=CacheSizes(48 << 10, 1 << 20, 0))
        cut = plan(Images.matrix(rows, depth, columns), machine, arithmetic, 2)
        y = run(guarded, cut, level, x, w, None, None)
        check(y, x.astype(np.float64) @ w, arithmetic)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize(("planned", "there"), [(5, 5), (7, 7), (16, 16), (16, 3), (16, 1)])
def test_many_threads_share_rows_and_columns(level, arithmetic, planned, there, guarded):
    """Also if fewer threads come than the product was cut for."""
    rng = np.random.default_rng(planned)
    x = rng.standard_normal((49, 64)).astype(np.float32)
    w = rng.standard_normal((64, 300)).astype(np.float32)
    cut = plan(Images.matrix(49, 64, 300), MachineModel(level), arithmetic, planned)
    y = run(guarded, cut, level, x, w, None, None, threads=there)
    check(y, x.astype(np.float64) @ w, arithmetic)
    images = Images(2, 5, 7, 16, 96, 2, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 5, 7)
    x = rng.standard_normal((70, 16)).astype(np.float32)
    w = rng.standard_normal((96, 8, 3, 3)).astype(np.float32)
    cut = plan(images, MachineModel(level), arithmetic, planned)
    y = run(guarded, cut, level, x, w, None, None, threads=there)
    check(y, convolve(images, x, w), arithmetic)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("depth", [530, 1100])
@pytest.mark.parametrize("caches", CACHES.values(), ids=CACHES)
def test_long_sums_are_cut(level, arithmetic, depth, caches, guarded):
    rng = np.random.default_rng(0)
    machine = MachineModel(level, 2, caches)
    for rows in (1, 16, 31, 300):
        x = rng.standard_normal((rows, depth)).astype(np.float32)
        w = rng.standard_normal((depth, 35)).astype(np.float32)
        cut = plan(Images.matrix(rows, depth, 35), machine, arithmetic, 2)
        y = run(guarded, cut, level, x, w, None, None)
        check(y, x.astype(np.float64) @ w, arithmetic)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("channels", [64, 320])
def test_long_sums_over_taps_are_cut(level, arithmetic, channels, guarded):
    rng = np.random.default_rng(0)
    images = Images(1, 9, 11, channels, 40, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 9, 11)
    x = rng.standard_normal((99, channels)).astype(np.float32)
    w = rng.standard_normal((40, channels, 3, 3)).astype(np.float32)
    y = run(guarded, plan(images, MachineModel(level), arithmetic, 2), level, x, w, None, None)
    check(y, convolve(images, x, w), arithmetic)


@pytest.mark.parametrize("level", [level for level in float_levels() if level.dots_bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 8, 40])
@pytest.mark.parametrize("depth", [1, 2, 31, 301])
def test_factors_in_bfloat16_are_rounded_and_sums_are_not(level, rows, depth, guarded):
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((rows, depth), (depth, 50)))
    images = Images.matrix(rows, depth, 50)
    cut = plan(images, MachineModel(level), Arithmetic.BF16, 2)
    y = run(guarded, cut, level, x, w, None, None)
    x, w = (array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, w))
    np.testing.assert_allclose(y, x @ w, atol=2e-6 * np.abs(x @ w).max() * depth**0.5)


@pytest.mark.parametrize("depth", [33, 600, 3000])
def test_three_parts_are_as_exact_as_float32(depth, guarded):
    """Of numbers of very different sizes, relative to the sum of what is added up."""
    if not detected().tiles:
        return
    rng = np.random.default_rng(depth)
    x = rng.standard_normal((64, depth)) * 10 ** rng.uniform(-8, 8, (64, depth))
    w = rng.standard_normal((depth, 40)) * 10 ** rng.uniform(-4, 4, (depth, 40))
    x, w = x.astype(np.float32), w.astype(np.float32)
    sizes = np.abs(x).astype(np.float64) @ np.abs(w)
    errors = []
    for arithmetic in (Arithmetic.BF16X6, Arithmetic.F32):
        cut = plan(Images.matrix(64, depth, 40), MachineModel(AMX), arithmetic, 2)
        y = run(guarded, cut, AMX, x, w, None, None)
        errors.append(np.sqrt((((y - x.astype(np.float64) @ w) / sizes) ** 2).mean()))
    assert errors[0] <= 1.5 * errors[1]


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    small = st.integers(0, 2)
    sizes = []
    for _ in range(2):
        kernel, stride, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3)), 1
        if draw(st.booleans()):
            dilation = draw(st.integers(1, 3))
        begin, end = draw(small), draw(small)
        reach = (kernel - 1) * dilation + 1
        size = draw(st.integers(max(1, reach - begin - end), 24))
        out = (size + begin + end - reach) // stride + 1
        sizes.append((size, kernel, stride, dilation, begin, end, out))
    columns = list(zip(*sizes, strict=True))
    channels = groups * draw(st.sampled_from([1, 3, 4, 8, 12, 16, 31, 32, 33, 64]))
    outputs = groups * draw(st.sampled_from([1, 5, 16, 31, 32, 40]))
    return Images(
        draw(st.integers(1, 2)),
        *columns[0],
        channels,
        outputs,
        groups,
        *columns[1:6],
        *columns[6],
    )


GROUPS_OF_HALF_A_STEP = Images(1, 3, 24, 32, 62, 2, (3, 1), (1, 1), (1, 1), (2, 0), (0, 0), 3, 24)
"""A cell of one group's channels, filled up, is as long as a pixel."""


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(60)
@example(
    images=GROUPS_OF_HALF_A_STEP, seed=0, threads=1, caches=CACHES["sapphire rapids"], over=False
)
@given(
    images=convolutions(),
    seed=st.integers(0, 99),
    threads=st.integers(1, 3),
    caches=st.sampled_from([*CACHES.values()]),
    over=st.booleans(),
)
def test_convolutions(level, arithmetic, images, seed, threads, caches, over):
    agrees(level, arithmetic, images, seed, threads, caches, over)


@st.composite
def single_pixels(draw):
    sizes = []
    for _ in range(2):
        size, stride = draw(st.integers(1, 24)), draw(st.integers(1, 3))
        sizes.append((size, stride, 0, (size - 1) // stride + 1))
    groups, (height, width) = draw(st.integers(1, 2)), sizes
    channels = groups * draw(st.sampled_from([4, 31, 32, 33, 64, 96]))
    outputs = groups * draw(st.sampled_from([5, 32, 40]))
    columns = list(zip(height, width, strict=True))
    window = (1, 1), columns[1], (1, 1), (0, 0), columns[2]
    batch = draw(st.integers(1, 3))
    return Images(batch, *columns[0], channels, outputs, groups, *window, *columns[3])


@pytest.mark.parametrize(
    ("level", "arithmetic"), [pair for pair in choices() if pair[1].in_bfloat16]
)
@examples(60)
@given(
    images=single_pixels(),
    seed=st.integers(0, 99),
    threads=st.integers(1, 3),
    caches=st.sampled_from([*CACHES.values()]),
)
def test_convolutions_of_single_pixels(level, arithmetic, images, seed, threads, caches):
    agrees(level, arithmetic, images, seed, threads, caches, over=False)


def agrees(level, arithmetic, images, seed, threads, caches, over):
    """Compares a random convolution with its sums in float64."""
    rng = np.random.default_rng(seed)
    guarded = Guarded()
    pixels = images.batch * images.height * images.width
    x = rng.standard_normal((pixels, images.channels)).astype(np.float32)
    channels = images.channels // images.groups
    w = rng.standard_normal((images.outputs, channels, *images.kernel)).astype(np.float32)
    bias = rng.standard_normal(images.outputs).astype(np.float32)
    residual = rng.standard_normal((images.pixels, images.outputs)).astype(np.float32)
    cut = plan(images, MachineModel(level, 2, caches), arithmetic, threads)
    y = run(guarded, cut, level, x, w, bias, residual, low=-1.5, threads=threads, over=over)
    whole = convolve(images, x, w)
    wanted = np.maximum(whole + bias + residual, -1.5)
    rounding = 5e-7 * max(np.abs(bias).max(), np.abs(residual).max())
    guarded.release()
    sizes = convolve(images, np.abs(x), np.abs(w)).max()
    assert np.abs(y - wanted).max() <= TOLERANCE[arithmetic] * sizes + rounding


@pytest.mark.parametrize(("level", "arithmetic"), choices())
def test_pictures_of_dilated_windows_are_read_as_planes_if_pixels_lie_together(level, arithmetic):
    """Where arithmetic in pairs gives each pixel room for a fourth channel, they are copied."""
    around = (3, 3), (1, 1), (1, 2), (1, 2), (1, 2), 30, 40
    images = Images(1, 30, 40, 3, 17, 1, *around)
    cut = plan(images, MachineModel(level), arithmetic, 2, Storage(planar=30 * 40))
    assert (cut.source is Source.HALO) == (not arithmetic.in_bfloat16)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(40)
@given(data=st.data(), seed=st.integers(0, 99), special=st.sampled_from([1.0, np.inf, np.nan]))
def test_pictures_whose_channels_lie_apart(level, arithmetic, data, seed, special):
    kernel, stride = data.draw(st.integers(2, 7)), data.draw(st.integers(1, 4))
    pad = data.draw(st.integers(0, kernel - 1))
    sizes = [data.draw(st.integers(max(14 * stride + kernel, 8), 90)) for _ in range(2)]
    around = ((kernel,) * 2, (stride,) * 2, (1, 1), (pad,) * 2, (pad,) * 2)
    outs = [(size + 2 * pad - kernel) // stride + 1 for size in sizes]
    images = Images(data.draw(st.integers(1, 2)), *sizes, 3, 5, 1, *around, *outs)
    cut = plan(
        images, MachineModel(level), arithmetic, 2, Storage(planar=images.height * images.width)
    )
    assert cut.source is Source.HALO
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((images.batch, 3, *sizes)).astype(np.float32)
    w = rng.standard_normal((5, 3, kernel, kernel)).astype(np.float32)
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).reshape(-1, 3)
    finite = convolve(images, pixels, w)
    place = tuple(int(rng.integers(size)) for size in x.shape)
    kept = x[place]
    x[place] = pixels.reshape(-1, *sizes, 3)[place[0], place[2], place[3], place[1]] = (
        kept if special == 1 else special
    )
    with np.errstate(invalid="ignore"):
        reached = ~np.isfinite(convolve(images, pixels, w))
    guarded = Guarded()
    y = run(guarded, cut, level, x, w, None, None)
    guarded.release()
    np.testing.assert_array_equal(~np.isfinite(y), reached)
    check(y[~reached], finite[~reached], arithmetic)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
def test_the_sources_are_all_used(level, arithmetic):
    whole = Images(1, 14, 14, 64, 64, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 14, 14)
    strided = Images(1, 10, 10, 16, 64, 1, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), 5, 5)
    assert plan(whole, MachineModel(level), arithmetic, 2).source is Source.HALO
    assert plan(strided, MachineModel(level), arithmetic, 2).source is Source.COLUMNS


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("depth", [1000, 1024, 3072])
def test_rows_that_collide_in_a_cache(level, arithmetic, depth, guarded):
    cut = plan(Images.matrix(29, depth, 40), MachineModel(level), arithmetic, 2)
    if arithmetic is Arithmetic.F32:  # rows of bfloat16 are copied in any case
        collide = depth % 1024 == 0 and level.rows > 8
        assert cut.source is (Source.COLUMNS if collide else Source.DIRECT)
    rng = np.random.default_rng(depth)
    x = rng.standard_normal((29, depth)).astype(np.float32)
    w = rng.standard_normal((depth, 40)).astype(np.float32)
    y = run(guarded, cut, level, x, w, None, None)
    guarded.release()
    sizes = (np.abs(x) @ np.abs(w)).max()
    check(y, x.astype(np.float64) @ w, arithmetic, usual=sizes)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("special", NANS + INFINITIES)
def test_special_numbers_reach_their_rows_and_no_others(level, arithmetic, special, guarded):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((40, 50)).astype(np.float32)
    w = rng.standard_normal((50, 33)).astype(np.float32)
    x.view(np.uint32)[5, 7] = special
    cut = plan(Images.matrix(40, 50, 33), MachineModel(level), arithmetic, 2)
    y = run(guarded, cut, level, x, w, None, None)
    with np.errstate(invalid="ignore"):
        expected = (x[5:6] @ w)[0]
    np.testing.assert_array_equal(y[5], expected)
    others = np.arange(40) != 5
    check(y[others], x[others].astype(np.float64) @ w, arithmetic)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (4, 2), (8, 1), (32, 1), (33, 2)])
def test_special_numbers_reach_their_windows_and_no_others(level, arithmetic, channels, stride):
    rng = np.random.default_rng(3)
    size = (30 + 6 - 7) // stride + 1
    around = (1, (7, 7), (stride, stride), (1, 1), (3, 3), (3, 3), size, size)
    images = Images(1, 30, 30, channels, 5, *around)
    x = rng.standard_normal((900, channels)).astype(np.float32)
    w = rng.standard_normal((5, channels, 7, 7)).astype(np.float32)
    finite = convolve(images, x, w)
    x[14 * 30 + 15, 1] = np.inf
    with np.errstate(invalid="ignore"):
        reached = ~np.isfinite(convolve(images, x, w))
    assert reached.any()
    guarded = Guarded()
    y = run(guarded, plan(images, MachineModel(level), arithmetic, 2), level, x, w, None, None)
    np.testing.assert_array_equal(~np.isfinite(y), reached)
    check(y[~reached], finite[~reached], arithmetic)
    guarded.release()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", [level for level in float_levels() if level.native])
@pytest.mark.parametrize("channels", [3, 8, 200])  # sums of 200 channels are cut
@pytest.mark.parametrize(
    ("stride", "dilation", "pad"), [(1, 1, 1), (2, 1, 2), (1, 2, 4), (1, 3, 1)]
)
@pytest.mark.parametrize("tap", [0, 1, 2])
def test_taps_in_the_padding_are_left_out(level, channels, stride, dilation, pad, tap, guarded):
    """Lines whose tap lies above or below the image: what its weights are does not matter."""
    out = (11 + 2 * pad - 2 * dilation - 1) // stride + 1
    kernel, pads = (3, 3), (pad, 1)
    steps, gaps = (stride, 1), (dilation, 1)
    images = Images(2, 11, 168, channels, 5, 1, kernel, steps, gaps, pads, pads, out, 168)
    cut = plan(images, MachineModel(level), Arithmetic.F32, 2)
    assert cut.source is Source.HALO
    assert not cut.table[FLAT]
    rng = np.random.default_rng(tap)
    x = rng.standard_normal((2 * 11 * 168, channels)).astype(np.float32)
    w = rng.standard_normal((5, channels, *kernel)).astype(np.float32)
    place = np.arange(out) * stride - pad + tap * dilation
    outside = (place < 0) | (place >= 11)
    w[:, :, tap] = 0
    without = convolve(images, x, w).reshape(2, out, -1)
    w[:, :, tap] = np.inf
    y = run(guarded, cut, level, x, w, None, None).reshape(2, out, -1)
    check(
        y[:, outside], without[:, outside], Arithmetic.F32, usual_size(images, x, np.ones_like(w))
    )
    assert not np.isfinite(y[:, ~outside]).any()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", [level for level in float_levels() if level.native])
@pytest.mark.parametrize(
    ("results", "step", "stride"), [(1, 1, 1), (3, 1, 1), (4, 2, 2), (2, 3, 1)]
)
@pytest.mark.parametrize("outside", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("caches", CACHES.values(), ids=CACHES)
def test_slices_of_the_result_together(level, results, step, stride, outside, caches, guarded):
    """Each is the sum of the convolutions of those slices under its window that are there."""
    if sum(outside) > results:
        outside = (0, 0)  # one window of two slices would have none
    slices, out = 2 + (results - 1) * step, 21 // stride
    around = 1, (3, 3), (stride, stride), (1, 1), (1, 1), (1, 1), out, 40 // stride
    image = Images(1, out * stride, 40, 5, 19, *around)
    pixels = image.height * image.width
    both = replace(
        image,
        slices=2,
        covered=(0, 2),
        slice_step=pixels * 5,
        results=results,
        result_stride=step,
        outside=outside,
    )
    rng = np.random.default_rng(results)
    front, there = outside[0], slices - sum(outside)
    x = rng.standard_normal((there * pixels, 5)).astype(np.float32)
    w = rng.standard_normal((19, 5, 6, 3)).astype(np.float32)
    bias = rng.standard_normal(19).astype(np.float32)
    residual = rng.standard_normal((results * image.pixels, 19)).astype(np.float32)
    storage = Storage(x_first=-front * pixels * 5)
    cut = plan(both, MachineModel(level, 2, caches), Arithmetic.F32, 2, storage)
    assert cut.source is Source.HALO
    y = run(guarded, cut, level, x, w, bias, residual, over=results % 2 == 1)
    parts = np.zeros((slices, pixels, 5), np.float32)
    parts[front : front + there] = x.reshape(there, pixels, 5)
    expected = np.concatenate(
        [
            convolve(image, parts[n * step], w[:, :, :3])
            + convolve(image, parts[n * step + 1], w[:, :, 3:])
            for n in range(results)
        ]
    )
    check(y, expected + bias + residual, Arithmetic.F32)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
def test_bounds_keep_nan(level, arithmetic, guarded):
    x = np.array([[np.nan, 1], [-1, 1], [5, 5]], np.float32)
    w = np.ones((2, 3), np.float32)
    cut = plan(Images.matrix(3, 2, 3), MachineModel(level), arithmetic, 1)
    y = run(guarded, cut, level, x, w, None, None, low=0.5, high=6.0, threads=1)
    np.testing.assert_array_equal(y, [[np.nan] * 3, [0.5] * 3, [6] * 3])


_erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS = {
    ActivationCode.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
    ActivationCode.SILU: lambda x: x / (1 + np.exp(-x)),
    ActivationCode.GELU: lambda x: x / 2 * (1 + _erf(x * math.sqrt(0.5))),
    ActivationCode.GELU_TANH: lambda x: (
        x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
}
"""Activations that have kernels, in float64."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("code", ACTIVATIONS)
@pytest.mark.parametrize("in_kernel", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_activation_after_the_residual(level, arithmetic, code, in_kernel, with_residual, guarded):
    """Of products, and of convolutions whose tiles run on over the ends of image rows."""
    rng = np.random.default_rng(3)
    row = Images(1, 5, 9, 16, 21, 1, (3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 5, 9)
    for images in (Images.matrix(31, 24, 40), row):
        shape = images.outputs, images.channels, *images.kernel
        x = rng.standard_normal((images.batch * images.height * images.width, images.channels))
        x, w = x.astype(np.float32), rng.standard_normal(shape).astype(np.float32)
        bias = rng.standard_normal(images.outputs).astype(np.float32)
        residual = rng.standard_normal((images.pixels, images.outputs)).astype(np.float32)
        cut = plan(images, MachineModel(level), arithmetic, 2)
        added = residual if with_residual else None
        given = {"code": code, "in_kernel": in_kernel, "over": images is row}
        y = run(guarded, cut, level, x, w, bias, added, **given)
        sums = convolve(images, x, w) + bias + (residual if with_residual else 0)
        size = usual_size(images, x, w)
        wanted = ACTIVATIONS[code](sums)
        assert np.abs(y - wanted).max() <= (TOLERANCE[arithmetic] + 5e-7) * max(size, 1)


@pytest.mark.parametrize("level", [level for level in float_levels() if level.native])
@pytest.mark.parametrize("code", ACTIVATIONS)
def test_activations_of_all_numbers(level, code, guarded):
    """A vector and a part of one; what lies behind the row is not touched."""
    kernels = tile_kernels(level, Arithmetic.F32, activation=code)
    columns = level.lanes + 1
    numbers = np.concatenate([np.linspace(-120, 120, 4001), [0, -0.0, INF, -INF, np.nan, 1e-38]])
    x = np.resize(numbers, (numbers.size // columns + 1, columns)).astype(np.float32)
    y = guarded.array(x)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(int(kernels[ACTIVATE]))
    call(len(y), y.ctypes.data, 4 * columns, columns)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = ACTIVATIONS[code](wide)
    # What is left of Gelu far below zero is cut off, so that it has an absolute error.
    small = 1e-7 if "GELU" in code.name else 1e-35
    np.testing.assert_allclose(y, wanted, rtol=4e-7, atol=small)


@pytest.mark.parametrize("level", [level for level in float_levels() if level.native])
@pytest.mark.parametrize("code", ACTIVATIONS)
def test_activations_of_some_columns(level, code, guarded):
    """Of one vector or of two, whole or in part, in any number of rows that lie apart."""
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(
        int(tile_kernels(level, Arithmetic.F32, activation=code)[ACTIVATE])
    )
    rng = np.random.default_rng(4)
    for columns, rows in itertools.product(range(1, 2 * level.lanes + 1), (0, 1, 5, 6, 16)):
        x = rng.uniform(-9, 9, (rows, columns + 3)).astype(np.float32)
        y = guarded.array(x)
        call(rows, y.ctypes.data, 4 * (columns + 3), columns)
        wanted = ACTIVATIONS[code](x[:, :columns].astype(np.float64))
        np.testing.assert_allclose(y[:, :columns], wanted, rtol=4e-7, atol=1e-7)
        np.testing.assert_array_equal(y[:, columns:], x[:, columns:])


@pytest.mark.parametrize("level", [level for level in float_levels() if level.keeps_bfloat16])
@pytest.mark.parametrize("code", ACTIVATIONS)
def test_activations_of_some_columns_rounded(level, code, guarded):
    """The same of sums of tiles that become bfloat16 elsewhere, behind a bias."""
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(
        addresses(level, "_activated_halves")[f"{KERNELS[code]}_narrow"]
    )
    rng = np.random.default_rng(5)
    for columns, rows in itertools.product(range(1, 33), (0, 1, 5, 6, 16)):
        x = guarded.array(rng.uniform(-9, 9, (rows, 32)).astype(np.float32))
        bias = guarded.array(rng.standard_normal(32).astype(np.float32))
        y = guarded.array(np.full((rows, columns + 3), 7, ml_dtypes.bfloat16).view(np.uint16))
        places = [array.ctypes.data for array in (x, bias, y)]
        call(rows, *places, 2 * (columns + 3), columns)
        wanted = ACTIVATIONS[code]((x + bias)[:, :columns].astype(np.float64))
        found = y.view(ml_dtypes.bfloat16).astype(np.float64)
        np.testing.assert_allclose(found[:, :columns], wanted, rtol=2**-7, atol=1e-3)
        np.testing.assert_array_equal(found[:, columns:], 7)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("with_residual", [True, False])
@pytest.mark.parametrize("gate", GATES[1:])
def test_a_gate_after_the_residual(level, arithmetic, with_residual, gate, guarded):
    rng = np.random.default_rng(1)
    for rows in range(1, 40, 3):
        x = rng.standard_normal((rows, 8)).astype(np.float32)
        w = rng.standard_normal((8, 37)).astype(np.float32)
        bias = rng.standard_normal(37).astype(np.float32)
        residual = rng.standard_normal((rows, 37)).astype(np.float32) if with_residual else None
        cut = plan(Images.matrix(rows, 8, 37), MachineModel(level), arithmetic, 2)
        y = run(guarded, cut, level, x, w, bias, residual, gate=gate, over=rows % 2 == 0)
        whole = x.astype(np.float64) @ w + bias + (0 if residual is None else residual)
        check(y, gated(whole, gate), arithmetic)


@pytest.mark.parametrize(("level", "arithmetic"), choices())
def test_the_same_from_run_to_run(level, arithmetic, guarded):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((100, 100)).astype(np.float32)
    w = rng.standard_normal((100, 70)).astype(np.float32)
    cut = plan(Images.matrix(100, 100, 70), MachineModel(level), arithmetic, 2)
    first, second = (run(guarded, cut, level, x, w, None, None) for _ in range(2))
    np.testing.assert_array_equal(first, second)
