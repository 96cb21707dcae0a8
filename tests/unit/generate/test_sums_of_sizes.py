"""What is computed of sizes that are not known, beside the same of sizes that are."""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.generate.caches.sums_of_sizes import ONE, computed, constants, number_of, sums

SIZES = {"past": 7, "new": 3}
SHAPE = [{"past": 1, "new": 1}, {ONE: 4}, {"new": 1}, {"past": 2, ONE: -1}]


def known(these, sizes):
    """The elements for these sizes."""
    all_sizes = {**sizes, ONE: 1}
    found = np.empty(these.shape, np.int64)
    for place in np.ndindex(these.shape):
        found[place] = sum(times * all_sizes[size] for size, times in these[place].items())
    return found


def operation(op_type, count, **attributes):
    return ir.node(op_type, [ir.Value(name=f"x{n}") for n in range(count)], attributes)


OPERATIONS = {
    "Add": (lambda a, b: a + b, {}, [SHAPE, [5]]),
    "Sub": (lambda a, b: a - b, {}, [SHAPE, SHAPE[::-1]]),
    "Mul": (lambda a, b: a * b, {}, [[-3], SHAPE]),
    "Neg": (lambda a: -a, {}, [SHAPE]),
    "Concat": (lambda a, b: np.concatenate([a, b]), {"axis": 0}, [SHAPE, [1, 2]]),
    "Gather": (lambda a, b: a[b], {"axis": 0}, [SHAPE, [3, -4]]),
    "Unsqueeze": (lambda a, b: a[:, None], {}, [SHAPE, [1]]),
    "Squeeze": (lambda a, b: a[0], {}, [SHAPE[:1], [0]]),
    "Slice": (lambda a, *rest: a[1:3], {}, [SHAPE, [1], [3]]),
    "Reshape": (lambda a, b: a.reshape(b), {}, [SHAPE, [2, -1]]),
    "Cast": (lambda a: a, {"to": 7}, [SHAPE]),
}


@pytest.mark.parametrize("op_type", OPERATIONS)
@given(sizes=st.fixed_dictionaries({name: st.integers(0, 1000) for name in SIZES}))
def test_operations(op_type, sizes):
    make, attributes, operands = OPERATIONS[op_type]
    given_ = [
        sums(one) if any(isinstance(x, dict) for x in one) else constants(one) for one in operands
    ]
    found = computed(operation(op_type, len(operands), **attributes), given_)
    np.testing.assert_array_equal(known(found, sizes), make(*(known(x, sizes) for x in given_)))


def test_a_size_is_not_what_it_cannot_be():
    node = operation("Equal", 2)
    found = computed(node, [sums([{"new": 1}, {ONE: 4}, {ONE: -1}]), constants([-1])])
    assert [number_of(one) for one in found] == [0, 0, 1]
    assert computed(node, [sums([{"new": 1}]), constants([4])]) is None


def test_where_takes_what_is_chosen():
    node = operation("Where", 3)
    found = computed(node, [constants([True, False]), constants([1, 1]), sums(SHAPE[:2])])
    assert [*found] == [{ONE: 1}, {ONE: 4}]


@pytest.mark.parametrize(
    ("op_type", "operands"),
    [
        ("Mul", [SHAPE, SHAPE]),
        ("Div", [SHAPE, [2]]),
        ("Gather", [SHAPE, [9]]),
        ("Reshape", [SHAPE, [3]]),
        ("ConstantOfShape", [SHAPE]),
    ],
)
def test_what_is_no_sum_is_not_known(op_type, operands):
    given_ = [sums(x) if isinstance(x[0], dict) else constants(x) for x in operands]
    assert computed(operation(op_type, len(operands)), given_) is None
