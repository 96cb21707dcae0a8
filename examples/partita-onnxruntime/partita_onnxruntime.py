"""Device ORT: ONNX Runtime as a Partita device."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from partita_onnxruntime_binding import bound_call
from partita_onnxruntime_images import reorder_once
from pydantic import Field

import partita
from partita.contract.engine_probe import Probe
from partita.errors import CompileError, InferError

TYPES = {"FLOAT", "DOUBLE", "FLOAT16", "BOOL", "INT8", "INT16", "INT32", "INT64"}


class OrtProperties(partita.DeviceProperties):
    """Properties of device ORT."""

    INFERENCE_NUM_THREADS: int = Field(0, ge=0, description="Threads; 0: onnxruntime's choice.")
    ALLOW_SPINNING: bool = Field(
        False,
        description="Whether threads that wait keep their processors. Beside another device on "
        "the same processors they had better not.",
    )


def load(proto: bytes, properties: OrtProperties | None = None) -> Any:
    """A session, whatever it takes."""
    import onnxruntime as ort

    properties = properties or OrtProperties(INFERENCE_NUM_THREADS=1)  # it is only probed
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = properties.INFERENCE_NUM_THREADS
    spins = str(int(properties.ALLOW_SPINNING))
    options.add_session_config_entry("session.intra_op.allow_spinning", spins)
    try:
        return ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CompileError(f"onnxruntime: {error}") from error


class OrtPlugin(partita.DevicePlugin):
    """Takes an operation if onnxruntime loads a model that holds nothing else."""

    device_name, properties_type = "ORT", OrtProperties
    probe = Probe(load, TYPES | {f"U{name}" for name in TYPES if name.startswith("INT")})

    def device_info(self, device_id: str) -> partita.DeviceInfo:
        return partita.DeviceInfo("ORT", "ONNX Runtime", "cpu", driver=version("onnxruntime"))

    def query_model(self, model: partita.Model, properties: Any) -> partita.QueryResult:
        return self.probe.query(model, "ORT")

    def compile_model(self, model: partita.Model, properties: Any) -> partita.DeviceModel:
        self.probe.query(model, "ORT").require_all(model)
        return OrtModel(model, properties, "ORT")


class OrtModel(partita.DeviceModel):
    """A session, which all runners share: onnxruntime lets them."""

    def __init__(self, model: partita.Model, properties: Any, device: str) -> None:
        super().__init__(model, properties, device)
        self.session = load(reorder_once(model.to_onnx()).SerializeToString(), properties)

    def create_runner(self) -> partita.Runner:
        return OrtRunner(self)


class OrtRunner(partita.Runner):
    """Copies nothing: arrays are read where they are, and written where they are wanted."""

    def __init__(self, compiled: OrtModel) -> None:
        self.session, self.ports = compiled.session, compiled.outputs
        self.names = [port.name for port in compiled.inputs]

    def run(self, inputs: Sequence[Any], outputs: Any = None) -> Sequence[partita.Tensor]:
        if outputs is not None and (call := self.bind(inputs, outputs)) is not None:
            call()
            return outputs
        feeds = {name: t.numpy() for name, t in zip(self.names, inputs, strict=True)}
        try:
            results = self.session.run(None, feeds)
        except Exception as error:
            raise InferError(f"onnxruntime: {error}") from error
        return [partita.HostTensor(np.ascontiguousarray(a).reshape(a.shape)) for a in results]

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any = None) -> Any:
        return bound_call(self.session, self.names, inputs, self.ports, outputs)


@partita.hookimpl
def device_plugins() -> Iterable[partita.DevicePlugin]:
    """Registers ORT."""
    return [OrtPlugin()]
