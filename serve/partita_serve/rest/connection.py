"""Connections: none is held longer, and none has longer headers, than the settings say."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from partita_serve.settings import ServerSettings

Headers = Sequence[tuple[bytes, bytes]]
Refuse = Callable[[bytes, bytes, Headers], bytes | None]


class _HeadersTooLongError(Exception):
    """Ends the parser, which answers 400 and closes."""


class LimitedConnection(HttpToolsProtocol):
    """One HTTP connection."""

    settings: ServerSettings
    refuse: Refuse
    """Both are set by :func:`connection_class`."""

    _reads_headers = False
    _is_refused = False
    _header_bytes = 0  # of headers that are whole
    _unfinished_bytes = 0  # of what came while they were not
    _due = math.inf  # when the client must have sent what is expected of it
    _late: Callable[[], None]  # what is done then
    _timer: asyncio.TimerHandle | None = None
    _write_deadline: asyncio.TimerHandle | None = None
    _unanswered: deque[RequestResponseCycle]  # several if a client does not wait for answers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected; it is let go if there are too many."""
        super().connection_made(transport)
        self._unanswered = deque()
        self.app = _writing_while_open(self.app, transport)
        if len(self.connections) > self.settings.max_connections:
            transport.write(
                b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
                b"content-length: 0\r\n\r\n"
            )
            transport.close()
        else:
            # Until it sends something it is as any connection that is idle.
            self._expect(self.settings.keep_alive_s, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        super().connection_lost(exc)
        for cycle in self._unanswered:  # uvicorn tells the last one that came, not one that runs
            cycle.disconnected = True
            cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Bytes came; those of headers are counted."""
        super().data_received(data)
        if self._reads_headers:
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > self.settings.max_header:
                self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        """A request begins; it must end in time."""
        super().on_message_begin()
        self._reads_headers = True
        self._header_bytes = self._unfinished_bytes = 0
        self._expect(self.settings.read_timeout_s, self.transport.abort)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came."""
        self._header_bytes += len(name) + len(value) + len(b": \r\n")
        if self._header_bytes > self.settings.max_header:
            raise _HeadersTooLongError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers came; a request that there is no room for is answered at once."""
        self._reads_headers = False
        answer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.expect_100_continue:
            answer = self.refuse(self.parser.get_method(), self.url, self.headers)
        self._is_refused = answer is not None
        if answer is None:
            super().on_headers_complete()
            while self._unanswered and self._unanswered[0].response_complete:
                self._unanswered.popleft()
            self._unanswered.append(self.cycle)
        else:
            self.transport.write(answer)

    def on_body(self, body: bytes) -> None:
        """A part of the body came; nobody reads that of a request that was refused."""
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request came."""
        self._expect_nothing()
        if not self._is_refused:
            super().on_message_complete()
        elif self.parser.should_keep_alive():
            self._expect(self.settings.keep_alive_s, self.timeout_keep_alive_handler)
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """The client has sent nothing for long; one that has not read its answer is cut off."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """The client does not read as fast as answers are written."""
        super().pause_writing()
        if self._write_deadline is None:
            after = self.settings.write_timeout_s
            self._write_deadline = self.loop.call_later(after, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read on."""
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        super().resume_writing()

    def _expect(self, seconds: float, late: Callable[[], None]) -> None:
        """Calls something if the client sends nothing more for so long.

        A timer for each message would cost as much as to refuse it: there is one, which looks when
        it fires whether the time that counts now is over.
        """
        self._due, self._late = self.loop.time() + seconds, late
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._look_at_clock)

    def _expect_nothing(self) -> None:
        self._due = math.inf

    def _look_at_clock(self) -> None:
        self._timer = None
        if self._due <= self.loop.time():
            self._late()
        elif self._due < math.inf:
            self._timer = self.loop.call_at(self._due, self._look_at_clock)


def _writing_while_open(app: ASGIApp, transport: asyncio.Transport) -> ASGIApp:
    """An application of whose answer no more is written once a write has failed.

    Parts of an answer that are ready are written without a turn of the event loop between them,
    and only with a turn does uvicorn learn that the connection is lost. Until then each part would
    be another line of asyncio in the log.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_while_open(message: Message) -> None:
            if transport.is_closing():
                await asyncio.sleep(0)
            await send(message)

        await app(scope, receive, send_while_open)

    return answer


def connection_class(own: ServerSettings, own_refuse: Refuse) -> type[LimitedConnection]:
    """The connections of a server.

    Args:
        own: Its settings.
        own_refuse: Called with method, address and headers of a request; its answer if there is no
            room for it, ``None`` if the application is to see it.
    """

    class Connection(LimitedConnection):
        settings = own
        refuse = staticmethod(own_refuse)

    return Connection
