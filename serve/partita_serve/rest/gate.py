"""What stands before all routes: keys, and how connections end when the server stops."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partita.errors import PropertyError
from partita_serve.protocol.errors import ServingError, TooLarge, Unauthorized
from partita_serve.rest.model_routes import json_response
from partita_serve.server import ModelServer

_OPEN = "/v2/health/"
"""Where no key is needed: who watches over servers has none."""

_CLOSE = (b"connection", b"close")


class Gate:
    """Lets requests through that may come in.

    Args:
        app: What answers them.
        server: Says whether it is about to stop.
        keys: Those of clients; if there are none, all may come in.
    """

    def __init__(self, app: ASGIApp, server: ModelServer, keys: Sequence[str]) -> None:
        self._app = app
        self._server = server
        self._keys = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and (
                self._server.draining or message["status"] == TooLarge.http_status
            ):
                message["headers"] = [*message["headers"], _CLOSE]
            await send(message)

        try:
            if scope["type"] == "http" and self._keys and not scope["path"].startswith(_OPEN):
                self._check(scope)
        except ServingError as error:
            response = json_response({"error": str(error)}, error.http_status)
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send_last)
            return
        await self._app(scope, receive, send_last)

    def _check(self, scope: Scope) -> None:
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, value = value.partition(b" ")
                if kind.lower() != b"bearer":
                    continue
            elif name != b"x-api-key":
                continue
            given = _digest(value.strip())
            # All of them are compared, so that the time tells nothing of which.
            if sum(hmac.compare_digest(given, key) for key in self._keys):
                return
        raise Unauthorized(
            "The request needs a key that this server knows: send 'Authorization: Bearer KEY' or "
            "'X-API-Key: KEY'."
        )


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one a line; empty lines and those that begin with # are left out.

    Raises:
        PropertyError: It cannot be read, or holds none.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise PropertyError(f"The keys in '{path}' cannot be read: {error}.") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise PropertyError(f"'{path}' holds no keys; write one a line.")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
