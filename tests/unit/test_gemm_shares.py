"""How threads share the tiles of a product."""

import itertools

import numpy as np
import pytest

from partita_cpu.gemm.shares import own_share, shares_across


@pytest.mark.parametrize("threads", [1, 2, 3, 5, 7, 16, 64])
@pytest.mark.parametrize(("down", "across"), [(1, 1), (4, 24), (7, 16), (49, 3), (1, 40), (0, 5)])
def test_every_tile_has_one_owner(threads, down, across):
    planned = shares_across(down, across, threads, 1.0)
    for there in {1, threads, max(1, threads - 1)}:
        owners = np.zeros((down, across), int)
        for tid in range(there):
            top, bottom, first, last = own_share(planned, tid, there, down, across)
            owners[top:bottom, first:last] += 1
        assert (owners == 1).all()


def test_no_thread_waits_long_where_a_grid_is_even():
    """A Transformer's 128 tokens are four rows of tiles, so rows alone keep only four busy."""
    shares = shares_across(4, 24, 16, 3.0)
    spans = [own_share(shares, tid, 16, 4, 24) for tid in range(16)]
    work = [(bottom - top) * (last - first) for top, bottom, first, last in spans]
    assert max(work) == min(work) == 6


def test_heavier_weights_are_read_by_fewer():
    light, heavy = (shares_across(64, 64, 8, weight) for weight in (0.01, 100.0))
    assert (light, heavy) == (1, 8)


def test_laying_rows_out_is_not_shared_across():
    choices = [shares_across(8, 8, 8, 1.0, copy_cost=cost) for cost in (0.0, 10.0)]
    assert choices[1] == 1 <= choices[0]


@pytest.mark.parametrize("count", range(1, 20))
def test_shares_are_never_more_than_threads(count):
    for down, across in itertools.product((1, 2, 9), repeat=2):
        assert 1 <= shares_across(down, across, count, 1.0) <= count


def test_threads_keep_their_rows_where_weights_are_fetched_meanwhile():
    """Unless some would have much more to do than others."""
    heavy = (10, 96, 2, 10.0)
    assert shares_across(*heavy) == 2
    assert shares_across(*heavy, enough=5) == 1
    assert shares_across(*heavy, enough=6) == 2
    assert shares_across(3, 96, 2, 10.0, enough=1) == 2
