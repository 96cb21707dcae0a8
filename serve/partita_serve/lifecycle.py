"""A server's life: addresses bound, models loaded, requests answered, and an end without loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.loops.auto import auto_loop_factory

from partita import Core
from partita.errors import PropertyError
from partita_serve.heap import keep_freed_memory
from partita_serve.models.loading import remove_copies
from partita_serve.models.text_model import TextModels
from partita_serve.protocol.api_keys import ApiKeys
from partita_serve.protocol.observer import Observer
from partita_serve.rest.app import create_app
from partita_serve.rest.chat import chat_routes
from partita_serve.rest.connection import connection_class
from partita_serve.rest.pages import page_routes
from partita_serve.rest.refusal import Refusal
from partita_serve.rpc.listener import GrpcListener
from partita_serve.server import ModelServer
from partita_serve.settings import ServerSettings
from partita_serve.telemetry.activity import Activity
from partita_serve.telemetry.metrics import Metrics
from partita_serve.telemetry.tracing import Tracing

_log = logging.getLogger(__name__)

_BACKLOG = 1024
"""Connections that wait to be accepted."""

_FAREWELL_S, _FAREWELL_TURNS = 1.0, 20
"""Seconds in which clients may use their connections once more, and how often to look."""

_INTERRUPTED = 130
"""The exit code of a process that did not end as it should have."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What ends a server."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens.

    Attributes:
        http: The address of REST.
        grpc: The host and port of gRPC.
    """

    http: str
    grpc: str


class _HttpListener(uvicorn.Server):
    """Uvicorn without its own way to take signals, and with an end that loses no request.

    Attributes:
        given_up: Clients that were not answered, or had not asked in full, in the time for that.
    """

    given_up = 0

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for requests, and counts those that took too long."""
        await super().shutdown(sockets)
        self.given_up = len(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none."""
        yield

    async def stop_listening(self, bound: socket.socket) -> None:
        """Takes the clients that have connected until now, and none after them.

        Those whom the system has let in, but the event loop has not seen, would be cut off.
        """
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted, _ = bound.accept()
                accepted.setblocking(False)
                await loop.connect_accepted_socket(self._connection, accepted, ssl=self.config.ssl)
        for server in self.servers:
            server.close()

    def _connection(self) -> asyncio.Protocol:
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(self.config, self.server_state, {})
        return made

    async def let_clients_go(self) -> None:
        """Waits until clients know, from their next answers, that their connections end."""
        for _ in range(_FAREWELL_TURNS):
            if not self.server_state.connections:
                break
            await asyncio.sleep(_FAREWELL_S / _FAREWELL_TURNS)


async def serve(
    settings: ServerSettings,
    ready: Callable[[Addresses, ModelServer], None],
    stop: asyncio.Event,
    give_up: Callable[[], None] = lambda: None,
) -> int:
    """Serves until it is stopped, and then until its requests are answered.

    Liveness is answered at once, all else when the models are loaded.

    Args:
        settings: What is served, where.
        ready: Called when the models are loaded.
        stop: Set when the server is to end.
        give_up: Called at the end if it had to stop while models were loaded: threads still
            read and compile them, which nobody has a use for.

    Returns:
        How many clients of REST were given up at the end.

    Raises:
        PartitaError: A model cannot be loaded, or an address or file cannot be used.
    """
    keys = ApiKeys() if settings.api_keys is None else ApiKeys.read(settings.api_keys)
    core, activity, metrics = Core(), Activity(), Metrics()
    observers: list[Observer] = [activity, metrics, Tracing()]
    server, texts = ModelServer(settings, observers, core), TextModels()
    routes = [
        *page_routes(server, texts, activity, metrics),
        *chat_routes(server, texts, observers),
    ]
    with bind(settings.host, settings.http_port) as bound:
        app = create_app(server, keys, routes)
        http = _HttpListener(_http_config(settings, app, Refusal(server, keys)))
        grpc = GrpcListener(server, keys)
        await grpc.start()
        listening = asyncio.create_task(http.serve([bound]))
        try:
            starting = asyncio.create_task(_load(server, texts, core))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({starting, stopping, listening}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                ready(_addresses(settings, bound, grpc.port), server)
                await asyncio.wait({stopping, listening}, return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            server.drain()
            # Clients still come until they have seen that the server is not ready any more.
            await asyncio.sleep(settings.drain_seconds if starting.done() else 0)
            await http.stop_listening(bound)
            server.close_connections()
            await http.let_clients_go()
        finally:
            http.should_exit = True
            await asyncio.gather(listening, grpc.stop(settings.stop_seconds))
            texts.close()
            await server.stop()
    if starting.cancelled():
        _log.warning("The server was told to end before its models were loaded.")
        give_up()
    return http.given_up + grpc.given_up


async def _load(server: ModelServer, texts: TextModels, core: Core) -> None:
    """Loads all models; those of language first, for without them the server is not whole."""
    await texts.load(server.settings, core)
    await server.start()


def run(
    settings: ServerSettings,
    ready: Callable[[Addresses, ModelServer], None],
) -> int:
    """Serves until the process gets a signal to end.

    A second one ends it at once, and so does the first one while models are loaded.

    Args:
        settings: What is served, where.
        ready: Called when the models are loaded.

    Returns:
        As :func:`serve`.

    Raises:
        PartitaError: As :func:`serve`.
    """
    keep_freed_memory()

    async def until_signal() -> int:
        stop = asyncio.Event()
        with _stopping_by_signal(asyncio.get_running_loop(), stop):
            return await serve(settings, ready, stop, _end_at_once)

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(until_signal())


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


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether a record is of anything but an abandoned request, which is logged in words."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _http_config(settings: ServerSettings, app: ASGIApp, refusal: Refusal) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        http=connection_class(settings, refusal),
        ws="none",
        backlog=_BACKLOG,
        lifespan="off",
        proxy_headers=False,
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
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    try:
        config.load()
    except OSError as error:  # ssl.SSLError is one
        raise PropertyError(
            f"The certificate '{settings.tls_certificate}' cannot be used with key "
            f"'{settings.tls_key}': {error}."
        ) from error
    return config


def _addresses(settings: ServerSettings, bound: socket.socket, grpc_port: int) -> Addresses:
    scheme = "http" if settings.tls_key is None else "https"
    host, port = bound.getsockname()[:2]
    if ":" in host:
        host = f"[{host}]"
    return Addresses(f"{scheme}://{host}:{port}", f"{host}:{grpc_port}")


def _end_at_once() -> None:
    """Ends the process, whatever its threads do: one that a device holds would keep it for ever."""
    remove_copies()
    os._exit(_INTERRUPTED)


@contextlib.contextmanager
def _stopping_by_signal(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    """Sets an event at the first signal to end; at a second one, ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def take(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            _end_at_once()
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, take) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
