"""Links: the fit, against closed forms and numpy's own least squares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita_hetero.cost.link_cost import SIZES, fit


@given(st.floats(0, 1e-3), st.floats(1e-12, 1e-8))
def test_what_fits_exactly_is_found(latency, per_byte):
    times = [latency + per_byte * size for size in SIZES]
    assert fit(SIZES, times) == (
        pytest.approx(latency, rel=1e-3, abs=1e-12),
        pytest.approx(per_byte, rel=1e-3),
    )


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_nothing_is_negative(times):
    latency, per_byte = fit(range(len(times)), times)
    assert latency >= 0
    assert per_byte >= 0


def test_large_tensors_do_not_drown_the_latency():
    noisy = [1.1e-5, 1.5e-5, 1.2e-4, 0.9e-3]
    latency, _ = fit(SIZES, noisy)
    unweighted = np.polyfit(SIZES, noisy, 1)[1]
    assert abs(latency - 1e-5) < abs(unweighted - 1e-5)


def test_no_latency():
    latency, per_byte = fit([1, 2, 3], [1e-6, 4e-6, 9e-6])
    assert latency == 0
    assert 1e-6 < per_byte < 3e-6
