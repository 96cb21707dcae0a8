"""Partita: one model, many devices.

``import partita as ov`` runs code written for OpenVINO's Python runtime API.

Example:
    >>> import partita
    >>> core = partita.Core()
    >>> compiled = core.compile_model("model.onnx", "HETERO:GPU,CPU")  # doctest: +SKIP
    >>> print(compiled.explain())                                      # doctest: +SKIP
"""

from __future__ import annotations

from partita.deferred import deferred_attributes
from partita.version import __version__ as __version__

TYPE_CHECKING = False  # typing's, without an import in which Ctrl-C is still a traceback

if TYPE_CHECKING:
    from partita import errors, preprocess, properties

    RTMap = dict
    TensorVector = list

    from partita.bisection import bisect
    from partita.contract.bound_call import BoundCall
    from partita.contract.core_api import CoreAPI
    from partita.contract.device_model import DeviceModel
    from partita.contract.device_plugin import API_VERSION, DeviceInfo, DevicePlugin
    from partita.contract.explanation import Explanation, OpPlacement
    from partita.contract.hookspecs import hookimpl
    from partita.contract.profiling import ProfilingInfo, format_counters
    from partita.contract.query import QueryResult, Reason, ReasonCode
    from partita.contract.runner import Runner
    from partita.core import Core, Version, compile_model, get_version
    from partita.errors import PartitaError
    from partita.extensions import CustomOperator, DiscreteTypeInfo, Extension, OpExtension
    from partita.frontends.convert_model import convert_model
    from partita.frontends.gguf import DecoderOptions
    from partita.frontends.save_model import save_model, serialize
    from partita.model.model import Model, Op, Port
    from partita.model.openvino_names import get_batch, set_batch
    from partita.model.port import Port as ConstOutput
    from partita.model.port import Port as Input
    from partita.model.port import Port as Output
    from partita.opsets import (
        op,
        opset1,
        opset2,
        opset3,
        opset4,
        opset5,
        opset6,
        opset7,
        opset8,
        opset9,
        opset10,
        opset11,
        opset12,
        opset13,
        opset14,
        opset15,
        opset16,
        opset17,
    )
    from partita.opsets.node import Node
    from partita.properties import DeviceProperties, read_only
    from partita.properties.any_value import OVAny
    from partita.runtime.compiled_model import CompiledModel
    from partita.runtime.infer_queue import AsyncInferQueue
    from partita.runtime.infer_request import InferRequest
    from partita.runtime.infer_result import InferResult
    from partita.shapes import axes as layout_helpers
    from partita.shapes.dimension import Dimension, Symbol
    from partita.shapes.layout import Layout
    from partita.shapes.partial_shape import PartialShape
    from partita.shapes.shape import AxisSet, AxisVector, Coordinate, CoordinateDiff, Shape, Strides
    from partita.tensors.element_type import Type
    from partita.tensors.tensor import HostTensor, Tensor, tensor_from_file


