"""What suite ``lives`` is made of: steps in which levels meet, arrays that are watched, numbers."""

from __future__ import annotations

import itertools
import random
import sys

import numpy as np
import pytest

from partita.tensors.sequence_values import boxed
from partita_conformance.judging.requirements import ConformanceError
from partita_conformance.suites.lives import code_numbers, suite_lives
from partita_conformance.suites.lives.dimensions import DIMENSIONS, Planner
from partita_conformance.suites.lives.lending import Lent, edges_hold, in_one_block, target
from partita_conformance.suites.lives.monitor import Monitor, silence

MANNERS = DIMENSIONS["inputs"]


def test_any_two_levels_meet_in_the_steps_of_all_lives():
    met, followed = set(), set()
    for steps in suite_lives.plans():
        for step in steps:
            met |= set(itertools.permutations(step.levels.items(), 2))
        for one, other in itertools.pairwise(steps):
            followed |= set(itertools.product(one.levels.items(), other.levels.items()))
    levels = [(d, level) for d, levels in DIMENSIONS.items() for level in levels]
    pairs = [(a, b) for a, b in itertools.permutations(levels, 2) if a[0] != b[0]]
    assert len(met) > 0.99 * len(pairs)
    assert len(followed) > 0.97 * len(levels) ** 2


def test_the_same_steps_are_drawn_each_time():
    one, other = (list(Planner(3).steps(20, DIMENSIONS)) for _ in range(2))
    assert one == other
    assert one != list(Planner(4).steps(20, DIMENSIONS))


@pytest.mark.parametrize("manner", MANNERS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (0, 4), (3, 1, 2)])
def test_arrays_lent_in_any_manner_hold_what_they_are_to_hold(manner, shape):
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), np.float32)
    lent = Lent(array, manner, random.Random(0))
    assert np.array_equal(lent.array, array)
    assert lent.array.shape == shape
    given = lent.given.numpy() if manner == "tensors" else np.asarray(lent.given, np.float32)
    assert np.array_equal(given, array)
    assert lent.fault() is None


@pytest.mark.parametrize("manner", ["new", "at an offset", "strided", "reversed", "unaligned"])
def test_what_is_written_to_an_input_or_beside_it_is_seen(manner):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    lent = Lent(array, manner, random.Random(0))
    lent.array[1, 1] = -4
    assert "written" in lent.fault()
    lent.hold()
    lent.blocks[0][5] ^= 1
    assert "written" in lent.fault()
    lent.hold()
    lent.array.flags.writeable = False
    assert "form" in lent.fault()


def test_items_of_sequences_are_watched():
    lent = Lent(boxed([np.zeros(2), np.zeros(3)]), "new", random.Random(0))
    assert lent.fault() is None
    lent.given[()][1][0] = 1
    assert "written" in lent.fault()


def test_arrays_of_one_block_touch_each_other():
    one, other = (
        lent.array for lent in in_one_block([np.zeros(3, np.uint8), np.ones(2, np.uint8)])
    )
    assert other.ctypes.data == one.ctypes.data + 3
    assert one.tolist() == [0, 0, 0]
    assert other.tolist() == [1, 1]


def test_what_is_written_beside_a_target_is_seen():
    array = target(np.zeros((2, 3), np.float32), 1)
    array[...] = 7
    assert edges_hold(array)
    np.frombuffer(array.base, np.uint8)[0] = 0
    assert not edges_hold(array)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: np.seterr(over="raise"), "floating-point"),
        (lambda: random.seed(1), "random"),
        (lambda: setattr(np, "add", np.subtract), "functions of libraries"),
    ],
)
def test_changes_of_the_process_are_seen(change, said):
    usual, added, drawn = np.geterr(), np.add, random.getstate()
    try:
        with pytest.raises(ConformanceError, match=said), Monitor().step():
            change()
    finally:
        np.seterr(**usual)
        np.add = added
        random.setstate(drawn)


def test_what_is_printed_is_seen():
    with pytest.raises(ConformanceError, match="standard output"), silence():
        sys.stdout.write("hello")


def counted(array):
    """Code with numbers in it."""
    return array.size > 4321 and array.nbytes in (77, 88)


def test_numbers_of_code_that_runs_are_found():
    found = code_numbers.numbers_in(lambda: counted(np.zeros(2)), frozenset(["test_lives"]), ())
    assert {4321, 77, 88} <= set(found)
    assert code_numbers.numbers_in(lambda: counted(np.zeros(2)), frozenset(["other"]), ()) == []
