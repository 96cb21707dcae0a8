"""Agreeing on layouts: the writer's first that all readers take, and only inside the model."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partita.tensors.layout import MemoryLayout
from partita_hetero.compile.layout_negotiation import agree
from partita_hetero.partition.submodels import Submodel

A, B, C = (MemoryLayout(axes, np.dtype(np.float32)) for axes in ((0, 1), (1, 0), (0,)))


def submodel(number, reads, writes):
    return Submodel(number, "D", (number,), tuple(reads), tuple(writes))


def test_the_writers_first_layout_that_all_readers_take():
    submodels = [submodel(1, "x", "v"), submodel(2, "v", "a"), submodel(3, "v", "b")]
    offers = [({}, {"v": (A, B, C)}), ({"v": (C, B)}, {}), ({"v": (A, C, B)}, {})]
    assert agree(submodels, offers, {"a", "b"}) == {"v": B}


def test_one_reader_that_takes_plain_tensors_only():
    submodels = [submodel(1, "x", "v"), submodel(2, "v", "a"), submodel(3, "v", "b")]
    offers = [({}, {"v": (A,)}), ({"v": (A,)}, {}), ({}, {})]
    assert agree(submodels, offers, {"a", "b"}) == {}


def test_what_an_application_sees_stays_plain():
    submodels = [submodel(1, "x", "v"), submodel(2, "xv", "w")]
    offers = [({"x": (A,)}, {"v": (A,)}), ({"x": (A,), "v": (A,)}, {"w": (A,)})]
    assert agree(submodels, offers, {"w"}) == {"v": A}
    assert agree(submodels, offers, {"v", "w"}) == {}


LAYOUTS = st.lists(st.sampled_from([A, B, C]), unique=True, max_size=3).map(tuple)


@given(gives=LAYOUTS, takes=st.lists(LAYOUTS, min_size=1, max_size=4))
def test_against_brute_force(gives, takes):
    submodels = [
        submodel(1, "x", "v"),
        *(submodel(2 + i, "v", [f"o{i}"]) for i in range(len(takes))),
    ]
    offers = [({}, {"v": gives}), *(({"v": layouts}, {}) for layouts in takes)]
    common = set(gives).intersection(*map(set, takes))
    want = {"v": min(common, key=gives.index)} if common else {}
    assert agree(submodels, offers, {f"o{i}" for i in range(len(takes))}) == want
