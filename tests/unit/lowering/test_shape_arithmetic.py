"""What is told of sizes without kernels, against ONNX's reference evaluator."""

import itertools

import numpy as np
import pytest

from partita.lowering import Node, Operand, Value, reference_fold
from partita.lowering.shapes.result_shapes import predicted
from partita.lowering.shapes.shape_arithmetic import small_operand, small_result
from partita.lowering.shapes.symbolic_size import Recording

I64 = np.int64


def node_of(op_type, count, version=18, **attrs):
    outputs = [Value("y", None, None)]
    inputs = [Value(f"x{place}", None, None) for place in range(count)]
    return Node(op_type, inputs, outputs, attrs, version=version, name="n")


def ints(*elements):
    return np.array(elements, I64)


SMALL = [
    ("Gather", [ints(7, 8, 9), np.array(1)], {}),
    ("Gather", [ints(7, 8, 9), ints(-1, 0)], {"axis": 0}),
    ("Gather", [ints(1, 2, 3, 4).reshape(2, 2), ints(1)], {"axis": 1}),
    ("Concat", [ints(1), ints(2, 3), ints(4)], {"axis": 0}),
    ("Concat", [ints(1), ints(2, 3)], {"axis": -1}),
    ("Unsqueeze", [np.array(5), ints(0)], {}),
    ("Unsqueeze", [ints(5, 6), ints(-1, 0)], {}),
    ("Squeeze", [ints(5).reshape(1, 1), ints(-1)], {}),
    ("Squeeze", [ints(5)], {}),
    ("Squeeze", [ints(5, 6).reshape(1, 2)], {}),
    ("Slice", [ints(1, 2, 3, 4), ints(1), ints(3)], {}),
    ("Slice", [ints(1, 2, 3, 4), ints(-3), ints(2**62), ints(0)], {}),
    ("Slice", [ints(1, 2, 3, 4), ints(-9), ints(-1), ints(0), ints(1)], {}),
    ("Slice", [ints(1, 2, 3, 4), ints(-1), ints(-(2**62)), ints(0), ints(-1)], {}),
    ("Slice", [np.arange(12).reshape(4, 3), ints(1, 0), ints(9, 2), ints(-1, 0), ints(1, 2)], {}),
    (
        "Slice",
        [np.arange(12).reshape(4, 3), ints(9, -1), ints(-9, 0), ints(0, 1), ints(-3, -1)],
        {},
    ),
    ("Transpose", [np.arange(6).reshape(3, 2)], {}),
    ("Transpose", [np.arange(6).reshape(1, 3, 2)], {"perm": [2, 0, 1]}),
    ("Add", [ints(1, 2), ints(3, 4)], {}),
    ("Add", [ints(2**62, 1), ints(2**62, 1)], {}),
    ("Sub", [ints(1, 2), np.array(3)], {}),
    ("Mul", [np.array(3), ints(3, 4)], {}),
    ("Div", [ints(7, 8), ints(2, 3)], {}),
    ("Div", [ints(-7, -8, 7, -(2**63)), np.array(2)], {}),
    ("Mod", [ints(7, 9, 2), ints(2, 3, 5)], {}),
    ("Mod", [ints(-3, -14, -15), ints(14)], {"fmod": 0}),
    ("Mod", [ints(7, 9, 2), ints(2, 3, 5)], {"fmod": 1}),
    ("Mod", [ints(-7, 7, -6), ints(2)], {"fmod": 1}),
    ("Neg", [ints(3, -4)], {}),
    ("Abs", [ints(3, -4)], {}),
    ("Size", [np.zeros((3, 1, 4), np.float32)], {}),
    ("Equal", [ints(1, 2), ints(1, 3)], {}),
    ("Where", [np.array([True, False]), ints(1, 2), ints(3, 4)], {}),
]

F32, F64 = np.float32, np.float64


def floats(*elements, dtype=F32):
    return np.array(elements, dtype)


