"""MatMul, Gemm, their fused forms and Einsum."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper
from single_op import assert_same, check, model_of, normal, run_fused, run_ours

import partita
from partita.errors import CompileError
from partita.lowering import Activation, ActivationCode
from partita_cpu.jit.isa import isa

SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 2)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((2, 1, 3, 4), (5, 4, 6)),
    ((1, 4, 3), (1, 3, 2)),
    ((0, 3), (3, 4)),
    ((5, 1, 3), (5, 3, 7)),
    ((2, 3, 4, 5), (2, 3, 5, 6)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint64])
def test_matmul(left, right, dtype):
    check("MatMul", [normal(1, *left, dtype=dtype), normal(2, *right, dtype=dtype)])


def doubles(op_type, inputs, threads, **attributes):
    """What device CPU makes of float64 rows and constants, and what kernels computed it."""
    constants = range(1, len(inputs))
    model = model_of(op_type, inputs, constants=constants, **attributes)
    model.graph.input[0].CopyFrom(
        helper.make_tensor_value_info("x0", helper.TensorProto.DOUBLE, inputs[0].shape)
    )
    config = {"INFERENCE_NUM_THREADS": threads, "PERF_COUNT": True}
    request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    (y,) = request.infer([inputs[0]]).values()
    return np.asarray(y), {step.exec_type for step in request.get_profiling_info()}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [48, 100, 130])
@pytest.mark.parametrize("terms", [5, 300])
def test_doubles_by_constants(threads, columns, terms):
    """Whole panels of columns and parts of one, some terms and several chunks of them."""
    w, c = normal(2, terms, columns, dtype=np.float64), normal(3, columns, dtype=np.float64)
    for rows in (1, 5, 6):
        x = normal(1, rows, terms, dtype=np.float64)
        bound = 1e-15 * (terms + 4) * (np.abs(x) @ np.abs(w) + np.abs(c))
        exact = np.asarray(x.astype(np.longdouble) @ w.astype(np.longdouble), np.float64)
        y, found = doubles("MatMul", [x, w], threads)
        assert (np.abs(y - exact) <= bound).all()
        y, also = doubles("Gemm", [x, w.T, c], threads, transB=1, alpha=0.5, beta=2.0)
        assert (np.abs(y - (exact / 2 + 2 * c)) <= 2 * bound).all()
        if isa().lanes == 16:
            assert found == ({"blas"} if columns == 130 else {"avx512_f64"})
            assert ("avx512_f64" in also) is (columns != 130)


def test_doubles_that_are_not_finite():
    """What fills up the last panel meets them, and stays where it is."""
    x, w = normal(1, 5, 70, dtype=np.float64), normal(2, 70, 100, dtype=np.float64)
    x[1, 3], x[2, 4], w[7, 8] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = x @ w
    y, _ = doubles("MatMul", [x, w], 1)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_matmul_of_nothing():
    (y,) = run_ours("MatMul", [normal(1, 2, 0), normal(2, 0, 4)])
    np.testing.assert_array_equal(y, np.zeros((2, 4), np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_matmul_of_halves(dtype):
    a, b = normal(1, 4, 5).astype(dtype), normal(2, 5, 6).astype(dtype)
    (y,) = run_ours("MatMul", [a, b])
    assert_same(y, (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype), 1e-2, 1e-2)


@pytest.mark.parametrize("bias", [None, (6,)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_fused_matmul(bias, with_residual):
    a, b = normal(1, 2, 4, 5), normal(2, 5, 6)
    row = None if bias is None else normal(3, *bias)
    residual = normal(4, 2, 4, 6) if with_residual else None
    expected = np.matmul(a, b)
    for term in (row, residual):
        expected = expected if term is None else expected + term
    relu = Activation(ActivationCode.RELU)
    got = run_fused("MatMul", [a, b, row, residual], activation=relu)
    assert_same(got, np.maximum(expected, 0), 1e-5, 1e-5)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (4,), (1, 4), (5, 1), (5, 4)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0)])
def test_gemm(trans_a, trans_b, bias, alpha, beta):
    a = normal(1, 3, 5) if trans_a else normal(1, 5, 3)
    b = normal(2, 4, 3) if trans_b else normal(2, 3, 4)
    inputs = [a, b, None if bias is None else normal(3, *bias)]
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": alpha, "beta": beta}
    check("Gemm", inputs, **attributes)
    check("Gemm", inputs, constants=(1, 2), **attributes)


@pytest.mark.parametrize(
    ("activation", "attributes"),
    [("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Tanh", {})],
)
def test_fused_gemm(activation, attributes):
    inputs = [normal(1, 5, 3), normal(2, 3, 4), normal(3, 4)]
    check("FusedGemm", inputs, domain="com.microsoft", activation=activation, **attributes)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("batch_a", [0, 1])
@pytest.mark.parametrize("batch_b", [0, 1])
def test_fused_matmul_of_onnxruntime(trans_a, trans_b, batch_a, batch_b):
    a = normal(1, 2, 3, 4, 5) if trans_a else normal(1, 2, 3, 5, 4)
    b = normal(2, 2, 3, 6, 4) if trans_b else normal(2, 2, 3, 4, 6)
    a = np.ascontiguousarray(np.moveaxis(a, -2, 0)) if batch_a else a
    b = np.ascontiguousarray(np.moveaxis(b, -2, 0)) if batch_b else b
    attributes = {
        "transA": trans_a,
        "transB": trans_b,
        "transBatchA": batch_a,
        "transBatchB": batch_b,
        "alpha": 1.5,
    }
    if not trans_a or not batch_a:
        check("FusedMatMul", [a, b], domain="com.microsoft", **attributes)


EQUATIONS = [
    ("ij,jk->ik", [(2, 3), (3, 4)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("ij->ji", [(2, 3)]),
    ("ij->", [(2, 3)]),
    ("i,i->", [(5,), (5,)]),
    ("i,i->i", [(5,), (5,)]),
    ("i,j->ij", [(5,), (3,)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
    ("b...,b...->b...", [(2, 3, 4), (2, 3, 4)]),
    ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("iij,jk->ik", [(3, 3, 4), (4, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("bhqk,bkhd->bqhd", [(2, 4, 3, 6), (2, 6, 4, 5)]),
    ("abc,cd,def->abf", [(2, 3, 4), (4, 5), (5, 6, 7)]),
    ("ij,kl->", [(2, 3), (3, 4)]),
    ("abcd->dcba", [(2, 3, 4, 5)]),
    ("i...->...", [(2, 3, 4)]),
    ("bij,bij->bi", [(2, 3, 4), (2, 3, 4)]),
    ("Ab,bA->A", [(2, 3), (3, 2)]),
    ("ik,jk->ij", [(3, 4), (5, 4)]),
    ("ki,kj->ij", [(3, 4), (3, 5)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation, shapes):
    check("Einsum", [normal(k, *shape) for k, shape in enumerate(shapes)], equation=equation)


LAYERS = [
    ("ibh,hnd->ibnd", [(3, 2, 70), (70, 2, 33)]),
    ("ibnd,hnd->ibh", [(3, 2, 4, 30), (65, 4, 30)]),
    ("hnd,...h->...nd", [(70, 2, 33), (2, 1, 3, 70)]),
    ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 6, 5)]),
    ("abc,bcd->ad", [(3, 2, 0), (2, 0, 5)]),
    ("ab,bcd->acd", [(3, 4), (4, 2, 0)]),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("equation", "shapes"), LAYERS)
def test_einsum_by_weights(equation, shapes, dtype):
    inputs = [normal(k, *shape, dtype=dtype) for k, shape in enumerate(shapes)]
    weights = int(equation != LAYERS[2][0])
    (y,) = run_ours("Einsum", inputs, equation=equation, constants=[weights])
    due = np.einsum(equation, *(array.astype(np.float64) for array in inputs))
    tolerance = 1e-2 if dtype == np.float16 else 1e-5
    assert_same(y, due.astype(dtype), tolerance, 10 * tolerance)


def test_einsum_of_integers():
    inputs = [normal(k, *shape, dtype=np.int64) for k, shape in enumerate([(2, 3), (3, 4)])]
    check("Einsum", inputs, equation="ij,jk->ik")


def test_einsum_broadcasts_ellipses():
    a, b = normal(1, 2, 1, 3, 4), normal(2, 3, 4, 5)
    (y,) = run_ours("Einsum", [a, b], equation="...ij,...jk->...ik")
    assert_same(y, np.einsum("...ij,...jk->...ik", a, b), 1e-5, 1e-5)


def test_shapes_that_do_not_fit():
    with pytest.raises(CompileError, match="cannot multiply tensors of shapes"):
        run_ours("MatMul", [normal(1, 2, 3), normal(2, 4, 5)])
    with pytest.raises(CompileError, match="a label has sizes 3 and 4"):
        run_ours("Einsum", [normal(1, 2, 3), normal(2, 4, 5)], equation="ij,jk->ik")
    with pytest.raises(CompileError, match="does not fit an input of shape"):
        run_ours("Einsum", [normal(1, 2, 3)], equation="ijk->i")
    with pytest.raises(CompileError, match="has 1 inputs"):
        run_ours("Einsum", [normal(1, 2, 3)], equation="ij,jk->ik")


def test_bias_that_does_not_fit():
    with pytest.raises(CompileError, match="does not broadcast to"):
        run_ours("Gemm", [normal(1, 2, 3), normal(2, 3, 6), normal(3, 7)])
    inputs = [normal(1, 2, 3, 6), normal(2, 5)]
    with pytest.raises(CompileError, match="bias of shape \\[5\\] for 6 columns"):
        run_ours("BiasGelu", inputs, domain="com.microsoft")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [40, 130])
def test_one_matrix_transposed_and_as_it_is(dtype, size):
    """Both lie at one address, with one shape; what is packed of them is not the same."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    w, x = normal(1, size, size, dtype=dtype), normal(2, 3, size, dtype=dtype)
    ports = [helper.make_tensor_value_info(name, kind, [3, size]) for name in "xyz"]
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
        helper.make_node("MatMul", ["x", "w"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes, "both", ports[:1], ports[1:], [numpy_helper.from_array(w, "w")]
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    config = {"EXECUTION_MODE_HINT": "ACCURACY"}
    y, z = partita.Core().compile_model(model, "CPU", config)({"x": x}).values()
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(z, x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)
