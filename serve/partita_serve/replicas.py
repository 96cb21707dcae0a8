"""The server on Ray Serve: replicas of it on the nodes of a cluster, behind one address."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from partita.errors import PartitaError, PropertyError
from partita_serve.protocol.api_keys import ApiKeys
from partita_serve.rest.app import create_app
from partita_serve.server import ModelServer
from partita_serve.settings import ServerSettings

NAME = "partita"
"""Of the application in the cluster."""

_NOT_SHARED = ("tls_certificate", "tls_key", "tls_client_ca", "language_models")


class ReplicaApp:
    """The REST interface of a server that starts and ends with the replica that it is in.

    Args:
        settings: What is served; paths must lead to the same files on every node.
    """

    def __init__(self, settings: ServerSettings) -> None:
        keys = ApiKeys() if settings.api_keys is None else ApiKeys.read(settings.api_keys)
        self._server = ModelServer(settings)
        self._app: ASGIApp = create_app(self._server, keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or lives through the replica's life."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()  # to start
        try:
            await self._server.start()
        except PartitaError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()  # to end
        await self._server.stop()
        await send({"type": "lifespan.shutdown.complete"})


def application(settings: ServerSettings, replicas: int) -> Any:
    """What Ray Serve runs."""
    from ray import serve

    def make() -> ReplicaApp:
        return ReplicaApp(settings)

    class Replica:
        """Answers by the application that is made on its node."""

    ingress = serve.ingress(make)(Replica)
    return serve.deployment(ingress).options(name=NAME, num_replicas=replicas).bind()


def run(settings: ServerSettings, replicas: int, ready: Callable[[str], None]) -> None:
    """Serves on the cluster of ``RAY_ADDRESS``, or a local one, until a signal to end.

    Args:
        settings: What is served, and where Ray's proxies listen.
        replicas: How many servers there are.
        ready: Called with the address when all replicas have loaded their models.

    Raises:
        PropertyError: A setting is for a server that listens itself.
        PartitaError: Ray Serve is not installed, or a replica did not start.
    """
    set_alone = [name for name in _NOT_SHARED if getattr(settings, name)]
    if set_alone:
        raise PropertyError(
            f"Replicas on Ray Serve cannot have {', '.join(map(repr, set_alone))}: Ray's proxies "
            "listen for them, and they answer REST alone."
        )
    if settings.allow_control:
        raise PropertyError(
            "One replica alone would load and unload models: give --no-control with --ray."
        )
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise PartitaError(f'Ray Serve is missing ({error}): pip install "partita[ray]"') from error
    ended = threading.Event()
    ray.init(log_to_driver=False, ignore_reinit_error=True)
    for one in (signal.SIGTERM, signal.SIGINT):  # after Ray, which would end the process
        signal.signal(one, lambda *_: ended.set())
    serve.start(http_options={"host": settings.host, "port": settings.http_port})
    try:
        serve.run(application(settings, replicas), name=NAME)
    except RuntimeError as error:
        raise PartitaError(f"The replicas did not start: {error}") from error
    try:
        ready(f"http://{settings.host}:{settings.http_port}")
        ended.wait()
    finally:
        serve.delete(NAME)
        ray.shutdown()