SMALL_FLOATS = [
    ("Add", [floats(0.1, 2), floats(0.2, 1e8)], {}),
    ("Sub", [floats(1, 1, dtype=F64), floats(0.3, dtype=F64)], {}),
    ("Mul", [np.array(0.1, F32), floats(3, 16777217)], {}),
    ("Div", [floats(800, 1333, 1), floats(427, 3, 0)], {}),
    ("Reciprocal", [floats(3, 7, 480, 0)], {}),
    ("Sqrt", [floats(2, 1e-40, -1)], {}),
    ("Floor", [floats(2.5, -2.5, np.inf)], {}),
    ("Round", [floats(2.5, -3.5, 0.2)], {}),
    ("Neg", [floats(2.5, -3.5, 0)], {}),
    ("Ceil", [floats(2.5, -2.5, np.nan)], {}),
    ("Max", [floats(1, 5), floats(3), floats(2, 9)], {}),
    ("Min", [floats(1, 5), floats(3)], {}),
    ("Max", [ints(1, 5), ints(3)], {}),
    ("Min", [np.array(4), np.array(-3)], {}),
    ("ReduceMin", [ints(5, 2, 3)], {"keepdims": 0}),
    ("ReduceMax", [floats(5, 2, 7.5)], {"keepdims": 0}),
    ("ReduceProd", [ints(5, 2, 3)], {}),
    ("ReduceMax", [np.array([3, 9], np.int32)], {}),
    ("Greater", [floats(1, 5), floats(3)], {}),
    ("LessOrEqual", [ints(1, 3), ints(3)], {}),
    ("Equal", [floats(0.1), floats(0.1)], {}),
    ("And", [np.array([True, False]), np.array([True, True])], {}),
    ("Or", [np.array([True, False]), np.array([False])], {}),
    ("Not", [np.array([True, False])], {}),
    ("Concat", [floats(1), floats(2, 3)], {"axis": 0}),
    ("Gather", [floats(7, 8, 9), np.array(1)], {}),
]


@pytest.mark.parametrize(("op_type", "arrays", "attrs"), SMALL_FLOATS)
def test_small_floats_are_rounded_as_the_reference_does(op_type, arrays, attrs):
    with np.errstate(all="ignore"):
        test_small_integers_are_computed_as_the_reference_does(op_type, arrays, attrs)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_floats_that_are_computed_of_sizes_are_rounded_the_same_when_they_are_repeated(dtype):
    """By another way than torchvision's, with numbers that rounding in another type changes."""

    def take(op_type, *operands, kind=dtype, **attrs):
        node = node_of(op_type, len(operands), **attrs)
        node.outputs[0].dtype = np.dtype(kind)
        return small_operand(node, operands)

    def constant(*elements):
        return Operand((len(elements),), np.dtype(dtype), np.array(elements, dtype))

    def wanted(h, w):
        low, high = dtype(min(h, w)), dtype(max(h, w))
        scale = min(dtype(1) / low * dtype(0.7), dtype(1.1) / high)
        scaled = [np.floor(dtype(n) * scale * dtype(1000)) for n in (h, w)]
        blocks = [int(np.ceil(n / dtype(32))) for n in scaled]
        return [scale, *blocks, np.sqrt(scaled[0]) < np.sqrt(scaled[1] + dtype(1e-5))]

    recording = Recording()
    sizes = recording.size(480), recording.size(641)
    image = Operand((1, 3, *sizes), np.dtype(F32))
    sides = take("Shape", image, kind=I64, start=2)
    low, high = (take("Cast", take(f"Reduce{kind}", sides, kind=I64)) for kind in ("Min", "Max"))
    one = take("Mul", take("Reciprocal", low), constant(0.7))
    scale = take("Min", one, take("Div", constant(1.1), high))
    long = take("Mul", take("Mul", take("Cast", sides), scale), constant(1000))
    whole = take("Floor", long)
    blocks = take("Cast", take("Ceil", take("Div", whole, constant(32))), kind=I64)
    rows, columns = (take("Gather", whole, index_of(n)) for n in (0, 1))
    below = take("Add", columns, constant(1e-5))
    is_less = take("Less", take("Sqrt", rows), take("Sqrt", below), kind=bool)
    assert (scale.dtype, blocks.dtype, whole.dtype) == (dtype, I64, dtype)
    found = [*scale.const, *blocks.const]
    places = [size.place for size in found]
    assert [size.value for size in found] == wanted(480, 641)[:3]
    recording.close()
    rng, others = np.random.default_rng(1), 0
    for h, w in rng.integers(1, 2000, (300, 2)).tolist():
        due = wanted(h, w)
        values = recording.repeat([h, w])
        if due[3] != is_less.const.item():
            others += 1
            assert values is None
        else:
            assert [values[place] for place in places] == due[:3]
    assert 0 < others < 300


