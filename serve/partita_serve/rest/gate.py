"""Middleware in front of all routes: API keys, and the end of connections at shutdown."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from partita_serve.protocol.api_keys import ApiKeys
from partita_serve.protocol.errors import ServingError, TooLarge
from partita_serve.rest.model_routes import json_response
from partita_serve.server import ModelServer

_OPEN = "/v2/health/"
"""Where no key is needed: who watches over servers has none."""

_CLOSE = (b"connection", b"close")


class Gate:
    """Lets requests through that may come in.

    Args:
        app: What answers them.
        server: Says whether connections are to end.
        keys: What clients must have one of.
    """

    def __init__(self, app: ASGIApp, server: ModelServer, keys: ApiKeys) -> None:
        self._app = app
        self._server = server
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and (
                self._server.closing or message["status"] == TooLarge.http_status
            ):
                message["headers"] = [*message["headers"], _CLOSE]
            await send(message)

        try:
            if scope["type"] == "http" and not scope["path"].startswith(_OPEN):
                self._keys.check(scope["headers"])
        except ServingError as error:
            response = json_response({"error": str(error)}, error.http_status)
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send_last)
            return
        await self._app(scope, receive, send_last)
