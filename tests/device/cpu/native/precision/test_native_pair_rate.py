"""Which of float32 and bfloat16 is multiplied faster, and what a slow bfloat16 comes to."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from cpu_levels import float_levels
from onnx import TensorProto, helper, numpy_helper

import partita
from partita_cpu import pair_rate
from partita_cpu.gemm import precision_policy
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.isa import VARIABLE
from partita_cpu.llvm.levels import AMX, AVX512, AVX512_BF16, NEON_BF16
from partita_cpu.llvm.module import RATES
from partita_cpu.llvm.multiply_loops import FLOATS, PAIRS, SUMS
from partita_cpu.pair_rate import multiplies_pairs
from partita_cpu.passes.precision.rounded_matrices import MANY_ROWS

BY_VECTORS = [level for level in float_levels() if level.dots_bfloat16 and not level.tiles]
BF16 = {"INFERENCE_PRECISION_HINT": "bf16", "PERF_COUNT": True}
DEPTH, COLUMNS = 1100, 1200


@pytest.mark.parametrize("level", BY_VECTORS)
@pytest.mark.parametrize(("name", "products"), [(FLOATS, 1), (PAIRS, 2)])
def test_loops_add_what_the_rate_counts(level, name, products):
    address = llvm_kernel.addresses(level, RATES)[name]
    loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)
    sums = np.zeros((SUMS, level.lanes), np.float32)
    # Each float is a pair of the same number in bfloat16, and nearly that number by itself.
    number = np.array([1.5, 1.5], np.float32).view(np.uint32) >> 16
    sums.view(np.uint32)[0] = number[0] << 16 | number[1]
    first = sums[0, 0].astype(np.float64)
    loop(sums.ctypes.data, 7)
    added = 7 * products * (first if products == 1 else 1.5) ** 2
    np.testing.assert_allclose(sums[0], first + added, rtol=1e-6)
    np.testing.assert_allclose(sums[1:], added, rtol=1e-6)


@pytest.mark.parametrize("level", BY_VECTORS)
def test_interruptions_do_not_count(level, monkeypatch):
    spoiled = [0, 3, 4, 9]
    times = [[5000, 10_000][call % 2] + 10**6 * (call in spoiled) for call in range(64)]
    times[11] -= 10  # the least counts
    ends = itertools.accumulate(time for taken in times for time in (1, taken))
    monkeypatch.setattr(pair_rate.time, "perf_counter_ns", lambda: next(ends))
    assert pair_rate.measured_rate(level) == pytest.approx(2 * 5000 / 9990)


@pytest.mark.parametrize("level", BY_VECTORS)
def test_it_is_measured_once(level, monkeypatch, tmp_path):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    measured = []
    monkeypatch.setattr(pair_rate, "measured_rate", lambda of: measured.append(of) or 0.5)
    for _ in range(3):
        pair_rate.pair_rate.cache_clear()  # as in another process
        assert pair_rate.pair_rate(level) == 0.5
    pair_rate.pair_rate.cache_clear()
    assert measured == [level]


@pytest.mark.parametrize(("rate", "pays"), [(0.5, False), (1.0, False), (2.0, True)])
def test_levels_with_vectors_of_pairs_go_by_their_rate(rate, pays, monkeypatch):
    monkeypatch.setattr(pair_rate, "pair_rate", lambda level: rate)
    assert multiplies_pairs(AVX512_BF16) is pays
    assert multiplies_pairs(AMX)
    assert multiplies_pairs(NEON_BF16)
    assert not multiplies_pairs(AVX512)


@pytest.fixture(params=[level.name for level in BY_VECTORS])
def slow(request, monkeypatch):
    """A processor that multiplies bfloat16 at half the rate of float32."""
    monkeypatch.setenv(VARIABLE, request.param)
    monkeypatch.setenv("PARTITA_CPU_CACHES", "32K/8M")
    monkeypatch.setattr(precision_policy, "multiplies_pairs", lambda level: False)
    monkeypatch.setattr(precision_policy, "pair_rate", lambda level: 0.5)


def described(nodes, weights, inputs, output="y"):
    told = [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    made = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "graph", told, made, held)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def run(model, config, **inputs):
    """Compiled model, its result, that of onnxruntime, and in what steps were computed."""
    compiled = partita.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    (got,) = request.infer(inputs).to_tuple()
    (due,) = onnxruntime.InferenceSession(model).run(None, inputs)
    kinds = {info.exec_type for info in request.get_profiling_info() if info.exec_type}
    off = np.abs(np.asarray(got, np.float64) - due).max() / np.abs(due).max()
    return compiled, off, kinds


@pytest.mark.usefixtures("slow")
def test_images_are_float32():
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((48, 40, 1, 1)).astype(np.float32)}
    model = described([helper.make_node("Conv", ["x", "w"], ["y"])], weights, {"x": (1, 40, 9, 8)})
    compiled, off, kinds = run(model, BF16, x=rng.standard_normal((1, 40, 9, 8)).astype("f4"))
    assert off < 2e-6
    assert not any("bf16" in kind for kind in kinds)
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == "f32"
    note = compiled.get_property("INFERENCE_PRECISION_NOTE")
    assert "bf16 multiplies in float32 here" in note
    assert "0.50" in note
    assert "Matrices" not in note
    assert note in compiled.explain().notes


def product(kind, rng):
    """A product of a large matrix, and what else there is."""
    w = rng.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    bias = rng.standard_normal(COLUMNS).astype(np.float32)
    add, relu = (
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    )
    turned = np.ascontiguousarray(w.T)
    return {
        "MatMul": ([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}),
        "fused": (
            [helper.make_node("MatMul", ["x", "w"], ["a"]), add, relu],
            {"w": w, "b": bias},
        ),
        "Gemm": (
            [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=0.5)],
            {"w": turned, "b": bias},
        ),
        "Transpose": (
            [
                helper.make_node("Transpose", ["w"], ["v"], perm=[1, 0]),
                helper.make_node("MatMul", ["x", "v"], ["y"]),
            ],
            {"w": turned},
        ),
        "read twice": (
            [
                helper.make_node("MatMul", ["x", "w"], ["a"]),
                helper.make_node("ReduceMax", ["w"], ["c"], keepdims=0),
                helper.make_node("Add", ["a", "c"], ["y"]),
            ],
            {"w": w},
        ),
    }[kind]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("kind", ["MatMul", "fused", "Gemm", "Transpose", "read twice"])
def test_large_matrices_of_few_rows_are_rounded(kind):
    rng = np.random.default_rng(1)
    nodes, weights = product(kind, rng)
    model = described(nodes, weights, {"x": ("rows", DEPTH)})
    x = rng.standard_normal((3, DEPTH)).astype(np.float32)
    compiled, off, kinds = run(model, BF16, x=x)
    assert 1e-5 < off < 5e-3
    assert "avx512_f32_by_bf16" in kinds
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == "bf16"
    assert "Matrices rounded to bfloat16" in compiled.get_property("INFERENCE_PRECISION_NOTE")
    # Nothing but the matrix is rounded.
    loaded = onnx.load_from_string(model)
    (at,) = [n for n, one in enumerate(loaded.graph.initializer) if one.name == "w"]
    matrix = numpy_helper.to_array(loaded.graph.initializer[at])
    bits = matrix.view(np.uint32).astype(np.uint64)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16).astype(np.uint32).view(np.float32)
    if kind not in ("Gemm", "read twice"):  # which scale it first, or read what is not rounded
        rounded = described(nodes, {**weights, "w": nearest}, {"x": ("rows", DEPTH)})
        assert run(rounded, {"PERF_COUNT": True}, x=x)[1] < 2e-6
        request = compiled.create_infer_request()
        (due,) = onnxruntime.InferenceSession(rounded).run(None, {"x": x})
        np.testing.assert_allclose(
            request.infer({"x": x}).to_tuple()[0], due, atol=2e-6 * np.abs(due).max()
        )


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("rows", "columns", "largest"), [(MANY_ROWS, COLUMNS, 4), (2, 900, 4), (2, COLUMNS, 3.4e38)]
)
def test_other_matrices_are_not(rows, columns, largest):
    rng = np.random.default_rng(2)
    w = rng.standard_normal((DEPTH, columns)).astype(np.float32)
    w[5, 7] = largest
    model = described(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": w}, {"x": (rows, DEPTH)}
    )
    x = rng.standard_normal((rows, DEPTH)).astype(np.float32)
    compiled, off, _ = run(model, BF16, x=x)
    assert off < 2e-6
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == "f32"


@pytest.mark.usefixtures("slow")
def test_an_exported_model_computes_the_same(tmp_path):
    rng = np.random.default_rng(3)
    model = described(*product("MatMul", rng), {"x": ("rows", DEPTH)})
    core = partita.Core()
    compiled = core.compile_model(model, "CPU", BF16)
    again = core.import_model(compiled.export_model(), "CPU")
    x = rng.standard_normal((2, DEPTH)).astype(np.float32)
    first, second = (one({"x": x}).to_tuple()[0] for one in (compiled, again))
    np.testing.assert_array_equal(first, second)
    assert again.get_property("INFERENCE_PRECISION_HINT") == "bf16"
