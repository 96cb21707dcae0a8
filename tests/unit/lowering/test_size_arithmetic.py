"""Arithmetic of sizes as tables of integers: what Python computes of the same recordings."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.lowering.shapes.size_arithmetic import TOLD, Code, Numbers, Outcome
from partita.lowering.shapes.symbolic_size import Recording, evaluated
from partita_cpu.jit.dispatch import available
from partita_cpu.runtime.size_evaluator import evaluator_of

FUNCTIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
DECISIONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def plain(steps, count):
    """An evaluator in Python, as devices without machine code might have it."""
    of_two = (*FUNCTIONS, max, min)

    def evaluate(integers):
        outcome = Outcome.AS_BEFORE
        for code, target, left, right in steps.reshape(-1, 4).tolist():
            x, z = integers.item(left), integers.item(right)
            if code >= TOLD:
                integers[target] = DECISIONS[code - TOLD - Code.LT](x, z)
            elif code < Code.LT:
                if of_two[code] in (operator.floordiv, operator.mod) and not z:
                    outcome = Outcome.OTHERWISE
                    break
                found = of_two[code](x, z)
                if abs(found) >= 1 << 62:
                    outcome = Outcome.TOO_LARGE
                    break
                integers[target] = found
            else:
                is_so = (
                    x >= z and x <= integers.item(right + 1)
                    if code == Code.WITHIN
                    else DECISIONS[code - Code.LT](x, z)
                )
                if is_so != bool(target):
                    outcome = Outcome.OTHERWISE
                    break
        integers[-1] = outcome
        return integers.item(-1)

    assert steps.dtype == np.int64 and count
    return evaluate


EVALUATORS = [plain, *([evaluator_of] if available() else [])]


def many(*numbers):
    return sum(numbers) // 2


def halves(n):
    return n / 2


def traced(recording, sizes, program):
    """Sizes, what a program computes of them, and what it decides."""
    values = [*map(recording.integer, sizes)]
    for kind, which, left, right in program:
        x, z = values[left % len(values)], values[right % len(values)]
        try:
            if kind == 0:
                values.append(FUNCTIONS[which % len(FUNCTIONS)](x, z))
            elif kind == 1:
                values.append(evaluated((max, min, many)[which % 3], x, z, x))
            elif kind == 4:
                values.append(evaluated(DECISIONS[which % len(DECISIONS)], x, z))
            else:
                bool(DECISIONS[which % len(DECISIONS)](x, z if kind == 2 else which - 5))
        except ZeroDivisionError:
            continue
    return values


PROGRAMS = st.lists(
    st.tuples(st.integers(0, 4), *[st.integers(0, 20)] * 3), min_size=1, max_size=25
)
SIZES = st.lists(
    st.one_of(st.integers(-3, 12), st.integers(-(1 << 63), (1 << 63) - 1)), min_size=2, max_size=2
)


@pytest.mark.parametrize("evaluator", EVALUATORS)
@given(first=SIZES, later=SIZES, program=PROGRAMS)
def test_tables_come_to_what_python_does(evaluator, first, later, program):
    found = []
    for chosen in (None, evaluator):
        recording = Recording()
        recording.evaluator = chosen
        values = traced(recording, first, program)
        fork = None
        places = [getattr(n, "place", None) for n in values]
        recording.close()
        before = recording.repeat(first)
        assert before is not None
        fork = recording.fork(before)
        sizes = fork.sizes()
        own = [evaluated(many, sizes[n], 3) for n in places if n is not None]
        asked = [n.place for n in own]
        fork.close(for_good=True)
        for numbers in (first, later):
            before = recording.repeat(numbers)
            after = None if before is None else fork.go_on(before)
            found.append(
                None
                if before is None or after is None
                else (
                    [before[n] for n in places if n is not None],
                    [after[n] for n in asked],
                    [type(after[n]) for n in asked],
                )
            )
    assert found[:2] == found[2:]


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_what_is_no_integer_is_kept_beside_them(evaluator):
    recording = Recording()
    recording.evaluator = evaluator
    n = recording.size(4)
    half, huge = evaluated(halves, n), n * (1 << 61)
    places = half.place, huge.place, (n + 1).place
    recording.close(for_good=True)
    for size in (7, 1 << 40):
        numbers = recording.repeat([size])
        assert [numbers[place] for place in places] == [size / 2, size << 61, size + 1]
    assert len(numbers) == len(numbers.listed()) == recording.count


def test_numbers_of_all_kinds():
    numbers = Numbers.of([3, True, np.int64(5), 1 << 70, 2.5, None])
    assert numbers.listed() == [3, True, 5, 1 << 70, 2.5, None]
    assert numbers.integers.tolist() == [3, 1, 5, 0, 0, 0]
    assert numbers[5] is None and numbers[3] == 1 << 70


def test_a_device_that_cannot_compute_tables_leaves_them_to_python():
    recording = Recording()
    recording.evaluator = lambda steps, count: None
    n = recording.size(4)
    place = (n * 3).place
    assert n < 9
    recording.close()
    assert recording.repeat([5])[place] == 15
    assert recording.repeat([9]) is None
