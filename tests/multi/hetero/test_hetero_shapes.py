"""Shapes through cuts: symbols, sizes that data decide, empty tensors, state that is fed back."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import partita
from partita.errors import InputError

from ..fakes import FakeDevice, core_with

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
DEVICES = ["CPU", "CPU2", "REFERENCE", "OPENCL.0"]


def value(name, dims, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, dims)


def model(nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(
        nodes,
        "shapes",
        inputs,
        outputs,
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op_type, inputs, output, **attributes):
    outputs = [output] if isinstance(output, str) else output
    return helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes)


def compile_over(proto, devices, config=None):
    """The operations on these devices, in turns."""
    core = partita.Core()
    core.register_plugin("partita_cpu", "CPU2")
    read = core.read_model(proto)
    for index, op in enumerate(read.ops):
        op.affinity = devices[index % len(devices)]
    names = dict.fromkeys([*devices, "CPU", "REFERENCE"])
    return core.compile_model(read, f"HETERO:{','.join(names)}", config)


def expect(compiled, proto, feeds):
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    for have, due in zip(compiled(feeds).to_tuple(), want, strict=True):
        assert have.shape == due.shape
        assert have.dtype == due.dtype
        np.testing.assert_allclose(have, due, rtol=1e-5, atol=1e-5)


def attention():
    """Batch N and length S as symbols; a projection, scores and a residual."""
    rng = np.random.default_rng(0)
    # Scores of ten, not of a hundred, whose roundings exponentials make a hundred times as large.
    weights = [(n, rng.standard_normal((8, 8), np.float32) * np.float32(0.3)) for n in ("wq", "wk")]
    return model(
        [
            node("MatMul", ["x", "wq"], "q"),
            node("MatMul", ["x", "wk"], "k"),
            node("Transpose", ["k"], "kt", perm=[0, 2, 1]),
            node("MatMul", ["q", "kt"], "scores"),
            node("Softmax", ["scores"], "p", axis=-1),
            node("MatMul", ["p", "x"], "mixed"),
            node("Add", ["mixed", "x"], "y"),
            node("Shape", ["y"], "size"),
            node("ReduceMean", ["y"], "mean", axes=[1], keepdims=0),
        ],
        [value("x", ["N", "S", 8])],
        [value("y", ["N", "S", 8]), value("mean", ["N", 8]), value("size", [3], INT64)],
        weights,
    )


@pytest.mark.parametrize("executor", ["LINEAR", "DATAFLOW", "PARALLEL"])
@pytest.mark.parametrize("devices", [DEVICES[:2], DEVICES[:3], ["OPENCL.0", "CPU"]])
def test_batch_and_length_change_from_call_to_call(devices, executor):
    proto = attention()
    compiled = compile_over(proto, devices, {"HETERO_EXECUTOR": executor})
    rng = np.random.default_rng(1)
    for batch, length in [(1, 4), (2, 7), (1, 4), (3, 1), (0, 5), (2, 7)]:
        expect(compiled, proto, {"x": rng.standard_normal((batch, length, 8), dtype=np.float32)})


def test_a_new_shape_at_every_call_keeps_bounded_plans():
    proto, most = attention(), 100_000
    bounds = {name: {"SHAPE_CACHE_BYTES": most} for name in DEVICES[:2]}
    compiled = compile_over(proto, DEVICES[:2], {"DEVICE_PROPERTIES": bounds})
    rng = np.random.default_rng(2)
    for length in range(1, 81):
        expect(compiled, proto, {"x": rng.standard_normal((1, length, 8), dtype=np.float32)})
    kept = [part.specializer.programs for part in compiled.device_model.assembly.compiled]
    assert all(programs.nbytes <= most for programs in kept)
    assert min(map(len, kept)) < 80
    assert len(compiled.device_model.failover.expected_shapes.known) <= 16


@pytest.mark.parametrize("devices", [DEVICES[:2], ["CPU", "REFERENCE"], ["REFERENCE", "CPU"]])
def test_sizes_that_data_decide_cross(devices):
    proto = model(
        [
            node("Relu", ["x"], "r"),
            node("NonZero", ["r"], "where"),
            node("Transpose", ["where"], "rows", perm=[1, 0]),
            node("GatherND", ["r", "rows"], "kept"),
            node("Neg", ["kept"], "y"),
            node("Shape", ["kept"], "count"),
        ],
        [value("x", ["N", 3])],
        [value("y", [None]), value("count", [1], INT64)],
    )
    compiled = compile_over(proto, devices)
    rng = np.random.default_rng(3)
    for rows in (4, 1, 4, 0, 9):
        expect(compiled, proto, {"x": rng.standard_normal((rows, 3), dtype=np.float32)})
    expect(compiled, proto, {"x": -np.ones((4, 3), np.float32)})  # nothing is kept


@pytest.mark.parametrize("devices", [DEVICES[:2], ["CPU", "REFERENCE"], ["OPENCL.0", "CPU"]])
def test_the_boxes_that_are_left_cross(devices):
    proto = model(
        [
            node("Sigmoid", ["logits"], "scores"),
            node("NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], "picked"),
            node("Gather", ["picked", "two"], "index", axis=1),
            node("Gather", ["boxes2", "index"], "found", axis=0),
            node("Neg", ["found"], "y"),
        ],
        [value("logits", [1, 1, "B"]), value("boxes", [1, "B", 4]), value("boxes2", ["B", 4])],
        [value("y", [None, 4]), value("picked", [None, 3], INT64)],
        [
            ("most", np.array([10], np.int64)),
            ("iou", np.array([0.5], np.float32)),
            ("least", np.array([0.5], np.float32)),
            ("two", np.array(2, np.int64)),
        ],
    )
    compiled = compile_over(proto, devices)
    rng = np.random.default_rng(4)
    for count in (20, 7, 20, 1):
        corner = rng.uniform(0, 10, (count, 2))
        boxes = np.hstack([corner, corner + rng.uniform(1, 4, (count, 2))]).astype(np.float32)
        logits = rng.standard_normal((1, 1, count), dtype=np.float32)
        expect(compiled, proto, {"logits": logits, "boxes": boxes[None], "boxes2": boxes})
        none = np.full((1, 1, count), -9, np.float32)
        expect(compiled, proto, {"logits": none, "boxes": boxes[None], "boxes2": boxes})


def test_a_range_that_an_application_gives_holds_through_cuts():
    core = core_with(FakeDevice("A"), FakeDevice("B"))
    read = core.read_model(attention())
    read.reshape({"x": (2, "S", 8)})
    for index, op in enumerate(read.ops):
        op.affinity = "AB"[index % 2]
    compiled = core.compile_model(read, "HETERO:A,B")
    assert compiled.output("y").shape == (2, "S", 8)
    with pytest.raises(InputError, match=r"takes float32\[2, S, 8\]; found float32\[3, 4, 8\]"):
        compiled(np.zeros((3, 4, 8), np.float32))
    expect(compiled, attention(), {"x": np.ones((2, 5, 8), np.float32)})


def cell(batch):
    """A recurrent step: h' = tanh(x + h w), c' = c + h'."""
    w = np.random.default_rng(5).standard_normal((16, 16), dtype=np.float32) * np.float32(0.2)
    return model(
        [
            node("MatMul", ["h", "w"], "hw"),
            node("Add", ["x", "hw"], "sum"),
            node("Tanh", ["sum"], "h_next"),
            node("Add", ["c", "h_next"], "c_next"),
            node("ReduceSum", ["c_next"], "y", keepdims=0),
        ],
        [value(name, [batch, 16]) for name in ("x", "h", "c")],
        [value("h_next", [batch, 16]), value("c_next", [batch, 16]), value("y", [])],
        [("w", w)],
    )


