"""The command: what it says, and how it ends when clients are at work."""

import contextlib
import http.client
import json
import queue
import signal
import socket
import subprocess
import sys
import threading

import grpc
import models
import onnx
import pytest

from partita.cli.main import build_parser, main
from partita.errors import PropertyError
from partita_serve.command import settings_of
from partita_serve.rpc.messages import message_type

BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
)
SERVE = (sys.executable, "-m", "partita", "serve", "--http-port", "0", "--grpc-port", "0")


def grpc_request(**fields):
    return message_type("ModelInferRequest")(**fields).SerializeToString()


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "affine.onnx"
    onnx.save(models.affine(), path)
    return path


@contextlib.contextmanager
def process(*options):
    with subprocess.Popen(
        [*SERVE, "--json", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield server, json.loads(server.stdout.readline())
        finally:
            if server.poll() is None:
                server.kill()


def test_no_request_is_lost_at_the_end(model):
    with process(model, "-d", "CPU", "--drain-seconds", "0.3") as (server, told):
        assert [one["name"] for one in told["models"]] == ["affine"]
        lost, answered = [], []
        under_way = threading.Barrier(5, timeout=60)

        def ask():
            netloc = told["http"].partition("://")[2]
            connection = http.client.HTTPConnection(netloc, timeout=60)
            for number in range(1_000_000):
                if number == 20:
                    under_way.wait()
                try:
                    connection.connect() if connection.sock is None else None
                except OSError:
                    return  # the server does not listen any more
                try:
                    connection.request("POST", "/v2/models/affine/infer", BODY)
                    answer = connection.getresponse()
                    (found,) = json.load(answer)["outputs"]
                    assert answer.status == 200
                    assert found["data"] == [11, 18, 33]
                except Exception as error:  # noqa: BLE001  # each one is a request lost
                    lost.append(error)
                    return
                answered.append(number)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        under_way.wait()
        server.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        _, errors = server.communicate(timeout=600)
    assert not lost
    assert len(answered) >= 80
    assert server.returncode == 0
    assert "all requests are answered" in errors


def test_a_request_that_takes_too_long_is_given_up_and_told_of(model, tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text("stop_seconds = 1\ndrain_seconds = 0\n")
    with process(model, "-d", "CPU", "--config", config) as (server, told):
        host, _, port = told["http"].partition("://")[2].rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            asked = f"POST /v2/models/affine/infer HTTP/1.1\r\nHost: {host}\r\n"
            asked += f"Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\n\r\n"
            client.sendall(asked.encode())
            assert b"100 Continue" in client.recv(100)  # so the request has begun
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=600)
    assert "given up after stop_seconds (1), requests of 1 clients" in errors
    assert "Traceback" not in errors
    assert server.returncode == 0


@pytest.mark.parametrize("call", ["ModelInfer", "ModelStreamInfer"])
def test_a_call_that_takes_too_long_is_given_up_and_told_of(model, tmp_path, call):
    config = tmp_path / "serve.toml"
    config.write_text("stop_seconds = 1\ndrain_seconds = 0\n")
    waiting = ("--max-batch-size", 8, "--max-queue-delay-us", 60_000_000)
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    asked = grpc_request(model_name="affine", inputs=[x], raw_input_contents=[bytes(16)])
    with (
        process(model, "-d", "CPU", "--config", config, *waiting) as (server, told),
        grpc.insecure_channel(told["grpc"]) as channel,
    ):
        name = f"/inference.GRPCInferenceService/{call}"
        if call == "ModelInfer":
            answer = channel.unary_unary(name).future(asked)
        else:
            answer = channel.stream_stream(name)(iter([asked]))
        web = http.client.HTTPConnection(told["http"].partition("://")[2], timeout=60)
        text = b""
        while b"partita_requests_in_flight 1.0" not in text:
            web.request("GET", "/metrics")
            text = web.getresponse().read()
        web.close()
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=600)
        answer.cancel()
    assert "given up after stop_seconds (1), requests of 1 clients" in errors
    assert "Traceback" not in errors
    assert server.returncode == 0


def streaming(channel, call, requests):
    """A call of gRPC, of whose stream of answers the caller takes one after another."""
    if call.endswith("Watch"):
        return channel.unary_stream(call)(b"")
    return channel.stream_stream(call)(iter(requests.get, None))


@pytest.mark.parametrize(
    "call", ["/grpc.health.v1.Health/Watch", "/inference.GRPCInferenceService/ModelStreamInfer"]
)
def test_streams_that_clients_keep_open_end_with_the_server(model, tmp_path, call):
    config = tmp_path / "serve.toml"
    config.write_text("stop_seconds = 3600\ndrain_seconds = 0\n")
    requests = queue.Queue()
    requests.put(grpc_request(model_name="affine"))
    with process(model, "-d", "CPU", "--config", config) as (server, told):
        with grpc.insecure_channel(told["grpc"]) as channel:
            answers = streaming(channel, call, requests)
            assert next(answers)  # the server reads it, and there is nothing to be answered
            server.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError, match="about to stop"):
                list(answers)
            requests.put(None)
        _, errors = server.communicate(timeout=600)
    assert server.returncode == 0
    assert "all requests are answered" in errors


