"""Device ORT: ONNX Runtime as a Partita device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

import partita
from partita.errors import CompileError, InferError

TYPES = {"FLOAT", "DOUBLE", "FLOAT16", "BOOL"}
TYPES |= {f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}


class OrtPlugin(partita.DevicePlugin):
    """Takes an operation if onnxruntime loads a model that holds nothing else."""

    device_name = "ORT"
    properties_type = partita.DeviceProperties

    def device_info(self, device_id: str) -> partita.DeviceInfo:
        """Names the version."""
        return partita.DeviceInfo("ORT", "ONNX Runtime", "cpu", driver=version("onnxruntime"))

    def query_model(self, model: partita.Model, properties: Any) -> partita.QueryResult:
        """Tries each operation on its own."""
        return partita.QueryResult.of("ORT", {op.name: _refusal(model, op) for op in model.ops})

    def compile_model(self, model: partita.Model, properties: Any) -> partita.CompiledModel:
        """Makes a session."""
        return OrtCompiledModel(model, properties, "ORT")


class OrtCompiledModel(partita.CompiledModel):
    """A session, which all runners share: onnxruntime lets them."""

    def __init__(self, model: partita.Model, properties: Any, device: str) -> None:
        super().__init__(model, properties, device)
        if refused := [reason for op in model.ops if (reason := _refusal(model, op))]:
            raise CompileError(f"ORT does not take all of '{model.name}': {refused[0]}")
        self.session = _session(model.to_onnx().SerializeToString())

    def create_runner(self) -> partita.Runner:
        """Runners have no state but the results that they return."""
        return OrtRunner(self)


class OrtRunner(partita.Runner):
    """Copies nothing: arrays go in and come out as they are."""

    def __init__(self, compiled: OrtCompiledModel) -> None:
        self.session = compiled.session
        self.names = [port.name for port in compiled.inputs]

    def run(self, inputs: Sequence[Any], outputs: Any = None) -> Sequence[partita.Tensor]:
        """Runs the session."""
        feeds = {name: t.numpy() for name, t in zip(self.names, inputs, strict=True)}
        try:
            results = self.session.run(None, feeds)
        except Exception as error:
            raise InferError(f"onnxruntime: {error}") from error
        return [partita.HostTensor(np.ascontiguousarray(a).reshape(a.shape)) for a in results]


def _session(proto: bytes) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CompileError(f"onnxruntime: {error}") from error


def _refusal(model: partita.Model, op: partita.Op) -> partita.Reason | None:
    for value in (*op.node.inputs, *op.node.outputs):
        if value is not None and (type_name := str(value.type)) not in TYPES:
            return partita.Reason(partita.ReasonCode.UNSUPPORTED_DTYPE, type_name)
    if any(str(attribute.type) == "GRAPH" for attribute in op.node.attributes.values()):
        return partita.Reason(partita.ReasonCode.UNSUPPORTED_ATTRIBUTE, "operators with bodies")
    constants = model.ir.graph.initializers
    inputs = [name for name in dict.fromkeys(op.inputs) if name and name not in constants]
    alone = model.extract(inputs, [name for name in op.outputs if name], "alone", [op.node])
    try:
        _session(alone.to_onnx().SerializeToString())
    except CompileError as error:
        return partita.Reason(partita.ReasonCode.UNSUPPORTED_OP, str(error)[:200])
    return None


@partita.hookimpl
def device_plugins() -> Iterable[partita.DevicePlugin]:
    """Registers ORT."""
    return [OrtPlugin()]
