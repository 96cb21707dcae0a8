"""Partita: one model, many devices.

``import partita as ov`` runs code written for OpenVINO's Python runtime API.

Example:
    >>> import partita
    >>> core = partita.Core()
    >>> compiled = core.compile_model("model.onnx", "HETERO:GPU,CPU")  # doctest: +SKIP
    >>> print(compiled.explain())                                      # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partita import errors, properties
from partita.core import Core, Version, compile_model
from partita.deferred import deferred_attributes
from partita.element_type import Type
from partita.errors import PartitaError
from partita.hookspecs import hookimpl
from partita.plugin import API_VERSION, CoreAPI, DeviceInfo, DevicePlugin
from partita.query import QueryResult, Reason, ReasonCode

if TYPE_CHECKING:
    from partita.bisection import bisect
    from partita.compiled_model import CompiledModel, Repetition, Runner
    from partita.explain import Explanation, OpPlacement
    from partita.infer_queue import AsyncInferQueue
    from partita.infer_result import InferResult
    from partita.model import Model, Op, Port
    from partita.profiling import ProfilingInfo, format_counters
    from partita.properties import DeviceProperties, read_only
    from partita.request import InferRequest
    from partita.tensor import HostTensor, Tensor

__version__ = "0.1.0"


_DEFERRED = {
    "AsyncInferQueue": "partita.infer_queue",
    "CompiledModel": "partita.compiled_model",
    "DeviceProperties": "partita.properties.schema",
    "Explanation": "partita.explain",
    "HostTensor": "partita.tensor",
    "InferRequest": "partita.request",
    "InferResult": "partita.infer_result",
    "Model": "partita.model",
    "Op": "partita.model",
    "OpPlacement": "partita.explain",
    "Port": "partita.model",
    "ProfilingInfo": "partita.profiling",
    "Repetition": "partita.compiled_model",
    "Runner": "partita.compiled_model",
    "Tensor": "partita.tensor",
    "bisect": "partita.bisection",
    "format_counters": "partita.profiling",
    "read_only": "partita.properties.schema",
}

if not TYPE_CHECKING:
    __getattr__ = deferred_attributes(__name__, _DEFERRED)


def __dir__() -> list[str]:
    """All names, those too that are imported when they are first used."""
    return sorted({*globals(), *_DEFERRED})


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
