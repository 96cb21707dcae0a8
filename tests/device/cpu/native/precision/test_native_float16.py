"""INFERENCE_PRECISION_HINT=f16: what is rounded, what is not, and what becomes infinite."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_levels import float_levels
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from sampling import examples

import partita
from partita_cpu.gemm.arithmetic import Arithmetic
from partita_cpu.gemm.blocking.left_matrix import Source
from partita_cpu.gemm.blocking.plan import plan
from partita_cpu.gemm.blocking.problem import Images
from partita_cpu.jit import llvm_kernel
from partita_cpu.jit.deferred_numba import compiler
from partita_cpu.jit.intrinsics.address_call import call_convert, call_narrow, call_round
from partita_cpu.llvm import module
from partita_cpu.llvm.levels import EVERY
from partita_cpu.machine_model import MachineModel

from ..networks.test_native_layout import Net, check, compiled

pytestmark = pytest.mark.usefixtures("level")
"""Every level in turn."""

F16 = {"INFERENCE_PRECISION_HINT": "f16"}
LEVELS = float_levels()[1:]
numba = compiler()  # which knows what the imports above have registered


@numba.njit
def round_all(kernel, x, count):
    call_round(kernel, (x, count))


@numba.njit
def widen_all(kernel, x, count, y, padded):
    return call_narrow(kernel, (x, count, y, 0, padded))


@numba.njit
def convert_all(kernel, x, count, y):
    call_convert(kernel, (x, count, y))


def halves(array):
    return array.astype(np.float16).astype(np.float64)


def product(x, w, **config):
    net = Net(*x.shape)
    y = net.add("MatMul", "x", net.const(values=w))
    device = compiled(net.model(y), PERF_COUNT=True, **config)
    request = device.create_infer_request()
    found = np.array(request.infer({"x": x})[0])
    return found, {info.exec_type for info in request.get_profiling_info()}


@examples(15)
@given(
    rows=st.integers(1, 40),
    depth=st.integers(1, 700),
    columns=st.integers(1, 90),
    seed=st.integers(0, 99),
)
def test_factors_are_rounded_and_sums_are_not(rows, depth, columns, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    found, kinds = product(x, w, **F16)
    tolerance = (2e-5 if "amx_f16" in kinds else 2e-6) * max(depth**0.5, np.abs(found).max())
    assert np.abs(found - halves(x) @ halves(w)).max() <= tolerance


def test_profiles_name_the_kernels(level):
    x, w = np.ones((4, 32), np.float32), np.ones((32, 16), np.float32)
    _, kinds = product(x, w, **F16)
    assert kinds == {f"{EVERY[level].vectors}_f16"}


def test_large_matrices_are_sums_of_two_bfloat16_on_amx(level):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((70, 800)).astype(np.float32)
    w = rng.standard_normal((800, 130)).astype(np.float32)
    found, kinds = product(x, w, **F16)
    assert (kinds == {"amx_f16"}) == (level == "amx")
    wanted = halves(x) @ halves(w)
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()
    x[3, 5], x[4, 5], w[5, 7] = 7e4, -np.inf, 0
    found, _ = product(x, w, **F16)
    np.testing.assert_array_equal(found[3:5, 6], np.array([1, -1]) * np.sign(w[5, 6]) * np.inf)
    assert np.isnan(found[3:5, 7]).all()
    assert np.abs(found[5:] - (halves(x[5:]) @ halves(w))).max() <= 2e-5 * np.abs(wanted).max()
    w[0, 0] = 65520
    found, kinds = product(x, w, **F16)
    assert kinds != {"amx_f16"}
    assert np.isinf(found[10, 0])


def test_portable_kernels_compute_float32(monkeypatch):
    monkeypatch.setenv("PARTITA_CPU_ISA", "portable")
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    w = np.full((64, 3), 1.0001, np.float32)
    found, kinds = product(x, w, **F16)
    assert np.abs(found - x.astype(np.float64) @ w).max() <= 1e-4
    assert not any(kind.endswith("f16") for kind in kinds)


def test_what_is_too_large_becomes_infinite():
    x = np.array([[65503, 0], [65519, 0], [65520, 0], [-1e30, 0], [np.nan, 0]], np.float32)
    w = np.array([[1, 1e-7, 1e5], [0, 0, 1]], np.float32)
    found, _ = product(x, w, **F16)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (halves(x)[:, :, None] * halves(w)[None]).sum(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert np.isinf(found[2, 0])
    assert np.isfinite(found[1, 0])


def test_images_are_kept_in_float16_between_convolutions(level):
    net = Net(1, 32, 9, 10)
    first = net.add("Relu", net.conv("x", 32, 40))
    second = net.conv(first, 40, 24, 1)
    third = net.add("Relu", net.add("Add", net.conv(second, 24, 24), second))
    y = net.conv(third, 24, 7, 1)
    kinds = check(net, y, config=F16, tolerance=3e-3)
    assert "avx2_f16" in kinds.values() or "avx512_f16" in kinds.values()
    device = compiled(net.model(y), **F16)
    specs = [(port.shape, port.dtype) for port in device.inputs]
    steps = device.device_model.specializer.program(specs, None).steps
    stored = [arg.dtype == np.uint16 for step in steps for arg in step.args[:1]]
    assert sum(stored) == 3 * EVERY[level].masks_halves


def test_convolutions_of_all_kinds():
    net = Net(2, 3, 20, 22)
    x = net.add("HardSwish", net.conv("x", 3, 24, strides=[2, 2]))
    x = net.conv(x, 24, 24, group=24)
    x = net.conv(net.add("MaxPool", x, kernel_shape=[2, 2]), 24, 40, 3, group=2)
    x = net.add("Concat", x, net.conv(x, 40, 20, 1), axis=1)
    y = net.add("Tanh", net.conv(x, 60, 10, 5))
    check(net, y, config=F16, tolerance=3e-3)


def test_rows_are_laid_out_to_be_rounded():
    images = Images.matrix(40, 64, 32)
    for kind, source in ((Arithmetic.F32, Source.DIRECT), (Arithmetic.F16, Source.COLUMNS)):
        assert plan(images, MachineModel(LEVELS[0]), kind, 2).source is source


@pytest.mark.parametrize("found", LEVELS)
def test_kernels_are_compiled_apart(found):
    names = set(llvm_kernel.addresses(found, "_f16"))
    assert names == {function.name for function in module.functions(found, "_f16")}
    assert not names & set(llvm_kernel.addresses(found))


@pytest.mark.parametrize("found", LEVELS)
def test_rounding_is_to_nearest_even(found, guarded):
    """All halves, numbers between and beside them, and numbers around the largest."""
    steps = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (steps[1:] + steps[:-1]) / 2
    ends = [65504, 65519.996, 65520, 3e38, np.inf, np.nan, 1e-40, 2.0**-25, 2.0**-24 * 1.5]
    near = [np.nextafter(between, np.float32(side)) for side in (0, np.inf)]
    values = np.concatenate([steps, between, *near, np.array(ends, np.float32)])
    values = np.concatenate([values, -values])
    values = np.pad(values, (0, -len(values) % 16)).astype(np.float32)
    x = guarded.array(values)
    narrow = guarded.array(np.zeros(x.size, np.float16))
    convert_all(llvm_kernel.addresses(found)["to_f16"], x.ctypes.data, x.size, narrow.ctypes.data)
    round_all(llvm_kernel.addresses(found, "_f16")["round_f16"], x.ctypes.data, x.size)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(x, wanted)
    np.testing.assert_array_equal(narrow.astype(np.float32), wanted)


@pytest.mark.parametrize("found", LEVELS)
@pytest.mark.parametrize("count", [0, 1, 15, 47, 1 << 16])
def test_every_float16_is_widened(found, count, guarded):
    x = guarded.array(np.arange(count, dtype=np.uint16).view(np.float16))
    y = guarded.array(np.full(count, 7, np.float32))
    convert_all(llvm_kernel.addresses(found)["from_f16"], x.ctypes.data, count, y.ctypes.data)
    np.testing.assert_array_equal(y, x.astype(np.float32))


def test_activations_in_float16_are_converted_by_kernels(level):
    """Threads share them; Python converted all by one thread."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [9, 70]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)]
    device = compiled(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    x = np.random.default_rng(0).standard_normal((9, 70)).astype(np.float16)
    request = device.create_infer_request()
    request.set_tensor("x", partita.Tensor(x))
    request.infer()
    np.testing.assert_array_equal(request.get_output_tensor(0).data, np.maximum(x, 0))
    steps = [step.how for step in request.explain_execution().steps]
    assert steps.count("convert_run") == 2
    assert not {"widen_kernel", "narrow_kernel"} & set(steps)


@pytest.mark.parametrize("found", [found for found in LEVELS if found.masks_halves])
@pytest.mark.parametrize(("count", "padded"), [(0, 5), (1, 1), (15, 16), (33, 40), (64, 64)])
def test_widening_stays_within_its_memory(found, count, padded, guarded):
    x = guarded.array(np.arange(count, dtype=np.float16).view(np.uint16))
    y = guarded.array(np.full(padded, 7, np.float32))
    kernel = llvm_kernel.addresses(found, "_f16_narrow")["widen_f16"]
    widen_all(kernel, x.ctypes.data, x.size, y.ctypes.data, y.size)
    np.testing.assert_array_equal(y[:count], np.arange(count))
    np.testing.assert_array_equal(y[count:], 0)
