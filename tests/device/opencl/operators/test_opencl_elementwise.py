"""Element-wise operators of device OPENCL, alone and fused, against onnxruntime."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from partita_opencl.drivers.program_cache import ProgramCache

from ..comparison import build, check, check_single, compiled, floats, integers, single

EDGES = np.array([0.0, -0.0, 1.5, 2.5, -0.5, -2.5, np.inf, -np.inf, np.nan], np.float32)

ANY_FLOAT = [
    ("Abs", {}),
    ("Neg", {}),
    ("Sign", {}),
    ("Ceil", {}),
    ("Floor", {}),
    ("Round", {}),
    ("Exp", {}),
    ("Erf", {}),
    ("Tanh", {}),
    ("Sigmoid", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("Relu", {}),
    ("LeakyRelu", {"alpha": 0.2}),
    ("Elu", {"alpha": 0.7}),
    ("Celu", {"alpha": 0.7}),
    ("Selu", {}),
    ("ThresholdedRelu", {"alpha": 0.3}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
    ("HardSwish", {}),
    ("Mish", {}),
    ("Shrink", {"bias": 0.2, "lambd": 0.6}),
    ("Atan", {}),
    ("Sinh", {}),
    ("Cosh", {}),
    ("Asinh", {}),
    ("Sin", {}),
    ("Cos", {}),
    ("Tan", {}),
]


@pytest.mark.parametrize(("op_type", "attrs"), ANY_FLOAT, ids=[name for name, _ in ANY_FLOAT])
def test_unary_on_floats(op_type, attrs):
    check_single(op_type, [floats(3, 5, 7)], attrs)


@pytest.mark.parametrize("op_type", ["Sqrt", "Log", "Reciprocal", "Acosh"])
def test_unary_on_positive_floats(op_type):
    check_single(op_type, [np.abs(floats(37)) + 1.0])


@pytest.mark.parametrize("op_type", ["Asin", "Acos", "Atanh"])
def test_unary_on_fractions(op_type):
    check_single(op_type, [np.tanh(floats(37))])


@pytest.mark.parametrize("op_type", ["Abs", "Neg", "Ceil", "Floor", "Round", "Relu", "IsNaN"])
def test_unary_on_edges(op_type):
    check_single(op_type, [EDGES])


@pytest.mark.parametrize(
    "op_type", ["Celu", "Elu", "HardSigmoid", "LeakyRelu", "Selu", "Sigmoid", "Sign", "Tanh"]
)
def test_nan_goes_through(op_type):
    x = np.array([-2, np.nan, 0, 0.3, 7], np.float32)
    check_single(op_type, [x])


@pytest.mark.parametrize("op_type", ["HardSwish", "Mish", "Softplus", "Softsign"])
def test_nan_goes_through_what_onnxruntime_has_in_other_words(op_type):
    x = np.array([np.nan, 1, np.nan], np.float32)
    model, feeds = single(op_type, [x])
    found = compiled(model)(feeds)[0]
    np.testing.assert_array_equal(np.isnan(found), [True, False, True])


@pytest.mark.parametrize("signs", [(1, 1), (1, 0), (0, 1)])
def test_is_inf(signs):
    check_single("IsInf", [EDGES], {"detect_positive": signs[0], "detect_negative": signs[1]})


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_extremes_keep_nan(op_type):
    check_single(op_type, [EDGES, EDGES[::-1].copy()])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    check_single("Gelu", [floats(4, 9)], {"approximate": approximate}, opset=20)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("op_type", ["Abs", "Neg"])
def test_unary_on_integers(op_type, dtype):
    check_single(op_type, [integers(23, dtype=dtype)])


SHAPES = [
    ((4, 5), (4, 5)),
    ((2, 3, 4, 5), (5,)),
    ((2, 3, 4, 5), (3, 1, 1)),
    ((2, 1, 4, 1), (3, 1, 5)),
    ((1,), (7, 3)),
    ((), (4,)),
    ((2, 1, 3, 1, 2), (1, 4, 1, 5, 1)),
    ((0, 3), (1, 3)),
    ((1, 3), (70, 1)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_broadcasting(left, right):
    check_single("Sub", [floats(*left), floats(*right, seed=1)])


@pytest.mark.parametrize("op_type", ["Add", "Mul", "Div", "Max", "Min", "PRelu"])
def test_binary_on_floats(op_type):
    check_single(op_type, [floats(3, 4, 5), floats(4, 1, seed=1)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op_type", ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
@pytest.mark.parametrize("make", [floats, integers])
def test_comparisons(op_type, make):
    x = make(5, 6)
    check_single(op_type, [x, np.roll(x, 1, axis=1)])


@pytest.mark.parametrize("op_type", ["And", "Or", "Xor"])
def test_logic(op_type):
    a, b = integers(4, 6) > 0, integers(6, seed=1) > 0
    check_single(op_type, [a, b])


def test_not():
    check_single("Not", [integers(9) > 0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic_on_integers(op_type, dtype):
    divisor = np.array([1, 2, 3, 5, 7, 9], dtype)
    low = 0 if dtype == np.uint8 else -50
    check_single(op_type, [integers(8, 6, low=low, high=50, dtype=dtype), divisor])


def _quotient(a, b):
    """Towards zero."""
    return np.array([int(abs(int(v)) // abs(b)) * (1 if (v < 0) == (b < 0) else -1) for v in a])


WRAPPED = [
    (["Mul x c", "Div t0 c"], 4, lambda x, c: _quotient(x * c, 4)),
    (["Add x c", "Greater t0 x"], 100, lambda x, c: x + c > x),
    (["Sub x c", "Less t0 x"], 100, lambda x, c: x - c < x),
    (["Neg x", "Less t0 c"], 0, lambda x, c: -x < c),
    (["Abs x", "Less t0 c"], 0, lambda x, c: abs(x) < c),
    (["Div x c", "Less t0 x"], -1, lambda x, c: -x < x),
]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_whole_numbers_wrap_around_inside_a_chain(dtype, monkeypatch):
    """By compilers that optimize as for users, which other tests keep PoCL from."""
    monkeypatch.delenv("POCL_EXTRA_BUILD_FLAGS")
    kind = np.iinfo(dtype)
    x = np.array([0, 1, -1, 7, kind.min, kind.max, kind.max // 2, kind.min // 2 - 1], dtype)
    nodes, numbers = [], []
    for place, (row, number, _) in enumerate(WRAPPED):
        names = {"x": "x", "c": f"c{place}", "t0": f"t{place}"}
        numbers.append(np.full(1, number, dtype))
        for text, output in zip(row, (names["t0"], f"y{place}"), strict=True):
            op_type, *operands = text.split()
            nodes.append(helper.make_node(op_type, [names[name] for name in operands], [output]))
    weights = [numpy_helper.from_array(c, f"c{place}") for place, c in enumerate(numbers)]
    outputs = [f"y{place}" for place in range(len(WRAPPED))]
    found = compiled(build(nodes, {"x": x}, outputs, weights))({"x": x}).to_tuple()
    for result, c, (row, _, wanted) in zip(found, numbers, WRAPPED, strict=True):
        np.testing.assert_array_equal(np.array(result), wanted(x, c), str(row))  # numpy wraps


@pytest.mark.parametrize(
    ("dtype", "kind", "zero"),
    [(np.int8, "uint", "0"), (np.int16, "uint", "v"), (np.int32, "uint", "0")],
)
def test_negations_are_written_so_that_no_compiler_simplifies_them(dtype, kind, zero, monkeypatch):
    """PoCL's makes the right of narrow ones however they are written, NVIDIA's does not.

    They are differences of unsigned numbers; of 16 bits, from a zero that is a parameter.
    """
    sources = []
    get = ProgramCache.get

    def recorded(cache, keys):
        asked = [*keys]
        sources.extend(key.generated for key in asked)
        return get(cache, asked)

    monkeypatch.setattr(ProgramCache, "get", recorded)
    x, y = np.array([np.iinfo(dtype).min, 7], dtype), np.array([-1, -1], dtype)
    operators = {"Neg": ["x"], "Abs": ["x"], "Div": ["x", "y"]}
    nodes = [helper.make_node(op_type, inputs, [op_type]) for op_type, inputs in operators.items()]
    found = compiled(build(nodes, {"x": x, "y": y}, [*operators]))({"x": x, "y": y}).to_tuple()
    for result, wanted in zip(found, (-x, abs(x), -x), strict=True):
        np.testing.assert_array_equal(np.array(result), wanted)  # numpy wraps
    written = re.findall(r"\((\w+)\)(\w)\w* - \((\w+)\)v", "".join(sources))
    assert written == [(kind, zero, kind)] * len(operators)


@pytest.mark.parametrize("fmod", [0, 1])
def test_mod_on_integers(fmod):
    a, b = integers(50, low=-20, high=20), np.where(integers(50, seed=1) < 0, -7, 5)
    check_single("Mod", [a, b], {"fmod": fmod})


def test_mod_on_floats():
    check_single("Mod", [floats(30) * 10, floats(30, seed=1)], {"fmod": 1}, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_mod_on_floats_takes_the_sign_of_the_divisor(dtype):
    special = [0.0, -0.0, 1.5, -1.5, 7.0, -7.0, np.inf, -np.inf, np.nan]
    a, b = np.meshgrid(np.array(special, dtype), np.array(special, dtype))
    model, feeds = single("Mod", [a, b])
    with np.errstate(all="ignore"):
        want = np.mod(a, b)
    have = compiled(model)(feeds)[0]
    np.testing.assert_array_equal(have, want)
    usual = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(have)[usual], np.signbit(want)[usual])


def test_integer_division_by_zero_does_not_stop_the_process():
    model, feeds = single("Div", [integers(4), np.zeros(4, np.int64)])
    assert compiled(model).infer_new_request(feeds)[0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0])
def test_pow(exponent):
    x = np.abs(floats(11)) + 0.1
    check_single("Pow", [x, np.array(exponent, np.float32)], constant=(1,))


def test_pow_with_integer_exponents():
    check_single("Pow", [floats(3, 4), integers(4, low=0, high=4)])


@pytest.mark.parametrize("op_type", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 3])
def test_variadic(op_type, count):
    check_single(op_type, [floats(3, 4), floats(4, seed=1), floats(3, 1, seed=2)][:count])


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction):
    x, bits = (
        integers(20, low=0, high=200, dtype=np.uint8),
        integers(20, low=0, high=7, dtype=np.uint8, seed=1),
    )
    check_single("BitShift", [x, bits], {"direction": direction})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_bit_shift_of_signed_numbers(direction, dtype):
    bits = np.array([-70, -1, 0, 1, 3, 6, 7, 8, 15, 16, 31, 32, 63, 64, 100], dtype)
    x = np.array([[5], [-5], [np.iinfo(dtype).min], [np.iinfo(dtype).max], [0]], dtype)
    model, feeds = single("BitShift", [x, bits], {"direction": direction}, opset=28)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(compiled(model)(feeds)[0], want)


@pytest.mark.parametrize("op_type", ["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
def test_bitwise(op_type):
    check_single(op_type, [integers(20, dtype=np.int32), integers(20, dtype=np.int32, seed=1)])


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float16, np.float64])
def test_where(dtype):
    x, y = integers(3, 1, 5).astype(dtype), integers(4, 1, seed=1).astype(dtype)
    check_single("Where", [integers(4, 5, seed=2) > 0, x, y])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (None, 0.3), (-0.2, None)])
@pytest.mark.parametrize("constant", [True, False])
def test_clip(low, high, constant):
    bounds = [None if v is None else np.array(v, np.float32) for v in (low, high)]
    given = [i for i, v in enumerate(bounds, 1) if v is not None]
    check_single("Clip", [floats(9, 5), *bounds], constant=given if constant else ())


def test_clip_by_attributes():
    check_single("Clip", [floats(9, 5)], {"min": -0.3, "max": 0.4}, opset=10)


def test_clip_on_integers():
    bounds = [np.array(-2, np.int64), np.array(3, np.int64)]
    check_single("Clip", [integers(20), *bounds], constant=(1, 2))


CASTS = [np.float32, np.int32, np.int64, np.uint8, np.bool_]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_cast(source, target):
    x = (np.abs(floats(5, 8)) * 3).astype(source)
    check_single("Cast", [x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(target))})


@pytest.mark.parametrize("target", [np.float32, np.float16, np.int64, np.bool_])
def test_cast_of_bfloat16(target):
    x = np.array([0.0, -0.0, 1.5, -2.75, 300.0, 1e-3, -7.0], ml_dtypes.bfloat16)
    if target == np.float32:
        x = np.concatenate([x, np.array([np.inf, np.nan, 1e38, 1e-40], x.dtype)])
    model, feeds = single("Cast", [x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(target))})
    found = compiled(model).infer_new_request(feeds)[0]
    assert found.dtype == target
    np.testing.assert_array_equal(found, x.astype(np.float32).astype(target))


@pytest.mark.parametrize("target", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64])
@pytest.mark.parametrize("op_type", ["Cast", "CastLike"])
def test_truth_that_is_not_one_is_one(op_type, target):
    """Bytes of truth values that a caller hands over were taken for numbers."""
    x = np.array([0, 1, 2, 128, 255] * 7, np.uint8).view(np.bool_)
    kind = helper.tensor_dtype_to_np_dtype(target)
    if op_type == "Cast":
        model, feeds = single("Cast", [x], {"to": target})
    else:
        model, feeds = single("CastLike", [x, np.zeros(1, kind)])
    (found,) = compiled(model)(feeds).to_tuple()
    np.testing.assert_array_equal(found, (x.view(np.uint8) != 0).astype(kind))


def test_cast_cuts_towards_zero():
    check_single("Cast", [floats(40) * 9], {"to": TensorProto.INT32})


@pytest.mark.parametrize("constant", [(1, 2, 3, 4), ()])
def test_batch_normalization(constant):
    statistics = [floats(6, seed=1), floats(6, seed=2), floats(6, seed=3), floats(6, seed=4) ** 2]
    check_single("BatchNormalization", [floats(2, 6, 5, 4), *statistics], constant=constant)


def chain_model():
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["a"]),
        helper.make_node("Mul", ["a", "a"], ["b"]),
        helper.make_node("Add", ["b", "epsilon"], ["c"]),
        helper.make_node("Sqrt", ["c"], ["d"]),
        helper.make_node("Div", ["a", "d"], ["e"]),
        helper.make_node("Greater", ["e", "y"], ["f"]),
        helper.make_node("Where", ["f", "e", "y"], ["g"]),
        helper.make_node("Tanh", ["g"], ["z"]),
    ]
    weights = [
        numpy_helper.from_array(floats(5, 1, seed=2), "mean"),
        numpy_helper.from_array(np.array(1e-3, np.float32), "epsilon"),
    ]
    feeds = {"x": floats(3, 5, 7), "y": floats(7, seed=1)}
    return build(nodes, feeds, ["z"], weights), feeds


@pytest.mark.parametrize("fused", [True, False])
def test_a_chain_agrees_whether_fused_or_not(fused):
    model, feeds = chain_model()
    check(model, feeds, FUSE_ELEMENTWISE=fused)


def test_a_chain_runs_as_one_kernel():
    model, feeds = chain_model()
    counts = []
    for fused in (True, False):
        request = compiled(model, PERF_COUNT=True, FUSE_ELEMENTWISE=fused).create_infer_request()
        request.infer(feeds)
        counts.append(sum(info.status == "EXECUTED" for info in request.profiling_info))
    assert counts == [1, 8]


def test_a_chain_whose_middle_is_an_output():
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["b"]),
        helper.make_node("Abs", ["b"], ["c"]),
    ]
    feeds = {"x": floats(4, 4)}
    check(build(nodes, feeds, ["c", "a"]), feeds)


def test_long_chains_are_cut():
    names = [f"v{i}" for i in range(61)]
    nodes = [
        helper.make_node("Sin" if i % 2 else "Abs", [a], [b])
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    feeds = {"v0": floats(3, 3)}
    check(build(nodes, feeds, ["v60"]), feeds)


def test_chains_of_many_inputs_are_cut():
    feeds = {f"x{i}": floats(3, 4, seed=i) for i in range(14)}
    nodes, last = [], "x0"
    for i in range(1, 14):
        nodes.append(helper.make_node("Add", [last, f"x{i}"], [f"s{i}"]))
        last = f"s{i}"
    check(build(nodes, feeds, [last]), feeds)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 255, 1026])
def test_contiguous_lengths(count):
    check_single("Mul", [floats(count), floats(count, seed=1)])


@pytest.mark.parametrize("count", [3, 4, 33])
def test_casts_to_halves_round_inside_a_chain(count):
    x = np.concatenate([floats(count - 2) / 3, [70000.0, 1e-7]]).astype(np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["c"], ["y"]),
    ]
    model = build(nodes, {"x": x}, {"y": np.float32})
    (y,) = compiled(model)({"x": x}).to_tuple()
    with np.errstate(over="ignore"):
        due = -(x * x).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(y, due)


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("Shrink", {"bias": 70000.0, "lambd": 0.5}),
        ("Elu", {"alpha": -70000.0}),
        ("LeakyRelu", {"alpha": 1e-9}),
        ("HardSigmoid", {"alpha": 1e38, "beta": 0.5}),
        ("ThresholdedRelu", {"alpha": 70000.0}),
    ],
)
def test_attributes_beyond_halves_make_what_onnx_says(op_type, attrs):
    x = np.array([-9.0, -2.0, -0.25, 0.0, 0.25, 2.0, 9.0, 65504.0], np.float16)
    check_single(op_type, [x], attrs)
