"""Layers of an OpenVINO IR mean what their definitions say: compared with numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from irs import Net
from onnx.reference import ReferenceEvaluator

from partita.errors import ModelFormatError
from partita.frontends.reader import read_model

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True, params=[False, True], ids=["plain", "compressed"])
def _weights(request, monkeypatch):
    """Every test runs with weights as they are, and with weights behind a Convert."""
    monkeypatch.setattr(Net, "compressed", request.param)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run(net, **feeds):
    model = read_model(net.bytes(), weights=bytes(net.weights))
    return ReferenceEvaluator(model.to_onnx()).run(None, feeds)


def single(kind, arrays, out=None, version="opset1", constants=(), **data):
    """The outputs of one layer; the inputs in ``constants`` (by place) are constants."""
    net, values, feeds = Net(), [], {}
    for place, array in enumerate(map(np.asarray, arrays)):
        if place in constants:
            values.append(net.const(array))
        else:
            names = {"float32": "f32", "float64": "f64", "bool": "boolean"}
            kind_name = names.get(array.dtype.name, array.dtype.name.replace("int", "i"))
            values.append(net.parameter(f"x{place}", kind_name.replace("ui", "u"), array.shape))
            feeds[f"x{place}"] = array
    found = net.op(kind, *values, out=out, version=version, **data)
    for value in found if isinstance(found, list) else [found]:
        net.result(value)
    return run(net, **feeds)


def near(found, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
    assert found.shape == np.shape(expected)


A, B = floats(2, 3, 4), floats(3, 1)
N = np.array([-7, -6, 5, 7], np.int32)
D = np.array([2, -4, -3, 4], np.int32)


@pytest.mark.parametrize(
    ("kind", "arrays", "data", "expected"),
    [
        ("Add", [A, B], {}, A + B),
        ("SquaredDifference", [A, B], {}, (A - B) ** 2),
        ("NotEqual", [N, D], {}, N != D),
        ("Divide", [A, B], {}, A / B),
        ("Divide", [N, D], {"m_pythondiv": "true"}, N // D),
        ("Divide", [N, D], {"m_pythondiv": "false"}, np.trunc(N / D)),
        ("Mod", [N, D], {}, np.fmod(N, D)),
        ("FloorMod", [N, D], {}, np.mod(N, D)),
        ("FloorMod", [A, B], {}, np.mod(A, B)),
        ("Clamp", [A], {"min": "-0.5", "max": "1"}, np.clip(A, -0.5, 1)),
        ("Clamp", [N], {"min": "-6.5", "max": "5.5"}, np.clip(N, -6, 5)),
        ("Swish", [A], {}, A / (1 + np.exp(-A))),
        ("HSigmoid", [A], {}, np.clip(A + 3, 0, 6) / 6),
        ("HSwish", [A], {}, A * np.clip(A + 3, 0, 6) / 6),
        ("Round", [A * 2], {"mode": "half_to_even"}, np.round(A * 2)),
        (
            "Round",
            [np.float32([-2.5, -0.5, 0.5, 1.5, 2.4])],
            {"mode": "half_away_from_zero"},
            [-3, -1, 1, 2, 2],
        ),
        ("IsFinite", [np.float32([1, np.inf, -np.inf, np.nan])], {}, [True, False, False, False]),
        (
            "IsInf",
            [np.float32([1, np.inf, -np.inf])],
            {"detect_negative": "false"},
            [False, True, False],
        ),
        ("Convert", [A], {"destination_type": "i32"}, A.astype(np.int32)),
        ("LogSoftmax", [A], {"axis": "1"}, A - np.log(np.exp(A).sum(1, keepdims=True))),
        ("SoftMax", [A], {"axis": "2"}, np.exp(A) / np.exp(A).sum(2, keepdims=True)),
        ("Concat", [A, A], {"axis": "-1"}, np.concatenate([A, A], -1)),
        ("MatMul", [A, floats(2, 4, 5)], {}, None),
    ],
)
def test_layers_of_plain_inputs(kind, arrays, data, expected):
    if expected is None:
        expected = arrays[0] @ arrays[1]
    near(single(kind, arrays, **data)[0], expected)


def test_matrix_products_with_either_side_transposed():
    a, b = floats(5, 2, 3), floats(4, 2)
    out = [("f32", (5, 3, 4))]
    found = single("MatMul", [a, b], out, transpose_a="true", transpose_b="true")[0]
    near(found, np.swapaxes(a, -1, -2) @ b.T)


def convolve(x, w, pads, groups=1):
    """A convolution of stride 1 by the definition."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pads, pads), (pads, pads)])
    per_in, per_out = x.shape[1] // groups, w.shape[0] // groups
    height, width = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    y = np.zeros((x.shape[0], w.shape[0], height, width))
    for channel in range(w.shape[0]):
        start = channel // per_out * per_in
        for i in range(height):
            for j in range(width):
                patch = x[:, start : start + per_in, i : i + w.shape[2], j : j + w.shape[3]]
                y[:, channel, i, j] = (patch * w[channel]).sum((1, 2, 3))
    return y


