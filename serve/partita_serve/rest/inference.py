"""The route of inference."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from partita_serve.rest.binary import decode_request, encode_response
from partita_serve.rest.body import Body
from partita_serve.server import ModelServer
from partita_serve.telemetry.tracing import continuing

_JOINED_BYTES = 1 << 14
"""Below this a copy costs less than to send parts one by one."""


class PartsResponse(Response):
    """An answer that is sent in parts; large ones are not copied into a whole.

    Args:
        parts: The body.
        headers: Its headers, besides its length.
    """

    def __init__(self, parts: Sequence[bytes | memoryview], headers: dict[str, str]) -> None:
        size = sum(map(len, parts))
        self.parts = [b"".join(parts)] if size < _JOINED_BYTES else parts
        super().__init__(None, headers={**headers, "content-length": str(size)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        last = len(self.parts) - 1
        for index, part in enumerate(self.parts):
            await send({"type": "http.response.body", "body": part, "more_body": index < last})


async def infer_route(request: Request) -> Response:
    """``POST /v2/models/NAME[/versions/VERSION]/infer``."""
    named = request.path_params
    return await infer(request.app.state.server, request, named["name"], named.get("version", ""))


async def infer(server: ModelServer, request: Request, name: str, version: str) -> Response:
    """The answer to a request for inference.

    Args:
        server: What answers it.
        request: Of which the body has not been read.
        name: The model's name.
        version: Its version, or empty.

    Raises:
        ServingError: Why there is none.
    """
    server.check_room(name, version)  # before the body is read
    with Body(server, request) as body:
        size = body.json_size()
        decoded = decode_request(name, version, await body.read(size), size)
        with continuing(request.headers):
            answer = await server.infer(decoded)
    parts, json_size = encode_response(decoded, answer)
    if json_size is None:
        return PartsResponse(parts, {"content-type": "application/json"})
    return PartsResponse(
        parts,
        {
            "content-type": "application/octet-stream",
            "inference-header-content-length": str(json_size),
        },
    )
