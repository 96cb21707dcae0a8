"""Inputs and outputs of operations, as scripts that walk over graphs ask for them."""

from __future__ import annotations

import pytest
from onnx import parser

import partita
from partita.errors import ModelError


@pytest.fixture
def ops():
    text = """<ir_version: 8, opset_import: ["" : 18]>
    m (float[2, 3] x) => (float[2, 1] b, float[2, 3] z)
    <float[3] w = {1, 2, 3}, int64[2] at = {2, 1}> {
        s = Add(x, w) a, b = Split <axis = 1> (s, at) z = Sub(s, s)
    }"""
    model = partita.Core().read_model(parser.parse_model(text))
    return {op.op_type: op for op in model.ops}


def test_an_input_knows_its_operation_and_what_it_reads(ops):
    read = ops["Split"].input(0)
    assert read.get_node() == ops["Split"]
    assert read.get_index() == 0
    assert list(read.get_shape()) == [2, 3]
    assert read.get_element_type() == partita.Type.f32
    source = read.get_source_output()
    assert source.get_node() == ops["Add"]
    assert source.get_node().get_friendly_name() == ops["Add"].name
    assert source == ops["Split"].input_value(0) == ops["Add"].output(0)


def test_inputs_end_at_parameters_and_constants(ops):
    x, w = (ops["Add"].input(place).get_source_output().get_node() for place in (0, 1))
    assert (x.get_type_name(), x.get_friendly_name()) == ("Parameter", "x")
    assert (w.get_type_name(), w.get_friendly_name()) == ("Constant", "w")
    assert list(w.get_output_shape(0)) == [3]


def test_an_output_knows_its_place_and_who_reads_it(ops):
    assert [ops["Split"].output(place).get_index() for place in (0, 1)] == [0, 1]
    readers = ops["Add"].output(0).get_target_inputs()
    found = sorted((one.get_node().op_type, one.get_index()) for one in readers)
    assert found == [("Split", 0), ("Sub", 0), ("Sub", 1)]
    assert ops["Split"].output(0).get_target_inputs() == set()


@pytest.mark.parametrize("place", [-1, 2])
def test_an_input_that_is_not_there_is_told(ops, place):
    for ask in (ops["Add"].input, ops["Add"].input_value):
        with pytest.raises(ModelError, match=rf"has 2 inputs; there is no input {place}"):
            ask(place)