WINDOWS = {"strides": "1,1", "dilations": "1,1", "pads_begin": "1,1", "pads_end": "1,1"}


@pytest.mark.parametrize("constants", [(), (1,)])
def test_grouped_convolutions(constants):
    x, w = floats(2, 4, 5, 5), floats(2, 3, 2, 3, 3)
    out = [("f32", (2, 6, 5, 5))]
    found = single("GroupConvolution", [x, w], out, constants=constants, **WINDOWS)[0]
    near(found, convolve(x, w.reshape(6, 2, 3, 3), 1, groups=2), rtol=1e-4, atol=1e-5)


def test_transposed_convolutions_are_the_adjoint_of_convolutions():
    x, w, other = floats(1, 3, 4, 4), floats(3, 2, 3, 3), floats(1, 2, 6, 6)
    out = [("f32", (1, 2, 6, 6))]
    plain = WINDOWS | {"pads_begin": "0,0", "pads_end": "0,0"}
    found = single("ConvolutionBackpropData", [x, w], out, **plain)[0]
    assert found.shape == other.shape
    near((found * other).sum(), (x * convolve(other, w, 0)).sum(), rtol=1e-4)


@pytest.mark.parametrize("axes", [[-1], [1, 2]])
@pytest.mark.parametrize("mode", ["inside_sqrt", "outside_sqrt"])
def test_mean_variance_normalization(axes, mode):
    data = {"normalize_variance": "true", "eps": "0.1", "eps_mode": mode}
    found = single("MVN", [A, np.array(axes)], version="opset6", constants=(1,), **data)[0]
    wide, along = A.astype(np.float64), tuple(axes)
    centred = wide - wide.mean(along, keepdims=True)
    variance = (centred**2).mean(along, keepdims=True)
    root = np.sqrt(variance + 0.1) if mode == "inside_sqrt" else np.sqrt(variance) + 0.1
    near(found, centred / root)


@pytest.mark.parametrize("version", ["opset1", "opset5"])
def test_batch_normalization_and_its_two_orders(version):
    x, scale, shift, mean = floats(2, 3, 4), floats(3), floats(3), floats(3)
    variance = np.abs(floats(3)) + 0.5
    order = [scale, shift, x] if version == "opset1" else [x, scale, shift]
    out = [("f32", x.shape)]
    found = single(
        "BatchNormInference", [*order, mean, variance], out, version, (), epsilon="0.001"
    )[0]
    column = (slice(None), None)
    expected = (x - mean[column]) / np.sqrt(variance[column] + 0.001)
    near(found, expected * scale[column] + shift[column], rtol=1e-4)


def test_fake_quantization():
    low, high, to_low, to_high = (np.float32(number) for number in (-1, 1, 0, 2))
    found = single(
        "FakeQuantize", [A, low, high, to_low, to_high], constants=(1, 2, 3, 4), levels="5"
    )[0]
    near(found, np.round((np.clip(A, -1, 1) + 1) / 2 * 4) / 4 * 2)


