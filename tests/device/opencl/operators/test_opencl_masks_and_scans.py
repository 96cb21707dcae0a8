"""OneHot, Trilu, CumSum and CumProd on device OPENCL, against onnxruntime or numpy."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import partita

from ..comparison import TILINGS, check, compiled, floats, int64s, integers, single


def check_reference(op_type, inputs, attrs=None, *, rtol=1e-5, atol=1e-5, **how):
    """Compares with ONNX's reference, which takes each type."""
    model, feeds = single(op_type, inputs, attrs, **how)
    assert not partita.Core().query_model(partita.Core().read_model(model), "OPENCL").reasons
    (wanted,) = ReferenceEvaluator(model).run(None, feeds)
    for tiling in TILINGS:
        (found,) = compiled(model, TILING=tiling)(feeds).values()
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.float32])
@pytest.mark.parametrize("values", [np.float32, np.int8, np.float16, np.int64])
def test_one_hot(axis, kind, values):
    indices = integers(3, 4, low=0 if kind is np.uint8 else -5, high=8).astype(kind)
    inputs = [indices, int64s(5), np.array([2, 7], values)]
    model, feeds = single("OneHot", inputs, {"axis": axis}, constant=[1])
    places = indices.astype(np.int64)
    places = np.where(places < 0, places + 5, places)
    on = np.moveaxis(places[..., None] == np.arange(5), -1, axis)
    for tiling in TILINGS:
        (found,) = compiled(model, TILING=tiling)(feeds).values()
        assert found.dtype == values
        np.testing.assert_array_equal(found, np.where(on, values(7), values(2)))


def test_floats_that_no_place_has():
    indices = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0, -0.5], np.float32)
    inputs = [indices, int64s(3), np.array([0, 1], np.float32)]
    model, feeds = single("OneHot", inputs, constant=[1])
    (found,) = compiled(model)(feeds).values()
    assert not found[:5].any()
    assert found[5].tolist() == [0, 0, 1]


def test_whole_numbers_that_int64_does_not_hold():
    """They count from the end, as the numbers that have the same bits do."""
    indices = np.array([2**64 - 1, 2**64 - 3, 2**63, 1], np.uint64)
    inputs = [indices, int64s(3), np.array([0, 1], np.float32)]
    model, feeds = single("OneHot", inputs, constant=[1])
    (found,) = compiled(model)(feeds).values()
    assert found.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [None, 0, 1, -2, 9, -9, -(2**63), 2**63 - 1])
def test_triangles(upper, diagonal):
    x = floats(2, 4, 5)
    inputs = [x] if diagonal is None else [x, np.array(diagonal, np.int64)]
    model, feeds = single("Trilu", inputs, {"upper": upper})
    near = int(np.clip(diagonal or 0, -100, 100))
    wanted = np.triu(x, near) if upper else np.tril(x, near)
    np.testing.assert_array_equal(next(iter(compiled(model)(feeds).values())), wanted)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.float16, np.float64])
def test_triangles_of_every_type(dtype):
    check_reference("Trilu", [integers(3, 3, low=1, high=99).astype(dtype)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(7,), (3, 300), (2, 40, 5), (1, 1), (0, 3)])
@pytest.mark.parametrize("attrs", [{}, {"exclusive": 1}, {"reverse": 1, "exclusive": 1}])
@pytest.mark.parametrize("axis", [0, -1])
def test_sums_on_the_way(shape, attrs, axis):
    model, feeds = single("CumSum", [floats(*shape), int64s(axis)], attrs, constant=[1])
    check(model, feeds, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16, np.uint32])
@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_and_products_of_every_type(dtype, op_type, axis):
    x = integers(3, 70, low=1, high=3).astype(dtype)
    if dtype == np.float16 and op_type == "CumProd":
        x = (x / 2).astype(dtype)[:, :9]
    inputs = [x, np.array(axis, np.int32)]
    np_function = np.cumsum if op_type == "CumSum" else np.cumprod
    wide = np.float64 if dtype == np.float16 else dtype
    model, feeds = single(op_type, inputs, constant=[1], opset=26)
    for tiling in TILINGS:
        (found,) = compiled(model, TILING=tiling)(feeds).values()
        wanted = np_function(x, axis, dtype=wide).astype(dtype)
        np.testing.assert_allclose(found, wanted, rtol=2e-3 if dtype == np.float16 else 0)


def test_sums_of_sizes_that_vary():
    model, feeds = single("CumSum", [floats(3, 40), int64s(1)], constant=[1], dynamic=True)
    check(model, feeds, {"x0": floats(5, 700)}, {"x0": floats(1, 1)}, atol=1e-4)


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_in_half(precision):
    exact = {"rtol": 2e-2, "atol": 2e-2, "INFERENCE_PRECISION_HINT": precision}
    check(*single("CumSum", [floats(3, 40), int64s(1)], constant=[1]), **exact)
    check(*single("Trilu", [floats(3, 4)]), **exact)
    inputs = [integers(4), int64s(5), np.array([2, 7], np.float32)]
    check(*single("OneHot", inputs, constant=[1]), **exact)
