"""A device for tests of state: it puts rows into caches, in memory of its own."""

from __future__ import annotations

import numpy as np
from models import model_of, node, value
from onnx import TensorProto, helper

import partita
from partita.contract.device_plugin import DeviceInfo, DevicePlugin
from partita.errors import DeviceMemoryError
from partita.lowering import lower
from partita.lowering.kernel_table import in_place_outputs
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita.properties import DeviceProperties
from partita.tensors.tensor import HOST

ROOM, WIDTH = 8, 3


def caches(count=2, rows=ROOM, state=True, tokens=1):
    """Caches that ``x`` is put into at a place, and the sum of the rows of the last one."""
    names = [str(number) for number in range(count)]
    shape = (1, rows, WIDTH)
    nodes = [
        node("TensorScatter", [f"past.{n}", "x", "at"], f"present.{n}", f"put.{n}", axis=1)
        for n in names
    ]
    proto = model_of(
        [*nodes, node("ReduceSum", [f"present.{names[-1]}", "axes"], "sum", keepdims=0)],
        [
            value("x", (1, tokens, WIDTH)),
            value("at", (1,), TensorProto.INT64),
            *(value(f"past.{n}", shape) for n in names),
        ],
        [value("sum", (1, WIDTH)), *(value(f"present.{n}", shape) for n in names)],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
        opset=24,
        ir_version=10,
    )
    if state:
        pairs = [Variable(f"cache.{n}", f"past.{n}", f"present.{n}") for n in names]
        helper.set_model_props(proto, {METADATA_KEY: to_metadata(pairs)})
    return proto


def row(number, at):
    """Inputs for one row."""
    return {"x": np.full((1, 1, WIDTH), number, np.float32), "at": np.array([at])}


class CacheTensor(partita.Tensor):
    """A tensor of the device, which counts how often its elements are brought to the host."""

    downloads = 0

    def __init__(self, array, device):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.device = self.memory = device

    def numpy(self):
        CacheTensor.downloads += 1
        return self.array.copy()

    def copy_from(self, source):
        np.copyto(self.array, source.numpy())


class CacheDevice(DevicePlugin):
    """Computes TensorScatter, ReduceSum and Neg.

    Args:
        in_place: Whether it says that it updates caches in place.
        room: Elements that it has room for.
        name: The device's name, and that of its memory.
    """

    device_name = "CACHE"
    properties_type = DeviceProperties

    def __init__(self, in_place=True, room=10**6, name="CACHE"):
        self.in_place, self.room, self.device_name = in_place, room, name
        self.copied = self.calls = 0
        self.wrong_pairs = None
        self.before = lambda: None

    def device_info(self, device_id):
        return DeviceInfo(self.device_name, "caches", "accelerator", driver="cache 1")

    def query_model(self, model, properties):
        return partita.QueryResult.of(self.device_name, {op.name: None for op in model.ops})

    def can_share(self, memory, device_id=""):
        return memory in (HOST, self.device_name)

    def compile_model(self, model, properties):
        return CacheModel(model, properties, self)


class CacheModel(partita.DeviceModel):
    def __init__(self, model, properties, plugin):
        super().__init__(model, properties, plugin.device_name)
        self.plugin = plugin
        self.graph = lower(model)

    def create_runner(self):
        return CacheRunner(self)

    def in_place_outputs(self):
        if self.plugin.wrong_pairs is not None:
            return self.plugin.wrong_pairs
        if not self.plugin.in_place:
            return {}
        of_node = {"TensorScatter": {0: 0}}
        return in_place_outputs(
            self.graph, self.inputs, self.outputs, lambda node: of_node.get(node.op_type, {})
        )

    def allocate(self, port, shape):
        if np.prod(shape) > self.plugin.room:
            raise DeviceMemoryError(f"no room for {port.name}")
        return CacheTensor(np.zeros(shape, port.dtype), self.device)


class CacheRunner(partita.Runner):
    def __init__(self, model):
        self.graph, self.plugin = model.graph, model.plugin

    def run(self, inputs, outputs=None):
        self.plugin.before()
        given = dict(zip(self.graph.inputs, inputs, strict=True))
        wanted = dict(zip(self.graph.outputs, outputs or (), strict=False))
        for one in self.graph.nodes:
            tensors = [given.get(x) or partita.HostTensor(x.const) for x in one.inputs]
            given[one.outputs[0]] = self.compute(one, tensors, wanted.get(one.outputs[0]))
        return [given[value] for value in self.graph.outputs]

    def compute(self, node, tensors, wanted):
        if node.op_type == "ReduceSum":
            keepdims = bool(node.attrs["keepdims"])
            return partita.HostTensor(_array(tensors[0]).sum(axis=1, keepdims=keepdims))
        if node.op_type == "Neg":
            return partita.HostTensor(-_array(tensors[0]))
        past, x, at = tensors
        if wanted is not past:
            self.plugin.copied += 1
            wanted = partita.HostTensor(past.numpy().copy())
        (start,) = at.numpy()
        _array(wanted)[0, start : start + x.shape[1]] = x.numpy()[0]
        return wanted

    def bind(self, inputs, outputs, scratch=None):
        return CacheCall(self, inputs, outputs)


class CacheCall(partita.BoundCall):
    def __init__(self, runner, inputs, outputs):
        self.runner, self.inputs, self.outputs = runner, inputs, outputs

    def __call__(self):
        self.runner.plugin.calls += 1
        found = self.runner.run(self.inputs, self.outputs)
        for result, output in zip(found, self.outputs, strict=True):
            if result is not output:
                output.copy_from(result)


def _array(tensor):
    return tensor.array if isinstance(tensor, CacheTensor) else tensor.numpy()