_DEFERRED = {
    "API_VERSION": "partita.contract.device_plugin",
    "AsyncInferQueue": "partita.runtime.infer_queue",
    "AxisSet": "partita.shapes.shape",
    "AxisVector": "partita.shapes.shape",
    "bisect": "partita.bisection",
    "BoundCall": "partita.contract.bound_call",
    "compile_model": "partita.core",
    "CompiledModel": "partita.runtime.compiled_model",
    "ConstOutput": "partita.model.port:Port",
    "convert_model": "partita.frontends.convert_model",
    "Coordinate": "partita.shapes.shape",
    "CoordinateDiff": "partita.shapes.shape",
    "Core": "partita.core",
    "CoreAPI": "partita.contract.core_api",
    "CustomOperator": "partita.extensions",
    "DecoderOptions": "partita.frontends.gguf",
    "DeviceInfo": "partita.contract.device_plugin",
    "DeviceModel": "partita.contract.device_model",
    "DevicePlugin": "partita.contract.device_plugin",
    "DeviceProperties": "partita.properties.schema",
    "Dimension": "partita.shapes.dimension",
    "DiscreteTypeInfo": "partita.extensions",
    "errors": "partita.errors:*",
    "Explanation": "partita.contract.explanation",
    "Extension": "partita.extensions",
    "format_counters": "partita.contract.profiling",
    "get_batch": "partita.model.openvino_names",
    "get_version": "partita.core",
    "hookimpl": "partita.contract.hookspecs",
    "HostTensor": "partita.tensors.tensor",
    "InferRequest": "partita.runtime.infer_request",
    "InferResult": "partita.runtime.infer_result",
    "Input": "partita.model.port:Port",
    "Layout": "partita.shapes.layout",
    "layout_helpers": "partita.shapes.axes:*",
    "Model": "partita.model.model",
    "Node": "partita.opsets.node",
    "Op": "partita.model.model",
    "op": "partita.opsets.op:*",
    "OpExtension": "partita.extensions",
    "OpPlacement": "partita.contract.explanation",
    "Output": "partita.model.port:Port",
    "OVAny": "partita.properties.any_value",
    "PartialShape": "partita.shapes.partial_shape",
    "PartitaError": "partita.errors",
    "Port": "partita.model.model",
    "preprocess": "partita.preprocess:*",
    "ProfilingInfo": "partita.contract.profiling",
    "properties": "partita.properties:*",
    "QueryResult": "partita.contract.query",
    "read_only": "partita.properties.schema",
    "Reason": "partita.contract.query",
    "ReasonCode": "partita.contract.query",
    "RTMap": "builtins:dict",
    "Runner": "partita.contract.runner",
    "save_model": "partita.frontends.save_model",
    "serialize": "partita.frontends.save_model",
    "set_batch": "partita.model.openvino_names",
    "Shape": "partita.shapes.shape",
    "Strides": "partita.shapes.shape",
    "Symbol": "partita.shapes.dimension",
    "Tensor": "partita.tensors.tensor",
    "tensor_from_file": "partita.tensors.tensor",
    "TensorVector": "builtins:list",
    "Type": "partita.tensors.element_type",
    "Version": "partita.core",
    **{f"opset{number}": f"partita.opsets:opset{number}" for number in range(1, 18)},
}

if not TYPE_CHECKING:
    __getattr__ = deferred_attributes(__name__, _DEFERRED)


def __dir__() -> list[str]:
    """All names, those too that are imported when they are first used."""
    return sorted({*globals(), *_DEFERRED})


__all__ = [
    "API_VERSION",
    "AsyncInferQueue",
    "AxisSet",
    "AxisVector",
    "BoundCall",
    "CompiledModel",
    "ConstOutput",
    "Coordinate",
    "CoordinateDiff",
    "Core",
    "CoreAPI",
    "CustomOperator",
    "DecoderOptions",
    "DeviceInfo",
    "DeviceModel",
    "DevicePlugin",
    "DeviceProperties",
    "Dimension",
    "DiscreteTypeInfo",
    "Explanation",
    "Extension",
    "HostTensor",
    "InferRequest",
    "InferResult",
    "Input",
    "Layout",
    "Model",
    "Node",
    "OVAny",
    "Op",
    "OpExtension",
    "OpPlacement",
    "Output",
    "PartialShape",
    "PartitaError",
    "Port",
    "ProfilingInfo",
    "QueryResult",
    "RTMap",
    "Reason",
    "ReasonCode",
    "Runner",
    "Shape",
    "Strides",
    "Symbol",
    "Tensor",
    "TensorVector",
    "Type",
    "Version",
    "bisect",
    "compile_model",
    "convert_model",
    "errors",
    "format_counters",
    "get_batch",
    "get_version",
    "hookimpl",
    "layout_helpers",
    "op",
    "opset1",
    "opset2",
    "opset3",
    "opset4",
    "opset5",
    "opset6",
    "opset7",
    "opset8",
    "opset9",
    "opset10",
    "opset11",
    "opset12",
    "opset13",
    "opset14",
    "opset15",
    "opset16",
    "opset17",
    "preprocess",
    "properties",
    "read_only",
    "save_model",
    "serialize",
    "set_batch",
    "tensor_from_file",
]
