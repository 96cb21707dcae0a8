"""Quantized operators against onnxruntime: equal integers, not close ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from judge import onnxruntime_results, weight_range
from onnx import TensorProto
from single_op import check, model_of, normal, run_ours

import partita
from partita.contract.profiling import Status
from partita.errors import CompileError, PartitaError
from partita.lowering import lower_proto
from partita_cpu.jit.isa import available
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.kernels.int8.quantized_elementwise import add_levels, add_levels_by_factors
from partita_cpu.runtime.device_model import run_graph
from partita_cpu.scalar.sum_factors import sum_factors

BYTES = [np.int8, np.uint8]


def levels(seed: int, *shape: int, dtype: type = np.uint8) -> np.ndarray:
    """Integers over the whole range of the type, or what of it onnxruntime computes rightly."""
    limits = np.iinfo(dtype)
    low, high = weight_range() if dtype is np.int8 else (limits.min, limits.max)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(dtype)


def scales(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.01, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_quantize_rounds_to_even_and_saturates(dtype):
    x = np.arange(-700, 700).astype(np.float32) / 4
    zero = np.array(np.iinfo(dtype).min + 100, dtype)
    for scale in (0.5, 0.003, 0.33):
        check("QuantizeLinear", [x, np.array(scale, np.float32), zero], opset=21)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("seed", range(12))
def test_numbers_beside_the_middle_of_two_levels_are_divided_as_by_division(dtype, seed):
    """All middles and the floats next to them; then numbers whose quotients are no floats."""
    rng = np.random.default_rng(seed)
    exponent = rng.uniform(-3, 1) if seed % 3 else rng.uniform(-38, 38)
    scale = np.array(10.0**exponent, np.float32)
    limits = np.iinfo(dtype)
    zero = np.array(rng.integers(limits.min, limits.max + 1), dtype)
    middles = (np.arange(-(2**17), 2**17) + 0.5).astype(np.float32)
    with np.errstate(all="ignore"):
        x = middles * scale
        x = np.concatenate([x, np.nextafter(x, -np.inf), np.nextafter(x, np.inf)])
        far = np.array([np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-40, 0.0], np.float32)
        x = np.concatenate([x[np.isfinite(x)], far])
        due = np.clip(np.rint(x / scale) + np.float32(zero), limits.min, limits.max).astype(dtype)
    (y,) = run_ours("QuantizeLinear", [x, scale, zero], opset=21)
    np.testing.assert_array_equal(y, due)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", BYTES)
def test_quantize_and_dequantize_per_axis(axis, dtype):
    x = normal(1, 3, 4, 5) * 3
    n = x.shape[axis]
    parameters = [scales(2, n), levels(3, n, dtype=dtype)]
    check("QuantizeLinear", [x, *parameters], axis=axis, opset=13)
    y = levels(4, 3, 4, 5, dtype=dtype)
    check("DequantizeLinear", [y, *parameters], axis=axis, opset=13, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
def test_dequantize(dtype):
    x = levels(5, 300, dtype=dtype)
    zero = np.array(0 if dtype is np.int32 else 17, dtype)
    check("DequantizeLinear", [x, np.array(0.03, np.float32), zero], rtol=0, atol=0)
    check("DequantizeLinear", [x, np.array(0.03, np.float32)], rtol=0, atol=0)


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks(axis):
    x = normal(6, 6, 8) * 3
    shape = (3, 8) if axis == 0 else (6, 4)
    parameters = [scales(7, *shape), levels(8, *shape, dtype=np.int8)]
    check("QuantizeLinear", [x, *parameters], axis=axis, block_size=2)
    y = levels(9, 6, 8, dtype=np.int8)
    check("DequantizeLinear", [y, *parameters], axis=axis, block_size=2, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "low", "high"), [("int4", -8, 7), ("uint4", 0, 15)])
def test_four_bits(name, low, high):
    kind = np.dtype(getattr(ml_dtypes, name))
    x = np.linspace(-40, 40, 60).astype(np.float32)
    zero = np.array(3).astype(kind)
    (y,) = run_ours("QuantizeLinear", [x, np.array(2, np.float32), zero])
    np.testing.assert_array_equal(y.astype(int), np.clip(np.rint(x / 2) + 3, low, high))
    (back,) = run_ours("DequantizeLinear", [y, np.array(2, np.float32), zero])
    np.testing.assert_array_equal(back, (y.astype(np.float32) - 3) * 2)


@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_bytes_of_float(name):
    x = np.array([0, 1, -2.5, 1000, -1e6], np.float32)
    (y,) = run_ours(
        "QuantizeLinear", [x, np.array(2, np.float32)], output_dtype=getattr(TensorProto, name)
    )
    limit = float(ml_dtypes.finfo(y.dtype).max)
    np.testing.assert_array_equal(
        y.astype(np.float32), np.clip(x / 2, -limit, limit).astype(y.dtype).astype(np.float32)
    )
    (back,) = run_ours("DequantizeLinear", [y, np.array(2, np.float32)])
    np.testing.assert_array_equal(back, y.astype(np.float32) * 2)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_scales_of_halves(kind):
    x = normal(10, 50).astype(kind)
    scale = np.array(0.05, kind)
    (y,) = run_ours("QuantizeLinear", [x, scale, np.array(3, np.int8)])
    exact = np.rint(x.astype(np.float32) / scale.astype(np.float32)) + 3
    np.testing.assert_array_equal(y, np.clip(exact, -128, 127))
    (back,) = run_ours("DequantizeLinear", [y, scale])
    assert back.dtype == kind


@pytest.mark.sampled(2)
@pytest.mark.parametrize("device", ["CPU", "OPENCL", "REFERENCE"])
@pytest.mark.parametrize("precision", [0, TensorProto.FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("of_scale", [np.float16, np.float32])
@pytest.mark.parametrize("count", [0, 1, 4])
def test_quotients_are_of_the_type_that_onnx_names(core, device, precision, kind, of_scale, count):
    """That of the scale, or of attribute ``precision``; some quotients in halves are even."""
    x = np.random.default_rng(1).uniform(0, 80, (500, 4)).astype(kind)
    shape = (count,) if count else ()
    scale = np.random.default_rng(2).uniform(0.3, 0.4, shape).astype(of_scale)
    inputs = [x, scale, np.full(shape, 3, np.uint8)]
    attributes = {"precision": precision} if precision else {}
    model = model_of("QuantizeLinear", inputs, opset=23, axis=1 if count == 4 else -1, **attributes)
    feeds = {f"x{k}": array for k, array in enumerate(inputs)}
    (want,) = onnxruntime_results(model, feeds)
    others = np.rint(x.astype(np.float64) / scale) + 3
    in_halves = precision == TensorProto.FLOAT16 or (not precision and of_scale == np.float16)
    assert (want != others.clip(0, 255)).any() == in_halves
    (found,) = core.compile_model(model.SerializeToString(), device)(feeds).to_tuple()
    np.testing.assert_array_equal(found, want)


def test_quotients_of_bfloat16_and_blocks():
    kind = ml_dtypes.bfloat16
    x = np.random.default_rng(1).uniform(0, 80, (6, 8)).astype(np.float32)
    scale = np.random.default_rng(2).uniform(0.3, 0.4, (6, 4)).astype(np.float32)
    attributes = {"opset": 23, "axis": 1, "block_size": 2, "precision": TensorProto.BFLOAT16}
    (found,) = run_ours("QuantizeLinear", [x, scale, np.full((6, 4), 3, np.uint8)], **attributes)
    halves = (x.astype(kind) / np.repeat(scale, 2, 1).astype(kind)).astype(np.float32)
    np.testing.assert_array_equal(found, np.clip(np.rint(halves) + 3, 0, 255))
    assert (found != np.clip(np.rint(x / np.repeat(scale, 2, 1)) + 3, 0, 255)).any()


def test_quotients_of_other_types_are_refused(core):
    inputs = [np.ones(3, np.float32), np.ones((), np.float32)]
    model = model_of("QuantizeLinear", inputs, opset=23, precision=TensorProto.DOUBLE)
    for device in ("CPU", "OPENCL"):
        with pytest.raises(PartitaError, match="precision is 11"):
            core.compile_model(model.SerializeToString(), device)


@pytest.mark.parametrize("x", [normal(11, 4, 30), np.abs(normal(12, 9)), -np.abs(normal(13, 9))])
def test_dynamic_quantize_linear(x):
    check("DynamicQuantizeLinear", [x], outputs=3, rtol=0, atol=0)


def test_dynamic_quantize_linear_of_zeros():
    y, scale, zero = run_ours("DynamicQuantizeLinear", [np.zeros(5, np.float32)], outputs=3)
    np.testing.assert_array_equal(y, 0)
    assert (scale, zero) == (1, 0)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("terms", [5, 256, 700])
@pytest.mark.parametrize("constants", [(), (1, 3)])
def test_matmul_integer(dtype, terms, constants):
    x, w = levels(1, 2, 3, terms), levels(2, terms, 7, dtype=dtype)
    check("MatMulInteger", [x, w])
    zeros = [np.array(130, np.uint8), np.array(3, dtype)]
    check("MatMulInteger", [x, w, *zeros], constants=constants)
    per_column = levels(3, 7, dtype=dtype)
    check("MatMulInteger", [x, w, zeros[0], per_column], constants=constants)


def test_the_largest_sums_are_exact():
    x, w = np.full((1, 2000), 255, np.uint8), np.full((2000, 1), 255, np.uint8)
    (y,) = run_ours("MatMulInteger", [x, w])
    assert y.item() == 2000 * 255 * 255


@pytest.mark.parametrize(
    "shapes",
    [
        *[((5,), (5, 3)), ((2, 5), (5,)), ((4, 2, 5), (4, 5, 3)), ((4, 2, 5), (1, 4, 5, 3))],
        *[((4, 1, 2, 5), (1, 4, 5, 3)), ((2, 2, 1, 2, 5), (2, 1, 5, 3))],
    ],
)
def test_matmul_integer_of_any_rank(shapes):
    left, right = levels(1, *shapes[0]), levels(2, *shapes[1])
    (y,) = run_ours("MatMulInteger", [left, right, np.array(7, np.uint8)])
    np.testing.assert_array_equal(y, np.matmul(left.astype(np.int32) - 7, right.astype(np.int32)))


def test_matrices_of_bytes_that_do_not_broadcast_are_refused():
    """Though there are as many of either."""
    left, right = levels(1, 2, 3, 4, 5), levels(2, 3, 2, 5, 4)
    with pytest.raises(PartitaError, match=r"\[2, 3, 4, 5\] and \[3, 2, 5, 4\]"):
        run_ours("MatMulInteger", [left, right])


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_matmul(per_column, dtype):
    columns = (6,) if per_column else ()
    check(
        "QLinearMatMul",
        [
            levels(1, 2, 4, 300),
            np.array(0.02, np.float32),
            np.array(120, np.uint8),
            levels(2, 300, 6, dtype=dtype),
            scales(3, *columns),
            np.zeros(columns, dtype),
            np.array(5.3, np.float32),
            np.array(128, np.uint8),
        ],
    )


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("columns", [0, 4])
def test_quantized_products_with_a_scale_for_each_of_no_columns(rows, columns):
    scale, zero = np.array(0.5, np.float32), np.array(3, np.uint8)
    inputs = [levels(1, rows, 5), scale, zero, levels(2, 5, columns)]
    inputs += [scales(3, columns), levels(4, columns), scale, zero]
    (found,) = run_ours("QLinearMatMul", inputs)
    assert found.shape == (rows, columns)


@pytest.mark.parametrize("with_bias", [False, True])
def test_scaled_integer_products(with_bias):
    bias = [normal(1, 6)] if with_bias else []
    x, w = normal(2, 3, 40), levels(3, 40, 6, dtype=np.int8)
    for columns in ((), (6,)):
        check(
            "DynamicQuantizeMatMul",
            [x, w, scales(4, *columns), np.zeros(columns, np.int8), *bias],
            domain="com.microsoft",
            rtol=1e-5,
            atol=1e-4,
        )
        check(
            "MatMulIntegerToFloat",
            [
                levels(5, 3, 40),
                w,
                np.array(0.02, np.float32),
                scales(4, *columns),
                np.array(7, np.uint8),
                np.zeros(columns, np.int8),
                *bias,
            ],
            domain="com.microsoft",
            rtol=1e-5,
            atol=1e-4,
        )


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("kernel", [1, 3])
def test_conv_integer(group, kernel):
    x, w = levels(1, 2, 4, 9, 9), levels(2, 8, 4 // group, kernel, kernel)
    attributes = {"group": group, "strides": [2, 1], "pads": [1, 1, 0, 0]}
    check("ConvInteger", [x, w, np.array(9, np.uint8)], **attributes)
    check("ConvInteger", [x, w, np.array(9, np.uint8), np.array(100, np.uint8)], **attributes)


@pytest.mark.parametrize(("shape", "kernel"), [((1, 3, 12), (5,)), ((2, 3, 4, 5, 6), (2, 3, 1))])
@pytest.mark.parametrize("dtype", BYTES)
def test_conv_integer_of_other_ranks(shape, kernel, dtype):
    x, w = levels(1, *shape, dtype=dtype), levels(2, 7, 3, *kernel, dtype=np.int8)
    zero = np.array(-9 if dtype is np.int8 else 200, dtype)
    dilations, pads = [2] + [1] * (len(kernel) - 1), [1, 0, 1][: len(kernel)] * 2
    (y,) = run_ours("ConvInteger", [x, w, zero], dilations=dilations, pads=pads)
    wide = x.astype(np.float32) - zero.astype(np.float32)
    (expected,) = run_ours("Conv", [wide, w.astype(np.float32)], dilations=dilations, pads=pads)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("channels", [3, 64])
@pytest.mark.parametrize("with_bias", [False, True])
def test_quantized_conv(channels, with_bias):
    bias = [levels(7, 5, dtype=np.int16).astype(np.int32)] if with_bias else []
    check(
        "QLinearConv",
        [
            levels(1, 2, channels, 8, 8),
            np.array(0.02, np.float32),
            np.array(121, np.uint8),
            levels(2, 5, channels, 3, 3, dtype=np.int8),
            scales(3, 5),
            np.zeros(5, np.int8),
            np.array(4.7, np.float32),
            np.array(128, np.uint8),
            *bias,
        ],
        pads=[1, 1, 1, 1],
        constants=[3, 4, 5],
    )


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("level", available())
def test_sums_of_levels_are_divided_as_by_division(level, dtype, seed):
    """All pairs, by scales with ties, ordinary ones, and some that float32 can hardly hold."""
    kernel = 0 if not level.native else addresses(level).get(f"add_{np.dtype(dtype).name}", 0)
    rng = np.random.default_rng(seed)
    kinds = rng.integers(1, 50, 3) / rng.choice([10, 16, 7]), rng.uniform(0.001, 1, 3)
    a, b, c = (*kinds, 10.0 ** rng.uniform(-30, 30, 3))[seed % 3].astype(np.float32)
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    x, w = np.repeat(every, every.size), np.tile(every, every.size)
    zeros = levels(seed + 200, 3, dtype=dtype)
    y = np.zeros_like(x)
    low, high = np.float32(limits.min), np.float32(limits.max)
    numbers = [np.array([number]) for number in (a, b, c, *zeros)]
    add_levels(x, w, *numbers, y, low, high, kernel, 0, 1)
    first = (x.astype(np.int32) - zeros[0]).astype(np.float32) * a
    second = (w.astype(np.int32) - zeros[1]).astype(np.float32) * b
    with np.errstate(over="ignore"):
        exact = np.round((first + second) / c) + np.float32(zeros[2])
    np.testing.assert_array_equal(y, np.clip(exact, low, high).astype(dtype))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("level", available())
def test_sums_by_factors_are_those_of_dequantized_levels(level, dtype, seed):
    """All pairs, by ordinary scales, powers of 2 and other ratios; by zero points of 0 as well."""
    rng = np.random.default_rng(seed)
    ordinary = rng.uniform(0.01, 0.15, 3)
    ratios = rng.integers(1, 50, 3) / 16
    halves = ratios[0] * 2.0 ** rng.integers(-1, 2, 3)
    kind = seed % 4
    a, b, c = (halves if kind == 0 else ratios if kind == 1 else ordinary).astype(np.float32)
    limits = np.iinfo(dtype)
    zeros = levels(seed, 3, dtype=dtype) * (rng.random(3) < 0.7).astype(dtype)
    of_levels = tuple(map(int, zeros))
    factors = sum_factors((float(a), float(b), float(c)), of_levels, int(limits.min))
    if factors is None:
        assert kind == 1 or max(a, b) / c > 7, "float32's errors decide where ratios are whole"
        return
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    x, w = np.repeat(every, every.size)[:-5], np.tile(every, every.size)[:-5]  # no whole blocks
    name = f"add_{np.dtype(dtype).name}_by_factors"
    kernel = 0 if not level.native else addresses(level).get(name, 0)
    assert (kernel != 0) == level.masks_halves
    y, ends = np.zeros_like(x), (np.float32(limits.min), np.float32(limits.max))
    add_levels_by_factors(x, w, *factors, zeros[2:], y, *ends, kernel, 0, 1)
    first = (x.astype(np.int32) - of_levels[0]).astype(np.float32) * a
    second = (w.astype(np.int32) - of_levels[1]).astype(np.float32) * b
    exact = np.round((first + second) / c) + np.float32(of_levels[2])
    np.testing.assert_array_equal(y, np.clip(exact, *ends).astype(dtype))


def test_factors_that_round_as_division_does_need_not_be_the_nearest():
    rng = np.random.default_rng(0)
    moved = 0
    for _ in range(60):
        scales = tuple(map(float, rng.uniform(0.01, 0.15, 3).astype(np.float32)))
        found = sum_factors(scales, (100, 0, 20), 0)
        moved += found is not None and found.x != np.float32(scales[0] / scales[2])
    assert moved


@pytest.mark.parametrize(
    "scales",
    [(0.1, 0.1, 0.0), (0.1, np.inf, 0.1), (np.nan, 1.0, 1.0), (1.0, 1e-3, 1.0), (9.0, 9.0, 1.0)],
)
def test_sums_whose_rounding_float64_does_not_show_have_no_factors(scales):
    assert sum_factors(scales, (100, 0, 20), 0) is None


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    "shapes", [((3, 50), (2, 1, 50)), ((1, 3, 50), (3, 50)), ((3, 1), (1, 3)), ((5,), (1, 1, 5))]
)
def test_quantized_binary(op_type, dtype, shapes):
    inputs = [
        levels(1, *shapes[0], dtype=dtype),
        np.array(0.03, np.float32),
        np.array(4, dtype),
        levels(2, *shapes[1], dtype=dtype),
        np.array(0.02, np.float32),
        np.array(9, dtype),
        np.array(0.07, np.float32),
        np.array(5, dtype),
    ]
    check_up_to_one(op_type, inputs)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("first", [True, False])
def test_halves_of_a_sum_with_a_number_are_even(first, dtype):
    """As ``Erf(x) + 1`` of a quantized Gelu, whose sums all lie in the middle of two levels."""
    limits = np.iinfo(dtype)
    x = np.arange(limits.min, limits.max + 1).astype(dtype)
    scale, half = np.array(0.0070710676, np.float32), np.array(0.0070710676 / 2, np.float32)
    tensor = [x, scale, np.array(limits.min + 128, dtype)]
    number = [np.array(limits.max, dtype), half, np.array(limits.min, dtype)]
    zero = np.array(limits.min, dtype)
    inputs = [*tensor, *number, scale, zero] if first else [*number, *tensor, scale, zero]
    constants = [k for k in range(8) if k != (0 if first else 3)]
    (got,) = run_ours("QLinearAdd", inputs, domain="com.microsoft", constants=constants)
    exact = np.arange(256) - 128 + 127.5
    np.testing.assert_array_equal(got, np.clip(np.rint(exact), 0, 255) + float(limits.min))
    model = model_of("QLinearAdd", inputs, domain="com.microsoft", constants=constants)
    (peer,) = onnxruntime_results(model, {f"x{0 if first else 3}": x})
    np.testing.assert_array_equal(got, peer)


def test_sums_that_are_written_in_steps_are_rounded_to_float32_after_each():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> sums (uint8[256] x) => (uint8[256] y) '
        "<float s = {0.0070710676}, float h = {0.0035355338}, uint8 z = {127}, uint8 o = {0},"
        " uint8 one = {255}> { a = DequantizeLinear(x, s, z) b = DequantizeLinear(one, h, o)"
        " c = Add(a, b) y = QuantizeLinear(c, s, o) }"
    )
    x, s = np.arange(256).astype(np.uint8), np.float32(0.0070710676)
    core = partita.Core()
    (y,) = core.compile_model(model, "CPU")({"x": x}).to_tuple()
    steps = (x.astype(np.float32) - 127) * s + np.float32(255) * np.float32(0.0035355338)
    np.testing.assert_array_equal(y, np.clip(np.rint(steps / s), 0, 255))
    assert not np.array_equal(y, np.clip(np.rint(x - 127 + 127.5), 0, 255))


@pytest.mark.parametrize("op_type", ["QLinearSigmoid", "QLinearLeakyRelu"])
@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_activation(op_type, dtype):
    scale, zero = np.array(0.05, np.float32), np.array(3, dtype)
    inputs = [levels(1, 400, dtype=dtype), scale, zero, np.array(0.01, np.float32), zero]
    check_up_to_one(op_type, inputs, constants=[1, 2, 3, 4])


def test_quantized_global_average():
    scale, zero = np.array(0.05, np.float32), np.array(3, np.uint8)
    x = levels(1, 2, 5, 6, 7)
    check_up_to_one("QLinearGlobalAveragePool", [x, scale, zero, scale, zero])


@pytest.mark.parametrize("include", [0, 1])
def test_quantized_average_pool(include):
    scale, zero = np.array(0.05, np.float32), np.array(3, np.uint8)
    inputs = [levels(1, 2, 5, 6, 7), scale, zero, np.array(0.04, np.float32), zero]
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    check_up_to_one("QLinearAveragePool", inputs, count_include_pad=include, **attributes)
    with pytest.raises(CompileError, match="channels come last"):
        run_ours(
            "QLinearAveragePool", inputs, domain="com.microsoft", channels_last=1, **attributes
        )


@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 11)])
def test_quantized_softmax(axis, opset):
    zero = np.array(0, np.uint8)
    inputs = [levels(1, 2, 5, 6), np.array(0.03, np.float32), np.array(128, np.uint8)]
    inputs += [np.array(1 / 256, np.float32), zero]
    attributes = {"axis": axis, "constants": [1, 2, 3, 4]}
    model = model_of("QLinearSoftmax", inputs, domain="com.microsoft", opset=21, **attributes)
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", opset))
    (expected,) = onnxruntime_results(model, {"x0": inputs[0]})
    (got,) = run_graph(lower_proto(model), {"x0": inputs[0]})
    assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_concat(dtype):
    scale, zero = np.array(0.05, np.float32), np.array(3, dtype)
    other = [np.array(0.08, np.float32), np.array(9, dtype)]
    inputs = [scale, zero, levels(1, 2, 5, dtype=dtype), *other, levels(2, 2, 3, dtype=dtype)]
    inputs += [scale, zero]
    check_up_to_one("QLinearConcat", inputs, axis=1, constants=[0, 1, 3, 4, 6, 7])
    inputs[2] = levels(1, 3, 5, dtype=dtype)
    with pytest.raises(CompileError, match="all dimensions but 1"):
        run_ours("QLinearConcat", inputs, axis=1, domain="com.microsoft")


def softmax_of(x):
    shares = np.exp(x - x.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


EXACTLY = {
    "QLinearAdd": lambda x, w: x + w,
    "QLinearMul": lambda x, w: x * w,
    "QLinearSigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "QLinearLeakyRelu": lambda x: np.where(x < 0, x * np.float32(0.01), x),
    "QLinearSoftmax": softmax_of,
    "QLinearGlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
    "QLinearAveragePool": lambda x: x.reshape(2, 3, 4, 2, 4, 2).mean((3, 5)),
}
"""What numbers become that levels stand for, in float64."""


@pytest.mark.parametrize("op_type", EXACTLY)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("seed", range(6))
def test_results_are_the_nearest_levels(op_type, dtype, seed):
    """Halves to even; what float32 takes for a half may be beside one by some of its steps."""
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    share = op_type in ("QLinearSigmoid", "QLinearSoftmax")
    steps = [rng.choice([0.5, 0.25, 0.1, 1 / 3, 0.0078125, rng.uniform(0.01, 1)]) for _ in range(3)]
    steps = np.array([*steps[:2], 1 / 256 if share else steps[2]], np.float32)
    zeros = [np.array(limits.min, dtype) if share else levels(seed + 9, dtype=dtype) for _ in "xwy"]
    given, real = [], []
    for k in range(EXACTLY[op_type].__code__.co_argcount):
        x = rng.integers(limits.min, limits.max + 1, (2, 3, 8, 8)).astype(dtype)
        given += [x, steps[k], zeros[k]]
        real.append((x.astype(np.float64) - zeros[k]) * steps[k])
    extra = {"QLinearSoftmax": {"axis": -1}, "QLinearAveragePool": {"kernel_shape": [2, 2]}}
    attributes = extra.get(op_type, {})
    if op_type == "QLinearAveragePool":
        attributes["strides"] = [2, 2]
    inputs = [np.asarray(one) for one in (*given, steps[2], zeros[2])]
    model = model_of(op_type, inputs, domain="com.microsoft", **attributes)
    if op_type == "QLinearSoftmax":
        model.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", 13))
    (got,) = run_graph(lower_proto(model), inputs)
    due = EXACTLY[op_type](*real) / np.float64(steps[2])
    low, high = (np.rint(due + move) + np.float64(zeros[2]) for move in (-1e-4, 1e-4))
    assert got.dtype == dtype
    assert (got >= np.clip(low, limits.min, limits.max)).all()
    assert (got <= np.clip(high, limits.min, limits.max)).all()


def check_up_to_one(op_type, inputs, **attributes):
    """As `check`, where onnxruntime's shortcuts may round a tie to the other side."""
    model = model_of(op_type, inputs, domain="com.microsoft", **attributes)
    constants = attributes.get("constants", ())
    feeds = {f"x{k}": x for k, x in enumerate(inputs) if k not in constants}
    (expected,) = onnxruntime_results(model, feeds)
    (got,) = run_ours(op_type, inputs, domain="com.microsoft", **attributes)
    assert got.dtype == expected.dtype
    difference = np.abs(got.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.97


@pytest.mark.parametrize("move", ["Gather(x, places)", "Expand(x, shape)", "Transpose(x)"])
def test_what_selects_works_on_levels(move):
    """Where both ends have one scale, no floats are made: the operations round it are left out."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> one (uint8[3, 4] levels) => (uint8[?, ?] y) '
        "<float s = {0.1}, uint8 z = {3}, int64[2] places = {2, 0}, int64[2] shape = {3, 4}>"
        "{ x = DequantizeLinear(levels, s, z) m = " + move + " y = QuantizeLinear(m, s, z) }"
    )
    given = np.random.default_rng(0).integers(0, 256, (3, 4)).astype(np.uint8)
    core = partita.Core()
    request = core.compile_model(model, "CPU", {"PERF_COUNT": True}).create_infer_request()
    (y,) = request.infer({"levels": given}).to_tuple()
    np.testing.assert_array_equal(y, onnxruntime_results(model, {"levels": given})[0])
    done = {info.node_type for info in request.profiling_info if info.status == Status.EXECUTED}
    assert done == {move.partition("(")[0]}
