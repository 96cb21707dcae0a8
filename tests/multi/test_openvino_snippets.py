"""Code written for OpenVINO's Python API runs after ``import partita as ov``.

The snippets are those of DESIGN's "What an application sees" and of OpenVINO's own page on
heterogeneous execution. ``GPU`` is device CPU once more, so that they run on any machine.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from models import add_sub, affine

import partita as ov
import partita.properties as properties
import partita.properties.device as device
import partita.properties.hint as hints

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def core(monkeypatch, tmp_path):
    """A Core with a device GPU, in a folder that holds ``model.onnx``."""
    (tmp_path / "model.onnx").write_bytes(affine().SerializeToString())
    monkeypatch.chdir(tmp_path)
    core = ov.Core()
    core.register_plugin("partita_cpu", "GPU")
    return core


@pytest.fixture
def expected():
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(affine()).run(None, {"x": X})[0]


# -------------------------------------------------------------------- DESIGN, section 2


def test_devices(core):
    assert {"CPU", "GPU", "HETERO", "REFERENCE"} <= set(core.available_devices)


def test_compiling(core, expected):
    model = core.read_model("model.onnx")
    compiled = core.compile_model(model, "HETERO:GPU,CPU")
    np.testing.assert_allclose(compiled(X)[0], expected)
    compiled = core.compile_model(
        model=model, device_name="HETERO", config={"MULTI_DEVICE_PRIORITIES": "GPU,CPU"}
    )
    np.testing.assert_allclose(compiled(X)[0], expected)
    assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == "GPU,CPU"


def test_setting_properties(core):
    core.set_property("HETERO", {"MULTI_DEVICE_PRIORITIES": "GPU,CPU"})
    core.set_property("GPU", {"PERF_COUNT": "YES"})
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    assert core.get_property("HETERO", "MULTI_DEVICE_PRIORITIES") == "GPU,CPU"
    assert core.get_property("GPU", "PERF_COUNT") is True
    assert core.get_property("CPU", "PERF_COUNT") is False
    request = core.compile_model("model.onnx", "HETERO").create_infer_request()
    request.infer(X)
    assert request.get_profiling_info()[0].node_name.startswith("subgraph1: 1. ")


def test_query_edit_write_back_compile(core, expected):
    model = core.read_model("model.onnx")
    supported = core.query_model(model, "HETERO:GPU,CPU")  # {"conv1": "GPU", ...}
    assert supported == {"matmul": "GPU", "bias": "GPU", "relu": "GPU"}
    supported["relu"] = "CPU"
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = supported[op.get_friendly_name()]
    compiled = core.compile_model(model, "HETERO:GPU,CPU")
    assert compiled.get_property("EXECUTION_DEVICES") == ["GPU", "CPU"]
    np.testing.assert_allclose(compiled(X)[0], expected)


def test_requests(core, expected):
    compiled = core.compile_model("model.onnx", "HETERO:GPU,CPU")
    request = compiled.create_infer_request()
    results = request.infer({"x": X})
    for key in ("y", 0, compiled.output(0)):
        np.testing.assert_allclose(results[key], expected)
    request.start_async()
    request.wait()
    called = []
    request.set_callback(called.append, "done")
    request.start_async({"x": X})
    request.wait()
    assert called == ["done"]
    queue = ov.AsyncInferQueue(compiled, jobs=4)
    found = []  # requests that are quick are taken again, and others never
    queue.set_callback(lambda one, _: found.append(one.get_output_tensor(0).data.copy()))
    for _ in range(8):
        queue.start_async({"x": X})
    queue.wait_all()
    assert len(found) == 8
    for one in found:
        np.testing.assert_allclose(one, expected)
    np.testing.assert_allclose(compiled(X)[0], expected)


def test_export_and_import(core, expected):
    blob = core.compile_model("model.onnx", "HETERO:GPU,CPU").export_model()
    compiled = core.import_model(blob, "HETERO")
    np.testing.assert_allclose(compiled(X)[0], expected)
    np.testing.assert_allclose(core.import_model(io.BytesIO(blob), "HETERO")(X)[0], expected)


def test_the_same_plugin_a_second_time(core, expected):
    core.register_plugin("partita_cpu", "CPU2")
    compiled = core.compile_model("model.onnx", "HETERO:CPU2,CPU")
    assert compiled.get_property("EXECUTION_DEVICES") == ["CPU2"]
    np.testing.assert_allclose(compiled(X)[0], expected)


# -------------------------------------------- OpenVINO's page on heterogeneous execution


def test_set_affinities_by_hand(core, expected):
    model = core.read_model("model.onnx")
    for op in model.get_ops():
        rt_info = op.get_rt_info()
        rt_info["affinity"] = "CPU"
    compiled_model = core.compile_model(model, "HETERO:GPU,CPU")
    assert compiled_model.get_property("EXECUTION_DEVICES") == ["CPU"]
    np.testing.assert_allclose(compiled_model(X)[0], expected)


def test_fix_automatic_affinities(core):
    model, name = core.read_model("model.onnx"), "bias"
    device = "HETERO:GPU,CPU"
    supported_ops = core.query_model(model=model, device_name=device)
    supported_ops[name] = "CPU"
    for node in model.get_ops():
        affinity = supported_ops[node.get_friendly_name()]
        node.get_rt_info()["affinity"] = affinity
    compiled_model = core.compile_model(model=model, device_name=device)
    assert compiled_model.get_property("HETERO_NUMBER_OF_SUBMODELS") == 3


def test_configure_fallback_devices(core):
    model = core.read_model("model.onnx")
    core.set_property("HETERO", {device.priorities: "GPU,CPU"})
    core.set_property("GPU", {properties.enable_profiling: True})
    core.set_property("CPU", {hints.inference_precision: ov.Type.f32})
    compiled_model = core.compile_model(model=model, device_name="HETERO")
    assert compiled_model.get_property(device.priorities) == "GPU,CPU"
    pairs = [
        device.priorities("GPU", "CPU"),
        device.properties("GPU", {properties.enable_profiling: True}),
        device.properties("CPU", hints.inference_precision(ov.Type.f32)),
    ]
    assert (
        core.compile_model(model, "HETERO", pairs).get_property("HETERO_NUMBER_OF_SUBMODELS") == 1
    )


# -------------------------------------------------------------------- OpenVINO's samples


def test_hello_query_device(core):
    for name in core.available_devices:
        versions = core.get_versions(name)
        assert versions[name].description
        for key in core.get_property(name, "SUPPORTED_PROPERTIES"):
            core.get_property(name, key)


def test_hello_reshape(core):
    model = core.read_model("model.onnx")
    assert (len(model.inputs), len(model.outputs)) == (1, 1)
    model.reshape({model.input().get_any_name(): [5, 4]})
    compiled_model = core.compile_model(model, "CPU")
    results = compiled_model.infer_new_request({0: np.zeros((5, 4), np.float32)})
    assert next(iter(results.values())).shape == (5, 3)


def test_sync_benchmark(core):
    compiled_model = core.compile_model("model.onnx", "CPU", {hints.performance_mode: "LATENCY"})
    ireq = compiled_model.create_infer_request()
    for model_input in compiled_model.inputs:
        shape = [dim if isinstance(dim, int) else 2 for dim in model_input.shape]
        ireq.set_tensor(model_input, ov.Tensor(np.zeros(shape, model_input.element_type)))
    ireq.infer()
    assert ireq.latency > 0


def test_throughput_benchmark(core):
    compiled_model = core.compile_model("model.onnx", "CPU", hints.performance_mode("THROUGHPUT"))
    ireqs = ov.AsyncInferQueue(compiled_model)
    latencies = []
    ireqs.set_callback(lambda ireq, _: latencies.append(ireq.latency))
    for _ in range(5):
        ireqs.start_async({0: X})
    ireqs.wait_all()
    assert len(latencies) == 5


def test_two_inputs_in_order_of_the_list(core):
    compiled_model = core.compile_model(add_sub(), "CPU")
    result = compiled_model([np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)])
    assert result[compiled_model.output("difference")].sum() == 6
    assert result[compiled_model.outputs[0]].sum() == 6
