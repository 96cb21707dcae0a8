"""Requests that no client would send: shapes, sizes, depth, chunks, headers, broken connections.

A server runs in this process; what it answers to a case is looked at, and then a good request must
be answered rightly, and memory must be as it was.
"""

from __future__ import annotations

import gzip
import json

import numpy as np

from partita_serve.protocol.errors import InvalidRequest
from partita_serve.rpc.message_table import MESSAGES

from . import numbers, served

_TYPES = ("FP32", "FP16", "BF16", "INT8", "INT64", "UINT64", "BOOL", "BYTES", "FP31", "", "fp32")
_NAMES = ("x", "y", "", "x\0", "a" * 5000, "../x", "é", "\u202e")
_MODELS = ("neg", "neg", "neg", "bytes", "echo", "none", "", "..", "%2e%2e", "a" * 3000, "neg\0")
_PATHS = (
    *("/", "/metrics", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/stats"),
    *("/v2/models/neg/explain", "/v2/models/neg/config", "/v2/models/neg/versions/1/ready"),
    *(
        "/v2/models/neg/versions/-1",
        "/v2/models/../neg",
        "/v2/models/%00",
        "//",
        "/%",
        "/v1/models",
    ),
    *("/v2/repository/models/neg/load", "/v2/repository/models/..%2f..%2fetc/load"),
    *("/v2/repository/index", "/v1/chat/completions", "/v1/completions", "/" + "a" * 9000, "*"),
)


def case(seed):
    """Sends one request, or what is none; what the server says is the case's outcome."""
    rng = np.random.default_rng(seed)
    kind = _KINDS[rng.integers(len(_KINDS))]
    yield kind.__name__
    answered = kind(rng)
    served.watch().check()
    if answered not in (200, "OK"):
        raise InvalidRequest(f"The server said {answered}.")


# ------------------------------------------------------------------------------- HTTP


def posted(path, body, *headers):
    """The status that a whole request is answered with."""
    lines = [f"POST {path} HTTP/1.1", "Host: a", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(body)}")
    return exchanged("\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body)


def exchanged(data):
    """The status that bytes are answered with."""
    connection = served.Connection(served.http_port())
    try:
        connection.send(data)
        return served.status_of(connection.read())
    finally:
        connection.close()


def inference(rng):
    """An inference with hostile shapes, types, names, elements and parameters."""
    body = {"inputs": [tensor(rng) for _ in range(rng.choice([0, 1, 1, 1, 2, 50]))]}
    if rng.random() < 0.3:
        body["parameters"] = {
            name: odd(rng) for name in ("priority", "timeout", "sequence_id", "sequence_start", "a")
        }
    if rng.random() < 0.3:
        body["outputs"] = [
            {
                "name": pick(rng, _NAMES),
                "parameters": {"binary_data": odd(rng), "classification": 1},
            }
        ]
    if rng.random() < 0.2:
        body[pick(rng, ("id", "inputs", "outputs", "parameters"))] = odd(rng)
    return posted(f"/v2/models/{path_of(pick(rng, _MODELS))}/infer", as_json(body))


def tensor(rng):
    shape = [int(rng.integers(4)) for _ in range(rng.integers(4))]
    if rng.random() < 0.5:
        shape = [int(rng.integers(1, 4)), 3]
    data = rng.integers(-3, 4, size=int(np.prod(shape))).tolist()
    made = {"name": "x", "datatype": "FP32", "shape": shape, "data": data}
    for _ in range(rng.integers(3)):
        match rng.integers(6):
            case 0:
                made["datatype"] = pick(rng, _TYPES)
            case 1:
                made["shape"] = [numbers.hostile_integer(rng) for _ in range(rng.integers(5))]
            case 2:
                made["data"] = [odd(rng) for _ in range(rng.integers(8))]
            case 3:
                made["name"] = pick(rng, _NAMES)
            case 4:
                made["parameters"] = {
                    "binary_data_size": odd(rng),
                    "shared_memory_region": odd(rng),
                }
            case _:
                made[pick(rng, list(made))] = odd(rng)
    return made


def binary(rng):
    """An inference with bytes behind the JSON, and lengths that lie."""
    array = rng.random((int(rng.integers(1, 40)), 3)).astype(np.float32)
    size = array.nbytes if rng.random() < 0.5 else numbers.hostile_integer(rng)
    one = {"name": "x", "datatype": "FP32", "shape": list(array.shape)}
    one["parameters"] = {"binary_data_size": size}
    if rng.random() < 0.3:
        one |= {"datatype": pick(rng, _TYPES), "shape": [numbers.hostile_integer(rng)]}
    head = as_json(
        {
            "inputs": [one] * int(rng.choice([1, 1, 1, 2])),
            "parameters": {"binary_data_output": True},
        }
    )
    length = len(head) if rng.random() < 0.6 else numbers.hostile_integer(rng)
    data = served.little(array)[: int(rng.choice([array.nbytes, array.nbytes, 7, 0]))]
    headers = [f"Inference-Header-Content-Length: {length}"] * int(rng.choice([1, 1, 1, 2]))
    return posted(f"/v2/models/{pick(rng, ('neg', 'bytes', 'echo'))}/infer", head + data, *headers)


def depth(rng):
    """JSON within JSON, deep or wide."""
    count = int(rng.choice([10, 500, 1100, 20_000, 300_000]))
    one, other = pick(rng, (("[", "]"), ('{"a":', "}"), ('{"inputs":[', "]}"), ("[", "")))
    inner = pick(rng, ("1", "", '"x"', "null"))
    path = pick(rng, ("/v2/models/neg/infer", "/v2/repository/models/neg/load", "/v1/completions"))
    return posted(path, (one * count + inner + other * count).encode()[: 1 << 20])


def damaged(rng):
    """A good request in which bytes are changed, left out or repeated."""
    body = json.dumps(served.GOOD).encode()
    data = bytearray(
        b"POST /v2/models/neg/infer HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    for _ in range(rng.integers(1, 6)):
        place = int(rng.integers(len(data)))
        match rng.integers(3):
            case 0:
                data[place] = int(rng.integers(256))
            case 1:
                del data[place : place + int(rng.integers(1, 9))]
            case _:
                data[place:place] = data[place : place + int(rng.integers(1, 40))]
    return exchanged(bytes(data) + b"\r\n\r\n" * 3)


def chunked(rng):
    """Bodies in chunks that are odd, end too early or never, or have a length as well."""
    body = json.dumps(served.GOOD).encode()
    head = ["POST /v2/models/neg/infer HTTP/1.1", "Host: a", "Connection: close"]
    head.append(
        f"Transfer-Encoding: {pick(rng, ('chunked', 'chunked', 'chunked, chunked', 'gzip'))}"
    )
    if rng.random() < 0.2:
        head.append(f"Content-Length: {pick(rng, (0, 5, len(body)))}")
    parts = []
    for at in range(0, len(body), 7):
        part = body[at : at + 7]
        size = (
            f"{len(part):x}"
            if rng.random() < 0.97
            else pick(rng, ("-1", "ffffffffffffffff", "", "g", "0x7"))
        )
        extension = ";" + "a" * int(rng.choice([0, 10, 9000])) if rng.random() < 0.05 else ""
        parts.append(size.encode() + extension.encode() + b"\r\n" + part + b"\r\n")
    if rng.random() < 0.9:
        parts.append(b"0\r\n" + b"a: b\r\n" * int(rng.choice([0, 0, 1, 5000])) + b"\r\n")
    return exchanged("\r\n".join(head).encode() + b"\r\n\r\n" + b"".join(parts))


def headers(rng):
    """Many headers, long ones, odd ones, the same ones again."""
    count, size = int(rng.choice([1, 50, 2000])), int(rng.choice([1, 100, 20_000]))
    name = pick(rng, ("a", "Cookie", "Content-Length", "Host", "Content-Type", "Content-Encoding"))
    value = pick(rng, ("b", "1", "gzip", "deflate", "\0", "é", "-1", "1e3", "identity, gzip"))
    lines = [f"{name}: {value * size}"[:20_000]] * count
    return posted("/v2/models/neg/infer", json.dumps(served.GOOD).encode(), *lines[:300])


def packed(rng):
    """Bodies that are packed: small ones that become large, and damaged ones."""
    whole = pick(rng, (json.dumps(served.GOOD).encode(), bytes(8 << 20), b"[" * (8 << 20)))
    data = gzip.compress(whole, 1)
    if rng.random() < 0.4:
        data = data[: int(rng.integers(len(data)))]
    kind = pick(rng, ("gzip", "deflate", "br", "gzip, gzip"))
    return posted("/v2/models/neg/infer", data, f"Content-Encoding: {kind}")


def paths(rng):
    """Pages that are there and pages that are not, by methods of all kinds."""
    method = pick(rng, ("GET", "GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "HEAD", "XX"))
    line = f"{method} {pick(rng, _PATHS)}{pick(rng, ('', '?a=b', '?' + 'a' * 4000))} HTTP/1.1\r\n"
    status = exchanged(f"{line}Host: a\r\nConnection: close\r\n\r\n".encode())
    return 200 if status == 405 else status


def broken(rng):
    """Connections that break off at any place, cleanly or not; few are left to the server."""
    body = json.dumps(served.GOOD).encode()
    data = b"POST /v2/models/neg/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body) + int(rng.choice([0, 1000])),
        body,
    )
    connection = served.Connection(served.http_port())
    connection.send(data[: int(rng.integers(len(data) + 1))])
    if rng.random() < 0.05:  # the server loses its patience
        connection.read()
    connection.close(hard=rng.random() < 0.5)
    return "nothing"


def noise(rng):
    """Bytes that are nothing, at either port."""
    port = served.http_port() if rng.random() < 0.7 else served.grpc_port()
    connection = served.Connection(port)
    start = pick(
        rng, (b"", b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9\r\n")
    )
    connection.send(start + rng.bytes(int(rng.choice([1, 100, 5000]))) + b"\r\n\r\n")
    connection.close(hard=rng.random() < 0.5)
    return "nothing"


def control(rng):
    """Models loaded with hostile settings; ``neg`` is loaded as it was at the end."""
    config = {pick(rng, ("max_batch_size", "instances", "device", "versions", "a")): odd(rng)}
    body = {"parameters": {"config": json.dumps(config) if rng.random() < 0.7 else odd(rng)}}
    name = pick(rng, ("echo", "none", "", "..", "a" * 500))
    action = pick(rng, ("load", "load", "unload"))
    status = posted(f"/v2/repository/models/{path_of(name)}/{action}", as_json(body))
    if name == "echo":
        assert posted("/v2/repository/models/echo/load", b"") == 200
    return status


def texts(rng):
    """OpenAI's API with hostile values."""
    path = pick(rng, ("/v1/completions", "/v1/chat/completions"))
    body = {"model": "tiny", "max_tokens": 2, "prompt": [1, 2]}
    if "chat" in path:
        body = {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "w1"}]}
    for _ in range(rng.integers(3)):
        extra = ("temperature", "top_p", "top_k", "stop", "n", "seed", "stream", "stream_options")
        body[pick(rng, (*body, *extra))] = odd(rng)
    return posted(path, as_json(body))


# ------------------------------------------------------------------------------- gRPC


def messages(rng):
    """Messages of gRPC with hostile tensors, or with bytes changed."""
    shape = [int(rng.integers(1, 4)), 3]
    if rng.random() < 0.4:
        shape = [numbers.hostile_integer(rng) % 2**63 for _ in range(rng.integers(4))]
    raw = [rng.bytes(int(rng.choice([0, 12, 24, 36, 1000])))] * int(rng.choice([0, 1, 1, 2]))
    kind = pick(rng, ("FP32", "FP32", *_TYPES))
    name = pick(rng, ("x", "x", "z", "é"))
    message = served.infer_message([(name, kind, shape)], raw, pick(rng, ("neg", "echo", "none")))
    for key in ("priority", "timeout", "sequence_id"):
        if rng.random() < 0.1:
            message.parameters[key].int64_param = numbers.hostile_integer(rng) % 2**63
    data = bytearray(message.SerializeToString())
    if rng.random() < 0.5:
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
    calls = [name.removesuffix("Request") for name in MESSAGES if name.endswith("Request")]
    call = "ModelInfer" if rng.random() < 0.7 else pick(rng, calls)
    if call in ("RepositoryModelUnload", "HealthCheck"):
        call = "ModelInfer"
    return served.call(call, bytes(data))


# ------------------------------------------------------------------------------ drawing


def pick(rng, choices):
    return choices[int(rng.integers(len(choices)))]


def odd(rng):
    """Any value of JSON."""
    match rng.integers(8):
        case 0:
            return numbers.hostile_integer(rng)
        case 1:
            return numbers.FLOATS[rng.integers(len(numbers.FLOATS))]
        case 2:
            return pick(rng, ("", "x", "\0", "9" * 400, "true", "\ud800", "a" * 10_000))
        case 3:
            return pick(rng, (None, True, False))
        case 4:
            return [odd(rng) for _ in range(rng.integers(3))]
        case 5:
            return {pick(rng, _NAMES[:3]): odd(rng) for _ in range(rng.integers(3))}
        case 6:
            return 10 ** int(rng.integers(400))
        case _:
            return -1


def as_json(value):
    """JSON as Python writes it, with NaN and halves of characters."""
    return json.dumps(value).encode()


def path_of(name):
    """A name in a path, as careless clients put it there."""
    return name.replace(" ", "%20").replace("\0", "%00")


_KINDS = (
    *(inference, inference, inference, binary, binary, depth, damaged, chunked, headers, packed),
    *(paths, broken, noise, control, texts, messages, messages, messages),
)
"""What is sent; what is here more often is sent more often."""
