"""Sizes that stand for others: what is computed of them, and decided by them, is repeated."""

import functools
import math
import operator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import OperandError
from partita.lowering.geometry.axes import copied_if_0
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.graph import Node
from partita.lowering.program import Operand
from partita.lowering.shapes.symbolic_size import (
    Recording,
    Size,
    always_equal,
    evaluated,
    found_equal,
    highest,
    holds_sizes,
    never_less,
    settled,
)

OPERATORS = [operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
SMALL = st.integers(1, 12)


@st.composite
def expressions(draw):
    """A function of two numbers that computes and decides at random."""
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from([*OPERATORS, *COMPARISONS, min, max, "number", "range"]),
                st.integers(0, 99),
                st.integers(0, 99),
            ),
            min_size=1,
            max_size=12,
        )
    )

    def compute(x, z):
        numbers = [x, z, 3, 1]
        for fn, first, second in steps:
            one, other = numbers[first % len(numbers)], numbers[second % len(numbers)]
            if fn == "number":
                numbers.append(int(one) + other)
            elif fn == "range":
                numbers.append(len(range(one)) * other)
            elif fn in COMPARISONS:
                numbers.append(one + 7 if fn(one, other) else other)
            else:
                numbers.append(fn(one, other))
        return numbers

    return compute


@given(expressions(), SMALL, SMALL, SMALL, SMALL)
def test_what_is_repeated_is_what_would_be_computed(compute, x, z, other_x, other_z):
    recording = Recording()
    try:
        symbolic = compute(recording.size(x), recording.size(z))
        plain = compute(x, z)
    except ZeroDivisionError:
        return
    assert [n.value if isinstance(n, Size) else n for n in symbolic] == plain
    numbers = recording.repeat([other_x, other_z])
    kept = [n.place for n in symbolic if isinstance(n, Size)]
    recording.close(for_good=True)  # drops what none of these needs
    again = recording.repeat([other_x, other_z])
    assert (again is None) is (numbers is None)
    if numbers is not None and again is not None:
        assert [again[place] for place in kept] == [numbers[place] for place in kept]
        repeated = [numbers[n.place] if isinstance(n, Size) else n for n in symbolic]
        assert repeated == compute(other_x, other_z)
    assert recording.repeat([x, z]) is not None


@pytest.mark.parametrize(
    "use",
    [
        int,
        str,
        "{:3}".format,
        float,
        range,
        operator.index,
        math.sqrt,
        np.zeros,
        lambda n: n * 0.5,
        lambda n: 1 / n,
    ],
)
def test_who_takes_the_number_decides_that_it_is_this_one(use):
    recording = Recording()
    use(recording.size(4) + 1)
    assert recording.repeat([4]) is not None
    assert recording.repeat([5]) is None


def test_decisions_hold_for_others_that_decide_so_and_equal_sizes_need_none():
    recording = Recording()
    x, z = recording.size(4), recording.size(4)
    assert x == x  # the same size is the same for all
    assert recording.repeat([5, 6]) is not None
    assert (x, 3) == (z, 3)
    assert recording.repeat([6, 6]) is not None
    assert recording.repeat([5, 6]) is None
    assert not x < 2
    assert recording.repeat([1, 1]) is None


