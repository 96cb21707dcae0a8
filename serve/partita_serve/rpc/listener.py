"""A gRPC server that listens: its address, its limits, who may come in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from partita.errors import PropertyError
from partita_serve.protocol.api_keys import ApiKeys
from partita_serve.protocol.errors import Unauthorized
from partita_serve.rpc.health import HEALTH_SERVICE, HealthService
from partita_serve.rpc.service import InferenceService, refusal
from partita_serve.server import ModelServer
from partita_serve.settings import ServerSettings


class GrpcListener:
    """Answers gRPC on the event loop that it was made on.

    Args:
        server: What answers.
        keys: What clients must have one of.

    Attributes:
        port: The port that it listens at.

    Raises:
        PropertyError: The address is taken or is none, or a file of TLS cannot be read.
    """

    def __init__(self, server: ModelServer, keys: ApiKeys) -> None:
        settings = server.settings
        self._server = grpc.aio.server(
            interceptors=[_KeyCheck(keys)] if keys else [],
            options=_options(settings),
            maximum_concurrent_rpcs=settings.max_connections,
        )
        self._service = InferenceService(server)
        self._server.add_generic_rpc_handlers(
            [self._service.handlers(), HealthService(server).handlers()]
        )
        self.port = self._listen(settings)

    def _listen(self, settings: ServerSettings) -> int:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port}"
        credentials = _credentials(settings)
        try:
            if credentials is None:
                port: int = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise PropertyError(
                f"gRPC cannot listen at {address}: {error}; give another --host or --grpc-port."
            ) from error
        return port

    async def start(self) -> None:
        """Begins to take calls."""
        await self._server.start()

    @property
    def given_up(self) -> int:
        """Calls that were not answered in the time that :meth:`stop` gave them."""
        return self._service.given_up

    async def stop(self, seconds: float) -> None:
        """Takes no calls any more, and waits for those that are there, but not for longer."""
        await self._server.stop(seconds)


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", int(settings.max_body)),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", int(settings.max_header)),
        ("grpc.absolute_max_metadata_size", int(settings.max_header)),
        ("grpc.server_handshake_timeout_ms", int(settings.read_timeout_s * 1000) or 2**31 - 1),
        ("grpc.max_connection_idle_ms", int(settings.keep_alive_s * 1000) or 2**31 - 1),
        # A client that is silent while a call goes on is pinged.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    pair = (_read(settings.tls_key), _read(settings.tls_certificate))
    ca = None if settings.tls_client_ca is None else _read(settings.tls_client_ca)
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PropertyError(f"'{path}' cannot be read: {error}.") from error


class _KeyCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Lets calls through that have a key; probes of health need none."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """The handler of a call, or one that refuses it."""
        details = handler_call_details
        if not details.method.startswith(f"/{HEALTH_SERVICE}/"):
            try:
                self._keys.check(
                    (name.encode(), _bytes(v)) for name, v in details.invocation_metadata
                )
            except Unauthorized as error:
                return refusal(error)
        return await continuation(details)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
