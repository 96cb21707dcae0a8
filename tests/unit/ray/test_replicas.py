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


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_what_proxies_do_is_refused(name):
    settings = ServerSettings(models={"m": "m.onnx"}, allow_control=False, **{name: "x.pem"})
    with pytest.raises(PropertyError, match=f"cannot have '{name}'.*proxies listen"):
        replicas.run(settings, 2, never)


def test_texts_are_refused():
    settings = ServerSettings(language_models={"m": "m.gguf"}, allow_control=False)
    with pytest.raises(PropertyError, match="cannot have 'language_models'"):
        replicas.run(settings, 2, never)