@pytest.mark.parametrize("low", [0, -1.28, -1.2749])
@pytest.mark.parametrize("to_low", [None, 0, -128])
def test_fake_quantization_to_bytes(low, to_low):
    """On a grid that has 0 it is QuantizeLinear and DequantizeLinear; -1.2749 has none."""
    low, to_low = np.float32(low), np.float32(low if to_low is None else to_low)
    high = np.float32(low + 2.55)
    to_high = np.float32(to_low + (2.55 if to_low == low else 255))
    bounds = [low, high, to_low, to_high]
    found = single("FakeQuantize", [A, *bounds], constants=(1, 2, 3, 4), levels="256")[0]
    steps = np.round((np.clip(A.astype(np.float64), low, high) - low) / (high - low) * 255)
    near(found, steps / 255 * (to_high - to_low) + to_low)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ({"begin_mask": "0,0", "end_mask": "0,0"}, A[1:2, 0:3]),
        ({"begin_mask": "1,0", "end_mask": "1,1"}, A[:, 0:]),
        ({"begin_mask": "0,0", "end_mask": "0,0", "shrink_axis_mask": "1,0"}, A[1, 0:3]),
        ({"begin_mask": "0,1", "end_mask": "0,1", "new_axis_mask": "0,1"}, A[1:2, None]),
        ({"begin_mask": "1,0", "end_mask": "1,0", "ellipsis_mask": "1,0"}, A[..., 0:3]),
        ({"begin_mask": "1,1", "end_mask": "1,0", "ellipsis_mask": "1", "shrink_axis_mask": "0,1"},
         A[..., 0]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("constants", [(1, 2, 3), (3,)])
def test_strided_slices(masks, expected, constants):
    arrays = [A, np.array([1, 0]), np.array([2, 3]), np.array([1, 1])]
    found = single("StridedSlice", arrays, [("f32", expected.shape)], "opset1", constants, **masks)
    near(found[0], expected)


def test_the_last_element_by_a_strided_slice():
    arrays = [A, np.array([-1]), np.array([0]), np.array([1])]
    data = {"begin_mask": "0", "end_mask": "0", "shrink_axis_mask": "1"}
    near(single("StridedSlice", arrays, [("f32", (3, 4))], "opset1", (1, 2, 3), **data)[0], A[-1])


@pytest.mark.parametrize("constants", [(1, 2), (1,)])
def test_parts_of_which_one_takes_the_rest(constants):
    x = floats(2, 7)
    out = [("f32", (2, n)) for n in (2, 4, 1)]
    arrays = [x, np.array(1), np.array([2, -1, 1])]
    found = single("VariadicSplit", arrays, out, "opset1", constants)
    for part, expected in zip(found, np.split(x, [2, 6], 1), strict=True):
        near(part, expected)


def test_repetition_joins_missing_axes_on_either_side():
    near(single("Tile", [B, np.array([2, 1, 3])], [("f32", (2, 3, 3))])[0], np.tile(B, (2, 1, 3)))
    near(single("Tile", [A, np.array([2])], [("f32", (2, 3, 8))])[0], np.tile(A, 2))


def test_broadcasts():
    arrays = [floats(3), np.array([2, 3, 4]), np.array([1])]
    found = single("Broadcast", arrays, [("f32", (2, 3, 4))], "opset3", (2,), mode="explicit")[0]
    near(found, np.broadcast_to(arrays[0][:, None], (2, 3, 4)))
    found = single("Broadcast", [B, np.array([2, 1, 4])], [("f32", (2, 3, 4))], "opset3",
                   mode="bidirectional")[0]  # fmt: skip
    near(found, np.broadcast_to(B, (2, 3, 4)))


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        ("HardSigmoid", 0.3, 0.25, np.clip(0.3 * A + 0.25, 0, 1)),
        ("HardSigmoid", 0.5, 0.25, np.clip(0.5 * A + 0.25, 0, 1)),
        ("Selu", 1.5, 1.25, 1.25 * np.where(A > 0, A, 1.5 * (np.exp(A) - 1))),
    ],
)
def test_numbers_that_onnx_has_as_attributes(kind, first, second, expected):
    arrays = [A, np.float32(first), np.float32(second)]
    near(single(kind, arrays, constants=(1, 2))[0], expected)


def test_one_slope_for_each_channel():
    slopes = floats(3)
    expected = np.where(A < 0, A * slopes[:, None], A)
    near(single("PReLU", [A, slopes], constants=(1,))[0], expected)


