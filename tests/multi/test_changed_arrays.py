"""Arrays that are changed in place between runs: read as they are now, or refused."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

import partita
from partita.errors import InputError
from partita.runtime.binding import input_binding

from .hetero.test_hetero_layouts import two_processors


@pytest.fixture(params=["small", "large"], autouse=True)
def size(request, monkeypatch):
    """Whether bound calls read copies of inputs, or inputs in place."""
    if request.param == "large":
        monkeypatch.setattr(input_binding, "STAGED_BYTES", 0)


DEVICES = {
    "CPU": ("CPU", {}),
    "REFERENCE": ("REFERENCE", {}),
    "all on one": ("HETERO:CPU", {}),
    "LINEAR": ("HETERO:CPU,CPU2", {"HETERO_EXECUTOR": "LINEAR"}),
    "DATAFLOW": ("HETERO:CPU,CPU2", {"HETERO_EXECUTOR": "DATAFLOW"}),
    "PARALLEL": ("HETERO:CPU,CPU2", {"HETERO_EXECUTOR": "PARALLEL"}),
}
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3,5] x, float[3,5] y) => (float[3,5] z) { d = Sub (x, y) e = Abs (d) z = Add (d, e) }"""


def subtraction(where, text=TEXT):
    device, config = DEVICES[where]
    core = two_processors()
    model = core.read_model(onnx.parser.parse_model(text).SerializeToString())
    if "CPU2" in device:
        model.ops[1].affinity = "CPU2"
    return core.compile_model(model, device, config).create_infer_request()


def due(x, y):
    return (x - y) + abs(x - y)


def ask(request, form, x, y):
    if form == "dict":
        return request.infer({"x": x, "y": y})[0]
    if form == "list":
        return request.infer([x, y])[0]
    if form == "the other one":
        return request.infer({"y": y})[0]
    return request.infer()[0]


def prepared(where, form, runs):
    """A request that has run on two arrays so many times."""
    rng = np.random.default_rng(runs)
    x, y = (rng.standard_normal((3, 5)).astype(np.float32) for _ in range(2))
    request = subtraction(where)
    if form == "shared tensors":
        request.set_tensor("x", partita.Tensor(x, shared_memory=True))
        request.set_tensor("y", partita.Tensor(y, shared_memory=True))
    else:
        request.set_tensors({"x": x, "y": y})
    for _ in range(runs):
        np.testing.assert_array_equal(ask(request, form, x, y), due(x, y))
    if form == "dict":  # so that the last arrays are others than those that calls were bound to
        x, y = x + 1, y.copy()
        np.testing.assert_array_equal(ask(request, form, x, y), due(x, y))
    return request, x, y


