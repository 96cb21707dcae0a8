"""Convolutions by Winograd's minimal filtering, against float64 sums and onnxruntime."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from sampling import examples

import partita
from partita.lowering import ActivationCode
from partita.lowering.shapes.symbolic_size import Recording
from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.packing.weights import pack_bias
from partita_cpu.gemm.product_records import Epilogue, InputScaling, ProductArrays, TileContext
from partita_cpu.gemm.tile_kernels import tile_kernels
from partita_cpu.llvm.images.winograd import POINTS, pixels_of
from partita_cpu.machine_model import MachineModel
from partita_cpu.threads.claims import LINE
from partita_cpu.winograd.point_weights import evaluation, recovery, transform
from partita_cpu.winograd.tile_kind import TileKind
from partita_cpu.winograd.tile_loop import WinogradContext, filter_tiles
from partita_cpu.winograd.tile_plan import point_kernels, transform_kernels, winograd_plan
from partita_cpu.winograd.time_model import (
    CLOSE,
    PREFERENCE,
    Sizes,
    costs,
    fastest_kind,
    kind_for,
    panel_and_shares,
)

from ..conftest import CACHES, GATES, Guarded, gated, own_share_left
from ..conftest import TOLERANCE as TOLERANCE_OF
from ..gemm.test_native_storage import KINDS, NARROW, loaded, stored
from ..gemm.test_native_tiles import convolve, usual_size
from ..networks.test_native_layout import Net, compiled

LEVELS = [level for level in float_levels() if level.native]
INF = float("inf")
NO_EPILOGUE = Epilogue(0, -INF, INF, 0, 0, 0.0, 0.0)
DIRECT, PAIRS, SMALL, LARGE = TileKind
TOLERANCE = {SMALL: 2e-6, LARGE: 5e-6, PAIRS: TOLERANCE_OF[Arithmetic.BF16]}
"""By the kind of tiles, of the result's usual largest value."""
HALVES = [(level, (False, False)) for level in LEVELS]
HALVES += [(level, h) for level in NARROW for h in ((True, True), (True, False), (False, True))]
"""Levels, and whether images that are read and written are in bfloat16."""
TILES = [(level, half, kind) for level, half in KINDS for kind in (SMALL, LARGE)]
TILES += [(level, half, PAIRS) for level, half in KINDS if level in NARROW and not level.tiles]
"""Levels, whether images are in bfloat16, and tiles."""
BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}


def images_of(batch, size, channels, outputs, begin=(1, 1), end=(1, 1)):
    out = [n + a + b - 2 for n, a, b in zip(size, begin, end, strict=True)]
    kernel = (3, 3), (1, 1), (1, 1)
    return Images(batch, *size, channels, outputs, 1, *kernel, begin, end, *out)


def run(guarded, level, images, kind, x, w, bias=None, residual=None, **given):
    """The result, with what lies beside it in y; each thread computes its own share."""
    storage, caches = given.get("storage", Storage()), given.get("caches")
    epilogue, threads = given.get("epilogue", NO_EPILOGUE), given.get("threads", 2)
    there = given.get("there", threads)
    machine = MachineModel(level, 1, caches) if caches else MachineModel(level)
    cut = winograd_plan(images, machine, threads, storage, kind)
    in_pairs = kind.arithmetic is Arithmetic.BF16
    weights = transform(w, kind.side, tile_columns(level), in_pairs=in_pairs)
    pitch = storage.y_pitch or images.outputs
    y = guarded.array(stored(np.full((images.pixels, pitch), 7), storage.half_out))
    scales = given.get("scaling", (np.zeros(1, np.float32),) * 2)
    scratch = np.full(threads * cut.thread_bytes, 255, np.uint8)  # NaN, in every type
    halves = storage.half_in, storage.half_out
    activation = ActivationCode(epilogue.code)
    kernels = tile_kernels(level, Arithmetic.F32, *halves, activation=activation)
    for tid in range(there):
        filter_tiles(
            guarded.array(x).reshape(-1),
            ProductArrays(
                guarded.array(weights),
                guarded.array(pack_bias(cut.cut, bias)),
                (y if residual is None else guarded.array(residual)).reshape(-1),
                y.reshape(-1),
            ),
            InputScaling(*scales),
            TileContext(
                scratch,
                cut.cut.offsets,
                kernels,
                cut.cut.table,
                given["claims"] if "claims" in given else own_share_left(tid, there),
            ),
            WinogradContext(
                transform_kernels(level, kind, storage.half_in),
                point_kernels(level, kind, machine.tile_rows),
                cut.table,
                recovery(kind.side).reshape(-1),
                np.zeros(1, np.int64),
            ),
            epilogue._replace(has_residual=int(residual is not None)),
            tid,
            there,
        )
    return y


