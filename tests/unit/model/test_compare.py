"""How far two values are apart."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from partita.model.compare import difference, relative_error
from partita.tensors.sequence_values import boxed


def array(*values, dtype=np.float32):
    return np.array(values, dtype)


def test_floats_count_in_tolerances():
    found = difference(array(1, 2, 4.1), array(1, 2, 4), rtol=0.01, atol=0.01)
    assert found.error == pytest.approx(0.1 / 0.05, rel=1e-5)
    assert found.max_abs == pytest.approx(0.1, rel=1e-5)
    assert (found.where, found.have, found.want) == ((2,), "4.1", "4")
    assert "4.1 instead of 4 at [2] (2 tolerances)" in str(found)
    assert difference(array(4.1), array(4), rtol=0.03, atol=0.0).ok


def test_nan_and_infinity_equal_themselves_only():
    odd = array(np.nan, np.inf, -np.inf)
    assert difference(odd, odd.copy(), 0, 0).error == 0
    for wrong in (array(1, np.inf, -np.inf), array(np.nan, np.nan, -np.inf), -odd):
        assert difference(wrong, odd, 1e-3, 1e-3).error == math.inf
        assert difference(odd, wrong, 1e-3, 1e-3).error == math.inf


def test_integers_are_exact_unless_the_absolute_tolerance_says_otherwise():
    big = array(2**62, dtype=np.int64)
    assert difference(big + 1, big, rtol=1, atol=0.5).error == math.inf
    assert difference(big + 1, big, rtol=0, atol=1).ok
    assert difference(array(0, dtype=np.uint8), array(255, dtype=np.uint8), 0, 1).max_abs == 255
    assert not difference(array(True, dtype=bool), array(False, dtype=bool), 1, 1).ok


def test_sums_that_cancel_may_keep_the_rounding_of_their_terms():
    want = array(1e4, 0)
    have = array(1e4, 0.05)
    assert not difference(have, want, 1e-3, 1e-4).ok
    assert difference(have, want, 1e-3, 1e-4, rounding=1e-5).ok
    masked = array(-3e38, 0)
    assert not difference(array(-3e38, 0.05), masked, 1e-3, 1e-4, rounding=1e-5).ok


def test_types_shapes_texts_and_small_floats():
    assert str(difference(array(1), array(1, 2), 1, 1)) == "float32[1] instead of float32[2]"
    assert not difference(array(1), array(1, dtype=np.float64), 1, 1).ok
    words = np.array(["a", "b"], object)
    assert difference(words, words.copy(), 0, 0).ok
    found = difference(np.array(["a", "c"], object), words, 1, 1)
    assert (found.where, found.have, found.want) == ((1,), "'c'", "'b'")
    half = np.array([1, 1.0078125], ml_dtypes.bfloat16)
    assert difference(half, half[:1].repeat(2), 1e-2, 0).ok
    assert not difference(half, half[:1].repeat(2), 1e-3, 0).ok
    assert difference(np.zeros((0, 3)), np.zeros((0, 3)), 0, 0).ok
    turned = array(1 + 1j, dtype=np.complex64)
    assert difference(turned.conj(), turned, 1e-3, 0).max_abs == 2


def test_sequences_and_absent_values():
    pair = boxed([array(1), array(2)])
    assert difference(boxed([array(1), array(2)]), pair, 0, 0).ok
    assert difference(boxed([array(1), array(2.5)]), pair, 0, 0.25).error == 2
    assert "a sequence of 1 instead of a sequence of 2" in str(
        difference(boxed([array(1)]), pair, 0, 0)
    )
    assert difference(boxed(None), boxed(None), 0, 0).ok
    assert "nothing instead of a sequence of 2" in str(difference(boxed(None), pair, 0, 0))


def test_relative_errors_go_by_the_largest_element():
    assert relative_error(array(4.1, 0.1), array(4, 0)) == pytest.approx(0.025, rel=1e-5)
    assert relative_error(array(np.nan, 1), array(np.nan, 1)) == 0
    assert relative_error(array(np.nan, 1), array(1, 1)) == math.inf
    assert relative_error(array(1e-9), array(0)) == math.inf
    assert relative_error(array(-3e38, 1.5), array(-3e38, 1)) == pytest.approx(0.5)
    assert relative_error(array(1), array(1, 2)) == math.inf
    integers = array(1, 2, 3, 4, dtype=np.int32)
    assert relative_error(integers, array(1, 2, 3, 5, dtype=np.int32)) == 0.25
    assert relative_error(np.array(["a", "b"], object), np.array(["a", "c"], object)) == 0.5
    assert relative_error(boxed([array(1), array(3)]), boxed([array(1), array(2)])) == 0.5
    assert relative_error(boxed(None), boxed(None)) == 0
    assert relative_error(boxed(None), boxed([array(1)])) == math.inf
    assert relative_error(np.zeros((0, 2)), np.zeros((0, 2))) == 0
