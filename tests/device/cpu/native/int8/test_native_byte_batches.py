"""Products of two computed matrices of bytes, by every level, and within their memory."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from partita.lowering import Builder, Operand
from partita_cpu.gemm.tile_kernels import byte_kernels
from partita_cpu.jit.isa import available
from partita_cpu.kernels.int8.batched_product import multiply_byte_batches
from partita_cpu.kernels.int8.byte_tiles import CHUNK, PLAIN, TILE, TOGETHER, Kind
from partita_cpu.kernels.int8.product import ByteOperands, Result, byte_table, row_steps
from partita_cpu.kernels.linalg.register_tiles import PANEL, QUAD

from ..networks.test_native_layout import compiled

SIZES = [(1, 1, 1, 1), (3, 5, 7, 9), (4, 15, 33, 31), (2, 33, 64, 65), (5, 1, 100, 17)]


def levels(rng, dtype, *shape):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", list(available()))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("one", ["", "x", "w"])
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("threads", "parts"), [(1, 1), (3, 2)])
def test_batches_within_their_memory(level, size, one, kind, signed, threads, parts, guarded):
    count, m, k, n = size
    rng = np.random.default_rng(k)
    lefts, rights = 1 if one == "x" else count, 1 if one == "w" else count
    w = levels(rng, np.int8 if signed else np.uint8, rights, k, n)
    steps, step = row_steps(k) if level.tiles else (1, k)
    width = steps * step if level.tiles else -(-k // QUAD) * QUAD
    x = np.zeros((lefts * m + CHUNK, width), np.uint8)
    x[: lefts * m, :k] = levels(rng, np.uint8, lefts * m, k)
    totals = x[: lefts * m].sum(1, dtype=np.int32)
    w_zero, shift = (5, 0) if signed else (150, 128)
    scale, factors = np.float32(0.5), rng.random(n).astype(np.float32) / k
    dtype = {Kind.SUMS: np.int32, Kind.FLOATS: np.float32, Kind.LEVELS: np.uint8}[kind]
    bias = rng.standard_normal(n).astype(np.float32 if kind is Kind.FLOATS else np.int32)
    y = guarded.array(np.full((count, m, n), 7, dtype))
    least = -1 if kind is Kind.FLOATS else 0  # floats have no least one
    table = [k, n, width // QUAD, 0, -shift, kind, least, 255, steps, 0, 2]
    for tid in range(threads):
        multiply_byte_batches(
            guarded.array(x).reshape(-1),
            guarded.array(totals),
            np.array([100], np.uint8),
            np.array([w_zero], w.dtype),
            guarded.array(w).reshape(-1),
            np.array([scale]),
            guarded.array(factors),
            guarded.array(bias),
            np.array([3], np.uint8),
            y.reshape(-1),
            np.full(threads * -(-n // PANEL) * width * PANEL, 99, np.int8),
            np.full(threads * n, 99, np.int32),
            np.full(threads * TOGETHER * TILE, -1, np.int32),
            byte_kernels(level, step, kind is Kind.LEVELS),
            np.array(table, np.int64),
            *(0 if one == "x" else m, 0 if one == "w" else k * n),
            *(m, k, n, width, shift, parts),
            tid,
            threads,
        )
    left = x[: lefts * m, :k].reshape(lefts, m, k).astype(np.int64) - 100
    sums = left @ (w.astype(np.int64) - w_zero)
    if kind is Kind.SUMS:
        np.testing.assert_array_equal(y, sums)
    elif kind is Kind.FLOATS:
        np.testing.assert_allclose(y, sums * (scale * factors) + bias, rtol=1e-6, atol=1e-5)
    else:
        exact = np.round((sums + bias).astype(np.float32) * (scale * factors)) + 3
        np.testing.assert_array_equal(y, np.clip(exact, 0, 255))


SHAPES = [
    ((2, 3, 9, 20), (2, 3, 20, 33)),
    ((3, 37, 6), (6, 70)),
    ((1, 1, 40, 64), (2, 2, 64, 16)),
    ((4, 5, 64), (1, 64, 130)),
    ((5, 3), (2, 3, 4)),
    ((2, 1, 4, 9), (1, 3, 9, 5)),
    ((2, 3, 4), (4,)),
    ((7,), (2, 7, 3)),
]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(
    "types", [(np.uint8, np.uint8, 77), (np.int8, np.int8, 0), (np.uint8, np.uint8, 128)]
)
def test_products_of_levels_of_any_shapes(shapes, types):
    """Sums in int32, and levels between DequantizeLinear and QuantizeLinear."""
    *types, w_zero = types
    rng = np.random.default_rng(shapes[0][-1])
    x, w = (levels(rng, kind, *shape) for kind, shape in zip(types, shapes, strict=True))
    left, right, zero = np.array(90, types[0]), np.array(w_zero, types[1]), np.array(120, np.uint8)
    scales = {"xs": np.float32(0.02), "ws": np.float32(0.011), "ys": np.float32(0.4)}
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "xz", "wz"], ["sums"]),
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"]),
        helper.make_node("MatMul", ["xf", "wf"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    constants = scales | {"xz": left, "wz": right, "yz": zero}
    info = helper.make_tensor_value_info
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in types]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", kinds[0], x.shape), info("w", kinds[1], w.shape)],
        [info("sums", TensorProto.INT32, None), info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    request = compiled(model).create_infer_request()
    found = request.infer({"x": x, "w": w}).to_tuple()
    sums = (x.astype(np.int64) - int(left)) @ (w.astype(np.int64) - int(right))
    np.testing.assert_array_equal(found[0], sums)
    factor = scales["xs"] * scales["ws"] / scales["ys"]
    exact = np.round(sums.astype(np.float32) * factor) + int(zero)
    np.testing.assert_array_equal(found[1], np.clip(exact, 0, 255))
    steps = [step.how for step in request.explain_execution().steps]
    assert "dequantize" not in steps


@pytest.mark.parametrize("zeros", [None, np.zeros(1), np.zeros(6), np.full(1, 3), np.full(6, 3)])
def test_where_sums_may_end_in_registers(zeros):
    """Not if columns have zero points of their own."""

    def operand(array):
        return Operand(array.shape, array.dtype, const=array)

    w = operand(np.ones((4, 6), np.int8))
    w_zero = None if zeros is None else operand(zeros.astype(np.int8))
    operands = ByteOperands(operand(np.ones((2, 4), np.uint8)), w, None, w_zero)
    one, rows = operand(np.ones(1, np.float32)), operand(np.ones(6, np.float32))
    result = Result(Kind.LEVELS, np.dtype(np.uint8), one, rows, rows, one)
    table, may = byte_table(Builder(None, None, None), operands, result, (4, 6, 4, 1))
    assert table[PLAIN] == (zeros is None or not zeros.any())
    assert may == (zeros is None or not zeros.any() or zeros.size == 1)
