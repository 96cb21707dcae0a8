"""State of models that HETERO runs: updated by the submodel that reads it, where it computes."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from cache_device import ROOM, WIDTH, CacheDevice, CacheTensor, caches, row
from models import model_of, node, value
from onnx import TensorProto, helper
from toy_device import core_with

from partita.errors import InferError
from partita.model.variables import METADATA_KEY, Variable, to_metadata


@pytest.fixture
def devices():
    CacheTensor.downloads = 0
    return CacheDevice(name="CACHE"), CacheDevice(name="CACHE2")


def two_layers(rows=ROOM):
    """Each layer puts a row into its cache, and hands on minus the sum of its rows."""
    shape = (1, rows, WIDTH)
    nodes = []
    x = "x"
    for layer in range(2):
        nodes += [
            node("TensorScatter", [f"past.{layer}", x, "at"], f"present.{layer}", axis=1),
            node("ReduceSum", [f"present.{layer}", "axes"], f"sum.{layer}", keepdims=1),
            node("Neg", [f"sum.{layer}"], f"y.{layer}"),
        ]
        for one in nodes[-3:]:
            one.name = f"{one.op_type}.{layer}"
        x = f"y.{layer}"
    proto = model_of(
        nodes,
        [
            value("x", (1, 1, WIDTH)),
            value("at", (1,), TensorProto.INT64),
            *(value(f"past.{layer}", shape) for layer in range(2)),
        ],
        [value("y.1", (1, 1, WIDTH)), *(value(f"present.{layer}", shape) for layer in range(2))],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
        opset=24,
        ir_version=10,
    )
    pairs = [Variable(f"cache.{n}", f"past.{n}", f"present.{n}") for n in range(2)]
    helper.set_model_props(proto, {METADATA_KEY: to_metadata(pairs)})
    return proto


def compiled(devices, proto=None, config=None, second="CACHE2"):
    """A model with what belongs to its second layer on the second device."""
    core = core_with(*devices)
    model = core.read_model((proto or two_layers()).SerializeToString())
    for op in model.ops:
        op.affinity = second if op.name.endswith(".1") else "CACHE"
    names = ",".join(one.device_name for one in devices)
    return core.compile_model(model, f"HETERO:{names},REFERENCE", config)


def due(count):
    """The last output after so many rows 1, 2, ..."""
    sums = np.cumsum(np.arange(1, count + 1))
    return float(np.sum(sums))


def fill(request, rows, start=0):
    for at in range(start, start + rows):
        found = request.infer(row(at + 1, at))["y.1"].flat[0]
        assert found == due(at + 1)


def column(request, number):
    return request.query_state()[number].state.data[0, :, 0].tolist()


EXECUTORS = ["LINEAR", "DATAFLOW", "PARALLEL"]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_device_keeps_the_state_of_its_layer(devices, executor):
    request = compiled(devices, config={"HETERO_EXECUTOR": executor}).create_infer_request()
    fill(request, ROOM)
    assert [one.copied for one in devices] == [0, 0]
    assert CacheTensor.downloads == 0
    assert [request.get_tensor(f"past.{n}").memory for n in range(2)] == ["CACHE", "CACHE2"]
    assert column(request, 0) == list(range(1, ROOM + 1))
    assert column(request, 1) == (-np.cumsum(np.arange(1, ROOM + 1))).tolist()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_steps_are_bound_and_look_at_no_state(devices, executor):
    request = compiled(devices, config={"HETERO_EXECUTOR": executor}).create_infer_request()
    fill(request, 4)
    calls = [one.calls for one in devices]
    with mock.patch.object(CacheTensor, "numpy", side_effect=AssertionError):
        fill(request, 4, 4)
    assert [one.calls for one in devices] == [count + 4 for count in calls]
    request.reset_state()
    fill(request, ROOM)


@pytest.mark.parametrize("config", [{"PERF_COUNT": True}, {"REJECT_NAN": True}])
def test_where_nothing_is_bound(devices, config):
    request = compiled(devices, config=config).create_infer_request()
    fill(request, ROOM)
    assert [one.copied for one in devices] == [0, 0]


def test_with_a_time_limit_there_are_two_tensors_by_turns(devices):
    request = compiled(devices, config={"HETERO_TIMEOUT_MS": 60000}).create_infer_request()
    fill(request, ROOM)
    assert [one.copied for one in devices] == [ROOM, ROOM]
    assert column(request, 0) == list(range(1, ROOM + 1))


def test_a_device_that_runs_the_whole_model(devices):
    request = compiled(devices, second="CACHE").create_infer_request()
    fill(request, ROOM)
    assert (devices[0].copied, CacheTensor.downloads) == (0, 0)
    assert request.get_tensor("past.1").memory == "CACHE"


def test_state_that_another_submodel_reads_too_has_two_tensors_by_turns(devices):
    proto = caches(1)
    proto.graph.node.append(node("Neg", ["past.0"], "other", "other.1"))
    proto.graph.output.append(value("other", (1, ROOM, WIDTH)))
    request = compiled(devices, proto).create_infer_request()
    for at in range(5):
        found = request.infer(row(at + 1, at))
        before = [*range(1, at + 1), *[0] * (ROOM - at)]
        assert (-found["other"][0, :, 0]).tolist() == before
        assert found["sum"].flat[0] == sum(range(1, at + 2))
    assert request.get_tensor("past.0").memory == "host"


def test_a_failing_device_loses_no_state(devices):
    request = compiled(devices).create_infer_request()
    fill(request, 4)
    failing = mock.Mock(side_effect=RuntimeError("out of order"))
    devices[1].before = failing
    fill(request, 2, 4)
    assert failing.called
    assert column(request, 1)[5] == -21
    fill(request, 2, 6)
    assert column(request, 0) == list(range(1, ROOM + 1))


def test_a_request_is_cancelled_between_submodels(devices):
    request = compiled(devices).create_infer_request()
    fill(request, 4)
    devices[0].before = request.cancel
    request.start_async(row(5, 4))
    with pytest.raises(InferError):
        request.wait()
    devices[0].before = lambda: None
    fill(request, 4, 4)


def test_shapes_that_the_state_decides(devices):
    request = compiled(devices, two_layers("rows")).create_infer_request()
    for rows in (3, 6):
        for one in request.query_state():
            one.state = np.zeros((1, rows, WIDTH), np.float32)
        fill(request, rows)
    assert [one.copied for one in devices] == [0, 0]


def test_state_goes_on_in_another_request(devices, tmp_path):
    model = compiled(devices)
    one, other = model.create_infer_request(), model.create_infer_request()
    fill(one, 3)
    one.save_state(tmp_path / "state")
    other.load_state(tmp_path / "state")
    fill(other, 3, 3)
    third = model.create_infer_request(share_state_with=other)
    fill(third, 2, 6)
    fill(one, 5, 3)
