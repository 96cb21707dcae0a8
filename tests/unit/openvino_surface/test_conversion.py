"""Arrays of other element types become the port's as numpy's ``astype`` makes them."""

from __future__ import annotations

import numpy as np
import pytest
from models import model_of, node, value
from onnx import TensorProto

import partita as ov
from partita.errors import InputError

ONNX = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
GIVEN = ["float64", "float32", "float16", "int8", "uint8", "int32", "uint32", "int64", "bool"]
X = np.array([0, 1, 2.7, -1.5, 300, 70000, 127])


@pytest.fixture(scope="module")
def core():
    return ov.Core()


@pytest.fixture(scope="module")
def identity(core):
    kept = {}

    def made(kind):
        if kind not in kept:
            ports = [value("x", ["N"], ONNX[kind])], [value("y", ["N"], ONNX[kind])]
            kept[kind] = core.compile_model(model_of([node("Identity", ["x"], "y")], *ports), "CPU")
        return kept[kind]

    return made


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", ONNX)
def test_numbers_are_converted(identity, kind, given):
    with np.errstate(all="ignore"):
        x = X.astype(given)
        due = x.astype(kind)
    for share in (True, False):
        found = identity(kind)(x, share_inputs=share)["y"]
        assert found.dtype == kind
        np.testing.assert_array_equal(found, due)


def test_a_request_that_has_bound_its_calls_converts_as_well(identity):
    request = identity("float32").create_infer_request()
    for number in range(6):
        x = np.arange(number, number + 4)
        for given in (x, x.astype("f4"), x.astype("f8"), x.astype("u1")):
            np.testing.assert_array_equal(request.infer({"x": given})[0], x.astype("f4"))


def test_asynchronous_runs_convert_as_well(identity):
    queue = ov.AsyncInferQueue(identity("float32"), 2)
    found = {}
    queue.set_callback(lambda request, number: found.update({number: request.results[0].copy()}))
    for number in range(4):
        queue.start_async({0: np.full(3, number)}, number)
    queue.wait_all()
    for number in range(4):
        np.testing.assert_array_equal(found[number], np.full(3, number, np.float32))


def test_texts_become_numbers_where_they_are_some(identity):
    np.testing.assert_array_equal(identity("float32")(np.array(["1.5", "2"]))[0], [1.5, 2])
    with pytest.raises(InputError, match=r"the elements of <U3\[1\] cannot be converted"):
        identity("int32")(np.array(["1.5"]))


def test_one_list_is_the_one_input(identity):
    np.testing.assert_array_equal(identity("float32")([1, 2.5, 3])[0], [1, 2.5, 3])
    with pytest.raises(InputError, match="its elements are float64"):
        identity("int32")([1, 2.5, 3])


def test_tensors_are_never_converted(identity):
    with pytest.raises(InputError, match=r"found float64\[2\]"):
        identity("float32")(ov.Tensor(np.zeros(2)))