def test_elements_by_index_with_batches():
    x, places = floats(2, 5, 3), np.array([[0, 4], [-1, 2]])
    out = [("f32", (2, 2, 3))]
    found = single("Gather", [x, places, np.array(1)], out, "opset8", (2,), batch_dims="1")[0]
    near(found, np.stack([x[0][places[0]], x[1][places[1]]]))


def test_slices_of_an_axis_are_written():
    x, updates = floats(2, 5, 3), floats(2, 2, 3)
    out = [("f32", x.shape)]
    arrays = [x, np.array([3, 0]), updates, np.array(1)]
    found = single("ScatterUpdate", arrays, out, "opset3", (3,))[0]
    expected = x.copy()
    expected[:, [3, 0]] = updates
    near(found, expected)


@pytest.mark.parametrize("mode", ["ignore_negative", "normalize"])
def test_one_of_many(mode):
    on, off = np.float32(5), np.float32(2)
    arrays = [np.array([1, -1, 3]), np.array(3), on, off]
    out = [("f32", (3, 3))]
    found = single("OneHot", arrays, out, "opset16", axis="-1", negative_indices_mode=mode)[0]
    last = [2, 2, 5] if mode == "normalize" else [2, 2, 2]
    near(found, np.float32([[2, 5, 2], last, [2, 2, 2]]))
    arrays[0], out = np.array(2), [("f32", (3,))]
    near(single("OneHot", arrays, out, "opset1", axis="-1")[0], np.float32([2, 2, 5]))


def test_channels_of_groups_by_turns():
    x = floats(2, 6, 3)
    expected = x.reshape(2, 3, 2, 3).swapaxes(1, 2).reshape(2, 6, 3)
    near(single("ShuffleChannels", [x], axis="1", group="3")[0], expected)


def test_resizing_keeps_the_corners():
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    arrays = [x, np.float32([0.6]), np.array([3])]
    out = [("f32", (1, 1, 1, 3))]
    data = {"mode": "linear_onnx", "shape_calculation_mode": "scales"}
    data["coordinate_transformation_mode"] = "align_corners"
    found = single("Interpolate", arrays, out, "opset11", (1, 2), **data)[0]
    near(found.reshape(-1), [0, 2, 4])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, h, c, w, r, b):
    """A sequence by OpenVINO's definition: gates forget, input, cell, output; one bias."""
    outputs = []
    for step in range(x.shape[1]):
        f, i, g, o = np.split(x[:, step] @ w.T + h @ r.T + b, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, 1), h, c


