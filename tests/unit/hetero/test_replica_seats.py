"""Which replica each request has, and what is left of replicas whose devices are gone."""

from __future__ import annotations

import sys

import pytest

from partita.contract.query import Reason, ReasonCode
from partita_hetero.compile.replicas import ReplicaBindings, ReplicaSet, replicas_name, replicated
from partita_hetero.placement.by_priority import Placement

BOTH = replicated(["A", "B", "C"])


def placed(*devices, wished=None):
    """Operations on devices, with what was wished for them."""
    preferred = {op: (device, BOTH) for op, device in enumerate(wished or devices)}
    return Placement(list(devices), [BOTH for _ in devices], [{} for _ in devices]), preferred


def seats(shares, count):
    found, taken = ReplicaBindings(), []
    for _ in range(count):
        taken.append(found.choose(shares))
        found.take(taken[-1])
    return taken


@pytest.mark.parametrize(
    ("shares", "due"),
    [
        ([1.0], [0, 0, 0]),
        ([0.5, 0.5], [0, 1, 0, 1]),
        ([0.48, 0.52], [1, 0, 1, 0, 1, 0]),
        ([0.25, 0.75], [1, 1, 0, 1, 1, 1, 0, 1]),
    ],
)
def test_new_requests_are_spread_by_shares(shares, due):
    assert seats(shares, len(due)) == due


def test_a_seat_that_is_left_is_taken_again():
    found = ReplicaBindings()
    for seat in (0, 1, 0, 1):
        found.take(seat)
    found.leave(1)
    assert found.choose([0.5, 0.5]) == 1


def test_a_request_that_is_collected_while_another_one_is_counted():
    """Python collects garbage behind what it calls."""
    found = ReplicaBindings()
    found.take(0)
    garbage = [0]

    def collect(frame, event, _):
        if event == "c_return" and frame.f_code is ReplicaBindings.take.__code__ and garbage:
            found.leave(garbage.pop())

    sys.setprofile(collect)
    try:
        found.take(0)
    finally:
        sys.setprofile(None)
    for seat in garbage:
        found.leave(seat)
    assert found.choose([0.7, 0.3]) == 0  # of two that were taken one was left


def test_a_replica_that_lost_its_device_leaves_its_seats_to_the_others_in_turn():
    replica_set = ReplicaSet.of(
        [placed("A", "A"), placed("B", "A", wished="BB"), placed("C", "C")], [0.5, 0.25, 0.25]
    )
    assert [one.device for one in replica_set.placements] == [["A", "A"], ["C", "C"]]
    assert (replica_set.seats, replica_set.shares) == ([0, 0, 1], [0.5, 0.25, 0.25])
    assert replica_set.placements[1].reason == [replicated(["A", "C"])] * 2


def test_the_last_replica_says_that_it_is_the_last():
    replica_set = ReplicaSet.of([placed("A", wished="B"), placed("C")], [0.5, 0.5])
    assert [one.device for one in replica_set.placements] == [["C"]]
    assert replica_set.seats == [0, 0]
    assert replica_set.placements[0].reason[0].detail.endswith("are gone")


def test_without_any_the_first_stands_for_all():
    replica_set = ReplicaSet.of([placed("D", wished="A"), placed("D", wished="B")], [0.5, 0.5])
    assert [one.device for one in replica_set.placements] == [["D"]]


def test_other_reasons_stay():
    pinned = Reason(ReasonCode.PINNED, "a pin")
    both = [
        (Placement([device, "D"], [BOTH, pinned], [{}, {}]), {0: (device, BOTH)}) for device in "AB"
    ]
    replica_set = ReplicaSet.of(both, [0.5, 0.5])
    assert [one.reason for one in replica_set.placements] == [[replicated(["A", "B"]), pinned]] * 2
    assert (
        replicas_name([one.device for one in replica_set.placements]) == "replicas on A, B with D"
    )
