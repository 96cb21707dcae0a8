"""The simplest servers that answer any request with the same bytes, for serve_latency.py.

    python benchmarks/serve_echo.py http-answer grpc-answer

The files hold a whole answer of HTTP, and a message of gRPC. What these servers take is what the
sockets, gRPC and the client take for so many bytes: no server of Python is faster.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import grpc
from uvicorn.loops.auto import auto_loop_factory

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """Counts the bytes of a request, and answers."""

    answer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        self._transport = transport
        self._head = b""
        self._left = 0

    def data_received(self, data: bytes) -> None:
        """Bytes came; clients may send head and body apart."""
        if not self._left:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            found = _LENGTH.search(self._head[:end])
            self._left = end + 4 + int(found[1] if found else 0)
            data, self._head = self._head, b""
        self._left -= len(data)
        if not self._left:
            self._transport.write(self.answer)


async def main() -> None:
    """Serves until it is ended."""
    Connection.answer, message = (Path(name).read_bytes() for name in sys.argv[1:3])

    async def answer(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return message

    service = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    method = grpc.unary_unary_rpc_method_handler(answer)
    service.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "inference.GRPCInferenceService", {"ModelInfer": method}
            )
        ]
    )
    port = service.add_insecure_port("127.0.0.1:0")
    await service.start()
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    print(json.dumps({"http": f"http://{address}", "grpc": f"127.0.0.1:{port}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(main())
