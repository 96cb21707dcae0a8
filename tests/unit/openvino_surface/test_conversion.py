"""Arrays of other element types become the port's where nothing but digits is lost by that."""

from __future__ import annotations

import ml_dtypes
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


def is_exact(x, due):
    """Whether whole numbers, or digits of fractions, are all that conversion may cost."""
    if due.dtype.kind == "f" or due.dtype == x.dtype:
        return True
    if x.dtype.kind == "f":
        return False
    return due.dtype.kind == "b" or bool((due.astype(object) == x.astype(object)).all())


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("kind", ONNX)
def test_numbers_are_converted_where_no_more_than_digits_are_lost(identity, kind, given):
    with np.errstate(all="ignore"):
        for x in (X.astype(given), X[:2].astype(given)):
            due = x.astype(kind)
            for share in (True, False):
                if is_exact(x, due):
                    found = identity(kind)(x, share_inputs=share)["y"]
                    assert found.dtype == kind
                    np.testing.assert_array_equal(found, due)
                else:
                    said = rf"Input 'x' takes {kind}\[N\]; found {given}\[{len(x)}\], which"
                    with pytest.raises(InputError, match=said):
                        identity(kind)(x, share_inputs=share)


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        (np.array([0.5], "f4"), "fractions"),
        (np.array([1.0], ml_dtypes.bfloat16), "fractions"),
        (np.array([1.0], np.longdouble), "fractions"),
        (np.array([1, 0.5], object), "fractions"),
        (np.array([2**33, 7]), r"numbers out of its range \(found 7 to 8589934592\)"),
    ],
)
def test_what_would_be_lost_is_said_with_how_to_convert(identity, given, lost):
    request = identity("int32").create_infer_request()
    for _ in range(4):  # also where calls are bound
        request.infer({"x": np.array([3, 4], "i4")})
    for infer in (lambda: request.infer({"x": given}), lambda: request.set_tensor("x", given)):
        with pytest.raises(InputError, match=rf"lose {lost}.*convert it with \.astype\('int32'\)"):
            infer()
    np.testing.assert_array_equal(request.infer({"x": np.array([5, 6], "i4")})[0], [5, 6])


def test_arrays_without_elements_and_of_short_types_fit_any_whole_numbers(identity):
    assert identity("int64")(np.array([]))[0].shape == (0,)
    short = np.array([-8, 7], ml_dtypes.int4)
    np.testing.assert_array_equal(identity("int32")(short)[0], [-8, 7])
    with pytest.raises(InputError, match="found -8 to 7"):
        identity("uint8")(short)


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
