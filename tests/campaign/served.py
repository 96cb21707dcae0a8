"""A server in this process, and clients that say anything to it and look what it does."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import struct
import sys
import tempfile
from pathlib import Path

import grpc
import httpx
import numpy as np
import onnx
import tokenizers

from partita_serve.rpc.messages import message_type

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "device" / "generate")]

SECONDS = 20.0
"""A request without an answer for so long hangs."""

PATIENCE = 0.3
"""Seconds that the server gives a client for its headers, and for its body."""

GROWTH = 96 << 20
"""Bytes by which the process may grow after its first cases."""

WARM = 300
"""Cases after which memory is compared with."""

_SERVERS = contextlib.ExitStack()
"""Keeps the server and its models until the process ends."""

GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}


@functools.cache
def served():
    """The server, with a tensor model, one for batches, one with texts, and a language model."""
    import tiny_decoder as tiny
    from models import model_of, neg, node, value
    from serving import running_server

    name = _SERVERS.enter_context(tempfile.TemporaryDirectory(prefix="partita-campaign-"))
    folder = Path(name)
    onnx.save(tiny.fixed(tiny.weights()), folder / "model.onnx")
    words = {f"w{number}": number for number in range(tiny.VOCABULARY)}
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    engine.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    text = onnx.TensorProto.STRING
    echo = model_of(
        [node("Identity", ["x"], "y")], [value("x", ["N"], text)], [value("y", ["N"], text)]
    )
    models = {"neg": neg(["N", 3]), "bytes": neg(["N"], onnx.TensorProto.INT8), "echo": echo}
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    server = running_server(
        models={name: str(folder / f"{name}.onnx") for name in models},
        language_models={"tiny": str(folder / "model.onnx")},
        context=32,
        defaults={"device": "CPU", "max_queue_size": 16},
        read_timeout_s=PATIENCE,
        write_timeout_s=2,
        keep_alive_s=1,
        max_body=1 << 20,
        max_buffered=8 << 20,
        max_header=16 << 10,
    )
    return _SERVERS.enter_context(server)


class Watch:
    """Looks after each case whether the server is as it was."""

    def __init__(self):
        self._client = httpx.Client(base_url=served().address, timeout=SECONDS)
        self._cases = 0
        self._before = 0

    def check(self):
        """A good request is answered rightly, and memory has not grown."""
        answer = self._client.post("/v2/models/neg/infer", json=GOOD)
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == [-1, -2, -3]
        self._cases += 1
        if self._cases == WARM:
            self._before = resident()
        elif self._cases > WARM:
            grown = resident() - self._before
            assert grown < GROWTH, f"memory has grown by {grown >> 20} MiB"


@functools.cache
def watch():
    """The one that looks."""
    return Watch()


def resident():
    """Bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Connection:
    """A connection on which anything can be sent.

    Args:
        port: Where the server listens.
    """

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)

    def send(self, data):
        """Sends, unless the server has had enough; returns whether it went."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def read(self):
        """What the server says, until its answer is whole or it closes."""
        said = b""
        try:
            while not _is_whole(said) and (part := self._socket.recv(1 << 16)):
                said += part
        except ConnectionResetError:
            pass  # it had enough, and did not read all
        return said

    def close(self, hard=False):
        """Closes; ``hard`` lets the server find it broken."""
        if hard:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def _is_whole(answer):
    """Whether an answer has come whose length its head tells."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return bool(end and length) and len(body) >= int(length[1])


def http_port():
    return int(served().address.rpartition(":")[2])


def grpc_port():
    return int(served().grpc_address.rpartition(":")[2])


@functools.cache
def channel():
    """A channel of gRPC."""
    return grpc.insecure_channel(served().grpc_address)


def call(name, data):
    """Calls gRPC with any bytes; returns the code."""
    method = channel().unary_unary(f"/inference.GRPCInferenceService/{name}")
    try:
        method(data, timeout=SECONDS)
    except grpc.RpcError as error:
        assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, f"{name} hangs"
        assert error.details(), f"{name}: {error.code()} without a word"
        return error.code().name
    return "OK"


def infer_message(inputs, raw, model="neg"):
    """A ``ModelInferRequest``."""
    message = message_type("ModelInferRequest")(model_name=model, raw_input_contents=raw)
    for name, datatype, shape in inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
    return message


def status_of(answer):
    """The status of an answer; 0 without any. One that refuses says why, in JSON or in a line.

    A fault of the server itself is an error of the case.
    """
    if not answer:
        return 0
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    assert status != 500, body[:1000].decode(errors="replace")
    if body and status >= 400 and b"application/json" in head and b"chunked" not in head.lower():
        error = json.loads(body)["error"]
        assert error, "an error without a word"
    return status


def little(array):
    """The bytes of an array."""
    return np.ascontiguousarray(array).tobytes()
