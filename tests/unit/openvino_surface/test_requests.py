"""Cores, compiled models, requests and queues answer as OpenVINO's do."""

from __future__ import annotations

import io

import numpy as np
import pytest
from models import add_sub, affine, model_of, neg, node, value
from onnx import TensorProto

import partita as ov
import partita.properties as props
import partita.properties.device as device
import partita.properties.hint as hints
from partita.errors import DeviceNotFoundError, InferError, InputError, PropertyError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def core():
    return ov.Core()


@pytest.fixture(scope="module")
def compiled(core):
    return core.compile_model(add_sub(), "CPU")


def test_outputs_are_there_before_the_first_run(compiled):
    request = compiled.create_infer_request()
    target = request.get_output_tensor(0)
    assert (target.shape, target.data.any()) == ((2, 3), False)
    assert [tensor.shape for tensor in request.output_tensors] == [(2, 3)] * 2
    for step in range(4):
        request.infer([X + step, X])
        np.testing.assert_array_equal(target.data, 2 * X + step)
        assert request.get_output_tensor(0).data is target.data
    assert request.latency > 0


def test_inputs_of_any_size_are_filled_before_the_first_run(core):
    request = core.compile_model(affine(), "CPU").create_infer_request()
    tensor = request.get_input_tensor()
    assert tensor.shape == (0, 4)
    tensor.shape = [2, 4]
    tensor.data[:] = 1
    assert request.infer()[0].shape == (2, 3)
    with pytest.raises(InferError, match="is not there: no run of the request has ended"):
        core.compile_model(affine(), "CPU").create_infer_request().get_output_tensor()


def test_tensors_of_a_batch_are_joined(core):
    request = core.compile_model(neg(["N", 3]), "CPU").create_infer_request()
    request.set_input_tensors([ov.Tensor(X[:1]), ov.Tensor(X[1:])])
    np.testing.assert_array_equal(request.infer()[0], -X)
    request.set_input_tensors(0, [ov.Tensor(X)] * 2)
    assert request.infer()[0].shape == (4, 3)
    for parts, why in (([], "at least one array"), ([X, X[0]], "same number of dimensions")):
        with pytest.raises(InputError, match=f"tensors for input 0 make no batch: .*{why}"):
            request.set_input_tensors(0, parts)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("name", ["set_input_tensor", "set_input_tensors", "set_output_tensor"])
def test_tensors_are_set_by_one_or_two_arguments(compiled, name, count):
    given = [0, X, X][:count]
    with pytest.raises(InputError, match=f"and what to set there; found {count} arguments"):
        getattr(compiled.create_infer_request(), name)(*given)


def test_tensors_are_set_by_keys(compiled):
    request = compiled.create_infer_request()
    for name in ("set_tensors", "set_output_tensors"):
        with pytest.raises(InputError, match="a dict of index, name or port to tensor; found list"):
            getattr(request, name)([X])
    with pytest.raises(InputError, match=r"are set by index, name or port; found \[0\]"):
        request.set_input_tensor([0], X)


def test_queues_tell_whose_runs_go_on(compiled):
    queue = ov.AsyncInferQueue(compiled, 3)
    assert (len(queue), queue.userdata, queue.is_ready()) == (3, [None] * 3, True)
    seen = []
    queue.set_callback(lambda request, data: seen.append((data, queue.userdata.count(data))))
    for number in range(5):
        queue.start_async({0: X, 1: X}, userdata=number)
    queue.wait_all()
    assert sorted(seen) == [(number, 1) for number in range(5)]
    assert queue.userdata == [None] * 3


def test_texts_come_as_texts_or_as_utf8(core):
    text = TensorProto.STRING
    model = model_of([node("Identity", ["x"], "y")], [value("x", [2], text)],
                     [value("y", [2], text)])  # fmt: skip
    compiled = core.compile_model(model, "REFERENCE")
    for given in (["a", "é"], np.array(["a", "é"]), ov.Tensor(["a", "é"])):
        assert compiled({"x": given})[0].tolist() == ["a", "é"]
    found = compiled({"x": ["a", "é"]}, decode_strings=False)[0]
    assert found.tolist() == [b"a", "é".encode()]


