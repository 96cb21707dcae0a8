"""Devices RAY where there is no cluster: what is said then, and what needs none."""

import importlib.util
import socket
import subprocess
import sys

import models
import numpy as np
import pytest

import partita
from partita.errors import DeviceUnavailableError, InputError, PropertyError
from partita.properties import validate
from partita_ray import BatchPredictor, cluster
from partita_ray.properties import RayProperties


@pytest.fixture
def no_cluster(monkeypatch):
    """As if ray were installed, and neither loaded nor told of a cluster."""
    monkeypatch.delenv(cluster.ADDRESS, raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_without_ray_the_cure_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = partita.Core().unavailable_devices["RAY"]
    assert reason == 'Ray is not installed; pip install "partita[ray]".'


def test_without_a_cluster_the_ways_to_one_are_named(no_cluster):
    core = partita.Core()
    assert not any(name.startswith("RAY") for name in core.available_devices)
    with pytest.raises(
        DeviceUnavailableError, match=r"set RAY_ADDRESS.*'auto'.*'local'.*ray\.init"
    ):
        core.device_info("RAY.0")


def test_ray_client_is_refused_with_its_reason(no_cluster, monkeypatch):
    monkeypatch.setenv(cluster.ADDRESS, "ray://head:10001")
    with pytest.raises(DeviceUnavailableError, match=r"cannot be read in place.*'auto'"):
        partita.Core().device_info("RAY")


def test_an_address_where_nobody_answers_is_refused(no_cluster, monkeypatch):
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv(cluster.ADDRESS, f"127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(DeviceUnavailableError, match=r"Nobody answers at .*ray start --head"):
            partita.Core().device_info("RAY")


def test_listing_devices_imports_no_ray(no_cluster):
    code = (
        "import sys, partita, partita_ray\n"
        "partita.Core().available_devices\n"
        "assert not any(name.split('.')[0] == 'ray' for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize("device", ["RAY", "RAY.1", "HETERO:CPU,RAY.0"])
def test_a_node_computes_on_devices_of_its_own(device):
    with pytest.raises(ValueError, match="a device of the node itself"):
        RayProperties(RAY_DEVICE=device)


def test_properties_for_the_node():
    properties = RayProperties(
        RAY_DEVICE="HETERO:GPU,CPU", PERF_COUNT=True, RAY_DEVICE_PROPERTIES={"STRICT": True}
    )
    assert properties.for_node == {"PERF_COUNT": True, "STRICT": True}


def test_properties_for_the_node_can_be_text():
    text = '{"INFERENCE_NUM_THREADS": 1}'
    assert RayProperties(RAY_DEVICE_PROPERTIES=text).for_node == {"INFERENCE_NUM_THREADS": 1}
    for wrong in ("{", "[1]"):
        with pytest.raises(ValueError, match="RAY_DEVICE_PROPERTIES"):
            RayProperties(RAY_DEVICE_PROPERTIES=wrong)


def test_batches_get_the_outputs_as_columns():
    predictor = BatchPredictor(models.affine(), "CPU", columns={"x": "features"})
    features = np.arange(8, dtype=np.float64).reshape(2, 4)
    batch = predictor({"features": features, "label": np.array([1, 2])})
    weights = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    np.testing.assert_allclose(batch["y"], np.maximum(features @ weights + [1, -2, 3], 0))
    assert list(batch) == ["features", "label", "y"]


def test_a_missing_column_is_named():
    predictor = BatchPredictor(models.neg(), "CPU", columns={"x": "pixels"})
    with pytest.raises(InputError, match=r"'x'.*column 'pixels'.*it has 'image'"):
        predictor({"image": np.zeros((2, 3), np.float32)})


def test_a_wrong_property_is_refused():
    with pytest.raises(PropertyError, match="RAY_REQUESTS"):
        validate(RayProperties, {"RAY_REQUESTS": 0}, "Device 'RAY'")
