"""State in the memory of OPENCL devices: written there by kernels, and copied by nothing."""

from __future__ import annotations

from unittest import mock

import numpy as np
import onnxruntime
import pytest
from decoders import WIDTH, grouped_decoder
from models import model_of, node, value

import partita
from partita.errors import InferError

pytest.importorskip("pyopencl")
from partita_opencl.device.device import find_device
from partita_opencl.device.device_tensor import OpenClTensor
from partita_opencl.runtime.runner import OpenClRunner

ROOM = 64
DEVICES = ["OPENCL", "HETERO:OPENCL,CPU"]


@pytest.fixture(params=["host memory", "its own memory"])
def memory(request, monkeypatch):
    """The device as it is, or as one that has memory of its own."""
    if request.param == "its own memory":
        monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    elif not find_device("").shares_host:
        pytest.skip("the device does not work in host memory")
    return request.param


def compiled(device, pin=None):
    core = partita.Core()
    model = core.read_model(grouped_decoder(ROOM).SerializeToString())
    for op in model.ops:
        op.affinity = pin if pin is not None and op.op_type == "MatMul" else None
    return core.compile_model(model, device)


def steps(count=20):
    """A prompt of seven tokens, then one at a time."""
    drawn = np.random.default_rng(3)
    for tokens, at in [(7, 0), *((1, at) for at in range(7, 7 + count))]:
        yield {
            "x": drawn.standard_normal((1, tokens, 2 * WIDTH)).astype(np.float32),
            "seqlens_k": np.array([at + tokens - 1], np.int32),
            "total_sequence_length": np.array(at + tokens, np.int32),
        }


def judged(count=20):
    """Logits of each step and the caches at the end, by onnxruntime."""
    proto = grouped_decoder(ROOM).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    pasts = {f"past.{x}": np.zeros((1, 1, ROOM, WIDTH), np.float32) for x in ("key", "value")}
    logits = []
    for feeds in steps(count):
        found, *caches = session.run(None, feeds | pasts)
        logits.append(found)
        pasts = dict(zip(pasts, caches, strict=True))
    return logits, pasts


def assert_right(request, count=20):
    logits, pasts = judged(count)
    for feeds, due in zip(steps(count), logits, strict=True):
        found = request.infer(feeds)["logits"]
        np.testing.assert_allclose(found, due, rtol=1e-4, atol=1e-5)
    for one in request.query_state():
        np.testing.assert_allclose(one.state.data, pasts[f"past.{one.name}"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pin", [None, "CPU"])
@pytest.mark.parametrize("device", DEVICES)
def test_state_lies_on_the_device(device, pin, memory):
    if pin is not None and device == "OPENCL":
        pin = None  # there is no other device
    request = compiled(device, pin).create_infer_request()
    due = "host" if memory == "host memory" else find_device("").memory
    assert {request.get_tensor(f"past.{x}").memory for x in ("key", "value")} == {due}
    downloads = AssertionError("state was brought to the host")
    logits, _ = judged()
    with mock.patch.object(OpenClTensor, "copy_from", side_effect=downloads):
        for feeds, expected in zip(steps(), logits, strict=True):
            found = request.infer(feeds)["logits"]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    request.reset_state()
    assert_right(request, 3)


@pytest.mark.parametrize("pin", [None, "CPU"])
@pytest.mark.parametrize("device", DEVICES)
def test_steps_are_bound(device, pin, memory):
    request = compiled(device, pin if device != "OPENCL" else None).create_infer_request()
    logits, pasts = judged()
    for number, (feeds, due) in enumerate(zip(steps(), logits, strict=True)):
        if number < 6:
            found = request.infer(feeds)["logits"]
        else:
            with mock.patch.object(OpenClRunner, "run", side_effect=AssertionError("a run")):
                found = request.infer(feeds)["logits"]
        np.testing.assert_allclose(found, due, rtol=1e-4, atol=1e-5)
    for one in request.query_state():
        np.testing.assert_allclose(one.state.data, pasts[f"past.{one.name}"], rtol=1e-4, atol=1e-5)


def test_bound_steps_of_two_shapes_by_turns(memory):
    request = compiled("OPENCL").create_infer_request()
    for _ in range(4):
        request.reset_state()
        assert_right(request, 5)


def test_large_inputs_are_read_where_they_are_now(memory):
    core = partita.Core()
    proto = model_of([node("Neg", ["x"], "y")], [value("x", (8192,))], ["y"])
    request = core.compile_model(core.read_model(proto), "OPENCL").create_infer_request()
    arrays = [np.full(8192, number, np.float32) for number in range(4)]
    for turn in range(12):
        x = arrays[turn % 4 if turn > 4 else 0]
        x += 1
        np.testing.assert_array_equal(request.infer({"x": x})["y"], -x)


def test_no_copy_is_launched(memory):
    request = compiled("OPENCL").create_infer_request()
    assert_right(request)
    assert "copy_box" not in [step.how for step in request.explain_execution().steps]


@pytest.mark.parametrize("device", DEVICES)
def test_state_is_set_saved_and_restored(device, memory, tmp_path):
    model = compiled(device)
    one, other = model.create_infer_request(), model.create_infer_request()
    assert_right(one, 5)
    one.save_state(tmp_path / "state")
    other.load_state(tmp_path / "state")
    for mine, theirs in zip(one.query_state(), other.query_state(), strict=True):
        np.testing.assert_array_equal(mine.state.data, theirs.state.data)
        mine.state = np.full((1, 1, ROOM, WIDTH), 3, np.float32)
        assert (mine.state.data == 3).all()
        assert not (theirs.state.data == 3).all()
        mine.reset()
        assert not mine.state.data.any()
    assert_right(one)


@pytest.mark.parametrize("device", DEVICES)
def test_one_array_of_the_application_for_both(device, memory):
    model = compiled(device).model
    del model.ir.metadata_props["partita.variables"]
    request = partita.Core().compile_model(model, device).create_infer_request()
    caches = {x: np.zeros((1, 1, ROOM, WIDTH), np.float32) for x in ("key", "value")}
    for name, cache in caches.items():
        request.set_tensor(f"past.{name}", cache)
        request.set_tensor(f"present.{name}", cache)
    logits, pasts = judged()
    for feeds, due in zip(steps(), logits, strict=True):
        np.testing.assert_allclose(request.infer(feeds)["logits"], due, rtol=1e-4, atol=1e-5)
    for name, cache in caches.items():
        np.testing.assert_allclose(cache, pasts[f"past.{name}"], rtol=1e-4, atol=1e-5)


def test_a_tensor_takes_only_what_is_like_it(monkeypatch):
    monkeypatch.setitem(vars(find_device("")), "shares_host", False)
    tensor = compiled("OPENCL").create_infer_request().get_tensor("past.key")
    with pytest.raises(InferError, match="cannot take the elements of"):
        tensor.copy_from(partita.HostTensor(np.zeros(3, np.float32)))
