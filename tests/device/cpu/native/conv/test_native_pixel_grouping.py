"""Pixels computed together, and windows read where they lie, against float64 sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from judge import onnxruntime_results
from sampling import examples

from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.jit.isa import available
from partita_cpu.kernels.nhwc.pixel_grouping import joined_images, joined_weights, pixels_per_group
from partita_cpu.kernels.nhwc.transposed_phases import Phase, are_joined
from partita_cpu.machine_model import MachineModel

from ..conftest import Guarded, choices
from ..gemm.test_native_tiles import check, convolve, run, usual_size
from ..networks.test_native_layout import Net, compiled
from ..networks.test_native_layout import check as check_net


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(30)
@given(data=st.data())
def test_windows_of_one_line(level, arithmetic, data):
    kernel, stride = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 9))
    channels, outputs = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 40))
    out, more = data.draw(st.integers(1, 90)), data.draw(st.integers(0, 5))
    width = (out - 1) * stride + kernel + more
    images = Images(
        *(1, 1, width, channels, outputs, 1, (1, kernel), (1, stride)), out_width=out, end=(0, 0)
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((width, channels)).astype(np.float32)
    w = rng.standard_normal((outputs, channels, 1, kernel)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    cut = plan(images, MachineModel(level), arithmetic, 2)
    assert (cut.source is Source.DIRECT) or arithmetic is not Arithmetic.F32
    guarded = Guarded()
    try:
        y = run(guarded, cut, level, x, w, bias, None)
    finally:
        guarded.release()
    check(y, convolve(images, x, w) + bias, arithmetic, usual_size(images, x, w))


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(30)
@given(data=st.data())
def test_lines_that_are_cut_between_their_pixels(level, arithmetic, data):
    """As images one pixel wide: threads shared the columns of a line alone, if there were any."""
    kernel, stride = data.draw(st.integers(2, 11)), data.draw(st.integers(1, 5))
    dilation = data.draw(st.sampled_from([1, 1, 2, 5]))
    begin, end = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))
    channels, groups = data.draw(st.sampled_from([1, 3, 8, 20, 40])), data.draw(st.integers(1, 2))
    outputs, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 120))
    reach = width + begin + end - (kernel - 1) * dilation - 1
    assume(reach >= 0)
    images = Images(
        *(2, 1, width, channels * groups, outputs * groups, groups),
        *((1, kernel), (1, stride), (1, dilation), (0, begin), (0, end), 1, reach // stride + 1),
    )
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2 * width, channels * groups)).astype(np.float32)
    w = rng.standard_normal((outputs * groups, channels, 1, kernel)).astype(np.float32)
    bias = rng.standard_normal(outputs * groups).astype(np.float32)
    guarded = Guarded()
    try:
        cut = plan(images.as_column, MachineModel(level), arithmetic, 5)
        y = run(guarded, cut, level, x, w, bias, None)
    finally:
        guarded.release()
    check(y, convolve(images, x, w) + bias, arithmetic, usual_size(images, x, w))


@pytest.mark.parametrize("threads", [1, 4])
def test_threads_share_a_line(threads):
    """32 channels are one column of tiles: a single thread computed them."""
    net = Net(1, 20, 500)
    weights = net.const(values=net.rng.standard_normal((32, 20, 7)).astype(np.float32) / 12)
    check_net(
        net,
        net.add("Conv", "x", weights, pads=[3, 3], dilations=[1]),
        config={"INFERENCE_NUM_THREADS": threads},
    )


@pytest.mark.parametrize(("level", "arithmetic"), choices())
@examples(30)
@given(data=st.data())
def test_pixels_computed_together(level, arithmetic, data):
    height, width = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 120))
    down, across = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    strides = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    begin = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 4))
    end = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 4))
    channels, outputs = data.draw(st.sampled_from([1, 3, 8, 33])), data.draw(st.integers(1, 5))
    count = data.draw(st.integers(2, 7))
    sizes = height + begin[0] + end[0] - down, width + begin[1] + end[1] - across
    assume(min(sizes) >= 0)
    out = sizes[0] // strides[0] + 1, sizes[1] // strides[1] + 1
    images = Images(
        *(2, height, width, channels, outputs, 1),
        *((down, across), strides, (1, 1), begin, end, *out),
    )
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2 * height * width, channels)).astype(np.float32)
    w = rng.standard_normal((outputs, channels, down, across)).astype(np.float32)
    wide, guarded = joined_images(images, count), Guarded()
    weights = joined_weights(w, count, strides[1])
    try:
        y = run(
            guarded, plan(wide, MachineModel(level), arithmetic, 2), level, x, weights, None, None
        )
    finally:
        guarded.release()
    y = y.reshape(2 * out[0], wide.out_width * count, outputs)[:, : out[1]]
    y = y.reshape(-1, outputs)
    check(y, convolve(images, x, w), arithmetic, usual_size(images, x, w))


def test_only_what_gains_is_computed_together():
    level = choices()[-1][0]
    columns = tile_columns(level)
    few = Images(1, 60, 480, 8, 2, 1, (3, 9), out_height=58, out_width=472)
    assert pixels_per_group(few, level, Arithmetic.F32) > 1
    assert pixels_per_group(Images.matrix(100, 64, 2), level, Arithmetic.F32) == 1
    for change in ({"outputs": columns}, {"groups": 2}, {"dilation": (1, 2)}, {"out_width": 20}):
        changed = Images(**{**vars(few), **change})
        assert pixels_per_group(changed, level, Arithmetic.F32) == 1


@pytest.mark.parametrize("level", [level for level in available()[1:] if not level.tiles])
def test_a_vector_that_is_full_is_not_left_for_two(level):
    """Two pixels of 16 outputs took 4 taps and two vectors, where each alone takes 3 and one."""

    def count(outputs, across, arithmetic=Arithmetic.F32):
        size = {"out_height": 60, "out_width": 480}
        images = Images(1, 60, 480, 64, outputs, 1, (3, across), (1, 1), (1, 1), (1, 1), **size)
        return pixels_per_group(images, level, arithmetic)

    assert count(level.lanes, 3) == 1
    assert count(level.lanes, 3, Arithmetic.BF16) == 1
    assert count(3, 3) in (level.lanes // 3, level.lanes // 3 - 1)
    assert count(1, 9) in (level.lanes, 2 * level.lanes)


@pytest.mark.parametrize("width", [96, 97])
@pytest.mark.parametrize("residual", [False, True])
def test_whole_models_of_few_outputs(width, residual):
    net = Net(2, 9, 8, width)
    y = net.conv("x", 9, 2, 5)
    if residual:
        y = net.add("Add", y, net.conv("x", 9, 2, 1))
    check_net(net, net.add("Relu", y))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_no_further_than_the_pixels_that_are_computed_together(value):
    kernel, width, at = 9, 300, 151
    net = Net(1, 1, 6, width)
    weights = net.const(1, 1, 3, kernel)
    model = net.model(net.add("Conv", "x", weights, pads=[1, kernel // 2] * 2))
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (finite,) = compiled(model)(x).to_tuple()
    x[0, 0, 3, at] = value
    (expected,) = onnxruntime_results(model, {"x": x})
    (y,) = compiled(model)(x).to_tuple()
    images = Images(
        *(1, 6, width, 1, 1, 1, (3, kernel), (1, 1), (1, 1), (1, kernel // 2)),
        *((1, kernel // 2), 6, width),
    )
    count = pixels_per_group(images, available()[-1], Arithmetic.F32)
    reached = ~np.isfinite(expected)
    filled = np.pad(reached[0, 0], ((0, 0), (0, -width % count)))
    groups = np.repeat(filled.reshape(6, -1, count).any(axis=2), count, axis=1)[:, :width]
    assert count > 1
    assert not np.isfinite(y[reached]).any()
    np.testing.assert_allclose(y[0, 0][~groups], finite[0, 0][~groups], rtol=1e-4, atol=1e-5)


def spread(x, w, bias, stride, begin, size):
    """A transposed convolution by its definition, in float64."""
    n, _, height, width = x.shape
    _, outputs, down, across = w.shape
    whole = np.zeros(
        (n, outputs, (height - 1) * stride[0] + down + 20, (width - 1) * stride[1] + across + 20)
    )
    for row in range(down):
        for column in range(across):
            rows = slice(row, row + height * stride[0], stride[0])
            columns = slice(column, column + width * stride[1], stride[1])
            taps = w[:, :, row, column].astype(np.float64)
            whole[:, :, rows, columns] += np.einsum("nchw,co->nohw", x.astype(np.float64), taps)
    inside = whole[:, :, begin[0] : begin[0] + size[0], begin[1] : begin[1] + size[1]]
    return np.maximum(inside + bias.reshape(1, -1, 1, 1), 0)


@pytest.mark.parametrize("level", [level.name for level in available()[1:]])
@examples(25)
@given(data=st.data())
def test_transposed_convolutions_whose_phases_are_joined(level, data):
    kernel = data.draw(st.integers(1, 9)), data.draw(st.integers(2, 9))
    stride = data.draw(st.integers(1, kernel[0])), data.draw(st.integers(1, kernel[1]))
    inputs, outputs = data.draw(st.sampled_from([1, 3, 20])), data.draw(st.integers(1, 9))
    height, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 70))
    begin = data.draw(st.integers(0, kernel[0] - 1)), data.draw(st.integers(0, kernel[1] - 1))
    more = data.draw(st.integers(0, stride[0] - 1)), data.draw(st.integers(0, stride[1] - 1))
    whole = (height - 1) * stride[0] + kernel[0], (width - 1) * stride[1] + kernel[1]
    size = [max(whole[i] + more[i] - begin[i], 0) for i in range(2)]
    assume(min(size) > 0)
    net = Net(2, inputs, height, width)
    w = net.rng.standard_normal((inputs, outputs, *kernel)).astype(np.float32)
    bias = net.rng.standard_normal(outputs).astype(np.float32)
    y = net.add(
        "ConvTranspose",
        *("x", net.const(values=w), net.const(values=bias)),
        strides=stride,
        pads=[*begin, 0, 0],
        output_padding=more,
    )
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARTITA_CPU_ISA", level)
        (found,) = compiled(net.model(net.add("Relu", y)))(x).to_tuple()
    expected = spread(x, w, bias, stride, begin, size)
    sums = spread(abs(x), abs(w), abs(bias), stride, begin, size)
    assert (abs(found - expected) <= 1e-6 * sums.max()).all()


def test_phases_are_joined_where_vectors_have_room():
    two = [Phase(0, 5, 0, 30, 2, 2), Phase(1, 4, 1, 30, 1, 2)]  # 9 taps, 2 across
    assert are_joined(two, 1, 16)
    assert are_joined(two, 8, 16)
    assert not are_joined(two, 16, 16)
    assert are_joined(two[:1], 16, 16) is False
    touching = [Phase(n, 1, n, 30, 0, 0) for n in range(2)]
    assert are_joined(touching, 4, 16)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_no_further_than_phases_that_are_joined(value):
    width, at = 60, 31
    net = Net(1, 2, 3, width)
    weights = net.const(2, 1, 3, 9)
    attrs = {"strides": [1, 2], "pads": [1, 4, 1, 4], "output_padding": [0, 1]}
    model = net.model(net.add("ConvTranspose", "x", weights, **attrs))
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (finite,) = compiled(model)(x).to_tuple()
    x[0, 1, 1, at] = value
    (expected,) = onnxruntime_results(model, {"x": x})
    (y,) = compiled(model)(x).to_tuple()
    reached = ~np.isfinite(expected)
    assert reached.any()
    assert not np.isfinite(y[reached]).any()
    columns = tile_columns(available()[-1])
    near = [reached[..., max(0, n - columns) : n + columns].any(axis=-1) for n in range(2 * width)]
    far = ~np.stack(near, axis=-1)
    assert far.any()
    np.testing.assert_allclose(y[far], finite[far], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("level", [level.name for level in available()[1:]])
def test_a_model_of_channels_last_needs_no_turning(level, monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", level)
    net = Net(1, 12, 14, 8)
    first = net.add("Transpose", net.add("Exp", "x"), perm=[0, 3, 1, 2])
    conv = net.add("Relu", net.conv(first, 8, 20))
    second = net.add("Transpose", conv, perm=[0, 2, 3, 1])
    last = net.add("Neg", second)
    kinds = check_net(net, last)
    assert "reorder" not in kinds.values()
    assert not any(info.startswith("permute") for info in kinds)
    check_net(net, last, first, conv, second)
    request = compiled(net.model(last)).create_infer_request()
    x = np.random.default_rng(2).standard_normal(net.shape).astype(np.float32)
    assert np.asarray(request.infer({"x": x})[0]).shape == (1, 12, 14, 20)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("channels", [8, 12, 24, 40, 1000])
def test_channels_of_equal_weights_are_equal(channels, kernel):
    # What a classifier cannot tell apart must not be told apart by the order of sums. Where BLAS
    # multiplies, it adds up columns at edges in another order.
    net = Net(1, 64, 7, 7)
    w = net.rng.standard_normal((1, 64, kernel, kernel)).astype(np.float32)
    repeated = net.const(values=np.repeat(w, channels, axis=0))
    model = net.model(net.add("Conv", "x", repeated, pads=[kernel // 2] * 4))
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    (y,) = compiled(model)(x).to_tuple()
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
