"""Products with weights quantized in blocks, and look-ups in them, against onnxruntime and float64.

onnxruntime may quantize the left side too, to 8 bits; ours is to be much closer to float64.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from block_weights import Weights, unpacked
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from sampling import examples
from single_op import model_of, normal, run_ours

import partita
from partita.errors import CompileError
from partita.lowering import lower_proto
from partita.system.memory_map import spilled
from partita_cpu.runtime.device_model import run_graph

MICROSOFT = "com.microsoft"
EXACT = 1e-4
"""Of the largest result: how far off 16 bits of the largest term of a block may be."""


def exact(x, weights, bias=None):
    y = x.astype(np.float64) @ weights.matrix()
    return y if bias is None else y + bias


def assert_near(got, expected):
    assert got.shape == expected.shape
    scale = np.abs(expected).max(initial=1e-30)
    assert np.abs(got - expected).max(initial=0) <= EXACT * scale


def product(x, weights, bias=None, constants=(1, 2, 3, 5), **attributes):
    inputs = [x, *weights.inputs]
    if bias is not None:
        inputs += [None] * (5 - len(inputs)) + [bias]
    attributes = weights.sizes | attributes
    constants = [k for k in constants if k < len(inputs) and inputs[k] is not None]
    return run_ours("MatMulNBits", inputs, domain=MICROSOFT, constants=constants, **attributes)[0]


KINDS = [None, "bytes", "equal", "floats", "minimum"]


@pytest.mark.parametrize("zeros", KINDS)
@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [16, 32, 64, 128, 256])
def test_all_kinds_of_weights(zeros, halves, bits, size):
    weights = Weights(0, 300, 37, size, bits, zeros, halves)
    for rows in (1, 5):
        x = normal(rows, rows, 300)
        assert_near(product(x, weights), exact(x, weights))


@pytest.mark.parametrize("zeros", [None, "bytes", "floats"])
@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("outlier", [None, 95, 160, 64])
def test_numbers_of_eight_bits_that_six_bits_hold(zeros, size, outlier):
    """All of them, or all but one, which must not be lost."""
    weights = Weights(8, 128, 37, size, 8, zeros)
    weights.packed %= 64
    if zeros is None:
        weights.packed += np.uint8(96)
    if outlier is not None:
        weights.packed[36, -1, -1] = outlier
    for rows in (1, 5, 60):
        x = normal(rows, rows, 128)
        x[rows // 2, 3] = np.inf
        got, kept = product(x, weights), np.arange(rows) != rows // 2
        assert not np.isfinite(got[rows // 2]).any()
        assert_near(got[kept], exact(x[kept], weights))


@pytest.mark.parametrize("zeros", KINDS)
@pytest.mark.parametrize("terms", [16, 90, 300])
@pytest.mark.parametrize("size", [16, 64, 256])
def test_weights_of_two_bits(zeros, terms, size):
    weights, x = Weights(5, terms, 37, size, 2, zeros), normal(6, 3, terms)
    assert_near(product(x, weights), exact(x, weights))


@pytest.mark.parametrize("zeros", KINDS)
@pytest.mark.parametrize(
    ("bits", "halves", "size"), [(4, True, 32), (8, False, 16), (4, True, 256)]
)
def test_many_rows_and_terms(zeros, bits, halves, size):
    """More terms than are unpacked at a time, and more rows than share what was."""
    weights = Weights(1, 1500, 37, size, bits, zeros, halves)
    x = normal(2, 430, 1500)
    x[7, 3] = np.inf
    got, expected = product(x, weights), exact(np.delete(x, 7, 0), weights)
    assert not np.isfinite(got[7]).any()
    assert_near(np.delete(got, 7, 0), expected)


MATRICES = {
    "terms": st.integers(1, 600),
    "columns": st.integers(1, 70),
    "size": st.sampled_from([16, 32, 64, 128, 256]),
    "bits": st.sampled_from([4, 8]),
    "zeros": st.sampled_from(KINDS),
    "halves": st.booleans(),
    "seed": st.integers(0, 99),
}
"""Draws of a matrix of weights."""


@examples(30)
@given(rows=st.integers(1, 300), biased=st.booleans(), **MATRICES)
def test_products(rows, terms, columns, size, bits, zeros, halves, biased, seed):
    weights = Weights(seed, terms, columns, size, bits, zeros, halves)
    x = normal(seed, rows, terms) * np.float32(10.0) ** (seed % 7 - 3)
    bias = normal(seed, columns) if biased else None
    assert_near(product(x, weights, bias), exact(x, weights, bias))


FLOAT32 = 2e-6
"""Of the largest result: how far off sums in float32 may be; those of rows of 16 bits are more."""


def strictly(x, weights, shape=None):
    """The product with EXECUTION_MODE_HINT=ACCURACY."""
    inputs = [x, *weights.inputs]
    constants = list(range(1, len(inputs)))
    form = model_of("MatMulNBits", inputs, domain=MICROSOFT, constants=constants, **weights.sizes)
    model = partita.Core().read_model(form)
    if shape is not None:
        model.reshape({"x0": shape})
    return partita.Core().compile_model(model, "CPU", {"EXECUTION_MODE_HINT": "ACCURACY"})


@examples(30)
@given(rows=st.integers(1, 150), **MATRICES)
def test_strict_products_are_those_of_float32(
    rows, terms, columns, size, bits, zeros, halves, seed
):
    weights = Weights(seed, terms, columns, size, bits, zeros, halves)
    x = normal(seed, rows, terms) * np.float32(10.0) ** (seed % 7 - 3)
    x[0, terms // 2] = 1000 * np.abs(x).max()  # beside which 16 bits leave little of the others
    expected = exact(x, weights)
    got = strictly(x, weights)({"x0": x})[0]
    bound = np.abs(x) @ np.abs(weights.matrix()).max(1) + np.abs(expected).max(1)
    assert (np.abs(got - expected).max(1) <= FLOAT32 * bound).all()


def test_strict_rows_that_are_not_finite_are_so_alone():
    weights, x = Weights(3, 300, 40, 32, 4), normal(4, 5, 300)
    x[1, 7], x[3, 250] = np.inf, np.nan
    got = strictly(x, weights)({"x0": x})[0]
    assert not np.isfinite(got[[1, 3]]).any()
    kept = [0, 2, 4]
    expected = exact(x[kept], weights)
    assert np.abs(got[kept] - expected).max() <= FLOAT32 * np.abs(expected).max()


def test_strict_products_of_rows_that_vary():
    weights = Weights(5, 200, 33, 32, 4, "bytes")
    compiled = strictly(normal(0, 1, 200), weights, ["rows", 200])
    for rows in (1, 7, 120, 2):
        x = normal(rows, rows, 200)
        expected = exact(x, weights)
        assert np.abs(compiled({"x0": x})[0] - expected).max() <= FLOAT32 * np.abs(expected).max()


@pytest.mark.parametrize("level", [0, 1, 4])
@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(2, None), (2, "bytes"), (4, None), (4, "bytes"), (4, "floats"), (8, "bytes")],
)
def test_onnxruntime_computes_the_same(bits, zeros, level):
    weights, x, bias = Weights(1, 200, 33, 32, bits, zeros), normal(2, 2, 3, 200), normal(3, 33)
    inputs = [x, *weights.inputs]
    inputs += [None] * (5 - len(inputs)) + [bias]
    constants = [k for k in range(1, 6) if k < len(inputs) and inputs[k] is not None]
    model = model_of(
        "MatMulNBits",
        inputs,
        domain=MICROSOFT,
        constants=constants,
        accuracy_level=level,
        **weights.sizes,
    )
    (expected,) = onnxruntime_results(model, {"x0": x})
    got = product(x, weights, bias, accuracy_level=level)
    scale = np.abs(expected).max()
    assert np.abs(got - expected).max() <= (2e-2 if level == 4 else EXACT) * scale


def test_flat_scales_and_zero_points_of_old_files():
    weights, x = Weights(4, 100, 20, 16, 4, "bytes"), normal(5, 3, 100)
    expected = exact(x, weights)
    weights.scales, weights.zeros = weights.scales.reshape(-1), weights.zeros.reshape(-1)
    assert_near(product(x, weights), expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats(dtype):
    weights = Weights(6, 96, 40, 32, 4, "floats")
    x = normal(7, 4, 96).astype(dtype)
    weights.scales, weights.zeros = weights.scales.astype(dtype), weights.zeros.astype(dtype)
    got = product(x, weights, normal(8, 40).astype(dtype))
    assert got.dtype == dtype
    expected = exact(x.astype(np.float64), weights, normal(8, 40).astype(dtype).astype(np.float64))
    error = np.abs(got.astype(np.float64) - expected).max()
    assert error <= (2e-3 if dtype == np.float16 else 2e-2) * np.abs(expected).max()


@pytest.mark.parametrize("zeros", KINDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_that_only_the_run_brings(bits, zeros):
    weights, x = Weights(9, 70, 19, 16, bits, zeros, halves=False), normal(10, 5, 70)
    assert_near(product(x, weights, constants=()), exact(x, weights))
    assert_near(product(x, weights, constants=(1, 2)), exact(x, weights))


def test_rows_that_are_not_finite():
    weights = Weights(11, 64, 20, 32, 4)
    x = normal(12, 4, 64)
    x[1, 3], x[2, 40] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        expected = exact(x, weights)
    got = product(x, weights)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(expected))
    np.testing.assert_allclose(got[[0, 3]], expected[[0, 3]], rtol=0, atol=1e-3)


@pytest.mark.parametrize("factor", [0.0, 1e-40, 1e-33, 1e30])
def test_rows_of_any_size(factor):
    weights, x = Weights(13, 64, 20, 32, 4), normal(14, 2, 64) * np.float32(factor)
    np.testing.assert_allclose(
        product(x, weights), exact(x, weights), rtol=1e-3, atol=1e-28 + 1e-3 * factor
    )


def test_weights_that_are_left_out_are_zeros():
    weights, x, bias = Weights(15, 32, 8, 16, 4), normal(16, 3, 32), normal(17, 8)
    weights.packed = np.zeros((8, 0, 8), np.uint8)
    np.testing.assert_array_equal(product(x, weights, bias), np.tile(bias, (3, 1)))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_weights_in_files_take_no_memory_once_they_are_packed():
    weights = Weights(3, 4096, 1024, 16, 4, "minimum")
    model = model_of(
        *("MatMulNBits", [normal(1, 1, 4096), *weights.inputs]),
        domain=MICROSOFT,
        constants=(1, 2, 3),
        **weights.sizes,
    )
    graph = lower_proto(model)
    kept = graph.nodes[0].inputs[1:4]
    for value in kept:
        value.const = spilled(value.const)
    x = normal(1, 1, 4096)
    (result,) = run_graph(graph, [x])
    assert [resident_kib(value.const) for value in kept] == [0, 0, 0]
    assert_near(result, exact(x, weights))


def resident_kib(array):
    """What the mapping that an array lies in takes."""
    found, address = None, array.ctypes.data
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if mapping := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(mapping[1], 16) <= address < int(mapping[2], 16)
        elif found and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_shapes_change_without_packing_again():
    weights = Weights(18, 128, 48, 32, 4, "bytes")
    model = model_of(
        "MatMulNBits",
        [normal(0, 1, 1, 128), *weights.inputs],
        domain=MICROSOFT,
        constants=(1, 2, 3),
        **weights.sizes,
    )
    core = partita.Core()
    request = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    request = request.create_infer_request()
    for rows in (1, 7, 1, 40, 300):
        x = normal(rows, 2, rows, 128)
        assert_near(np.array(request.infer({"x0": x})[0]), exact(x, weights))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bits": 2}, "bits is 2; takes 4, 8"),
        ({"block_size": 512}, "block_size is 512; takes 16, 32"),
        ({"weight_prepacked": 1}, "packed for another device"),
    ],
)
def test_what_is_refused(changes, said):
    weights = Weights(19, 512, 8, 32, 4)
    with pytest.raises(CompileError, match=said):
        product(normal(0, 1, 512), weights, **changes)


def by_scales(weights, groups):
    """A matrix (terms, columns) whose terms name their scales, in float64."""
    columns, blocks = weights.scales.shape
    bits, terms = weights.sizes["bits"], weights.sizes["K"]
    levels = unpacked(weights.packed, bits).reshape(columns, -1)[:, :terms].astype(np.float64)
    zeros = np.full((columns, blocks), float(1 << (bits - 1)))
    if weights.zeros is not None:
        packed = weights.zeros.dtype == np.uint8
        zeros = unpacked(weights.zeros, bits)[:, :blocks] if packed else weights.zeros
    of_terms = zeros.astype(np.float64)[:, groups], weights.scales.astype(np.float64)[:, groups]
    return ((levels - of_terms[0]) * of_terms[1]).T


@pytest.mark.parametrize("zeros", [None, "bytes", "floats"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("even", [True, False])
def test_terms_that_name_their_scales(zeros, bits, even):
    weights = Weights(20, 150, 9, 32, bits, zeros)
    rng = np.random.default_rng(21)
    groups = rng.permutation(np.arange(150) // 32) if even else rng.integers(0, 5, 150)
    inputs = weights.inputs + [None] * (3 - len(weights.inputs)) + [groups.astype(np.int32)]
    for rows in (1, 70):
        x = normal(rows, rows, 150)
        options = {"domain": MICROSOFT, "constants": [1, 2, 4] + [3] * (zeros is not None)}
        options |= weights.sizes
        (got,) = run_ours("MatMulNBits", [x, *inputs], **options)
        assert_near(got, x.astype(np.float64) @ by_scales(weights, groups))
        if bits == 4 and zeros != "bytes":  # onnxruntime ignores packed ones, and takes no 8 bits
            (judged,) = onnxruntime_results(
                model_of("MatMulNBits", [x, *inputs], **options), {"x0": x}
            )
            np.testing.assert_allclose(got, judged, rtol=0, atol=1e-3 * np.abs(judged).max())


@pytest.mark.parametrize(
    ("groups", "constants", "said"),
    [
        ([0, 1] * 16, [1, 2], "g_idx is given, and input 4 is not a constant"),
        ([0, 2] * 16, [1, 2, 4], "expected 32, from 0 to 1"),
        ([0, 1] * 15, [1, 2, 4], "g_idx has 30 numbers of scales"),
    ],
)
def test_scales_that_terms_cannot_name(groups, constants, said):
    weights = Weights(20, 32, 8, 16, 4)
    inputs = [normal(0, 1, 32), *weights.inputs, None, np.array(groups, np.int32)]
    options = {"domain": MICROSOFT, "constants": constants}
    with pytest.raises(CompileError, match=said):
        run_ours("MatMulNBits", inputs, **options, **weights.sizes)


@pytest.mark.parametrize(
    ("place", "shape"), [(0, (2, 31)), (1, (8, 2, 7)), (2, (8, 3)), (3, (8, 2)), (5, (9,))]
)
def test_shapes_that_do_not_fit(place, shape):
    weights = Weights(21, 32, 8, 16, 4, "bytes")
    inputs = [normal(0, 2, 32), *weights.inputs, None, normal(1, 8)]
    inputs[place] = np.resize(inputs[place], shape)
    with pytest.raises(CompileError, match="MatMulNBits"):
        run_ours("MatMulNBits", inputs, domain=MICROSOFT, **weights.sizes)


def look_up(index, inputs, **attributes):
    """Ours and onnxruntime's."""
    inputs = [inputs[0], index, *inputs[1:]]
    constants = [k for k in range(len(inputs)) if k != 1]
    arguments = {"domain": MICROSOFT, "constants": constants, **attributes}
    model = model_of("GatherBlockQuantized", inputs, **arguments)
    (expected,) = onnxruntime_results(model, {"x1": index})
    (got,) = run_ours("GatherBlockQuantized", inputs, **arguments)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=1e-6, atol=1e-6)