def off(y, wanted, usual):
    """The largest error, over what sums of such terms come to."""
    scale = max(np.abs(wanted).max(initial=0), usual, 1e-6)
    return np.abs(y - wanted).max(initial=0) / scale


def off_unrounded(y, wanted, usual, half_out):
    """The same beyond what rounding once to bfloat16, by half of a last bit, explains."""
    error = np.abs(y - wanted) - (2**-8 * np.abs(wanted) if half_out else 0)
    return off(
        np.maximum(error, 0), np.zeros(error.shape), max(usual, np.abs(wanted).max(initial=0))
    )


@pytest.mark.parametrize("side", POINTS)
def test_weights_come_back_from_the_points(side):
    w = np.random.default_rng(0).standard_normal((3, 2, 3, 3))
    values, back = evaluation(side), recovery(side)
    np.testing.assert_allclose(back @ values, np.eye(3), atol=1e-15)
    points = np.einsum("ia,ocab,jb->ocij", values, w, values)
    np.testing.assert_allclose(np.einsum("ai,ocij,bj->ocab", back, points, back), w, atol=1e-14)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("side", POINTS)
def test_transformed_weights_lie_as_tiles_read_them(side, threads):
    rng = np.random.default_rng(1)
    w = rng.standard_normal((70, 33, 3, 3)).astype(np.float32)
    n, values = pixels_of(side), evaluation(side)
    found = transform(w, side, 32, threads).view(np.float32).reshape(3, n, n, 33, 32)
    wanted = np.zeros((n, n, 33, 96))
    wanted[..., :70] = np.einsum("ia,ocab,jb->ijco", values, w.astype(np.float64), values)
    together = found.transpose(1, 2, 3, 0, 4).reshape(n, n, 33, 96)
    np.testing.assert_allclose(together, wanted, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("channels", [6, 7])
def test_weights_in_pairs_are_the_nearest_bfloat16(channels):
    w = np.random.default_rng(1).standard_normal((40, channels, 3, 3)).astype(np.float32)
    pairs, floats = transform(w, 2, 32, in_pairs=True), transform(w, 2, 32).view(np.float32)
    floats = floats.reshape(2, 16, channels, 32)
    pairs = loaded(pairs.reshape(2, 16, -1, 32, 2)).swapaxes(-1, -2).reshape(2, 16, -1, 32)
    np.testing.assert_array_equal(pairs[:, :, :channels], loaded(stored(floats, True)))
    assert not pairs[:, :, channels:].any()


@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38])
@pytest.mark.parametrize(("side", "in_pairs"), [(4, False), (2, True)])
def test_weights_that_are_not_finite_at_the_points_are_left_alone(value, side, in_pairs):
    w = np.full((4, 5, 3, 3), value, np.float32)
    assert not transform(w, side, 32, in_pairs=in_pairs).size


def test_weights_that_are_infinite_in_bfloat16_alone_are_left_alone():
    w = np.zeros((4, 5, 3, 3), np.float32)
    w[1, 2, 0, 2] = 3.399e38
    assert transform(w, 2, 32).size
    assert not transform(w, 2, 32, in_pairs=True).size


def test_weights_that_are_subnormal_at_the_points_count_as_zero():
    found = transform(np.full((4, 5, 3, 3), 1e-39, np.float32), 4, 32)
    assert found.size
    assert not found.any()


