"""REST as clients speak it: tritonclient, which nobody here wrote, and plain HTTP."""

import asyncio
import contextlib
import gzip
import socket
import ssl
import subprocess
import threading
import time

import models
import numpy as np
import onnx
import pytest
from serving import client_of, running_server
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from partita import InferRequest
from partita.errors import InferError
from partita_serve.models.instance import Instance
from partita_serve.protocol.errors import DeadlineExceeded
from partita_serve.protocol.records import InferenceInput, InferenceRequest
from partita_serve.rest.connection import LimitedConnection

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
BIAS = np.array([1, -2, 3], np.float32)


def expected(x):
    return np.maximum(x @ WEIGHTS + BIAS, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    onnx.save(models.affine(), path / "affine.onnx")
    onnx.save(models.neg([1, 2]), path / "neg.onnx")
    onnx.save(models.lookup(), path / "lookup.onnx")
    return path


@pytest.fixture(scope="module")
def server(folder):
    with running_server(
        models={"affine": str(folder / "affine.onnx"), "neg": str(folder / "neg.onnx")},
        defaults={"device": "CPU", "max_batch_size": 8},
        max_body="64KiB",
        max_header="4KiB",
    ) as running:
        yield running


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.netloc, concurrency=8) as client:
        yield client


@pytest.fixture
def plain(server):
    with client_of(server) as client:
        yield client


