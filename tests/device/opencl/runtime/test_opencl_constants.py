"""Operators of constants alone, which device OPENCL computes on the host when it compiles."""

import tracemalloc

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

from partita.errors import CompileError
from partita.lowering.shapes import fold_allowance

from ..comparison import build, check, check_single, compiled, core, floats, int64s, single

SPECIAL = np.array([[-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf]], np.float32)


def check_constants(op_type, inputs, attrs=None, **how):
    """An operator of nothing but constants against onnxruntime."""
    check_single(op_type, inputs, attrs, constant=range(len(inputs)), **how)


def result_of_constants(op_type, inputs, attrs, **how):
    """What device OPENCL makes of them, for operators that onnxruntime refuses."""
    model, _ = single(op_type, inputs, attrs, constant=range(len(inputs)), **how)
    assert not core().query_model(core().read_model(model), "OPENCL").reasons
    return np.array(compiled(model)({})[0])


def test_a_slope_that_is_infinite_leaves_what_is_not_below_zero():
    check_constants("PRelu", [SPECIAL, np.full((1, 1), np.inf, np.float32)])


@pytest.mark.parametrize("x", [np.full((2, 3), -np.inf, np.float32), SPECIAL, floats(3, 4)])
def test_the_logarithm_of_a_sum_of_nothing_is_infinite(x):
    with np.errstate(divide="ignore"):
        wanted = np.log(np.sum(np.exp(x.astype(np.float64)), axis=1, keepdims=True))
    found = result_of_constants("ReduceLogSumExp", [x, int64s(1)], {})
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_logarithms_of_shares_that_are_too_small_for_floats():
    check_constants("LogSoftmax", [np.array([[0.0, -999.5, 3.0]], np.float32)], {"axis": 1})


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_of_old_opsets_runs_over_all_dimensions_from_its_axis_on(op_type):
    check_constants(op_type, [floats(2, 3, 4)], {"axis": 1}, opset=11)
    nodes = [
        helper.make_node("EyeLike", ["x"], ["eye"], dtype=1),
        helper.make_node(op_type, ["eye"], ["y"], axis=0),
    ]
    x = floats(4, 6)
    check(build(nodes, {"x": x}, ["y"], opset=11), {"x": x})


def test_global_maximum_of_images_of_three_dimensions():
    check_constants("GlobalMaxPool", [floats(2, 3, 4, 5, 2)])


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_local_response_runs_over_channels(size):
    x = floats(2, 7, 3, 2)
    squares = x.astype(np.float64) ** 2
    before, after = (size - 1) // 2, size // 2
    sums = [squares[:, max(0, c - before) : c + after + 1].sum(axis=1) for c in range(7)]
    wanted = x / (1.5 + 0.3 / size * np.stack(sums, axis=1)) ** 0.6
    attrs = {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}
    np.testing.assert_allclose(result_of_constants("LRN", [x], attrs), wanted, rtol=1e-5)


def test_integers_shrink_without_rounding():
    most, least = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    x = int64s(least, least + 1, -(2**53) - 1, -1, 0, 1, 2**53 + 1, most)
    found = result_of_constants("Shrink", [x], {"lambd": 1.0, "bias": 2.0})
    moved = [int(v) + 2 if v < -1 else int(v) - 2 if v > 1 else 0 for v in x]
    np.testing.assert_array_equal(found, int64s(*moved))


@pytest.mark.parametrize("offset", [0.0, 3000.0])
def test_groups_far_from_zero_keep_their_digits(offset):
    x = floats(2, 6, 3, 2) + np.float32(offset)
    rows = x.astype(np.float64).reshape(2, 2, -1)
    deviation = np.sqrt(rows.var(axis=2, keepdims=True) + np.float32(0.3))
    wanted = ((rows - rows.mean(axis=2, keepdims=True)) / deviation).reshape(x.shape)
    scale, bias = np.ones(6, np.float32), np.zeros(6, np.float32)
    attrs = {"num_groups": 2, "epsilon": 0.3}
    found = result_of_constants("GroupNormalization", [x, scale, bias], attrs, opset=21)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture
def nothing_may_be_folded(monkeypatch):
    monkeypatch.setattr(fold_allowance, "FLOOR_BYTES", 0)
    monkeypatch.setattr(fold_allowance, "BYTES_PER_WEIGHT_BYTE", 0)


@pytest.mark.usefixtures("nothing_may_be_folded")
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16, np.float32])
@pytest.mark.parametrize("ends", [(0, 30_000, 1), (17, -40, -3), (5, 5, 1), (1, 9, -1)])
def test_ranges_of_more_than_may_be_folded(dtype, ends):
    check_constants("Range", [np.array(n, dtype) for n in ends])


@pytest.mark.usefixtures("nothing_may_be_folded")
@pytest.mark.parametrize("value", [np.float32(2.5), np.int64(7), np.int32(-3), np.bool_(1)])
@pytest.mark.parametrize("shape", [(2, 3, 1, 5), (7,), (0, 4)])
def test_tensors_of_one_value_of_more_than_may_be_folded(value, shape):
    attrs = {"value": numpy_helper.from_array(value.reshape(1))}
    check_constants("ConstantOfShape", [int64s(*shape)], attrs)


@pytest.mark.usefixtures("nothing_may_be_folded")
@pytest.mark.parametrize("op_type", ["Expand", "Tile"])
def test_repetitions_of_more_than_may_be_folded(op_type):
    check_constants(op_type, [floats(1, 3), int64s(4, 1)])


@pytest.mark.parametrize(
    "made",
    [
        "<int64[1] s = {268435456}, AT> { t = ConstantOfShape(s)",
        "<float z = {0}, float n = {268435456}, float d = {1}, AT> { t = Range(z, n, d)",
        "<float[1] one = {1}, int64[1] s = {268435456}, AT> { t = Expand(one, s)",
    ],
)
def test_a_gigabyte_that_a_number_asks_for_is_not_made_by_compiling(made):
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[1] x) => (float[1] y)'
    made = made.replace("AT", "int64[1] a = {0}, int64[1] b = {1}")
    model = parser.parse_model(f"{text} {made} u = Slice(t, a, b) y = Add(x, u) }}")
    tracemalloc.start()
    try:
        compiled(model)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**26


def test_gigabytes_that_compiling_would_need_are_refused_at_once():
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[4] x) => (float[N] y)'
    text += (
        "<int64[1] one = {1}, int64[1] s = {2000000000}> { w = Expand(one, s) y = Reshape(x, w) }"
    )
    tracemalloc.start()
    try:
        with pytest.raises(CompileError, match=r"would be more than .* GiB, which compiling"):
            compiled(parser.parse_model(text))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**26
