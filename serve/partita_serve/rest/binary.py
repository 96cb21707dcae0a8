"""Bodies of inference: JSON, and JSON with the tensors' bytes behind it.

The form is that of the protocol's binary tensor data extension: header
``Inference-Header-Content-Length`` gives the length of the JSON, and ``binary_data_size`` among a
tensor's parameters how many of the bytes behind it are its.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from partita_serve.protocol.datatypes import array_from_bytes, array_to_bytes
from partita_serve.protocol.errors import InvalidRequest, NotSupported
from partita_serve.protocol.records import (
    Array,
    InferenceInput,
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestedOutput,
)
from partita_serve.protocol.wrong_values import check_count
from partita_serve.rest.json_tensors import array_from_json, json_data

_MOST_DIMS = 64
"""As many as numpy has."""


def parse_json(body: memoryview | bytes, what: str = "The body") -> dict[str, Any]:
    """A JSON object; an empty body is an empty one.

    Raises:
        InvalidRequest: It is no JSON, nested too deeply, or no object.
    """
    if not len(body):
        return {}
    try:
        found = orjson.loads(body)
    except ValueError as error:
        raise InvalidRequest(f"{what} is no JSON: {error}.") from error
    taken: dict[str, Any] = _typed(found, dict, what)
    return taken


def decode_request(
    model: str, version: str, body: memoryview, json_size: int | None
) -> InferenceRequest:
    """The request that a body holds; tensors in binary form are views of it.

    Args:
        model: The model's name, out of the address.
        version: Its version, or empty.
        body: The body.
        json_size: Length of its JSON; ``None`` if it is JSON alone.

    Raises:
        InvalidRequest: The body is not what the protocol says.
        NotSupported: It is, but requests what is not supported here.
    """
    size = len(body) if json_size is None else json_size
    if size > len(body):
        raise InvalidRequest(
            f"Inference-Header-Content-Length is {size}; the body has {len(body)} bytes."
        )
    found = parse_json(body[:size])
    rest = _ByteReader(body[size:])
    outputs = _typed(found.get("outputs", []), list, "'outputs'")
    check_count(len(outputs), "outputs")
    given = _typed(found.get("inputs"), list, "'inputs'")
    check_count(len(given), "inputs")
    inputs = [_input(_typed(one, dict, "Each of 'inputs'"), rest) for one in given]
    rest.check_empty()
    return InferenceRequest(
        model,
        version,
        _typed(found.get("id", ""), str, "'id'"),
        inputs,
        [_output(one) for one in outputs],
        _parameters(found, "the request"),
    )


def encode_response(
    request: InferenceRequest, response: InferenceResponse
) -> tuple[list[bytes | memoryview], int | None]:
    """The body of an answer in parts, and the length of its JSON if bytes stand behind it.

    Raises:
        InvalidRequest: An output was asked for as JSON and cannot be.
    """
    by_default = bool(request.parameters.get("binary_data_output", False))
    wanted = {one.name: one.parameters.get("binary_data", by_default) for one in request.outputs}
    entries: list[dict[str, Any]] = []
    binary: list[bytes | memoryview] = []
    for output in response.outputs:
        entry: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": output.shape,
        }
        if wanted.get(output.name, by_default):
            data = array_to_bytes(output.data)
            entry["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            entry["data"] = json_data(output.name, output.data)
        entries.append(entry)
    whole: dict[str, Any] = {
        "model_name": response.model,
        "model_version": response.version,
        "outputs": entries,
    }
    if response.id:
        whole["id"] = response.id
    if response.parameters:
        whole["parameters"] = dict(response.parameters)
    head = orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
    return [head, *binary], len(head) if binary else None


_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}
"""Types of JSON in words."""


class _ByteReader:
    """The bytes behind the JSON, taken from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, name: str, size: Any) -> memoryview:
        if type(size) is not int or size < 0:
            raise InvalidRequest(
                f"Parameter 'binary_data_size' of input '{name}' is {size!r}; it is a whole number."
            )
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise InvalidRequest(
                f"Input '{name}' should have {size} bytes behind the JSON; "
                f"{len(self._data) - begin} are left."
            )
        return self._data[begin : self._at]

    def check_empty(self) -> None:
        left = len(self._data) - self._at
        if left:
            raise InvalidRequest(f"{left} bytes at the end of the body belong to no input.")


def _input(entry: Mapping[str, Any], rest: _ByteReader) -> InferenceInput:
    name = _typed(entry.get("name"), str, "'name' of an input")
    datatype = _typed(entry.get("datatype"), str, f"'datatype' of input '{name}'")
    shape = _shape(name, entry.get("shape"))
    parameters = _parameters(entry, f"input '{name}'")
    if parameters.get("shared_memory_region"):
        raise NotSupported(
            f"Input '{name}' lies in shared memory, which is not read here; send its elements."
        )
    data: Array
    size = parameters.get("binary_data_size")
    if size is None:
        data = array_from_json(name, datatype, shape, entry.get("data"))
    elif "data" in entry:
        raise InvalidRequest(f"Input '{name}' has both 'data' and 'binary_data_size'; send one.")
    else:
        data = array_from_bytes(name, datatype, shape, rest.take(name, size))
    return InferenceInput(name, datatype, shape, data, parameters)


def _output(entry: Any) -> RequestedOutput:
    found = _typed(entry, dict, "Each of 'outputs'")
    name = _typed(found.get("name"), str, "'name' of an output")
    return RequestedOutput(name, _parameters(found, f"output '{name}'"))


def _shape(name: str, found: Any) -> tuple[int, ...]:
    dims: Sequence[Any] = _typed(found, list, f"'shape' of input '{name}'")
    if len(dims) > _MOST_DIMS or not all(type(dim) is int and 0 <= dim < 2**63 for dim in dims):
        raise InvalidRequest(
            f"'shape' of input '{name}' is a list of at most {_MOST_DIMS} whole numbers from 0 on."
        )
    return tuple(dims)


def _parameters(entry: Mapping[str, Any], of: str) -> Parameters:
    found: dict[str, Any] = _typed(entry.get("parameters", {}), dict, f"'parameters' of {of}")
    for key, value in found.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidRequest(
                f"Parameter '{key}' of {of} is {type(value).__name__}; it is a number, a text, or "
                "true or false."
            )
    return found


def _typed(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind):
        found = "missing" if value is None else _KINDS.get(type(value), type(value).__name__)
        raise InvalidRequest(f"{what} must be {_KINDS[kind]}; it is {found}.")
    return value
