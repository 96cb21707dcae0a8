"""Operations of a model, their inputs and outputs, and the notes on them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partita.errors import ModelError
from partita.model.port import Port, PortNode
from partita.shapes.partial_shape import PartialShape
from partita.shapes.shape import Shape
from partita.tensors.element_type import Type

if TYPE_CHECKING:
    import onnx_ir as ir

_RT_INFO_PREFIX = "partita."

EXTENSION = "partita.extension"
"""Where an operation whose operator is an application's own has it, in the node's ``meta``."""


class RuntimeInfo(MutableMapping[str, str]):
    """Notes on an operation, kept in the node's metadata so that they survive ``model.save()``."""

    def __init__(self, metadata: MutableMapping[str, str]) -> None:
        self._metadata = metadata

    def __getitem__(self, key: str) -> str:
        return self._metadata[_RT_INFO_PREFIX + key]

    def __setitem__(self, key: str, value: object) -> None:
        self._metadata[_RT_INFO_PREFIX + key] = str(value)

    def __delitem__(self, key: str) -> None:
        del self._metadata[_RT_INFO_PREFIX + key]

    def __iter__(self) -> Iterator[str]:
        start = len(_RT_INFO_PREFIX)
        return (key[start:] for key in self._metadata if key.startswith(_RT_INFO_PREFIX))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Op:
    """One operation of a model: a view, valid as long as the model's graph is not edited.

    Also what operators of an application's own derive from, as those of OpenVINO's Python API do
    (:class:`partita.OpExtension` tells how):

    Example:
        >>> import partita as ov
        >>> class Double(ov.Op):
        ...     def __init__(self, inputs=None):
        ...         super().__init__(self, inputs)
        ...
        ...     def validate_and_infer_types(self):
        ...         shape = self.get_input_partial_shape(0)
        ...         self.set_output_type(0, self.get_input_element_type(0), shape)
        ...
        ...     def evaluate(self, outputs, inputs):
        ...         outputs[0].copy_from(inputs[0])
        ...         outputs[0].data[:] *= 2
        ...         return True
        >>> ov.Core().add_extension(Double)

    Args:
        node: The ``onnx_ir.Node``; an operator of an application's own hands in itself, and gets
            the node later.
        inputs: Of such an operator: nothing; it is written into models that are read.

    Attributes:
        node: The ``onnx_ir.Node`` itself.
    """

    __slots__ = ("node",)

    def __init__(self, node: ir.Node | Op, inputs: Any = None) -> None:
        if inputs:
            raise ModelError(
                f"{type(self).__name__} takes no inputs: custom operators are computed in models "
                "that are read, and cannot be written into graphs."
            )
        if not isinstance(node, Op):
            self.node = node

    @property
    def name(self) -> str:
        """The friendly name, unique in the model."""
        return self.node.name or ""

    @property
    def op_type(self) -> str:
        """The operator, e.g. ``"Conv"``."""
        return self.node.op_type

    @property
    def domain(self) -> str:
        """The operator's domain; ``""`` is ONNX's own."""
        return self.node.domain

    @property
    def version(self) -> int:
        """The opset version that the model imports for the domain."""
        if self.node.version is not None:
            return self.node.version
        graph = self.node.graph
        return 1 if graph is None else graph.opset_imports.get(self.node.domain, 1)

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Names of the values read; ``None`` for an omitted optional input."""
        return tuple(None if value is None else value.name for value in self.node.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values written; empty for an omitted optional output."""
        return tuple(value.name or "" for value in self.node.outputs)

    @property
    def rt_info(self) -> RuntimeInfo:
        """Notes on the operation; ``rt_info["affinity"]`` pins it to a device."""
        return RuntimeInfo(self.node.metadata_props)

    @property
    def affinity(self) -> str | None:
        """The device that the operation is pinned to, or ``None``."""
        return self.node.metadata_props.get(_RT_INFO_PREFIX + "affinity")

    @affinity.setter
    def affinity(self, device: str | None) -> None:
        if device is None:
            self.rt_info.pop("affinity", None)
        else:
            self.rt_info["affinity"] = device

    @property
    def friendly_name(self) -> str:
        """The friendly name (OpenVINO's spelling of :attr:`name`)."""
        return self.name

    def get_friendly_name(self) -> str:
        """The friendly name (OpenVINO's spelling of :attr:`name`)."""
        return self.name

    def get_type_name(self) -> str:
        """The operator (OpenVINO's spelling of :attr:`op_type`)."""
        return self.op_type

    def get_rt_info(self) -> RuntimeInfo:
        """The notes (OpenVINO's spelling of :attr:`rt_info`)."""
        return self.rt_info

    def get_name(self) -> str:
        """The friendly name (OpenVINO's spelling of :attr:`name`)."""
        return self.name

    def set_friendly_name(self, name: str) -> None:
        """Renames the operation; keep names unique in the model."""
        self.node.name = name

    def get_input_size(self) -> int:
        """Number of inputs."""
        return len(self.node.inputs)

    def get_output_size(self) -> int:
        """Number of outputs."""
        return len(self.node.outputs)

    def input_value(self, index: int) -> OpOutput:
        """The value that an input reads, as an output of its producer.

        Raises:
            ModelError: There is no such input, or it is omitted.
        """
        return OpOutput.of_value(self._value(self.node.inputs, index, "input"))

    def input(self, index: int) -> OpInput:
        """The input itself, with the type and shape of the value that it reads.

        Use :attr:`node` to edit the graph.

        Raises:
            ModelError: There is no such input, or it is omitted.
        """
        return OpInput.of_reader(self, index, self._value(self.node.inputs, index, "input"))

    def output(self, index: int = 0) -> OpOutput:
        """The value that an output writes.

        Raises:
            ModelError: There is no such output.
        """
        return OpOutput.of_value(self._value(self.node.outputs, index, "output"))

    def get_input_element_type(self, index: int) -> Type:
        """The element type of an input."""
        return self.input_value(index).element_type

    def get_input_partial_shape(self, index: int) -> PartialShape:
        """The dimensions of an input."""
        return self.input_value(index).partial_shape

    def get_input_shape(self, index: int) -> Shape:
        """The sizes of an input; raises ``ModelError`` if some are not known."""
        return self.input_value(index).get_shape()

    def get_output_element_type(self, index: int) -> Type:
        """The element type of an output."""
        return self.output(index).element_type

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """The dimensions of an output."""
        return self.output(index).partial_shape

    def get_output_shape(self, index: int) -> Shape:
        """The sizes of an output; raises ``ModelError`` if some are not known."""
        return self.output(index).get_shape()

    def set_output_type(self, index: int, element_type: Any, shape: Any) -> None:
        """Sets element type and shape of an output; custom operators use it to infer them.

        Args:
            index: Of the output.
            element_type: A `Type`, or what makes one: a numpy dtype, a name like ``"f32"``.
            shape: A `PartialShape`, or what makes one.

        Raises:
            ModelError: There is no such output, or the type or shape is invalid.
        """
        import onnx_ir as ir

        self.output(index)
        value = self.node.outputs[index]
        value.type = ir.TensorType(ir.DataType.from_numpy(Type(element_type).dtype))
        dims = PartialShape(shape)
        value.shape = None if dims.rank.is_dynamic else ir.Shape([dim.size for dim in dims])

    def get_attributes(self) -> dict[str, Any]:
        """The attributes by name, without bodies."""
        kinds = ("GRAPH", "GRAPHS")
        given = self.node.attributes.values()
        return {one.name: one.value for one in given if one.type.name not in kinds}

    def _value(self, values: Sequence[ir.Value | None], index: int, kind: str) -> ir.Value:
        found = values[index] if 0 <= index < len(values) else None
        if found is None:
            raise ModelError(f"{self!r} has {len(values)} {kind}s; there is no {kind} {index}.")
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and other.node is self.node

    def __hash__(self) -> int:
        return hash(self.node)

    def __repr__(self) -> str:
        return f"<Op {self.name!r} {self.domain + '::' if self.domain else ''}{self.op_type}>"


