"""Constants of which only some elements are kept."""

import numpy as np
import pytest

from partita.errors import ModelFormatError
from partita.frontends.tflite.sparse import MOST_ELEMENTS, Level, Sparsity, dense
from partita.frontends.tflite.subgraph import Tensor
from partita.frontends.tflite.weights import constant

NONE = np.zeros(0, np.int64)


def full(size):
    return Level(size, None, NONE)


def by_rows(matrix):
    """A matrix as compressed rows, and its elements."""
    rows = [np.flatnonzero(row) for row in matrix]
    segments = np.cumsum([0, *map(len, rows)])
    return Level(0, segments, np.concatenate(rows)), matrix[matrix != 0]


@pytest.mark.parametrize("seed", range(5))
def test_compressed_rows_and_columns(seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((7, 9)) * (rng.random((7, 9)) < 0.3)
    for order, turned in (((0, 1), matrix), ((1, 0), matrix.T)):
        level, kept = by_rows(turned)
        sparsity = Sparsity(order, (), (full(len(turned)), level))
        assert not sparsity.fault(matrix.shape)
        found = dense(kept, sparsity.places(matrix.shape), matrix.shape)
        np.testing.assert_array_equal(found, matrix)


def test_blocks():
    """Blocks of 2 x 3, of which each row of blocks keeps some."""
    rng = np.random.default_rng(0)
    blocks = (rng.random((3, 4)) < 0.5).astype(int)
    matrix = np.kron(blocks, np.ones((2, 3))) * rng.uniform(1, 2, (6, 12))
    level, _ = by_rows(blocks)
    kept = np.concatenate(
        [matrix[2 * r : 2 * r + 2, 3 * c : 3 * c + 3].ravel() for r, c in np.argwhere(blocks)]
    )
    sparsity = Sparsity((0, 1, 2, 3), (0, 1), (full(3), level, full(2), full(3)))
    assert not sparsity.fault((6, 12))
    found = dense(kept, sparsity.places((6, 12)), (6, 12))
    np.testing.assert_array_equal(found, matrix)


@pytest.mark.parametrize(
    ("order", "blocks", "levels", "dims", "said"),
    [
        ((0, 0), (), (full(2), full(3)), (2, 3), "in the order"),
        ((0, 1), (), (full(2),), (2, 3), "tells of 1 axes"),
        ((0, 1), (), (full(2), full(4)), (2, 3), "axis 1 has 4 places, not 3"),
        ((0, 1, 2), (1,), (full(2), full(1), full(2)), (2, 3), "blocks do not fill"),
        ((0,), (), (Level(0, np.array([0, 1]), np.array([5])),), (3,), "has others"),
        ((0,), (), (full(MOST_ELEMENTS + 1),), (MOST_ELEMENTS + 1,), "are allowed"),
    ],
)
def test_what_cannot_be(order, blocks, levels, dims, said):
    assert said in Sparsity(order, blocks, levels).fault(dims)


@pytest.mark.parametrize("segments", [[0, 1], [1, 1, 1], [0, 2, 1], [0, 1, 5]])
def test_segments_that_do_not_fit(segments):
    level = Level(0, np.array(segments), np.array([1]))
    sparsity = Sparsity((0, 1), (), (full(2), level))
    assert not sparsity.fault((2, 3))
    assert sparsity.count() is None


def test_what_is_kept_is_counted_before_anything_is_made(monkeypatch):
    """Dense axes claim a thousand million elements of a file that has one."""
    sparsity = Sparsity((0, 1), (), (full(1 << 15), full(1 << 15)))
    assert sparsity.count() == 1 << 30
    monkeypatch.setattr(Sparsity, "places", lambda *_: pytest.fail("places were made"))
    dims, data = (1 << 15, 1 << 15), memoryview(bytes(4))
    with pytest.raises(ModelFormatError, match="has 4 bytes, not 4294967296"):
        constant(Tensor(0, "w", dims, 0, data, None, False, sparsity))


def test_nothing_is_kept_along_an_empty_axis():
    sparsity = Sparsity((0, 1), (), (full(1 << 29), full(0)))
    assert sparsity.count() == sparsity.places((1 << 29, 0)).size == 0
