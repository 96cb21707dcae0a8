"""Checks of kernels that pick, place and mask elements; see ``kernel_checks``."""

from __future__ import annotations

import numpy as np

from partita_opencl.trials.sample import MICROSOFT, FamilyChecks, Sample

SELECTION_CHECKS = FamilyChecks()
"""By family."""

_family = SELECTION_CHECKS.family


@_family
def _indexing(s: Sample) -> None:
    x = s.feed("x", s.numbers(5, 6))
    picked = s.feed("picked", np.array([4, 0, -1, 2]))
    s.check("Gather", "x picked", x[picked.astype(int)])
    places = s.feed("places", s.random.integers(0, 5, (3, 6)))
    s.check("GatherElements", "x places", np.take_along_axis(x, places.astype(int), 0), axis=0)
    pairs = s.feed("pairs", np.array([[4, 0], [-1, 5], [2, -3]]))
    s.check("GatherND", "x pairs", x[tuple(pairs.astype(int).T)])
    backwards = x.copy()
    for column, length in enumerate(s.feed("lengths", np.array([0, 1, 5, 3, 4, 2])).astype(int)):
        backwards[:length, column] = x[:length, column][::-1]
    s.check("ReverseSequence", "x lengths", backwards)
    s.weight("table", s.random.integers(0, 256, (5, 16)).astype(np.uint8))
    scales = s.weight("scales", s.numbers(5, 1))
    numbers = np.stack([s.weights["table"] & 15, s.weights["table"] >> 4], -1).reshape(5, 32)
    expected = (scales * (numbers - 8.0))[picked.astype(int)]
    attrs = {"block_size": 32, "quantize_axis": 1, "gather_axis": 0, "bits": 4}
    s.check("GatherBlockQuantized", "table picked scales", expected, domain=MICROSOFT, **attrs)


@_family
def _scatter(s: Sample) -> None:
    x = s.feed("x", s.numbers(5, 6))
    s.feed("at", np.array([[4], [0], [1], [5], [2]]))
    spread = x.copy()
    np.put_along_axis(spread, s.feeds["at"], -1.0, 1)
    s.weight("minus", np.full((5, 1), -1, np.float32))
    s.check("ScatterElements", "x at minus", spread, axis=1)
    rows, starts = s.feed("rows", s.numbers(2, 3, 6)), s.feed("starts", np.array([2, 0]))
    past = s.feed("past", s.numbers(2, 5, 6))
    for batch, start in enumerate(starts.astype(int)):
        past[batch, start : start + 3] = rows[batch]
    s.check("TensorScatter", "past rows starts", past, axis=1)
    places = s.feed("places", np.array([[4, 0], [4, 0], [-1, 5]])).astype(int)
    s.weight("news", s.numbers(3))
    total = x.copy()
    np.add.at(total, tuple(places.T), s.weights["news"])
    s.check("ScatterND", "x places news", total, reduction="add")


@_family
def _masks(s: Sample) -> None:
    s.feed("indices", np.array([[2, -1], [4, 0]]))
    s.weight("depth", np.array([4]))
    s.weight("values", np.array([0.5, -2.0], np.float32))
    on = np.array([[[0, 0, 1, 0], [0, 0, 0, 1]], [[0, 0, 0, 0], [1, 0, 0, 0]]])
    s.check("OneHot", "indices depth values", np.where(on, -2.0, 0.5))
    x = s.feed("x", s.numbers(2, 5, 6))
    s.feed("diagonal", np.array(1))
    s.check("Trilu", "x diagonal", np.triu(x, 1))
    s.check("Trilu", "x", np.tril(x), upper=0)


@_family
def _scans(s: Sample) -> None:
    x = s.feed("x", s.numbers(3, 40, 5))
    s.weight("middle", np.array(1))
    s.check("CumSum", "x middle", x.cumsum(1))
    rows = s.feed("rows", s.numbers(3, 300))
    backwards = rows[:, ::-1].cumsum(1)[:, ::-1]
    s.check("CumSum", "rows middle", backwards - rows, exclusive=1, reverse=1)
