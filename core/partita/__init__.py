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
from partita.contract.core_api import CoreAPI
from partita.contract.device_plugin import API_VERSION, DeviceInfo, DevicePlugin
from partita.contract.hookspecs import hookimpl
from partita.contract.query import QueryResult, Reason, ReasonCode
from partita.core import Core, Version, compile_model
from partita.errors import PartitaError
from partita.properties.deferred import deferred_attributes
from partita.tensors.element_type import Type
from partita.version import __version__ as __version__

if TYPE_CHECKING:
    from partita.bisection import bisect
    from partita.contract.bound_call import BoundCall
    from partita.contract.device_model import DeviceModel
    from partita.contract.explanation import Explanation, OpPlacement
    from partita.contract.profiling import ProfilingInfo, format_counters
    from partita.contract.runner import Runner
    from partita.frontends.gguf import DecoderOptions
    from partita.model.model import Model, Op, Port
    from partita.properties import DeviceProperties, read_only
    from partita.runtime.compiled_model import CompiledModel
    from partita.runtime.infer_queue import AsyncInferQueue
    from partita.runtime.infer_request import InferRequest
    from partita.runtime.infer_result import InferResult
    from partita.tensors.tensor import HostTensor, Tensor


_DEFERRED = {
    "AsyncInferQueue": "partita.runtime.infer_queue",
    "CompiledModel": "partita.runtime.compiled_model",
    "DecoderOptions": "partita.frontends.gguf",
    "DeviceModel": "partita.contract.device_model",
    "DeviceProperties": "partita.properties.schema",
    "Explanation": "partita.contract.explanation",
    "HostTensor": "partita.tensors.tensor",
    "InferRequest": "partita.runtime.infer_request",
    "InferResult": "partita.runtime.infer_result",
    "Model": "partita.model.model",
    "Op": "partita.model.model",
    "OpPlacement": "partita.contract.explanation",
    "Port": "partita.model.model",
    "ProfilingInfo": "partita.contract.profiling",
    "BoundCall": "partita.contract.bound_call",
    "Runner": "partita.contract.runner",
    "Tensor": "partita.tensors.tensor",
    "bisect": "partita.bisection",
    "format_counters": "partita.contract.profiling",
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
    "BoundCall",
    "CompiledModel",
    "Core",
    "CoreAPI",
    "DecoderOptions",
    "DeviceInfo",
    "DeviceModel",
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
