"""TLS and certificates of clients, over REST and over gRPC."""

import ssl
import subprocess

import grpc
import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from models import neg
from serving import client_of, running_server
from tritonclient.utils import InferenceServerException

X = np.array([[1.0, -2.0]], np.float32)


def openssl(folder, *command):
    words = ("openssl", *map(str, command))
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


def make_authority(folder, name):
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(
        folder,
        *("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem"),
        *("-days", 2, "-subj", f"/CN={name}"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),  # Python 3.13 asks for it
    )


def make_certificate(folder, name, authority):
    """A key and a certificate for 127.0.0.1 that an authority has signed."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(
        folder,
        *("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
    )
    extensions = "subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n"
    (folder / f"{name}.ext").write_text(extensions, encoding="ascii")
    openssl(
        folder,
        *("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem"),
        *("-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem"),
        *("-days", 2, "-extfile", f"{name}.ext"),
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    for authority in ("servers", "clients", "strangers"):
        make_authority(folder, authority)
    make_certificate(folder, "server", "servers")
    make_certificate(folder, "client", "clients")
    make_certificate(folder, "stranger", "strangers")
    onnx.save(neg([1, 2]), folder / "neg.onnx")
    return folder


def serving(files, **settings):
    return running_server(
        models={"neg": str(files / "neg.onnx")},
        defaults={"device": "CPU"},
        tls_certificate=files / "server.pem",
        tls_key=files / "server.key",
        **settings,
    )


@pytest.fixture(scope="module")
def open_to_all(files):
    with serving(files) as running:
        yield running


@pytest.fixture(scope="module")
def open_to_clients(files):
    with serving(files, tls_client_ca=files / "clients.pem") as running:
        yield running


def grpc_client(running, files, name=None):
    """Triton's client, with a certificate of its own or with none."""
    pair = {}
    if name is not None:
        pair = {
            "private_key": str(files / f"{name}.key"),
            "certificate_chain": str(files / f"{name}.pem"),
        }
    roots = str(files / "servers.pem")
    return triton.InferenceServerClient(
        running.grpc_address, ssl=True, root_certificates=roots, **pair
    )


def http_client(running, files, name=None):
    trust = ssl.create_default_context(cafile=files / "servers.pem")
    if name is not None:
        trust.load_cert_chain(files / f"{name}.pem", files / f"{name}.key")
    return client_of(running, verify=trust)


def over_grpc(client):
    tensor = triton.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(X)
    return client.infer("neg", [tensor], client_timeout=30).as_numpy("y")


def over_http(client):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": X.ravel().tolist()}
    (found,) = client.post("/v2/models/neg/infer", json={"inputs": [tensor]}).json()["outputs"]
    return np.reshape(found["data"], found["shape"])


def test_grpc_over_tls(open_to_all, files):
    with grpc_client(open_to_all, files) as client:
        assert client.is_server_ready()
        np.testing.assert_array_equal(over_grpc(client), -X)


def test_grpc_over_tls_is_not_spoken_in_the_clear(open_to_all):
    with (
        triton.InferenceServerClient(open_to_all.grpc_address) as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        over_grpc(client)
    assert caught.value.status() == str(grpc.StatusCode.UNAVAILABLE)


def test_a_client_that_does_not_know_the_servers_authority_goes(open_to_all, files):
    client = triton.InferenceServerClient(
        open_to_all.grpc_address, ssl=True, root_certificates=str(files / "strangers.pem")
    )
    with client, pytest.raises(InferenceServerException) as caught:
        over_grpc(client)
    assert caught.value.status() == str(grpc.StatusCode.UNAVAILABLE)


def test_clients_with_certificates(open_to_clients, files):
    with grpc_client(open_to_clients, files, "client") as client:
        np.testing.assert_array_equal(over_grpc(client), -X)
    with http_client(open_to_clients, files, "client") as client:
        np.testing.assert_array_equal(over_http(client), -X)


@pytest.mark.parametrize("name", [None, "stranger"])
def test_clients_without_the_right_certificate_are_refused(open_to_clients, files, name):
    with (
        grpc_client(open_to_clients, files, name) as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        over_grpc(client)
    assert caught.value.status() == str(grpc.StatusCode.UNAVAILABLE)
    with http_client(open_to_clients, files, name) as client, pytest.raises(httpx.TransportError):
        over_http(client)
    # Nobody else is harmed by that.
    with grpc_client(open_to_clients, files, "client") as client:
        np.testing.assert_array_equal(over_grpc(client), -X)
