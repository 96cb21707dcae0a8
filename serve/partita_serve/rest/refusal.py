"""Early refusal: requests that exceed the limits are answered before their bodies are parsed.

A server with ten times too much to do spends its time on refusing. The application's way, with a
task and routes for each request, costs several times what this does.
"""

from __future__ import annotations

import re

import orjson

from partita_serve.protocol.api_keys import ApiKeys
from partita_serve.protocol.errors import Overloaded, ServingError
from partita_serve.rest.connection import Headers
from partita_serve.server import ModelServer

_INFER = re.compile(rb"/v2/models/([\w.-]+)(?:/versions/(\w+))?/infer")


class Refusal:
    """Answers requests for models whose queues are full.

    Args:
        server: Knows the queues.
        keys: What clients must have one of.
    """

    def __init__(self, server: ModelServer, keys: ApiKeys) -> None:
        self._server = server
        self._keys = keys

    def __call__(self, method: bytes, address: bytes, headers: Headers) -> bytes | None:
        """The whole answer to a request; ``None`` if the application is to answer it."""
        named = _INFER.fullmatch(address)
        if named is None or method != b"POST" or self._server.closing:
            return None
        try:
            self._keys.check(headers)
            self._server.check_room(named[1].decode(), (named[2] or b"").decode())
        except Overloaded as error:
            body = orjson.dumps({"error": str(error)})
            return (
                b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
        except ServingError:
            return None  # what is wrong with it, the application says
        return None