@st.composite
def problems(draw, half_in, half_out):
    """A convolution, and where its images lie."""
    batch = draw(st.integers(1, 3))
    size = draw(st.integers(1, 21)), draw(st.integers(1, 21))
    begin, end = ([draw(st.integers(0, 3)) for _ in range(2)] for _ in range(2))
    size = [max(n, 3 - a - b) for n, a, b in zip(size, begin, end, strict=True)]
    channels, outputs = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    images = images_of(batch, size, channels, outputs, tuple(begin), tuple(end))
    before, after = draw(st.sampled_from([(0, 0), (3, 2), (16, 0)])), draw(st.integers(0, 5))
    storage = Storage(
        half_in,
        half_out,
        x_pitch=channels + sum(before),
        x_first=before[0],
        y_pitch=outputs + after,
        y_first=after // 2,
        scaled=draw(st.booleans()),
    )
    return images, storage


def numbers_of(rng, kind, pixels, outputs, channels):
    """Pixels, weights, factors and summands of channels.

    Where points are in bfloat16 they are whole numbers, which stay exact there.
    """
    if kind is PAIRS:
        x = rng.integers(-3, 4, pixels).astype(np.float32)
        w = 4 * rng.integers(-2, 3, (outputs, channels, 3, 3)).astype(np.float32)
        return x, w, rng.choice([0.5, 1, 2], channels), rng.integers(-2, 3, channels)
    x = rng.standard_normal(pixels)
    w = rng.standard_normal((outputs, channels, 3, 3)).astype(np.float32)
    return x, w, *rng.uniform(0.5, 2, (2, channels))


@pytest.mark.parametrize(
    ("level", "halves", "kind"),
    [(*one, kind) for one in HALVES for kind in (SMALL, LARGE)]
    + [(*one, PAIRS) for one in HALVES if one[0] in NARROW and not one[0].tiles],
)
@examples(60)
@given(data=st.data())
def test_random_convolutions(level, halves, kind, data):
    (images, storage), rng = data.draw(problems(*halves)), np.random.default_rng(0)
    pixels = images.batch * images.height * images.width
    sizes = (pixels, storage.x_pitch), images.outputs, images.channels
    x, w, factor, shift = numbers_of(rng, kind, *sizes)
    x, factor, shift = stored(x, storage.half_in), np.float32(factor), np.float32(shift)
    bias = rng.standard_normal(images.outputs).astype(np.float32)
    residual = None
    if data.draw(st.booleans()):
        values = rng.standard_normal((images.pixels, storage.y_pitch))
        residual = stored(values, storage.half_out)
    low, high, gate = data.draw(
        st.sampled_from([(-INF, INF, 0), (0.0, 6.0, 0), (-INF, INF, GATES[-1])])
    )
    guarded = Guarded()
    try:
        y = run(
            guarded,
            level,
            images,
            kind,
            x,
            w,
            bias,
            residual,
            storage=storage,
            scaling=(factor, shift, 0.0, INF),
            epilogue=Epilogue(0, low, high, gate, 0, 0.0, 0.0),
            threads=data.draw(st.integers(1, 5)),
            caches=data.draw(st.sampled_from([*CACHES.values()])),
        )
    finally:
        guarded.release()
    y = loaded(y)
    inside = loaded(x)[:, storage.x_first :][:, : images.channels].astype(np.float64)
    if storage.scaled:
        inside = np.maximum(inside * factor + shift, 0)
    ours = slice(storage.y_first, storage.y_first + images.outputs)
    wanted = convolve(images, inside, w) + bias
    wanted += 0 if residual is None else loaded(residual)[:, ours]
    # Bounds leave errors of sums as they are, however small the results become.
    usual = max(usual_size(images, inside, w), np.abs(wanted).max())
    wanted = gated(np.clip(wanted, low, high), gate)
    error = off_unrounded(y[:, ours], wanted, usual, storage.half_out)
    assert error <= TOLERANCE[SMALL if kind is PAIRS else kind] * (4 if gate else 1)
    assert (np.delete(y, np.r_[ours], axis=1) == 7).all()


