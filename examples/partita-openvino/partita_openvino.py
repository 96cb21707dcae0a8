"""Device OV: OpenVINO's CPU plugin as a Partita device."""

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

import partita
from partita.contract.engine_probe import Probe
from partita.errors import CompileError, InferError

TYPES = {"FLOAT", "INT32", "INT64", "UINT8", "INT8", "BOOL"}
WRONG = {"Attention", "BitShift", "DFT", "Dropout", "DynamicQuantizeLinear", "LRN", "Tile"}
WRONG |= {f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp")}


def load(proto: bytes) -> Any:
    """A compiled model of OpenVINO's, which computes in float32."""
    import openvino as ov

    core = ov.Core()
    try:
        precision = {"INFERENCE_PRECISION_HINT": "f32"}
        return core.compile_model(core.read_model(proto), "CPU", precision)
    except Exception as error:
        raise CompileError(f"OpenVINO: {error}") from error


class OpenVinoPlugin(partita.DevicePlugin):
    """Takes an operation if OpenVINO compiles a model that holds nothing else."""

    device_name, properties_type = "OV", partita.DeviceProperties
    probe = Probe(load, TYPES, WRONG)

    def device_info(self, device_id: str) -> partita.DeviceInfo:
        return partita.DeviceInfo("OV", "OpenVINO, CPU", "cpu", driver=version("openvino"))

    def query_model(self, model: partita.Model, properties: Any) -> partita.QueryResult:
        return self.probe.query(model, "OV")

    def compile_model(self, model: partita.Model, properties: Any) -> partita.DeviceModel:
        self.probe.query(model, "OV").require_all(model)
        return OpenVinoModel(model, properties, "OV")


class OpenVinoModel(partita.DeviceModel):
    """A compiled model of OpenVINO."""

    def __init__(self, model: partita.Model, properties: Any, device: str) -> None:
        super().__init__(model, properties, device)
        self.compiled = load(model.to_onnx().SerializeToString())

    def create_runner(self) -> partita.Runner:
        return OpenVinoRunner(self)


class OpenVinoRunner(partita.Runner):
    """Copies results out of the request's buffers; inputs that OpenVINO dropped stay out."""

    def __init__(self, compiled: OpenVinoModel) -> None:
        self.request, self.model = compiled.compiled.create_infer_request(), compiled
        self.used = {name for port in compiled.compiled.inputs for name in port.names}

    def run(self, inputs: Sequence[Any], outputs: Any = None) -> Sequence[partita.Tensor]:
        pairs = zip(self.model.inputs, inputs, strict=True)
        feeds = {port.name: tensor.numpy() for port, tensor in pairs if port.name in self.used}
        try:
            results = self.request.infer(feeds)
        except Exception as error:
            raise InferError(f"OpenVINO: {error}") from error
        return [partita.HostTensor(np.array(results[p.index], p.dtype)) for p in self.model.outputs]


@partita.hookimpl
def device_plugins() -> Iterable[partita.DevicePlugin]:
    """Registers OV."""
    return [OpenVinoPlugin()]
