"""Models in Ray's own libraries: batches of Ray Data, an application of Ray Serve."""

from __future__ import annotations

import warnings

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
