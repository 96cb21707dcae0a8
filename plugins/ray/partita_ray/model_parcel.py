"""A model on its way to a node: the graph as bytes, large weights as objects that are sent once."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from partita.model.model import Model
from partita.system.threads.interrupt_safe_lock import InterruptSafeLock

LARGE_BYTES = 64 << 10
"""Weights from this size on are objects of their own."""


@dataclass(frozen=True, slots=True)
class ModelParcel:
    """What a node makes a model of.

    Attributes:
        graph: The model as a protobuf, in which large weights are said to lie in a file that is
            named by their number.
        weights: References to their elements, by that number.
    """

    graph: bytes
    weights: tuple[Any, ...]

    def unpack(self) -> Model:
        """The model; its large weights are read where the node's object store has them."""
        import onnx
        import ray

        from partita.frontends.onnx.lazy_onnx_ir import import_onnx_ir
        from partita.frontends.reader import read_model

        import_onnx_ir()
        import onnx_ir as ir

        model = ir.from_proto(onnx.load_model_from_string(self.graph))
        arrays = ray.get(list(self.weights))
        for value in model.graph.initializers.values():
            weight = value.const_value
            if isinstance(weight, ir.ExternalTensor):
                array = arrays[int(str(weight.location))]
                value.const_value = ir.Tensor(array, weight.dtype, name=value.name)
        return read_model(model, tidy=False)


class WeightStore:
    """Puts weights into the object store, each once as long as it lives in this process.

    Models that share weights, as clones and submodels do, share the objects too, so that a model
    that is asked about and then compiled is sent once.
    """

    def __init__(self) -> None:
        self._lock = InterruptSafeLock()
        self._known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def pack(self, model: Model) -> ModelParcel:
        """A model for nodes; it may be changed afterwards."""
        import onnx_ir as ir

        copy = model.clone()
        weights: list[Any] = []
        for value in copy.ir.graph.initializers.values():
            weight = value.const_value
            if weight is None or weight.nbytes < LARGE_BYTES or weight.dtype == ir.DataType.STRING:
                continue
            value.const_value = ir.ExternalTensor(
                location=str(len(weights)),
                offset=0,
                length=weight.nbytes,
                dtype=weight.dtype,
                shape=ir.Shape(weight.shape.numpy()),
                name=value.name or "",
            )
            weights.append(self._put(weight))
        return ModelParcel(ir.to_proto(copy.ir).SerializeToString(), tuple(weights))

    def _put(self, weight: Any) -> Any:
        import ray

        with self._lock:
            known = self._known.get(weight)
            if known is None:
                known = self._known[weight] = ray.put(weight.numpy())
            return known
