"""Servers on Ray: what is refused before a cluster is looked for."""

import pytest

from partita.errors import PropertyError
from partita_serve import replicas
from partita_serve.settings import ServerSettings


def never(address):
    raise AssertionError(address)


def test_control_of_one_replica_is_refused():
    with pytest.raises(PropertyError, match="give --no-control with --ray"):
        replicas.run(ServerSettings(models={"m": "m.onnx"}), 2, never)


def test_what_proxies_do_is_refused():
    tls = {"tls_certificate": "cert.pem", "tls_key": "key.pem"}
    settings = ServerSettings(models={"m": "m.onnx"}, allow_control=False, **tls)
    with pytest.raises(PropertyError, match="cannot have 'tls_certificate', 'tls_key'"):
        replicas.run(settings, 2, never)


def test_texts_are_refused():
    settings = ServerSettings(language_models={"m": "m.gguf"}, allow_control=False)
    with pytest.raises(PropertyError, match="cannot have 'language_models'"):
        replicas.run(settings, 2, never)
