"""Which of the placements that raced is kept."""

from __future__ import annotations

import pytest

from partita_hetero.compile.replicas import ReplicaSet
from partita_hetero.placement.by_priority import Placement
from partita_hetero.tuning.contestant import PLAN, Entry, best


def entry(name, times):
    return Entry(name, ReplicaSet.single(Placement([], [], [])), times=times)


@pytest.mark.parametrize(
    ("plan", "kept"),
    [
        ([80] * 8, PLAN),
        ([99.5] * 8, "only A"),  # within the margin
        ([80] * 6 + [120] * 2, PLAN),
        ([80] * 5 + [120] * 3, "only A"),  # a faster median, in too few rounds
        ([120] * 3, "only A"),
    ],
)
def test_a_plan_must_be_surely_faster(plan, kept):
    assert best([entry("only A", [100] * 8), entry(PLAN, plan)]).name == kept


@pytest.mark.parametrize(("late", "kept"), [(60, PLAN), (99.5, "only A")])
def test_rounds_before_one_dropped_out_may_have_been_slow(late, kept):
    plan = entry(PLAN, [200, 150, *[late] * 6])
    assert best([entry("only A", [100] * 3), plan]).name == kept


def test_of_several_plans_the_fastest_that_is_sure():
    doubtful = entry(PLAN, [60] * 5 + [120] * 3)
    sure = entry(PLAN, [80] * 8)
    simple = [entry("priority", [130] * 8), entry("only A", [100] * 8)]
    assert best([*simple, doubtful, sure]) is sure
    assert best([*simple, doubtful]).name == "only A"


def test_without_anything_simpler_a_plan_is_kept():
    plan = entry(PLAN, [80])
    assert best([plan, entry("only A", [])]) is plan
    assert best([]) is None