def index_of(number):
    return Operand((1,), np.dtype(I64), ints(number))


@pytest.mark.parametrize(("op_type", "arrays", "attrs"), SMALL)
def test_small_integers_are_computed_as_the_reference_does(op_type, arrays, attrs):
    node = node_of(op_type, len(arrays), **attrs)
    with np.errstate(over="ignore"):
        (wanted,) = reference_fold(node, arrays)
    found = small_result(node, [Operand(a.shape, a.dtype, a) for a in arrays])
    assert found is not None
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("op_type", "arrays", "attrs"),
    [
        ("Gather", [ints(7, 8), ints(2)], {}),
        ("Concat", [ints(1), ints(2)], {"axis": 1}),
        ("Squeeze", [ints(5, 6), ints(0)], {}),
        ("Unsqueeze", [ints(5), ints(0, 0)], {}),
        ("Slice", [ints(1, 2, 3), ints(-9), ints(-10), ints(0), ints(-1)], {}),
        ("Slice", [ints(1, 2, 3), ints(0), ints(2), ints(0), ints(0)], {}),
        ("Slice", [ints(1, 2, 3), ints(0), ints(2), ints(1)], {}),
        ("Slice", [ints(1, 2, 3), ints(0, 1), ints(2, 2), ints(0, 0)], {}),
        ("Transpose", [ints(1, 2)], {"perm": [1]}),
        ("Div", [ints(7), ints(0)], {}),
        ("Mod", [ints(-7), ints(0)], {}),
        ("Add", [ints(1, 2), ints(1, 2, 3)], {}),
        ("Add", [np.arange(65), np.arange(65)], {}),
        ("Add", [np.ones(2, np.float16), np.ones(2, np.float16)], {}),
        ("Add", [ints(1, 2), None], {}),
        ("Where", [np.array([True]), ints(1, 2), ints(3, 4)], {}),
        ("Neg", [np.array([True])], {}),
        ("Sign", [ints(1)], {}),
    ],
)
def test_what_is_unusual_is_left_to_emitters(op_type, arrays, attrs):
    node = node_of(op_type, len(arrays), **attrs)
    operands = [None if a is None else Operand(a.shape, a.dtype, a) for a in arrays]
    assert small_result(node, operands) is None


def test_values_that_only_the_run_tells_are_left_but_their_shapes_are_known():
    x = Operand((3, 5, 7), np.dtype(np.float32))
    assert small_result(node_of("Add", 2), [x, x]) is None
    assert small_result(node_of("Shape", 1), [x]).tolist() == [3, 5, 7]
    assert small_result(node_of("Shape", 1, start=-2, end=2), [x]).tolist() == [5]


def test_casts_between_integers_are_computed_where_numbers_fit():
    node = Node("Cast", [Value("x", None, None)], [Value("y", np.dtype(np.int32), None)], {"to": 6})
    for array, fits in ((ints(7, -8), True), (ints(2**31), False), (np.ones(2, bool), False)):
        found = small_result(node, [Operand(array.shape, array.dtype, array)])
        assert (found is not None) == fits
        if found is not None:
            (wanted,) = reference_fold(node, [array])
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype == np.int32


def arr(*shape):
    return np.ones(shape, np.float32)


LSTM = {"hidden_size": 4, "direction": "bidirectional"}

