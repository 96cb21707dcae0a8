"""Lowering a model: its nodes, values and constants become those of a lowered graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.lowering.graph import Graph, Node, Value
from partita.lowering.models.einsum_products import multiply_einsums
from partita.lowering.models.two_bit_weights import widen_two_bits
from partita.model.model import numpy_dtype, value_shape
from partita.model.value_uses import attributes
from partita.system.memory_map import give_back, spilled

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from partita.model.model import Model

_TENSOR, _GRAPH, *_LISTS = 4, 5, 6, 7, 8
"""Types of attributes, by their numbers in protobufs; lists are of floats, integers and strings."""

_LARGE_BYTES = 1 << 13
"""Tensors from this size on are given back to the system between two looks at them."""


def lower(model: Model, *, for_query: bool = False) -> Graph:
    """The lowered graph of a model.

    Initializers and Constant nodes become constant values; they share memory with the model
    where the model holds plain arrays. The model is not changed.

    Args:
        model: The model.
        for_query: Zeros, of one element's memory, stand for large initializers that are made when
            somebody reads them: a query looks at their types and shapes alone.
    """
    return lower_ir(model.ir, for_query=for_query)


def lower_proto(proto: onnx.ModelProto) -> Graph:
    """The lowered graph of an ONNX protobuf, as it is: nothing is checked, no shape inferred."""
    import onnx_ir as ir

    return lower_ir(ir.from_proto(proto))


def lower_ir(model: ir.Model, *, for_query: bool = False) -> Graph:
    """The lowered graph of an ``onnx_ir.Model``; see :func:`lower`."""
    if model.functions:
        from onnx_ir.passes.common import InlinePass

        model = InlinePass()(model.clone()).model
    graph = _Lowering(model.graph.opset_imports, for_query).graph(model.graph)
    graph.prune()
    multiply_einsums(graph)
    widen_two_bits(graph, for_query)
    return graph


class _Lowering:
    """Turns graphs into lowered graphs; nested ones see the values of those around them."""

    def __init__(self, opsets: Mapping[str, int], for_query: bool) -> None:
        import onnx_ir as ir

        self._tensor_type, self._lazy_tensor = ir.TensorType, ir.LazyTensor
        self._opsets = {_domain(name): version for name, version in opsets.items()}
        self._weight = _stand_in if for_query else _spilled
        self._values: dict[ir.Value, Value] = {}
        self._owner: str | None = None

    def graph(self, graph: ir.Graph) -> Graph:
        inputs = [self._value(value) for value in graph.inputs]
        given = set(graph.inputs)
        for initializer in graph.initializers.values():
            tensor = initializer.const_value
            if tensor is not None and initializer not in given:
                array = self._constant(tensor)
                self._values[initializer] = Value.constant(array, initializer.name or "")
        nodes: list[Node] = []
        for number, node in enumerate(graph):
            lowered = self._node(node, number)
            if lowered is not None:
                nodes.append(lowered)
        return Graph(inputs, [self._value(v) for v in graph.outputs], nodes, graph.name or "")

    def _constant(self, tensor: ir.TensorProtocol) -> np.ndarray[Any, Any]:
        """An initializer's elements."""
        if isinstance(tensor, self._lazy_tensor) and tensor.nbytes >= _LARGE_BYTES:
            return self._weight(tensor)
        return _array(tensor)

    def _node(self, node: ir.Node, number: int) -> Node | None:
        domain = _domain(node.domain)
        name = node.name or f"{node.op_type}_{number}"
        if node.op_type == "Constant" and not domain:
            array = _constant(node)
            if array is not None:
                self._value(node.outputs[0]).const = array
                return None
        version = node.version if node.version is not None else self._opsets.get(domain, 1)
        origin, outer = self._owner or name, self._owner
        self._owner = origin
        attrs = {attr.name: self._attr(attr) for attr in attributes(node)}
        self._owner = outer
        return Node(
            node.op_type,
            [None if value is None else self._value(value) for value in node.inputs],
            [self._value(value) if value.name else None for value in node.outputs],
            attrs,
            domain=domain,
            version=version,
            name=name,
            origins=(origin,),
        )

    def _attr(self, attr: ir.Attr) -> Any:
        kind = attr.type
        if kind in _LISTS:
            return list(attr.value)
        if kind == _GRAPH:
            return self.graph(attr.value)
        if kind == _TENSOR:
            return _array(attr.value)
        return attr.value

    def _value(self, value: ir.Value) -> Value:
        lowered = self._values.get(value)
        if lowered is None:
            lowered = Value(value.name or "", self._element_type(value), value_shape(value))
            self._values[value] = lowered
        return lowered

    def _element_type(self, value: ir.Value) -> np.dtype[Any] | None:
        """The type of a tensor's elements; of sequences and optionals, which hold objects, that."""
        kind = value.type
        if kind is None or isinstance(kind, self._tensor_type):
            return numpy_dtype(None if kind is None else kind.dtype)
        return np.dtype(object)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _stand_in(tensor: ir.LazyTensor) -> np.ndarray[Any, Any]:
    """Zeros of a tensor's type and shape."""
    return np.broadcast_to(np.zeros((), tensor.dtype.numpy()), tensor.shape.numpy())


def _spilled(tensor: ir.LazyTensor) -> np.ndarray[Any, Any]:
    """A tensor's elements, in memory that can be given back once they are packed."""
    array = spilled(_array(tensor))
    give_back(array)
    return array


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    """A tensor's elements; texts as values of the graph are, where onnx-ir holds their bytes."""
    proto: Any = getattr(tensor, "raw", None)
    kind = _PLAIN_TYPES.get(getattr(proto, "data_type", 0))
    if kind is not None and (elements := proto.raw_data):
        # Files have hundreds of small ones, and onnx-ir takes three times as long.
        return np.frombuffer(elements, kind).reshape(tuple(proto.dims))
    array: np.ndarray[Any, Any] = np.asarray(tensor.numpy())
    if tensor.dtype.name != "STRING":  # of which none at all are an array of floats to numpy
        return array
    texts = [text.decode() if isinstance(text, bytes) else text for text in array.reshape(-1)]
    return np.array(texts, dtype=object).reshape(array.shape)


_PLAIN_TYPES = {
    number: np.dtype(kind)
    for number, kind in ((1, "<f4"), (6, "<i4"), (7, "<i8"), (9, "?"), (11, "<f8"))
}
"""Element types whose elements a protobuf's bytes are, by their numbers there."""


def _constant(node: ir.Node) -> np.ndarray[Any, Any] | None:
    """The array of a Constant node; ``None`` for a sparse one, which stays a node."""
    for attr in node.attributes.values():
        match attr.name:
            case "value":
                return _array(attr.value)
            case "value_float" | "value_floats":
                return np.asarray(attr.value, dtype=np.float32)
            case "value_int" | "value_ints":
                return np.asarray(attr.value, dtype=np.int64)
            case "value_string" | "value_strings":
                return np.asarray(attr.value, dtype=object)
    return None
