"""Operators whose results are known at compile time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from single_op import check, model_of, normal, run_ours

import partita
from partita.errors import CompileError
from partita.lowering import Graph, Node, Value
from partita_cpu.runtime.device_model import run_graph

RANGES = [(0, 5, 1), (5, 0, -2), (1, 1, 1), (3, 10, 4), (0, 5, -1)]


@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.float64, np.int16])
@pytest.mark.parametrize("constants", [(), (0, 1, 2)])
def test_range(bounds, dtype, constants):
    check("Range", [np.array(v, dtype) for v in bounds], constants=constants)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.int16])
@pytest.mark.parametrize("step", [1, 3, -2])
def test_range_of_sizes(step, dtype):
    """Ends that follow from a shape are numbers of the program that one recording makes."""
    kind = {np.int32: "int32", np.int64: "int64", np.int16: "int16"}[dtype]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[N] x) => ({kind}[M] y)
        <int64 two = {{2}}, int64 first = {{7}}, {kind} step = {{{step}}}> {{
            n = Size(x) twice = Mul(n, two) last = Cast<to: int = {
            onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        }>(twice)
            start = Cast<to: int = {onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}>(first)
            y = Range(start, last, step)
        }}"""
    )
    request = partita.Core().compile_model(model, "CPU").create_infer_request()
    for n in (4, 9, 0, 30, 3, 12, 9):
        found = request.infer([np.zeros(n, np.float32)])["y"]
        np.testing.assert_array_equal(found, np.arange(7, 2 * n, step, dtype))
        assert found.dtype == dtype


def test_range_of_fractions():
    check("Range", [np.array(v, np.float32) for v in (0.1, 2.3, 0.4)])


@pytest.mark.parametrize("attributes", [{}, {"start": 1}, {"end": -1}, {"start": -2, "end": 3}])
def test_shape(attributes):
    check("Shape", [normal(1, 2, 3, 4)], **attributes)


def test_size():
    check("Size", [normal(1, 2, 3, 4)])


@pytest.mark.parametrize("value", [None, np.array([3], np.int64), np.array([True])])
@pytest.mark.parametrize("shape", [(2, 3), (0, 2), ()])
@pytest.mark.parametrize("constants", [(), (0,)])
def test_constant_of_shape(value, shape, constants):
    extra = {} if value is None else {"value": onnx.numpy_helper.from_array(value)}
    check("ConstantOfShape", [np.array(shape, np.int64)], constants=constants, **extra)


@pytest.mark.parametrize("k", [-1, 0, 2])
@pytest.mark.parametrize("dtype", [None, onnx.TensorProto.INT64])
def test_eye_like(k, dtype):
    extra = {} if dtype is None else {"dtype": dtype}
    check("EyeLike", [normal(1, 3, 5)], k=k, **extra)


@pytest.mark.parametrize("k", [None, -2, 0, 1, 9])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_trilu(k, upper, dtype):
    inputs = [normal(1, 2, 3, 5).astype(dtype)]
    inputs += [] if k is None else [np.array(k, np.int64)]
    check("Trilu", inputs, upper=upper)


CONSTANTS = [
    ({"value_float": 2.5}, np.float32(2.5)),
    ({"value_floats": [1.0, 2.0]}, np.array([1, 2], np.float32)),
    ({"value_int": 7}, np.int64(7)),
    ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
    ({"value": np.eye(2, dtype=np.int8)}, np.eye(2, dtype=np.int8)),
]


@pytest.mark.parametrize(("attributes", "expected"), CONSTANTS)
def test_constant(attributes, expected):
    # Lowering turns Constant nodes into values; the kernel serves graphs made otherwise.
    result = Value("y")
    graph = Graph([], [result], [Node("Constant", [], [result], attributes, version=13)])
    (got,) = run_graph(graph, [])
    assert got.dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(got, expected)


def test_sparse_constant_is_refused():
    result = Value("y")
    node = Node("Constant", [], [result], {"sparse_value": None}, version=13)
    with pytest.raises(CompileError, match="a sparse constant"):
        run_graph(Graph([], [result], [node]), [])


def test_model_of_constants_only():
    assert len(model_of("Shape", [normal(1, 2)], constants=(0,)).graph.input) == 0
    (shape,) = run_ours("Shape", [normal(1, 2)], constants=(0,))
    np.testing.assert_array_equal(shape, [2])


@pytest.mark.parametrize(
    ("given", "due"),
    [
        ({"value_string": "one t\u00e9xt"}, "one t\u00e9xt"),
        ({"value_strings": ["a", "b c"]}, ["a", "b c"]),
        ({"value": onnx.numpy_helper.from_array(np.array([["", "x"]], object))}, [["", "x"]]),
    ],
)
def test_constant_texts_are_texts(given, due):
    due = np.array(due, object)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.STRING, due.shape)
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], **given),
        onnx.helper.make_node("Identity", ["c"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "texts", [], [y])
    imports = [onnx.helper.make_opsetid("", 17)]
    proto = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    (found,) = partita.Core().compile_model(proto, "CPU")({}).to_tuple()
    assert found.dtype == object
    assert found.tolist() == due.tolist()
