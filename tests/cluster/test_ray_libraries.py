"""Models in Ray's own libraries: batches of Ray Data, an application of Ray Serve."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import warnings

import httpx
import numpy as np
import onnx
import pytest
from models import affine

from partita.errors import InputError
from partita_ray import BatchPredictor, model_app

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
BIAS = [1, -2, 3]


@pytest.fixture
def path(tmp_path):
    onnx.save(affine(), tmp_path / "affine.onnx")
    return str(tmp_path / "affine.onnx")


def expected(x):
    return np.maximum(x @ WEIGHT + BIAS, 0)


@pytest.mark.filterwarnings("default")  # those of Ray Data are not ours
def test_rows_of_a_data_set_get_the_outputs(cluster, path):
    from ray import data

    rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    items = [{"number": i, "features": row} for i, row in enumerate(rows)]
    done = data.from_items(items).map_batches(
        BatchPredictor,
        fn_constructor_args=(path, "CPU"),
        fn_constructor_kwargs={"columns": {"x": "features"}},
        batch_size=16,
        num_cpus=0,
        compute=data.ActorPoolStrategy(size=2),
    )
    found = done.take_all()
    assert sorted(row["number"] for row in found) == list(range(50))
    for row in found:
        np.testing.assert_allclose(row["y"], expected(rows[row["number"]]), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("default")
def test_replicas_of_ray_serve_answer(cluster, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray import serve
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0}}
    handle = serve.run(model_app(path, "CPU", **options), name="affine", route_prefix=None)
    try:
        inputs = [np.full((2, 4), i, np.float32) for i in range(20)]
        answers = [handle.remote({"x": x}) for x in inputs]
        for x, answer in zip(inputs, answers, strict=True):
            np.testing.assert_allclose(answer.result(timeout_s=120)["y"], expected(x), rtol=1e-5)
        told = handle.explain.remote().result(timeout_s=120)
        assert {op["device"] for op in told["ops"]} == {"CPU"}
        with pytest.raises(InputError, match="no input 'z'"):
            handle.remote({"z": inputs[0]}).result(timeout_s=120)
    finally:
        serve.shutdown()


def test_the_server_runs_as_replicas_until_it_is_told_to_end(cluster, path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "partita", "serve", path, "-d", "CPU", "--ray", "2"]
    command += ["--no-control", "--http-port", str(port), "--json"]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        lines = iter(server.stdout.readline, "")
        told = next(line for line in lines if '"http"' in line)
        address = re.search(r"http://[\d.:]+", told)[0]
        x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
        url = f"{address}/v2/models/affine/infer"
        (output,) = httpx.post(url, json={"inputs": [x]}, timeout=60).json()["outputs"]
        assert output["data"] == expected(np.array([1, 2, 3, 4], np.float32)).tolist()
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
