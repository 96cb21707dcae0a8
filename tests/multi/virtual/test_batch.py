"""BATCH: requests that come together are one run, and each gets its own rows."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita as ov
from partita.errors import DeviceError, InferCancelledError
from partita.frontends.reader import read_model
from partita.zoo.naming import resolve
from partita_virtual.batch.batched_model import batched

from ..fakes import FakeDevice, core_with, evaluate
from ..graphs import model_of, node

NET = model_of(
    [node("MatMul", ["x", "w"], "p"), node("Softmax", ["p"], "y", axis=1)],
    ["y"],
    initializers=[("w", np.arange(12, dtype=np.float32).reshape(3, 4) / 10)],
    shape=(1, 3),
)
ROWS = [np.array([[i, -i, i / 2]], np.float32) for i in range(12)]


def together(compiled, count):
    """What so many requests give that are started together."""
    requests = [compiled.create_infer_request() for _ in range(count)]
    for request, row in zip(requests, ROWS, strict=False):
        request.start_async(row)
    for request in requests:
        request.wait()
    return [request.results[0].copy() for request in requests]


def check(results):
    for row, result in zip(ROWS, results, strict=False):
        np.testing.assert_allclose(result, evaluate(NET, {"x": row})[0], rtol=1e-6)


def test_requests_share_a_run():
    device, config = FakeDevice("A"), {"AUTO_BATCH_TIMEOUT": 60_000}
    compiled = core_with(device).compile_model(NET, "BATCH:A(4)", config)
    assert compiled.optimal_number_of_infer_requests == 4
    assert compiled.get_property("BATCH_SIZE") == 4
    check(together(compiled, 8))
    assert device.runs == 2
    assert [model.inputs[0].shape for model in device.compiled] == [(1, 3), (4, 3)]
    assert compiled.explain().notes == [
        "batches of 4: 2 have run; requests wait 60000 ms for others"
    ]


def test_a_queue_is_as_large_as_its_batches():
    compiled = ov.Core().compile_model(NET, "BATCH:CPU(3)")
    queue = ov.AsyncInferQueue(compiled)
    got = {}
    queue.set_callback(lambda request, index: got.update({index: request.results[0].copy()}))
    for index, row in enumerate(ROWS):
        queue.start_async(row, index)
    queue.wait_all()
    check([got[index] for index in range(len(ROWS))])


def test_a_request_does_not_wait_for_others_that_do_not_exist():
    device = FakeDevice("A")
    config = {"AUTO_BATCH_TIMEOUT": 3_600_000}
    compiled = core_with(device).compile_model(NET, "BATCH:A(4)", config)
    check([compiled(ROWS[0])[0]])
    assert device.runs == 1


def test_too_few_requests_run_one_by_one_when_time_is_up():
    device = FakeDevice("A")
    compiled = core_with(device).compile_model(NET, "BATCH:A(4)", {"AUTO_BATCH_TIMEOUT": 20})
    check(together(compiled, 3))
    assert device.runs == 3


def test_a_batch_is_no_larger_than_the_requests_that_there_will_be():
    config = {"PERFORMANCE_HINT_NUM_REQUESTS": 3}
    compiled = core_with(FakeDevice("A")).compile_model(NET, "BATCH:A", config)
    assert compiled.get_property("BATCH_SIZE") == 3
    assert core_with(FakeDevice("A")).compile_model(NET, "BATCH:A").get_property("BATCH_SIZE") == 8


def test_a_batch_that_fails_runs_one_by_one():
    device, config = FakeDevice("A", fails_at_run=[1]), {"AUTO_BATCH_TIMEOUT": 60_000}
    compiled = core_with(device).compile_model(NET, "BATCH:A(2)", config)
    check(together(compiled, 2))
    assert device.runs == 3
    assert "one failed, and ran one by one: the device fell over" in compiled.explain().notes[0]


def test_a_waiting_request_can_be_cancelled():
    device = FakeDevice("A")
    config = {"AUTO_BATCH_TIMEOUT": 3_600_000}
    compiled = core_with(device).compile_model(NET, "BATCH:A(2)", config)
    first, second, third = (compiled.create_infer_request() for _ in range(3))
    first.start_async(ROWS[0])
    first.cancel()
    with pytest.raises(InferCancelledError):
        first.wait()
    second.start_async(ROWS[1])
    third.start_async(ROWS[2])
    second.wait()
    third.wait()
    np.testing.assert_allclose(second.results[0], evaluate(NET, {"x": ROWS[1]})[0], rtol=1e-6)
    assert device.runs == 1


def test_requests_of_several_rows_run_by_themselves():
    proto = model_of([node("Neg", ["x"], "y")], ["y"], shape=("N", 3))
    device = FakeDevice("A")
    compiled = core_with(device).compile_model(proto, "BATCH:A(2)")
    x = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(compiled(x)[0], -x)
    first, second = together(compiled, 2)
    np.testing.assert_array_equal(first, -ROWS[0])
    np.testing.assert_array_equal(second, -ROWS[1])
    assert device.runs == 2


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("BATCH:A,REFERENCE", "BATCH gathers requests for one device; it was given A, REFERENCE"),
        ("BATCH:-A", "takes no device away"),
        ("BATCH:A(0)", "the form is"),
        ("BATCH:BATCH", "its own devices"),
    ],
)
def test_lists_that_make_no_sense(device, said):
    with pytest.raises(DeviceError, match=said):
        core_with(FakeDevice("A")).compile_model(NET, device)


def test_exported():
    core = ov.Core()
    compiled = core.compile_model(NET, "BATCH:CPU(2)")
    again = core.import_model(compiled.export_model(), "BATCH")
    assert again.get_property("MULTI_DEVICE_PRIORITIES") == "CPU(2)"
    check(together(again, 2))


# ------------------------------------------------------------------ which models have rows


def graph(nodes, shape=(1, 4), weights=(), opset=17):
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


INDEX, WIDE = np.int64, np.ones((4, 4), np.float32)

SEPARATE = {
    "a literal batch of 1": graph(
        [node("Reshape", ["x", "to"], "y")], (1, 2, 2), [("to", INDEX([1, -1]))]
    ),
    "a shape that is computed": graph(
        [
            node("Shape", ["x"], "s"),
            node("Gather", ["s", "zero"], "n"),
            node("Concat", ["n", "rest"], "to", axis=0),
            node("Reshape", ["x", "to"], "y"),
        ],
        (1, 2, 2),
        [("zero", INDEX([0])), ("rest", INDEX([-1]))],
    ),
    "weights on both sides": graph(
        [node("MatMul", ["x", "w"], "p"), node("Add", ["b", "p"], "y")],
        weights=[("w", WIDE), ("b", np.ones(4, np.float32))],
    ),
    "there and back": graph(
        [node("Transpose", ["x"], "t", perm=[1, 0]), node("Transpose", ["t"], "y", perm=[1, 0])]
    ),
    "a mean of each row": graph([node("ReduceMean", ["x"], "y", axes=[1], keepdims=1)]),
    "a product of each with itself": graph([node("MatMul", ["x", "x"], "y")], (1, 2, 2)),
    "a part of each row": graph(
        [node("Slice", ["x", "one", "two", "one"], "y")],
        weights=[("one", INDEX([1])), ("two", INDEX([2]))],
    ),
}
MIXED = {
    "softmax over rows": graph([node("Softmax", ["x"], "y", axis=0)]),
    "softmax over all, of old": graph([node("Softmax", ["x"], "y", axis=0)], opset=11),
    "a mean over rows": graph([node("ReduceMean", ["x"], "y", axes=[0], keepdims=1)]),
    "a running sum": graph([node("CumSum", ["x", "zero"], "y")], weights=[("zero", np.int32(0))]),
    "rows in reverse": graph(
        [node("Slice", ["x", "last", "far", "zero", "last"], "y")],
        weights=[("last", INDEX([-1])), ("far", INDEX([-9])), ("zero", INDEX([0]))],
    ),
    "rows against rows": graph(
        [node("Transpose", ["x"], "t", perm=[1, 0]), node("MatMul", ["x", "t"], "y")]
    ),
    "a sum over rows": graph([node("MatMul", ["w", "x"], "y")], weights=[("w", WIDE[:1, :1])]),
    "the number of rows": graph(
        [
            node("Shape", ["x"], "s"),
            node("Cast", ["s"], "f", to=TensorProto.FLOAT),
            node("ReduceSum", ["f"], "n", keepdims=1),
            node("Div", ["x", "n"], "y"),
        ]
    ),
    "one scale for all": graph(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="quantize"),
            node("DequantizeLinear", ["q", "s", "z"], "y"),
        ]
    ),
    "indices into all rows": graph(
        [node("Flatten", ["x"], "f", axis=0), node("Gather", ["f", "zero"], "y", axis=1)],
        weights=[("zero", INDEX([0]))],
    ),
    "two rows already": graph([node("Neg", ["x"], "y")], (2, 4)),
    "no first dimension": graph([node("Neg", ["x"], "y")], ()),
    "an operator that nobody knows rows of": graph(
        [node("NonZero", ["x"], "i"), node("Cast", ["i"], "y", to=TensorProto.FLOAT)]
    ),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_rows_that_do_not_meet(name):
    proto = SEPARATE[name]
    found = batched(read_model(proto), 3)
    assert isinstance(found, ov.Model), str(found)
    x = np.random.default_rng(0).standard_normal((3, *found.inputs[0].shape[1:])).astype(np.float32)
    (together,) = evaluate(found.to_onnx(), {"x": x})
    for row in range(3):
        (alone,) = evaluate(proto, {"x": x[row : row + 1]})
        np.testing.assert_allclose(together[row : row + 1], alone, rtol=1e-5)


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_meet(name):
    found = batched(read_model(MIXED[name]), 3)
    assert isinstance(found, ov.Reason), found
    compiled = core_with(FakeDevice("A")).compile_model(MIXED[name], "BATCH:A(3)")
    assert compiled.get_property("BATCH_SIZE") == 1
    assert compiled.explain().notes == [f"requests run one by one: {found}"]


def test_the_light_networks_have_rows():
    for name in ("light:squeezenet", "light:shufflenet"):
        found = batched(read_model(resolve(name).source), 2)
        assert isinstance(found, ov.Model), str(found)
        assert found.outputs[0].shape[:2] == (2, 1000)


def test_threads_that_call_the_same_model():
    compiled = ov.Core().compile_model(NET, "BATCH:CPU(2)", {"AUTO_BATCH_TIMEOUT": 50})
    failures = []

    def work(row):
        for _ in range(5):
            try:
                check_row(row, compiled(ROWS[row])[0])
            except AssertionError as error:
                failures.append(error)

    def check_row(row, result):
        np.testing.assert_allclose(result, evaluate(NET, {"x": ROWS[row]})[0], rtol=1e-6)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