RESULTS = [
    ("Relu", [arr(2, 3)], {}),
    ("Add", [arr(2, 1, 3), arr(4, 1)], {}),
    ("Add", [arr(2, 0), arr(1, 1)], {}),
    ("Less", [arr(2, 3), arr(3)], {}),
    ("MatMul", [arr(5, 1, 2, 3), arr(4, 3, 6)], {}),
    ("Gemm", [arr(3, 2), arr(4, 3)], {"transA": 1, "transB": 1}),
    ("Conv", [arr(2, 4, 9, 7), arr(6, 2, 3, 3)], {"group": 2, "strides": [2, 1], "pads": [1] * 4}),
    ("MaxPool", [arr(2, 4, 9, 7)], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", [arr(2, 4, 9, 7)], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}),
    ("Slice", [arr(9, 7), ints(-4), ints(99), ints(0)], {}),
    ("Slice", [arr(9, 7), ints(1, 5), ints(-1, 2)], {}),
    ("Slice", [arr(9, 7), ints(5, -9), ints(-(2**63), 2**62), ints(1, 0), ints(-1, 4)], {}),
    ("Slice", [arr(9, 7), ints(-1), ints(0), ints(0), ints(-3)], {}),
    ("Where", [np.ones((3, 1), bool), arr(4), arr(2, 1, 1)], {}),
    ("ConstantOfShape", [ints(2, 0, 3)], {}),
    ("GlobalAveragePool", [arr(2, 4, 9, 7)], {}),
    ("Transpose", [arr(2, 3, 4)], {}),
    ("Transpose", [arr(2, 3, 4)], {"perm": [1, 0, 2]}),
    ("Concat", [arr(2, 3), arr(2, 4)], {"axis": -1}),
    ("Reshape", [arr(2, 3, 4), ints(0, -1)], {}),
    ("Reshape", [arr(2, 3, 4), ints(4, 6)], {}),
    ("Reshape", [arr(2, 3, 4), ints(4, -1)], {"allowzero": 1}),
    ("Reshape", [arr(0, 3), ints(3, 0)], {"allowzero": 1}),
    ("Unsqueeze", [arr(2, 3), ints(0, -1)], {}),
    ("Squeeze", [arr(2, 1, 3, 1), ints(1, -1)], {}),
    ("Squeeze", [arr(2, 1, 3, 1)], {}),
    ("Gather", [arr(5, 3, 4), ints(0, 1).reshape(1, 2)], {"axis": -2}),
    ("Expand", [arr(2, 1, 3), ints(4, 1)], {}),
    ("ReduceSum", [arr(2, 3, 4), ints(-1, 0)], {"keepdims": 0}),
    ("ReduceSum", [arr(2, 3, 4), ints(1)], {}),
    ("ReduceMax", [arr(2, 3, 4)], {}),
    ("ReduceMin", [arr(2, 3, 4)], {"keepdims": 0}),
    ("ReduceSum", [arr(2, 3, 4)], {"noop_with_empty_axes": 1}),
    *((f"Reduce{how}", [arr(2, 3, 4), ints(1)], {}) for how in ("Prod", "L1", "SumSquare")),
    *((f"Reduce{how}", [arr(2, 3, 4), ints(0, 2)], {}) for how in ("LogSum", "LogSumExp")),
    ("ArgMax", [arr(2, 3, 4)], {"axis": -2}),
    ("ArgMin", [arr(2, 3, 4)], {"axis": 0, "keepdims": 0}),
    ("Flatten", [arr(2, 3, 4)], {"axis": -1}),
    ("Flatten", [arr(2, 3, 4)], {"axis": 0}),
    ("Pad", [arr(3, 4), ints(1, 0, 2, 3)], {}),
    ("Pad", [arr(3, 4), ints(1, 0, 2, 3)], {"mode": "reflect"}),
    ("ConvTranspose", [arr(1, 4, 5, 6), arr(4, 3, 3, 2)], {"strides": [2, 3]}),
    ("ConvTranspose", [arr(1, 4, 5, 6), arr(4, 3, 3, 2)], {"pads": [1, 0, 1, 1]}),
    ("DepthToSpace", [arr(1, 8, 2, 3)], {"blocksize": 2}),
    ("SpaceToDepth", [arr(1, 2, 4, 6)], {"blocksize": 2}),
    ("Tile", [arr(2, 3), ints(2, 0)], {}),
    ("GatherElements", [arr(3, 4), np.zeros((2, 4), np.int64)], {}),
    ("GatherND", [arr(3, 4, 5), np.zeros((2, 2), np.int64)], {}),
    ("GatherND", [arr(2, 4, 5), np.zeros((2, 1), np.int64)], {"batch_dims": 1}),
    ("CumSum", [arr(2, 3), np.array(1)], {}),
    ("IsNaN", [arr(2, 3)], {}),
    ("Einsum", [arr(2, 3, 4), arr(3, 5, 4)], {"equation": "bhc,hkc->bhk"}),
    ("Einsum", [arr(2, 3, 1), arr(3, 4)], {"equation": "...ij, ij"}),
    ("GridSample", [arr(2, 3, 4, 5), arr(2, 6, 7, 2)], {}),
    ("LRN", [arr(2, 3, 4, 5)], {"size": 3}),
    *((name, [arr(2, 3)], {}) for name in ("Acos", "Asinh", "Cosh", "Hardmax", "Shrink")),
    ("BitwiseOr", [ints(1, 2).reshape(2, 1), ints(4, 8)], {}),
    ("MatMulInteger", [arr(5, 2, 3).astype(np.uint8), arr(3, 6).astype(np.int8)], {}),
    ("ConvInteger", [arr(2, 4, 9, 7).astype(np.uint8), arr(6, 4, 3, 3).astype(np.uint8)], {}),
    ("DFT", [arr(2, 9, 1)], {"onesided": 1}),
    ("DFT", [arr(2, 9, 5, 2), np.array(7)], {"axis": -2, "inverse": 1}),
    ("DFT", [arr(2, 9, 2)], {"inverse": 1, "onesided": 1}),
    ("STFT", [arr(2, 30, 1), np.array(4), arr(8)], {}),
    ("STFT", [arr(2, 30, 2), np.array(4), arr(9), np.array(9)], {"onesided": 0}),
]

RESULTS_OF_SEVERAL = [
    ("Split", [arr(6, 2)], 3, {}),
    ("Split", [arr(7, 2)], 3, {"num_outputs": 3}),
    ("Split", [arr(2, 7), ints(3, 0, 4)], 3, {"axis": -1}),
    ("TopK", [arr(2, 7), ints(3)], 2, {"axis": 1}),
    ("DynamicQuantizeLinear", [arr(2, 7)], 3, {}),
    ("LSTM", [arr(5, 2, 3), arr(2, 16, 3), arr(2, 16, 4)], 3, LSTM),
    ("GRU", [arr(5, 2, 3), arr(1, 12, 3), arr(1, 12, 4)], 2, {"hidden_size": 4}),
]


@pytest.mark.parametrize(("op_type", "arrays", "attrs"), RESULTS)
def test_shapes_of_results_are_those_of_the_reference(op_type, arrays, attrs):
    node = node_of(op_type, len(arrays), **attrs)
    check_prediction(node, arrays)


@pytest.mark.parametrize(("op_type", "arrays", "outputs", "attrs"), RESULTS_OF_SEVERAL)
def test_shapes_of_several_results_are_those_of_the_reference(op_type, arrays, outputs, attrs):
    given = node_of(op_type, len(arrays), **attrs)
    names = [Value(f"y{n}", None, None) for n in range(outputs)]
    check_prediction(given.like(outputs=names), arrays)


def check_prediction(node, arrays):
    """Looks whether rules tell the shapes and types that the reference makes."""
    wanted = reference_fold(node, arrays)
    operands = [Operand(a.shape, a.dtype, a if a.dtype == I64 else None) for a in arrays]
    found = predicted(node, operands)
    assert found is not None
    assert [x.shape for x in found] == [x.shape for x in wanted]
    assert [x.dtype for x in found] == [x.dtype for x in wanted]


def test_shapes_that_do_not_fit_or_are_not_known_are_left_to_emitters():
    x, w = (Operand(shape, np.dtype(np.float32)) for shape in ((2, 3), (4, 5)))
    unknown = Operand((2,), np.dtype(I64))
    cases = [("MatMul", w), ("Add", w), ("Reshape", unknown), ("Expand", unknown), ("NonZero", x)]
    for (op_type, other), version in itertools.product(cases, (13, 18)):
        assert predicted(node_of(op_type, 2, version), [x, other]) is None
