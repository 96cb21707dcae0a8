"""Load for servers of the Open Inference Protocol: servers in other processes, and raw clients.

The clients are as light as Python allows: a request is made once, and an answer is only measured
and, where asked, looked at. So the machine's processors are the server's, as far as that can be.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient import http as triton

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Process:
    """A server that runs.

    Attributes:
        address: Host and port of REST.
        told: What it said when it was ready.
        process: The process.
    """

    address: tuple[str, int]
    told: dict[str, Any]
    process: subprocess.Popen[str]

    def memory_mb(self) -> float:
        """Its resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


@contextmanager
def partita_serve(*options: object) -> Iterator[Process]:
    """``partita serve`` at a free port, with these options."""
    command = [sys.executable, "-m", "partita", "serve", "--json"]
    ports = ["--http-port", "0", "--grpc-port", "0", "--drain-seconds", "0.5"]
    with _started([*command, *map(str, options), *ports]) as server:
        yield server


@contextmanager
def _started(command: Sequence[str]) -> Iterator[Process]:
    if threading.current_thread() is threading.main_thread():
        # Told to end, a benchmark ends its servers.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        told = _first_json(process)
        host, _, port = told["http"].partition("://")[2].rpartition(":")
        yield Process((host, int(port)), told, process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


def peer_server(module: str, *options: object) -> Any:
    """A server that another script here runs; it tells its address as ``partita serve`` does."""
    return _started([sys.executable, module, *map(str, options)])


def _first_json(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The JSON document that a process writes when it is ready, on one line."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise SystemExit("the server ended without a word")
    found: dict[str, Any] = json.loads(line)
    return found


def binary_request(model: str, feeds: dict[str, np.ndarray[Any, Any]], path: str = "") -> bytes:
    """A whole HTTP request in binary form, as tritonclient writes it."""
    inputs = []
    for name, array in feeds.items():
        tensor = triton.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    body, size = triton.InferenceServerClient.generate_request_body(inputs)
    head = (
        f"POST {path or f'/v2/models/{model}/infer'} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-length: {len(body)}\r\ninference-header-content-length: {size}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Answers:
    """What came of many requests.

    Attributes:
        ms: Time of each answer, by status.
        lost: Requests without an answer.
        wrong: Answers that the check refused.
        seconds: How long it took.
    """

    ms: dict[int, list[float]] = field(default_factory=dict)
    lost: int = 0
    wrong: int = 0
    seconds: float = 0.0

    def add(self, status: int, ms: float) -> None:
        """Counts one answer."""
        self.ms.setdefault(status, []).append(ms)

    def percentile(self, share: float, status: int = 200) -> float:
        """So many per cent of the answers of a status took at most this many milliseconds."""
        return float(np.percentile(self.ms.get(status) or [float("nan")], share))

    def count(self, status: int = 200) -> int:
        """Answers of a status."""
        return len(self.ms.get(status, ()))

    @property
    def rate(self) -> float:
        """Good answers in a second."""
        return self.count() / self.seconds


class BlockingClient:
    """One connection that waits for each answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = bytearray(1 << 22)

    def ask(self, request: bytes) -> bytes:
        """The whole answer."""
        self._socket.sendall(request)
        got, end = 0, None
        while end is None or got < end:
            if got == len(self._room):
                self._room += bytes(len(self._room))
            with memoryview(self._room) as room:
                count = self._socket.recv_into(room[got:])
            if not count:
                raise ConnectionError(f"the server ended the connection after {got} bytes")
            got += count
            if end is None and (head := self._room.find(b"\r\n\r\n", 0, got)) >= 0:
                end = head + 4 + _length(self._room[:head])
        return bytes(memoryview(self._room)[:got])


async def ask(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes
) -> tuple[int, bytes, bytes]:
    """Status, head and body of an answer."""
    reader, writer = streams
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(_length(head))
    return int(head[9:12]), head, body


def _length(head: bytes | bytearray) -> int:
    found = _LENGTH.search(head)
    return int(found[1]) if found else 0


async def closed_loop(
    address: tuple[str, int],
    request: bytes,
    clients: int,
    until: Callable[[], bool],
    right: Callable[[bytes], bool] = lambda body: True,
) -> Answers:
    """So many clients, each of which asks again when it has its answer.

    A client that finds its connection closed after a whole answer makes a new one, as clients do;
    one that is closed in the middle of a request has lost it.
    """
    answers = Answers()

    async def client() -> None:
        streams = None
        while not until():
            try:
                streams = streams or await asyncio.open_connection(*address, limit=1 << 24)
            except OSError:
                return  # the server does not listen any more
            start = time.perf_counter()
            try:
                status, head, body = await ask(streams, request)
            except (OSError, asyncio.IncompleteReadError):
                answers.lost += 1
                streams = None
                continue
            answers.add(status, (time.perf_counter() - start) * 1e3)
            answers.wrong += status == 200 and not right(body)
            if b"connection: close" in head:
                streams[1].close()
                streams = None
        if streams is not None:
            streams[1].close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    answers.seconds = time.perf_counter() - start
    return answers


def open_loop(
    address: tuple[str, int], request: bytes, rate: float, seconds: float, connections: int
) -> Answers:
    """Requests at a rate, whether they are answered or not; late ones are not left out.

    One thread and plain sockets, for at thousands of requests a second a client on an event loop
    takes the processor that it is to measure. A request whose connections are all busy waits for
    one; its time begins when it is sent. Answers must be short.
    """
    answers = Answers()
    poll = select.epoll()
    opened: dict[int, _Open] = {}

    def connect() -> int:
        one = _Open(socket.create_connection(address))
        one.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = one.socket.fileno()
        opened[number] = one
        poll.register(number, select.EPOLLIN)
        return number

    def read(number: int) -> int | None:
        """A connection that can take another request, if this one has a whole answer."""
        one = opened[number]
        part = one.socket.recv(1 << 16)
        if not part:
            answers.lost += one.waits
            del opened[number]
            one.socket.close()
            return connect()
        one.answer += part
        head = one.answer.find(b"\r\n\r\n")
        if head < 0 or len(one.answer) < head + 4 + _length(one.answer[:head]):
            return None
        answers.add(int(one.answer[9:12]), (time.perf_counter() - one.sent) * 1e3)
        one.answer, one.waits = b"", False
        return number

    idle = [connect() for _ in range(connections)]
    begin = time.perf_counter()
    count = 0
    while (passed := time.perf_counter() - begin) < seconds:
        while idle and count < passed * rate:
            one = opened[idle.pop()]
            one.sent, one.waits = time.perf_counter(), True
            one.socket.sendall(request)
            count += 1
        idle += [free for ready, _ in poll.poll(0.001) if (free := read(ready)) is not None]
    while any(one.waits for one in opened.values()) and (events := poll.poll(10)):
        for ready, _ in events:
            read(ready)
    answers.lost += sum(one.waits for one in opened.values())
    answers.seconds = time.perf_counter() - begin
    for one in opened.values():
        one.socket.close()
    return answers


@dataclass
class _Open:
    """A connection of :func:`open_loop`, and what came on it."""

    socket: socket.socket
    sent: float = 0.0
    waits: bool = False
    answer: bytes = b""


def for_seconds(seconds: float) -> Callable[[], bool]:
    """Says when so many seconds are over."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() > end


def machine() -> str:
    """What the figures were measured on."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return (
        f"{names[0] if names else 'unknown processor'}, {len(os.sched_getaffinity(0))} processors"
    )
