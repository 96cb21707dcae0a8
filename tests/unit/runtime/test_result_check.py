"""What devices return is looked at where it enters Core: a tensor per output, type and shape."""

from __future__ import annotations

import numpy as np
import pytest
from models import model_of, neg, node, value
from onnx import TensorProto, helper
from toy_device import ToyDevice, ToyTensor, core_with

import partita
from partita.errors import PluginError
from partita.model.expected_shapes import ExpectedShapes
from partita.runtime.result_check import ResultCheck
from partita.tensors.tensor import HostTensor

X = np.ones((2, 3), np.float32)


def answering(results, model=None):
    """A request on a device that returns this, whatever it is asked."""
    request = core_with(ToyDevice()).compile_model(model or neg(), "TOY").create_infer_request()
    request.runner.run = lambda inputs, outputs=None: results
    return request


FIXED = r"Device 'TOY' returned {} \(model 'm'\)\. Its plugin is at fault"
WRONG = {
    "type": ([HostTensor(X.astype(np.int32))], r"int32\[2, 3\] as 'y'; expected float32\[2, 3\]"),
    "wider type": (
        [HostTensor(X.astype(float))],
        r"float64\[2, 3\] as 'y'; expected float32\[2, 3\]",
    ),
    "shape": ([HostTensor(X.T.copy())], r"float32\[3, 2\] as 'y'; expected float32\[2, 3\]"),
    "rank": ([HostTensor(X[0])], r"float32\[3\] as 'y'; expected float32\[2, 3\]"),
    "in its memory": ([ToyTensor(X[:1])], r"float32\[1, 3\] as 'y'; expected float32\[2, 3\]"),
    "too many": ([HostTensor(X)] * 2, "2 tensors; expected 1"),
    "none": ([], "0 tensors; expected 1"),
    "nothing": (None, "NoneType; expected a list of 1 tensors"),
    "an array": ([X], "ndarray for 'y'; expected a tensor"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_the_ports(what):
    results, said = WRONG[what]
    request = answering(results)
    for _ in range(3):
        with pytest.raises(PluginError, match=FIXED.format(said)):
            request.infer(X)
    with pytest.raises(partita.errors.InferError, match="is not there"):
        request.get_output_tensor()


def test_singles_are_not_doubles():
    x, y = (helper.make_tensor_value_info(name, TensorProto.DOUBLE, [2, 3]) for name in "xy")
    request = answering([HostTensor(X)], model_of([node("Neg", ["x"], "y")], [x], [y]))
    with pytest.raises(
        PluginError, match=FIXED.format(r"float32\[2, 3\] as 'y'; expected float64\[2, 3\]")
    ):
        request.infer(X.astype(float))
    with pytest.raises(partita.errors.InputError, match=r"Convert it with \.astype\('float64'\)"):
        request.set_input_tensor(0, HostTensor(X))


@pytest.mark.parametrize("what", ["type", "shape"])
def test_asynchronous_runs_are_looked_at_too(what):
    results, said = WRONG[what]
    request = answering(results)
    request.start_async(X)
    with pytest.raises(PluginError, match=FIXED.format(said)):
        request.wait()


@pytest.mark.parametrize("tensor", [HostTensor(X), ToyTensor(X)])
def test_what_fits(tensor):
    np.testing.assert_array_equal(answering([tensor]).infer(X)[0], X)


def test_elements_of_another_object_of_the_same_type_fit():
    other = np.dtype(np.float32, align=True).newbyteorder("=")
    assert (answering([HostTensor(X.view(other))]).infer(X)[0] == 1).all()


def square(dims=("N", "M"), out=("N", "M")):
    return model_of([node("Neg", ["x"], ["y"])], [value("x", dims)], [value("y", out)])


@pytest.mark.parametrize(("rows", "columns", "fits"), [(2, 3, True), (3, 3, False), (2, 1, False)])
def test_symbols_stand_for_the_sizes_of_the_inputs(rows, columns, fits):
    request = answering([HostTensor(np.ones((rows, columns), np.float32))], square())
    if fits:
        request.infer(X)
        return
    with pytest.raises(
        PluginError, match=rf"float32\[{rows}, {columns}\] as 'y'; expected float32\[N, M\]"
    ):
        request.infer(X)


def test_a_symbol_that_the_file_has_wrong_is_not_held_against_the_device():
    """The file says that Transpose keeps the order of its input's dimensions."""
    proto = model_of(
        [node("Transpose", ["x"], ["y"], perm=[1, 0])],
        [value("x", ("N", "M"))],
        [value("y", ("N", "M"))],
    )
    model = partita.Core().read_model(proto)
    check = ResultCheck(model.outputs, ExpectedShapes(model))
    assert check.fault([HostTensor(X.T.copy())], ((2, 3),)) == ""
    assert "float32[4, 2] as 'y'" in check.fault([HostTensor(np.ones((4, 2), "f"))], ((2, 3),))
