"""A model on a node, and requests of it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.contract.device_model import DeviceModel
from partita.contract.execution import ExecutedStep, Execution
from partita.contract.profiling import DeviceSpan, ProfilingInfo
from partita.contract.runner import Runner
from partita.errors import CompileError, InferError
from partita.tensors.tensor import Tensor
from partita_ray.call_messages import CallMessages, RunAnswer
from partita_ray.object_tensor import MEMORY, ObjectTensor
from partita_ray.remote_call import fetch

if TYPE_CHECKING:
    from partita.model.model import Model
    from partita_ray.cluster import Cluster
    from partita_ray.node import Node
    from partita_ray.properties import RayProperties


class RayModel(DeviceModel):
    """A model that a process on a node has compiled and holds, for this model alone.

    Args:
        model: What to compile.
        properties: Which device of the node computes, and how.
        plugin: The plugin's device name.
        cluster: Knows which weights are there already.
        node: Where to compile.

    Raises:
        CompileError: The node is gone, or its device fails to compile.

    Attributes:
        node: Where it is.
        process: The actor that holds it.
    """

    properties: RayProperties

    def __init__(
        self, model: Model, properties: RayProperties, plugin: str, cluster: Cluster, node: Node
    ) -> None:
        super().__init__(model, properties, f"{plugin}.{node.number}")
        self.node = node
        self.plugin = plugin
        requests = properties.RAY_REQUESTS
        self.process = node.take_process(requests)
        parcel = cluster.weights.pack(model)
        loaded = self.process.load.remote(parcel, properties.RAY_DEVICE, properties.for_node)
        self._inner = fetch(f"{node.named(plugin)}: compile '{model.name}'", loaded, CompileError)
        back = weakref.finalize(self, node.give_back, self.process, requests)
        back.atexit = False  # Ray ends its processes itself then

    @property
    def optimal_number_of_infer_requests(self) -> int:
        """Those that are computed, and one whose tensors are on the way."""
        return self.properties.RAY_REQUESTS + 1

    def takes_memory(self, memory: str) -> bool:
        """Host tensors, and those of any node."""
        return super().takes_memory(memory) or memory.startswith(MEMORY)

    def extra_properties(self) -> dict[str, Any]:
        """The node's address, and its devices that execute the model."""
        return {"RAY_NODE": self.node.address, "RAY_EXECUTION_DEVICES": list(self._inner)}

    def create_runner(self) -> Runner:
        """What calls the process on the node."""
        return RayRunner(self)


class RayRunner(Runner):
    """One request: a call for each run, whose large results stay where they are until read."""

    def __init__(self, compiled: RayModel) -> None:
        self._compiled = compiled
        self._messages = CallMessages(compiled.inputs, compiled.outputs)
        self._call = compiled.process.run.options(num_returns=1 + self._messages.large_outputs)
        self._where = f"{compiled.node.named(compiled.plugin)}: infer '{compiled.model.name}'"
        self._last: RunAnswer | None = None

    def run(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor | None] | None = None
    ) -> Sequence[Tensor]:
        """Returns when the node has computed; tensors of nodes cross as references.

        Raises:
            InferError: The node is gone, or its device fails.
        """
        given = [x.held if isinstance(x, ObjectTensor) else x.numpy() for x in inputs]
        message, large = self._messages.write_inputs(given)
        called = self._call.remote(message, *large)
        reply, *objects = called if isinstance(called, list) else [called]
        answer = self._last = self._messages.read_answer(fetch(self._where, reply, InferError))
        results = self._results(answer, objects)
        for index, target in enumerate(outputs or ()):
            if target is not None:
                results[index].copy_to(target)
                results[index] = target
        return results

    def _results(self, answer: RunAnswer, objects: Sequence[Any]) -> list[Tensor]:
        """The outputs: those that came with the answer, and references to the others."""
        compiled, memory = self._compiled, self._compiled.node.memory
        others = iter(zip(objects, answer.shapes, strict=True))
        results: list[Tensor] = []
        for port in compiled.outputs:
            dtype = np.dtype(object) if port.dtype is None else port.dtype
            held: Any = answer.small.get(port.name)
            held, shape = next(others) if held is None else (held, held.shape)
            results.append(ObjectTensor(held, shape, dtype, compiled.device, memory))
        return results

    def profiling_info(self) -> Sequence[ProfilingInfo]:
        """What the node's device has counted."""
        return () if self._last is None else self._last.counters

    def device_spans(self) -> Sequence[DeviceSpan]:
        """When the node's device computed, by this process's clock, if PERF_COUNT is set."""
        compiled, answer = self._compiled, self._last
        if answer is None or not compiled.properties.PERF_COUNT:
            return ()
        offset = compiled.node.clock_offset(compiled.plugin)
        place = f"node {compiled.node.address}: {compiled.device}"
        start, end = answer.start_s + offset, answer.end_s + offset
        return (DeviceSpan(place, compiled.model.name, start, end),)

    def explain_execution(self) -> Execution:
        """Where the last run was."""
        compiled = self._compiled
        place = compiled.node.named(compiled.plugin)
        return Execution((ExecutedStep(compiled.model.name, f"call of {place}"),))