@dataclass(frozen=True, slots=True)
class OpOutput(Port):
    """A value: the output of an operation, or an input or a constant of the model."""

    @classmethod
    def of_value(cls, value: ir.Value) -> OpOutput:
        """The output for a value in a graph."""
        return cls(**_known(Port.of(value.index() or 0, value, False)), value=value)

    @property
    def node(self) -> Op | PortNode:  # type: ignore[override]  # of what is within a model
        """The operation that computes it, or the model's parameter or constant."""
        value = self._noted()
        producer = value.producer()
        if producer is not None:
            return Op(producer)
        return PortNode(Port.of(0, value, value.is_graph_input()))

    def get_node(self) -> Op | PortNode:  # type: ignore[override]
        """The producer (OpenVINO's spelling of :attr:`node`)."""
        return self.node

    def get_index(self) -> int:
        """Index among the outputs of its operation (OpenVINO's spelling)."""
        return self.index

    def get_target_inputs(self) -> set[OpInput]:
        """The inputs of operations that read it."""
        value = self._noted()
        return {OpInput.of_reader(Op(use.node), use.idx, value) for use in value.uses()}


@dataclass(frozen=True, slots=True)
class OpInput(Port):
    """An input of an operation, with the type and shape of the value that it reads.

    Attributes:
        reader: The operation.
    """

    reader: Op | None = None

    @classmethod
    def of_reader(cls, reader: Op, index: int, value: ir.Value) -> OpInput:
        """An input that reads a value."""
        return cls(**_known(Port.of(index, value, True)), value=value, reader=reader)

    @property
    def node(self) -> Op:  # type: ignore[override]  # of what is within a model
        """The operation whose input it is."""
        assert self.reader is not None  # noqa: S101  # all are made by of_reader()
        return self.reader

    def get_node(self) -> Op:  # type: ignore[override]
        """The operation whose input it is (OpenVINO's spelling)."""
        return self.node

    def get_index(self) -> int:
        """Which input of its operation it is (OpenVINO's spelling)."""
        return self.index

    def get_source_output(self) -> OpOutput:
        """What it reads, as an output of whatever makes that."""
        return OpOutput.of_value(self._noted())


def _known(port: Port) -> dict[str, Any]:
    """All of a port but its value."""
    names = ("index", "name", "dtype", "shape", "is_input", "aliases", "bounds")
    return {name: getattr(port, name) for name in names}
