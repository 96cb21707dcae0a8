"""Packed weights that device OPENCL has are kept by the host no longer; they can be read back."""

import gc
import tracemalloc
import weakref

import numpy as np
import pyopencl as cl
import pytest
from onnx import helper, numpy_helper

from partita.errors import InferError
from partita.lowering import Form, Packed, Prepacked
from partita_opencl.device.device import find_device
from partita_opencl.launches.steps import ConcatenatedConstants
from partita_opencl.runtime.execution_plan import Constants

from ..comparison import build, core, floats
from ..networks.test_opencl_decoder_fusion import product

SIZE, LAYERS = 1024, 4
BYTES = LAYERS * SIZE * SIZE * 4


def layers():
    """Products with weights one after another, of a number of rows that only runs tell."""
    weights = [floats(SIZE, SIZE) / SIZE**0.5 for _ in range(LAYERS)]
    names = ["x", *(f"h{n}" for n in range(LAYERS - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(LAYERS)]
    named = [numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights)]
    return build(nodes, {"x": floats(2, SIZE)}, ["y"], named), weights


def test_the_host_keeps_no_packed_weights_for_all_numbers_of_rows():
    serialized, weights = layers()
    model = core().read_model(serialized)
    model.reshape({"x": ["rows", SIZE]})
    tracemalloc.start()
    try:
        compiled = core().compile_model(model, "OPENCL")
        for rows in (2, 5, 40):
            x = floats(rows, SIZE)
            wanted = x.astype(np.float64)
            for w in weights:
                wanted = wanted @ w.astype(np.float64)
            np.testing.assert_allclose(compiled({"x": x})[0], wanted, rtol=1e-4, atol=1e-4)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.5 * BYTES  # elements that were packed, which lie in no file


def test_the_host_keeps_nothing_that_it_made_of_products_that_are_computed_as_one(monkeypatch):
    made = []
    stack = np.stack

    def noted(*args):
        array = stack(*args)
        made.append(weakref.ref(array))
        return array

    monkeypatch.setattr(np, "stack", noted)  # by which columns of both products take turns
    (gate, weights), (up, others) = (product(name, "x", 40, 64) for name in ("gate", "up"))
    nodes = [
        gate,
        up,
        helper.make_node("Sigmoid", ["gate"], ["share"]),
        helper.make_node("Mul", ["gate", "share"], ["opened"]),
        helper.make_node("Mul", ["opened", "up"], ["y"]),
    ]
    x = floats(1, 64)
    model = core().read_model(build(nodes, {"x": x}, ["y"], weights + others))
    request = core().compile_model(model, "OPENCL").create_infer_request()
    request.infer({"x": x})
    gc.collect()
    assert len(made) >= 2  # data and scales; a GPU stacks more
    assert not any(array() is not None for array in made)


def packed(array):
    made = Prepacked(releasable=True).operand(array, "negative", np.negative)
    assert isinstance(made, Packed)
    return made


def test_weights_are_read_back_from_their_own_buffer_and_from_that_of_several():
    arrays = [floats(40, 30), floats(7), floats(0, 3), floats(20, 5)]
    constants = Constants(find_device(""))
    first, *others = map(packed, arrays)
    buffer = constants.buffer(first)
    np.testing.assert_array_equal(first.const, -arrays[0])
    assert constants.buffer(first.viewed((1200,))) is buffer
    joined = ConcatenatedConstants((first, *others))
    held = constants.joined(joined)
    for operand, array in zip((first, *others), arrays, strict=True):
        np.testing.assert_array_equal(operand.const, -array)
    assert constants.joined(joined) is held


def test_weights_of_a_stated_form_are_made_when_the_device_gets_them():
    made = []

    def negative(array):
        made.append(array.shape)
        return -array

    array = floats(40, 30)
    prepacked = Prepacked(releasable=True)
    operand = prepacked.operand(array, "negative", negative, form=Form(np.float32, (40, 30)))
    assert isinstance(operand, Packed)
    assert operand.is_constant
    assert not made
    constants = Constants(find_device(""))
    buffer = constants.buffer(operand)
    assert constants.buffer(operand.viewed((1200,))) is buffer
    np.testing.assert_array_equal(operand.const, -array)
    assert made == [(40, 30)]


def test_weights_that_are_not_of_their_form_do_not_reach_the_device():
    prepacked = Prepacked(releasable=True)
    form = Form(np.float32, (30, 40))
    operand = prepacked.operand(floats(40, 30), "negative", np.negative, form=form)
    with pytest.raises(RuntimeError, match=r"'negative' made float32\(40, 30\)"):
        Constants(find_device("")).buffer(operand)


def test_a_device_that_has_failed_is_told_when_weights_are_read_back(monkeypatch):
    device = find_device("")
    made = packed(floats(4, 4))
    constants = Constants(device)
    constants.buffer(made)

    def fail(*_):
        raise cl.RuntimeError("gone")

    monkeypatch.setattr(device, "read", fail)
    with pytest.raises(InferError, match="failed while computing"):
        _ = made.const


def test_weights_in_a_form_that_is_not_used_any_more_leave_the_device(monkeypatch):
    kept = []
    begin = Constants.__init__

    def noted(constants, *args):
        begin(constants, *args)
        kept.append(weakref.ref(constants))

    monkeypatch.setattr(Constants, "__init__", noted)
    serialized, _ = layers()
    compiled = core().compile_model(core().read_model(serialized), "OPENCL")
    x = floats(2, SIZE)
    first = np.array(compiled.create_infer_request().infer({"x": x})[0])
    compiled.device_model.stop_waiting()
    second = np.array(compiled.create_infer_request().infer({"x": x})[0])
    np.testing.assert_array_equal(second, first)
    gc.collect()
    there = [constants.nbytes for ref in kept if (constants := ref()) is not None]
    assert BYTES <= sum(there) < 1.5 * BYTES