def test_two_signals_end_it_at_once(model, tmp_path, monkeypatch):
    folder, copies = tmp_path / "models", tmp_path / "copies"
    (folder / "affine" / "1").mkdir(parents=True)
    model.rename(folder / "affine" / "1" / "model.onnx")
    copies.mkdir()
    monkeypatch.setenv("TMPDIR", str(copies))
    options = ("--repository", folder, "-d", "CPU", "--drain-seconds", "3600")
    with process(*options) as (server, told):
        assert list(copies.glob("partita-serve-*/1/model.onnx"))
        server.send_signal(signal.SIGINT)
        connection = http.client.HTTPConnection(told["http"].partition("://")[2], timeout=60)
        status = 200
        while status == 200:
            connection.request("GET", "/v2/health/ready")
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        assert status == 503
        assert b"about to stop" in text
        connection.close()
        server.send_signal(signal.SIGINT)
        assert server.wait(600) == 130
    assert not list(copies.glob("partita-serve-*"))


def test_a_server_that_still_loads_its_models_ends_at_the_first_signal(model):
    code = """
import sys, time
from partita.cli.main import main
from partita_serve.models import repository

def load(core, source):
    sys.stderr.write("loading\\n")
    sys.stderr.flush()
    time.sleep(3600)

repository.load = load
sys.exit(main())
"""
    argv = [sys.executable, "-c", code, *SERVE[3:], str(model)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr.readline() == "loading\n"
        server.send_signal(signal.SIGTERM)
        try:
            _, errors = server.communicate(timeout=60)
        finally:
            server.kill()
    assert server.returncode == 130
    assert "told to end before its models were loaded" in errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "There is nothing to serve: name a model, a folder of models by --repository"),
        (["no.onnx"], "Model file 'no.onnx' does not exist"),
        (["{model}", "-d", "ABSENT"], "ABSENT"),
        (["{model}", "--max-batch-size", "many"], "The settings: 'defaults.max_batch_size'"),
        (["{model}", "--config", "no.toml"], "'no.toml' cannot be read"),
        (["{model}", "--tls-key", "k", "--tls-certificate", "c"], "The certificate 'c' cannot be"),
        (["{model}", "--api-keys", "no.txt"], "The keys in 'no.txt' cannot be read"),
        (["--repository", "nowhere"], "Model folder 'nowhere' cannot be read"),
    ],
)
def test_what_cannot_be_served_ends_with_the_reason(model, capsys, options, said):
    words = [word.format(model=model) for word in options]
    assert main(["serve", "--http-port", "0", "--grpc-port", "0", *words]) == 1
    assert said in capsys.readouterr().err


def test_options_are_stronger_than_the_file(model, tmp_path):
    config = tmp_path / "serve.toml"
    config.write_text(
        f'http_port = 1\n[models]\nfirst = "{model}"\n[defaults]\ndevice = "ABSENT"\n'
        "max_batch_size = 4\n"
    )
    words = ["serve", f"second={model}", str(model), "--config", str(config), "-d", "CPU"]
    words += ["--http-port", "2", "--property", "PERF_COUNT=YES", "--no-control"]
    settings = settings_of(build_parser().parse_args(words))
    assert set(settings.models) == {"first", "second", "affine"}
    assert (settings.http_port, settings.grpc_port, settings.allow_control) == (2, 8001, False)
    assert (settings.defaults.device, settings.defaults.max_batch_size) == ("CPU", 4)
    assert settings.defaults.properties == {"PERF_COUNT": "YES"}


def test_two_models_of_one_name_are_refused():
    """The last one was served, and nothing said of the other."""
    args = build_parser().parse_args(["serve", "a/model.onnx", "b/model.onnx"])
    with pytest.raises(PropertyError, match=r"'a/model.onnx' and 'b/model.onnx' would both be"):
        settings_of(args)


def test_a_package_that_is_missing_is_named_with_its_extra(model, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "partita_serve.lifecycle", raising=False)
    monkeypatch.delattr("partita_serve.lifecycle", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(model)]) == 1
    assert "needs the package 'uvicorn': pip install \"partita[serve]\"" in capsys.readouterr().err