def given(x, binary=True, name="x"):
    tensor = triton.InferInput(name, list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    return [tensor]


def test_health_and_descriptions(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("affine")
    assert client.is_model_ready("affine", "1")
    assert not client.is_model_ready("affine", "2")
    assert not client.is_model_ready("nothing")
    assert client.get_server_metadata()["name"] == "partita"
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("affine", "1") == {
        "name": "affine",
        "versions": ["1"],
        "platform": "partita",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    }
    config = client.get_model_config("affine")
    assert config["max_batch_size"] == 8
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("packing", [None, "gzip", "deflate"])
def test_inference(client, binary, packing):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    wanted = [triton.InferRequestedOutput("y", binary_data=binary)]
    result = client.infer(
        "affine",
        given(x, binary),
        outputs=wanted,
        request_id="mine",
        request_compression_algorithm=packing,
    )
    np.testing.assert_allclose(result.as_numpy("y"), expected(x), rtol=1e-5)
    assert result.get_response()["id"] == "mine"


def test_a_model_of_one_row_takes_many_where_it_can(client):
    x = np.ones((5, 2), np.float32)
    np.testing.assert_array_equal(client.infer("neg", given(x)).as_numpy("y"), -x)


def test_many_clients_get_their_own_answers(client, server):
    def run(seed, failures):
        rng = np.random.default_rng(seed)
        with triton.InferenceServerClient(server.netloc) as own:
            for _ in range(20):
                x = rng.normal(size=(rng.integers(1, 5), 4)).astype(np.float32)
                found = own.infer("affine", given(x)).as_numpy("y")
                if not np.allclose(found, expected(x), rtol=1e-5):
                    failures.append(seed)

    failures = []
    threads = [threading.Thread(target=run, args=(seed, failures)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    (stats,) = client.get_inference_statistics("affine")["model_stats"]
    assert stats["inference_stats"]["success"]["count"] >= 160
    batches = stats["batch_stats"]
    assert stats["execution_count"] == sum(one["compute_infer"]["count"] for one in batches)
    rows = sum(one["batch_size"] * one["compute_infer"]["count"] for one in batches)
    assert stats["inference_count"] == rows
    names = [one["name"] for one in client.get_inference_statistics()["model_stats"]]
    assert names == ["affine", "neg"]


def test_where_operations_run_is_told(plain):
    found = plain.get("/v2/models/affine/explain").json()
    assert {op["device"] for op in found["ops"] if op["subgraph"]} == {"CPU"}
    assert "affine" in found["summary"]


@pytest.mark.parametrize(
    ("x", "options", "said"),
    [
        (np.ones((1, 5), np.float32), {}, r"Input 'x' takes FP32\[-1, 4\]; found FP32\[1, 5\]"),
        (np.ones((9, 4), np.float32), {}, r"takes 1 to 8 rows \(max_batch_size\).*'x': 9"),
        (np.ones((1, 4), np.float32), {"priority": 2**64}, "Parameter 'priority' is"),
        (np.ones((1, 4), np.float32), {"sequence_id": 4}, "'affine' keeps no state"),
        (np.ones((1, 4), np.float32), {"model_version": "7"}, "has no version '7'; it has 1"),
        (
            np.ones((1, 4), np.float32),
            {"outputs": [triton.InferRequestedOutput("z")]},
            "'affine' has no output 'z'; it has 'y'",
        ),
        (
            np.ones((1, 4), np.float32),
            {"outputs": [triton.InferRequestedOutput("y")] * 3},
            "asks for output 'y' 3 times",
        ),
        (
            np.ones((1, 4), np.float32),
            {"outputs": [triton.InferRequestedOutput("y", class_count=2)]},
            "'classification', which is not done here",
        ),
    ],
)
def test_wrong_requests_are_told_why(client, x, options, said):
    with pytest.raises(InferenceServerException, match=said):
        client.infer("affine", given(x), **options)


def test_wrong_inputs_are_told_why(client):
    x = np.ones((1, 4), np.float32)
    with pytest.raises(InferenceServerException, match=r"takes 'x' FP32\[-1, 4\]; .* has 'w'"):
        client.infer("affine", given(x, name="w"))
    with pytest.raises(InferenceServerException, match="There is no model 'nobody'; there are"):
        client.infer("nobody", given(x))


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "said"),
    [
        ("GET", "/nowhere", b"", 404, "nothing for GET /nowhere"),
        ("GET", "/v2/models/affine/infer", b"", 405, "does not take GET"),
        ("GET", "/v2/models/..%2f..%2fetc/config", b"", 404, "no"),
        ("POST", "/v2/models/affine/infer", b"{", 400, "is no JSON"),
        ("POST", "/v2/models/affine/infer", b"x" * 70_000, 413, "takes 65536 at most (max_body)"),
        ("POST", "/v2/repository/index", b'{"ready": 1}', 400, "'ready' is 1"),
        ("POST", "/v2/repository/models/neg/load", b'{"parameters": 1}', 400, "must be an object"),
        (
            *("POST", "/v2/repository/models/neg/load"),
            *(b'{"parameters": {"file:1/m.onnx": "eA=="}}', 501, "from the model folder alone"),
        ),
        (
            *("POST", "/v2/repository/models/neg/load"),
            *(b'{"parameters": {"config": "{\\"device\\": 1}"}}', 400, "'device' is unknown"),
        ),
        ("POST", "/v2/repository/models/absent/load", b"", 404, "no model 'absent' in the model"),
        ("POST", "/v2/repository/models/absent/unload", b"", 404, "no model 'absent' that could"),
    ],
)
def test_errors_have_the_form_of_the_protocol(plain, method, path, content, status, said):
    answer = plain.request(method, path, content=content)
    assert answer.status_code == status
    assert said in answer.json()["error"]


@pytest.fixture(scope="module")
def lookup(folder):
    """A client of a server whose model looks rows up."""
    path = str(folder / "lookup.onnx")
    with (
        running_server(models={"lookup": path}, defaults={"device": "CPU"}) as running,
        client_of(running) as client,
    ):
        yield client


def looked_up(indices, added):
    """The body of a request for rows of three."""
    given = {
        "x": ("FP32", [3, 2], [0, 1, 2, 3, 4, 5]),
        "indices": ("INT64", [len(indices)], indices),
        "z": ("FP32", [added, 2], [0] * 2 * added),
    }
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, (datatype, shape, data) in given.items()
    ]
    return {"inputs": tensors}


@pytest.mark.parametrize(
    ("indices", "added", "said"),
    [
        ([0, 3, 1], 3, "'take': index 3 is out of range for a dimension of size 3; allowed are -3"),
        ([0, -4, 1], 3, "index -4 is out of range"),
        ([0, 2, 1], 2, "'add' (Add): the shapes [3, 2], [2, 2] do not broadcast"),
    ],
)
def test_data_that_a_model_cannot_compute_is_the_clients_fault(lookup, indices, added, said):
    answer = lookup.post("/v2/models/lookup/infer", json=looked_up(indices, added))
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    right = lookup.post("/v2/models/lookup/infer", json=looked_up([2, 0], 2))
    assert right.json()["outputs"][0]["data"] == [4, 5, 0, 1]


def test_a_device_that_fails_is_the_servers_fault(plain, monkeypatch):
    def fail(self, feeds):
        raise InferError("The device is lost.")

    monkeypatch.setattr(InferRequest, "infer", fail)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    answer = plain.post("/v2/models/neg/infer", json=body)
    assert answer.status_code == 500
    assert answer.json()["error"] == "The device is lost."


EMPTY = gzip.compress(b"{}", mtime=0)
"""A packed body, the same in every process that collects tests."""


@pytest.mark.parametrize(
    ("headers", "content", "status", "said"),
    [
        ({"Content-Encoding": "br"}, b"{}", 501, "'br' is not known here"),
        ({"Content-Encoding": "gzip"}, b"no gzip", 400, "cannot be unpacked"),
        ({"Content-Encoding": "gzip"}, EMPTY + b"{}", 400, "2 bytes stand behind"),
        ({"Inference-Header-Content-Length": "-1"}, b"{}", 400, "is '-1'; it is a whole number"),
        ({}, (b"{" for _ in range(3)), 400, "is no JSON"),
        ({}, (b"x" * 1000 for _ in range(100)), 413, "the server takes 65536 at most"),
    ],
)
def test_bodies_that_cannot_be_taken(plain, headers, content, status, said):
    answer = plain.post("/v2/models/affine/infer", headers=headers, content=content)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_a_bomb_is_not_unpacked(plain):
    answer = plain.post(
        "/v2/models/affine/infer",
        headers={"Content-Encoding": "gzip"},
        content=gzip.compress(bytes(10_000_000)),
    )
    assert answer.status_code == 413
    assert "more than 65536 bytes" in answer.json()["error"]


def test_clients_that_are_too_slow_are_cut_off(folder):
    infer = b"POST /v2/models/neg/infer HTTP/1.1\r\nhost: x\r\n"
    beginnings = (
        infer + b"content-le",
        infer + b"content-length: 9\r\n\r\n{",
        infer + b"transfer-encoding: chunked\r\n\r\n1",
    )
    with (
        running_server(models={"neg": str(folder / "neg.onnx")}, read_timeout_s=0.3) as running,
        contextlib.ExitStack() as opened,
    ):
        host, port = running.netloc.split(":")
        slow = []
        for beginning in beginnings:
            connection = socket.create_connection((host, int(port)), timeout=30)
            slow.append(opened.enter_context(connection))
            connection.sendall(beginning)
        for connection in slow:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""


def test_a_new_connection_may_be_idle_for_as_long_as_a_used_one(folder):
    models = {"neg": str(folder / "neg.onnx")}
    live = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n"
    with running_server(models=models, read_timeout_s=0.2, keep_alive_s=60) as running:
        address = running.address.rpartition("/")[2].split(":")
        with socket.create_connection(address, timeout=30) as opened:
            time.sleep(0.6)  # a pool of connections may keep one for its second client
            opened.sendall(live)
            assert opened.recv(1000).startswith(b"HTTP/1.1 200 ")
    with running_server(models=models, read_timeout_s=60, keep_alive_s=1) as running:
        address = running.address.rpartition("/")[2].split(":")
        with socket.create_connection(address, timeout=30) as opened:
            assert opened.recv(1000) == b""


def test_errors_are_answered_without_threads(server, plain):
    before = set(threading.enumerate())  # those of other tests may still wait for work
    for _ in range(3):
        assert plain.get("/nothing").status_code == 404
        assert plain.post("/v2/models/neg/infer", content=b"{").status_code == 400
        assert plain.post("/v2/repository/models/nothing/load", content=b"{}").status_code == 404
    new = set(threading.enumerate()) - before
    assert not [one.name for one in new if "AnyIO" in one.name]


@pytest.mark.parametrize(
    "headers",
    [b"a: " + b"x" * 5000, b"a: b\r\n" * 2000, b"x" * 100_000],
)
def test_floods_of_headers_are_refused(server, headers):
    host, port = server.netloc.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=30) as flood,
        contextlib.suppress(ConnectionResetError, BrokenPipeError),
    ):
        flood.sendall(b"GET /v2 HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n\r\n")
        assert flood.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_keys(folder, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("first\nsecond\n")
    settings = {"models": {"affine": str(folder / "affine.onnx")}, "defaults": {"device": "CPU"}}
    with running_server(**settings, api_keys=keys) as running, client_of(running) as client:
        assert client.get("/v2/health/ready").status_code == 200
        for headers in ({}, {"X-API-Key": "third"}, {"Authorization": "Basic first"}):
            answer = client.get("/v2", headers=headers)
            assert answer.status_code == 401
            assert "needs a key that this server knows" in answer.json()["error"]
            assert answer.headers["www-authenticate"] == "Bearer"
        for headers in ({"X-API-Key": "first"}, {"Authorization": "bearer second"}):
            assert client.get("/v2", headers=headers).status_code == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    path = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", path / "key.pem"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", path / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return path


def test_tls(folder, certificate):
    with running_server(
        models={"affine": str(folder / "affine.onnx")},
        defaults={"device": "CPU"},
        tls_certificate=certificate / "cert.pem",
        tls_key=certificate / "key.pem",
    ) as running:
        assert running.address.startswith("https://")
        trust = ssl.create_default_context(cafile=certificate / "cert.pem")
        with client_of(running, verify=trust) as client:
            assert client.get("/v2/health/ready").json() == {"ready": True}


@pytest.fixture
def held(monkeypatch):
    """Runs wait until it is set."""
    gate, real = threading.Event(), Instance.run

    def run(self, jobs):
        assert gate.wait(30)
        return real(self, jobs)

    monkeypatch.setattr(Instance, "run", run)
    yield gate
    gate.set()


def test_a_full_queue_refuses_before_the_body_comes(folder, held):
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
    head = b"POST /v2/models/neg/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    head %= len(body)
    settings = {"device": "CPU", "max_queue_size": 1, "instances": 1}
    with (
        running_server(models={"neg": str(folder / "neg.onnx")}, defaults=settings) as running,
        contextlib.ExitStack() as opened,
    ):
        host, port = running.netloc.split(":")
        runs, waits, refused = (
            opened.enter_context(socket.create_connection((host, int(port)), timeout=30))
            for _ in range(3)
        )
        served = running.server.repository.find("neg")
        for number, connection in enumerate((runs, waits)):
            connection.sendall(head + body)
            while served.pending != number + 1:
                time.sleep(0.01)
        refused.sendall(head)
        answer = refused.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        assert b"1 requests wait for model 'neg', which is all that its queue holds" in answer
        with (
            triton.InferenceServerClient(running.netloc) as client,
            pytest.raises(InferenceServerException, match="requests wait for model 'neg'"),
        ):
            client.infer("neg", given(np.ones((1, 2), np.float32)))
        held.set()
        for connection in (runs, waits):
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200 ")
        refused.sendall(body + head + body)  # the connection goes on behind what was refused
        assert refused.recv(10_000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("parameters", "left_us", "told"),
    [
        ({}, None, "5 ms, which is the model's 'default_timeout_us'; it was not computed"),
        ({"timeout": 2000}, None, "2 ms, which is the request's parameter 'timeout'; "),
        ({"timeout": "2000"}, 3000, "2 ms, which is the request's parameter 'timeout'; "),
        ({"timeout": 9000}, 3000, "3 ms, when the call's deadline was over; "),
        ({}, 1500, "1.5 ms, when the call's deadline was over; "),
    ],
)
def test_a_request_whose_turn_comes_too_late_is_told_what_limited_it(
    folder, held, parameters, left_us, told
):
    x = InferenceInput("x", "FP32", (1, 2), np.ones((1, 2), np.float32))
    settings = {"device": "CPU", "instances": 1, "default_timeout_us": 5000}
    with running_server(models={"neg": str(folder / "neg.onnx")}, defaults=settings) as running:
        infer = running.server.infer
        first = infer(InferenceRequest("neg", "", "", [x]))
        running_first = asyncio.run_coroutine_threadsafe(first, running.loop)
        while not running.server.repository.find("neg").pending:
            time.sleep(0.01)
        late = InferenceRequest("neg", "", "", [x], (), parameters, left_us)
        with pytest.raises(DeadlineExceeded) as raised:
            running.call(infer(late))
        assert f"'neg' did not come within {told}" in str(raised.value)
        held.set()
        assert running_first.result(60).outputs


def test_more_connections_than_may_be_are_turned_away(folder):
    with running_server(models={"neg": str(folder / "neg.onnx")}, max_connections=1) as running:
        host, port = running.netloc.split(":")
        with client_of(running) as first:
            assert first.get("/v2/health/live").status_code == 200
            with socket.create_connection((host, int(port)), timeout=30) as second:
                assert second.recv(100).startswith(b"HTTP/1.1 503 ")
            assert first.get("/v2/health/live").status_code == 200


def test_clients_that_do_not_read_are_cut_off(tmp_path, monkeypatch):
    lost, real = threading.Event(), LimitedConnection.connection_lost

    def connection_lost(self, error):
        real(self, error)
        lost.set()

    monkeypatch.setattr(LimitedConnection, "connection_lost", connection_lost)
    onnx.save(models.neg(["N", 2]), tmp_path / "neg.onnx")
    count = 32_000_000  # more than the system buffers
    head = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [%d, 2], "parameters": '
    head += b'{"binary_data_size": %d}}], "parameters": {"binary_data_output": true}}'
    head %= (count // 8, count)
    request = b"POST /v2/models/neg/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n"
    request += b"inference-header-content-length: %d\r\n\r\n%b"
    request %= (len(head) + count, len(head), head + bytes(count))
    with running_server(
        models={"neg": str(tmp_path / "neg.onnx")}, defaults={"device": "CPU"}, write_timeout_s=0.2
    ) as running:
        host, port = running.netloc.split(":")
        with socket.socket() as lazy, client_of(running) as client:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            lazy.settimeout(30)
            lazy.connect((host, int(port)))
            lazy.sendall(request)
            assert lost.wait(30)
            read = 0
            with contextlib.suppress(ConnectionResetError):
                while found := lazy.recv(1 << 20):
                    read += len(found)
            assert read < count
            assert client.get("/v2/health/live").status_code == 200
