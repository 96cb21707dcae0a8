"""Arrays that come anew with every call, to calls that are bound: copied, or read in place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import partita
from partita.errors import InferError, InputError
from partita.runtime.binding import input_binding


@pytest.fixture(params=["small", "large"], autouse=True)
def size(request, monkeypatch):
    """Whether bound calls read copies of inputs, or inputs in place."""
    if request.param == "large":
        monkeypatch.setattr(input_binding, "STAGED_BYTES", 0)


TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[A,B] x, float[A,B] y) => (float[A,B] z)'


class Sub(np.ndarray):
    pass


def like(**changes):
    return np.zeros(**{"shape": (3, 5), "dtype": np.float32, **changes})


def read_only():
    array = like()
    array.flags.writeable = False
    return array


WRONG = {
    "another size": like(shape=(3, 4)),
    "another rank": like(shape=(15,)),
    "another type": like(dtype=np.int32),
    "other byte order": like(dtype=">f4"),
    "not contiguous": like(shape=(3, 10))[:, ::2],
    "columns first": np.asfortranarray(like()),
    "read-only": read_only(),
    "unaligned": np.zeros(61, np.uint8)[1:].view(np.float32).reshape(3, 5),
    "a subclass": like().view(Sub),
    "a list": like().tolist(),
    "a number": 3,
    "nothing": None,
    "a tensor": partita.Tensor(like()),
}


def request(count=6, **config):
    model = onnx.parser.parse_model(TEXT + " { z = Sub (x, y) }")
    made = partita.Core().compile_model(model.SerializeToString(), "CPU", config)
    request = made.create_infer_request()
    for x, y in arrays(count):
        np.testing.assert_array_equal(request.infer({"x": x, "y": y})["z"], x - y)
    return request


def arrays(count=1, shape=(3, 5)):
    rng = np.random.default_rng(count)
    for _ in range(count):
        yield tuple(rng.standard_normal((2, *shape)).astype(np.float32))


def test_new_arrays_are_read():
    running = request()
    for x, y in arrays(20):
        np.testing.assert_array_equal(running.infer({"x": x, "y": y})["z"], x - y)
        assert running.get_tensor("x").numpy() is x
    (x, y), (other, _) = arrays(2)
    running.infer({"x": x, "y": y})
    np.testing.assert_array_equal(running.infer({"y": other})["z"], x - other)
    np.testing.assert_array_equal(running.infer()["z"], x - other)


@pytest.mark.parametrize("name", WRONG)
def test_whatever_else_comes_is_looked_at(name):
    running = request()
    ((x, y),) = arrays()
    running.infer({"x": x, "y": y})
    wrong = WRONG[name]
    ((fits, _),) = arrays(1)
    if name == "another size":
        with pytest.raises(InferError, match="do not broadcast"):
            running.infer({"x": fits, "y": wrong})
    elif name in ("another rank", "a number", "nothing"):
        with pytest.raises(InputError):
            running.infer({"x": fits + 1, "y": wrong})
        np.testing.assert_array_equal(running.infer()["z"], x - y)  # nothing has changed
    else:
        found = running.infer({"x": fits, "y": wrong})["z"]
        elements = wrong.numpy() if isinstance(wrong, partita.Tensor) else np.asarray(wrong)
        np.testing.assert_array_equal(found, fits - elements)
    np.testing.assert_array_equal(running.infer({"x": y, "y": x})["z"], y - x)


def test_bound_calls_read_no_masked_elements():
    running = request()
    ((x, y),) = arrays()
    with pytest.raises(InputError, match="are masked"):
        running.infer({"x": np.ma.masked_less(x, 0), "y": y})
    np.testing.assert_array_equal(running.infer({"x": np.ma.asarray(x), "y": y})["z"], x - y)


def test_another_shape_and_back():
    running = request()
    for shape in ((2, 2), (3, 5), (4, 1)):
        for x, y in arrays(8, shape):
            np.testing.assert_array_equal(running.infer({"x": x, "y": y})["z"], x - y)


def test_an_output_that_is_fed_back():
    running = request()
    ((x, y),) = arrays()
    wanted = x
    state = running.infer({"x": x, "y": y}, share_outputs=True)["z"]
    for _ in range(6):
        wanted = wanted - y
        np.testing.assert_array_equal(state, wanted)
        state = running.infer({"x": state, "y": y}, share_outputs=True)["z"]


@pytest.mark.parametrize("runs", [1, 3, 6])
def test_an_input_that_was_an_output_keeps_its_elements(runs):
    """Whoever runs again without setting inputs gets the same results again."""
    running = request()
    ((x, y),) = arrays()
    running.infer({"x": x, "y": y})
    wanted = x - y
    for _ in range(runs):
        running.set_tensor("x", running.get_output_tensor())
        wanted = wanted - y
        for _ in range(3):
            np.testing.assert_array_equal(running.infer()["z"], wanted)
    view = running.infer(share_outputs=True)["z"]
    for _ in range(runs):
        view = running.infer({"x": view}, share_outputs=True)["z"]
        wanted = wanted - y
        for _ in range(3):
            np.testing.assert_array_equal(running.infer()["z"], wanted)


def test_runs_beside_the_thread_read_what_was_taken():
    running = request()
    for x, y in arrays(5):
        running.infer({"x": x, "y": y})
        running.start_async()
        running.wait()
        np.testing.assert_array_equal(running.get_output_tensor().numpy(), x - y)


def test_outputs_set_later():
    running = request()
    ((x, y),) = arrays()
    running.infer({"x": x, "y": y})
    target = np.zeros((3, 5), np.float32)
    running.set_output_tensor(partita.Tensor(target, shared_memory=True))
    for x, y in arrays(6):
        running.infer({"x": x, "y": y})
        np.testing.assert_array_equal(target, x - y)
    running.infer({"x": target, "y": y})
    np.testing.assert_array_equal(target, x - y - y)
