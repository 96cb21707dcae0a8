"""``convert_model`` is asked for inputs and outputs of files in OpenVINO's forms."""

from __future__ import annotations

import numpy as np
import pytest
from models import add_sub, affine, model_of, node, value

import partita as ov
from partita.errors import ModelError


def shapes(model):
    return [str(port.partial_shape) for port in model.inputs]


@pytest.mark.parametrize(
    ("asked", "due"),
    [
        ("x", "[N,4]"),
        (["x"], "[N,4]"),
        ([5, 4], "[5,4]"),
        ((5, 4), "[5,4]"),
        ([[5, 4]], "[5,4]"),
        ("5..,4", "[5..,4]"),
        ([(5, 7), -1], "[5..7,?]"),
        (["rows", 4], "[rows,4]"),
        (ov.PartialShape([5, 4]), "[5,4]"),
        (ov.Shape([5, 4]), "[5,4]"),
        ([ov.PartialShape([5, 4])], "[5,4]"),
        ([ov.Dimension(5, 7), 4], "[5..7,4]"),
        (("x", [5, 4]), "[5,4]"),
        ([("x", [5, 4])], "[5,4]"),
        (("x", [5, 4], np.float32), "[5,4]"),
        (("x", ov.Type.f32), "[N,4]"),
        ([([5, 4], ov.Type.f32)], "[5,4]"),
        ({"x": [5, 4]}, "[5,4]"),
        ({0: ([5, 4], ov.Type.f32)}, "[5,4]"),
        ({"x": ov.Type.f32}, "[N,4]"),
    ],
)
def test_one_input(asked, due):
    assert shapes(ov.convert_model(affine(), input=asked)) == [due]


@pytest.mark.parametrize(
    ("asked", "due"),
    [
        (["b", "a"], ["[2,3]", "[2,3]"]),
        ([("b", [4, 3]), "a"], ["[2,3]", "[4,3]"]),
        ([[5, 3], ("b", [4, 3], ov.Type.f32)], ["[5,3]", "[4,3]"]),
        ([[(1, 4), 3], [(1, 4), 3]], ["[1..4,3]", "[1..4,3]"]),
    ],
)
def test_several_inputs(asked, due):
    assert shapes(ov.convert_model(add_sub(), input=asked)) == due


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([2, 3], "Model 'm' has 2 inputs ('a', 'b'); say which."),
        ([[2, 3]] * 3, "Model 'm' has 2 inputs; there is no input 2."),
        ([("a", [2, 3]), ("a", [2, 3])], "Input 'a' is given two shapes; give one."),
        ({"c": [2, 3]}, "has no input 'c'; it has 'a', 'b'"),
        (("a", ov.Type.u8), "Input 'a' takes f32, and convert_model leaves it so; found u8."),
        (("a", [2, 3], np.uint8), "PrePostProcessor(model).input('a').tensor()"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked, said):
    with pytest.raises(ModelError) as caught:
        ov.convert_model(add_sub(), input=asked)
    assert said in str(caught.value)


def two_ways():
    nodes = [node("Relu", ["a"], "r"), node("Neg", ["r"], "y"), node("Exp", ["b"], "z")]
    ports = [value("a", ["N"]), value("b", ["N"])], [value("y", ["N"]), value("z", ["N"])]
    return model_of(nodes, *ports)


@pytest.mark.parametrize(
    ("output", "inputs", "operations"),
    [
        ("r", ["a"], ["Relu"]),
        (["z"], ["b"], ["Exp"]),
        (["z", "r"], ["a", "b"], ["Relu", "Exp"]),
        (["z", "y", "z"], ["a", "b"], ["Relu", "Neg", "Exp"]),
    ],
)
def test_outputs_that_are_asked_for_are_all_there_is(output, inputs, operations):
    model = ov.convert_model(two_ways(), output=output)
    names = [output] if isinstance(output, str) else list(dict.fromkeys(output))
    assert [port.name for port in model.outputs] == names
    assert [port.name for port in model.inputs] == inputs
    assert [op.op_type for op in model.ops] == operations
    given = {"a": np.array([-1, 2], np.float32), "b": np.array([0, 1], np.float32)}
    result = ov.compile_model(model, "CPU")({name: given[name] for name in inputs})
    due = {"r": [0, 2], "y": [0, -2], "z": np.exp([0, 1])}
    for name in names:
        np.testing.assert_allclose(result[name], due[name], rtol=1e-6)


def test_an_output_that_is_not_there_is_refused():
    with pytest.raises(ModelError, match=r"neither a value nor an operation 'q'"):
        ov.convert_model(two_ways(), output="q")


def test_a_conversion_takes_operators_of_ones_own():
    class Twice(ov.Op):
        def __init__(self, inputs=None):
            super().__init__(self, inputs)

        def validate_and_infer_types(self):
            self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

        def evaluate(self, outputs, inputs):
            outputs[0].copy_from(inputs[0])
            outputs[0].data[:] *= 2
            return True

    proto = model_of([node("Twice", ["x"], ["y"], domain="own")], [value("x", [3])], ["y"])
    proto.opset_import.add(domain="own", version=1)
    model = ov.convert_model(proto, extension=Twice, verbose=True, share_weights=False)
    compiled = ov.Core().compile_model(model, "REFERENCE")
    np.testing.assert_array_equal(compiled(np.array([1, 2, 3], np.float32))[0], [2, 4, 6])