def test_lstm_sequences_in_both_directions():
    x, h, c = floats(2, 4, 3), floats(2, 2, 5), floats(2, 2, 5)
    w, r, b = floats(2, 20, 3), floats(2, 20, 5), floats(2, 20)
    arrays = [x, h, c, np.array([4, 4], np.int32), w, r, b]
    out = [("f32", (2, 2, 4, 5)), ("f32", (2, 2, 5)), ("f32", (2, 2, 5))]
    data = {"direction": "bidirectional", "hidden_size": "5", "activations": "sigmoid,tanh,tanh"}
    found = single("LSTMSequence", arrays, out, "opset5", (4, 5, 6), **data)
    for side, inputs in enumerate([x, x[:, ::-1]]):
        y, last, cell = lstm(inputs, h[:, side], c[:, side], w[side], r[side], b[side])
        near(found[0][:, side], y[:, ::-1] if side else y, rtol=1e-4, atol=1e-5)
        near(found[1][:, side], last, rtol=1e-4, atol=1e-5)
        near(found[2][:, side], cell, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("after", [True, False])
def test_gru_cells(after):
    x, h = floats(2, 3), floats(2, 5)
    w, r, b = floats(15, 3), floats(15, 5), floats(20 if after else 15)
    data = {"hidden_size": "5", "linear_before_reset": str(after).lower()}
    found = single("GRUCell", [x, h, w, r, b], [("f32", (2, 5))], "opset3", (2, 3, 4), **data)[0]
    inward, inner = x @ w.T, h @ r.T
    z = sigmoid(inward[:, :5] + inner[:, :5] + b[:5])
    reset = sigmoid(inward[:, 5:10] + inner[:, 5:10] + b[5:10])
    if after:
        new = np.tanh(inward[:, 10:] + b[10:15] + reset * (inner[:, 10:] + b[15:]))
    else:
        new = np.tanh(inward[:, 10:] + b[10:] + (reset * h) @ r[10:].T)
    near(found, (1 - z) * new + z * h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["plain", "causal", "mask", "scale"])
def test_attention(form):
    q, k, v = floats(2, 3, 4, 8), floats(2, 3, 4, 8), floats(2, 3, 4, 6)
    mask = RNG.random((2, 1, 4, 4)) > 0.3
    mask[..., 0] = True
    arrays, scale, data = [q, k, v], 8**-0.5, {"causal": "false"}
    if form == "causal":
        data, mask = {"causal": "true"}, np.tri(4, dtype=bool)
    elif form == "mask":
        arrays.append(mask)
    elif form == "scale":
        scale, mask = 0.25, np.zeros((1, 4), np.float32)
        arrays += [mask, np.float32(0.25)]
    scores = (q @ np.swapaxes(k, -1, -2)) * scale
    if mask.dtype == bool and form != "plain":
        scores = np.where(mask, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    expected = shares / shares.sum(-1, keepdims=True) @ v
    found = single("ScaledDotProductAttention", arrays, [("f32", v.shape)], "opset13", **data)[0]
    near(found, expected, rtol=1e-4)


def test_boxes_come_by_score_over_all_classes():
    boxes = np.float32([[[0, 0, 1, 1], [0, 0, 1, 1.05], [5, 5, 6, 6]]])
    scores = np.float32([[[0.6, 0.9, 0.3], [0.1, 0.2, 0.95]]])
    arrays = [boxes, scores, np.array(3), np.float32(0.5), np.float32(0.25), np.float32(0)]
    net = Net()
    values = [net.parameter("boxes", "f32", boxes.shape), net.parameter("s", "f32", scores.shape)]
    values += [net.const(array) for array in arrays[2:]]
    out = [("i32", (-1, 3)), ("f32", (-1, 3)), ("i32", (1,))]
    for value in net.op("NonMaxSuppression", *values, out=out, version="opset9",
                        output_type="i32", sort_result_descending="true"):  # fmt: skip
        net.result(value)
    chosen, found, count = run(net, boxes=boxes, s=scores)
    assert chosen.dtype == np.int32
    np.testing.assert_array_equal(chosen, [[0, 1, 2], [0, 0, 1], [0, 0, 2]])
    near(found, np.float32([[0, 1, 0.95], [0, 0, 0.9], [0, 0, 0.3]]))
    assert count.tolist() == [3]


@pytest.mark.parametrize(
    ("kind", "arrays", "data", "said"),
    [
        ("Pad", [A, np.zeros(3, int), np.ones(3, int)], {"pad_mode": "circular"},
         "pad_mode 'circular' is not known; known are constant, edge, reflect, symmetric"),
        ("DeformableConvolution", [A, A, A], {}, "bilinear_interpolation_pad 'false' is not read"),
        ("Add", [A, B], {"auto_broadcast": "pdpd"}, "auto_broadcast 'pdpd' is not known"),
        ("Elu", [A], {"alpha": "much"}, "attribute 'alpha' is 'much', not a number"),
        ("Elu", [A], {}, "attribute 'alpha' is None, not a number"),
        ("Transpose", [A, np.array([0, 2, 1])], {}, "input 1 must be a constant"),
        ("HardSigmoid", [A, np.float32(1), np.float32(0)], {}, "input 1 must be a constant"),
        ("LRN", [A, np.array([2])], {"alpha": "1"}, "input 1 must be a constant"),
        ("PSROIPooling", [A], {}, "not known: layer 'PSROIPooling_1' (PSROIPooling, opset1)"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_by_name(kind, arrays, data, said):
    with pytest.raises(ModelFormatError) as caught:
        single(kind, arrays, **data)
    assert said in str(caught.value)
    assert f"({kind}, opset1)" in str(caught.value)
