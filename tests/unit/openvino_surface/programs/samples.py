"""What OpenVINO's Python samples do, on small models."""

from __future__ import annotations

import logging
import statistics
from time import perf_counter

import numpy as np

import partita as ov
from partita import op, opset1, opset8

log = logging.getLogger("sample")


def hello_classification(files):
    """Reads a model, sets its input from a picture, prints the best classes."""
    core = ov.Core()
    model = core.read_model(files / "classifier.onnx")
    assert len(model.inputs) == 1
    assert len(model.outputs) == 1
    image = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    input_tensor = np.expand_dims(image, 0)
    ppp = ov.preprocess.PrePostProcessor(model)
    ppp.input().tensor().set_shape(input_tensor.shape).set_element_type(ov.Type.u8).set_layout(
        ov.Layout("NHWC")
    )
    ppp.input().model().set_layout(ov.Layout("NCHW"))
    ppp.output().tensor().set_element_type(ov.Type.f32)
    model = ppp.build()
    compiled_model = core.compile_model(model, "CPU")
    results = compiled_model.infer_new_request({0: input_tensor})
    predictions = next(iter(results.values()))
    probs = predictions.reshape(-1)
    top = np.argsort(probs)[::-1]
    for class_id in top:
        log.info("%d %.7f", class_id, probs[class_id])
    means = image.mean((0, 1)) / 10
    expected = np.exp(means) / np.exp(means).sum()
    return probs, expected


def hello_reshape_ssd(files):
    """Gives the input the size of the picture."""
    core = ov.Core()
    model = core.read_model(files / "pixels.onnx")
    image = np.random.default_rng(0).random((1, 3, 5, 7)).astype(np.float32)
    n, c, h, w = image.shape
    model.reshape({model.input(): ov.PartialShape((n, c, h, w))})
    assert model.input().get_shape() == [1, 3, 5, 7]
    compiled_model = core.compile_model(model=model, device_name="CPU")
    assert list(compiled_model.output(0).shape) == [1, 3, 5, 7]
    results = compiled_model.infer_new_request(image)
    return results[compiled_model.output(0)], np.maximum(image - 0.5, 0)


def fill_tensor_random(tensor):
    dtype = tensor.element_type.to_dtype()
    random = np.random.default_rng(3)
    if np.dtype(dtype).kind == "b":
        tensor.data[:] = random.integers(0, 2, tensor.shape)
    elif np.issubdtype(dtype, np.integer):
        tensor.data[:] = random.integers(0, 10, tensor.shape)
    else:
        tensor.data[:] = random.random(tensor.shape)


def sync_benchmark(files):
    """One request, again and again, on tensors that were filled before."""
    core = ov.Core()
    latency = {"PERFORMANCE_HINT": "LATENCY"}
    compiled_model = core.compile_model(files / "sums.onnx", "CPU", latency)
    ireq = compiled_model.create_infer_request()
    for model_input in compiled_model.inputs:
        fill_tensor_random(ireq.get_tensor(model_input))
    ireq.infer()
    latencies = []
    for _ in range(10):
        start = perf_counter()
        ireq.infer()
        latencies.append((perf_counter() - start) * 1000)
    assert statistics.median(latencies) > 0
    assert ireq.latency >= 0
    a, b = (ireq.get_tensor(port).data for port in compiled_model.inputs)
    return ireq.get_output_tensor(0).data, a + b


def throughput_benchmark(files):
    """A queue as long as the device asks for, whose requests are started when they are free."""
    core = ov.Core()
    tput = {"PERFORMANCE_HINT": "THROUGHPUT"}
    compiled_model = core.compile_model(files / "sums.onnx", "CPU", tput)
    ireqs = ov.AsyncInferQueue(compiled_model)
    for ireq in ireqs:
        for model_input in compiled_model.inputs:
            fill_tensor_random(ireq.get_tensor(model_input))
    for _ in range(len(ireqs)):
        ireqs.start_async()
    ireqs.wait_all()
    latencies = []
    for ireq in ireqs:
        latencies.append(ireq.latency)
    for _ in range(10):
        ireqs.start_async()
    ireqs.wait_all()
    assert len(latencies) == len(ireqs)
    found = [ireq.get_output_tensor(0).data for ireq in ireqs]
    assert all(np.array_equal(one, found[0]) for one in found)
    a, b = (ireqs[0].get_tensor(port).data for port in compiled_model.inputs)
    return found[0], a + b


def image_classification_async(files):
    """A queue with a callback that is told which picture it was."""
    core = ov.Core()
    model = core.read_model(files / "classifier.onnx")
    images = [np.full((1, 3, 2, 2), number, np.float32) for number in range(6)]
    compiled_model = core.compile_model(model, "CPU")
    infer_queue = ov.AsyncInferQueue(compiled_model, 4)
    answers = {}

    def completion_callback(infer_request, path):
        predictions = next(iter(infer_request.results.values()))
        answers[path] = predictions.reshape(-1).copy()

    infer_queue.set_callback(completion_callback)
    for i, input_tensor in enumerate(images):
        infer_queue.start_async({0: input_tensor}, f"{i}.bmp")
    infer_queue.wait_all()
    found = [answers[f"{i}.bmp"] for i in range(len(images))]
    return np.array(found), np.full((6, 3), 1 / 3)