@pytest.mark.parametrize(
    ("level", "half", "kind", "with_residual"),
    [(*one, False) for one in TILES] + [(*one, True) for one in TILES if not one[1]],
)
@pytest.mark.parametrize("code", [ActivationCode.SIGMOID, ActivationCode.SILU, ActivationCode.TANH])
def test_activations_that_bounds_do_not_express(level, half, kind, with_residual, code, guarded):
    """No image stays in bfloat16 that a residual is added to before them: see `passes`."""
    rng, images = np.random.default_rng(2), images_of(1, (9, 11), 20, 37)
    x = stored(rng.standard_normal((99, 20)), half)
    w = rng.standard_normal((37, 20, 3, 3)).astype(np.float32)
    residual = rng.standard_normal((99, 37)).astype(np.float32) if with_residual else None
    epilogue, storage = NO_EPILOGUE._replace(code=int(code)), Storage(half, half)
    y = run(guarded, level, images, kind, x, w, None, residual, epilogue=epilogue, storage=storage)
    sums = convolve(images, loaded(x), w) + (residual if with_residual else 0)
    wanted = {
        ActivationCode.SIGMOID: 1 / (1 + np.exp(-sums)),
        ActivationCode.SILU: sums / (1 + np.exp(-sums)),
        ActivationCode.TANH: np.tanh(sums),
    }[code]
    usual = usual_size(images, loaded(x), w)
    assert off_unrounded(loaded(y), wanted, usual, half) <= TOLERANCE[kind]


@pytest.mark.parametrize(
    ("level", "kind"), [(level, kind) for level, half, kind in TILES if not half]
)
@pytest.mark.parametrize(("threads", "there"), [(1, 1), (7, 7), (5, 2), (16, 3)])
def test_results_are_the_same_whoever_computes_them(level, kind, threads, there, guarded):
    """Also if one thread takes all that others would have computed, or fewer come than planned."""
    rng, images = np.random.default_rng(3), images_of(2, (30, 17), 40, 100)
    x = rng.standard_normal((2 * 30 * 17, 40)).astype(np.float32)
    w = rng.standard_normal((100, 40, 3, 3)).astype(np.float32)
    apart = run(guarded, level, images, kind, x, w, threads=threads, there=there)
    claims = np.zeros(there * LINE, np.int64)
    taken = run(guarded, level, images, kind, x, w, threads=threads, there=there, claims=claims)
    assert off(apart, convolve(images, x, w), usual_size(images, x, w)) <= TOLERANCE[kind]
    np.testing.assert_array_equal(apart, taken)


@pytest.mark.parametrize(("level", "half", "kind"), TILES)
def test_infinite_and_huge_numbers_reach_what_their_windows_reach(level, half, kind, guarded):
    rng, images = np.random.default_rng(4), images_of(2, (16, 21), 19, 35)
    x = rng.standard_normal((2, 16, 21, 19)).astype(np.float32)
    w = rng.standard_normal((35, 19, 3, 3)).astype(np.float32)
    without_centre = 19
    if kind is PAIRS:  # such weights come back out of rounded ones as they are
        w = rng.choice([-2, -1, 1, 2], w.shape).astype(np.float32)
        without_centre = 7  # a large finite number is off by what it loses in bfloat16
    w[3, 5] = 0
    w[4, :without_centre, 1, 1] = 0
    for at, value in (
        ((0, 2, 3, 5), np.inf),
        ((0, 9, 9, 1), -np.inf),
        ((0, 10, 9, 2), np.inf),
        ((1, 0, 0, 0), np.nan),
        ((1, 15, 20, 18), 3.3e38),
        ((1, 8, 8, 7), -1.5e38),
    ):
        x[at] = value
    x = stored(x.reshape(-1, 19), half)
    y = loaded(run(guarded, level, images, kind, x, w, storage=Storage(half, half)))
    y = y.reshape(2, 16, 21, 35)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = convolve(images, loaded(x), w).reshape(y.shape)
        wanted = loaded(stored(exact, half)).astype(np.float32)
    plain = np.abs(wanted) < 1e6
    assert plain.sum() > 0.8 * plain.size
    atol = (TOLERANCE[kind] + (2**-8 if half else 0)) * wanted[plain].max()
    np.testing.assert_allclose(y[plain], exact[plain], rtol=1e-7, atol=atol)
    large = np.isfinite(wanted) & ~plain
    assert large.any()
    # Weights are taken back out of transformed ones: off by as much as the largest are rounded.
    values = loaded(x)
    most = float(np.abs(values[np.isfinite(values)]).max()) * float(np.abs(w).max())
    rtol = 1e-6 + (2**-8 if half or kind is PAIRS else 0)
    np.testing.assert_allclose(y[large], exact[large], rtol=rtol, atol=5e-7 * most)
    for is_such in (np.isnan, np.isposinf, np.isneginf):
        assert is_such(wanted).any()
        np.testing.assert_array_equal(is_such(y), is_such(wanted))


