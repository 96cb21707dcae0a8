"""Devices RAY[.n] on two nodes: right results, tensors by reference, costs, nodes that die."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from models import model_of, node, value, weight

import partita
from partita.errors import (
    DeviceUnavailableError,
    InferError,
    PartitaError,
    UnsupportedOpError,
)
from partita.tensors.tensor import HostTensor
from partita_hetero.cost.database import Database
from partita_hetero.cost.link_cost import direct_cost, link_costs

RNG = np.random.default_rng(7)
FIRST, SECOND = (RNG.standard_normal((256, 256)).astype(np.float32) / 16 for _ in range(2))
X = RNG.standard_normal((32, 256)).astype(np.float32)
STAGES = {"HETERO_PINS": ["one=RAY.0?", "first=RAY.0?", "two=RAY.1?", "second=RAY.1?"]}


def two_stages():
    """y = Relu(Relu(x @ first) @ second), whose weights are large enough to be sent apart."""
    return model_of(
        [
            node("MatMul", ["x", "w1"], "a", "one"),
            node("Relu", ["a"], "b", "first"),
            node("MatMul", ["b", "w2"], "c", "two"),
            node("Relu", ["c"], "y", "second"),
        ],
        [value("x", ["N", 256])],
        [value("y", ["N", 256])],
        [weight("w1", FIRST), weight("w2", SECOND)],
    )


def expected(x=X):
    return np.maximum(np.maximum(x.astype(np.float64) @ FIRST, 0) @ SECOND, 0)


def check(results, x=X):
    np.testing.assert_allclose(results["y"], expected(x), rtol=1e-4, atol=1e-4)


@pytest.fixture
def core(cluster):
    return partita.Core()


def test_each_node_is_a_device_the_head_first(core):
    assert [name for name in core.available_devices if "RAY" in name] == ["RAY.0", "RAY.1"]
    here, there = core.device_info("RAY.0"), core.device_info("RAY.1")
    assert here.memory != there.memory
    assert (here.details["reached by"], there.details["reached by"]) == ("shared memory", "network")
    assert "CPU" in there.full_name


@pytest.mark.parametrize("device", ["RAY.0", "RAY.1"])
def test_a_node_computes_what_its_device_would(core, device):
    compiled = core.compile_model(two_stages(), device, {"RAY_DEVICE": "CPU"})
    results = compiled.create_infer_request().infer({"x": X})
    check(results)
    results["y"][:] = 0  # results are the caller's own
    assert compiled.get_property("RAY_EXECUTION_DEVICES") == ["CPU"]


def test_sizes_vary_and_outputs_go_where_they_are_wanted(core):
    request = core.compile_model(two_stages(), "RAY.1").create_infer_request()
    for rows in (1, 400, 0, 32):
        x = RNG.standard_normal((rows, 256)).astype(np.float32)
        check(request.infer({"x": x}), x)


def test_half_precision_and_texts_cross(core):
    from onnx import TensorProto

    halves = model_of(
        [node("Neg", ["x"], "y", "neg")],
        [value("x", [3], TensorProto.BFLOAT16)],
        [value("y", [3], TensorProto.BFLOAT16)],
        opset=19,
    )
    import ml_dtypes

    x = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    config = {"RAY_DEVICE": "REFERENCE"}
    np.testing.assert_array_equal(core.compile_model(halves, "RAY.1", config)({"x": x})[0], -x)
    texts = model_of(
        [node("Identity", ["x"], "y", "copy")],
        [value("x", [2], TensorProto.STRING)],
        [value("y", [2], TensorProto.STRING)],
    )
    words = np.array(["zwei", "Wörter"], object)
    assert core.compile_model(texts, "RAY.1", config)({"x": words})[0].tolist() == words.tolist()


def test_tensors_stay_on_nodes_and_cross_by_reference(core):
    model = core.device_api.compile_model(core.read_model(two_stages()), "RAY.1")
    first = model.create_runner().run([HostTensor(X)])[0]
    assert (first.memory, first.shape) == ("ray:1", (32, 256))
    again = core.device_api.compile_model(core.read_model(two_stages()), "RAY.0")
    second = again.create_runner().run([first])[0]
    np.testing.assert_allclose(second.numpy(), expected(expected()), rtol=1e-3, atol=1e-3)
    assert not second.view().flags.writeable
    assert second.numpy().flags.writeable


@pytest.mark.parametrize("size", [0, 3, 1 << 20])
def test_transfers_keep_elements(core, size):
    array = np.arange(size, dtype=np.int64)
    for device in ("RAY.0", "RAY.1"):
        there = core.device_api.transfer_to(device, HostTensor(array))
        assert there.memory == core.device_info(device).memory
        np.testing.assert_array_equal(there.numpy(), array)
        beside = core.device_api.transfer_to("RAY.1", there)
        assert beside.memory == "ray:1"
        np.testing.assert_array_equal(beside.numpy(), array)


def test_weights_are_put_into_the_store_once(core):
    from partita_ray.cluster import cluster

    model = core.read_model(two_stages())
    weights = cluster().weights
    first, second = weights.pack(model), weights.pack(model.clone())
    assert [ref.hex() for ref in first.weights] == [ref.hex() for ref in second.weights]
    assert len(first.weights) == 2 and len(first.graph) < FIRST.nbytes
    np.testing.assert_array_equal(
        first.unpack().ir.graph.initializers["w2"].const_value.numpy(), SECOND
    )


def test_hetero_places_stages_on_nodes(core):
    compiled = core.compile_model(two_stages(), "HETERO:RAY.0,RAY.1,CPU", STAGES)
    request = compiled.create_infer_request()
    check(request.infer({"x": X}))
    explanation = compiled.explain()
    assert explanation.ops_per_device == {"RAY.0": 2, "RAY.1": 2}
    inner = [b for b in explanation.boundaries if None not in (b.source, b.target)]
    assert [b.how for b in inner] == ["shared"]  # a reference, which the node follows itself


def test_requests_overlap_on_nodes(core):
    compiled = core.compile_model(
        two_stages(), "HETERO:RAY.0,RAY.1,CPU", {**STAGES, "PERFORMANCE_HINT": "THROUGHPUT"}
    )
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
    queue = partita.AsyncInferQueue(compiled, jobs=4)
    got = {}
    queue.set_callback(lambda request, key: got.update({key: request.get_output_tensor().data}))
    inputs = [RNG.standard_normal((32, 256)).astype(np.float32) for _ in range(40)]
    for key, x in enumerate(inputs):
        queue.start_async({"x": x}, key)
    queue.wait_all()
    for key, x in enumerate(inputs):
        check({"y": got[key]}, x)


def test_spans_of_nodes_lie_within_the_calls(core):
    config = {**STAGES, "PERF_COUNT": True}
    compiled = core.compile_model(two_stages(), "HETERO:RAY.0,RAY.1,CPU", config)
    request = compiled.create_infer_request()
    request.infer({"x": X})
    spans = request.device_spans()
    calls = {one.device: one for one in spans if one.kind == "compute"}
    for device in ("RAY.0", "RAY.1"):
        (inner,) = (one for one in spans if one.device.endswith(f": {device}"))
        slack = 1e-3  # half of a question to the node's clock
        assert calls[device].start_s - slack <= inner.start_s <= inner.end_s
        assert inner.end_s <= calls[device].end_s + slack
    assert any(info.node_type == "MatMul" for info in request.get_profiling_info())


def test_links_are_measured_from_the_host_and_between_nodes(core, tmp_path, monkeypatch):
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path))
    api, keys = core.device_api, ("first node", "second node")
    with Database() as database:
        there, back = link_costs(api, "RAY.1", "second node", database)
        direct = direct_cost(api, "RAY.0", "RAY.1", keys, database)
        assert there.latency + there.per_byte > 0
        assert back.latency + back.per_byte > 0
        assert direct.latency + direct.per_byte > 0  # a reference is no free crossing
        assert database.link(*keys) == direct


def test_errors_of_the_model_come_as_they_are(core):
    unknown = model_of([node("Frobnicate", ["x"], "y", "odd")], [value("x", [2])], ["y"])
    with pytest.raises(UnsupportedOpError, match="Frobnicate"):
        core.compile_model(unknown, "RAY.0", {"RAY_DEVICE": "CPU"})
    reshape = model_of(
        [node("Reshape", ["x", "shape"], "y", "reshape")], [value("x", ["N"])], ["y"],
        [weight("shape", np.array([2, 3]))],
    )  # fmt: skip
    request = core.compile_model(reshape, "RAY.1", {"RAY_DEVICE": "CPU"}).create_infer_request()
    with pytest.raises(PartitaError, match="'reshape'"):
        request.infer({"x": np.zeros(5, np.float32)})
    y = request.infer({"x": np.arange(6, dtype=np.float32)})[0]
    np.testing.assert_array_equal(y, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_a_device_that_the_node_lacks_is_named(core):
    with pytest.raises(PartitaError, match="no device 'NPU'"):
        core.compile_model(two_stages(), "RAY.1", {"RAY_DEVICE": "NPU"})


def test_a_node_that_dies_fails_alone_and_moves_in_hetero(core, cluster, spare_node):
    core = partita.Core()
    alone = core.compile_model(two_stages(), "RAY.2").create_infer_request()
    check(alone.infer({"x": X}))
    pins = ["one=RAY.1?", "first=RAY.1?", "two=RAY.2?", "second=RAY.2?"]
    several = core.compile_model(two_stages(), "HETERO:RAY.1,RAY.2,CPU", {"HETERO_PINS": pins})
    request = several.create_infer_request()
    check(request.infer({"x": X}))
    cluster.remove_node(spare_node, allow_graceful=False)
    error = wait_until(lambda: error_of(alone))  # a process may outlive its raylet for a moment
    assert re.match(r"RAY\.2 \(.*\): infer 'm': .*left the cluster", str(error))
    check(request.infer({"x": X}))
    assert "RAY.2" not in several.explain().ops_per_device
    wait_until(lambda: "RAY.2" not in partita.Core().available_devices)
    with pytest.raises(DeviceUnavailableError, match=r"'RAY\.2' is gone.*HETERO:RAY\.2,CPU"):
        core.compile_model(two_stages(), "RAY.2")
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    several.device_model.enable_device("RAY.2")  # another node has come, and has the number
    check(request.infer({"x": X}))
    assert several.explain().ops_per_device["RAY.2"] == 2


def error_of(request):
    """The error of a request; as long as there is none, its results are right."""
    try:
        check(request.infer({"x": X}))
    except InferError as error:
        return error
    return None


def wait_until(condition, seconds=120.0):
    """For events of the cluster, which are seen by asking."""
    end = time.monotonic() + seconds
    while not (seen := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return seen
