"""The ASGI application: all routes, errors in the protocol's form, keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from partita_serve.protocol.api_keys import ApiKeys
from partita_serve.protocol.errors import ServingError, serving_error
from partita_serve.rest import model_routes
from partita_serve.rest.gate import Gate
from partita_serve.rest.inference import infer, infer_route
from partita_serve.rest.model_routes import json_response
from partita_serve.server import ModelServer

_log = logging.getLogger(__name__)

_INFER = re.compile("/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")

_MODEL = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")


def create_app(
    server: ModelServer, keys: ApiKeys | None = None, routes: Sequence[BaseRoute] = ()
) -> ASGIApp:
    """The application that answers HTTP.

    Args:
        server: Answers requests.
        keys: What clients must have one of; by default nothing.
        routes: What is answered besides the protocol.
    """
    app = Starlette(
        routes=[*_protocol_routes(), *routes],
        exception_handlers={
            ServingError: _error_response,
            HTTPException: _no_route,
            ClientDisconnect: _gone,
            Exception: _error_response,
        },
    )
    app.router.redirect_slashes = False
    app.state.server = server
    return Gate(_InferenceFirst(app, server), server, keys or ApiKeys())


class _InferenceFirst:
    """Answers inference itself, and leaves all else to an application.

    The application's way, through its routes and layers, costs as much as all that is done with a
    small request besides. Where it has a prefix, as behind Ray Serve, that way is taken.
    """

    def __init__(self, app: ASGIApp, server: ModelServer) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        named = _INFER.fullmatch(scope["path"]) if is_post else None
        if named is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await infer(self._server, request, named[1], named[2] or "")
        except ClientDisconnect as error:
            response = await _gone(request, error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client is to be told
            response = await _error_response(request, error)
        await response(scope, receive, send)


def _protocol_routes() -> list[BaseRoute]:
    found: list[BaseRoute] = [
        Route(f"{model}/infer", infer_route, methods=["POST"]) for model in _MODEL
    ]
    for path, endpoint in (
        ("/v2/health/live", model_routes.live),
        ("/v2/health/ready", model_routes.ready),
        ("/v2", model_routes.server_metadata),
        ("/v2/", model_routes.server_metadata),
        ("/v2/models/stats", model_routes.all_statistics),
        *((model, model_routes.model_metadata) for model in _MODEL),
        *((f"{model}/ready", model_routes.model_ready) for model in _MODEL),
        *((f"{model}/config", model_routes.model_config) for model in _MODEL),
        *((f"{model}/stats", model_routes.model_statistics) for model in _MODEL),
        *((f"{model}/explain", model_routes.explanation) for model in _MODEL),
    ):
        found.append(Route(path, endpoint))
    for path, endpoint in (
        ("/v2/repository/index", model_routes.repository_index),
        ("/v2/repository/models/{name}/load", model_routes.load),
        ("/v2/repository/models/{name}/unload", model_routes.unload),
    ):
        found.append(Route(path, endpoint, methods=["POST"]))
    return found


# These are coroutines, for Starlette runs plain functions on threads: dozens of them, where many
# requests are refused, which take turns at the interpreter with the event loop.


async def _error_response(request: Request, error: Exception) -> Response:
    """An error in the protocol's form."""
    answer = serving_error(error)
    if answer.http_status == 500:
        _log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    return json_response({"error": str(answer)}, answer.http_status)


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    what = "does not take" if status == 405 else "has nothing for"
    return json_response(
        {"error": f"The server {what} {request.method} {request.url.path}."}, status
    )


async def _gone(request: Request, error: Exception) -> Response:
    """The client has left before its request was whole; nobody reads this."""
    return Response(status_code=400)
