"""QuantizeLinear, DequantizeLinear and products of bytes on device OPENCL, against onnxruntime."""

import numpy as np
import pytest

import partita

from ..comparison import check, compiled, floats, integers, refusal, single

LEVELS = [np.int8, np.uint8, np.int16, np.uint16]


def levels(dtype, *shape, seed=0):
    limits = np.iinfo(dtype)
    return integers(*shape, low=limits.min, high=limits.max + 1, dtype=dtype, seed=seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [*LEVELS, np.int32])
@pytest.mark.parametrize("zero", [False, True])
def test_levels_as_numbers(dtype, zero):
    arrays = [levels(dtype, 3, 40), np.array(0.03, np.float32)]
    if zero:
        arrays.append(np.array(0 if dtype is np.int32 else 7, dtype))
    check(*single("DequantizeLinear", arrays, opset=21))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_place(axis):
    x = levels(np.int8, 3, 4, 5)
    count = x.shape[axis]
    scales, zeros = np.abs(floats(count)) / 9, levels(np.int8, count, seed=1)
    check(*single("DequantizeLinear", [x, scales, zeros], {"axis": axis}, opset=21))
    x = floats(3, 4, 5) * 4
    check(*single("QuantizeLinear", [x, scales, zeros], {"axis": axis}, opset=21))


@pytest.mark.parametrize("dtype", LEVELS)
def test_numbers_as_levels(dtype):
    x = np.concatenate([floats(500) * 90, [0.5, 1.5, 2.5, -0.5, 1e9, -1e9, np.inf, -np.inf]])
    arrays = [x.astype(np.float32), np.array(1, np.float32), np.array(5, dtype)]
    check(*single("QuantizeLinear", arrays, opset=21))
    check(*single("QuantizeLinear", arrays[:2], opset=21))


def test_there_and_back_in_half():
    arrays = [floats(3, 40), np.array(0.03, np.float32), np.array(7, np.uint8)]
    for precision in ("f16", "bf16"):
        model, feeds = single("QuantizeLinear", arrays, constant=[1, 2])
        check(model, feeds, atol=2, INFERENCE_PRECISION_HINT=precision)
        arrays[0] = levels(np.uint8, 3, 40)
        model, feeds = single("DequantizeLinear", arrays, constant=[1, 2])
        check(model, feeds, rtol=1e-2, atol=1e-2, INFERENCE_PRECISION_HINT=precision)
        arrays[0] = floats(3, 40)


def test_quantized_by_their_range():
    check(*single("DynamicQuantizeLinear", [floats(3, 40)], outputs=3))


def test_other_levels_are_refused():
    arrays = [levels(np.int8, 3, 4), np.ones((3, 2), np.float32)]
    assert "block_size" in refusal("DequantizeLinear", arrays, {"block_size": 2}, opset=21).detail
    arrays = [floats(3, 4), np.array(1, np.float32)]
    assert (
        "output_dtype" in refusal("QuantizeLinear", arrays, {"output_dtype": 17}, opset=21).detail
    )


