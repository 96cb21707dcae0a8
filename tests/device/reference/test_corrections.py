"""Operators that the reference evaluator had wrong, against onnxruntime."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import partita
from partita.errors import InferError, InputError
from partita.lowering.corrected_reference import corrected_for


def one_node(op_type, opset, feeds, output, **attributes):
    """A model of one operator of these inputs."""
    graph = helper.make_graph(
        [helper.make_node(op_type, list(feeds), ["y"], **attributes)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [helper.make_tensor_value_info("y", output, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def alone(op_type, opset, arrays, **attributes):
    feeds = {f"i{index}": array for index, array in enumerate(arrays)}
    proto = one_node(op_type, opset, feeds, TensorProto.FLOAT, **attributes)
    return partita.Core().compile_model(proto, "REFERENCE")(feeds)[0]


def both(op_type, opset, arrays, output=TensorProto.FLOAT, **attributes):
    feeds = {f"i{index}": array for index, array in enumerate(arrays)}
    proto = one_node(op_type, opset, feeds, output, **attributes)
    found = partita.Core().compile_model(proto, "REFERENCE")(feeds)[0]
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)[0]
    return found, want


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 4, 5), (1, 2, 3, 4, 5)])
def test_global_max_pool(shape):
    got, want = both("GlobalMaxPool", 13, [floats(*shape)])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("opset", [7, 9, 14, 15])
def test_batch_normalization(opset):
    arrays = [floats(2, 3, 4, 5), floats(3), floats(3, seed=1), floats(3, seed=2)]
    arrays.append(np.abs(floats(3, seed=3)) + 0.1)
    got, want = both("BatchNormalization", opset, arrays, epsilon=1e-3)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size):
    x = floats(2, 7, 4, 5) * 10
    got, want = both("LRN", 13, [x], size=size, alpha=0.01, beta=0.6, bias=2.0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_softmax_family(op_type, opset, axis):
    if opset == 9 and axis == -1:
        axis = 2  # negative axes came with opset 11
    attributes = {} if axis is None else {"axis": axis}
    got, want = both(op_type, opset, [floats(3, 4, 5)], **attributes)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [(), (1,)])
@pytest.mark.parametrize("given", [0, 1, 2, 3])
def test_suppression_takes_limits_that_are_scalars_or_left_out(dims, given):
    corners = np.abs(floats(1, 9, 2))
    boxes = np.concatenate([corners, corners + 1], axis=2)
    limits = [np.full(dims, 3, np.int64), *(np.full(dims, x, np.float32) for x in (0.4, 0.1))]
    arrays = [boxes, floats(1, 2, 9, seed=1), *limits[:given]]
    got, want = both("NonMaxSuppression", 11, arrays, TensorProto.INT64)
    np.testing.assert_array_equal(got, want)
    assert len(got) == 0 if given == 0 else len(got) > 1


@pytest.mark.parametrize(("sizes", "axis"), [((3, 4, 5), n) for n in (0, 1, -1)] + [((4,), 0)])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0, 2)])
def test_gather(sizes, axis, shape):
    """Also one element of a row, a scalar."""
    index = np.random.default_rng(1).integers(-3, 3, shape)
    found, want = both("Gather", 13, [floats(*sizes), index], axis=axis)
    np.testing.assert_array_equal(found, want)
    assert found.shape == want.shape


def test_gather_does_not_copy_a_table_at_an_odd_address():
    """As one that is read from a file may be; the original copied the vocabulary for each word."""
    table = np.frombuffer(b"\0" + floats(4096, 64).tobytes(), np.uint8)[1:].view(np.float32)
    table = table.reshape(4096, 64)
    (gather,) = (op for op in corrected_for(17) if op.__name__ == "Gather")
    index = np.array([[7, -1], [0, 4095]])
    tracemalloc.start()
    found = gather.eval(table, index, axis=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, table.copy()[index])
    assert peak < table.nbytes / 4


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 4), (2, 2)])
def test_gather_elements(axis, shape):
    """Also where indices are fewer than the data beside the axis."""
    data = floats(3, 4)
    index = np.random.default_rng(1).integers(-shape[axis], shape[axis], shape)
    found, want = both("GatherElements", 13, [data, index], axis=axis)
    np.testing.assert_array_equal(found, want)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("far", [2**62, -(2**62), 3, -4])
def test_indices_out_of_range_are_refused_at_once(far):
    """The original subtracts the size from 2**62 until it fits."""
    with pytest.raises(partita.errors.InferError, match="allowed are -3 to 2"):
        both("GatherElements", 13, [floats(3, 4), np.full((3, 4), far)], axis=0)


def test_windows_that_would_take_forever_are_refused():
    graph = helper.make_graph(
        [helper.make_node("LpPool", ["x"], ["y"], "pool", kernel_shape=[2**31 - 1])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    refusals = partita.Core().query_model(proto, "REFERENCE").reasons
    assert "a window of 2147483647 elements; takes up to 65536" in str(refusals["pool"])


@pytest.mark.parametrize(("ratio", "size"), [(2**31 - 1, 4.0), (0, 1e9), (0, np.inf), (0, np.nan)])
@pytest.mark.parametrize("opset", [10, 16])
def test_regions_of_endless_samples_are_refused(ratio, size, opset):
    arrays = [floats(1, 1, 4, 4), np.array([[0, 0, size, size]], np.float32), np.array([0])]
    with pytest.raises(InferError, match="RoiAlign takes"):
        alone("RoiAlign", opset, arrays, sampling_ratio=ratio, output_height=2, output_width=2)


@pytest.mark.parametrize(
    "wanted",
    [
        {"sizes": np.array([16777217, -5, 16777217, 2**32])},
        {"sizes": np.array([1, 1, 2**20, 2**20])},
        {"scales": np.array([1, 1, 1e9, 1e9], np.float32)},
        {"scales": np.array([1, 1, np.inf, 1], np.float32)},
    ],
)
def test_images_resized_without_end_are_refused(wanted):
    none = np.zeros(0, np.float32)
    arrays = [floats(1, 1, 4, 4), none, wanted.get("scales", none)]
    with pytest.raises(InferError, match="Resize cannot make"):
        alone("Resize", 13, [*arrays, *([wanted["sizes"]] if "sizes" in wanted else [])])


@pytest.mark.parametrize("op_type", ["ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_logarithms_of_integers_are_cut_off(op_type, dtype):
    x = np.arange(3, 27, dtype=dtype).reshape(2, 3, 4)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto = one_node(op_type, 17, {"x": x}, element, axes=[1], keepdims=0)
    terms = x.astype(np.float64) if op_type == "ReduceLogSum" else np.exp(x.astype(np.float64))
    got = partita.Core().compile_model(proto, "REFERENCE")({"x": x})[0]
    np.testing.assert_array_equal(got, np.trunc(np.log(terms.sum(axis=1))))


def test_mean_of_inputs_that_broadcast():
    got, want = both("Mean", 13, [floats(4), floats(2, 3, 4, seed=1)])
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("values", [np.array([False, True]), np.array(["off", "on"], object)])
def test_one_hot_of_values_that_cannot_be_added(values):
    indices = np.array([[0.0, 2.9], [-1.0, 7.0]], np.float32)  # fractions are cut off
    element = helper.np_dtype_to_tensor_dtype(values.dtype)
    feeds = {"i": indices, "d": np.array(4, np.int64), "v": values}
    proto = one_node("OneHot", 17, feeds, element)
    got = partita.Core().compile_model(proto, "REFERENCE")(feeds)[0]
    places = np.array([[0, 2], [3, -9]])[..., None] == np.arange(4)
    np.testing.assert_array_equal(got, np.where(places, values[1], values[0]))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_shrink_of_large_integers(dtype):
    x = np.array([0, 1, 2, 3, 2**53 + 1, 2**53 + 3, np.iinfo(dtype).max], dtype)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    proto = one_node("Shrink", 17, {"x": x}, element, lambd=1.0, bias=2.0)
    want = [n - 2 if n > 1 else 0 for n in x.tolist()]
    for device in ("REFERENCE", "CPU"):
        got = partita.Core().compile_model(proto, device)({"x": x})[0]
        assert got.tolist() == want, device


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_softsign_of_a_scalar(dtype):
    x = np.array(-2.5, dtype)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    compiled = partita.Core().compile_model(
        one_node("Softsign", 17, {"x": x}, element), "REFERENCE"
    )
    assert compiled({"x": x})[0] == np.array(-2.5 / 3.5, dtype)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("shape", [(2, 0), (2, 5)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_the_mean_of_no_integers_is_zero(dtype, shape, opset):
    x = np.arange(-3, 7, dtype=dtype).reshape(2, 5)[:, : shape[1]]
    attributes = {"axes": [1]} if opset < 18 else {}
    arrays = [x] if opset < 18 else [x, np.array([1])]
    output = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    got, want = both("ReduceMean", opset, arrays, output, **attributes)
    if dtype == np.float32 and not x.size:
        want = np.full_like(want, np.nan)  # as ONNX divides 0 by 0; onnxruntime has 0
    np.testing.assert_array_equal(got, want)
    assert got.dtype == dtype


@pytest.mark.parametrize("exclusive", [0, 1])
def test_a_scalar_has_no_axis_to_add_up_along(exclusive):
    with pytest.raises(InputError, match="axis 0 is out of bounds"):
        alone("CumSum", 14, [np.array(3.5, np.float32), np.array(0)], exclusive=exclusive)


@pytest.mark.parametrize("pads", ["", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_of_a_given_size(pads):
    given = {"auto_pad": pads} if pads else {}
    arrays = [floats(1, 2, 5, 4), floats(2, 3, 3, 3, seed=1)]
    got, want = both("ConvTranspose", 11, arrays, strides=[2, 2], output_shape=[10, 8], **given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_upsample_in_lines():
    scales = np.array([1, 1, 2, 3], np.float32)
    got, want = both("Upsample", 9, [floats(1, 2, 3, 4), scales], mode="linear")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_unique_texts_are_objects_in_order():
    x = np.array(["b", "", "ab", "b"], object)
    proto = one_node("Unique", 17, {"x": x}, TensorProto.STRING, sorted=1)
    got = partita.Core().compile_model(proto, "REFERENCE")({"x": x})[0]
    assert got.tolist() == ["", "ab", "b"]


def test_statistics_of_float32_beside_float64():
    x = floats(2, 3, 4).astype(np.float64)
    scale, bias, mean = (floats(3, seed=n) for n in (1, 2, 3))
    var = np.abs(floats(3, seed=4)) + 0.5
    names = ["x", "s", "b", "m", "v"]
    feeds = dict(zip(names, (x, scale, bias, mean, var), strict=True))
    proto = one_node("BatchNormalization", 17, feeds, TensorProto.DOUBLE, epsilon=0.125)
    wide = [a.astype(np.float64)[:, None] for a in (scale, bias, mean, var)]
    want = (x - wide[2]) / np.sqrt(wide[3] + 0.125) * wide[0] + wide[1]
    for device in ("REFERENCE", "CPU"):
        got = partita.Core().compile_model(proto, device)(feeds)[0]
        np.testing.assert_allclose(got, want, rtol=1e-13, err_msg=device)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_of_opset_10(mode):
    scales = np.array([1, 1, 2, 1.5], np.float32)
    got, want = both("Resize", 10, [floats(1, 2, 3, 4), scales], mode=mode)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(p):
    got, want = both("GlobalLpPool", 13, [floats(2, 3, 4, 5)], p=p)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_are_not_moved_by_half_a_pixel_before_opset_16(mode):
    boxes = np.array([[0, 0, 3, 5], [1.5, 2, 6, 4.25]], np.float32)
    arrays = [floats(1, 2, 8, 8), boxes, np.zeros(2, np.int64)]
    given = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "mode": mode}
    got, want = both("RoiAlign", 10, arrays, **given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    moved, due = both("RoiAlign", 16, arrays, **given)
    np.testing.assert_allclose(moved, due, rtol=1e-5, atol=1e-6)
    assert not np.allclose(moved, got, rtol=1e-2)


def test_attention_of_doubles_takes_the_root_of_its_scale_in_float64():
    q, k, v = (floats(1, 2, n, 4, seed=n).astype(np.float64) for n in (3, 5, 6))
    v = v[:, :, :5]
    feeds = {"q": q, "k": k, "v": v}
    proto = one_node("Attention", 23, feeds, TensorProto.DOUBLE, scale=0.4, softcap=0.7)
    (found,) = partita.Core().compile_model(proto, "REFERENCE")(feeds).to_tuple()
    scale, cap = (float(np.float32(number)) for number in (0.4, 0.7))
    scores = cap * np.tanh(np.einsum("bhqd,bhkd->bhqk", q, k) * scale / cap)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    due = np.einsum("bhqk,bhkd->bhqd", weights, v)
    np.testing.assert_allclose(found, due, rtol=1e-13)


@pytest.mark.parametrize("opset", [13, 19, 21])
def test_quantization_of_what_no_integer_holds(opset):
    x = np.array([np.inf, -np.inf, 3e38, -3e38, 1e12, 1.0, -2.5], np.float32)
    scale = np.array(0.03125, np.float32)
    for dtype, element in ((np.int8, TensorProto.INT8), (np.uint8, TensorProto.UINT8)):
        feeds = [x, scale, np.array(3, dtype)]
        got, due = both("QuantizeLinear", opset, feeds, element)
        np.testing.assert_array_equal(got, due)


def test_integer_products_with_a_zero_point_of_each_row_and_column():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (3, 4), np.uint8), rng.integers(-128, 128, (4, 3), np.int8)
    rows, columns = np.array([1, 200, 30], np.uint8), np.array([-9, 0, 5], np.int8)
    feeds = {"a": a, "b": b, "rows": rows, "columns": columns}
    proto = one_node("MatMulInteger", 10, feeds, TensorProto.INT32)
    got = partita.Core().compile_model(proto, "REFERENCE")(feeds)[0]
    due = (a.astype(np.int64) - rows[:, None]) @ (b.astype(np.int64) - columns)
    np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize("sizes", [(5,), (5, 6), (3, 4, 5)])
def test_zero_points_of_output_channels_of_images_of_each_rank(sizes):
    rng = np.random.default_rng(len(sizes))
    x = rng.integers(0, 256, (2, 2, *sizes), np.uint8)
    w = rng.integers(-128, 128, (3, 2, *[2] * len(sizes)), np.int8)
    zeros = np.array([9], np.uint8), np.array([-7, 0, 20], np.int8)
    feeds = {"x": x, "w": w, "x_zero": zeros[0][0].reshape(()), "w_zero": zeros[1]}
    proto = one_node("ConvInteger", 10, feeds, TensorProto.INT32)
    got = partita.Core().compile_model(proto, "REFERENCE")(feeds)[0]
    weights = w.astype(np.float64) - zeros[1].reshape(3, *[1] * (1 + len(sizes)))
    images = x.astype(np.float64) - 9
    due = np.zeros_like(got, np.float64)
    for tap in np.ndindex(*[2] * len(sizes)):
        part = images[(..., *(slice(at, at + n - 1) for at, n in zip(tap, sizes, strict=True)))]
        due += np.einsum("nc...,mc->nm...", part, weights[(..., *tap)])
    np.testing.assert_array_equal(got, due)


def test_quantized_products_round_before_they_add_an_odd_zero_point():
    rng = np.random.default_rng(0)
    a, b = rng.integers(110, 117, (9, 7), np.uint8), rng.integers(88, 93, (7, 8), np.uint8)
    f, u = np.float32, np.uint8
    scales = [np.array(0.25, f), np.array(113, u), b, np.array(2, f), np.array(90, u)]
    arrays = [a, *scales, np.array(1, f), np.array(117, u)]
    np.testing.assert_array_equal(*both("QLinearMatMul", 10, arrays, TensorProto.UINT8))


def test_quantized_products_have_a_scale_and_zero_point_of_each_row():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (3, 7), np.uint8), rng.integers(0, 256, (7, 3), np.uint8)
    rows, zeros = np.array([0.25, 0.5, 1], np.float32), np.array([1, 200, 30], np.uint8)
    one, none = np.array(256, np.float32), np.array(7, np.uint8)
    feeds = dict(zip("abcdefgh", (a, rows, zeros, b, one, none, one * 64, none), strict=True))
    proto = one_node("QLinearMatMul", 10, feeds, TensorProto.UINT8)
    got = partita.Core().compile_model(proto, "REFERENCE")(feeds)[0]
    sums = (a.astype(np.int64) - zeros[:, None]) @ (b.astype(np.int64) - 7)
    due = np.clip(np.rint(sums * rows[:, None] / 64) + 7, 0, 255)
    np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize("spatial", [(9,), (6, 7), (3, 4, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_quantized_convolutions_round_before_they_add_an_odd_zero_point(spatial, bias):
    rng = np.random.default_rng(0)
    x = rng.integers(110, 117, (2, 2, *spatial), np.uint8)
    w = rng.integers(-2, 3, (4, 1, *[2] * len(spatial)), np.int8)
    f = np.float32
    arrays = [x, np.array(0.5, f), np.array(113, np.uint8), w, np.array([1, 2, 0.5, 1], f)]
    arrays += [np.zeros(4, np.int8), np.array(1, f), np.array(117, np.uint8)]
    arrays += [np.array([1, -3, 5, 2], np.int32)] if bias else []
    given = {"group": 2, "pads": [1] * 2 * len(spatial)}
    np.testing.assert_array_equal(*both("QLinearConv", 10, arrays, TensorProto.UINT8, **given))


def test_means_of_windows_with_nan():
    x = np.array([[[1, np.nan, 3, 4, np.inf, 6]]], np.float32)
    given = {"kernel_shape": [2], "pads": [1, 1], "count_include_pad": 0}
    np.testing.assert_array_equal(*both("AveragePool", 19, [x], **given))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_long_rows_of_half_precision_are_summed_in_single(op_type, dtype):
    x = np.zeros((1, 4099), dtype)
    x[0, 0] = 8.3125
    proto = one_node(op_type, 13, {"x": x}, helper.np_dtype_to_tensor_dtype(x.dtype))
    got = partita.Core().compile_model(proto, "REFERENCE")({"x": x})[0]
    shares = np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum()
    due = np.log(shares) if op_type == "LogSoftmax" else shares
    np.testing.assert_allclose(got.astype(np.float64), due, rtol=float(ml_dtypes.finfo(dtype).eps))


def test_a_slope_that_would_make_the_result_larger_is_refused():
    x, slope = np.ones((1, 3), np.float32), np.ones((2, 3), np.float32)
    proto = one_node("PRelu", 16, {"x": x, "s": slope}, TensorProto.FLOAT)
    with pytest.raises(InferError, match=r"\[2, 3\] does not broadcast to \[1, 3\]"):
        partita.Core().compile_model(proto, "REFERENCE")({"x": x, "s": slope})


@pytest.mark.parametrize("axis", [1, [1], [-2]], ids=str)
def test_running_sums_take_an_axis_in_a_list_of_its_own(axis):
    arrays = [floats(2, 3, 4), np.array(axis, np.int64)]
    got, want = both("CumSum", 14, arrays, exclusive=1, reverse=1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_grid_sample_has_the_modes_of_opset_16(mode):
    grid = np.random.default_rng(1).uniform(-1.2, 1.2, (2, 3, 4, 2)).astype(np.float32)
    got, want = both("GridSample", 16, [floats(2, 3, 5, 6), grid], mode=mode)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exponent", [0.5, -0.5, 2.0, 3.0])
def test_powers_of_infinity_and_of_zeros(exponent):
    """A square root would answer NaN for -inf, and -0 for -0, where a power has inf and 0."""
    base = np.array([-np.inf, np.inf, -0.0, 0.0, 4.0], np.float32)
    got, _ = both("Pow", 17, [base, np.array(exponent, np.float32)])
    due = [0 if exponent < 0 else -np.inf if exponent == 3 else np.inf]
    due += [0 if exponent < 0 else np.inf, *[np.inf if exponent < 0 else 0] * 2, 4**exponent]
    np.testing.assert_array_equal(got, due)
    assert not np.signbit(got[2]) or exponent == 3


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [-1, 1, 100])
@pytest.mark.parametrize("op_type", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_losses_leave_ignored_targets_out(op_type, ignored, weighted, reduction):
    target = np.array([[0, ignored, 3], [ignored, 2, 1]])
    arrays = [floats(2, 4, 3), target, *([np.abs(floats(4, seed=1))] if weighted else [])]
    for number in (ignored, -7):  # none is -7
        arrays[1] = np.where(target == ignored, 2 if number == -7 else ignored, target)
        got, due = both(op_type, 13, arrays, reduction=reduction, ignore_index=number)
        np.testing.assert_allclose(got, due, rtol=1e-5)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("softcap", [0.0, 0.75])
def test_what_attention_shows_of_its_scores(opset, mode, softcap):
    """The product, behind the cap, with the mask, as shares: so the texts of both opsets."""
    q, k, v, mask = floats(2, 3, 4, 8), floats(2, 3, 5, 8, seed=1), floats(2, 3, 5, 6), floats(4, 5)
    feeds = {"q": q, "k": k, "v": v, "mask": mask}
    proto = one_node(
        "Attention", opset, feeds, TensorProto.FLOAT, softcap=softcap, qk_matmul_output_mode=mode
    )
    past = ["", ""]
    proto.graph.node[0].input.extend(past)
    proto.graph.node[0].output.extend([*past, "scores"])
    proto.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, None))
    steps = [np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k) / np.sqrt(8)]
    steps.append(softcap * np.tanh(steps[0] / softcap) if softcap else steps[0])
    steps.append(steps[1] + mask)
    powers = np.exp(steps[2])
    steps.append(powers / powers.sum(axis=-1, keepdims=True))
    for device in ("REFERENCE", "CPU"):
        found, scores = partita.Core().compile_model(proto, device)(feeds).to_tuple()
        np.testing.assert_allclose(scores, steps[mode], rtol=1e-4, atol=1e-5, err_msg=device)
        np.testing.assert_allclose(found, steps[3] @ v, rtol=1e-4, atol=1e-5, err_msg=device)


def test_a_mask_of_fewer_keys_is_filled_up_from_opset_24_on():
    """Before, ONNX has a mask broadcast; its definition and onnxruntime refuse such a one."""
    q, k = floats(1, 2, 3, 4), floats(1, 2, 5, 4, seed=1)
    feeds = {"q": q, "k": k, "v": k, "mask": floats(3, 4)}
    with pytest.raises(InferError, match="attn_mask has 4 columns for 5 keys"):
        alone("Attention", 23, feeds.values())
    scores = np.einsum("bhqd,bhkd->bhqk", q, k)[..., :4] / 2.0 + feeds["mask"]
    powers = np.exp(scores.astype(np.float64))
    due = powers / powers.sum(-1, keepdims=True) @ k[:, :, :4]
    found = alone("Attention", 24, feeds.values())
    np.testing.assert_allclose(found, due, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32])
def test_negative_powers_of_integers(dtype, kind):
    base = np.array([1, -1, -1, 2, -3, 5, 3], dtype)
    exponent = np.array([-5, -2, -3, -1, -2, 3, 0], kind)
    element = helper.np_dtype_to_tensor_dtype(base.dtype)
    got, due = both("Pow", 15, [base, exponent], element)
    np.testing.assert_array_equal(due, [1, 1, -1, 0, 0, 125, 1])
    np.testing.assert_array_equal(got, due)


@pytest.mark.parametrize("x", [[0, 0], [-0.0], [0, 1e-30], [-3, 5]])
def test_dynamic_quantization_of_zeros(x):
    feeds = {"x": np.array(x, np.float32)}
    proto = one_node("DynamicQuantizeLinear", 11, feeds, TensorProto.UINT8)
    proto.graph.node[0].output.extend(["scale", "zero"])
    proto.graph.output.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, None))
    proto.graph.output.append(helper.make_tensor_value_info("zero", TensorProto.UINT8, None))
    due = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for device in ("REFERENCE", "CPU"):
        found = partita.Core().compile_model(proto, device)(feeds).to_tuple()
        for have, want in zip(found, due, strict=True):
            np.testing.assert_array_equal(have, want, err_msg=device)
