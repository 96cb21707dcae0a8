"""The walk over the layers of an OpenVINO IR that makes an ONNX graph of them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelFormatError
from partita.frontends.openvino_ir import translators
from partita.frontends.openvino_ir.document import IRPort, Layer, Network, network, parse
from partita.frontends.openvino_ir.translator import TRANSLATORS, Site
from partita.frontends.openvino_ir.weights import Array, constant, element_type, open_weights
from partita.frontends.operation_site import blamed_on
from partita.frontends.value_names import TakenNames
from partita.model.openvino_names import note_on_model
from partita.model.port import note_names
from partita.model.value_uses import values_read
from partita.model.variables import METADATA_KEY, Variable, to_metadata
from partita.system.modules import import_modules

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

OPSET = 23
"""The ONNX opset in which the graph is written."""

_DEEPEST = 32
"""Bodies in bodies that are followed."""

_FEW = 1024
"""Elements of constants that are computed with here."""

_MOST_LISTED = 32
"""Types of layers that are named where they are not known."""

_MOST = 1 << 20
"""Elements of what is computed here; the shape of a Broadcast can ask for any number."""


def read_ir(data: bytes, weights: Any, path: Path | None, origin: str) -> ir.Model:
    """Translates an OpenVINO IR.

    Args:
        data: The bytes of the ``.xml`` file.
        weights: The ``.bin`` file (path, bytes or array), or ``None`` for the one beside ``path``.
        path: The ``.xml`` file, where the bytes came from one.
        origin: What to call the model in errors.

    Returns:
        A model of opset 23. Operations are called after their layers; inputs and outputs have the
        first of the tensor's names.

    Raises:
        ModelNotFoundError: The weights do not exist.
        ModelFormatError: It is no IR, does not hang together, or has layers that are not known.
    """
    net = parse(data, origin)
    try:
        return model_of_network(net, open_weights(weights, path))
    except ModelFormatError as error:
        raise ModelFormatError(f"{origin}: {error}") from error


def model_of_network(
    net: Network, weights: Array, constants: Mapping[str, Array] | None = None
) -> ir.Model:
    """Translates layers, those of a file or others like them.

    Args:
        net: The layers.
        weights: The bytes of the ``.bin`` file.
        constants: What layers hold that are in no file, by layer id.

    Raises:
        ModelFormatError: As :func:`read_ir`.
    """
    import onnx_ir as ir

    import_modules(translators)
    scope = GraphScope(net, weights)
    scope.arrays = constants or {}
    graph = scope.model_graph()
    model = ir.Model(graph, ir_version=11, producer_name="OpenVINO IR")
    if net.notes:
        note_on_model(model, net.notes)
    if scope.variables:
        model.metadata_props[METADATA_KEY] = to_metadata(scope.variables)
    return model


class GraphScope:
    """A graph that is being made: the model's own, or that of a body.

    Args:
        net: The layers.
        weights: The bytes of the ``.bin`` file.
        depth: Number of bodies around this one.
        names: Names of values that are taken.

    Attributes:
        arrays: What constants hold that are in no file, by layer id.
        held: Variable to the input that holds it and, where the first run computes its beginning,
            the one that tells whether there was a run before.
        read: Variable to what it is in this run.
        assigned: Variable to what it becomes.
        variables: All of them, once the graph is made.
    """

    def __init__(
        self, net: Network, weights: Array, depth: int = 0, names: TakenNames | None = None
    ) -> None:
        _refuse_unknown(net)
        self.net = net
        self.weights = weights
        self.arrays: Mapping[str, Array] = {}
        self.depth = depth
        self.nodes: list[ir.Node] = []
        self.constants: list[ir.Value] = []
        self._names = TakenNames() if names is None else names
        self._left = frozenset(net.sources.values())
        self._kept: dict[str, bool] = {}
        self._values: dict[tuple[str, str], ir.Value] = {}
        self._returned: set[ir.Value] = set()
        self.held: dict[str, list[ir.Value]] = {}
        self.read: dict[str, ir.Value] = {}
        self.assigned: dict[str, ir.Value] = {}
        self.variables: list[Variable] = []

    def model_graph(self) -> ir.Graph:
        """The graph of a whole model: parameters become inputs, results outputs."""
        net = self.net
        ports = [port for layer in net.layers.values() for port in layer.outputs]
        self._kept = {name: True for port in ports for name in port.names[:1]}
        self._names.take(self._kept)
        inputs = {layer.id: self._parameter(layer) for layer in net.of_type("Parameter")}
        self.follow(inputs)
        outputs: dict[ir.Value, None] = {}
        for layer in net.of_type("Result"):
            outputs[self._output(self.result(layer), outputs, layer.name)] = None
        if unread := [name for name in self.assigned if name not in self.read]:
            raise ModelFormatError(f"the variable '{unread[0]}' is assigned, and no layer reads it")
        for name, (held, *begun) in self.held.items():
            after = self.assigned.get(name, self.read[name])
            written = self._output(after, outputs, f"{name}/next")
            outputs[written] = None
            self.variables.append(Variable(name, *(str(v.name) for v in (held, written, *begun))))
        handed_on = [value for values in self.held.values() for value in values]
        return self.graph([*inputs.values(), *handed_on], list(outputs), net.name)

    def _output(self, value: ir.Value, others: Container[ir.Value], name: str) -> ir.Value:
        """The value as an output of the model, or a copy where it cannot be one."""
        if value.producer() is not None and value not in others:
            return value
        copy = self.write("Identity", [value], {}, 1, name)[0]
        copy.name = self.fresh(name)
        return copy

    def graph(self, inputs: list[ir.Value], outputs: list[ir.Value], name: str) -> ir.Graph:
        """The graph of what was written."""
        import onnx_ir as ir

        for node in self.nodes:
            for value in node.outputs:
                value.name = value.name or self.fresh(node.name or name)
        read = {value for node in self.nodes for value in values_read(node)} | set(outputs)
        return ir.Graph(
            inputs,
            outputs,
            nodes=self.nodes,
            initializers=[value for value in self.constants if value in read],
            opset_imports={"": OPSET},
            name=name,
        )

    def body(self, element_name: str, layer: Layer) -> GraphScope:
        """The scope of a body of a layer."""
        element = layer.element.find(element_name)
        if element is None:
            raise ModelFormatError(f"{layer} has no <{element_name}>")
        if self.depth >= _DEEPEST:
            raise ModelFormatError(f"{layer}: bodies lie deeper than {_DEEPEST}")
        net = network(element, f"the body of {layer}")
        return GraphScope(net, self.weights, self.depth + 1, self._names)

    def empty_body(self, name: str) -> GraphScope:
        """The scope of a body that a translator writes, where the layer has none."""
        return GraphScope(Network(name, {}, {}, {}), self.weights, self.depth + 1, self._names)

    def follow(self, given: Mapping[str, ir.Value]) -> None:
        """Translates all layers; ``given`` holds the values of parameters, by layer id."""
        for layer in self.net.layers.values():
            if layer.type == "Result":
                continue
            if layer.type == "Parameter":
                if layer.id not in given:
                    raise ModelFormatError(f"nothing feeds {layer} of a body")
                outputs: Sequence[ir.Value] = [given[layer.id]]
            elif layer.type == "Const":
                outputs = [self._constant(layer)]
            else:
                with blamed_on(layer, "its ports or attributes do not fit its type"):
                    outputs = self._translated(layer)
            for port, value in zip(layer.outputs, outputs, strict=False):
                self._values[layer.id, port.id] = value
                if self.depth == 0 and set(port.names) - {value.name}:
                    note_names(value, set(port.names) - {value.name})

    def result(self, layer: Layer) -> ir.Value:
        """The value that a ``Result`` layer returns."""
        return self._read(layer, layer.inputs[0].id)

    def own(self, value: ir.Value) -> ir.Value:
        """The value as an output of this body: what comes from outside goes through an Identity."""
        if value.producer() in self.nodes and value not in self._returned:
            self._returned.add(value)
            return value
        copy = self.write("Identity", [value], {}, 1, f"{value.name}/returned")[0]
        copy.name = self.fresh(f"{value.name}/returned")
        return copy

    def passing(self, value: ir.Value, name: str) -> ir.Graph:
        """A body that returns a value from around it."""
        import onnx_ir as ir

        node = ir.node("Identity", [value], name=f"{name}/Identity")
        node.outputs[0].name = self.fresh(name)
        return ir.Graph([], node.outputs, nodes=[node], opset_imports={"": OPSET}, name=name)

    def is_read(self, layer: str, port: str) -> bool:
        """Whether an edge leaves an output port."""
        return (layer, port) in self._left

    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
        name: str,
    ) -> list[ir.Value]:
        """Writes an operation, as :meth:`translator.Scope.write` says."""
        import onnx_ir as ir

        node = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=f"{name}/{op_type}")
        self.nodes.append(node)
        return list(node.outputs)

    def constant(self, array: Array, name: str) -> ir.Value:
        """Writes a constant."""
        import onnx_ir as ir

        return self._initializer(ir.Tensor(np.asarray(array)), name)

    def _constant(self, layer: Layer) -> ir.Value:
        if layer.id in self.arrays:
            return self.constant(self.arrays[layer.id], layer.name)
        return self._initializer(constant(layer, self.weights), layer.name)

    def _initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        import onnx_ir as ir

        value = ir.Value(
            name=self.fresh(name),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self.constants.append(value)
        return value

    def _translated(self, layer: Layer) -> Sequence[ir.Value]:
        import onnx_ir as ir

        start = len(self.nodes)
        inputs = [self._read(layer, port.id) for port in layer.inputs]
        found = TRANSLATORS[layer.type](Site(layer, inputs, self))
        outputs = [found] if isinstance(found, ir.Value) else list(found)
        fresh = self.nodes[start:]
        own = {value for node in fresh for value in node.outputs}
        for port, value in zip(layer.outputs, outputs, strict=False):
            if value in own and value.name is None:
                value.name = self._claimed(port) or self.fresh(layer.name)
        if outputs and (producer := outputs[0].producer()) in fresh:
            producer.name = layer.name
        for node in fresh:
            for value in node.outputs:
                if value.name is None:
                    value.name = self.fresh(node.name or layer.name)
        if not fresh or not _is_arithmetic_on_constants(fresh, own):
            return outputs
        arrays = _computed(fresh)
        if arrays is None:
            return outputs
        del self.nodes[start:]
        return [
            self.constant(arrays[value], value.name or layer.name) if value in own else value
            for value in outputs
        ]

    def _parameter(self, layer: Layer) -> ir.Value:
        if not layer.outputs:
            raise ModelFormatError(f"{layer} has no output")
        name = self._claimed(layer.outputs[0]) or self.fresh(layer.name)
        return self.input_value(layer, name)

    def input_value(self, layer: Layer, name: str) -> ir.Value:
        """A graph input of a parameter's type and shape."""
        import onnx_ir as ir

        dtype = element_type(layer.data.get("element_type", ""), layer)
        text = layer.data.get("shape", "...").strip()
        dims = [] if not text else [part.strip() for part in text.split(",")]
        shape = (
            None
            if text == "..."
            else ir.Shape([int(dim) if dim.isdigit() else None for dim in dims])
        )
        return ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)

    def _read(self, layer: Layer, port: str) -> ir.Value:
        source = self.net.sources[layer.id, port]
        if source not in self._values:
            raise ModelFormatError(
                f"{layer} reads output {source[1]} of {self.net.layers[source[0]]}, which is "
                "not translated"
            )
        return self._values[source]

    def fresh(self, name: str) -> str:
        """The name, or one like it that is not taken."""
        return self._names.fresh(name)

    def _claimed(self, port: IRPort) -> str | None:
        """The name that was kept free for a port's value."""
        return next((name for name in port.names if self._kept.pop(name, None)), None)


