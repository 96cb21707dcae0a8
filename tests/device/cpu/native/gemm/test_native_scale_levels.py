"""Scales that are whole numbers times a factor of 256 terms, as K-quants of GGUF have them."""

from __future__ import annotations

import numpy as np
import pytest
from gguf_files import random_tensor
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from sampling import examples

import partita
from partita.frontends.gguf.block_formats import BLOCK_FORMATS
from partita_cpu.jit import isa
from partita_cpu.kernels.quantized_weights.scale_levels import split_levels

KINDS = ("Q4_K", "Q5_K", "Q6_K")
FORMATS = {form.name: form for form in BLOCK_FORMATS.values()}


@pytest.fixture(params=[level.name for level in isa.available()])
def level(request, monkeypatch):
    """Portable code too, which has no levels."""
    monkeypatch.setenv(isa.VARIABLE, request.param)
    return request.param


@examples(30)
@given(
    size=st.sampled_from([16, 32]),
    groups=st.integers(1, 5),
    columns=st.integers(1, 400),
    least=st.sampled_from([0, -128]),
    largest=st.sampled_from([63, 127]),
    seed=st.integers(0, 99),
)
def test_levels_times_factors_are_the_numbers(size, groups, columns, least, largest, seed):
    rng = np.random.default_rng(seed)
    each = 256 // size
    factors = rng.uniform(-2, 2, (columns, groups)).astype(np.float16).astype(np.float32)
    levels = rng.integers(least, largest + 1, (columns, groups * each))
    levels[rng.random(levels.shape) < 0.1] = 0
    numbers = levels.astype(np.float32) * np.repeat(factors, each, axis=1)
    found, of_groups = split_levels(numbers, size, 0.0)
    assert found.dtype == np.int8 and of_groups.dtype == np.float32
    np.testing.assert_array_equal(found * np.repeat(of_groups, each, axis=1), numbers)


@pytest.mark.parametrize("size", [16, 32])
def test_numbers_that_are_off_by_last_bits_are_found_where_that_is_allowed(size):
    rng = np.random.default_rng(0)
    factors = rng.uniform(0.1, 2, (30, 3)).astype(np.float16).astype(np.float32)
    levels = rng.integers(0, 64, (30, 3 * 256 // size))
    exact = levels.astype(np.float32) * np.repeat(factors, 256 // size, axis=1)
    other = rng.uniform(0.5, 2, exact.shape).astype(np.float32)
    numbers = exact / other * other
    assert (numbers != exact).any() and split_levels(numbers, size, 0.0) is None
    found, of_groups = split_levels(numbers, size, 2.0**-22)
    made = found * np.repeat(of_groups, 256 // size, axis=1)
    assert (np.abs(made - exact) <= 2.0**-22 * np.abs(exact)).all()


def test_others_are_none():
    rng = np.random.default_rng(1)
    levels = rng.integers(0, 64, (4, 8)).astype(np.float32)
    assert split_levels(rng.uniform(0.5, 1, (4, 8)).astype(np.float32), 32, 0.0) is None
    assert split_levels(levels[:, :4], 32, 0.0) is None  # half a group
    assert split_levels(levels, 64, 0.0) is None
    levels[3, 7] = np.inf
    assert split_levels(levels, 32, 0.0) is None
    late = rng.integers(0, 64, (2000, 8)).astype(np.float32)
    late[1999] = rng.uniform(0.5, 1, 8)
    assert split_levels(late, 32, 0.0) is None


@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_files_are_levels(kind):
    form = FORMATS[kind]
    tensor = random_tensor(np.random.default_rng(3), kind, (40, 1024))
    blocks = np.frombuffer(tensor.data, form.record).reshape(40, -1)
    scales = form.scales(blocks).reshape(40, -1)
    assert split_levels(scales, form.scale_block, 0.0) is not None
    if form.zero_points is not None:
        assert (blocks["scales"] & 63 == 0).any()  # there are groups without a scale
        terms = scales * form.zero_points(blocks).reshape(40, -1)
        assert split_levels(terms, form.scale_block, 2.0**-22) is not None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 5, 100])
@pytest.mark.parametrize("columns", [48, 70])
def test_products_by_weights_of_files(level, kind, rows, columns):
    rng = np.random.default_rng(2)
    terms, form = 512, FORMATS[kind]
    tensor = random_tensor(rng, kind, (columns, terms))
    blocks = np.frombuffer(tensor.data, form.record).reshape(columns, -1)
    scales = form.scales(blocks).reshape(-1)
    count = terms // form.scale_block
    quants = form.quants(blocks).reshape(columns, count, -1)
    constants = {"w": quants, "s": scales}
    if form.zero_points is not None:
        constants["z"] = form.zero_points(blocks).reshape(-1)
    sizes = {"K": terms, "N": columns, "bits": form.bits, "block_size": form.scale_block}
    node = helper.make_node(
        "MatMulNBits", ["x", *constants], ["y"], "product", domain="com.microsoft", **sizes
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", 1, (rows, terms))],
        [helper.make_tensor_value_info("y", 1, (rows, columns))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = rng.standard_normal((rows, terms)).astype(np.float32)
    request = (
        partita.Core()
        .compile_model(model.SerializeToString(), "CPU", {"PERF_COUNT": True})
        .create_infer_request()
    )
    found = request.infer({"x": x})["y"]
    if rows == 1 and level != "portable":  # that weights are kept in 6 bits and less
        names = {info.exec_type for info in request.get_profiling_info()}
        assert any(name.endswith("_int4" if kind == "Q4_K" else "_int6") for name in names)
    weights = tensor.numbers()
    expected = x.astype(np.float64) @ weights.T
    deviation = np.abs(x).max() * np.sqrt((weights**2).sum(1) / 3) / 65534
    bound = 6 * deviation + 2.0**-20 * (np.abs(x) @ np.abs(weights).T)
    if "amx" in level and rows >= 64:
        bound += 2.0**-15 * np.abs(expected).max()
    assert (np.abs(found - expected) <= bound).all()