def test_as_many_scales_as_places():
    arrays = [levels(np.int8, 3, 4), np.ones(3, np.float32)]
    model, feeds = single("DequantizeLinear", arrays, dynamic=True)
    with pytest.raises(partita.PartitaError, match="DequantizeLinear"):
        compiled(model)(feeds)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((33, 70), (70, 19)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (4, 5)),
        ((1, 1), (1, 1)),
    ],
)
@pytest.mark.parametrize("types", [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_products_of_bytes(a, b, types, zeros):
    arrays = [levels(types[0], *a), levels(types[1], *b, seed=1)]
    arrays += [np.array(3, types[0]), np.array(5, types[1])][:zeros]
    check(*single("MatMulInteger", arrays))


def test_a_zero_point_for_each_column():
    arrays = [levels(np.uint8, 3, 40), levels(np.int8, 40, 5), np.array(9, np.uint8)]
    check(*single("MatMulInteger", [*arrays, levels(np.int8, 5, seed=3)]))


def test_sums_that_float32_does_not_hold():
    arrays = [np.full((2, 3001), 255, np.uint8), np.full((3001, 3), 255, np.uint8)]
    check(*single("MatMulInteger", arrays))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("per_column", [False, True])
def test_quantized_products(dtype, per_column):
    columns = (5,) if per_column else ()
    arrays = [
        levels(dtype, 3, 40),
        np.array(0.02, np.float32),
        np.array(3, dtype),
        levels(np.int8, 40, 5, seed=1),
        np.full(columns, 0.03, np.float32),
        np.full(columns, -4, np.int8),
        np.array(0.5, np.float32),
        np.array(7, dtype),
    ]
    check(*single("QLinearMatMul", arrays, constant=range(3, 8)), atol=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
@pytest.mark.parametrize("per_filter", [False, True])
@pytest.mark.parametrize(
    ("image", "weights", "attrs"),
    [
        ((2, 6, 9, 10), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((1, 5, 8, 7), (5, 1, 3, 3), {"group": 5, "dilations": [2, 2]}),
        ((2, 4, 30), (3, 4, 5), {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_quantized_convolutions(types, per_filter, image, weights, attrs):
    """Whose levels may be others by one where a sum is between two."""
    filters = weights[:1] if per_filter else ()
    arrays = [
        levels(types[0], *image),
        np.array(0.02, np.float32),
        np.array(3, types[0]),
        levels(types[1], *weights, seed=1),
        np.linspace(0.02, 0.05, filters[0] if filters else 1, dtype=np.float32).reshape(filters),
        np.full(filters, 0 if types[1] is np.int8 else 120, types[1]),
        np.array(0.8, np.float32),
        np.array(7, types[0]),
        integers(weights[0], low=-4000, high=4000, dtype=np.int32, seed=2),
    ]
    for count in (8, 9):
        model, feeds = single("QLinearConv", arrays[:count], attrs, constant=range(3, count))
        check(model, feeds, atol=1)
    check(*single("QLinearConv", arrays, attrs), atol=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("scales", [(), (1,), (6,)])
@pytest.mark.parametrize("zeros", [(), (1,), (6,)])
def test_convolutions_with_scales_or_zero_points_of_each_output(scales, zeros, constant):
    arrays = [
        levels(np.uint8, 1, 4, 5, 5),
        *(np.array(0.02, np.float32), np.array(3, np.uint8)),
        levels(np.int8, 6, 4, 3, 3, seed=1),
        *(np.full(scales, 0.03, np.float32), np.zeros(zeros, np.int8)),
        *(np.array(0.8, np.float32), np.array(7, np.uint8)),
    ]
    check(*single("QLinearConv", arrays, constant=range(1, 8) if constant else ()), atol=1)


def test_quantized_convolutions_in_half():
    arrays = [
        levels(np.uint8, 1, 4, 9, 9),
        *(np.array(0.02, np.float32), np.array(3, np.uint8)),
        levels(np.int8, 6, 4, 3, 3, seed=1),
        *(np.array(0.03, np.float32), np.array(0, np.int8)),
        *(np.array(0.8, np.float32), np.array(7, np.uint8)),
    ]
    model, feeds = single("QLinearConv", arrays, constant=range(1, 8))
    check(model, feeds, atol=2, INFERENCE_PRECISION_HINT="f16")


def test_products_of_bytes_of_sizes_that_vary():
    arrays = [levels(np.uint8, 3, 40), levels(np.int8, 40, 5), np.array(9, np.uint8)]
    model, feeds = single("MatMulInteger", arrays, dynamic=True)
    check(model, feeds, {**feeds, "x0": levels(np.uint8, 50, 40)}, feeds)


@pytest.mark.parametrize("opset", [13, 21])
def test_constants_alone(opset):
    """ONNX's reference, by which the host folds constants, has not all opsets nor infinity."""
    arrays = [levels(np.int8, 3, 4), np.array(0.03, np.float32), np.array(7, np.int8)]
    check(single("DequantizeLinear", arrays, opset=opset, constant=[0, 1, 2])[0], {})
    arrays[0] = np.array([np.inf, -np.inf, 1e30, 0.1], np.float32)
    check(single("QuantizeLinear", arrays, opset=opset, constant=[0, 1, 2])[0], {})


def test_numbers_in_the_type_that_is_asked_for():
    arrays = [levels(np.int8, 3, 4), np.array(0.5, np.float32)]
    model, feeds = single("DequantizeLinear", arrays, {"output_dtype": 10}, opset=23)
    (found,) = compiled(model)(feeds).values()
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, arrays[0] * np.float16(0.5))