def test_a_compiled_model(compiled, core):
    assert compiled.query_state() == []
    compiled.reset_state()
    compiled([X, X])
    compiled.release_memory()
    np.testing.assert_array_equal(compiled([X, X])[0], 2 * X)
    with pytest.raises(PropertyError, match=r"'NUM_STREAMS' cannot be set\. Give them to compile_"):
        compiled.set_property({"NUM_STREAMS": 2})
    runtime = compiled.get_runtime_model()
    assert {op.get_rt_info()["runtime_device"] for op in runtime.get_ops()} == {"CPU"}
    assert not any("runtime_device" in op.rt_info for op in compiled.model.ops)
    stream = io.BytesIO()
    blob = compiled.export_model(stream)
    assert stream.getvalue() == blob
    for source in (blob, stream, ov.Tensor(np.frombuffer(blob, np.uint8))):
        again = core.import_model(source, "CPU")
        np.testing.assert_array_equal(again([X, X])[1], 0 * X)


def test_models_are_read_from_streams(core):
    stream = io.BytesIO(neg().SerializeToString())
    stream.read(3)
    for model in (core.read_model(stream), stream):
        np.testing.assert_array_equal(core.compile_model(model, "CPU")(X)[0], -X)


def test_files_that_are_open_and_tensors_are_models_wherever_bytes_are(core, tmp_path):
    data = neg().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data)
    with (tmp_path / "m.onnx").open("rb") as file:
        for make in (lambda: file, lambda: ov.Tensor(np.frombuffer(data, np.uint8).copy())):
            assert len(core.query_model(make(), "CPU")) == 1
            file.seek(0)
            np.testing.assert_array_equal(core.compile_model(make(), "CPU")(X)[0], -X)
            file.seek(0)


def test_versions(core):
    found = core.get_versions("CPU")["CPU"]
    assert f"{found.major}.{found.minor}.{found.patch}" == ov.__version__


def test_unloading_forgets_what_was_set():
    core = ov.Core()
    core.set_property("CPU", {"NUM_STREAMS": 2})
    core.unload_plugin("CPU")
    assert core.get_property("CPU", "NUM_STREAMS") == 0
    assert core.compile_model(neg(), "CPU")(X)[0].shape == (2, 3)
    with pytest.raises(DeviceNotFoundError, match="There is no device 'NOPE'"):
        core.unload_plugin("NOPE")


@pytest.mark.parametrize(
    ("given", "streams"),
    [("AUTO", 0), (-1, 0), (props.streams.Num.AUTO, 0), ("NUMA", 1), (-2, 1), ("2", 2)],
)
def test_numbers_of_streams(given, streams):
    core = ov.Core()
    core.set_property("CPU", {props.num_streams: given})
    assert core.get_property("CPU", props.num_streams()) == streams


def test_streams_are_no_more_than_the_requests_there_will_be(core):
    config = {hints.performance_mode: hints.PerformanceMode.THROUGHPUT, hints.num_requests: 1}
    compiled = core.compile_model(neg(), "CPU", config)
    assert compiled.get_property(props.optimal_number_of_infer_requests) == 1
    with pytest.raises(PropertyError, match="'NUM_STREAMS' of device 'CPU' cannot be 'many'"):
        core.compile_model(neg(), "CPU", {props.num_streams: "many"})


def test_what_the_processor_can(core):
    able = core.get_property("CPU", device.capabilities)
    assert {"FP32", "EXPORT_IMPORT"} <= set(able) <= {*device.Capability}
    low, high = core.get_property("CPU", props.range_for_streams)
    assert 1 == low <= high
    assert core.get_property("CPU", props.range_for_async_infer_requests) == (1, high, 1)
    assert core.get_property("CPU", "SUPPORTED_PROPERTIES")["RANGE_FOR_STREAMS"] == "RO"
    assert core.get_property("CPU", device.architecture)
    with pytest.raises(PropertyError, match="'RANGE_FOR_STREAMS' of device 'CPU' is read-only"):
        core.set_property("CPU", {props.range_for_streams: (1, 2)})
