"""Functions of one element, casts and selections, against onnxruntime."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from single_op import check, normal, run_ours

from partita.errors import PartitaError

FUNCTIONS = {
    "Abs": (-50, 50),
    "Neg": (-50, 50),
    "Exp": (-100, 80),
    "Log": (1e-6, 1000),
    "Sqrt": (0, 1000),
    "Reciprocal": (0.01, 100),
    "Floor": (-50, 50),
    "Ceil": (-50, 50),
    "Round": (-50, 50),
    "Sign": (-2, 2),
    "Sin": (-100, 100),
    "Cos": (-100, 100),
    "Tan": (-1.5, 1.5),
    "Asin": (-1, 1),
    "Acos": (-1, 1),
    "Atan": (-50, 50),
    "Sinh": (-10, 10),
    "Cosh": (-10, 10),
    "Asinh": (-50, 50),
    "Acosh": (1, 50),
    "Atanh": (-0.99, 0.99),
    "Erf": (-5, 5),
}
ALL_DTYPES = [np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16]
ALL_DTYPES += [np.uint32, np.uint64, np.bool_]


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_float32(op_type):
    low, high = FUNCTIONS[op_type]
    x = np.random.default_rng(0).uniform(low, high, (7, 143)).astype(np.float32)
    check(op_type, [x], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("op_type", ["Sqrt", "Log", "Exp", "Reciprocal", "Round", "Sign", "Neg"])
def test_special_values(op_type):
    special = [0.0, -0.0, 0.5, 1.5, -2.5, -1, np.inf, -np.inf, np.nan]
    check(op_type, [np.array(special, np.float32)], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("op_type", ["Abs", "Neg", "Sign"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_signed_integers(op_type, dtype):
    least = np.iinfo(dtype).min
    check(op_type, [np.array([least, -3, 0, 5, 100], dtype)])


@pytest.mark.parametrize("op_type", ["Abs", "Sign"])
def test_unsigned_integers(op_type):
    check(op_type, [np.array([0, 3, 200], np.uint8)])


@pytest.mark.parametrize("op_type", ["Sin", "Cos"])
def test_huge_arguments_of_sine_and_cosine(op_type):
    x = np.array([1e6, 3.3e7, -1e9, 1e20, -3e38], np.float32)
    (y,) = run_ours(op_type, [x])
    exact = [{"Sin": math.sin, "Cos": math.cos}[op_type](float(v)) for v in x]
    np.testing.assert_allclose(y, exact, atol=2e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sine_keeps_the_sign_of_zero(dtype):
    x = np.tile(np.array([-0.0, 0.0], dtype), 20)
    (y,) = run_ours("Sin", [x])
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tests_for_nan_and_infinity(dtype):
    x = np.array([1, np.nan, np.inf, -np.inf, 0], dtype)
    check("IsNaN", [x], opset=20)
    for signs in ({}, {"detect_negative": 0}, {"detect_positive": 0}):
        check("IsInf", [x], opset=20, **signs)


def test_not():
    check("Not", [normal(1, 5, 9) > 0])
    check("BitwiseNot", [np.arange(-5, 5, dtype=np.int16)])


@pytest.mark.parametrize(
    ("source", "target"),
    [(s, t) for s in ALL_DTYPES for t in ALL_DTYPES if {s, t} & {np.float32, np.int64}],
)
def test_cast(source, target):
    x = np.array([0, 1, 2.7, 5, 100, 3, 7, 90, 60]).astype(source)
    (y,) = run_ours("Cast", [x], to=int(np_to_onnx(target)))
    assert y.dtype == target
    np.testing.assert_array_equal(y, x.astype(target))


BITS = [(np.float32, np.int32), (np.int64, np.float64), (np.float16, ml_dtypes.bfloat16)]
BITS += [(np.int8, np.uint8), (np.bool_, np.int8), (np.uint16, np.float16)]


@pytest.mark.parametrize(("source", "target"), BITS)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_bits_as_another_type(source, target, shape):
    x = np.asarray(normal(1, *shape) * 3).astype(source)
    (y,) = run_ours("BitCast", [x], to=int(np_to_onnx(target)), opset=26)
    assert (y.dtype, y.shape) == (np.dtype(target), x.shape)
    assert y.tobytes() == x.tobytes()


def test_bits_of_types_of_other_sizes_are_refused():
    with pytest.raises(PartitaError, match="float32 as int64; takes types of equal size"):
        run_ours("BitCast", [normal(1, 3)], to=TensorProto.INT64, opset=26)


@pytest.mark.parametrize("target", [np.int8, np.int32, np.int64, np.uint8, np.bool_])
def test_cast_of_negative_floats_and_nan(target):
    values = [-0.9, -1.5, 300, -300] + ([np.nan] if target is np.bool_ else [])
    check("Cast", [np.array(values, np.float32)], to=int(np_to_onnx(target)))


@pytest.mark.parametrize("target", [np.float16, ml_dtypes.bfloat16])
def test_cast_to_halves_and_back(target):
    x = normal(3, 1000) * 100
    (y,) = run_ours("Cast", [x], to=int(np_to_onnx(target)))
    np.testing.assert_array_equal(y, x.astype(target))
    (back,) = run_ours("Cast", [y], to=TensorProto.INT32)
    np.testing.assert_array_equal(back, y.astype(np.int32))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ"])
def test_cast_to_bytes_of_float(name, saturate):
    x = np.array([0.1, -3, 200, 220, 1e6, -1e6, np.nan, np.inf], np.float32)
    (y,) = run_ours("Cast", [x], to=getattr(TensorProto, name), saturate=saturate)
    wide = y.astype(np.float32)
    np.testing.assert_allclose(wide[:3], x[:3], rtol=0.13)
    limit = float(ml_dtypes.finfo(y.dtype).max)
    if saturate:
        np.testing.assert_array_equal(wide[4:6], [limit, -limit])
    else:
        assert not np.isfinite(wide[4:6]).any()
    assert np.isnan(wide[6])


def test_cast_like():
    (y,) = run_ours("CastLike", [normal(4, 10), np.zeros(3, np.int64)])
    assert y.dtype == np.int64


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.bool_, np.float16])
def test_where_broadcasts(dtype):
    rng = np.random.default_rng(5)
    for c, x, y in [
        ((3, 4, 5), (3, 4, 5), (3, 4, 5)),
        ((3, 1, 1), (4, 5), (1,)),
        ((5,), (), (3, 4, 1)),
        ((4, 1), (3, 1, 5), ()),
        ((3, 4, 5), (), ()),
        ((), (3, 4, 5), (4, 5)),
        ((0, 1), (1, 5), (1, 1)),
    ]:
        one, other = (rng.integers(0, 100, shape).astype(dtype) for shape in (x, y))
        condition = rng.random(c) < 0.5
        (got,) = run_ours("Where", [np.asarray(condition), one, other])
        expected = np.where(condition, one, other)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, expected)


def np_to_onnx(dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
