"""Rows that stay in bfloat16 between products of matrices: kernels, and whole small graphs."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from partita_cpu.jit.llvm_kernel import addresses
from partita_cpu.llvm.activations import KERNELS
from partita_cpu.llvm.levels import EVERY

from ..conftest import Guarded
from ..gemm.test_native_storage import NARROW, SENTINEL, loaded, stored
from ..gemm.test_native_tiles import ACTIVATIONS
from ..networks.test_native_halves import BF16, INF, ROUNDING
from ..networks.test_native_layout import Net, check
from ..networks.test_native_passes import steps_of

TOLERANCE = 2e-2
EPSILON = 1e-5


@pytest.mark.parametrize("level", NARROW)
@examples(40)
@given(rows=st.integers(0, 26), n=st.integers(1, 300), mean=st.sampled_from([0, 3, -1e4]))
def test_normalized_rows(level, rows, n, mean):
    """Rounded once; a mean that is far from 0 costs no more than float32 has lost of the rows."""
    rng = np.random.default_rng(n)
    guarded = Guarded()
    x = (rng.standard_normal((rows, n)) + mean).astype(np.float32)
    scale, bias = rng.standard_normal((2, n)).astype(np.float32)
    y = guarded.array(stored(np.full((rows, n), SENTINEL), True))
    kernel = addresses(level, "_activated_halves")["normalize_rows"]
    arrays = [guarded.array(array) for array in (x, scale, bias)]
    places = [array.ctypes.data for array in (*arrays, y)]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6, ctypes.c_double)(kernel)(
        rows, n, *places, EPSILON
    )
    wide = x.astype(np.float64)
    centered = wide - wide.mean(-1, keepdims=True)
    wanted = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + EPSILON) * scale + bias
    np.testing.assert_allclose(loaded(y), wanted, rtol=ROUNDING, atol=2e-5)
    guarded.release()


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("rows", [3, 8])
def test_rows_that_are_not_finite(level, rows):
    """What a row has of NaN and infinity makes all of it NaN, and no other row."""
    x = np.ones((rows, 20), np.float32)
    x[0, 3], x[2, 17] = INF, np.nan
    scale, bias = np.ones(20, np.float32), np.full(20, 0.5, np.float32)
    y = np.zeros((rows, 20), np.uint16)
    kernel = addresses(level, "_activated_halves")["normalize_rows"]
    places = [array.ctypes.data for array in (x, scale, bias, y)]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6, ctypes.c_double)(kernel)(
        rows, 20, *places, EPSILON
    )
    found = loaded(y)
    assert np.isnan(found[[0, 2]]).all()
    np.testing.assert_array_equal(np.delete(found, [0, 2], 0), 0.5)


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("code", ACTIVATIONS)
@pytest.mark.parametrize("count", [0, 1, 16, 95, 96, 333])
def test_activations_of_bfloat16(level, code, count, guarded):
    numbers = np.concatenate([[INF, -INF, np.nan, 0, -0.0], np.linspace(-9, 9, 328)])
    x = stored(numbers[:count], True)
    y = guarded.array(stored(np.full(count, SENTINEL), True))
    kernel = addresses(level, "_activated_halves")[f"{KERNELS[code]}_halves"]
    source = guarded.array(x)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(kernel)
    call(source.ctypes.data, count, y.ctypes.data)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = ACTIVATIONS[code](loaded(x))
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(loaded(y)), nan)
    np.testing.assert_allclose(loaded(y)[~nan], wanted[~nan], rtol=ROUNDING, atol=2e-7)


class Rows(Net):
    """A graph of rows."""

    def product(self, x, depth, columns):
        w = self.rng.standard_normal((depth, columns)).astype(np.float32) / np.sqrt(depth)
        y = self.add("MatMul", x, self.const(values=w.astype(np.float32)))
        return self.add("Add", y, self.const(columns))

    def norm(self, x, n, **attrs):
        return self.add("LayerNormalization", x, self.const(n), self.const(n), **attrs)

    def gelu(self, x):
        root = self.const(values=np.float32(np.sqrt(2)))
        one, half = (self.const(values=np.float32(n)) for n in (1, 0.5))
        gate = self.add("Add", self.add("Erf", self.add("Div", x, root)), one)
        return self.add("Mul", self.add("Mul", x, gate), half)


def keeps(level):
    return EVERY[level].keeps_bfloat16 and not EVERY[level].tiles


@pytest.mark.parametrize("rows", [1, 15, 70])
def test_a_block_of_a_transformer(level, rows):
    """What only products read is in bfloat16; sums that go on are not."""
    net = Rows(1, rows, 48)
    y = net.product(net.gelu(net.product(net.norm("x", 48), 48, 96)), 96, 48)
    total = net.add("Add", y, "x")
    again = net.add("Add", net.product(net.norm(total, 48), 48, 48), total)
    check(net, again, config=BF16, tolerance=TOLERANCE)
    found = steps_of(net, again, **BF16)
    assert ("normalize_halves" in found) == keeps(level)
    of_floats = {"normalize_rows", "normalize_short_rows"}
    assert of_floats.isdisjoint(found) == keeps(level)


def test_rows_that_others_read_too(level):
    """A sum, an output, a product of two matrices that are both computed: these take float32."""
    net = Rows(1, 20, 48)
    normal = net.norm("x", 48)
    y = net.add("Add", net.product(normal, 48, 48), normal)
    shown = net.norm(y, 48)
    z = net.product(shown, 48, 24)
    turned = net.add("Transpose", z, perm=[0, 2, 1])
    check(net, net.add("MatMul", z, turned), shown, config=BF16, tolerance=TOLERANCE)
    assert "normalize_halves" not in steps_of(net, z, shown, **BF16)


def test_rows_that_become_images(level):
    """As SegFormer has them: a depthwise convolution and its Gelu between two products."""
    net = Rows(1, 42, 32)
    wide = net.product(net.norm("x", 32), 32, 64)
    image = net.add("Transpose", wide, perm=[0, 2, 1])
    image = net.add("Reshape", image, net.const(values=np.array([1, 64, 6, 7])))
    image = net.conv(image, 64, 64, group=64)
    rows = net.add("Reshape", image, net.const(values=np.array([1, 64, 42])))
    y = net.product(net.gelu(net.add("Transpose", rows, perm=[0, 2, 1])), 64, 32)
    check(net, net.add("Add", y, "x"), config=BF16, tolerance=TOLERANCE)
    assert ("activate_halves" in steps_of(net, y, **BF16)) == keeps(level)


def test_rows_that_become_a_picture(level):
    """Three channels that lie apart are brought together in float32: a product leaves them so."""
    net = Rows(2, 3, 20, 24)
    rows = net.product(net.norm("x", 24), 24, 33)
    picture = net.conv(rows, 3, 4, pads=[1, 2, 4, 2], dilations=[2, 1])
    check(net, picture, config=BF16, tolerance=TOLERANCE)


@pytest.mark.parametrize(("odd", "axis"), [(47, -1), (48, 1), (48, 2)])
def test_unusual_rows(level, odd, axis):
    """Of an odd number of elements; normalized over two axes, or over one that is counted."""
    net = Rows(2, 6, odd)
    shape = (6, odd) if axis == 1 else (odd,)
    normal = net.add("LayerNormalization", "x", net.const(*shape), net.const(*shape), axis=axis)
    check(net, net.product(normal, odd, 33), config=BF16, tolerance=TOLERANCE)


def test_weights_that_are_infinite_in_bfloat16(level):
    """They are multiplied in float32, by rows in float32."""
    net = Rows(1, 20, 32)
    w = np.full((32, 16), 1e-3, np.float32)
    w[3, 5] = 3.4e38
    small, zeros = (net.const(values=np.full(32, n, np.float32)) for n in (0.01, 0))
    rows = net.add("LayerNormalization", "x", small, zeros)
    y = net.add("MatMul", rows, net.const(values=w))
    check(net, y, config=BF16, tolerance=TOLERANCE)
    assert "normalize_halves" not in steps_of(net, y, **BF16)
