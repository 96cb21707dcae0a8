"""Large weights of 16 bits: read as they are by products in float32, without a copy or rounding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from sampling import examples

import partita
from partita.system.cache_sizes import CacheSizes
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images, Storage
from partita_cpu.gemm.packing.weights import pack
from partita_cpu.llvm.levels import EVERY
from partita_cpu.machine_model import MachineModel
from partita_cpu.runtime import device_model

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ONNX = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch):
    monkeypatch.setattr(device_model, "stored_elements", lambda *_: 1)


def weights(kind, shape, seed):
    """Numbers of many sizes, subnormal ones among them."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-20, 4, shape)).astype(np.float32)
    return (rng.standard_normal(shape).astype(np.float32) * scale).astype(TYPES[kind])


def model_of(nodes, inputs, outputs, constants):
    graph = helper.make_graph(
        nodes,
        "stored",
        [helper.make_tensor_value_info(name, *told) for name, told in inputs.items()],
        [helper.make_tensor_value_info(name, *told) for name, told in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21)]
    return partita.Core().read_model(
        helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    )


def cast(name):
    return helper.make_node("Cast", [name], [f"{name}.wide"], name=f"cast {name}", to=1)


def computed(model, feeds, **config):
    compiled = partita.Core().compile_model(model, "CPU", {"PERF_COUNT": True, **config})
    request = compiled.create_infer_request()
    found = [np.array(x) for x in request.infer(feeds).values()]
    return found, {x.node_name: x.exec_type for x in request.get_profiling_info()}, compiled


def check(found, x, w):
    exact = x.astype(np.float64) @ w.astype(np.float64)
    bound = np.abs(x).astype(np.float64) @ np.abs(w.astype(np.float64))
    assert np.abs(found - exact).max() <= 4e-7 * max(1.0, np.sqrt(x.shape[-1])) * bound.max()