def _is_arithmetic_on_constants(nodes: Sequence[ir.Node], own: set[ir.Value]) -> bool:
    """Whether nodes compute a few whole numbers, such as axes, from constants alone.

    Only these are computed here, since translators of later layers need them; what depends on
    weights is left to the devices.
    """
    for node in nodes:
        if node.op_type in ("If", "Loop", "Scan"):
            return False
        for value in node.inputs:
            if value is None or value in own:
                continue
            held = value.const_value
            if held is None or held.size > _FEW or held.dtype not in (6, 7, 9):
                return False
    return True


def _computed(nodes: Sequence[ir.Node]) -> dict[ir.Value, Array] | None:
    """The values that nodes make of constants; ``None`` if one is too large to be computed here."""
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    arrays: dict[ir.Value, Array] = {}
    for node in nodes:
        given = [value for value in node.inputs if value is not None]
        for value in given:
            if value.const_value is not None:
                arrays[value] = value.const_value.numpy()
        proto = ir.to_proto(node)
        feeds = {str(value.name): arrays[value] for value in given}
        if _elements_made(proto, feeds) > _MOST:
            return None
        found = ReferenceEvaluator(proto).run(None, feeds)
        arrays.update(zip(node.outputs, map(np.asarray, found), strict=True))
    return arrays


def _elements_made(node: onnx.NodeProto, feeds: Mapping[str, Array]) -> int:
    """The elements of an operation's results, as far as their shapes follow from its inputs."""
    import onnx
    from onnx import helper, numpy_helper

    held = [numpy_helper.from_array(array, name) for name, array in feeds.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", [], outputs, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    found = onnx.shape_inference.infer_shapes(model).graph.output
    return sum(math.prod(dim.dim_value for dim in one.type.tensor_type.shape.dim) for one in found)


def _refuse_unknown(net: Network) -> None:
    known = {"Parameter", "Result", "Const", *TRANSLATORS}
    unknown = {layer.type: layer for layer in net.layers.values() if layer.type not in known}
    if unknown:
        layers = [str(layer) for layer in unknown.values()][:_MOST_LISTED]
        if len(unknown) > _MOST_LISTED:
            layers.append(f"and {len(unknown) - _MOST_LISTED} more")
        raise ModelFormatError(f"layers that are not known: {'; '.join(layers)}")
