"""A server's life: addresses bound, models loaded, requests answered, and an end without loss."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.routing import BaseRoute
from uvicorn.loops.auto import auto_loop_factory

from partita.errors import PropertyError
from partita_serve.protocol.observer import Observer
from partita_serve.rest.app import create_app
from partita_serve.rest.connection import connection_class
from partita_serve.rest.gate import read_keys
from partita_serve.server import ModelServer
from partita_serve.settings import ServerSettings

_BACKLOG = 1024
"""Connections that wait to be accepted."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What ends a server."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens.

    Attributes:
        http: The address of REST.
    """

    http: str


class _HttpListener(uvicorn.Server):
    """Uvicorn without its own way to take signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none."""
        yield


async def serve(
    settings: ServerSettings,
    ready: Callable[[Addresses, ModelServer], None],
    stop: asyncio.Event,
    observers: Sequence[Observer] = (),
    routes: Sequence[BaseRoute] = (),
) -> None:
    """Serves until it is told to stop, and then until its requests are answered.

    Liveness is answered at once, all else when the models are loaded.

    Args:
        settings: What is served, where.
        ready: Called when the models are loaded.
        stop: Set when the server is to end.
        observers: Are told of requests and runs.
        routes: Of pages besides the protocol.

    Raises:
        PartitaError: A model cannot be loaded, or an address or file cannot be used.
    """
    keys = read_keys(settings.api_keys) if settings.api_keys is not None else []
    server = ModelServer(settings, observers)
    listener = _HttpListener(_http_config(settings, server, keys, routes))
    bound = bind(settings.host, settings.http_port)
    listening = asyncio.create_task(listener.serve([bound]))
    try:
        starting = asyncio.create_task(server.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping, listening}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            ready(Addresses(_address("https" if settings.tls_key else "http", bound)), server)
            await asyncio.wait({stopping, listening}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        server.drain()
        # Clients still come until they have seen that the server is not ready any more.
        await asyncio.sleep(settings.drain_seconds if starting.done() else 0)
    finally:
        listener.should_exit = True
        await listening
        await server.stop()


def run(
    settings: ServerSettings,
    ready: Callable[[Addresses, ModelServer], None],
    observers: Sequence[Observer] = (),
    routes: Sequence[BaseRoute] = (),
) -> None:
    """Serves until the process gets a signal to end; a second one ends it at once.

    Args:
        settings: What is served, where.
        ready: Called when the models are loaded.
        observers: Are told of requests and runs.
        routes: Of pages besides the protocol.

    Raises:
        PartitaError: As :func:`serve`.
    """

    async def until_signal() -> None:
        stop = asyncio.Event()
        with _stopping_by_signal(asyncio.get_running_loop(), stop):
            await serve(settings, ready, stop, observers, routes)

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(until_signal())


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        PropertyError: The address is taken, or none of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Named as TCP, so that what it accepts does not wait to fill packets.
        with contextlib.ExitStack() as opened:
            bound = opened.enter_context(socket.socket(family, kind, socket.IPPROTO_TCP))
            if os.name == "posix":
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)
            opened.pop_all()
        return bound
    except OSError as error:
        raise PropertyError(
            f"The server cannot listen at {host}, port {port}: {error.strerror or error}."
        ) from error


def _http_config(
    settings: ServerSettings, server: ModelServer, keys: Sequence[str], routes: Sequence[BaseRoute]
) -> uvicorn.Config:
    config = uvicorn.Config(
        create_app(server, keys, routes),
        http=connection_class(settings),
        ws="none",
        backlog=_BACKLOG,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(settings.keep_alive_s),
        timeout_graceful_shutdown=int(settings.stop_seconds),
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise PropertyError(
            f"The certificate '{settings.tls_certificate}' cannot be used with key "
            f"'{settings.tls_key}': {error}."
        ) from error
    return config


def _address(scheme: str, bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def _stopping_by_signal(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    """Sets an event when the process is told to end; told again, it is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def take(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, take) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
