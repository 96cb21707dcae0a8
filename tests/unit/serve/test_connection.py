"""Connections of HTTP: which clocks run for them, and what is written to clients that have gone."""

import asyncio
import logging
import socket
import struct

import pytest
import uvicorn
from uvicorn.server import ServerState

from partita_serve.rest.connection import connection_class
from partita_serve.settings import ServerSettings

INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
AT_ONCE = struct.pack("ii", 1, 0)
"""Lets a socket that is closed reset its connection."""
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"


class Written(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self):
        super().__init__()
        self.data = b""

    def write(self, data):
        self.data += data

    def is_closing(self):
        return False


async def app(scope, receive, send):
    """Answers nothing."""


def connection_to(application, answer=None):
    """A connection to an application; each request is refused if there is an answer for it."""
    config = uvicorn.Config(application, log_config=None, lifespan="off")
    config.load()
    kind = connection_class(ServerSettings(), lambda method, address, headers: answer)
    return kind(config, ServerState(), {})


def test_refused_requests_leave_no_clock_that_ends_the_connection():
    async def clocks_of_refusals():
        loop = asyncio.get_running_loop()
        handles, call_later = [], loop.call_later

        def noted(*args, **options):
            handles.append(call_later(*args, **options))
            return handles[-1]

        loop.call_later = noted
        connection, transport = connection_to(app, REFUSAL), Written()
        connection.connection_made(transport)
        for _ in range(5):
            connection.data_received(INFER * 2)  # two in one packet
        running = [one for one in handles if not one.cancelled()]
        connection.connection_lost(ConnectionResetError())
        left = [one for one in handles if not one.cancelled()]
        return transport.data, len(running), len(left)

    assert asyncio.run(clocks_of_refusals()) == (REFUSAL * 10, 1, 0)


@pytest.mark.parametrize("requests", [1, 3])
def test_no_more_of_an_answer_is_written_when_its_client_has_gone(requests, caplog):
    """Each write to a connection that is lost, from the fifth on, would be a line in the log.

    A client may have sent more requests before it went: the one that is answered must hear of it.
    """
    client, received = socket.socket(), asyncio.Queue()

    async def application(scope, receive, send):
        await receive()  # the request
        await send({"type": "http.response.start", "status": 200, "headers": []})
        client.close()  # and the event loop has no turn to notice it
        for _ in range(20):
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        received.put_nowait(await receive())

    async def serve_one():
        loop = asyncio.get_running_loop()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        server = await loop.create_server(lambda: connection_to(application), "127.0.0.1", 0)
        async with server:
            client.connect(server.sockets[0].getsockname())
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * requests)
            return await received.get()

    with caplog.at_level(logging.WARNING):
        message = asyncio.run(asyncio.wait_for(serve_one(), 60))
    assert message == {"type": "http.disconnect"}
    assert not caplog.records