def test_expressions_that_are_equal_for_all_sizes_are_one():
    recording = Recording()
    x, z = recording.size(8), recording.size(5)
    same = (x + 2 - 3) // 1 + 1  # what a convolution of three taps makes of it
    assert same.place == x.place
    assert (4 * x * z).place == (z * (x * 4)).place == ((x + x) * z * 2).place
    assert (x + z + 1 - 3).place == (z - 2 + x).place
    assert ((64 * x * z + 3) // 64).place == (x * z).place
    assert ((x + 7) // 2).place == ((x + 1) // 2 + 3).place
    assert (x - x, (6 * x + 4) % 3, x * 0) == (0, 1, 0)  # numbers
    assert recording.repeat([100, 1000]) is not None  # nothing was decided


def test_comparisons_with_numbers_are_bounds_of_what_the_sizes_are_computed_from():
    recording = Recording()
    x = recording.size(20)
    half = (x - 1) // 2 + 1
    quarter = (half - 1) // 2 + 1
    for decided in (quarter > 2, half != 3, quarter >= 0, x < 100, half != -1):
        assert decided
    assert [n for n in range(200) if recording.repeat([n]) is not None] == [*range(9, 100)]
    assert quarter == 5
    assert [n for n in range(200) if recording.repeat([n]) is not None] == [17, 18, 19, 20]


def test_products_that_cannot_be_less_decide_nothing():
    recording = Recording()
    x, z = recording.size(3), recording.size(2)
    assert x * z >= 0
    assert recording.repeat([0, 0]) is not None
    assert x >= 1
    assert z >= 2
    assert x * z > 1
    assert recording.repeat([1, 2]) is not None
    assert recording.repeat([1, 1]) is None


def test_the_highest_is_recorded_of_those_that_can_be_it():
    recording = Recording()
    x, z = recording.size(3), recording.size(2)
    assert highest(x, 2 * x + 1, x + 1).place == (2 * x + 1).place
    assert never_less(x + z, x + z - 1) and not never_less(x + z, x + 1)
    assert never_less(x * z, -1) and not never_less(x, 1)
    top = highest(x, z, x + 1)
    assert top.value == 4
    assert recording.repeat([3, 9])[top.place] == 9
    assert (highest(3, 8, 5), never_less(3, 3), never_less(2, 3)) == (8, True, False)


def test_what_nobody_asked_for_is_no_more_computed_after_the_end():
    recording = Recording()
    x = recording.size(4)
    calls = []
    other = evaluated(lambda n: calls.append(n) or n, x)
    kept = evaluated(max, x, 5).place
    recording.close(for_good=True)
    assert recording.repeat([9])[kept] == 9
    assert calls == [4]
    with pytest.raises(RuntimeError, match="asked for after its recording has ended"):
        _ = other.place


def test_a_division_by_a_size_of_none_is_another_case():
    recording = Recording()
    assert (100 // recording.size(4)).value == 25
    assert recording.repeat([0]) is None


def test_arrays_of_sizes_are_computed_element_by_element():
    recording = Recording()
    x = recording.size(4)
    product = np.concatenate([np.array([x], object), np.array([2, 3])]).prod() - np.int64(1)
    assert product.value == 23
    assert recording.repeat([10])[product.place] == 59


def test_a_size_is_no_key():
    """What others find under the number would be right for this size alone."""
    with pytest.raises(TypeError, match="not a key"):
        {Recording().size(4): 1}


def test_functions_are_evaluated_again_and_decide_nothing():
    recording = Recording()
    x, z = recording.size(4), recording.size(9)
    larger = evaluated(max, x, 2 * z, 5)
    assert evaluated(max, x, 2 * z, 5).place == larger.place
    assert (larger.value, evaluated(max, 3, 5)) == (18, 5)
    assert recording.repeat([30, 1])[larger.place] == 30
    assert settled(evaluated(min, x, 3)) == 3
    assert recording.repeat([30, 1]) is not None
    assert recording.repeat([2, 1]) is None


def test_sizes_of_which_decisions_leave_one_number_are_told():
    recording = Recording()
    batch, channels, width = recording.size(1), recording.size(8), recording.size(5)
    assert channels * 2 == 16
    assert width >= 5
    assert recording.settled_inputs() == [1]
    recording.close()
    fork = recording.fork(recording.repeat([1, 8, 7]))
    first, _, third = fork.inputs(fork.sizes())
    assert int(third) == 7
    assert not first > 1
    assert fork.settled_inputs() == [1, 2]
    assert not first < 1
    assert fork.settled_inputs() == [0, 1, 2]
    assert batch.value == 1


def test_a_fork_goes_on_with_what_was_found_out_for_other_sizes():
    recording = Recording()
    double = recording.size(4) * 2
    recording.close()
    numbers = recording.repeat([5])
    fork = recording.fork(numbers)
    sizes = fork.sizes()
    (given,) = fork.inputs(sizes)
    assert (given.value, sizes[double.place].value) == (5, 10)
    assert (given * 2).place == double.place
    more = sizes[double.place] + 1
    assert more > 6
    fork.close()
    assert not fork.exact
    assert fork.go_on(recording.repeat([7]))[more.place] == 15
    assert fork.go_on(recording.repeat([2])) is None
    assert len(recording.repeat([7])) < fork.count


def test_sizes_are_found_wherever_they_are_held():
    size = Recording().size(4)

    def closes_over():
        return size

    @dataclass
    class Fields:
        inside: object

    called = closes_over, functools.partial(max, size)
    for held in ([1, (size,)], {"a": size}, *called, Fields(size)):
        assert holds_sizes(held)
    assert holds_sizes(np.array([1, size], object))
    for free in (3, "a", [1, {"b": 2.0}], len, np.ones(3), Fields(None), lambda: 1):
        assert not holds_sizes(free)


def test_nothing_is_decided_after_the_end():
    recording = Recording()
    x = recording.size(4)
    recording.close()
    for use in (int, bool, lambda n: n + 1, lambda n: n == 4):
        with pytest.raises(RuntimeError, match="after its recording has ended"):
            use(x)


def test_quotients_of_products_lose_the_factors_of_both():
    recording = Recording()
    n, h, w = (recording.size(size) for size in (2, 5, 7))
    assert type(n * h * w * 32 // (w * h * n)) is int
    assert n * h * w * 32 // (w * h * n) == 32
    rest = (n * h * w * 6) // (h * w * 2)
    assert rest.at == (n * 3).at
    inexact = (n * h * 7) // (h * 2)
    recording.close()
    found = recording.repeat([3, 4, 9])
    assert (found[rest.place], found[inexact.place]) == (9, 10)
    for sizes in ([0, 4, 9], [3, 0, 9], [3, 4, 0]):  # there is no quotient
        assert recording.repeat(sizes) is None


def test_a_quotient_by_nothing_is_an_error_whatever_is_divided():
    recording = Recording()
    n, h = recording.size(2), recording.size(0)
    with pytest.raises(ZeroDivisionError):
        n * h // h


def test_whether_a_box_moves_along_an_axis_is_no_decision():
    recording = Recording()
    n, w = recording.size(4), recording.size(7)
    shape = n, w
    assert 0 not in shape
    Box(Operand(shape, np.dtype(np.float32)), strides_of(shape)).check(Node("", (), ()), shape)
    recording.close()
    assert all(recording.repeat(sizes) is not None for sizes in ([1, 7], [4, 1], [1, 1], [9, 9]))


def test_what_is_merely_faster_is_a_decision_only_where_it_is_so():
    recording = Recording()
    x, z = recording.size(4), recording.size(1)
    assert not found_equal(x, 1) and found_equal(x + z, z + x) and found_equal(z, 1)
    assert (found_equal(3, 3), found_equal(3, 4)) == (True, False)
    other = recording.fork(recording.repeat([9, 1]))
    recording.close()
    assert recording.repeat([1, 1]) is not None  # that x is not 1 serves this, too
    assert recording.repeat([4, 2]) is None
    other.varied = True
    x = other.sizes()[0]
    assert not found_equal(x, 9)


def test_boxes_of_none_are_no_decision_once_sizes_have_varied():
    recording = Recording()
    recording.varied = True
    n = recording.size(2)
    shape = n, 3
    Box(Operand(shape, np.dtype(np.float32)), strides_of(shape)).check(Node("", (), ()), shape)
    other = recording.fork(recording.repeat([2]))
    Box(Operand(shape, np.dtype(np.float32)), strides_of(shape), 3).check(Node("", (), ()), (1, 3))
    recording.close()
    assert recording.repeat([0]) is None  # the last box would reach beyond that
    assert recording.repeat([5]) is not None
    assert other.go_on(recording.repeat([2])) is not None


@given(
    *[st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 4), st.integers(0, 4))] * 2,
    st.tuples(st.integers(-3, 5), st.integers(-3, 5)),
)
def test_boxes_of_other_sizes_are_refused_as_those_of_numbers(now, later, strides):
    def refuses(elements, start, rows, columns):
        tensor = Operand((elements,), np.dtype(np.float32))
        try:
            Box(tensor, strides, start).check(Node("", (), ()), (rows, columns))
        except OperandError:
            return True
        return False

    def is_outside(elements, start, rows, columns):
        places = [
            start + r * strides[0] + c * strides[1] for r in range(rows) for c in range(columns)
        ]
        return any(not 0 <= place < elements for place in places)

    recording = Recording()
    recording.varied = True
    assert refuses(*map(recording.size, now)) == is_outside(*now)
    assert (recording.repeat(later) is not None) == (is_outside(*later) == is_outside(*now))


def test_a_reshape_to_none_is_a_decision_in_the_first_class_alone():
    for varied, now in ((False, 0), (True, 0), (True, 2), (False, 2)):
        recording = Recording()
        recording.varied = varied
        n, own = recording.size(now), recording.size(7)
        sizes = [copied_if_0(n, (own,), 0), copied_if_0(own, (own,), 0)]
        places = [size.place for size in sizes]
        recording.close()
        for other in (0, 5):
            values = recording.repeat([other, 8])
            fits = (varied and not now) or bool(other) == bool(now)
            assert (values is not None) == fits
            if values is not None:
                assert [values[place] for place in places] == [other or 8, 8]


def test_decisions_come_before_what_only_a_program_needs():
    """And those by arithmetic before those by functions."""
    recording = Recording()
    x = recording.size(4)
    calls = []
    _ = evaluated(lambda n: calls.append(("asked", n)) or n, x).place
    assert evaluated(lambda n: calls.append(("decides", n)) or n % 5, x) > 2
    assert x * x > 10
    recording.close(for_good=True)
    calls.clear()
    assert recording.repeat([2]) is None and calls == []
    assert recording.repeat([6]) is None and calls == [("decides", 6)]
    assert recording.repeat([8]) is not None
    assert calls[1:] == [("decides", 8), ("asked", 8)]


def test_what_was_decided_to_be_equal_is_one_from_then_on():
    recording = Recording()
    n, m, s = recording.size(4), recording.size(4), recording.size(7)
    before = n * s, m * s
    assert n + 3 == m + 3
    assert always_equal(n, m) and always_equal(m * 5 + 1, n * 5 + 1) and always_equal(*before)
    assert m > 2 and never_less(n, 3)
    places = [(m * s + 1).place, (n * s + 1).place]
    assert places[0] == places[1]
    apart = recording.size(9)
    assert apart == n + 5
    assert always_equal(apart * 2, n * 2 + 10) and never_less(apart, 8)
    other = recording.fork(recording.repeat([6, 6, 2, 11]))
    recording.close()
    assert recording.repeat([6, 6, 2, 11])[places[0]] == 13
    assert recording.repeat([6, 5, 2, 11]) is None
    assert recording.repeat([6, 6, 2, 12]) is None
    assert recording.repeat([2, 2, 2, 7]) is None
    n, m, _, apart = other.inputs(other.sizes())
    assert always_equal(n, m) and always_equal(apart, m + 5)
    assert n == 6 and other.settled_inputs() == [0, 1, 3]
