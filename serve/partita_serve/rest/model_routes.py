"""The routes besides inference: health, descriptions, and the repository."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from partita_serve.protocol.errors import InvalidRequest, NotSupported, Unavailable
from partita_serve.rest.binary import parse_json
from partita_serve.rest.body import Body
from partita_serve.server import ModelServer


def json_response(content: Any, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def _server(request: Request) -> ModelServer:
    server: ModelServer = request.app.state.server
    return server


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params.get("version", "")


async def _json(request: Request) -> dict[str, Any]:
    with Body(_server(request), request) as body:
        return parse_json(await body.read())


async def live(request: Request) -> Response:
    """``GET /v2/health/live``."""
    return json_response({"live": _server(request).is_live()})


async def ready(request: Request) -> Response:
    """``GET /v2/health/ready``; 503 while models are loaded, and before the server stops."""
    if not _server(request).is_ready():
        raise Unavailable("The server is not ready: it loads its models, or is about to stop.")
    return json_response({"ready": True})


async def model_ready(request: Request) -> Response:
    """``GET /v2/models/NAME[/versions/VERSION]/ready``."""
    name, version = _named(request)
    if not _server(request).is_model_ready(name, version):
        raise Unavailable(f"Model '{name}' is not ready.")
    return json_response({"name": name, "ready": True})


async def server_metadata(request: Request) -> Response:
    """``GET /v2``."""
    return json_response(_server(request).server_metadata())


async def model_metadata(request: Request) -> Response:
    """``GET /v2/models/NAME[/versions/VERSION]``."""
    return json_response(_server(request).model_metadata(*_named(request)))


async def model_config(request: Request) -> Response:
    """``GET /v2/models/NAME[/versions/VERSION]/config``."""
    return json_response(_server(request).model_config(*_named(request)))


async def model_statistics(request: Request) -> Response:
    """``GET /v2/models/NAME[/versions/VERSION]/stats``."""
    return json_response(_server(request).statistics(*_named(request)))


async def all_statistics(request: Request) -> Response:
    """``GET /v2/models/stats``."""
    return json_response(_server(request).statistics())


async def explanation(request: Request) -> Response:
    """``GET /v2/models/NAME[/versions/VERSION]/explain``: what runs where, and why."""
    return json_response(_server(request).explanation(*_named(request)))


async def repository_index(request: Request) -> Response:
    """``POST /v2/repository/index``."""
    only_ready = (await _json(request)).get("ready", False)
    if not isinstance(only_ready, bool):
        raise InvalidRequest(f"'ready' is {only_ready!r}; it is true or false.")
    return json_response(_server(request).repository_index(only_ready))


async def load(request: Request) -> Response:
    """``POST /v2/repository/models/NAME/load``."""
    parameters = (await _json(request)).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequest("'parameters' must be an object.")
    if any(key.startswith("file:") for key in parameters):
        raise NotSupported("Models are loaded from the model folder alone, not from a request.")
    config = parameters.get("config", "{}")
    if not isinstance(config, str):
        raise InvalidRequest("Parameter 'config' must be a text that holds JSON.")
    await _server(request).load(
        request.path_params["name"], parse_json(config.encode(), "Parameter 'config'")
    )
    return json_response({})


async def unload(request: Request) -> Response:
    """``POST /v2/repository/models/NAME/unload``."""
    await _json(request)
    await _server(request).unload(request.path_params["name"])
    return json_response({})
