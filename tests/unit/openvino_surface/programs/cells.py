"""What cells of OpenVINO's tutorials do, each as a function."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np

import partita as ov
import partita.properties as props
import partita.properties.device as device
import partita.properties.hint as hints
from partita import opset13 as ops

X = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
A = np.arange(6, dtype=np.float32).reshape(2, 3)


def list_devices(files):
    core = ov.Core()
    devices = core.available_devices
    named = {name: core.get_property(name, "FULL_DEVICE_NAME") for name in devices[:1]}
    return np.array(["CPU" in devices, len(named)]), np.array([True, 1])


def read_and_compile_onnx(files):
    core = ov.Core()
    model_onnx = core.read_model(model=files / "sums.onnx")
    compiled = core.compile_model(model=model_onnx, device_name="CPU")
    return compiled([A, A])[0], 2 * A


def compile_from_a_path_as_text(files):
    compiled = ov.compile_model(str(files / "sums.onnx"), "CPU")
    return compiled({"a": A, "b": A})[compiled.output("s")], 2 * A


def information_about_inputs(files):
    model = ov.Core().read_model(files / "classifier.onnx")
    input_layer = model.input(0)
    found = [
        input_layer.any_name == "x",
        input_layer.element_type == ov.Type.f32,
        str(input_layer.partial_shape) == "[1,3,2,2]",
        list(input_layer.shape) == [1, 3, 2, 2],
        model.output(0).any_name == "y",
    ]
    return np.array(found), np.ones(5, bool)


def sizes_of_an_input(files):
    compiled = ov.Core().compile_model(files / "classifier.onnx", "CPU")
    n, c, h, w = compiled.input(0).shape
    return np.array([n, c, h, w]), np.array([1, 3, 2, 2])


def infer_with_a_request(files):
    compiled = ov.Core().compile_model(files / "sums.onnx", "CPU")
    request = compiled.create_infer_request()
    request.infer(inputs={compiled.input("a").any_name: A, compiled.input("b").any_name: 3 * A})
    return request.get_output_tensor(compiled.output("s").index).data, 4 * A


def one_array_for_one_input(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    return compiled([A])[compiled.output(0)], -A


def a_dict_by_index(files):
    compiled = ov.Core().compile_model(files / "sums.onnx", "CPU")
    return compiled({0: A, 1: A})[0], 2 * A


def reshape_to_another_size(files):
    core = ov.Core()
    model = core.read_model(files / "pixels.onnx")
    model.reshape([1, 3, 4, 4])
    compiled = core.compile_model(model, "CPU")
    return np.array(compiled.output(0).shape), np.array([1, 3, 4, 4])


def reshape_to_bounds(files):
    core = ov.Core()
    model = core.read_model(files / "negative.onnx")
    model.reshape({0: [ov.Dimension(1, 4), 3]})
    compiled = core.compile_model(model, "CPU")
    return compiled(np.ones((3, 3), np.float32))[0], -np.ones((3, 3))


def reshape_by_a_changed_partial_shape(files):
    core = ov.Core()
    model = core.read_model(files / "sums.onnx")
    shapes = {}
    for input_layer in model.inputs:
        shapes[input_layer.any_name] = input_layer.partial_shape
        shapes[input_layer.any_name][0] = -1
    model.reshape(shapes)
    compiled = core.compile_model(model, "CPU")
    return compiled([A[:1], A[:1]])[0], 2 * A[:1]


def pictures_of_bytes(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    return compiled(A.astype(np.uint8))[0], -A


def arrays_of_doubles(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    return compiled(A.astype(np.float64))[0], -A


def an_array_that_is_not_contiguous(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    return compiled(np.repeat(A, 2, 1)[:, ::2])[0], -A


def tensors_that_share_memory(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    data = A.copy()
    tensor = ov.Tensor(data, shared_memory=True)
    request = compiled.create_infer_request()
    request.set_input_tensor(tensor)
    request.infer()
    data[:] = 5
    request.start_async()
    request.wait()
    return request.get_output_tensor().data, np.full((2, 3), -5)


def tensors_of_a_type_and_shape(files):
    tensor = ov.Tensor(ov.Type.f32, ov.Shape([2, 3]))
    tensor.data[:] = A
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    return compiled(tensor)[0], -A


def a_region_of_interest(files):
    whole = ov.Tensor(np.arange(20, dtype=np.float32).reshape(4, 5))
    roi = ov.Tensor(whole, ov.Coordinate([1, 1]), ov.Coordinate([3, 4]))
    return np.array(roi.data), np.arange(20).reshape(4, 5)[1:3, 1:4]


def copies_of_tensors(files):
    source, target = ov.Tensor(A), ov.Tensor(ov.Type.f32, ov.Shape([2, 3]))
    source.copy_to(target)
    again = ov.Tensor(ov.Type.f32, ov.Shape([2, 3]))
    again.copy_from(target)
    return again.data + target.get_size() + target.get_byte_size(), A + 6 + 24


def a_callback(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    request = compiled.create_infer_request()
    seen = []
    request.set_callback(lambda user_data: seen.append(user_data), 7)
    request.start_async(inputs={0: A})
    request.wait()
    return np.array(seen), np.array([7])


def two_requests_in_turns(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    current, following = compiled.create_infer_request(), compiled.create_infer_request()
    current.start_async([A])
    found = []
    for number in range(1, 4):
        following.start_async([A * number])
        current.wait()
        found.append(current.get_output_tensor(0).data.sum())
        current, following = following, current
    current.wait()
    return np.array(found), np.array([-15, -15, -30])


def a_queue_with_results(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    queue = ov.AsyncInferQueue(compiled, 2)
    found = np.zeros(5)

    def store(request, index):
        found[index] = request.get_output_tensor().data[0, 0]

    queue.set_callback(store)
    for index in range(5):
        while not queue.is_ready():
            time.sleep(0.001)
        queue.start_async({0: np.full((2, 3), index)}, index)
    queue.wait_all()
    return found, -np.arange(5)


def latency_and_throughput(files):
    core = ov.Core()
    model = core.read_model(files / "negative.onnx")
    counts = []
    for mode in (hints.PerformanceMode.LATENCY, hints.PerformanceMode.THROUGHPUT):
        compiled = core.compile_model(model, "CPU", {hints.performance_mode: mode})
        counts.append(compiled.get_property(props.optimal_number_of_infer_requests))
    return np.array([counts[0] == 1, counts[1] >= 1]), np.array([True, True])


def properties_of_a_device(files):
    core = ov.Core()
    core.set_property("CPU", {props.enable_profiling: True})
    core.set_property("CPU", {props.inference_num_threads: 1})
    found = [
        core.get_property("CPU", props.inference_num_threads) == 1,
        "FP32" in core.get_property("CPU", device.capabilities),
        len(core.get_property("CPU", props.range_for_streams)) == 2,
        len(core.get_property("CPU", props.range_for_async_infer_requests)) == 3,
    ]
    return np.array(found), np.ones(4, bool)


def counters_of_operations(files):
    core = ov.Core()
    compiled = core.compile_model(files / "classifier.onnx", "CPU", {props.enable_profiling: True})
    request = compiled.create_infer_request()
    request.infer({0: X})
    infos = request.get_profiling_info()
    total = sum(info.real_time.total_seconds() for info in infos)
    return np.array([len(infos) > 0, total >= 0]), np.array([True, True])


def a_cache_of_models(files):
    core = ov.Core()
    core.set_property({props.cache_dir: str(files / "cache")})
    for _ in range(2):
        compiled = core.compile_model(files / "negative.onnx", "CPU")
    return np.array([compiled.get_property("LOADED_FROM_CACHE")]), np.array([True])


def export_and_import(files):
    core = ov.Core()
    compiled = core.compile_model(files / "negative.onnx", "CPU")
    stream = io.BytesIO()
    compiled.export_model(stream)
    Path(files / "model.blob").write_bytes(stream.getvalue())
    again = core.import_model(Path(files / "model.blob").read_bytes(), "CPU")
    return again(A)[0], -A


def models_from_memory(files):
    core = ov.Core()
    model = core.read_model(model=(files / "negative.onnx").read_bytes())
    stream = core.read_model(io.BytesIO((files / "negative.onnx").read_bytes()))
    return core.compile_model(model, "CPU")(A)[0], core.compile_model(stream, "CPU")(A)[0]


def more_outputs(files):
    core = ov.Core()
    model = core.read_model(files / "classifier.onnx")
    model.add_outputs("means")
    compiled = core.compile_model(model, "CPU")
    return compiled(X)["means"].reshape(-1), X.mean((2, 3)).reshape(-1) / 10


def heterogeneous_affinities(files):
    core = ov.Core()
    model = core.read_model(files / "classifier.onnx")
    supported = core.query_model(model, "CPU")
    named = [
        node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "Softmax"
    ]
    return np.array([supported[name] == "CPU" for name in named]), np.array([True] * len(named))


def hetero_over_one_device(files):
    compiled = ov.Core().compile_model(files / "sums.onnx", "HETERO:CPU")
    return compiled([A, A])[0], 2 * A


def names_for_outputs(files):
    core = ov.Core()
    model = core.read_model(files / "negative.onnx")
    model.outputs[0].tensor.set_names({"answer"})
    model.inputs[0].tensor.set_names({"question"})
    compiled = core.compile_model(model, "CPU")
    return compiled({"question": A})["answer"], -A


def layouts_and_batch(files):
    model = ov.Core().read_model(files / "pixels.onnx")
    model.get_parameters()[0].set_layout(ov.Layout("NCHW"))
    ov.set_batch(model, 2)
    batch = ov.layout_helpers.batch_idx(ov.layout_helpers.get_layout(model.input(0)))
    return np.array([ov.get_batch(model).get_length(), batch]), np.array([2, 0])


def information_in_a_model(files):
    model = ov.Core().read_model(files / "negative.onnx")
    model.set_rt_info("cat dog", ["model_info", "labels"])
    model.set_rt_info(0.5, ["model_info", "confidence_threshold"])
    labels = model.get_rt_info(["model_info", "labels"]).astype(str).split()
    missing = model.has_rt_info(["model_info", "no"])
    return np.array([labels == ["cat", "dog"], missing]), np.array([True, False])


def clones(files):
    core = ov.Core()
    model = core.read_model(files / "negative.onnx")
    copy = model.clone()
    copy.reshape([5, 3])
    return np.array([model.input().partial_shape.is_dynamic, list(copy.input().shape) == [5, 3]]), (
        np.array([True, True])
    )


def a_graph_of_operations(files):
    x = ops.parameter([-1, 3], np.float32, name="x")
    scaled = ops.multiply(x, ops.constant(np.float32(2)))
    parts = ops.split(scaled, 1, 3)
    total = ops.concat([parts.output(2), parts.output(0)], 1)
    top = ops.topk(total, 1, 1, "max", "value")
    model = ov.Model([ops.result(top.output(0), name="best")], [x], "graph")
    return ov.Core().compile_model(model, "CPU")(A)["best"], 2 * A[:, 2:]


def normalized_rows(files):
    x = ops.parameter([2, 3], ov.Type.f32, name="x")
    mean = ops.reduce_mean(x, ops.constant(np.array([1])), keep_dims=True)
    centred = x - mean
    variance = ops.reduce_mean(centred * centred, ops.constant(np.array([1])), keep_dims=True)
    y = centred / ops.sqrt(variance + ops.constant(np.float32(1e-5)))
    model = ov.Model([y], [x], "rows")
    expected = (A - A.mean(1, keepdims=True)) / np.sqrt(A.var(1, keepdims=True) + 1e-5)
    return ov.Core().compile_model(model, "CPU")(A)[0], expected


def shapes_of_nodes(files):
    x = ops.parameter([1, 3, ov.Dimension(), 8], ov.Type.f32)
    y = ops.transpose(x, [0, 2, 3, 1])
    found = [
        str(y.get_output_partial_shape(0)) == "[1,?,8,3]",
        y.get_output_element_type(0) == ov.Type.f32,
        y.get_type_name() == "Transpose",
        x.get_type_name() == "Parameter",
        y.get_output_size() == 1,
    ]
    return np.array(found), np.ones(5, bool)


def lists_and_numbers_as_inputs(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    request = compiled.create_infer_request()
    request.set_tensor("x", ov.Tensor(np.array([[1, 2, 3]], np.float32)))
    request.infer()
    return request.results[compiled.output(0)], np.array([[-1, -2, -3]])


def results_as_tuples_and_dicts(files):
    compiled = ov.Core().compile_model(files / "sums.onnx", "CPU")
    results = compiled([A, A])
    (only,) = results.to_tuple()
    named = {port.any_name: array for port, array in results.items()}
    return only + named["s"], 4 * A


def shared_outputs(files):
    compiled = ov.Core().compile_model(files / "negative.onnx", "CPU")
    request = compiled.create_infer_request()
    first = request.infer(A, share_inputs=True, share_outputs=True)[0].copy()
    return first, -A
