"""Bodies of inference over REST; what tritonclient writes is read, and it reads what is written."""

import asyncio
import codecs
import contextlib
import gzip
import math
import tracemalloc
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from tritonclient import http as triton

from partita.errors import PropertyError
from partita_serve.protocol.api_keys import ApiKeys
from partita_serve.protocol.errors import InvalidRequest, NotSupported, Unauthorized
from partita_serve.protocol.records import InferenceOutput, InferenceRequest, InferenceResponse
from partita_serve.rest.binary import decode_request, encode_response
from partita_serve.rest.body import Body
from partita_serve.rest.json_tensors import array_from_json

ARRAYS = {
    "BOOL": np.array([[True], [False]]),
    "INT8": np.array([[-128], [127]], np.int8),
    "UINT64": np.array([[0], [2**64 - 1]], np.uint64),
    "INT64": np.array([[-(2**63)], [2**63 - 1]], np.int64),
    "FP32": np.array([[0.1], [-3e30]], np.float32),
    "FP64": np.array([[0.1], [-3e300]], np.float64),
    "BYTES": np.array([["Grüße".encode()], [b""]], object),
}


def decoded(body, size=None):
    return decode_request("m", "1", memoryview(body), size)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_what_the_client_writes_is_read(datatype, binary):
    array = ARRAYS[datatype]
    given = triton.InferInput("x", list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    wanted = triton.InferRequestedOutput("y", binary_data=binary)
    body, size = triton.InferenceServerClient.generate_request_body(
        [given], [wanted], request_id="7", sequence_id=3, sequence_start=True, priority=1, timeout=9
    )
    request = decoded(body, size)
    assert (request.model, request.version, request.id) == ("m", "1", "7")
    assert request.parameters["sequence_id"] == 3
    assert request.parameters["sequence_start"] is True
    assert (request.parameters["priority"], request.parameters["timeout"]) == (1, 9)
    assert [one.name for one in request.outputs] == ["y"]
    (found,) = request.inputs
    assert (found.name, found.datatype, found.shape) == ("x", datatype, (2, 1))
    np.testing.assert_array_equal(found.data, array)


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_what_is_written_is_read_by_the_client(datatype, binary):
    array = ARRAYS[datatype]
    request = InferenceRequest("m", "", "", [], parameters={"binary_data_output": binary})
    outputs = [InferenceOutput(name, datatype, (2, 1), array) for name in "yz"]
    parts, size = encode_response(request, InferenceResponse("m", "1", "id", outputs))
    assert (size is None) == (not binary)
    result = triton.InferenceServerClient.parse_response_body(b"".join(parts), header_length=size)
    # JSON has texts, and the client leaves them so.
    due = array if binary or datatype != "BYTES" else np.array([["Grüße"], [""]], object)
    for name in "yz":
        np.testing.assert_array_equal(result.as_numpy(name), due)
    assert result.get_response()["id"] == "id"


def test_binary_outputs_are_not_copied():
    array = np.ones((3, 4), np.float32)
    request = InferenceRequest("m", "", "", [], parameters={"binary_data_output": True})
    answer = InferenceResponse("m", "1", "", [InferenceOutput("y", "FP32", (3, 4), array)])
    parts, _ = encode_response(request, answer)
    assert np.shares_memory(np.frombuffer(parts[1], np.uint8), array)


def test_halves_go_through_json():
    half = array_from_json("x", "FP16", (2,), [0.5, 2])
    assert half.dtype == np.float16
    assert half.tolist() == [0.5, 2]
    outputs = [InferenceOutput("y", "FP16", (2,), half)]
    request = InferenceRequest("m", "", "", [])
    parts, _ = encode_response(request, InferenceResponse("m", "1", "", outputs))
    assert orjson.loads(parts[0])["outputs"][0]["data"] == [0.5, 2]


@pytest.mark.parametrize(
    ("datatype", "value", "said"),
    [
        ("FP32", np.array([math.nan], np.float32), "infinite numbers or NaN.*binary data"),
        ("BYTES", np.array([b"\xff"], object), "bytes that are not text; ask for binary data"),
    ],
)
def test_what_json_cannot_hold_is_refused(datatype, value, said):
    outputs = [InferenceOutput("y", datatype, (1,), value)]
    with pytest.raises(InvalidRequest, match=said):
        encode_response(InferenceRequest("m", "", "", []), InferenceResponse("m", "1", "", outputs))


@pytest.mark.parametrize(
    ("datatype", "data", "said"),
    [
        ("FP32", 1, "needs 'data', a list; found int"),
        ("FP32", None, "found nothing"),
        ("FP32", [1, [2]], "is not a tensor"),
        ("FP32", ["1", "2"], "its data holds texts"),
        ("FP32", [None, 1], "something else than numbers"),
        ("FP32", [1], "1 elements, which are none of shape"),
        ("INT32", [1.5, 2], "its data holds numbers with a point or exponent"),
        ("INT64", orjson.loads("[1, 99999999999999999999]"), "or of more than 64 bits"),
        ("INT64", [True, 2], "its data holds truth values"),
        ("FP32", [[True], [2.5]], "its data holds truth values"),
        ("INT8", [1, 300], "from -128 to 127; its data goes from 1 to 300"),
        ("UINT8", [-1, 0], "from 0 to 255"),
        ("BOOL", [0, 1], "its data holds numbers"),
        (
            "INT64",
            [2**63, 1],
            "to 9223372036854775807; its data goes from 1 to 9223372036854775808",
        ),
        ("UINT64", [2**63, -1], "is not a tensor: .*out of bounds"),
        ("BYTES", ["a", 1], "its data holds int"),
        ("FP31", [1, 2], "no datatype 'FP31'"),
        ("FP32", orjson.loads("[" * 1000 + "]" * 1000), "is not a tensor"),
    ],
)
def test_wrong_lists_are_refused(datatype, data, said):
    with pytest.raises(InvalidRequest, match=said):
        array_from_json("x", datatype, (2,), data)


@pytest.mark.parametrize("nest", [lambda data: data, lambda data: [data]])
def test_texts_take_no_memory_where_numbers_are_due(nest):
    data = nest(["a" * 100_000, *["b"] * 200])  # as one array of numpy's 80 MB
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="its data holds texts"):
            array_from_json("x", "FP32", (201,), data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


X = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "is no JSON"),
        (b"[" * 5000, "is no JSON"),
        (b"\xff{}", "is no JSON"),
        (b"[]", "must be an object; it is a list"),
        ({}, "'inputs' must be a list; it is missing"),
        ({"inputs": [1]}, "Each of 'inputs' must be an object; it is int"),
        ({"inputs": [{**X, "name": 1}]}, "'name' of an input must be a text"),
        ({"inputs": [{**X, "datatype": None}]}, "'datatype' of input 'x' must be a text"),
        ({"inputs": [{**X, "shape": [1.5]}]}, "'shape' of input 'x' is a list"),
        ({"inputs": [{**X, "shape": [-1]}]}, "'shape' of input 'x' is a list"),
        ({"inputs": [{**X, "shape": [True]}]}, "'shape' of input 'x' is a list"),
        ({"inputs": [{**X, "shape": [1] * 65}]}, "at most 64"),
        ({"inputs": [X], "id": 3}, "'id' must be a text"),
        ({"inputs": [X], "outputs": {}}, "'outputs' must be a list"),
        ({"inputs": [X], "outputs": [{}]}, "'name' of an output must be a text; it is missing"),
        ({"inputs": [X], "parameters": []}, "'parameters' of the request must be an object"),
        ({"inputs": [X], "parameters": {"a": []}}, "Parameter 'a' of the request is list"),
        ({"inputs": [{**X, "parameters": {"binary_data_size": 4}}]}, "has both"),
        ({"inputs": [X] * 4097}, "The request has 4097 inputs; 4096 are read at most"),
        ({"inputs": [X], "outputs": [{"name": "y"}] * 4097}, "has 4097 outputs; 4096 are"),
    ],
)
def test_wrong_bodies_are_refused(body, said):
    with pytest.raises(InvalidRequest, match=said):
        decoded(body if isinstance(body, bytes) else orjson.dumps(body))


