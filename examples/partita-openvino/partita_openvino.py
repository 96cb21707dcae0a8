"""Device OV: OpenVINO's CPU plugin as a Partita device."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

import partita
from partita.errors import CompileError, InferError

TYPES = {"FLOAT", "INT32", "INT64", "UINT8", "INT8", "BOOL"}
WRONG = ("Attention", "BitShift", "DFT", "Dropout", "DynamicQ", "LRN", "ReduceL", "Tile")
PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}


class OpenVinoPlugin(partita.DevicePlugin):
    """Takes an operation if OpenVINO compiles a model that holds nothing else."""

    device_name = "OV"
    properties_type = partita.DeviceProperties

    def device_info(self, device_id: str) -> partita.DeviceInfo:
        """Names the version."""
        return partita.DeviceInfo("OV", "OpenVINO, CPU", "cpu", driver=version("openvino"))

    def query_model(self, model: partita.Model, properties: Any) -> partita.QueryResult:
        """Tries each operation on its own."""
        return partita.QueryResult.of("OV", {op.name: _refusal(model, op) for op in model.ops})

    def compile_model(self, model: partita.Model, properties: Any) -> partita.CompiledModel:
        """Converts and compiles."""
        return OpenVinoCompiledModel(model, properties, "OV")


class OpenVinoCompiledModel(partita.CompiledModel):
    """A compiled model of OpenVINO."""

    def __init__(self, model: partita.Model, properties: Any, device: str) -> None:
        super().__init__(model, properties, device)
        self.compiled = _compile(model.to_onnx().SerializeToString())

    def create_runner(self) -> partita.Runner:
        """One infer request of OpenVINO's."""
        return OpenVinoRunner(self)


class OpenVinoRunner(partita.Runner):
    """Copies results out of the request's buffers; inputs that OpenVINO dropped stay out."""

    def __init__(self, compiled: OpenVinoCompiledModel) -> None:
        self.request, self.model = compiled.compiled.create_infer_request(), compiled
        self.used = {name for port in compiled.compiled.inputs for name in port.names}

    def run(self, inputs: Sequence[Any], outputs: Any = None) -> Sequence[partita.Tensor]:
        """Runs the request."""
        pairs = zip(self.model.inputs, inputs, strict=True)
        feeds = {port.name: tensor.numpy() for port, tensor in pairs if port.name in self.used}
        try:
            results = self.request.infer(feeds)
        except Exception as error:
            raise InferError(f"OpenVINO: {error}") from error
        return [partita.HostTensor(np.array(results[p.index], p.dtype)) for p in self.model.outputs]


def _compile(proto: bytes) -> Any:
    import openvino as ov

    core = ov.Core()
    try:
        return core.compile_model(core.read_model(proto), "CPU", PRECISION)
    except Exception as error:
        raise CompileError(f"OpenVINO: {error}") from error


_probe = functools.lru_cache(4096)(lambda proto: bool(_compile(proto)))


def _refusal(model: partita.Model, op: partita.Op) -> partita.Reason | None:
    for value in (*op.node.inputs, *op.node.outputs):
        if value is not None and (type_name := str(value.type)) not in TYPES:
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, type_name)
    if op.op_type.startswith(WRONG) or op.op_type in ("If", "Loop", "Scan"):
        return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, "not as ONNX has it, or bodies")
    inputs = [n for n in dict.fromkeys(op.inputs) if n and n not in model.ir.graph.initializers]
    alone = model.extract(inputs, [name for name in op.outputs if name], "alone", [op.node])
    try:
        _probe(alone.to_onnx().SerializeToString())
    except CompileError as error:
        return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, str(error)[:200])
    return None


@partita.hookimpl
def device_plugins() -> Iterable[partita.DevicePlugin]:
    """Registers OV."""
    return [OpenVinoPlugin()]