@examples(40)
@given(
    kind=st.sampled_from(sorted(TYPES)),
    rows=st.integers(1, 70),
    depth=st.integers(1, 700),
    columns=st.integers(1, 150),
    turned=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_products_are_those_of_float32(kind, rows, depth, columns, turned, threads, seed):
    x = np.random.default_rng(seed).standard_normal((rows, depth)).astype(np.float32)
    stored = weights(kind, (columns, depth) if turned else (depth, columns), seed)
    nodes = [cast("w"), helper.make_node("MatMul", ["x", "w.wide"], ["y"], name="product")]
    if turned:
        nodes = [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            *(cast("t"), helper.make_node("MatMul", ["x", "t.wide"], ["y"], name="product")),
        ]
    model = model_of(nodes, {"x": (1, x.shape)}, {"y": (1, (rows, columns))}, {"w": stored})
    (found,), _, _ = computed(model, {"x": x}, INFERENCE_NUM_THREADS=threads)
    check(found, x, stored.T if turned else stored)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_terms_are_added_up_by_parts(level, kind, threads, monkeypatch):
    """Of 1,024 terms 28 rows fit half of a cache of 256 KiB, of 256 all 120: nine tiles."""
    monkeypatch.setenv("PARTITA_CPU_CACHES", "32K/256K")
    x = np.random.default_rng(1).standard_normal((120, 1024)).astype(np.float32)
    r = np.random.default_rng(2).standard_normal((120, 400)).astype(np.float32)
    stored = weights(kind, (1024, 400), 3)
    nodes = [
        cast("w"),
        helper.make_node("MatMul", ["x", "w.wide"], ["p"], name="product"),
        helper.make_node("Add", ["p", "r"], ["y"]),
    ]
    given = {"x": (1, x.shape), "r": (1, r.shape)}
    model = model_of(nodes, given, {"y": (1, r.shape)}, {"w": stored})
    config = {"INFERENCE_NUM_THREADS": threads, "EXECUTION_MODE_HINT": "ACCURACY"}
    request = partita.Core().compile_model(model, "CPU", config).create_infer_request()
    (found,) = (np.array(y) for y in request.infer({"x": x, "r": r}).values())
    check(found - r, x, stored)
    steps = [step.how for step in request.explain_execution().steps]
    if EVERY[level].lanes == 16 and not EVERY[level].tiles:
        assert steps.count("multiply_tiles") == 4


def test_parts_of_the_terms_have_one_packing():
    """Programs of few rows read all terms at once: weights are in memory once for both."""
    machine = MachineModel(EVERY["avx512"], 1, CacheSizes(48 << 10, 1 << 20, 16 << 20))
    cut = (machine, Arithmetic.F32_BY_F16, 1)
    whole = plan(Images.matrix(1, 3072, 768), *cut)
    stored = weights("float16", (3072, 768), 0)
    for part in range(4):
        some = Storage(x_pitch=3072, x_first=part * 768, w_part=part, w_parts=4)
        one = plan(Images.matrix(128, 768, 768), *cut, some)
        assert one.packing == whole.packing
        np.testing.assert_array_equal(pack(one, stored), pack(whole, stored))


@pytest.mark.parametrize("kind", TYPES)
def test_profiles_tell_of_it(level, kind):
    x, stored = np.ones((2, 64), np.float32), weights(kind, (64, 48), 0)
    nodes = [cast("w"), helper.make_node("MatMul", ["x", "w.wide"], ["y"], name="product")]
    model = model_of(nodes, {"x": (1, x.shape)}, {"y": (1, (2, 48))}, {"w": stored})
    (found,), kinds, compiled = computed(model, {"x": x})
    check(found, x, stored)
    short = {"float16": "f16", "bfloat16": "bf16"}[kind]
    assert kinds["product"] == f"{EVERY[level].vectors}_f32_by_{short}"
    kept = compiled.device_model.export_state().values()
    assert not any(array.dtype == np.float32 and array.size >= stored.size for array in kept)


@pytest.mark.parametrize("kind", TYPES)
def test_bias_activation_and_residual_are_fused(level, kind):
    rng = np.random.default_rng(1)
    x, r = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 100), (5, 70)))
    bias, stored = rng.standard_normal(70).astype(np.float32), weights(kind, (100, 70), 2)
    nodes = [
        cast("w"),
        helper.make_node("MatMul", ["x", "w.wide"], ["p"], name="product"),
        helper.make_node("Add", ["p", "b"], ["q"]),
        helper.make_node("Add", ["q", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    told = {"x": (1, x.shape), "r": (1, r.shape)}
    model = model_of(nodes, told, {"y": (1, (5, 70))}, {"w": stored, "b": bias})
    (found,), _, _ = computed(model, {"x": x, "r": r})
    exact = x.astype(np.float64) @ stored.astype(np.float64) + bias + r
    np.testing.assert_allclose(found, np.maximum(exact, 0), atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("kind", TYPES)
def test_models_of_16_bits_from_end_to_end(level, kind):
    x, stored = weights(kind, (3, 80), 3), weights(kind, (80, 90), 4)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    told = ONNX[kind]
    model = model_of(nodes, {"x": (told, x.shape)}, {"y": (told, (3, 90))}, {"w": stored})
    (found,), _, _ = computed(model, {"x": x})
    exact = x.astype(np.float64) @ stored.astype(np.float64)
    rounding = {"float16": 2**-11, "bfloat16": 2**-8}[kind]
    assert found.dtype == TYPES[kind]
    off = np.abs(found.astype(np.float64) - exact)
    assert (off <= rounding * np.abs(exact) + 1e-5 * np.abs(exact).max()).all()


def test_a_cast_that_others_read_stays():
    rng = np.random.default_rng(5)
    x, stored = rng.standard_normal((4, 30)).astype(np.float32), weights("float16", (30, 20), 6)
    nodes = [
        cast("w"),
        helper.make_node("MatMul", ["x", "w.wide"], ["y"]),
        helper.make_node("MatMul", ["x", "w.wide"], ["z"]),
        helper.make_node("Identity", ["w.wide"], ["u"]),
    ]
    outputs = {"y": (1, (4, 20)), "z": (1, (4, 20)), "u": (1, (30, 20))}
    model = model_of(nodes, {"x": (1, x.shape)}, outputs, {"w": stored})
    (y, z, u), _, _ = computed(model, {"x": x})
    check(y, x, stored)
    np.testing.assert_array_equal(y, z)
    np.testing.assert_array_equal(u, stored.astype(np.float32))


def test_bodies_read_weights_from_outside():
    rng = np.random.default_rng(7)
    x, stored = rng.standard_normal((4, 30)).astype(np.float32), weights("float16", (30, 30), 8)
    flag = np.array(True)
    bodies = {
        f"{name}_branch": helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "w.wide"], ["p"]),
                helper.make_node(op, ["p"], [out]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(out, 1, (4, 30))],
        )
        for name, op, out in (("then", "Neg", "a"), ("else", "Abs", "b"))
    }
    nodes = [cast("w"), helper.make_node("If", ["flag"], ["y"], **bodies)]
    told = {"x": (1, x.shape), "flag": (TensorProto.BOOL, ())}
    model = model_of(nodes, told, {"y": (1, (4, 30))}, {"w": stored})
    for value, sign in ((True, -1), (False, 1)):
        (found,), _, _ = computed(model, {"x": x, "flag": flag & value})
        exact = x.astype(np.float64) @ stored.astype(np.float64)
        expected = -exact if sign < 0 else np.abs(exact)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(exact).max())


def test_infinite_and_undefined_weights_stay_so():
    stored = np.ones((40, 40), np.float16)
    stored[3, 5], stored[7, 11] = np.inf, np.nan
    x = np.ones((1, 40), np.float32)
    nodes = [cast("w"), helper.make_node("MatMul", ["x", "w.wide"], ["y"])]
    model = model_of(nodes, {"x": (1, x.shape)}, {"y": (1, (1, 40))}, {"w": stored})
    (found,), _, _ = computed(model, {"x": x})
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, x @ stored.astype(np.float32))


def test_a_product_of_constants_is_float32():
    x, stored = np.ones((3, 40), np.float32) / 3, weights("bfloat16", (40, 40), 9)
    nodes = [
        cast("w"),
        helper.make_node("MatMul", ["c", "w.wide"], ["p"]),
        helper.make_node("Add", ["p", "x"], ["y"]),
    ]
    constants = {"w": stored, "c": x}
    model = model_of(nodes, {"x": (1, (3, 40))}, {"y": (1, (3, 40))}, constants)
    (found,), _, _ = computed(model, {"x": np.zeros((3, 40), np.float32)})
    check(found, x, stored)
