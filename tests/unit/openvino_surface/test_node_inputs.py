"""Inputs of nodes that are being written, which scripts ask for and put to other outputs."""

from __future__ import annotations

import numpy as np
import pytest

import partita as ov
from partita import opset13 as ops
from partita.errors import ModelError

X = np.array([1, -2, 5], np.float32)


@pytest.fixture
def chain():
    x = ops.parameter([3], ov.Type.f32, name="x")
    total = ops.add(ops.relu(x), x)
    return x, total, ops.abs(total)


def test_an_input_knows_its_node_and_what_it_reads(chain):
    x, total, _ = chain
    read = total.input(1)
    assert read.get_node() is total
    assert read.get_index() == 1
    assert read.get_source_output() is x.output(0)
    assert (read.get_element_type(), list(read.get_shape())) == (ov.Type.f32, [3])
    assert str(read.get_partial_shape()) == "[3]"
    assert total.inputs() == [total.input(0), read]
    with pytest.raises(ModelError, match="has 2 inputs; there is no input 2"):
        total.input(2)


def test_an_input_reads_what_it_is_put_to(chain):
    x, total, end = chain
    total.input(0).replace_source_output((x * 10).output(0))
    model = ov.Model([end], [x], "edited")
    (y,) = ov.Core().compile_model(model, "REFERENCE")([X]).to_tuple()
    np.testing.assert_allclose(y, np.abs(11 * X))


def test_shapes_follow_what_is_read(chain):
    x, total, end = chain
    other = ops.parameter([2, 3], ov.Type.f32, name="other")
    total.input(0).replace_source_output(other.output(0))
    assert list(total.get_output_shape(0)) == [2, 3]
    model = ov.Model([end], [x, other], "edited")
    assert list(model.output().get_shape()) == list(end.get_output_shape(0)) == [2, 3]
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = ov.Core().compile_model(model, "REFERENCE")([X, rows]).to_tuple()
    np.testing.assert_allclose(y, np.abs(rows + X))


def test_what_does_not_fit_is_refused_and_changes_nothing(chain):
    x, total, end = chain
    before = total.input_values()
    five = ops.parameter([5], ov.Type.f32, name="five")
    for wrong, told in (
        (five.output(0), "Add .* does not fit its inputs"),
        (end.output(0), "cannot read .*, which is computed from it"),
        (x, "An input reads an output of a node, as node.output"),
    ):
        with pytest.raises(ModelError, match=told):
            total.input(0).replace_source_output(wrong)
    assert total.input_values() == before
    assert list(end.get_output_shape(0)) == [3]
