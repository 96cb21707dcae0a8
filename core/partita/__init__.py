"""Partita: one model, many devices.

``import partita as ov`` runs code written for OpenVINO's Python runtime API.

Example:
    >>> import partita
    >>> core = partita.Core()
    >>> compiled = core.compile_model("model.onnx", "HETERO:GPU,CPU")  # doctest: +SKIP
    >>> print(compiled.explain())                                      # doctest: +SKIP
"""

from __future__ import annotations

import enum

from partita import errors, properties
from partita.bisection import bisect
from partita.compiled_model import CompiledModel, Repetition, Runner
from partita.core import Core, Version, compile_model
from partita.errors import PartitaError
from partita.explain import Explanation, OpPlacement
from partita.hookspecs import hookimpl
from partita.infer_queue import AsyncInferQueue
from partita.infer_result import InferResult
from partita.model import Model, Op, Port
from partita.plugin import API_VERSION, CoreAPI, DeviceInfo, DevicePlugin
from partita.profiling import ProfilingInfo, format_counters
from partita.properties import DeviceProperties, read_only
from partita.query import QueryResult, Reason, ReasonCode
from partita.request import InferRequest
from partita.tensor import HostTensor, Tensor

__version__ = "0.1.0"


class Type(enum.StrEnum):
    """Element types by OpenVINO's names, for precision hints."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"


__all__ = [
    "API_VERSION",
    "AsyncInferQueue",
    "CompiledModel",
    "Core",
    "CoreAPI",
    "DeviceInfo",
    "DevicePlugin",
    "DeviceProperties",
    "Explanation",
    "HostTensor",
    "InferRequest",
    "InferResult",
    "Model",
    "Op",
    "OpPlacement",
    "PartitaError",
    "Port",
    "ProfilingInfo",
    "QueryResult",
    "Reason",
    "ReasonCode",
    "Repetition",
    "Runner",
    "Tensor",
    "Type",
    "Version",
    "bisect",
    "compile_model",
    "errors",
    "format_counters",
    "hookimpl",
    "properties",
    "read_only",
]
