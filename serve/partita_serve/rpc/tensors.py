"""Requests and responses of the protocol as messages of gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from partita.frontends.onnx.protobuf_fields import field_head
from partita_serve.protocol.datatypes import (
    BYTES,
    array_from_bytes,
    array_to_bytes,
    dtype_of,
    in_shape,
)
from partita_serve.protocol.errors import InvalidRequest
from partita_serve.protocol.records import (
    Array,
    InferenceInput,
    InferenceRequest,
    InferenceResponse,
    Parameter,
    RequestedOutput,
)
from partita_serve.protocol.wrong_values import check_count
from partita_serve.rpc.message_table import MESSAGES
from partita_serve.rpc.messages import message_type

_TYPED = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Datatype to the field of typed contents that has its elements."""

_RAW_OUTPUT = MESSAGES["ModelInferResponse"]["raw_output_contents"].number
_INFER_RESPONSE = MESSAGES["ModelStreamInferResponse"]["infer_response"].number


def request_of(message: Any) -> InferenceRequest:
    """The request that a ``ModelInferRequest`` is; tensors of raw contents are not copied.

    Raises:
        InvalidRequest: Tensors and contents do not fit together.
    """
    check_count(len(message.inputs), "inputs")
    check_count(len(message.outputs), "outputs")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(
            f"The request has {len(message.inputs)} inputs and {len(raw)} entries of "
            "raw_input_contents; give one for each input, or none."
        )
    return InferenceRequest(
        message.model_name,
        message.model_version,
        message.id,
        [
            _input(tensor, raw[index] if raw else None)
            for index, tensor in enumerate(message.inputs)
        ],
        [RequestedOutput(out.name, _parameters(out.parameters)) for out in message.outputs],
        _parameters(message.parameters),
    )


def response_bytes(response: InferenceResponse) -> bytes:
    """A ``ModelInferResponse`` as it is sent, with the outputs as raw contents.

    The outputs are copied once, into the result; a message would copy them when they are put into
    it and again when it is written. Fields of a message may come in any order, and each entry of a
    repeated one stands behind its own tag, so that the tensors follow the rest.
    """
    message = message_type("ModelInferResponse")(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for name, value in response.parameters.items():
        _set_parameter(message.parameters[name], value)
    for output in response.outputs:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
    parts: list[bytes | memoryview] = [message.SerializeToString()]
    for output in response.outputs:
        data = array_to_bytes(output.data)
        parts += [field_head(_RAW_OUTPUT, len(data)), data]
    return b"".join(parts)


def stream_response_bytes(response: InferenceResponse) -> bytes:
    """A ``ModelStreamInferResponse`` that holds an answer, as it is sent."""
    data = response_bytes(response)
    return field_head(_INFER_RESPONSE, len(data)) + data


def _input(tensor: Any, raw: bytes | None) -> InferenceInput:
    shape = tuple(tensor.shape)
    if any(size < 0 for size in shape):
        raise InvalidRequest(f"Input '{tensor.name}' has shape {list(shape)}; sizes are 0 or more.")
    if raw is None:
        data = _typed_array(tensor, shape)
    elif tensor.HasField("contents"):
        raise InvalidRequest(
            f"Input '{tensor.name}' has contents, and the request raw_input_contents; give one "
            "of them."
        )
    else:
        data = array_from_bytes(tensor.name, tensor.datatype, shape, raw)
    return InferenceInput(tensor.name, tensor.datatype, shape, data, _parameters(tensor.parameters))


def _typed_array(tensor: Any, shape: tuple[int, ...]) -> Array:
    """The elements of typed contents."""
    dtype = dtype_of(tensor.datatype)
    field = _TYPED.get(tensor.datatype)
    if field is None:
        raise InvalidRequest(
            f"Input '{tensor.name}' is {tensor.datatype}, for which there are no typed contents; "
            "send its bytes in raw_input_contents."
        )
    others = [known.name for known, _ in tensor.contents.ListFields() if known.name != field]
    if others:
        raise InvalidRequest(
            f"Input '{tensor.name}' is {tensor.datatype} and has {', '.join(others)}; its elements "
            f"belong into {field}."
        )
    try:
        elements = np.fromiter(getattr(tensor.contents, field), dtype)
    except OverflowError as error:
        raise InvalidRequest(
            f"Input '{tensor.name}' has an element that is no {tensor.datatype}: {error}."
        ) from error
    return in_shape(tensor.name, elements, shape)


def _parameters(entries: Mapping[str, Any]) -> dict[str, Parameter]:
    found: dict[str, Parameter] = {}
    for name, value in entries.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidRequest(f"Parameter {name!r} has no value; give it one.")
        found[name] = getattr(value, choice)
    return found


def _set_parameter(entry: Any, value: Parameter) -> None:
    """Sets the field of an ``InferParameter`` that is of the value's type."""
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    setattr(entry, fields[type(value)], value)