def model_creation(files):
    """LeNet, written operation by operation."""
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal(size).astype(np.float32) / 10 for size in (500, 20, 25000, 50)]
    shapes = [20, 1, 5, 5], [1, 20, 1, 1], [50, 20, 5, 5], [1, 50, 1, 1]
    input_shape = [4, 1, 28, 28]
    param_node = op.Parameter(ov.Type.f32, ov.Shape(input_shape))
    here = param_node
    for index in (0, 2):
        kernel = op.Constant(ov.Type.f32, ov.Shape(shapes[index]), weights[index].tolist())
        conv = opset1.convolution(here.output(0), kernel.output(0), [1, 1], [0, 0], [0, 0], [1, 1])
        bias = op.Constant(ov.Type.f32, ov.Shape(shapes[index + 1]), weights[index + 1].tolist())
        add = opset1.add(conv.output(0), bias.output(0))
        here = opset1.max_pool(add, np.array([2, 2]), np.array([0, 0]), np.array([0, 0]),
                               np.array([2, 2]), "ceil", None)  # fmt: skip
    reshape = opset1.reshape(
        here.output(0), op.Constant(ov.Type.i64, ov.Shape([2]), [4, 800]).output(0), True
    )
    matrix = rng.standard_normal((10, 800)).astype(np.float32) / 10
    matmul = opset1.matmul(reshape, op.Constant(matrix), False, True)
    relu = opset1.relu(matmul)
    softmax = opset8.softmax(relu, 1)
    softmax.set_friendly_name("softmax")
    model = ov.Model(softmax, [param_node], "lenet")
    assert model.get_friendly_name() == "lenet"
    images = rng.random(input_shape).astype(np.float32)
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    found = ov.Core().compile_model(model, "CPU", exact).infer_new_request({0: images})[0]
    kernels = [weight.reshape(shape) for weight, shape in zip(weights, shapes, strict=True)]
    for index in (0, 2):
        windows = np.lib.stride_tricks.sliding_window_view(images, (5, 5), (2, 3))
        images = np.einsum("bchwij,ocij->bohw", windows, kernels[index]) + kernels[index + 1]
        b, c, h, w = images.shape
        images = images.reshape(b, c, h // 2, 2, w // 2, 2).max((3, 5))
    scores = np.exp(np.maximum(images.reshape(4, 800) @ matrix.T, 0))
    return found, scores / scores.sum(1, keepdims=True)


def bert_benchmark(files):
    """Sentences of any length through one compiled model, in a queue."""
    core = ov.Core()
    model = core.read_model(files / "words.onnx")
    assert model.is_dynamic()
    for parameter in model.get_parameters():
        assert parameter.get_partial_shape().is_dynamic
    compiled_model = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    ireqs = ov.AsyncInferQueue(compiled_model)
    names = [port.get_any_name() for port in compiled_model.inputs]
    answers = {}
    ireqs.set_callback(
        lambda ireq, key: answers.update({key: ireq.get_output_tensor().data.copy()})
    )
    sentences = [np.arange(1, length)[np.newaxis] for length in (3, 7, 2, 9)]
    for key, ids in enumerate(sentences):
        ireqs.start_async(dict.fromkeys(names, ids), key)
    ireqs.wait_all()
    found = np.concatenate([answers[key].reshape(-1) for key in range(len(sentences))])
    return found, np.concatenate([2 * ids.reshape(-1) for ids in sentences])


def speech(files):
    """Frames one after another, with state that is reset between utterances."""
    core = ov.Core()
    compiled_model = core.compile_model(core.read_model(files / "adder.xml"), "CPU")
    infer_request = compiled_model.create_infer_request()
    found = []
    for utterance in range(2):
        infer_request.reset_state()
        for frame in range(3):
            result = infer_request.infer({"frame": np.full((1, 2), frame + utterance, np.float32)})
            found.append(result[compiled_model.output(0)].copy())
        assert [state.name for state in infer_request.query_state()] == ["sum"]
    return np.array(found)[:, 0, 0], np.array([0.0, 1, 3, 1, 3, 6])


def hello_query_device(files):
    """Lists what there is, with properties."""
    core = ov.Core()
    for device in core.available_devices:
        if device != "CPU":
            continue
        for key in core.get_property(device, "SUPPORTED_PROPERTIES"):
            if key not in ("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS", "SUPPORTED_PROPERTIES"):
                try:
                    value = core.get_property(device, key)
                except TypeError:
                    value = "UNSUPPORTED TYPE"
                log.info("%s: %s", key, value)
    names = core.get_property("CPU", "FULL_DEVICE_NAME")
    return np.array([len(names) > 0, "CPU" in core.available_devices]), np.array([True, True])
