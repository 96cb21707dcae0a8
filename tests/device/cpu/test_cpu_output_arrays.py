"""Spans of memory: those that overlap are found as by comparing each with each."""

from __future__ import annotations

import numpy as np
import pytest

from partita_cpu.runtime.output_arrays import Spans, span_of


@pytest.mark.parametrize("seed", range(20))
def test_they_are_found_as_by_comparing_all(seed):
    rng = np.random.default_rng(seed)
    block = np.zeros(400, np.uint8)

    def piece():
        at = int(rng.integers(0, 380))
        return block[at : at + int(rng.integers(0, rng.choice([2, 20, 300])))]

    arrays = [piece() for _ in range(30)]
    spans = Spans(arrays)
    for _ in range(50):
        one = piece()
        found = {index for _, _, index in spans.overlapping(*span_of(one))}
        assert found == {i for i, other in enumerate(arrays) if np.shares_memory(one, other)}


def test_of_no_arrays_none_overlaps():
    assert Spans([]).overlapping(0, 1 << 40) == []
