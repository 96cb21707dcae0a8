"""Models that come, change and go while clients use them."""

import contextlib
import shutil
import threading
import time

import models
import numpy as np
import onnx
import pytest
from models import node, value, weight
from onnx import TensorProto, helper
from serving import client_of, running_server
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from partita.errors import PropertyError
from partita.model.variables import METADATA_KEY, Variable, to_metadata


def adding(number):
    """y = x + number"""
    return models.model_of(
        [node("Add", ["x", "w"], "y")],
        [value("x", ["N", 2])],
        [value("y", ["N", 2])],
        [weight("w", np.array([number], np.float32))],
    )


def put(folder, number, version=1, name="m"):
    """Puts a model into the folder as careful people do: beside it first, then renamed."""
    place = folder / name / str(version)
    place.mkdir(parents=True, exist_ok=True)
    onnx.save(adding(number), place / "new")
    (place / "new").replace(place / "model.onnx")


def ask(client, name="m", version="", rows=1):
    tensor = triton.InferInput("x", [rows, 2], "FP32")
    tensor.set_data_from_numpy(np.zeros((rows, 2), np.float32))
    return client.infer(name, [tensor], model_version=version).as_numpy("y")[0, 0]


def eventually(what):
    """Waits for what a server does by itself."""
    for _ in range(600):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it does not come")


@contextlib.contextmanager
def serving(folder, **settings):
    settings.setdefault("defaults", {"device": "CPU"})
    with (
        running_server(repository=folder, **settings) as running,
        triton.InferenceServerClient(running.netloc) as client,
    ):
        yield running, client


def test_versions_and_what_is_wrong_with_some(tmp_path):
    put(tmp_path, 1)
    put(tmp_path, 2, version=2)
    put(tmp_path, 3, version=10)
    (tmp_path / "m" / "config.toml").write_text("versions = 2")
    (tmp_path / "broken" / "1").mkdir(parents=True)
    (tmp_path / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    (tmp_path / "empty").mkdir()
    with serving(tmp_path) as (_, client):
        assert (ask(client), ask(client, version="10"), ask(client, version="2")) == (3, 3, 2)
        with pytest.raises(InferenceServerException, match="has no version '1'; it has 2, 10"):
            ask(client, version="1")
        assert client.get_model_metadata("m")["versions"] == ["2", "10"]
        index = {(one["name"], one["version"]): one for one in client.get_model_repository_index()}
        assert {key for key, one in index.items() if one["state"] == "READY"} == {
            ("m", "2"),
            ("m", "10"),
        }
        assert "not an ONNX model" in index["broken", "1"]["reason"]
        assert "has no version" in index["empty", "1"]["reason"]
        with pytest.raises(InferenceServerException, match=r"is not ready .UNAVAILABLE."):
            ask(client, name="broken")
        put(tmp_path, 4, name="broken")
        client.load_model("broken")
        assert ask(client, name="broken") == 4


def test_loading_and_unloading(tmp_path):
    put(tmp_path, 1)
    with serving(tmp_path) as (_, client):
        client.unload_model("m")
        assert not client.is_model_ready("m")
        with pytest.raises(InferenceServerException, match="it was unloaded"):
            ask(client)
        put(tmp_path, 2)
        client.load_model("m", config='{"max_batch_size": 4}')
        assert ask(client) == 2
        assert client.get_model_config("m")["max_batch_size"] == 4
        with pytest.raises(InferenceServerException, match="takes 1 to 4 rows"):
            ask(client, rows=5)
        (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"no model any more")
        with pytest.raises(InferenceServerException, match="not an ONNX model"):
            client.load_model("m")
        assert ask(client) == 2  # what was loaded goes on, though its file is gone


def test_control_can_be_taken_from_clients(tmp_path):
    put(tmp_path, 1)
    with serving(tmp_path, allow_control=False) as (_, client):
        for call in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="does not let clients load"):
                call("m")
        assert ask(client) == 1


def test_changes_are_seen_and_no_request_is_lost(tmp_path):
    put(tmp_path, 0)
    settings = {"defaults": {"device": "CPU", "max_batch_size": 4}, "reload_seconds": 0.02}
    with serving(tmp_path, **settings) as (running, client):
        ends = threading.Event()
        seen, failures = set(), []

        def load():
            with triton.InferenceServerClient(running.netloc) as own:
                while not ends.is_set():
                    try:
                        seen.add(float(ask(own)))
                    except Exception as error:  # noqa: BLE001  # each one is a request lost
                        failures.append(error)

        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(1, 5):
            put(tmp_path, number)
            eventually(lambda number=number: number in seen)
        put(tmp_path, 9, version=2)
        eventually(lambda: 9 in seen)
        ends.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert seen == {0, 1, 2, 3, 4, 9}
        assert client.get_model_metadata("m")["versions"] == ["2"]
        put(tmp_path, 5, name="late")
        eventually(lambda: client.is_model_ready("late"))
        shutil.rmtree(tmp_path / "m")
        eventually(lambda: not client.is_model_ready("m"))
        assert ask(client, name="late") == 5


