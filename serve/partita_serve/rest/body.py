"""Bodies of requests: counted as they come, unpacked, and laid where devices can read them."""

from __future__ import annotations

import zlib
from contextlib import ExitStack

import numpy as np
from starlette.requests import Request

from partita_serve.protocol.errors import InvalidRequest, NotSupported, TooLarge
from partita_serve.server import ModelServer

_ALIGNED = 64
"""Bytes behind the JSON begin at a multiple of this address, so that arrays need no copy."""


class Body:
    """The body of one request, whose bytes count among those that the server holds.

    Use it as a context manager: when that ends, they count no more.

    Args:
        server: Counts, and limits.
        request: The request.
    """

    def __init__(self, server: ModelServer, request: Request) -> None:
        self._server = server
        self._request = request
        self._most = server.settings.max_body
        self._held = ExitStack()

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *raised: object) -> None:
        self._held.close()

    async def read(self, json_size: int | None = None) -> memoryview:
        """All of it.

        Args:
            json_size: Where bytes behind JSON begin, if they do.

        Raises:
            TooLarge: It has more bytes than a request may have.
            Overloaded: The server holds too many bytes of requests.
            InvalidRequest: It is packed, and cannot be unpacked.
            NotSupported: It is packed in a way that is not known here.
        """
        length = self._header("content-length")
        packing = self._request.headers.get("content-encoding", "identity")
        if packing not in ("identity", "gzip", "deflate"):
            raise NotSupported(
                f"Content-Encoding '{packing}' is not known here; send identity, gzip or deflate."
            )
        if length is None:
            came = await self._collected()
        else:
            self._count(length, 0)
            came = await self._filled(length, json_size or 0)
        return came if packing == "identity" else self._unpacked(came)

    def _header(self, name: str) -> int | None:
        text = self._request.headers.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise InvalidRequest(f"Header '{name}' is {text!r}; it is a whole number.")
        return int(text)

    def json_size(self) -> int | None:
        """The length of the JSON at the beginning; ``None`` if it is JSON alone."""
        return self._header("inference-header-content-length")

    async def _filled(self, length: int, json_size: int) -> memoryview:
        """A body of known length, each part laid where it belongs as it comes."""
        room = np.empty(length + _ALIGNED, np.uint8)
        start = -(room.ctypes.data + json_size) % _ALIGNED
        whole = room[start : start + length].data
        at = 0
        async for part in self._request.stream():
            if len(part) <= length - at:
                whole[at : at + len(part)] = part
            at += len(part)
        if at != length:
            raise InvalidRequest(f"The body has {at} bytes; its header says {length}.")
        return whole

    async def _collected(self) -> memoryview:
        """A body that comes in chunks, nobody knows how many."""
        whole = bytearray()
        async for part in self._request.stream():
            self._count(len(part), len(whole))
            whole += part
        return memoryview(whole)

    def _unpacked(self, packed: memoryview) -> memoryview:
        unpacker = zlib.decompressobj(wbits=47)  # of either form
        try:
            whole = unpacker.decompress(packed, self._most + 1)
        except zlib.error as error:
            raise InvalidRequest(f"The body cannot be unpacked: {error}.") from error
        if len(whole) > self._most:
            raise self._too_large(f"more than {self._most}")
        if not unpacker.eof:
            raise InvalidRequest("The body cannot be unpacked: it ends too early.")
        if unpacker.unused_data:
            raise InvalidRequest(
                f"{len(unpacker.unused_data)} bytes stand behind the packed body; pack it as one."
            )
        self._count(len(whole), 0)
        return memoryview(whole)

    def _count(self, more: int, before: int) -> None:
        if before + more > self._most:
            raise self._too_large(str(before + more))
        self._held.enter_context(self._server.holding(more))

    def _too_large(self, count: str) -> TooLarge:
        return TooLarge(
            f"The request has {count} bytes; the server takes {self._most} at most (max_body)."
        )
