"""Nodes of a graph that is being written: what they read, what they make, and of which shape."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
from onnx.shape_inference import InferenceError, infer_shapes

from partita.errors import ModelError, PartitaError
from partita.frontends.openvino_ir.document import IRPort, Layer, Network
from partita.frontends.openvino_ir.graph import model_of_network
from partita.frontends.reader import read_model
from partita.model.port import Port
from partita.opsets.arithmetic import Arithmetic
from partita.opsets.ports import Input, Output
from partita.shapes.partial_shape import PartialShape
from partita.shapes.shape import Shape
from partita.tensors.element_type import Type

Array = np.ndarray[Any, Any]

_PRECISIONS = {Type.f16: "FP16", Type.f32: "FP32", Type.f64: "FP64", Type.boolean: "BOOL"}
"""What files call element types at ports, where it is more than the name in capitals."""

_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class Node(Arithmetic["Node"]):
    """An operation, parameter, constant or result of a graph that is being written.

    Types and shapes of its outputs are inferred at once, so that what does not fit is told where it
    is written.

    Args:
        kind: The type of layer.
        inputs: What it reads.
        attributes: Its attributes as files have them.
        version: The operation set that it is of.
        name: Its friendly name; made from the type if it has none.
        outputs: How many outputs it has.
        value: What a constant holds.

    Raises:
        ModelError: Inputs or attributes do not fit the operation.
    """

    def __init__(
        self,
        kind: str,
        inputs: Sequence[Output[Node]] = (),
        attributes: Mapping[str, str] | None = None,
        *,
        version: int = 1,
        name: str | None = None,
        outputs: int = 1,
        value: Array | None = None,
    ) -> None:
        self._kind = kind
        self._inputs = tuple(inputs)
        self._attributes = dict(attributes or {})
        self._version = version
        self._is_edited = False
        self._is_named = name is not None
        self.name = name if name is not None else f"{kind}_{next(_numbers[kind])}"
        self.value = value
        self._outputs = self._inferred(outputs)

    @property
    def is_named(self) -> bool:
        """Whether somebody has given it its name."""
        return self._is_named

    # ------------------------------------------------------------------ OpenVINO's spellings

    @property
    def friendly_name(self) -> str:
        """The name."""
        return self.name

    @friendly_name.setter
    def friendly_name(self, name: str) -> None:
        self.set_friendly_name(name)

    def get_name(self) -> str:
        """The name."""
        return self.name

    def get_friendly_name(self) -> str:
        """The name."""
        return self.name

    def set_friendly_name(self, name: str) -> None:
        """Renames it."""
        self.name, self._is_named = name, True

    def get_type_name(self) -> str:
        """The type of layer."""
        return self._kind

    def get_attributes(self) -> dict[str, str]:
        """The attributes as files have them."""
        return dict(self._attributes)

    def inputs(self) -> list[Input[Node]]:
        """Its inputs in order."""
        return [Input(self, index) for index in range(len(self._inputs))]

    def input_values(self) -> list[Output[Node]]:
        """What it reads, in order."""
        return list(self._inputs)

    def input_value(self, index: int) -> Output[Node]:
        """What an input reads."""
        return self._at(self._inputs, index, "input")

    def input(self, index: int) -> Input[Node]:
        """One of its inputs.

        Raises:
            ModelError: There is no such one.
        """
        self.input_value(index)
        return Input(self, index)

    def outputs(self) -> list[Output[Node]]:
        """Its outputs in order."""
        return list(self._outputs)

    def output(self, index: int = 0) -> Output[Node]:
        """One of its outputs.

        Raises:
            ModelError: There is no such one.
        """
        return self._at(self._outputs, index, "output")

    def get_input_size(self) -> int:
        """Number of inputs."""
        return len(self._inputs)

    def get_output_size(self) -> int:
        """Number of outputs."""
        return len(self._outputs)

    def get_input_element_type(self, index: int) -> Type:
        """The element type of an input."""
        return self.input_value(index).element_type

    def get_input_partial_shape(self, index: int) -> PartialShape:
        """The dimensions of an input."""
        return self.input_value(index).partial_shape

    def get_input_shape(self, index: int) -> Shape:
        """The sizes of an input; raises ``ModelError`` if some are not known."""
        return self.input_value(index).shape

    def get_output_element_type(self, index: int) -> Type:
        """The element type of an output."""
        return self.output(index).element_type

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """The dimensions of an output."""
        return self.output(index).partial_shape

    def get_output_shape(self, index: int) -> Shape:
        """The sizes of an output; raises ``ModelError`` if some are not known."""
        return self.output(index).shape

    def get_element_type(self) -> Type:
        """The element type of the first output."""
        return self.output().element_type

    @property
    def shape(self) -> Shape:
        """The sizes of the first output; raises ``ModelError`` if some are not known."""
        return self.output().shape

    def _at(self, ports: Sequence[Output[Node]], index: int, kind: str) -> Output[Node]:
        if not 0 <= index < len(ports):
            raise ModelError(f"{self!r} has {len(ports)} {kind}s; there is no {kind} {index}.")
        return ports[index]

    # ------------------------------------------------------------------ graphs

    def model_to(self, results: Sequence[Any], parameters: Sequence[Any], name: str) -> Any:
        """The model that computes results from parameters, as an ``onnx_ir.Model``.

        Args:
            results: Nodes of one output, or outputs of nodes.
            parameters: Nodes that :func:`parameter` made, in the order of the inputs.
            name: Of the model.

        Raises:
            ModelError: A result depends on a parameter that is not listed, or names are not unique.
        """
        ends = [_result(one) for one in results]
        order = _ordered(ends)
        missing = [node for node in order if node._kind == "Parameter" and node not in parameters]
        if missing:
            raise ModelError(
                f"The model depends on {missing[0]!r}, which is not a parameter of it."
            )
        strange = [one for one in parameters if getattr(one, "_kind", "") != "Parameter"]
        if strange:
            raise ModelError(
                f"The parameters of a model are made by parameter(); found {strange[0]!r}."
            )
        order = [*parameters, *(node for node in order if node not in parameters)]
        if any(node._is_edited for node in order):
            for node in order:
                node.validate()  # what readers of an edited node were written for may have changed
        return read_model(_translated(order, name or "Model")).ir

    def validate(self) -> None:
        """Infers types and shapes of its outputs again, after a change of what it reads.

        Raises:
            ModelError: Its inputs do not fit it.
        """
        kept = self._outputs
        try:
            found = self._inferred(len(kept))
        finally:
            self._outputs = kept
        for output, new in zip(kept, found, strict=True):
            output.element_type, output.partial_shape = new.element_type, new.partial_shape

    def replace_input(self, index: int, source: Output[Node]) -> None:
        """Makes an input read something else, as :meth:`Input.replace_source_output`.

        Raises:
            ModelError: The source is computed from this node, or does not fit it; nothing is
                changed.
        """
        if self in _ordered([source.node]):
            raise ModelError(
                f"Input {index} of {self!r} cannot read {source!r}, which is computed from it."
            )
        kept = self._inputs
        self._inputs = (*kept[:index], source, *kept[index + 1 :])
        try:
            self.validate()
        except ModelError:
            self._inputs = kept
            raise
        self._is_edited = True

    def _layer(self, identifier: str) -> Layer:
        """The layer of a file that it would be."""
        attributes = dict(self._attributes)
        ports = [_ir_port(str(i), output) for i, output in enumerate(self._inputs)]
        made = [_ir_port(str(len(ports) + i), one) for i, one in enumerate(self._outputs)]
        return Layer(
            id=identifier,
            name=self.name,
            type=self._kind,
            version=f"opset{self._version}",
            data=attributes,
            inputs=tuple(ports),
            outputs=tuple(made) if self._kind != "Result" else (),
            element=Element("layer"),
        )

    def _inferred(self, count: int) -> list[Output[Node]]:
        """Its outputs, with the types and shapes that follow from what it reads."""
        if self.value is not None:
            dims = PartialShape(self.value.shape)
            return [Output(self, 0, Type(self.value.dtype), dims)]
        if self._kind == "Parameter":
            dims = PartialShape(f"[{self._attributes['shape']}]")
            return [Output(self, 0, Type(self._attributes["element_type"]), dims)]
        if self._kind == "Result":
            read = self._inputs[0]
            return [Output(self, 0, read.element_type, read.partial_shape)]
        rank = _rank(self._inputs[0].partial_shape) if self._inputs else 0
        unknown = PartialShape([-1] * rank)
        self._outputs = [Output(self, i, Type.dynamic, unknown) for i in range(count)]
        stands = {id(one): _stands_for(one) for one in self._inputs}
        copy = _copy_of(self, [stands[id(one)] for one in self._inputs])
        ends = [Node("Result", [output]) for output in copy._outputs]
        try:
            model = read_model(_translated(_ordered(ends), self.name))
            infer_shapes(model.to_onnx(), strict_mode=True)
        except (PartitaError, InferenceError) as error:
            raise ModelError(
                f"{self._kind} '{self.name}' does not fit its inputs: {error}"
            ) from error
        return [
            Output(self, i, port.element_type, _plain(port)) for i, port in enumerate(model.outputs)
        ]

    def _operation(self, layer: str, *sides: Any) -> Node:
        return self.arithmetic(self.output().element_type, layer, sides)

    @staticmethod
    def arithmetic(numbers: Type, layer: str, sides: Sequence[Any]) -> Node:
        """A node of a type of layer that Python's operators write.

        Args:
            numbers: The type of lone numbers among what it reads.
            layer: The type of layer.
            sides: What it reads, as :func:`as_output` takes it.
        """
        attributes = {"auto_broadcast": "numpy"} if len(sides) > 1 else {}
        return Node(layer, [as_output(side, numbers) for side in sides], attributes)

    def __repr__(self) -> str:
        return f"<{self._kind} {self.name!r}>"


def as_output(given: Any, numbers: Type | None = None) -> Output[Node]:
    """What a node is to read: an output, a node's first one, or that of a constant.

    Args:
        given: An output, a node, or numbers.
        numbers: The element type of a lone Python number.

    Raises:
        ModelError: It is none of these.
    """
    if isinstance(given, Output):
        return given
    if isinstance(given, Node):
        return given.output()
    if isinstance(given, Input):
        return given.get_source_output()
    array = np.asarray(given)
    if array.dtype.kind not in "biufV" or array.dtype.hasobject:
        raise ModelError(f"A node reads other nodes and numbers; found {given!r}.")
    if numbers is not None and not isinstance(given, (np.ndarray, np.generic)) and not array.ndim:
        array = array.astype(numbers.dtype)
    elif array.dtype == np.float64 and not isinstance(given, (np.ndarray, np.generic)):
        array = array.astype(np.float32)
    return Node("Const", value=array).output()


def _result(given: Any) -> Node:
    """The result that ends a model."""
    if isinstance(given, Node) and given._kind == "Result":
        return given
    return Node("Result", [as_output(given)])


def _ordered(ends: Sequence[Node]) -> list[Node]:
    """All nodes that these depend on, and these, each behind those that it reads."""
    order: dict[Node, None] = {}
    open_nodes = list(reversed(ends))
    while open_nodes:
        node = open_nodes[-1]
        waiting = [one.node for one in node._inputs if one.node not in order]
        if node in order:
            open_nodes.pop()
        elif waiting:
            open_nodes += reversed(waiting)
        else:
            order[node] = None
            open_nodes.pop()
    return list(order)


def _translated(order: Sequence[Node], name: str) -> Any:
    """The nodes as layers of a file, translated as these are."""
    _name_results(order)
    numbers = {node: str(index) for index, node in enumerate(order)}
    layers = {numbers[node]: node._layer(numbers[node]) for node in order}
    sources = {
        (numbers[node], str(place)): (
            numbers[read.node],
            str(len(read.node._inputs) + read.index),
        )
        for node in order
        for place, read in enumerate(node._inputs)
    }
    net = Network(name, layers, {key: int(key) for key in layers}, sources)
    held = {numbers[node]: node.value for node in order if node.value is not None}
    return model_of_network(net, np.empty(0, np.uint8), held)


def _name_results(order: Sequence[Node]) -> None:
    """Results that have a name give it to the tensor, where that has none."""
    for node in order:
        if node._kind == "Result":
            read = node._inputs[0]
            computed = read.node._inputs  # names of others are their own
            if computed and not read.names and (node.is_named or read.node.is_named):
                read.names = {node.name if node.is_named else read.node.name}


def _ir_port(identifier: str, output: Output[Node]) -> IRPort:
    kind = output.element_type
    shape = output.partial_shape
    dims = (
        ()
        if shape.rank.is_dynamic
        else tuple(dim.get_length() if dim.is_static else -1 for dim in shape)
    )
    precision = _PRECISIONS.get(kind, kind.value.upper())
    return IRPort(identifier, precision, dims, tuple(sorted(output.names)))


def _stands_for(output: Output[Node]) -> Output[Node]:
    """A constant itself, or a parameter of an output's type and shape."""
    if output.node.value is not None:
        return output
    shape = str(output.partial_shape)[1:-1]
    attributes = {"element_type": output.element_type.value, "shape": shape}
    return Node("Parameter", attributes=attributes, name=output.node.name).output()


def _copy_of(node: Node, inputs: Sequence[Output[Node]]) -> Node:
    """A node that reads something else."""
    copy = object.__new__(Node)
    copy.__dict__.update(node.__dict__)
    copy._inputs = tuple(inputs)
    copy._outputs = [Output(copy, one.index, one.element_type, one.partial_shape)
                     for one in node._outputs]  # fmt: skip
    return copy


def _rank(shape: PartialShape) -> int:
    return 0 if shape.rank.is_dynamic else len(shape)


def _plain(port: Port) -> PartialShape:
    """The dimensions of a port without symbols, which would be others' in another graph."""
    if port.shape is None:
        return PartialShape.dynamic()
    return PartialShape(dim if isinstance(dim, int) else -1 for dim in port.shape)