def test_where_it_pays():
    """Not for single pixels, few channels, or weights that are read for few tiles."""
    level = next((level for level in LEVELS if level.lanes == 16), LEVELS[0])
    machine = MachineModel(level, 2, CacheSizes(48 << 10, 1 << 20, 16 << 20))
    assert kind_for(images_of(1, (56, 56), 64, 64), machine, 2) is LARGE
    assert kind_for(images_of(1, (1, 1), 512, 512), machine, 2) is DIRECT
    assert kind_for(images_of(1, (2, 3), 512, 512), machine, 2) is DIRECT
    assert kind_for(images_of(1, (56, 56), 1, 64), machine, 2) is DIRECT
    assert kind_for(images_of(16, (7, 7), 512, 512), machine, 2) is not DIRECT
    for direct, found in ((Arithmetic.F32, LARGE), (Arithmetic.BF16, DIRECT)):
        assert kind_for(images_of(1, (28, 28), 24, 24), machine, 2, direct) is found
    # A vector of outputs takes half as long either way, what is transformed as long as for two.
    for channels, found in ((32, DIRECT), (80, LARGE)):
        assert (
            kind_for(images_of(1, (128, 128), channels, 16), machine, 2, Arithmetic.BF16) is found
        )
    assert kind_for(images_of(1, (56, 56), 64, 64), machine, 2, largest=2) is SMALL
    # Where products take twice as long, weights of few tiles are worth waiting for.
    halved = replace(machine, halves_vectors=level.lanes == 16)
    assert kind_for(images_of(1, (7, 7), 512, 512), machine, 1) is DIRECT
    assert kind_for(images_of(1, (7, 7), 512, 512), halved, 1) is (
        SMALL if level.lanes == 16 else DIRECT
    )
    # Sums over so few channels are farther off with either tile than direct ones.
    assert kind_for(images_of(1, (512, 512), 16, 512), machine, 1, largest=2) is DIRECT
    # AMX multiplies directly; vectors beside it may take long for bfloat16.
    for one in NARROW:
        small = images_of(1, (14, 14), 256, 256), MachineModel(one), 1, Arithmetic.BF16
        assert (kind_for(*small) is PAIRS) == (not one.tiles)
    strided = images_of(1, (56, 56), 64, 64)
    for other in ({"stride": (2, 2)}, {"dilation": (2, 2)}, {"groups": 2}, {"kernel": (3, 1)}):
        assert kind_for(Images(**{**vars(strided), **other}), machine, 2) is DIRECT


@pytest.mark.parametrize(
    ("size", "channels", "found"),
    [(28, 128, 49), (56, 128, 196), (56, 64, 49), (112, 64, 56), (112, 128, 28)],
)
def test_a_panel_has_tiles_enough_for_weights_to_arrive(size, channels, found):
    """Where a few panels of what the second-level cache holds would wait for them."""
    sizes = (1, size, size, channels, channels, 1, 16, 32, 14, 768 << 10, 8 << 20)
    assert panel_and_shares(LARGE, *Sizes(*sizes)) == (found, 1)


@examples(60)
@given(st.data())
def test_any_sizes_have_an_answer(data):
    sizes = [data.draw(st.integers(1, 10**n)) for n in (3, 5, 5, 4, 4)]
    threads = data.draw(st.integers(1, 4095))
    lanes = data.draw(st.sampled_from([4, 8, 16]))
    near, far = data.draw(st.integers(64, 1 << 22)), data.draw(st.integers(0, 1 << 26))
    pace, largest = data.draw(st.integers(1, 2)), data.draw(st.sampled_from(list(POINTS)))
    parts = data.draw(st.integers(1, 2))
    pairs = data.draw(st.integers(0, 1))
    numbers = threads, lanes, 2 * lanes, 14, near, far, pace, largest, parts, pairs
    kind = fastest_kind(*Sizes(*sizes, *numbers))
    assert kind.side <= largest
    assert pairs or kind is not PAIRS


