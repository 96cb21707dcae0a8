"""Requests that meet the same tensors again: bound once, and never used for other ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from models import add_sub, neg
from toy_device import ToyCompiled, ToyDevice, core_with

import partita
from partita.errors import (
    BoundCallEndedError,
    InferCancelledError,
    InferError,
    InputError,
    PluginError,
)
from partita.runtime import async_run
from partita.runtime.binding import input_binding


class Bound(partita.BoundCall):
    """Negates one array into another, and counts."""

    moves = False

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.calls, self.failure = 0, None

    def __call__(self):
        self.calls += 1
        if self.failure is not None:
            raise self.failure
        np.negative(self.source.numpy(), out=self.target.numpy())

    def rebind(self, inputs):
        if self.moves:
            (self.source,) = inputs
        return self.moves


@pytest.fixture
def made(monkeypatch):
    """A request, and the bound calls that it asks for."""
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    bound = []

    def bind(inputs, outputs):
        bound.append(Bound(inputs[0], outputs[0]))
        return bound[-1]

    monkeypatch.setattr(request.runner, "bind", bind)
    return request, bound


@pytest.fixture
def in_place(monkeypatch):
    """Every input counts as large."""
    monkeypatch.setattr(input_binding, "STAGED_BYTES", 0)


def ones():
    return np.ones((2, 3), np.float32)


def test_the_same_array_is_bound_and_read_anew_each_time(made):
    request, bound = made
    x = ones()
    for value in range(1, 7):
        x[:] = value
        assert (request.infer({"x": x})[0] == -value).all()
    assert [one.calls for one in bound] == [4]


def test_tensors_set_before_are_bound(made):
    request, bound = made
    request.set_tensor("x", partita.Tensor(ones(), shared_memory=True))
    results = [request.infer()[0] for _ in range(5)]
    assert all((result == -1).all() for result in results)
    assert [one.calls for one in bound] == [3]


def test_another_small_array_is_copied_to_where_calls_read(made):
    request, bound = made
    x, other = ones(), 5 * ones()
    for _ in range(3):
        request.infer({"x": x})
    for value, array in ((-5, other), (-1, x), (-5, other)):
        assert (request.infer({"x": array})[0] == value).all()
        assert request.get_tensor("x").numpy() is array
    other[:] = 7
    assert (request.infer()[0] == -7).all()
    assert [one.calls for one in bound] == [5]


def test_an_array_that_changes_between_setting_and_running_is_looked_at_again(made):
    request, _ = made
    x, other = ones(), 5 * ones()
    for _ in range(4):
        request.infer({"x": x})
    request.set_tensors({"x": other})
    other[:] = 3
    assert (request.infer()[0] == -3).all()
    request.set_tensors({"x": x})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        x.shape = (3, 2)
    with pytest.raises(InputError, match=r"takes float32\[2, 3\]"):
        request.infer()


@pytest.mark.parametrize("moves", [True, False])
def test_another_large_array_is_read_in_place_if_the_device_can(made, moves, in_place):
    request, bound = made
    x, others = ones(), [5 * ones() for _ in range(3)]
    for _ in range(3):
        request.infer({"x": x})
    bound[0].moves = moves
    for value, array in enumerate(others):
        array[:] = value
        assert (request.infer({"x": array})[0] == -value).all()
    assert bound[0].calls == (4 if moves else 1)


def test_another_large_array_goes_the_whole_way(made, in_place):
    request, bound = made
    x, other = ones(), 5 * ones()
    for _ in range(3):
        request.infer({"x": x})
    assert (request.infer({"x": other})[0] == -5).all()
    assert [one.calls for one in bound] == [1]
    for _ in range(2):
        request.infer({"x": other})
    assert len(bound) == 1  # what has changed once is bound later
    for _ in range(3):
        request.infer({"x": other})
    assert [one.calls for one in bound] == [1, 2]


def test_an_array_whose_shape_was_changed_is_refused(made):
    request, _ = made
    x = ones()
    for _ in range(4):
        request.infer({"x": x})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of newer versions of numpy
        x.shape = (3, 2)
    with pytest.raises(InputError, match=r"takes float32\[2, 3\]"):
        request.infer({"x": x})


def test_an_output_that_is_set_later_is_written(made):
    request, bound = made
    x = ones()
    for _ in range(4):
        request.infer({"x": x})
    y = np.zeros((2, 3), np.float32)
    request.set_output_tensor(y)
    request.infer({"x": x})
    assert (y == -1).all()
    assert len(bound) == 1


def test_an_input_that_becomes_an_output_is_copied_first():
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    x = ones()
    request.infer({"x": x})
    request.set_output_tensor(x)
    for value in (-1, 1, -1):
        request.infer({"x": x})
        assert (x == value).all()


@pytest.mark.parametrize("staged_bytes", [0, 1 << 14], ids=["large", "small"])
@pytest.mark.parametrize("share", [False, True])
def test_asynchronous_runs_are_bound_too(made, monkeypatch, share, staged_bytes):
    monkeypatch.setattr(input_binding, "STAGED_BYTES", staged_bytes)
    request, bound = made
    x = ones()
    for value in range(1, 8):
        x[:] = value
        request.start_async({"x": x}, share_inputs=share)
        request.wait()
        assert (request.results[0] == -value).all()
    assert [one.calls for one in bound] == [5]


@pytest.mark.parametrize("staged_bytes", [0, 1 << 14], ids=["large", "small"])
@pytest.mark.parametrize("ends", [False, True])
def test_arrays_may_change_once_an_asynchronous_run_has_started(
    made, monkeypatch, staged_bytes, ends
):
    """Also if the request finds out late that its bound calls do not hold any more."""
    monkeypatch.setattr(input_binding, "STAGED_BYTES", staged_bytes)
    request, bound = made
    waiting = []
    monkeypatch.setattr(
        async_run.request_threads, "submit", lambda task, *args: waiting.append((task, args))
    )
    x = ones()
    for value in range(1, 8):
        x[:] = value
        if ends and value == 6:
            bound[0].failure = BoundCallEndedError("sizes have changed")
        request.start_async({"x": x})
        x[:] = 99
        task, args = waiting.pop()
        task(*args)
        request.wait()
        assert (request.results[0] == -value).all()
        assert (request.get_input_tensor(0).data == value).all()


def test_a_cancelled_run_asks_the_runner_again(made):
    """A runner that was told to stop learns from its next run that it may go on."""
    request, bound = made
    x = ones()
    for _ in range(4):
        request.infer({"x": x})

    def cancelled_meanwhile():
        request.cancel()
        return 1

    bound[0].__class__ = type("Cancels", (Bound,), {"__call__": lambda self: cancelled_meanwhile()})
    request.start_async({"x": x})
    with pytest.raises(InferCancelledError):
        request.wait()
    calls = bound[0].calls
    assert (request.infer({"x": x})[0] == -1).all()
    assert bound[0].calls == calls


@pytest.mark.parametrize("staged_bytes", [0, 1 << 14], ids=["large", "small"])
def test_what_a_cancelled_run_would_have_read_is_forgotten(made, monkeypatch, staged_bytes):
    """Cancelled before it began, it leaves no arrays that later bound calls take for brought."""
    monkeypatch.setattr(input_binding, "STAGED_BYTES", staged_bytes)
    request, _ = made
    monkeypatch.setattr(Bound, "moves", True, raising=False)
    waiting = []
    monkeypatch.setattr(
        async_run.request_threads, "submit", lambda task, *args: waiting.append((task, args))
    )

    def start(value, cancelled=False):
        request.start_async({"x": value * ones()})
        if cancelled:
            request.cancel()
        task, args = waiting.pop()
        task(*args)
        request.wait()
        assert (request.results[0] == -value).all()

    for value in range(3):
        start(value)
    with pytest.raises(InferCancelledError):
        start(3, cancelled=True)
    for value in range(4, 20, 2):
        start(value)
        assert (request.infer({"x": (value + 1) * ones()})[0] == -value - 1).all()


def test_what_a_bound_call_raises_names_the_device(made):
    request, bound = made
    x = ones()
    for _ in range(3):
        request.infer({"x": x})
    bound[0].failure = RuntimeError("lost")
    with pytest.raises(InferError, match=r"Device 'TOY' failed on model .*: RuntimeError: lost"):
        request.infer({"x": x})
    with pytest.raises(InferError, match="no run of the request has ended"):
        request.get_output_tensor()


@pytest.fixture
def given_out(monkeypatch):
    """The arrays that a device gives out for what is copied to and from it."""
    arrays = []

    def host_array(_, shape, dtype):
        arrays.append(np.zeros(shape, dtype))
        return arrays[-1]

    monkeypatch.setattr(ToyCompiled, "host_array", host_array, raising=False)
    return arrays


def test_copies_of_inputs_lie_in_two_arrays_of_the_device_by_turns(given_out):
    device = ToyDevice()  # whose runners bind nothing
    request = core_with(device).compile_model(neg(), "TOY").create_infer_request()
    lie_in = []
    for value in range(1, 7):
        request.start_async({"x": np.full((2, 3), value, np.float32)})
        request.wait()
        assert (request.results[0] == -value).all()
        lie_in.append(request.get_input_tensor().numpy())
    assert len(given_out) == 2
    assert all(array is given_out[n % 2] for n, array in enumerate(lie_in))
    request.start_async({"x": lie_in[-1]}, share_inputs=True)
    request.wait()
    assert len(given_out) == 2


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.float16),
        np.zeros((3, 2), np.float32).T,
        np.broadcast_to(np.float32(0), (2, 3)),
        [[0.0] * 3] * 2,
    ],
    ids=["shape", "type", "order", "read-only", "list"],
)
def test_a_host_array_that_does_not_fit_is_the_plugins_fault(monkeypatch, array):
    monkeypatch.setattr(ToyCompiled, "host_array", lambda *_: array, raising=False)
    request = core_with(ToyDevice()).compile_model(neg(), "TOY").create_infer_request()
    with pytest.raises(PluginError, match=r"'TOY' gave .* as a host array; expected float32"):
        request.start_async({"x": ones()})
    np.testing.assert_array_equal(request.infer({"x": ones()})[0], -ones())  # which copies nothing


def test_a_refused_input_leaves_the_copies_before_it(given_out):
    device = ToyDevice(compute=lambda a, b: [a + b, a - b])
    request = core_with(device).compile_model(add_sub(), "TOY").create_infer_request()
    request.start_async({"a": ones(), "b": ones()})
    request.wait()
    with pytest.raises(InputError):
        request.start_async({"a": 5 * ones(), "b": np.ones((7, 7), np.float32)})
    assert (request.get_tensor("a").numpy() == 1).all()
    request.start_async({"a": 2 * ones(), "b": ones()})
    request.wait()
    assert (request.results[0] == 3).all()
    assert len(given_out) <= 4
