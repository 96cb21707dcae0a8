"""Products, windows and conversions on parts of larger tensors, in bfloat16, scaled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita.lowering.geometry.windows import Window
from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.macrokernel.product_loop import multiply_tiles
from partita_cpu.gemm.packing.weights import pack, pack_bias
from partita_cpu.gemm.product_records import Epilogue, InputScaling, ProductArrays, TileContext
from partita_cpu.gemm.tile_kernels import single_kernel, tile_kernels, window_kernels
from partita_cpu.jit import llvm_kernel
from partita_cpu.llvm.levels import AVX512
from partita_cpu.machine_model import MachineModel
from partita_cpu.nhwc.channel_slice import ChannelSlice
from partita_cpu.nhwc.depthwise_direct import pack_row, pack_taps
from partita_cpu.nhwc.depthwise_row_buffer import (
    RowBuffer,
    convolve_rows,
    fits,
    padded_width,
    ring_blocks,
    row_kernels,
    thread_bytes,
)
from partita_cpu.nhwc.pixel_moves import put_channels, swap_axes
from partita_cpu.nhwc.pixel_steps import scale_and_shift
from partita_cpu.nhwc.window import CONVOLVE, MAX, MEAN, SlidingWindow, over_all_pixels, slide
from partita_cpu.scalar.activations import ActivationFields

from ..conftest import GATES, TOLERANCE, Guarded, choices, gated, own_share_left
from .test_native_tiles import convolutions, convolve

INF = float("inf")
NO_FIELDS = ActivationFields(0, 0.0, 0.0)
BFLOAT16 = ml_dtypes.bfloat16
LEVELS = float_levels()[1:]
KINDS = [(level, half) for level in LEVELS for half in (False, True)[: 1 + level.keeps_bfloat16]]
NARROW = [level for level in LEVELS if level.keeps_bfloat16]
SENTINEL = 7


@pytest.mark.parametrize(
    ("storage", "alone"),
    [
        (Storage(), True),
        (Storage(x_pitch=160, y_pitch=256), True),
        (Storage(x_pitch=320), False),
        (Storage(y_pitch=512), False),
        (Storage(x_first=160), False),
        (Storage(y_pitch=256, y_first=9 * 256), False),
    ],
)
def test_what_begins_behind_the_first_element_does_not_fill_its_memory(storage, alone):
    """Rows of the second direction of recurrent networks are as long, and begin further on."""
    assert storage.holds_only(Images.matrix(9, 160, 256)) == alone


def stored(array, half, kind=BFLOAT16):
    """The array as kernels take it: float32, or the bits of 16-bit numbers."""
    return array.astype(kind).view(np.uint16) if half else array.astype(np.float32)


def loaded(array, kind=BFLOAT16):
    """What an array in memory stands for."""
    return array.view(kind).astype(np.float64) if array.dtype == np.uint16 else array


@st.composite
def places(draw, half_in, half_out):
    extra = st.sampled_from([0, 0, 1, 16, 37])
    return [draw(extra) for _ in range(4)], draw(st.booleans()), half_in, half_out


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@pytest.mark.parametrize("halves", [(False, False), (True, True), (True, False), (False, True)])
@examples(40)
@given(data=st.data(), images=convolutions(), seed=st.integers(0, 99), threads=st.integers(1, 3))
def test_convolutions_of_parts(level, arithmetic, halves, data, images, seed, threads):
    float16 = arithmetic is Arithmetic.F16 and level.masks_halves
    bfloat16 = arithmetic is Arithmetic.BF16 and level.keeps_bfloat16
    if not (bfloat16 or float16):
        halves = (False, False)
    (before_x, after_x, before_y, after_y), scaled, half_in, half_out = data.draw(places(*halves))
    scaled = scaled and not (float16 and half_in)
    check_part(
        level,
        arithmetic,
        images,
        seed,
        threads,
        Storage(
            half_in,
            half_out,
            before_x + images.channels + after_x,
            before_x,
            before_y + images.outputs + after_y,
            before_y,
            scaled,
        ),
    )


def check_part(level, arithmetic, images, seed, threads, storage):
    rng = np.random.default_rng(seed)
    guarded = Guarded()
    pixels = images.batch * images.height * images.width
    kind = np.float16 if arithmetic is Arithmetic.F16 else BFLOAT16
    whole = stored(rng.standard_normal((pixels, storage.x_pitch)), storage.half_in, kind)
    here = slice(storage.x_first, storage.x_first + images.channels)
    there = slice(storage.y_first, storage.y_first + images.outputs)
    shape = (images.outputs, images.channels // images.groups, *images.kernel)
    w = rng.standard_normal(shape).astype(np.float32)
    bias = rng.standard_normal(images.outputs).astype(np.float32)
    factor, shift = rng.standard_normal((2, images.channels)).astype(np.float32)
    x = loaded(whole, kind)[:, here]
    if storage.scaled:
        x = np.minimum(np.maximum(x.astype(np.float64) * factor + shift, -0.5), 2)
    cut = plan(images, MachineModel(level), arithmetic, threads, storage)
    blank = np.full((images.pixels, storage.y_pitch), SENTINEL)
    y = guarded.array(stored(blank, storage.half_out, kind))
    scratch = np.full(threads * cut.thread_bytes, 255, np.uint8)
    kernels = tile_kernels(level, arithmetic, storage.half_in, storage.half_out, cut.step)
    for tid in range(threads):
        multiply_tiles(
            guarded.array(whole).reshape(-1),
            ProductArrays(
                guarded.array(pack(cut, w)),
                guarded.array(pack_bias(cut, bias)),
                *[y.reshape(-1)] * 2,
            ),
            InputScaling(guarded.array(factor), guarded.array(shift), -0.5, 2.0),
            TileContext(scratch, cut.offsets, kernels, cut.table, own_share_left(tid, threads)),
            Epilogue(0, -1.5, INF, 0, 0, 0.0, 0.0),
            tid,
            threads,
        )
    wanted = np.maximum(convolve(images, x, w) + bias, -1.5)
    sizes = convolve(images, np.abs(x), np.abs(w)).max() + np.abs(bias).max()
    tolerance = max(TOLERANCE[arithmetic], 4e-3 if storage.half_out else 0) * sizes
    found = loaded(y, kind)
    assert np.abs(found[:, there] - wanted).max() <= tolerance
    found[:, there] = SENTINEL
    np.testing.assert_array_equal(found, SENTINEL)
    guarded.release()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("pixels", [1, 15, 16, 17, 31, 32, 33, 40, 47, 49, 64, 65, 100])
@pytest.mark.parametrize(("channels", "outputs"), [(64, 5), (16, 64), (144, 200), (30, 33)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_images_in_bfloat16_are_read_in_place(level, pixels, channels, outputs, threads):
    images = Images(1, 1, pixels, channels, outputs, out_width=pixels)
    storage = Storage(True, True, channels, 0, outputs + 3, 1)
    source = plan(images, MachineModel(level), Arithmetic.BF16, threads, storage).source
    whole = pixels >= 16 or not level.tiles
    assert source is (Source.DIRECT if whole else Source.COLUMNS)
    check_part(level, Arithmetic.BF16, images, pixels, threads, storage)


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("width", [7, 14, 40])
def test_residuals_in_bfloat16(guarded, level, gate, width):
    rng = np.random.default_rng(0)
    images = Images(1, 9, width, 32, 40, 1, (3, 3), begin=(1, 1), end=(1, 1))
    images = Images(*[getattr(images, n) for n in images.__dataclass_fields__][:11], 9, width)
    x = stored(rng.standard_normal((9 * width, 32)), True)
    w = (rng.standard_normal((40, 32, 3, 3)) / 17).astype(np.float32)
    residual = stored(rng.standard_normal((9 * width, 40)), True)
    cut = plan(images, MachineModel(level), Arithmetic.BF16, 2, Storage(True, True))
    y = guarded.array(np.zeros_like(residual))
    none = np.zeros(1, np.float32)
    for tid in range(2):
        multiply_tiles(
            guarded.array(x).reshape(-1),
            ProductArrays(
                guarded.array(pack(cut, w)),
                guarded.array(pack_bias(cut, None)),
                guarded.array(residual).reshape(-1),
                y.reshape(-1),
            ),
            InputScaling(none, none),
            TileContext(
                np.full(2 * cut.thread_bytes, 255, np.uint8),
                cut.offsets,
                tile_kernels(level, Arithmetic.BF16, True, True),
                cut.table,
                own_share_left(tid, 2),
            ),
            Epilogue(1, -INF if gate else 0.0, INF, gate, 0, 0.0, 0.0),
            tid,
            2,
        )
    total = convolve(images, loaded(x), w) + loaded(residual)
    wanted = gated(total, gate) if gate else np.maximum(total, 0)
    assert np.abs(loaded(y) - wanted).max() <= 1.5e-2 * np.abs(wanted).max()


@given(
    images=st.integers(1, 2),
    rows=st.integers(1, 100),
    columns=st.integers(1, 70),
    behind=st.sampled_from([0, 1, 5]),
    threads=st.integers(1, 20),
)
def test_axes_change_places(images, rows, columns, behind, threads):
    x = np.random.default_rng(rows).standard_normal((images, rows, columns)).astype(np.float32)
    y = np.full((images, columns, rows + behind), SENTINEL, np.float32)
    for tid in range(threads):
        swap_axes(x.reshape(-1), y.reshape(-1), rows, columns, rows + behind, tid, threads)
    np.testing.assert_array_equal(y[:, :, :rows], x.transpose(0, 2, 1))
    assert not y[:, :, rows:].any()


def windows_of(x, down, across, stride):
    """(rows, columns, taps, channels) of an image (height, width, channels)."""
    n = (x.shape[0] - down) // stride + 1
    m = (x.shape[1] - across) // stride + 1
    return np.stack(
        [
            x[a : a + n * stride : stride, b : b + m * stride : stride][:n, :m]
            for a in range(down)
            for b in range(across)
        ],
        axis=2,
    )


@pytest.mark.parametrize(("level", "half"), KINDS)
@pytest.mark.parametrize("kind", [CONVOLVE, MAX, MEAN])
@pytest.mark.parametrize("gate", GATES)
@examples(15)
@given(
    channels=st.integers(1, 50),
    stride=st.integers(1, 2),
    size=st.tuples(st.integers(3, 20), st.integers(3, 20)),
    beside=st.tuples(*[st.sampled_from([0, 1, 20])] * 4),
    threads=st.integers(1, 20),
)
def test_windows_of_parts(level, half, kind, gate, channels, stride, size, beside, threads):
    rng = np.random.default_rng(channels)
    guarded = Guarded()
    before_x, after_x, before_y, after_y = beside
    height, width = size
    whole = stored(rng.standard_normal((height, width, before_x + channels + after_x)), half)
    x = loaded(whole)[..., before_x : before_x + channels]
    taps = windows_of(np.asarray(x, np.float64), 3, 3, stride)
    oh, ow = taps.shape[:2]
    w = rng.standard_normal((9, channels)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32)
    table = [[1, height, width], [1, 3, 3], [1, stride, stride], [1, 1, 1], [0] * 3, [1, oh, ow]]
    y = guarded.array(stored(np.full((oh, ow, before_y + channels + after_y), SENTINEL), half))
    name = ("convolve", "max", "sum")[kind]
    for tid in range(threads):
        slide(
            guarded.array(whole).reshape(-1),
            SlidingWindow(
                guarded.array(w).reshape(-1),
                guarded.array(bias),
                window_kernels(level, name, half),
                np.array(table, np.int64).reshape(-1),
                np.full(oh, 3, np.int64),
                np.full(ow, 3, np.int64),
                kind,
            ),
            y.reshape(-1),
            ChannelSlice(channels, whole.shape[2], before_x, y.shape[2], before_y),
            Epilogue(0, -2.0, 3.0, gate, 0, 0.0, 0.0),
            tid,
            threads,
        )
    if kind == CONVOLVE:
        wanted = np.clip((taps * w).sum(axis=2) + bias, -2, 3)
        wanted = gated(wanted, gate)
    else:
        wanted = taps.max(axis=2) if kind == MAX else taps.mean(axis=2)
    found = loaded(y)
    inside = found[..., before_y : before_y + channels]
    np.testing.assert_allclose(inside, wanted, rtol=8e-3 if half else 1e-5, atol=2e-5)
    inside[...] = SENTINEL
    np.testing.assert_array_equal(found, SENTINEL)
    guarded.release()


def test_rows_of_as_many_channels_are_laid_out_as_the_cache_holds():
    machine = MachineModel(AVX512, 1, CacheSizes(32 << 10, 1 << 20, 0))

    def over(width, across=31):
        sizes = (1, 28, width), (1, 31, across), (1,) * 3, (1,) * 3
        pads = (0, 15, across // 2)
        return Window(*sizes, pads, pads, (1, 28, width), 2)

    # 31 rows of 58 vectors take 112 KiB, and a quarter of the cache is for them.
    assert [ring_blocks(over(28), channels, machine) for channels in (9, 40, 128)] == [1, 2, 2]
    assert ring_blocks(over(1), 16 * 9, machine) == 3  # four fit, but three times three are even
    assert fits(over(28), machine, False)
    assert not fits(over(200), machine, False)
    assert not fits(over(28, across=1), machine, False)


@pytest.mark.parametrize(("level", "half"), KINDS)
@pytest.mark.parametrize("gate", GATES)
@examples(25)
@given(
    channels=st.integers(1, 70),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    size=st.tuples(st.integers(5, 20), st.integers(5, 20)),
    beside=st.tuples(*[st.sampled_from([0, 1, 20])] * 4),
    batch=st.integers(1, 2),
    threads=st.integers(1, 3),
    blocks=st.integers(1, 5),
)
def test_laid_out_rows(
    level, half, gate, channels, kernel, pads, size, beside, batch, threads, blocks
):
    rng = np.random.default_rng(channels)
    guarded = Guarded()
    before_x, after_x, before_y, after_y = beside
    height, width = size
    shape = (batch, height, width, before_x + channels + after_x)
    whole = stored(rng.standard_normal(shape), half)
    x = np.asarray(loaded(whole)[..., before_x : before_x + channels], np.float64)
    x = np.pad(x, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
    taps = np.stack([windows_of(image, *kernel, 1) for image in x])
    oh, ow = taps.shape[1:3]
    w = rng.standard_normal((channels, 1, *kernel)).astype(np.float32)
    bias = rng.standard_normal(channels).astype(np.float32)
    sides = (0, *pads[:2]), (0, *pads[2:])
    window = Window((1, *size), (1, *kernel), (1,) * 3, (1,) * 3, *sides, (1, oh, ow), 2)
    lanes = level.lanes
    room = thread_bytes(window, blocks, lanes)
    shape = (batch, oh, ow, before_y + channels + after_y)
    y = guarded.array(stored(np.full(shape, SENTINEL), half))
    scratch = guarded.array(np.full(threads * room, 255, np.uint8))
    for tid in range(threads):
        convolve_rows(
            guarded.array(whole).reshape(-1),
            RowBuffer(
                guarded.array(pack_taps(w, lanes)),
                guarded.array(pack_row(bias, lanes, channels)),
                row_kernels(level, half),
                window.table,
                *(lanes, padded_width(window), blocks, room, -2.0, 3.0, gate),
            ),
            y.reshape(-1),
            scratch,
            ChannelSlice(channels, whole.shape[3], before_x, y.shape[3], before_y),
            *(tid, threads),
        )
    flat = w.reshape(channels, -1).T.astype(np.float64)
    wanted = np.clip((taps * flat).sum(axis=3) + bias, -2, 3)
    wanted = gated(wanted, gate)
    found = loaded(y)
    inside = found[..., before_y : before_y + channels]
    np.testing.assert_allclose(inside, wanted, rtol=8e-3 if half else 1e-5, atol=2e-5)
    inside[...] = SENTINEL
    np.testing.assert_array_equal(found, SENTINEL)
    guarded.release()


@pytest.mark.parametrize(("level", "half"), KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_conversions_of_parts(level, half, threads, guarded):
    rng = np.random.default_rng(0)
    for channels in (1, 7, 16, 33, 64):
        whole = stored(rng.standard_normal((11, channels + 5)), half)
        factor, shift = rng.standard_normal((2, channels)).astype(np.float32)
        scaled = guarded.array(stored(np.full((11, channels + 4), SENTINEL), half))
        copied = guarded.array(stored(np.full((11, channels + 4), SENTINEL), half))
        mean = guarded.array(np.full(channels, SENTINEL, np.float32))
        x = guarded.array(whole).reshape(-1)
        scale = single_kernel(level, "scale_halves" if half else "scale")
        copy = single_kernel(level, "copy_halves" if half else "copy")
        total = single_kernel(level, "all_sum_widen" if half else "all_sum")
        for tid in range(threads):
            share = tid, threads
            scale_and_shift(
                x,
                InputScaling(guarded.array(factor), guarded.array(shift), 0.0, 1.0),
                scaled.reshape(-1),
                scale,
                ChannelSlice(channels, channels + 5, 2, channels + 4, 1),
                NO_FIELDS,
                *share,
            )
            put_channels(x, copied.reshape(-1), copy, channels, 2, 1, channels + 4, *share)
            over_all_pixels(x, mean, total, channels, 1, 11, 2, 1 / 11, *share)
        part = loaded(whole)[:, 2 : 2 + channels]
        wanted = np.clip(part.astype(np.float64) * factor + shift, 0, 1)
        tolerance = {"rtol": 8e-3 if half else 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(loaded(scaled)[:, 1:-3], wanted, **tolerance)
        np.testing.assert_array_equal(loaded(copied)[:, 1:-3], part)
        np.testing.assert_allclose(mean, part.mean(axis=0), rtol=1e-5, atol=1e-6)
        for array in (loaded(scaled), loaded(copied)):
            np.testing.assert_array_equal(array[:, [0, -1, -2, -3]], SENTINEL)


@pytest.mark.parametrize("level", NARROW)
def test_infinity_and_nan_stay_in_bfloat16(level, guarded):
    special = np.array([np.inf, -np.inf, np.nan, 1e39, 1, -0.0] * 6, np.float64)
    with np.errstate(over="ignore"):
        x = stored(special[None], True)
    ones, zeros = np.ones(36, np.float32), np.zeros(36, np.float32)
    y = guarded.array(np.zeros_like(x))
    kernel = single_kernel(level, "scale_halves")
    channels = ChannelSlice(36, 36, 0, 36, 0)
    scaling = InputScaling(ones, zeros)
    scale_and_shift(x.reshape(-1), scaling, y.reshape(-1), kernel, channels, NO_FIELDS, 0, 1)
    np.testing.assert_array_equal(loaded(y), loaded(x))


def test_kernels_of_images_in_bfloat16_exist_where_these_are_kept():
    names = {"copy_halves", "scale_halves", "epilogue_narrow"}
    for level in LEVELS:
        assert (names <= set(llvm_kernel.addresses(level))) == level.keeps_bfloat16
