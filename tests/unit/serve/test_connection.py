"""Connections of HTTP without a network: which clocks run for them."""

import asyncio

import uvicorn
from uvicorn.server import ServerState

from partita_serve.rest.connection import connection_class
from partita_serve.settings import ServerSettings

INFER = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
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


def test_refused_requests_leave_no_clock_that_ends_the_connection():
    async def clocks_of_refusals():
        loop = asyncio.get_running_loop()
        handles, call_later = [], loop.call_later

        def noted(*args, **options):
            handles.append(call_later(*args, **options))
            return handles[-1]

        loop.call_later = noted
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        kind = connection_class(ServerSettings(), lambda method, address, headers: REFUSAL)
        connection, transport = kind(config, ServerState(), {}), Written()
        connection.connection_made(transport)
        for _ in range(5):
            connection.data_received(INFER * 2)  # two in one packet
        running = [one for one in handles if not one.cancelled()]
        connection.connection_lost(ConnectionResetError())
        left = [one for one in handles if not one.cancelled()]
        return transport.data, len(running), len(left)

    assert asyncio.run(clocks_of_refusals()) == (REFUSAL * 10, 1, 0)
