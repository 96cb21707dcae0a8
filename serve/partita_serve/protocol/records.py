"""Requests and responses as both transports know them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class InferenceInput:
    """One input tensor.

    Attributes:
        name: The model's input.
        datatype: The protocol's name of the element type, e.g. ``"FP32"``.
        shape: Its dimensions.
        data: Its elements in that shape, ``bytes`` objects where the type is ``BYTES``. It may be
            a read-only view of what came from the client.
        parameters: What else the client said of it.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Array
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """One output that the client asks for.

    Attributes:
        name: The model's output.
        parameters: How it is wanted, e.g. ``binary_data``.
    """

    name: str
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One request.

    Attributes:
        model: The model's name.
        version: Its version; empty for the newest.
        id: The client's name of the request; may be empty.
        inputs: The input tensors.
        outputs: The outputs that are wanted; all of them if it is empty.
        parameters: ``priority`` (1 goes first; 0 is the model's default), ``timeout`` (in
            microseconds, 0 for none), ``sequence_id``, ``sequence_start``, ``sequence_end``.
        left_us: Microseconds until the client's own deadline, where the protocol has one.
    """

    model: str
    version: str
    id: str
    inputs: Sequence[InferenceInput]
    outputs: Sequence[RequestedOutput] = ()
    parameters: Parameters = field(default_factory=dict)
    left_us: int | None = None


@dataclass(frozen=True, slots=True)
class InferenceOutput:
    """One output tensor.

    Attributes:
        name: The model's output.
        datatype: The protocol's name of the element type.
        shape: Its dimensions.
        data: Its elements in C order, ``bytes`` objects where the type is ``BYTES``. Nothing
            writes to it any more.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Array


@dataclass(frozen=True, slots=True)
class InferenceResponse:
    """The answer to one request.

    Attributes:
        model: The model's name.
        version: The version that computed it.
        id: The request's id.
        outputs: The outputs in the order in which they were asked for.
        parameters: What else is said of it.
    """

    model: str
    version: str
    id: str
    outputs: Sequence[InferenceOutput]
    parameters: Parameters = field(default_factory=dict)