def test_sizes_for_which_a_tile_is_nearly_the_fastest_share_its_program():
    level = next((level for level in LEVELS if level.lanes == 16), LEVELS[0])
    machine = MachineModel(level, 2, CacheSizes(48 << 10, 1 << 20, 16 << 20))

    def cost(size, kind):
        return costs(Sizes.of(image(size), machine, 1))[kind]

    def image(size):
        return images_of(1, (size, size), 32, 32)

    recording = Recording()
    kind = kind_for(image(recording.size(14)), machine, 1)
    recording.close()
    best = {size: kind_for(image(size), machine, 1) for size in range(1, 100)}
    shared = [size for size in best if recording.repeat([size]) is not None]
    assert best[14] is kind
    assert any(best[size] is not kind for size in shared)
    assert any(size not in shared for size in best)
    for size in shared:
        assert cost(size, kind) <= CLOSE * PREFERENCE[LARGE] * cost(size, best[size])


def net_of(size=(28, 31)):
    net = Net(1, 48, *size)
    y = net.add("Relu", net.conv("x", 48, 64))
    return net, net.add("Relu", net.add("Add", net.conv(y, 64, 64), y))


def kinds_of(request):
    return {info.exec_type for info in request.get_profiling_info()}


@pytest.mark.parametrize("level", [level for level in LEVELS if not level.tiles])
def test_both_modes_take_it_and_tiles_of_2_by_2_are_as_exact_as_direct_sums(level, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", level.name)
    net, y = net_of()
    model = net.model(y)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (wanted,) = onnxruntime_results(model, {"x": x})
    for mode in ("PERFORMANCE", "ACCURACY"):
        request = compiled(model, PERF_COUNT=True, EXECUTION_MODE_HINT=mode).create_infer_request()
        found = np.asarray(request.infer({"x": x})[0])
        assert np.abs(found - wanted).max() <= 5e-6 * np.abs(wanted).max()
        products = {name for name in kinds_of(request) if name.startswith(level.vectors)}
        assert products == {f"{level.vectors}_f32_winograd"}
    assert "WINOGRAD" in partita.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.mark.parametrize("level", [level for level in LEVELS if not level.tiles])
@pytest.mark.parametrize(
    "image",
    [
        lambda rng, shape: rng.standard_normal(shape),
        lambda rng, shape: np.maximum(rng.standard_normal(shape), 0),
        lambda rng, shape: 100 + rng.standard_normal(shape),
        lambda rng, shape: rng.standard_normal(shape) * 10 ** rng.uniform(-3, 3, shape),
    ],
    ids=["normal", "positive", "shifted", "of all sizes"],
)
def test_accuracy_is_no_farther_off_than_direct_sums(level, image, monkeypatch):
    """Sums in float32, term after term; tiles of 4 x 4 are up to twice as far off."""
    monkeypatch.setenv("PARTITA_CPU_ISA", level.name)
    images, rng = images_of(1, (32, 32), 64, 48), np.random.default_rng(7)
    x = image(rng, (1, 64, 32, 32)).astype(np.float32)
    w = rng.standard_normal((48, 64, 3, 3)).astype(np.float32)
    net = Net(1, 64, 32, 32)
    y = net.add("Conv", "x", net.const(values=w), pads=[1, 1, 1, 1])
    model = net.model(y)
    request = compiled(
        model, PERF_COUNT=True, EXECUTION_MODE_HINT="ACCURACY"
    ).create_infer_request()
    found = np.asarray(request.infer({"x": x})[0])
    assert f"{level.vectors}_f32_winograd" in kinds_of(request)
    pixels = x.transpose(0, 2, 3, 1).reshape(1024, 64)
    exact = convolve(images, pixels.astype(np.float64), w).reshape(32, 32, 48)
    padded = np.pad(pixels.reshape(32, 32, 64), ((1, 1), (1, 1), (0, 0)))
    direct = np.zeros(exact.shape, np.float32)
    for down, across, channel in itertools.product(range(3), range(3), range(64)):
        window = padded[down : down + 32, across : across + 32, channel, None]
        direct += window * w[:, channel, down, across]
    error = np.abs(found[0].transpose(1, 2, 0) - exact).max()
    assert error <= np.abs(direct - exact).max()


@pytest.mark.parametrize("level", [level for level in LEVELS if level.dots_bfloat16])
def test_bfloat16_takes_it_where_it_is_faster_than_twice_the_pace(level, monkeypatch):
    """Parts of images, too: a slice is read, and results are written to what a Concat joins."""
    monkeypatch.setenv("PARTITA_CPU_ISA", level.name)
    net, y = net_of((56, 55))
    joined = net.add("Concat", net.conv(y, 64, 48), net.conv(y, 64, 80), axis=1)
    part = net.add("Slice", joined, *(net.const(values=np.array([n])) for n in (16, 80, 1)))
    y = net.conv(net.add("Add", net.conv(part, 64, 64), y), 64, 32, 1)
    model = net.model(y)
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (wanted,) = onnxruntime_results(model, {"x": x})
    errors = {}
    for mode in ("PERFORMANCE", "ACCURACY"):
        config = {**BF16, "PERF_COUNT": True, "EXECUTION_MODE_HINT": mode}
        request = compiled(model, **config).create_infer_request()
        found = np.asarray(request.infer({"x": x})[0])
        errors[mode] = np.abs(found - wanted).max() / np.abs(wanted).max()
        filtered = f"{level.vectors}_f32_winograd" in kinds_of(request)
        assert filtered == (mode == "PERFORMANCE" and not level.tiles)
    assert errors["PERFORMANCE"] <= TOLERANCE_OF[Arithmetic.BF16]
    assert errors["PERFORMANCE"] <= 1.5 * errors["ACCURACY"]


@pytest.mark.parametrize("level", [level for level in LEVELS if level.keeps_bfloat16])
def test_small_images_of_many_channels_take_points_in_bfloat16(level, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", level.name)
    net = Net(1, 64, 14, 13)
    y = net.add("Relu", net.conv("x", 64, 256, 1))
    for _ in range(3):
        y = net.add("Relu", net.conv(y, 256, 256))
    model = net.model(net.conv(y, 256, 64, 1))
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (wanted,) = onnxruntime_results(model, {"x": x})
    errors = {}
    for mode in ("PERFORMANCE", "ACCURACY"):
        config = {**BF16, "PERF_COUNT": True, "EXECUTION_MODE_HINT": mode}
        request = compiled(model, **config).create_infer_request()
        found = np.asarray(request.infer({"x": x})[0])
        errors[mode] = np.sqrt(np.mean((found - wanted) ** 2)) / np.abs(wanted).max()
        filtered = f"{level.vectors}_bf16_winograd" in kinds_of(request)
        assert filtered == (mode == "PERFORMANCE" and not level.tiles)
    assert errors["PERFORMANCE"] <= TOLERANCE_OF[Arithmetic.BF16] / 4
    assert errors["PERFORMANCE"] <= 1.75 * errors["ACCURACY"]


def test_pictures_of_varying_size_and_a_model_from_a_file(monkeypatch):
    able = [level.name for level in LEVELS if not level.tiles]
    monkeypatch.setenv("PARTITA_CPU_ISA", able[-1])
    net, y = net_of()
    model = net.model(y)
    for index in range(2, 4):
        model.graph.input[0].type.tensor_type.shape.dim[index].dim_param = f"size{index}"
    device = compiled(model, PERF_COUNT=True)
    stream = io.BytesIO()
    device.export_model(stream)
    stream.seek(0)
    kept = partita.Core().import_model(stream, "CPU", {"PERF_COUNT": True})
    requests = [one.create_infer_request() for one in (device, kept)]
    for size in ((28, 31), (1, 1), (40, 9), (3, 90), (29, 31), (64, 64)):
        x = net.rng.standard_normal((1, 48, *size)).astype(np.float32)
        (wanted,) = onnxruntime_results(model, {"x": x})
        for request in requests:
            found = np.asarray(request.infer({"x": x})[0])
            assert np.abs(found - wanted).max() <= 5e-6 * np.abs(wanted).max()
