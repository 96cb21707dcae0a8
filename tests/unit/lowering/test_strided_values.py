"""Views that reshapes make: those of numpy, and for sizes that are not asked whether they are 1."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.lowering.fusion.strided_values import Strided
from partita.lowering.graph import Value
from partita.lowering.shapes.symbolic_size import Recording, always_equal, holds_sizes

FLOAT = np.dtype(np.float32)


@given(st.permutations(range(4)), st.lists(st.sampled_from([1, 2, 3, 4]), min_size=4, max_size=4))
def test_reshaped_is_the_view_of_numpy(order, shape):
    """Of a transposed array, to each shape of three axes; none where numpy has to copy."""
    array = np.arange(math.prod(shape)).reshape(shape).transpose(order)
    view = Strided.whole(Value("x", FLOAT), tuple(shape)).transposed(order)
    for first in range(1, array.size + 1):
        for second in range(1, array.size // first + 1):
            if array.size % (first * second):
                continue
            wanted = (first, second, array.size // (first * second))
            found = view.reshaped(wanted)
            whole = array.reshape(wanted)
            assert (found is not None) is np.shares_memory(whole, array)
            if found is not None:
                places = np.ix_(*map(np.arange, wanted))
                flat = sum(n * step for n, step in zip(places, found.strides, strict=True))
                np.testing.assert_array_equal(flat + found.start, whole)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("rows", [1, 5])
def test_heads_of_rows_are_a_view_whatever_the_batch_is(batch, rows):
    """And back again; nothing is decided by sizes but that they are not 0."""
    recording = Recording()
    n, s = recording.size(batch), recording.size(rows)
    view = Strided.whole(Value("x", FLOAT), (n, s, 64)).reshaped((n, s, 8, 8))
    assert view is not None and holds_sizes(view.strides)
    heads = view.transposed((0, 2, 1, 3))
    assert all(map(always_equal, heads.strides, (s * 64, 8, 64, 1)))
    back = heads.transposed((0, 2, 1, 3)).reshaped((n, s, 64))
    assert back is not None and back.shape == (n, s, 64)
    for sizes in ([1, 1], [3, 7], [1, 9], [4, 1]):
        assert recording.repeat(sizes) is not None
    assert recording.repeat([0, 4]) is None


def test_heads_beside_batches_are_a_view_of_one_batch():
    recording = Recording()
    n, s = recording.size(1), recording.size(5)
    heads = Strided.whole(Value("x", FLOAT), (n, s, 8, 8)).transposed((0, 2, 1, 3))
    assert heads.reshaped((n * 8, s, 8)) is not None
    assert recording.repeat([1, 6]) is not None
    assert recording.repeat([2, 6]) is None
