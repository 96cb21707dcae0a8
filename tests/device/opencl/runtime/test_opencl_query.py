"""What the OPENCL devices refuse, and why."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from partita.contract.query import ReasonCode
from partita.errors import UnsupportedOpError
from partita.lowering import lower
from partita_opencl.query import refusals

from ..comparison import build, compiled, core, floats, int64s, integers, refusal, single

REFUSED = [
    ("NonZero", [floats(3, 3)], {}, ReasonCode.UNSUPPORTED_OP, "no kernel for NonZero"),
    ("Relu", [floats(3).astype(np.float64)], {}, ReasonCode.UNSUPPORTED_DTYPE, "float64"),
    ("MatMul", [integers(3, 3), integers(3, 3)], {}, ReasonCode.UNSUPPORTED_DTYPE, "int64"),
    (
        "Cast",
        [floats(3)],
        {"to": TensorProto.DOUBLE},
        ReasonCode.UNSUPPORTED_DTYPE,
        "casts to type 11",
    ),
    (
        "ConvTranspose",
        [floats(1, 2, 3, 3, 3, 3), floats(2, 2, 2, 2, 2, 2)],
        {},
        ReasonCode.UNSUPPORTED_SHAPE,
        "4 spatial dimensions; takes 1 to 3",
    ),
    (
        "Resize",
        [floats(1, 1, 4, 4), None, np.array([1, 1, 2, 2], np.float32)],
        {"antialias": 1, "mode": "linear"},
        ReasonCode.UNSUPPORTED_ATTRIBUTE,
        "antialias 1; takes 0",
    ),
    (
        "Range",
        [floats(3, 3), floats(3, 3), floats(3, 3)],
        {},
        ReasonCode.VALUE_DEPENDENT_SHAPE,
        "input 0 ('x0') is computed while the model runs",
    ),
    ("Neg", [floats(*[1] * 9)], {}, ReasonCode.UNSUPPORTED_SHAPE, "9 dimensions; takes 8"),
    (
        "LayerNormalization",
        [floats(2, 3, 5), floats(5), floats(3, 5)],
        {},
        ReasonCode.UNSUPPORTED_SHAPE,
        "weights of 2 dimensions; takes the 1 of a row",
    ),
    (
        "RMSNormalization",
        [floats(2, 3, 5), floats(1, 3, 5)],
        {"axis": 1},
        ReasonCode.UNSUPPORTED_SHAPE,
        "weights of 3 dimensions; takes the 2 of a row",
    ),
]


@pytest.mark.parametrize(("op_type", "inputs", "attrs", "code", "detail"), REFUSED)
def test_refusals(op_type, inputs, attrs, code, detail):
    reason = refusal(op_type, inputs, attrs)
    assert reason.code is code
    assert detail in reason.detail


@pytest.mark.parametrize("op_type", ["Shape", "Size"])
def test_sizes_of_texts(op_type):
    text = f"""<ir_version: 8, opset_import: ["" : 16]>
               g (string[n] x) => (int64[m] y) {{ [size] y = {op_type}(x) }}"""
    answer = core().query_model(core().read_model(parser.parse_model(text)), "OPENCL")
    assert answer.reasons["size"].code is ReasonCode.UNSUPPORTED_DTYPE
    assert "input 0 is string" in answer.reasons["size"].detail


@pytest.mark.parametrize("kind", ["seq(float[3])", "optional(float[3])"])
def test_what_is_no_tensor(kind):
    text = f"""<ir_version: 8, opset_import: ["" : 16]>
               g ({kind} x) => ({kind} y) {{ [same] y = Identity(x) }}"""
    answer = core().query_model(core().read_model(parser.parse_model(text)), "OPENCL")
    assert answer.reasons["same"].code is ReasonCode.UNSUPPORTED_DTYPE
    assert "input 0 is string" in answer.reasons["same"].detail


def test_what_nobody_reads_is_no_reason_to_refuse_a_model():
    nodes = [
        helper.make_node("Relu", ["x"], ["y"], name="used"),
        helper.make_node("Shape", ["x"], ["s"], name="unread"),
    ]
    x = floats(2, 3)
    model = build(nodes, {"x": x}, ["y"])
    answer = core().query_model(core().read_model(model), "OPENCL")
    assert sorted(answer) == ["unread", "used"]
    np.testing.assert_array_equal(compiled(model)({"x": x})[0], np.maximum(x, 0))


def test_a_second_output_that_is_not_computed():
    attrs = {"kernel_shape": [2, 2]}
    reason = refusal("MaxPool", [floats(1, 1, 4, 4)], attrs, outputs=2)
    assert reason.code is ReasonCode.UNSUPPORTED_ATTRIBUTE
    assert reason.detail == "output 1 is used; computes the first 1 only"


def test_an_opset_that_is_not_known():
    reason = refusal("BatchNormalization", [floats(1, 2, 3), *[floats(2)] * 4], opset=6)
    assert reason.code is ReasonCode.UNSUPPORTED_OP
    assert reason.detail == "BatchNormalization of opset 6; takes opsets 7 to latest"


def test_a_shape_that_hangs_on_floats_is_refused_and_one_from_shapes_is_taken():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "one"], ["rows"], name="gather"),
        helper.make_node("Concat", ["rows", "rest"], ["t"], name="concat", axis=0),
        helper.make_node("Reshape", ["x", "t"], ["y"], name="good"),
        helper.make_node("ReduceMax", ["x"], ["m"], name="max", keepdims=0),
        helper.make_node("Cast", ["m"], ["n"], name="cast", to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["n", "zero"], ["u"], name="unsqueeze"),
        helper.make_node("Reshape", ["x", "u"], ["z"], name="bad"),
    ]
    weights = [
        numpy_helper.from_array(int64s(1), "one"),
        numpy_helper.from_array(int64s(0), "zero"),
        numpy_helper.from_array(int64s(-1), "rest"),
    ]
    model = core().read_model(build(nodes, {"x": floats(3, 4)}, ["y", "z"], weights))
    answer = core().query_model(model, "OPENCL")
    assert set(answer.reasons) == {"bad"}
    assert answer.reasons["bad"].code is ReasonCode.VALUE_DEPENDENT_SHAPE


def test_constants_are_taken_whatever_computes_them():
    nodes = [
        helper.make_node("Constant", [], ["c"], name="c", value_float=2.0),
        helper.make_node("Range", ["start", "limit", "c"], ["r"], name="range"),
        helper.make_node("Add", ["x", "r"], ["y"], name="add"),
    ]
    weights = [
        numpy_helper.from_array(np.array(0, np.float32), "start"),
        numpy_helper.from_array(np.array(8, np.float32), "limit"),
    ]
    model = core().read_model(build(nodes, {"x": floats(4)}, ["y"], weights))
    assert not core().query_model(model, "OPENCL").reasons


def test_constants_that_the_host_does_not_fold_are_asked_of_the_kernels():
    attrs, x = {"kernel_shape": [2, 2]}, floats(1, 1, 4, 4)
    reason = refusal("MaxPool", [x], attrs, outputs=2, constant=(0,))
    assert reason.detail == "output 1 is used; computes the first 1 only"
    reason = refusal("MaxPool", [x.astype(np.float64)], attrs, constant=(0,))
    assert reason.code is ReasonCode.UNSUPPORTED_DTYPE


def test_compiling_what_is_refused_says_why():
    model, _ = single("NonZero", [floats(3, 3)])
    with pytest.raises(UnsupportedOpError, match=r"(?s)NonZero.*OP: no kernel.*'HETERO:"):
        compiled(model)


EACH = [
    ("Shape", [floats(2, 3)]),
    ("Gather", [int64s(1, 2, 3), int64s(1)]),
    ("Concat", [int64s(1), int64s(2, 3)]),
    ("Unsqueeze", [int64s(1)[0:1].reshape(()), int64s(0)]),
    ("Slice", [int64s(1, 2, 3), int64s(0), int64s(2)]),
    ("Reshape", [floats(4, 3), int64s(2, 6)]),
    ("ConstantOfShape", [int64s(2, 2)]),
    ("Tile", [floats(2, 2), int64s(2, 1)]),
    ("Pad", [floats(2, 2), int64s(1, 0, 0, 1)]),
    ("Mul", [int64s(3, 4), int64s(2)]),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("op_type", "inputs"), EACH, ids=[name for name, _ in EACH])
@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_shape_arithmetic_compile_alone(op_type, inputs, dynamic):
    from ..comparison import check

    attrs = {"axis": 0} if op_type in ("Concat", "Gather") else {}
    model, feeds = single(op_type, inputs, attrs, dynamic=dynamic)
    check(model, feeds)


def test_constants_whose_types_nobody_says_are_taken():
    nodes = [
        helper.make_node("Unsqueeze", ["w", "axes"], ["row"], name="row"),
        helper.make_node("Mul", ["x", "row"], ["y"], name="product"),
    ]
    weights = [
        numpy_helper.from_array(floats(3), "w"),
        numpy_helper.from_array(int64s(0), "axes"),
    ]
    graph = lower(core().read_model(build(nodes, {"x": floats(2, 3)}, ["y"], weights)))
    product = next(node for node in graph.nodes if node.name == "product")
    product.inputs[1].dtype = None
    assert not refusals(graph)
    product.inputs[0].dtype = None
    assert "no known type" in refusals(graph)["product"].detail


def test_texts_that_are_constants_are_refused():
    texts = numpy_helper.from_array(np.array(["a", "b c"], object), "w")
    model = build([helper.make_node("Identity", ["w"], ["y"], name="one")], {}, ["y"], [texts])
    answer = core().query_model(core().read_model(model), "OPENCL")
    assert answer.reasons["one"].code == ReasonCode.UNSUPPORTED_DTYPE
    assert "holds texts" in answer.reasons["one"].detail