def test_a_change_that_cannot_be_loaded_is_told_and_changes_nothing(tmp_path):
    put(tmp_path, 1)
    with serving(tmp_path, reload_seconds=0.02) as (_, client):
        (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"no model any more")
        eventually(lambda: "not an ONNX" in client.get_model_repository_index()[0]["reason"])
        assert ask(client) == 1
        put(tmp_path, 2)
        eventually(lambda: ask(client) == 2)
        assert client.get_model_repository_index()[0]["reason"] == ""


def counter():
    """total = total before + x, a model with state."""
    nodes = [node("Add", ["x", "past"], "present"), node("Identity", ["present"], "total")]
    proto = models.model_of(
        nodes,
        [value("x", [1]), value("past", [1])],
        [value("total", [1]), value("present", [1])],
    )
    variables = [Variable("total", read="past", written="present")]
    helper.set_model_props(proto, {METADATA_KEY: to_metadata(variables)})
    return proto


@pytest.fixture
def counting(tmp_path):
    place = tmp_path / "count" / "1"
    place.mkdir(parents=True)
    onnx.save(counter(), place / "model.onnx")
    settings = {"device": "CPU", "max_sequences": 2, "sequence_idle_s": 0.3}
    with serving(tmp_path, defaults=settings) as (_, client):
        yield client


def count(client, number, name=0, start=False, end=False):
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([number], np.float32))
    answer = client.infer(
        "count", [tensor], sequence_id=name, sequence_start=start, sequence_end=end
    )
    return answer.as_numpy("total").item()


def test_sequences_have_state_of_their_own(counting):
    assert counting.get_model_metadata("count")["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [1]}
    ]
    assert count(counting, 1, 7, start=True) == 1
    assert count(counting, 10, "b", start=True) == 10
    assert count(counting, 2, 7) == 3
    assert count(counting, 20, "b") == 30
    with pytest.raises(InferenceServerException, match=r"2 sequences .*\(max_sequences\)"):
        count(counting, 1, 8, start=True)
    assert count(counting, 5, 7, start=True) == 5  # it begins anew
    client = counting
    client.load_model("count")  # open sequences go on where they are
    assert count(client, 1, 7, end=True) == 6
    with pytest.raises(InferenceServerException, match=r"has no sequence 7: it has ended"):
        count(client, 1, 7)
    assert count(client, 4, 8, start=True) == 4
    assert count(client, 1, 8) == 5

    def idle():
        try:
            count(client, 0, "b")
        except InferenceServerException:
            return True
        time.sleep(0.4)
        return False

    eventually(idle)
    with pytest.raises(InferenceServerException, match="keeps state: give 'sequence_id'"):
        count(client, 1)


def test_models_that_cannot_be_joined_say_so(tmp_path):
    fixed = tmp_path / "fixed.onnx"
    onnx.save(models.add_sub([3, 2]), fixed)
    text = tmp_path / "text.onnx"
    flag = models.model_of(
        [node("Identity", ["x"], "y")],
        [value("x", ["N"], TensorProto.COMPLEX64)],
        [value("y", ["N"], TensorProto.COMPLEX64)],
    )
    onnx.save(flag, text)
    for path, said in (
        (fixed, r"first axis of 'a' \(float32\[3, 2\]\) does not vary"),
        (text, "no element type for complex64"),
    ):
        with (
            pytest.raises(Exception, match=said),
            running_server(
                models={"m": str(path)}, defaults={"device": "REFERENCE", "max_batch_size": 4}
            ),
        ):
            pass


def test_an_address_that_is_taken_says_so(tmp_path):
    put(tmp_path, 1)
    with serving(tmp_path) as (running, _):
        port = int(running.netloc.split(":")[1])
        with (
            pytest.raises(PropertyError, match=rf"cannot listen at 127.0.0.1, port {port}: "),
            running_server(repository=tmp_path, http_port=port),
        ):
            pass


def test_nothing_is_ready_before_models_are_loaded(tmp_path):
    put(tmp_path, 1)
    with serving(tmp_path) as (running, client):
        running.loop.call_soon_threadsafe(running.server.drain)
        eventually(lambda: not client.is_server_ready())
        assert client.is_server_live()
        assert ask(client) == 1  # who still comes is answered
        with client_of(running) as plain:
            answer = plain.get("/v2/health/ready")
            assert "connection" not in answer.headers
            running.loop.call_soon_threadsafe(running.server.close_connections)
            eventually(lambda: plain.get("/v2").headers.get("connection") == "close")
            assert "about to stop" in answer.json()["error"]
