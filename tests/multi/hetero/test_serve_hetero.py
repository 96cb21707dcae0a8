"""A server whose model runs on two devices: what it tells of each of them."""

import onnx
import pytest
from models import add_sub
from prometheus_client.parser import text_string_to_metric_families
from serving import client_of, running_server

X = {"datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "both.onnx"
    onnx.save(add_sub(), path)
    properties = {"PERF_COUNT": True, "HETERO_PINS": ["sub=REFERENCE"]}
    defaults = {"device": "HETERO:CPU,REFERENCE", "properties": properties}
    server = running_server(models={"both": str(path)}, defaults=defaults)
    with server as running, client_of(running) as client:
        inputs = [{"name": name, **X} for name in "ab"]
        for _ in range(3):
            answer = client.post("/v2/models/both/infer", json={"inputs": inputs})
            assert answer.status_code == 200
        yield client


def test_metrics_tell_each_device(http):
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]

    def by_device(name):
        return {s.labels["device"]: s.value for s in samples if s.name == name}

    assert by_device("partita_operations") == {"CPU": 1, "REFERENCE": 1}
    busy = by_device("partita_device_busy_seconds_total")
    assert set(busy) == {"CPU", "REFERENCE"}
    assert min(busy.values()) > 0


def test_the_trace_has_a_row_for_each_device(http):
    events = http.get("/v2/trace").json()["traceEvents"]
    names = {(e["name"], e["args"]["name"]) for e in events if e["ph"] == "M"}
    assert names == {("process_name", "both"), ("thread_name", "CPU"), ("thread_name", "REFERENCE")}
    runs = [e["name"] for e in events if e["ph"] == "X" and e["cat"] == "compute"]
    assert runs.count("subgraph1") == runs.count("subgraph2") == 3


def test_the_explanation_tells_the_reason(http):
    ops = {op["name"]: op for op in http.get("/v2/models/both/explain").json()["ops"]}
    assert (ops["add"]["device"], ops["sub"]["device"]) == ("CPU", "REFERENCE")
    assert ops["sub"]["reason"]["code"] == "PINNED"
