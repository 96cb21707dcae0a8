"""The partitioner: valid for any graph and any affinity, few subgraphs, named difficult cases."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sampling import examples

from partita_hetero.partition.partitioner import Subgraph, changes_to_end, partition


def wire(count, edges):
    preds = [[] for _ in range(count)]
    succs = [[] for _ in range(count)]
    for source, target in dict.fromkeys(edges):
        preds[target].append(source)
        succs[source].append(target)
    return preds, succs


def check(preds, affinity, subgraphs):
    """Each operation once, on its device, and every subgraph runs after all that it reads from."""
    kept = [op for op, device in enumerate(affinity) if device is not None]
    assert sorted(op for subgraph in subgraphs for op in subgraph.ops) == kept
    position = {op: index for index, subgraph in enumerate(subgraphs) for op in subgraph.ops}
    for index, subgraph in enumerate(subgraphs):
        assert subgraph.ops == tuple(sorted(subgraph.ops))
        for op in subgraph.ops:
            assert affinity[op] == subgraph.device
            for pred in preds[op]:
                if affinity[pred] is not None:
                    assert position[pred] <= index


@st.composite
def placed_graphs(draw):
    count = draw(st.integers(1, 40))
    edges = [
        (draw(st.integers(0, target - 1)), target)
        for target in range(1, count)
        for _ in range(draw(st.integers(0, 3)))
    ]
    devices = draw(st.sampled_from(["AB", "ABC", "ABCDE"]))
    affinity = draw(st.lists(st.sampled_from(devices), min_size=count, max_size=count))
    return count, edges, affinity


@examples(300)
@given(placed_graphs(), st.booleans())
def test_any_affinity_gives_parts_that_can_run_in_order(graph, merge_islands):
    count, edges, affinity = graph
    preds, succs = wire(count, edges)
    check(preds, affinity, partition(preds, succs, affinity, merge_islands))


@examples(200)
@given(placed_graphs())
def test_never_fewer_parts_than_the_longest_alternation(graph):
    count, edges, affinity = graph
    preds, succs = wire(count, edges)
    subgraphs = partition(preds, succs, affinity)
    assert len(subgraphs) >= 1 + max(changes_to_end(succs, affinity))


def ways(preds, subgraphs):
    """For each subgraph those that read from it."""
    home = {op: index for index, subgraph in enumerate(subgraphs) for op in subgraph.ops}
    readers = [set() for _ in subgraphs]
    for op, sources in enumerate(preds):
        for source in sources:
            if op in home and source in home and home[op] != home[source]:
                readers[home[source]].add(home[op])
    return readers


def leads_through_others(readers, first, last):
    """Whether a third subgraph must run after the first and before the last."""
    seen, stack = set(), [subgraph for subgraph in readers[first] if subgraph != last]
    while stack:
        subgraph = stack.pop()
        if last in readers[subgraph]:
            return True
        if subgraph not in seen:
            seen.add(subgraph)
            stack += readers[subgraph]
    return False


@examples(400)
@given(placed_graphs())
def test_no_two_parts_are_left_that_could_be_one(graph):
    count, edges, affinity = graph
    preds, succs = wire(count, edges)
    subgraphs = partition(preds, succs, affinity)
    readers = ways(preds, subgraphs)
    for last in range(len(subgraphs)):
        for first in range(last):
            if subgraphs[first].device == subgraphs[last].device:
                assert leads_through_others(readers, first, last), (
                    subgraphs[first],
                    subgraphs[last],
                )


def fewest_parts(preds, affinity):
    """Breadth-first search over sets of operations done; only for tiny graphs."""
    count = len(preds)
    frontier, seen, steps = {frozenset()}, set(), 0
    while frozenset(range(count)) not in frontier:
        steps += 1
        seen |= frontier
        following = set()
        for done in frontier:
            for device in set(affinity):
                now = set(done)
                grown = True
                while grown:
                    ready = {
                        op
                        for op in range(count)
                        if op not in now and affinity[op] == device and set(preds[op]) <= now
                    }
                    grown = bool(ready)
                    now |= ready
                following.add(frozenset(now))
        frontier = following - seen
    return steps


@examples(150)
@given(
    st.integers(1, 9).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(
                st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(
                    lambda e: e[0] < e[1]
                ),
                max_size=14,
            ),
            st.lists(st.sampled_from("AB"), min_size=n, max_size=n),
        )
    )
)
def test_two_devices_get_the_fewest_parts_possible(graph):
    count, edges, affinity = graph
    preds, succs = wire(count, edges)
    assert len(partition(preds, succs, affinity)) == fewest_parts(preds, affinity)


NAMED = {
    # name: (edges, affinity, number of subgraphs)
    "chain A-B-A-B": ([(0, 1), (1, 2), (2, 3)], "ABAB", 4),
    "nested re-entry with a skip": ([(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)], "ABABA", 5),
    "diamond of one device round another": ([(0, 1), (0, 2), (1, 3), (2, 3)], "ABAA", 3),
    "cycle through three devices": ([(0, 1), (1, 2), (2, 3), (0, 3)], "ABCA", 4),
    "independent islands": ([(0, 1), (2, 3)], "AABB", 2),
    "islands of one device": ([], "AAA", 1),
    "late join": ([(1, 2), (0, 2)], "ABA", 2),
    "two cuts that would form a cycle": ([(0, 1), (2, 3)], "ABBA", 3),
    "cycles through four devices": (
        [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (0, 4), (1, 5), (2, 6)],
        "ABCDABCD",
        8,
    ),
    "one output to two subgraphs of one device": ([(0, 1), (0, 2), (1, 3), (3, 2)], "ABBC", 4),
    "one output to two subgraphs that can be one": ([(0, 1), (0, 2), (1, 3), (2, 3)], "ABBA", 3),
    "subgraphs between which others run that do not matter": ([(0, 1), (2, 3)], "ABCA", 3),
    "a ladder of two devices": (
        [(0, 2), (1, 3), (2, 4), (3, 5), (0, 3), (1, 2), (2, 5), (3, 4)],
        "ABABAB",
        4,
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_case(name):
    edges, affinity, expected = NAMED[name]
    preds, succs = wire(len(affinity), edges)
    subgraphs = partition(preds, succs, list(affinity))
    check(preds, list(affinity), subgraphs)
    assert len(subgraphs) == expected


def test_parts_that_run_at_the_same_time_hand_over_early():
    preds, succs = wire(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    subgraphs = partition(preds, succs, list("AABA"), merge_islands=False)
    check(preds, list("AABA"), subgraphs)
    # 2 waits for 0 only, so 0 and 1 are apart although they are neighbours on one device.
    assert subgraphs == [
        Subgraph("A", (0,)),
        Subgraph("A", (1,)),
        Subgraph("B", (2,)),
        Subgraph("A", (3,)),
    ]


def test_parts_that_run_at_the_same_time_are_connected():
    preds, succs = wire(4, [(0, 1), (2, 3)])
    separate = partition(preds, succs, list("AAAA"), merge_islands=False)
    assert separate == [Subgraph("A", (0, 1)), Subgraph("A", (2, 3))]


def test_branches_of_one_device_between_the_same_parts_are_one_part():
    """0 forks into four branches, which 5 joins: one subgraph for each device's branches."""
    edges = [(0, branch) for branch in range(1, 5)] + [(branch, 5) for branch in range(1, 5)]
    preds, succs = wire(6, edges)
    subgraphs = partition(preds, succs, list("AABABA"), merge_islands=False)
    check(preds, list("AABABA"), subgraphs)
    assert subgraphs == [
        Subgraph("A", (0,)),
        Subgraph("A", (1, 3)),
        Subgraph("B", (2, 4)),
        Subgraph("A", (5,)),
    ]
    # A branch that something else waits for stays by itself.
    preds, succs = wire(7, [*edges, (3, 6)])
    subgraphs = partition(preds, succs, list("AABABAB"), merge_islands=False)
    check(preds, list("AABABAB"), subgraphs)
    assert Subgraph("A", (1,)) in subgraphs
    assert Subgraph("A", (3,)) in subgraphs


def test_operations_without_a_device_are_left_out():
    preds, succs = wire(3, [(0, 1), (1, 2)])
    assert partition(preds, succs, [None, "A", "A"]) == [Subgraph("A", (1, 2))]


def test_the_same_operation_read_twice():
    preds, succs = wire(2, [(0, 1), (0, 1)])
    check(preds, list("AB"), partition(preds, succs, list("AB")))


def test_a_hundred_thousand_operations_need_no_recursion():
    count = 100_000
    preds, succs = wire(count, [(i, i + 1) for i in range(count - 1)])
    affinity = ["AB"[i // 7 % 2] for i in range(count)]
    assert len(partition(preds, succs, affinity)) == -(-count // 7)
