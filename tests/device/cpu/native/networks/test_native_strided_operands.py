"""Arithmetic and comparisons of parts of tensors, which are read where they lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import onnxruntime_results
from onnx import TensorProto, helper
from sampling import examples

from .test_native_layout import Net, compiled
from .test_native_passes import steps_of

OPS = ["Add", "Sub", "Mul", "Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]


def ints(net, *numbers):
    return net.const(values=np.array(numbers, np.int64))


def sliced(net, x, first, end, axis=-1):
    return net.add("Slice", x, ints(net, first), ints(net, end), ints(net, axis))


def combined(net, op, *operands):
    """The result as floats."""
    y = net.add(op, *operands)
    return net.add("Cast", y, to=TensorProto.FLOAT) if op[0] in "GL" else y


def agrees(net, *outputs, **config):
    model = net.model(*outputs)
    x = np.random.default_rng(3).standard_normal(net.shape).astype(np.float32)
    found = compiled(model, **config)({"x": x})
    for n, expected in enumerate(onnxruntime_results(model, {"x": x})):
        np.testing.assert_array_equal(np.array(found[n]), expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.usefixtures("level")
def test_neighbours_of_a_row(op):
    net = Net(3, 20, 11)
    x = net.add("Abs", "x")
    y = combined(net, op, sliced(net, x, 0, 10), sliced(net, x, 1, 11))
    agrees(net, y)


def test_no_copy_is_made():
    net = Net(3, 20, 11)
    x = net.add("Abs", "x")
    y = net.add("Sub", sliced(net, x, 0, 10), sliced(net, x, 1, 11))
    names = steps_of(net, y)
    assert names.count("combine_nest") == 1 and len(names) == 2


@pytest.mark.parametrize("op", ["Sub", "Less"])
def test_pieces_of_a_split(op):
    net = Net(4, 3, 36)
    first, second, third = (f"p{n}" for n in range(3))
    net.nodes.append(helper.make_node("Split", ["x"], [first, second, third], axis=2))
    y = combined(net, op, first, second)
    z = combined(net, op, third, net.const(12))
    agrees(net, y, z)
    assert set(steps_of(net, y, z)) <= {"combine_nest", "map1_same"}


def test_heads_of_rows():
    net = Net(2, 7, 4 * 16)
    heads = net.add("Transpose", net.add("Reshape", "x", ints(net, 2, 7, 4, 16)), perm=[0, 2, 1, 3])
    y = net.add("Mul", heads, net.const(7, 16))
    agrees(net, y)
    assert steps_of(net, y) == ["combine_nest"]


def test_columns_that_become_rows_are_copied():
    net = Net(6, 5)
    y = net.add("Add", net.add("Transpose", "x", perm=[1, 0]), net.const(5, 6))
    agrees(net, y)


def test_a_part_that_others_read_too_is_copied_once():
    net = Net(5, 11)
    part = sliced(net, "x", 2, 9)
    y, z = net.add("Add", part, net.const(7)), net.add("Softmax", part, axis=-1)
    model = net.model(y, z)
    x = np.random.default_rng(3).standard_normal(net.shape).astype(np.float32)
    found = compiled(model)({"x": x})
    for n, expected in enumerate(onnxruntime_results(model, {"x": x})):
        np.testing.assert_allclose(np.array(found[n]), expected, rtol=1e-6)
    names = steps_of(net, y, z)
    assert len(names) == 3


def test_more_axes_than_loops():
    net = Net(2, 3, 2, 3, 2, 3)
    part = net.add("Slice", "x", ints(net, *[0, 1] * 3), ints(net, *[1, 3] * 3))
    agrees(net, net.add("Add", part, net.const(1, 2, 1, 2, 1, 2)))
    wide = net.add("Slice", "x", ints(net, *[1] * 6), ints(net, *[2, 3] * 3))
    agrees(net, net.add("Add", wide, net.const(2, 1, 2, 1, 2, 1)))


@examples(30)
@given(data=st.data())
def test_random_parts(data):
    rank = data.draw(st.integers(1, 4))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank))
    net = Net(*shape)
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    ends = [
        data.draw(st.integers(start + 1, size)) for start, size in zip(starts, shape, strict=True)
    ]
    part = net.add("Slice", "x", ints(net, *starts), ints(net, *ends))
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    order = data.draw(st.permutations(range(rank)))
    if data.draw(st.booleans()):
        part = net.add("Transpose", part, perm=list(order))
        sizes = [sizes[axis] for axis in order]
    repeated = [data.draw(st.sampled_from([1, size])) for size in sizes]
    other = net.const(*repeated[data.draw(st.integers(0, rank - 1)) :])
    pair = [part, other][:: data.draw(st.sampled_from([1, -1]))]
    agrees(net, combined(net, data.draw(st.sampled_from(OPS)), *pair))
