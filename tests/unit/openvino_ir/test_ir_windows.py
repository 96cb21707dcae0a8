"""Layers of an OpenVINO IR over windows, regions and frequencies, compared with numpy."""

from __future__ import annotations

import numpy as np
import pytest
from irs import Net
from test_ir_movement import floats, single, whole

from partita.errors import ModelFormatError
from partita.frontends.reader import read_model


def test_means_of_windows_that_do_not_divide_evenly():
    x = floats(2, 3, 7, 5)
    found = single("AdaptiveAvgPool", x, whole(3, 7), version="opset8")[0]
    expected = np.empty((2, 3, 3, 7))
    for i in range(3):
        for j in range(7):
            rows, columns = (
                slice(i * 7 // 3, -(-(i + 1) * 7 // 3)),
                slice(j * 5 // 7, -(-(j + 1) * 5 // 7)),
            )
            expected[..., i, j] = x[..., rows, columns].astype(float).mean((2, 3))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_means_of_more_windows_than_memory_holds_are_refused():
    net = Net()
    x = net.parameter("x", "f32", (1, 1, 10**6))
    sizes = net.const(np.array([10**6 - 1]))
    net.result(net.op("AdaptiveAvgPool", x, sizes, out=[("f32", (1, 1, -1))], version="opset8"))
    with pytest.raises(ModelFormatError, match=r"means of \[1000000\] in \[999999\] windows"):
        read_model(net.bytes(), weights=bytes(net.weights))


@pytest.mark.parametrize(("axis", "sizes"), [(0, 0), (1, 60), (2, 20)])
def test_places_of_the_largest_are_counted_from_an_axis(axis, sizes):
    x = floats(2, 3, 4, 5)
    out = [("f32", (2, 3, 2, 2)), ("i64", (2, 3, 2, 2))]
    data = {"kernel": "2,2", "strides": "2,2", "pads_begin": "0,0", "pads_end": "0,0", "axis": axis}
    values, places = single("MaxPool", x, out=out, version="opset8", **data)
    whole_places = np.arange(120).reshape(x.shape)
    for index in np.ndindex(2, 3, 2, 2):
        window = (
            *index[:2],
            slice(2 * index[2], 2 * index[2] + 2),
            slice(2 * index[3], 2 * index[3] + 2),
        )
        assert values[index] == x[window].max()
        place = whole_places[window].reshape(-1)[x[window].argmax()]
        assert places[index] == (place % sizes if sizes else place)


def transposed(x, w, stride):
    """All of a transposed convolution of one axis, by the definition."""
    found = np.zeros((len(x) - 1) * stride + len(w))
    for place, number in enumerate(x):
        found[place * stride : place * stride + len(w)] += number * w
    return found


@pytest.mark.parametrize(
    ("auto_pad", "size", "kept"),
    [
        ("same_upper", None, slice(0, None)),  # without a shape nothing is cut off
        ("same_lower", None, slice(0, None)),
        ("valid", None, slice(0, None)),
        ("same_upper", 8, slice(1, None)),
        ("same_lower", 8, slice(0, 8)),
        ("same_upper", 7, slice(1, 8)),
        ("valid", 7, slice(0, 7)),
        ("explicit", 7, slice(0, 7)),
    ],
)
def test_what_transposed_convolutions_keep(auto_pad, size, kept):
    x, w = floats(4), floats(3)
    constants = [w.reshape(1, 1, 3), *([] if size is None else [whole(size)])]
    expected = transposed(x.astype(float), w.astype(float), 2)[kept]
    data = {"strides": "2", "dilations": "1", "pads_begin": "0", "pads_end": "0"}
    out = [("f32", (1, 1, len(expected)))]
    found = single(
        "ConvolutionBackpropData",
        x.reshape(1, 1, 4),
        *constants,
        out=out,
        auto_pad=auto_pad,
        **data,
    )[0]
    np.testing.assert_allclose(found[0, 0], expected, rtol=1e-5, atol=1e-6)


def test_regions_move_before_they_are_scaled():
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 1, 8).repeat(8, 2)  # the column's number
    boxes = np.float32([[2, 4, 6, 8]])
    data = {"pooled_h": 1, "pooled_w": 2, "sampling_ratio": 1, "spatial_scale": 0.5, "mode": "avg"}
    out = [("f32", (1, 1, 1, 2))]
    for mode, left in (("asymmetric", 1), ("half_pixel_for_nn", 0.5), ("half_pixel", 0.75)):
        found = single(
            "ROIAlign",
            x,
            boxes,
            np.int32([0]),
            out=out,
            version="opset9",
            aligned_mode=mode,
            **data,
        )[0]
        np.testing.assert_allclose(found.reshape(-1), [left + 0.5, left + 1.5], rtol=1e-6)


def test_responses_across_all_channels():
    x = floats(2, 5, 3)
    expected = x / np.sqrt((x.astype(float) ** 2).sum(1, keepdims=True) + 0.5)
    np.testing.assert_allclose(single("GRN", x, bias=0.5)[0], expected, rtol=1e-5)


def test_no_axes_divide_each_element_by_its_own_length():
    x = floats(2, 5)
    found = single("NormalizeL2", x, np.zeros(0, np.int64), eps=0.5, eps_mode="add")[0]
    np.testing.assert_allclose(found, x / np.sqrt(x.astype(float) ** 2 + 0.5), rtol=1e-5)


def pairs(array):
    return np.stack([array.real, array.imag], -1).astype(np.float32)


@pytest.mark.parametrize("sizes", [None, (8, 3)])
@pytest.mark.parametrize("kind", ["DFT", "IDFT", "RDFT", "IRDFT"])
def test_fourier_transforms(kind, sizes):
    numpys = {"DFT": "fftn", "IDFT": "ifftn", "RDFT": "rfftn", "IRDFT": "irfftn"}[kind]
    x = floats(2, 5, 6) if kind == "RDFT" else floats(2, 5, 6, 2)
    given = x if kind == "RDFT" else x[..., 0] + 1j * x[..., 1].astype(float)
    expected = getattr(np.fft, numpys)(given, sizes, (1, 2))
    constants = [whole(1, 2), *([] if sizes is None else [whole(*sizes)])]
    shown = expected if kind == "IRDFT" else pairs(expected)
    out = [("f32", shown.shape)]
    found = single(kind, x, *constants, out=out, version="opset9")[0]
    np.testing.assert_allclose(found, shown, rtol=1e-4, atol=1e-5)
    assert found.shape == shown.shape


@pytest.mark.parametrize("frames_last", [True, False])
@pytest.mark.parametrize("length", [16, 11])
@pytest.mark.parametrize("signals", [(), (2,)])
def test_short_time_transforms(frames_last, length, signals):
    """Frames as OpenVINO cuts them: windows stand in their middle, zeros around them."""
    x, window = floats(*signals, 50), floats(length)
    before = (16 - length) // 2
    whole_window = np.pad(window.astype(float), (before, 16 - length - before))
    frames = np.stack([x[..., start : start + 16] for start in range(0, 35, 5)], -2)
    expected = pairs(np.fft.rfft(frames * whole_window))
    if frames_last:
        expected = np.swapaxes(expected, -2, -3)
    data = {"out": [("f32", expected.shape)], "version": "opset15"}
    constants = [window, np.int64(16), np.int64(5)]
    found = single("STFT", x, *constants, transpose_frames=str(frames_last).lower(), **data)[0]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def restored(spectrum, window, size, step, center, normalized, length):
    """ISTFT-16: what frames say of each sample, weighted by their windows, in float64."""
    before = (size - len(window)) // 2
    weights = np.pad(window.astype(float), (before, size - len(window) - before))
    numbers = spectrum[..., 0].astype(float) + 1j * spectrum[..., 1].astype(float)
    frames = np.fft.irfft(np.moveaxis(numbers, -2, -1), size)
    frames *= np.sqrt(size) if normalized else 1
    count = frames.shape[-2]
    total = np.zeros((*frames.shape[:-2], (count - 1) * step + size))
    weight = np.zeros(total.shape[-1])
    for number in range(count):
        samples = slice(number * step, number * step + size)
        total[..., samples] += frames[..., number, :] * weights
        weight[samples] += weights**2
    signal = np.divide(total, weight, out=np.zeros_like(total), where=weight != 0)
    if center:
        signal = signal[..., size // 2 : signal.shape[-1] - (0 if length else size // 2)]
    if length is None:
        return signal
    room = [(0, 0)] * (signal.ndim - 1) + [(0, max(length - signal.shape[-1], 0))]
    return np.pad(signal, room)[..., :length]


@pytest.mark.parametrize("signals", [(), (3,)])
@pytest.mark.parametrize("size", [16, 11])
@pytest.mark.parametrize("length", [None, 64, 20])
@pytest.mark.parametrize(("center", "normalized"), [(False, False), (True, False), (True, True)])
def test_inverse_short_time_transforms(signals, size, length, center, normalized):
    spectrum, window = floats(*signals, size // 2 + 1, 13, 2), np.abs(floats(9)) + 0.5
    expected = restored(spectrum, window, size, 4, center, normalized, length)
    found = single(
        "ISTFT", spectrum, window, np.int64(size), np.int32(4),
        *([] if length is None else [np.array([length])]),
        out=[("f32", expected.shape)], version="opset16",
        center=str(center).lower(), normalized=str(normalized).lower(),
    )[0]  # fmt: skip
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_signal_comes_back_from_its_frames():
    signal, window = floats(2, 56), np.hanning(13)[1:-1].astype(np.float32)
    constants = [window, np.int64(11), np.int64(3)]
    data = {"out": [("f32", (2, 6, 16, 2))], "version": "opset15", "transpose_frames": "true"}
    spectrum = single("STFT", signal, *constants, **data)[0]
    data = {"center": "false", "normalized": "false", "version": "opset16"}
    found = single("ISTFT", spectrum, *constants, out=[("f32", (2, 56))], **data)[0]
    np.testing.assert_allclose(found, signal, atol=1e-5)