@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize(
    "devices", [["CPU"], ["CPU", "CPU2"], ["CPU", "REFERENCE", "CPU"], ["OPENCL.0", "CPU"]]
)
def test_state_is_fed_back(devices, batch):
    proto = cell(batch)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    request = compile_over(proto, devices).create_infer_request()
    state = want_state = [np.zeros((2, 16), np.float32)] * 2
    rng = np.random.default_rng(6)
    for _ in range(8):
        x = rng.standard_normal((2, 16), dtype=np.float32)
        want = session.run(None, {"x": x, "h": want_state[0], "c": want_state[1]})
        request.set_input_tensor(0, x)
        request.set_input_tensor(1, state[0])
        request.set_input_tensor(2, state[1])
        request.infer()
        state = [request.get_output_tensor(0), request.get_output_tensor(1)]
        for have, due in zip(request.output_tensors, want, strict=True):
            np.testing.assert_allclose(have.numpy(), due, rtol=1e-5, atol=1e-5)
        want_state = want[:2]


@pytest.mark.parametrize("batch", [2, "N"])
@pytest.mark.parametrize("devices", [["CPU"], ["CPU", "CPU2"]])
def test_state_that_is_fed_back_is_not_copied(devices, batch):
    request = compile_over(cell(batch), devices).create_infer_request()
    x, zero = np.ones((2, 16), np.float32), np.zeros((2, 16), np.float32)
    request.infer({"x": x, "h": zero, "c": zero})
    places = []
    for _ in range(8):
        outputs = [request.get_output_tensor(i) for i in (0, 1)]
        for index, output in enumerate(outputs, 1):
            request.set_input_tensor(index, output)
        inputs = [request.get_input_tensor(i).numpy() for i in (1, 2)]
        places.append([array.ctypes.data for array in inputs])
        shared = [np.shares_memory(a, b.numpy()) for a, b in zip(inputs, outputs, strict=True)]
        assert shared == [len(places) > 1] * 2, "only the first time elements are copied"
        request.infer()
    assert len({place for pair in places[1:] for place in pair}) == 4, "two buffers for each state"


def test_two_requests_that_hand_state_to_one_another_copy_nothing():
    compiled = compile_over(cell(2), ["CPU", "CPU2"])
    first, second = compiled.create_infer_request(), compiled.create_infer_request()
    x, zero = np.ones((2, 16), np.float32), np.zeros((2, 16), np.float32)
    first.infer({"x": x, "h": zero, "c": zero})
    for output, source in ((0, "h"), (1, "c")):
        tensor = first.get_output_tensor(output)
        second.set_tensor(source, tensor)
        assert second.get_tensor(source) is tensor
    second.set_tensor("x", x)
    second.infer()
    assert np.isfinite(second.get_output_tensor(2).numpy())


def test_outputs_of_hetero_are_written_where_the_application_wants_them():
    proto = cell(2)
    request = compile_over(proto, ["CPU", "CPU2"]).create_infer_request()
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    target = np.zeros((2, 16), np.float32)
    for round_number in range(4):
        if round_number == 2:
            request.set_output_tensor(0, target)
        feeds = {n: np.full((2, 16), round_number + 1, np.float32) for n in ("x", "h", "c")}
        request.infer(feeds)
        want = session.run(None, feeds)
        for have, due in zip(request.output_tensors, want, strict=True):
            np.testing.assert_allclose(have.numpy(), due, rtol=1e-5, atol=1e-5)
    assert request.get_output_tensor(0).numpy() is target