@pytest.mark.parametrize(
    ("size", "tail", "said"),
    [
        (4, b"abc", "should have 4 bytes behind the JSON; 3 are left"),
        (4, b"abcde", "1 bytes at the end of the body belong to no input"),
        (-1, b"", "'binary_data_size' of input 'x' is -1"),
        ("4", b"abcd", "'binary_data_size' of input 'x' is '4'"),
    ],
)
def test_wrong_bytes_behind_json_are_refused(size, tail, said):
    head = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}}
    text = orjson.dumps({"inputs": [head]})
    with pytest.raises(InvalidRequest, match=said):
        decoded(text + tail, len(text))


def test_json_that_is_said_to_be_longer_than_the_body_is_refused():
    with pytest.raises(InvalidRequest, match="is 10; the body has 2 bytes"):
        decoded(b"{}", 10)


def test_shared_memory_is_refused():
    shared = {**X, "parameters": {"shared_memory_region": "r"}}
    with pytest.raises(NotSupported, match="shared memory, which is not read here"):
        decoded(orjson.dumps({"inputs": [shared]}))


def test_keys_are_read_from_a_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\n abc \ndef\n")
    keys = ApiKeys.read(file)
    keys.check([(b"host", b"a"), (b"authorization", b"bearer abc")])
    keys.check([(b"x-api-key", b" def ")])
    for header in ((b"x-api-key", b"# ours"), (b"authorization", b"Basic abc"), (b"other", b"abc")):
        with pytest.raises(Unauthorized, match="needs a key that this server knows"):
            keys.check([header])
    ApiKeys().check([])
    file.write_bytes(codecs.BOM_UTF8 + b"abc\r\n")  # as editors on Windows write it
    ApiKeys.read(file).check([(b"x-api-key", b"abc")])
    file.write_text("# none\n")
    with pytest.raises(PropertyError, match="holds no keys; write one a line"):
        ApiKeys.read(file)
    file.write_bytes(gzip.compress(b"x"))
    with pytest.raises(PropertyError, match="cannot be read"):
        ApiKeys.read(file)


class Sent:
    """A request whose parts come whatever its header says, as no server of HTTP lets them."""

    def __init__(self, length, *parts):
        self.headers = {"content-length": str(length)}
        self._parts = parts

    async def stream(self):
        for part in self._parts:
            yield part


class Holding:
    """As much of the server as a body asks."""

    settings = SimpleNamespace(max_body=1 << 20)

    def holding(self, nbytes):
        return contextlib.nullcontext()


@pytest.mark.parametrize("parts", [[], [b"12"], [b"1234", b"5678"], [b"12", b"3456"]])
def test_a_body_of_another_length_than_its_header_says_is_refused(parts):
    with Body(Holding(), Sent(4, *parts)) as body, pytest.raises(InvalidRequest, match="says 4"):
        asyncio.run(body.read())


def test_a_body_comes_in_parts():
    with Body(Holding(), Sent(4, b"1", b"", b"234")) as body:
        assert bytes(asyncio.run(body.read())) == b"1234"
