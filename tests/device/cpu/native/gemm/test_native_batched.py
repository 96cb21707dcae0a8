"""Products of two computed matrices, on memory that ends where the tensors end."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_levels import float_levels
from judge import onnxruntime_results

from partita_cpu.gemm.arithmetic import Arithmetic, tile_columns, tile_rows
from partita_cpu.gemm.batched import multiply_batches
from partita_cpu.gemm.tile_kernels import tile_kernels
from partita_cpu.jit.isa import isa
from partita_cpu.llvm.levels import EVERY

from ..networks.test_native_layout import Net, check, compiled
from ..networks.test_native_passes import steps_of

LEVELS = float_levels()[1:]
SIZES = [(1, 1, 1, 1), (3, 5, 7, 9), (4, 15, 33, 31), (2, 29, 64, 65), (5, 1, 100, 17)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("one", ["", "x", "w"])
@pytest.mark.parametrize("threads", [1, 2])
def test_batches(level, size, one, threads, guarded):
    count, m, k, n = size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1 if one == "x" else count, m, k)).astype(np.float32)
    w = rng.standard_normal((1 if one == "w" else count, k, n)).astype(np.float32)
    columns = tile_columns(level)
    room = -(-n // columns) * columns * k * 4 + 4096 + 256 + 128
    scratch = np.full(threads * room, 255, np.uint8)
    y = guarded.array(np.full((count, m, n), 7, np.float32))
    left, right = guarded.array(x), guarded.array(w)
    for tid in range(threads):
        multiply_batches(
            left.reshape(-1),
            right.reshape(-1),
            y.reshape(-1),
            scratch,
            np.zeros(1, np.int64),
            tile_kernels(level, Arithmetic.F32),
            m * k if one != "x" else 0,
            k * n if one != "w" else 0,
            m,
            k,
            n,
            tile_rows(level, Arithmetic.F32),
            columns,
            room,
            tid,
            threads,
        )
    wanted = x.astype(np.float64) @ w
    assert np.abs(y - wanted).max() <= 2e-6 * (np.abs(x) @ np.abs(w)).max()


def test_attention_uses_blas_only_where_kernels_are_portable():
    net = Net(3, 4, 20, 16)
    turned = net.add("Transpose", "x", perm=[0, 1, 3, 2])
    scores = net.add("Softmax", net.add("MatMul", "x", turned), axis=-1)
    model = net.model(net.add("MatMul", scores, "x"))
    x = net.rng.standard_normal(net.shape).astype(np.float32)
    wanted = onnxruntime_results(model, {"x": x}, optimized=True)[0]
    request = compiled(model, PERF_COUNT=True).create_infer_request()
    np.testing.assert_allclose(request.infer({"x": x})[0], wanted, rtol=1e-5, atol=1e-6)
    kinds = {info.exec_type for info in request.get_profiling_info()}
    assert ("blas" in kinds) != isa().native


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("equation", ["bhwc,hkc->bhwk", "bhwc,wkc->bhwk", "bhwc,bkwc->bhwk"])
def test_einsum_is_computed_in_batches_whichever_way_round_its_inputs_are(equation, level):
    """BLAS computed them on one thread: the relative positions of SAM."""
    net = Net(2, 7, 9, 20)
    shape = {"h": (7, 11, 20), "w": (9, 11, 20), "b": (2, 11, 9, 20)}[equation[5]]
    y = net.add("Einsum", "x", net.const(*shape), equation=equation)
    check(net, y, tolerance=1e-5)
    expected = "multiply_batches" if EVERY[level].native else "matmul_into"
    assert expected in steps_of(net, y)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize(("trans_x", "trans_w"), [(0, 1), (1, 0), (1, 1)])
def test_products_of_turned_matrices(trans_x, trans_w, level):
    net = Net(3, *((20, 9) if trans_x else (9, 20)))
    other = net.add("Relu", net.add("Reshape", "x", net.const(values=np.array([3, -1, 20]))))
    right = net.add("Transpose", other, perm=[0, 2, 1]) if not trans_w else other
    attrs = {"transA": trans_x, "transB": trans_w, "domain": "com.microsoft"}
    y = net.add("FusedMatMul", "x", right, **attrs)
    check(net, y, tolerance=1e-5)
    expected = "multiply_batches" if EVERY[level].native else "matmul_into"
    assert expected in steps_of(net, y)