INDEX = np.array([[0, 4, -1], [2, -5, 3]])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("shape", [(5, 48), (5, 3, 72)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_of_bytes(bits, zeros, shape, dtype):
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (*shape[:-1], shape[-1] * bits // 8)).astype(np.uint8)
    blocks = -(-shape[-1] // 16)
    scales = rng.random((*shape[:-1], blocks)).astype(dtype)
    inputs = [data, scales]
    if zeros:
        inputs.append(rng.integers(0, 256, (*shape[:-1], -(-blocks * bits // 8))).astype(np.uint8))
    for index in (INDEX, INDEX.astype(np.int32)[0], np.array(3)):
        look_up(index, inputs, bits=bits, block_size=16, quantize_axis=len(shape) - 1)


def test_indices_without_a_row_give_zeros():
    data = np.full((3, 16), 200, np.uint8)
    (got,) = run_ours(
        "GatherBlockQuantized",
        [data, np.array([3, 1, -4]), np.ones((3, 1), np.float32)],
        domain=MICROSOFT,
        bits=8,
        block_size=16,
    )
    np.testing.assert_array_equal(got, np.array([[0], [72], [0]]) * np.ones((3, 16)))


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize(
    ("gathered", "blocked", "scales"),
    [
        (1, 2, (3, 6, 2)),
        (0, 1, (3, 1, 32)),
        (2, 0, (1, 6, 32)),
        (1, 1, (3, 1, 32)),
        (0, 2, (3, 6, 2)),
    ],
)
@pytest.mark.parametrize("zeros", [False, True])
def test_four_bits_along_any_axis(kind, gathered, blocked, scales, zeros):
    rng, kind = np.random.default_rng(1), np.dtype(getattr(ml_dtypes, kind))
    low, high = (-8, 8) if kind == ml_dtypes.int4 else (0, 16)
    data = rng.integers(low, high, (3, 6, 32)).astype(kind)
    inputs = [data, rng.random(scales).astype(np.float32)]
    if zeros:
        inputs.append(rng.integers(low, high, scales).astype(kind))
    axes = {"gather_axis": gathered, "quantize_axis": blocked}
    look_up(np.array([[1, -1], [0, 2]]), inputs, bits=4, block_size=16, **axes)


def test_float_zero_points_of_look_ups():
    data = np.arange(48, dtype=np.uint8).reshape(3, 16)
    scales, zeros = np.array([[1], [2], [3]], np.float32), np.array([[0.5], [1], [2]], np.float32)
    (got,) = run_ours(
        "GatherBlockQuantized",
        [data, np.array([2, 0]), scales, zeros],
        domain=MICROSOFT,
        bits=8,
        block_size=16,
    )
    np.testing.assert_allclose(got, ((data - zeros) * scales)[[2, 0]])


def test_look_ups_that_do_not_fit():
    data = np.zeros((3, 16), np.uint8)
    for scales in ((3, 2), (2, 1), (3,)):
        inputs = [data, np.array([0]), np.ones(scales, np.float32)]
        with pytest.raises(CompileError, match="GatherBlockQuantized"):
            run_ours("GatherBlockQuantized", inputs, domain=MICROSOFT, bits=8, block_size=16)


def test_queries_tell_what_is_not_taken():
    weights = Weights(22, 32, 8, 16, 4)
    inputs = [normal(0, 1, 32), *weights.inputs]
    model = model_of("MatMulNBits", inputs, domain=MICROSOFT, **(weights.sizes | {"bits": 2}))
    core = partita.Core()
    result = core.query_model(core.read_model(model.SerializeToString()), "CPU")
    assert [r.detail for r in result.reasons.values()] == [
        "bits is 2; takes 4, 8, and 2 of constants"
    ]
