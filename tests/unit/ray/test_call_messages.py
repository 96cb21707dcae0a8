"""Messages of calls of submodels: what is written is read, and what is wrong is told."""

import ml_dtypes
import msgpack
import numpy as np
import pytest

from partita import Port
from partita.contract.profiling import ProfilingInfo, Status
from partita.errors import InferError
from partita_ray.call_messages import CallMessages

X = Port(0, "x", np.dtype(np.float32), (2, 3))
N = Port(1, "n", np.dtype(np.int64), ())
ROWS = Port(2, "rows", np.dtype(np.float32), ("N", 4))
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
COUNTER = ProfilingInfo("a", "Conv", "tiles", Status.EXECUTED, 2.5, 1.0, ("b", "c"))


def test_inputs_are_read_as_they_were_written():
    messages = CallMessages([X, ROWS, N], [])
    rows = np.ones((2000, 4), np.float32)
    message, large = messages.write_inputs([ARRAY[:, ::-1], rows, np.array(7)])
    assert large == [rows]
    x, found, n = messages.read_inputs(message, large)
    np.testing.assert_array_equal(x, ARRAY[:, ::-1])
    assert (n.shape, n.dtype, int(n)) == ((), N.dtype, 7)
    assert found is rows


def test_types_that_numpy_lacks_cross():
    port = Port(0, "x", np.dtype(ml_dtypes.bfloat16), (3,))
    array = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    messages = CallMessages([port], [])
    (found,) = messages.read_inputs(*messages.write_inputs([array]))
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


def test_texts_and_what_is_an_object_already_stay_objects():
    texts, reference, whole = np.array(["a"], object), object(), np.array([1, 2, 3])
    messages = CallMessages([Port(0, "t", np.dtype(object), (1,)), X, ROWS], [])
    _, large = messages.write_inputs([texts, reference, whole])
    assert large == [texts, reference, whole]  # the last is of another type than the input


def test_an_answer_is_read_as_it_was_written():
    messages = CallMessages([], [X, ROWS])
    assert messages.large_outputs == 1
    rows = np.ones((9, 4), np.float32)
    message, large = messages.write_answer(1.5, 2.5, [ARRAY, rows], [COUNTER])
    found = messages.read_answer(message)
    assert large == [rows]
    np.testing.assert_array_equal(found.small["x"], ARRAY)
    assert (found.start_s, found.end_s, found.shapes) == (1.5, 2.5, [(9, 4)])
    assert found.counters == [COUNTER]


def packed(**changes):
    """The message of input 'x', with some of it changed."""
    entry = {"dtype": "float32", "shape": [2, 3], "elements": ARRAY.tobytes()} | changes
    return msgpack.packb({"x": list(entry.values())})


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"", "is no MessagePack"),
        (packed()[:-1], "is no MessagePack"),
        (b"\x80\x04K\x07.", "is no MessagePack"),  # a pickle
        (msgpack.packb([1]), "tensors by name belong"),
        (msgpack.packb({"x": 3}), "cannot be read as float32, dimensions and bytes"),
        (msgpack.packb({"y": ["float32", [1], b"1234"]}), "'y', which is none of 'x'"),
        (packed(dtype="int32"), r"int32\[2, 3\].* is float32"),
        (packed(shape=[2, 4]), "buffer is too small"),
        (packed(shape=[2, 2]), r"float32\[2, 2\] in 24 bytes.* has 16 bytes of that shape"),
        (packed(shape=[-2, -3]), "cannot be read"),
        (packed(elements="text"), "cannot be read as float32, dimensions and bytes"),
        (msgpack.packb({}), "0 inputs in its message and 0 beside it; the model takes 1"),
    ],
)
def test_what_is_wrong_with_inputs_is_told(message, told):
    with pytest.raises(InferError, match=told):
        CallMessages([X], []).read_inputs(message, [])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ([1.0, 2.0, {}], "lacks times, tensors, shapes or counters"),
        (["now", 2.0, {}, [], []], "lacks times"),
        ([1.0, 2.0, {}, [], []], r"outputs \[\] and shapes of 0 more; the model has \['x'\] and 1"),
        (
            [1.0, 2.0, {"x": ["float32", [2, 3], ARRAY.tobytes()]}, [["N", 4]], []],
            r"\['N', 4\] as dimensions",
        ),
        (
            [1.0, 2.0, {"x": ["float32", [2, 3], ARRAY.tobytes()]}, [[9, 4]], [["a", "Conv"]]],
            r"\['a', 'Conv'\] as the counter",
        ),
    ],
)
def test_what_is_wrong_with_an_answer_is_told(content, told):
    with pytest.raises(InferError, match=told):
        CallMessages([], [X, ROWS]).read_answer(msgpack.packb(content))
