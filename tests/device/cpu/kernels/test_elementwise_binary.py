"""Operators of two and more elements with broadcasting, against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from onnx.reference import ReferenceEvaluator
from sampling import examples
from single_op import check, model_of, normal, run_ours

from partita.errors import CompileError

SHAPES = [
    ((4, 5), (4, 5)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 3, 4, 5), (5,)),
    ((2, 3, 4, 5), ()),
    ((), (2, 3)),
    ((2, 1, 4), (1, 3, 1)),
    ((1, 3, 1, 5), (2, 1, 4, 1)),
    ((2, 1, 3, 1, 2, 1, 2), (1, 2, 1, 3, 1, 2, 1)),
    ((0, 3), (1, 3)),
    ((300, 70), (300, 1)),
]
WHOLE = [np.int8, np.uint8, np.uint64]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic(op_type, left, right):
    check(op_type, [normal(1, *left), normal(2, *right)], rtol=0, atol=0)


@examples(40)
@given(
    shapes=mutually_broadcastable_shapes(num_shapes=2, max_dims=6, max_side=5),
    operator=st.sampled_from([("Sub", np.subtract), ("Less", np.less), ("Max", np.maximum)]),
)
def test_any_broadcast(shapes, operator):
    op_type, reference = operator
    a, b = (normal(k, *shape) for k, shape in enumerate(shapes.input_shapes))
    (y,) = run_ours(op_type, [a, b])
    np.testing.assert_array_equal(y, reference(a, b))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_integer_arithmetic(op_type, dtype):
    limits = np.iinfo(dtype)
    a = np.array([7, -7, 7, -7, limits.max, limits.min, 0], dtype)
    b = np.array([2, 2, -2, -2, 2, 3, 5], dtype)
    check(op_type, [a, b])


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("op_type", ["Add", "Mul", "Div"])
def test_narrow_integers(op_type, dtype):
    a = np.array([7, 100, 3, 120], dtype)
    b = np.array([2, 100, 5, 7], dtype)
    (y,) = run_ours(op_type, [a, b])
    with np.errstate(all="ignore"):
        expected = {"Add": a + b, "Mul": a * b, "Div": a // b}[op_type]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("op_type", ["Div", "Mod"])
def test_division_by_zero_and_overflow_do_not_trap(op_type):
    a = np.array([5, -5, np.iinfo(np.int32).min, 0], np.int32)
    (y,) = run_ours(op_type, [a, np.array([0, 0, -1, 0], np.int32)])
    np.testing.assert_array_equal(y[:2], [0, 0])
    np.testing.assert_array_equal(y[2], a[2] if op_type == "Div" else 0)


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8])
def test_modulo(dtype, fmod):
    a = np.array([7, 7, 100, 1, 0, 6], dtype)
    b = np.array([3, 5, 7, 2, 4, 3], dtype)
    if np.dtype(dtype).kind == "i":
        a, b = np.concatenate([a, -a, a, -a]), np.concatenate([b, b, -b, -b])
    check("Mod", [a, b], fmod=fmod)


def test_float_modulo():
    check("Mod", [normal(1, 100) * 10, normal(2, 100)], fmod=1, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -1, 0, 1.7])
def test_power_by_a_constant(exponent):
    x = np.abs(normal(1, 5, 20)) + np.float32(0.01)
    check("Pow", [x, np.float32(exponent)], constants=[1], rtol=3e-6, atol=0)


def test_power_half_of_special_values():
    x = np.array([-0.0, 0.0, np.inf, -np.inf, -1, np.nan], np.float32)
    check("Pow", [x, np.array(0.5, np.float32)], constants=[1])


def test_power_of_tensors_and_types():
    base = np.abs(normal(1, 4, 5)) + np.float32(0.1)
    check("Pow", [base, normal(2, 5)], rtol=3e-6, atol=0)
    check("Pow", [base, np.array([1, 2, 3, 4, 0], np.int64)], rtol=3e-6, atol=0)
    check("Pow", [np.arange(-4, 5, dtype=np.int64), np.array(3, np.int64)])
    check("Pow", [np.arange(1, 9, dtype=np.int32), np.array(2.5, np.float32)])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("exponent", [-3, -2, -1, 0, 1, 2, 3, 5, 31])
def test_power_of_integers_is_exact(dtype, exponent):
    """float64 has 53 bits: 2**53 + 1 to the power of 1 was 2**53."""
    limits = np.iinfo(dtype)
    x = np.array([0, 1, 2, 3, limits.max - 4, limits.min, limits.max // 1024 + 2], dtype)
    x = np.concatenate([x, np.array([-1, -2, -7], np.int8).astype(dtype)])
    due = [n**exponent if exponent >= 0 or abs(n) == 1 else 0 for n in x.tolist()]
    wrapped = np.array([int(n) % (1 << limits.bits) for n in due], np.uint64).astype(dtype)
    (found,) = run_ours("Pow", [x, np.array(exponent, np.int64)])
    np.testing.assert_array_equal(found, wrapped)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint64])
def test_extremes(op_type, dtype):
    check(op_type, [normal(k, *s, dtype=dtype) for k, s in enumerate([(3, 4), (4,), (2, 1, 1)])])


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_extremes_keep_nan(op_type):
    a = np.array([1, np.nan, np.nan, np.inf], np.float32)
    check(op_type, [a, a[::-1].copy()])


@pytest.mark.parametrize("op_type", ["Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_sum_and_mean(op_type, count):
    check(op_type, [normal(k, 3, *[4] * (k % 2 + 1))[:, :4] for k in range(0, 2 * count, 2)])
    inputs = [normal(9, 2, 3, 4), *[normal(k, 3, 1) for k in range(count - 1)]]
    check(op_type, inputs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op_type", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_comparisons(op_type, dtype):
    a, b = (
        normal(1, 3, 40, dtype=np.int32).astype(dtype),
        normal(2, 40, dtype=np.int32).astype(dtype),
    )
    if np.dtype(dtype).kind == "f":
        a[0, :3] = np.nan
    check(op_type, [a, b], opset=16)


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor", "Equal"])
def test_logic(op_type):
    check(op_type, [normal(1, 3, 20) > 0, normal(2, 20) > 0])


@pytest.mark.parametrize("op_type", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_bitwise(op_type, dtype):
    check(op_type, [np.arange(40, dtype=dtype), np.arange(40, dtype=dtype)[::-1].copy()])


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
def test_bit_shift(direction, dtype):
    check("BitShift", [np.arange(1, 30, dtype=dtype), np.full(29, 3, dtype)], direction=direction)


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_bit_shift_of_signed_numbers(direction, dtype):
    bits = np.array([-70, -1, 0, 1, 3, 6, 7, 8, 15, 16, 31, 32, 63, 64, 100], dtype)
    x = np.array([[5], [-5], [np.iinfo(dtype).min], [np.iinfo(dtype).max], [0]], dtype)
    model = model_of("BitShift", [x, bits], opset=28, direction=direction)
    (due,) = ReferenceEvaluator(model).run(None, {"x0": x, "x1": bits})
    (y,) = run_ours("BitShift", [x, bits], opset=28, direction=direction)
    np.testing.assert_array_equal(y, due)


def test_shift_by_all_bits():
    (y,) = run_ours("BitShift", [np.uint64([5, 5]), np.uint64([64, 1])], direction="LEFT")
    np.testing.assert_array_equal(y, [0, 10])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves(dtype):
    a, b = normal(1, 4, 30).astype(dtype), normal(2, 30).astype(dtype)
    (y,) = run_ours("Mul", [a, b])
    np.testing.assert_array_equal(y, (a.astype(np.float32) * b.astype(np.float32)).astype(dtype))
    (less,) = run_ours("Less", [a, b])
    np.testing.assert_array_equal(less, a < b)


def test_shapes_that_do_not_broadcast():
    with pytest.raises(CompileError, match=r"shapes \[2, 3\], \[2, 4\] do not broadcast"):
        run_ours("Add", [normal(1, 2, 3), normal(2, 2, 4)])