def reshape(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array.shape = (5, 3)


def reinterpret(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        array.dtype = np.int32


MOVED = []
"""Kept: numpy would give their pages to the next array, which has room there to grow."""


def move(array, number):
    """Has an array of (3, 5) lie elsewhere; returns arrays of a number that took its place."""

    def taken():
        return [np.full((3, 5), number, np.float32) for _ in range(64)]

    before, takers = array.ctypes.data, []
    while array.ctypes.data == before:  # allocators may give the same place again
        assert len(takers) < 100_000
        takers += taken()  # behind it, so that it does not grow where it lies
        array.resize(1 << 20, refcheck=False)
        takers += taken()  # where it lay
        array.resize((3, 5), refcheck=False)
    MOVED.append(array)
    return takers


FORMS = ["dict", "list", "the other one", "nothing", "shared tensors"]
CHANGES = {
    "shape": (reshape, r"'x' takes float32\[3, 5\]; found float32\[5, 3\]"),
    "type": (reinterpret, r"'x' takes float32\[3, 5\]; found int32\[3, 5\]"),
    "size": (
        lambda array: array.resize((64, 5), refcheck=False),
        r"'x' takes float32\[3, 5\]; found float32\[64, 5\]",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("runs", [1, 5])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", DEVICES)
def test_an_array_that_does_not_fit_any_more_is_refused(where, form, runs, change):
    request, x, y = prepared(where, form, runs)
    apply, said = CHANGES[change]
    apply(x)
    if change == "type" and form in ("dict", "list"):  # handed in anew, it is one of integers
        np.testing.assert_array_equal(ask(request, form, x, y), due(x.astype(np.float32), y))
        return
    for _ in range(2):
        with pytest.raises(InputError, match=said):
            ask(request, form, x, y)
    fits = np.ones((3, 5), np.float32)
    for _ in range(4):
        np.testing.assert_array_equal(request.infer({"x": fits})[0], due(fits, y))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("runs", [1, 2, 5])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", DEVICES)
def test_an_array_whose_memory_has_moved_is_read_where_it_is(where, form, runs):
    request, x, y = prepared(where, form, runs)
    takers = move(x, np.nan)
    for value in range(4):
        x[:] = value
        np.testing.assert_array_equal(ask(request, form, x, y), due(x, y))
    del takers


@pytest.mark.parametrize("runs", [1, 5])
@pytest.mark.parametrize("where", DEVICES)
def test_a_shape_that_varies_may_change_in_place(where, runs):
    request = subtraction(where, TEXT.replace("float[3,5]", "float[A,B]"))
    x, y = np.ones((3, 5), np.float32), np.zeros((3, 5), np.float32)
    for _ in range(runs):
        np.testing.assert_array_equal(request.infer([x, y])[0], due(x, y))
    reshape(x)
    reshape(y)
    for _ in range(3):
        np.testing.assert_array_equal(request.infer()[0], due(x, y))


@pytest.mark.parametrize("where", DEVICES)
def test_an_output_whose_array_has_moved_is_written_where_it_is(where):
    request, x, y = prepared(where, "list", 1)
    target = np.zeros((3, 5), np.float32)
    request.set_output_tensor(target)
    for _ in range(5):
        request.infer([x, y])
    takers = move(target, 0)
    for _ in range(4):
        target[:] = 0
        request.infer([x, y])
        np.testing.assert_array_equal(target, due(x, y))
    assert not any(array.any() for array in takers)


@pytest.mark.parametrize("runs", [1, 5])
@pytest.mark.parametrize("where", DEVICES)
def test_an_output_that_does_not_fit_any_more_is_refused(where, runs):
    request, x, y = prepared(where, "list", 1)
    target = np.zeros((3, 5), np.float32)
    request.set_output_tensor(target)
    for _ in range(runs):
        request.infer([x, y])
    target.resize((64, 5), refcheck=False)
    for _ in range(2):
        with pytest.raises(InputError, match=r"'z' takes float32\[3, 5\]; found float32\[64, 5\]"):
            request.infer([x, y])


@pytest.mark.parametrize("where", DEVICES)
def test_unaligned_arrays_are_copied(where):
    """Also where they are set as tensors, or where results are to go."""
    request = subtraction(where)
    raw = np.arange(61, dtype=np.uint8)
    x = raw[1:].view(np.float32).reshape(3, 5)
    y = np.ones((3, 5), np.float32)
    target = np.zeros(61, np.uint8)[1:].view(np.float32).reshape(3, 5)
    assert not x.flags.aligned
    seen = spied(request)
    request.set_output_tensor(target)
    for given in (x, partita.Tensor(x, shared_memory=True)):
        for _ in range(4):
            result = request.infer({"x": given, "y": y})[0]
            np.testing.assert_array_equal(result, due(x, y))
            np.testing.assert_array_equal(target, result)
    assert seen
    assert all(array.flags.aligned and array.flags.c_contiguous for array in seen)


def spied(request):
    """Notes all arrays that the runner is handed."""
    seen, run = [], request.runner.run

    def look(inputs, outputs=None):
        seen.extend(tensor.numpy() for tensor in [*inputs, *(outputs or ())] if tensor is not None)
        return run(inputs, outputs)

    request.runner.run = look
    return seen


FREE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,5] x, float[N,5] y) => (float[N,5] z) { d = Sub (x, y) e = Abs (d) z = Add (d, e) }"""


@pytest.mark.parametrize("runs", [1, 5])
@pytest.mark.parametrize("where", DEVICES)
def test_a_tensor_that_takes_another_shape_is_read_where_it_is_then(where, runs):
    request = subtraction(where, FREE)
    tensors = [partita.Tensor(np.float32, [3, 5]) for _ in range(2)]
    request.set_tensors(dict(zip("xy", tensors, strict=True)))
    rng = np.random.default_rng(runs)
    for rows in (3, 4, 2, 2, 4):
        for name, tensor in zip("xy", tensors, strict=True):
            assert request.get_tensor(name) is tensor
            tensor.shape = (rows, 5)
        for _ in range(runs):
            for tensor in tensors:
                tensor.data[:] = rng.standard_normal((rows, 5))
            x, y = (tensor.data.copy() for tensor in tensors)
            np.testing.assert_array_equal(request.infer()[0], due(x, y))
    tensors[0].shape = (3, 4)
    with pytest.raises(InputError, match=r"'x' takes float32\[N, 5\]; found float32\[3, 4\]"):
        request.infer()


def test_a_tensor_that_a_request_made_takes_another_shape():
    request = subtraction("CPU", TEXT)
    tensor = request.get_input_tensor(0)
    y = np.ones((3, 5), np.float32)
    for _ in range(4):
        request.infer({"y": y})
    tensor.shape = (5, 3)
    with pytest.raises(InputError, match=r"'x' takes float32\[3, 5\]; found float32\[5, 3\]"):
        request.infer({"y": y})
    tensor.shape = (3, 5)
    tensor.data[:] = 2
    np.testing.assert_array_equal(request.infer({"y": y})[0], due(2 * y, y))


def test_results_go_where_an_output_tensor_is_then():
    request = subtraction("CPU", FREE)
    target = partita.Tensor(np.float32, [3, 5])
    request.set_output_tensor(0, target)
    for rows in (3, 2):
        target.shape = (rows, 5)
        x, y = np.full((rows, 5), 3, np.float32), np.ones((rows, 5), np.float32)
        for _ in range(4):
            request.infer({"x": x, "y": y})
        np.testing.assert_array_equal(target.data, due(x, y))
