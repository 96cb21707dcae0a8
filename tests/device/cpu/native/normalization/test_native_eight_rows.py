"""Short rows of float32 that are normalized eight at a time: kernels, and whole operators."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita_cpu.jit.isa import available
from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.llvm.eight_rows import EIGHT, LANES, LONGEST
from partita_cpu.llvm.normalization import eights_name

from ..conftest import Guarded
from ..networks.test_native_layout import Net, check, compiled, places_written_over
from ..networks.test_native_passes import steps_of

LEVELS = [level for level in available() if level.lanes == LANES]
EPSILON = 1e-5
SUFFICIENT = 2e-6
"""Of float32 beside float64, for elements of a few units."""


def normalized(guarded, level, x, scale, bias, name, over=False, skip=None):
    """Results, what was taken off rows, and their factors; results over the rows if need be.

    With something to add, rows become the sums.
    """
    rows, n = x.shape
    y = guarded.array(np.full((rows, n), np.nan, np.float32))
    means, inverses = (guarded.array(np.full(rows, np.nan, np.float32)) for _ in range(2))
    arrays = [guarded.array(array) for array in (x, scale, bias)]
    y = arrays[0] if over else y
    x, *terms = arrays
    more = [None, None] if skip is None else [guarded.array(skip), x]
    given = [x, *more, *terms, y, means, inverses]
    places = [0 if array is None else array.ctypes.data for array in given]
    kernel = addresses(level, "_normalized")[name]
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 10, ctypes.c_double)(kernel)
    call(rows // EIGHT, n, *places, EPSILON)
    return y, means, inverses


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("centered", [True, False])
@examples(40)
@given(
    eights=st.integers(0, 3),
    n=st.integers(1, LONGEST),
    mean=st.sampled_from([0, 3, -1e4]),
    over=st.booleans(),
    added=st.booleans(),
)
def test_eight_rows(level, centered, eights, n, mean, over, added):
    rng = np.random.default_rng(n)
    guarded = Guarded()
    deviations = rng.uniform(0.5, 4, (EIGHT * eights, 1))
    x = (rng.standard_normal((EIGHT * eights, n)) * deviations + mean).astype(np.float32)
    scale, bias = rng.standard_normal((2, n)).astype(np.float32)
    skip = rng.standard_normal(x.shape).astype(np.float32) if added else None
    name = eights_name(centered, added)
    y, means, inverses = normalized(guarded, level, x, scale, bias, name, over, skip)
    wide = (x + skip if added else x).astype(np.float64)
    taken = wide.mean(-1, keepdims=True) * centered
    inverse = 1 / np.sqrt(((wide - taken) ** 2).mean(-1, keepdims=True) + EPSILON)
    wanted = (wide - taken) * inverse * scale + bias
    np.testing.assert_allclose(y, wanted, rtol=SUFFICIENT, atol=SUFFICIENT)
    np.testing.assert_allclose(means, taken[:, 0], rtol=SUFFICIENT, atol=SUFFICIENT)
    np.testing.assert_allclose(inverses, inverse[:, 0], rtol=SUFFICIENT)
    guarded.release()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["normalize_eights", "scale_eights"])
def test_rows_that_are_not_finite(level, name, guarded):
    """What a row has of NaN makes all of it NaN, and no other row; so does infinity with means."""
    x = np.ones((EIGHT, 20), np.float32)
    x[0, 3], x[2, 17] = np.nan, np.inf
    scale, bias = np.ones(20, np.float32), np.full(20, 0.5, np.float32)
    x[3, 5] = -np.inf
    y, means, _ = normalized(guarded, level, x, scale, bias, name)
    if name == "normalize_eights":  # as float64 has it
        np.testing.assert_array_equal(means, x.mean(-1, dtype=np.float64))
    assert np.isnan(y[0]).all()
    assert np.isnan(y[2, 17])
    assert np.isnan(y[2]).all() == (name == "normalize_eights")
    others = 0.5 if name == "normalize_eights" else 0.5 + 1 / np.sqrt(1 + EPSILON)
    np.testing.assert_allclose(np.delete(y, [0, 2, 3], 0), others, rtol=SUFFICIENT)


@pytest.mark.parametrize("operator", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize(("rows", "n"), [(7, 32), (8, 32), (37, 33), (16, LONGEST + 1)])
def test_operators_of_short_rows(level, operator, rows, n):
    """Rows that are fewer than eight, or long, are normalized one at a time."""
    net = Net(1, rows, n)
    y = net.add(operator, "x", net.const(n))
    check(net, y)
    wide = "avx512" in level or level == "amx"
    together = wide and rows >= EIGHT and n <= LONGEST
    assert ("normalize_short_rows" in steps_of(net, y)) == together


@pytest.mark.parametrize("operator", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("last", [True, False])
def test_rows_that_nobody_reads_later_are_normalized_where_they_lie(level, operator, last):
    """Of 37 rows five are no eight."""
    net = Net(37, 40)
    x = net.add("MatMul", "x", net.const(40, 33))
    y = net.add("MatMul", net.add(operator, x, net.const(33)), net.const(33, 8))
    if not last:
        y = net.add("Add", y, net.add("MatMul", x, net.const(33, 8)))
    strict = {"EXECUTION_MODE_HINT": "ACCURACY"}
    check(net, y, config=strict)
    places = places_written_over(compiled(net.model(y), **strict), "normalize_short_rows")
    wide = "avx512" in level or level == "amx"
    assert [made == read for made, read in places] == [last] * wide


@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("biased", [True, False])
def test_sums_are_normalized_as_they_are_added(level, operator, biased):
    """A bias is added to all rows first."""
    net = Net(2, 37, 40)
    skip = net.add("Mul", "x", net.const(2, 37, 40))
    terms = [net.const(40)] * (2 if operator == "SkipLayerNormalization" else 1)
    inputs = "x", skip, *terms, *[net.const(40)] * biased
    y = net.add(operator, *inputs, domain="com.microsoft", epsilon=EPSILON)
    net.nodes[-1].output.extend(["", "", "total"])
    check(net, y, "total")
    wide = "avx512" in level or level == "amx"
    assert ("normalize_short_sums" in steps_of(net, y, "total")) == (wide and not biased)
