"""Ports: the inputs and outputs of models, by name, type and shape."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from partita.errors import ModelError, ModelFormatError
from partita.shapes.dimension import Dimension
from partita.shapes.layout import Layout
from partita.shapes.partial_shape import PartialShape
from partita.shapes.shape import Shape
from partita.tensors.element_type import Type

if TYPE_CHECKING:
    import onnx_ir as ir

Dim = int | str | None
"""One dimension: a size, the name of a symbol, or ``None`` if it is unknown."""

Bounds = tuple[int, int | None]
"""The least and the largest size of a dimension."""

_NAMES = "partita.names"
_BOUNDS = "partita.bounds"
_EXAMPLE = "partita.example"
_LAYOUT = "partita.layout"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model or compiled model.

    Attributes:
        index: Position among the inputs or outputs.
        name: The ONNX value name.
        dtype: Element type, or ``None`` if it is unknown or the value is no tensor.
        shape: Dimensions, or ``None`` if the rank is unknown.
        is_input: Whether it is an input.
        aliases: Other names by which it is found.
        bounds: Least and largest size of each dimension, by axis; empty if none is bounded.
        example: A shape that a tensor of it may have, where somebody has noted one; those of a
            model's inputs fit each other. For trials: requests need not have it.
        value: The value in the model's graph; for a compiled model, in the graph of its copy.
    """

    index: int
    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[Dim, ...] | None
    is_input: bool = True
    aliases: tuple[str, ...] = field(default=(), compare=False)
    bounds: tuple[Bounds | None, ...] = field(default=(), compare=False)
    example: tuple[int, ...] | None = field(default=None, compare=False)
    value: ir.Value | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(index: int, value: ir.Value, is_input: bool) -> Port:
        """The port of a graph's input or output.

        Args:
            index: Its place among the inputs or the outputs.
            value: The graph's value.
            is_input: Whether it is an input.

        Raises:
            ModelFormatError: What the model notes on its names and sizes is damaged.
        """
        import onnx_ir as ir

        name, notes = value.name or "", value.metadata_props
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return Port(index, name, None, None, is_input)  # a sequence or an optional value
        dtype, shape = numpy_dtype(value.dtype), value_shape(value)
        if not notes:
            return Port(index, name, dtype, shape, is_input, value=value)
        try:
            aliases = tuple(map(str, json.loads(notes.get(_NAMES, "[]"))))
            bounds = _still_open(json.loads(notes.get(_BOUNDS, "[]")), shape)
            example = tuple(map(int, json.loads(notes.get(_EXAMPLE, "[]"))))
        except (TypeError, ValueError) as error:
            raise ModelFormatError(
                f"The notes on '{name}' in the model's metadata are damaged: {error}"
            ) from error
        port = Port(index, name, dtype, shape, is_input, aliases, bounds, value=value)
        fits = _EXAMPLE in notes and port.takes(example)
        return replace(port, example=example) if fits else port

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return is_static(self.shape)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether the port accepts a tensor of the shape."""
        due = self.shape
        if due is None or shape == due:
            return True
        if len(shape) != len(due):
            return False
        for have, want in zip(shape, due, strict=True):
            if have != want and isinstance(want, int):
                return False
        if not self.bounds:
            return True
        for have, allowed in zip(shape, self.bounds, strict=False):
            if allowed is None:
                continue
            least, most = allowed
            if have < least or (most is not None and have > most):
                return False
        return True

    @property
    def names(self) -> set[str]:
        """All names by which it is found."""
        return {self.name, *self.aliases}

    @property
    def any_name(self) -> str:
        """The name (OpenVINO's spelling)."""
        return self.name

    @property
    def partial_shape(self) -> PartialShape:
        """The dimensions with their bounds and symbols, as a copy."""
        if self.shape is None:
            return PartialShape.dynamic()
        bounds = self.bounds or (None,) * len(self.shape)
        return PartialShape(map(_dimension, self.shape, bounds))

    @property
    def element_type(self) -> Type:
        """The element type by OpenVINO's name; ``Type.dynamic`` if it is unknown."""
        return Type(self.dtype)

    @property
    def layout(self) -> Layout:
        """The names of the dimensions, if they were set."""
        return Layout("" if self.value is None else self.value.metadata_props.get(_LAYOUT, ""))

    @property
    def node(self) -> PortNode:
        """The parameter or result node that the port belongs to."""
        return PortNode(self)

    @property
    def tensor(self) -> Port:
        """The port itself, which has the attributes of OpenVINO's descriptor tensor."""
        return self

    def set_layout(self, layout: Layout | str) -> None:
        """Sets the names of the dimensions."""
        named = layout if isinstance(layout, Layout) else Layout(layout)
        self._noted().metadata_props[_LAYOUT] = str(named)

    def set_names(self, names: Iterable[str]) -> None:
        """Sets the names by which the model's port is found, besides its ONNX name.

        ``Port`` objects and compiled models that exist already are not affected.
        """
        note_names(self._noted(), {str(name) for name in names} - {self.name})

    def add_names(self, names: Iterable[str]) -> None:
        """Adds names by which the model's port is found."""
        notes = self._noted().metadata_props
        self.set_names({*json.loads(notes.get(_NAMES, "[]")), *names})

    def _noted(self) -> ir.Value:
        if self.value is None:
            raise ModelError(f"Port '{self.name}' is of no graph that could keep notes on it.")
        return self.value

    def get_any_name(self) -> str:
        """The name (OpenVINO's spelling)."""
        return self.name

    def get_names(self) -> set[str]:
        """All names by which it is found (OpenVINO's spelling)."""
        return self.names

    def get_index(self) -> int:
        """Index of the port among its node's outputs, always 0 (OpenVINO's spelling)."""
        return 0

    def get_node(self) -> PortNode:
        """The parameter or result node that the port belongs to (OpenVINO's spelling)."""
        return self.node

    def get_tensor(self) -> Port:
        """Itself (OpenVINO's spelling of :attr:`tensor`)."""
        return self

    def get_shape(self) -> Shape:
        """The sizes (OpenVINO's spelling).

        Raises:
            ModelError: Some are not known.
        """
        return self.partial_shape.to_shape()

    def get_partial_shape(self) -> PartialShape:
        """The dimensions (OpenVINO's spelling)."""
        return self.partial_shape

    def get_element_type(self) -> Type:
        """The element type (OpenVINO's spelling of :attr:`element_type`)."""
        return self.element_type

    @property
    def rt_info(self) -> dict[str, str]:
        """Notes on the port: its layout, if it was set."""
        return {} if self.layout.empty else {"layout": str(self.layout)}

    def get_rt_info(self) -> dict[str, str]:
        """Notes on the port (OpenVINO's spelling)."""
        return self.rt_info

    def describe(self) -> str:
        """Type and shape as a person reads them: ``float32[1, 3, H, W]``."""
        dims = "..." if self.shape is None else ", ".join(map(str, self.partial_shape))
        return f"{self.dtype if self.dtype is not None else 'unknown type'}[{dims}]"


class PortNode:
    """The node at an end of a model: ``Parameter`` for an input, ``Result`` for an output.

    ONNX has no such nodes; code written for OpenVINO asks them for names, types and shapes.

    Attributes:
        port: The port itself.
    """

    __slots__ = ("port",)

    def __init__(self, port: Port) -> None:
        self.port = port

    @property
    def name(self) -> str:
        """The port's name."""
        return self.port.name

    friendly_name = name

    @property
    def element_type(self) -> Type:
        """The element type."""
        return self.port.element_type

    @property
    def partial_shape(self) -> PartialShape:
        """The dimensions."""
        return self.port.partial_shape

    @property
    def shape(self) -> Shape:
        """The sizes; raises ``ModelError`` if some are not known."""
        return self.port.get_shape()

    @property
    def layout(self) -> Layout:
        """The names of the dimensions, if they were set."""
        return self.port.layout

    @layout.setter
    def layout(self, layout: Layout | str) -> None:
        self.port.set_layout(layout)

    def get_name(self) -> str:
        """The port's name (OpenVINO's spelling)."""
        return self.name

    def get_friendly_name(self) -> str:
        """The port's name (OpenVINO's spelling)."""
        return self.name

    def get_type_name(self) -> str:
        """``"Parameter"``, ``"Result"``, or ``"Constant"`` for what a model's operations read."""
        value = self.port.value
        if not self.port.is_input and value is not None and value.is_initializer():
            return "Constant"
        return "Parameter" if self.port.is_input else "Result"

    def get_element_type(self) -> Type:
        """The element type (OpenVINO's spelling)."""
        return self.element_type

    def get_partial_shape(self) -> PartialShape:
        """The dimensions (OpenVINO's spelling)."""
        return self.partial_shape

    def get_layout(self) -> Layout:
        """The names of the dimensions (OpenVINO's spelling)."""
        return self.layout

    def set_layout(self, layout: Layout | str) -> None:
        """Notes the names of the dimensions (OpenVINO's spelling)."""
        self.port.set_layout(layout)

    def output(self, index: int = 0) -> Port:
        """The port itself, which is its one output."""
        if index:
            raise ModelError(f"{self!r} has one output; there is no output {index}.")
        return self.port

    def outputs(self) -> list[Port]:
        """The port itself, in a list."""
        return [self.port]

    def get_output_size(self) -> int:
        """1."""
        return 1

    def get_output_element_type(self, index: int = 0) -> Type:
        """The element type."""
        return self.output(index).element_type

    def get_output_partial_shape(self, index: int = 0) -> PartialShape:
        """The dimensions."""
        return self.output(index).partial_shape

    def get_output_shape(self, index: int = 0) -> Shape:
        """The sizes; raises ``ModelError`` if some are not known."""
        return self.output(index).get_shape()

    def get_rt_info(self) -> dict[str, str]:
        """Notes on the port."""
        return self.port.rt_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PortNode) and other.port == self.port

    def __hash__(self) -> int:
        return hash(self.port)

    def __repr__(self) -> str:
        return f"<{self.get_type_name()} {self.name!r} {self.port.describe()}>"


def find_port(ports: Sequence[Port], key: Any, owner: str) -> Port:
    """The port of an index or name; a port, or the end of a model, stands for its own name.

    ``None`` stands for the only port.

    Raises:
        ModelError: There is none, or ``key`` is ``None`` and there are several; the message lists
            those there are.
    """
    kind = "input" if not ports or ports[0].is_input else "output"
    if key is None:
        if len(ports) > 1:
            named = ", ".join(f"'{port.name}'" for port in ports)
            raise ModelError(f"{owner} has {len(ports)} {kind}s ({named}); say which.")
        key = 0
    if isinstance(key, (Port, PortNode)):
        key = key.name
    if isinstance(key, str):
        for port in ports:
            if port.name == key:
                return port
        for port in ports:
            if key in port.aliases:
                return port
        known = ", ".join(f"'{port.name}'" for port in ports)
        raise ModelError(f"{owner} has no {kind} '{key}'; it has {known or 'none'}.")
    if not isinstance(key, (int, np.integer)):
        raise ModelError(f"{owner} finds {kind}s by index, name or port; found {key!r}.")
    if not -len(ports) <= key < len(ports):
        raise ModelError(f"{owner} has {len(ports)} {kind}s; there is no {kind} {key}.")
    return ports[int(key)]


def numpy_dtype(dtype: ir.DataType | None) -> np.dtype[Any] | None:
    """The numpy type of an ONNX element type; ``None`` for unknown and for undefined."""
    # By number: an enumeration's hash is computed in Python.
    return None if dtype is None else _numpy_dtype(int(dtype))


@functools.cache  # there are some thirty, and a model has thousands of values
def _numpy_dtype(number: int) -> np.dtype[Any] | None:
    import onnx_ir as ir

    dtype = ir.DataType(number)
    if dtype.name == "UNDEFINED":
        return None
    if dtype.name == "STRING":
        return np.dtype(object)
    return np.dtype(dtype.numpy())


def value_shape(value: ir.Value) -> tuple[Dim, ...] | None:
    """The dimensions of a graph value; symbols by name, unknown ones as ``None``."""
    shape = value.shape
    if shape is None:
        return None
    return tuple([dim if isinstance(dim, int) else dim.value for dim in shape.dims])


def is_static(shape: tuple[Dim, ...] | None) -> TypeGuard[tuple[int, ...]]:
    """Whether every dimension of a shape is a number."""
    return shape is not None and all(isinstance(dim, int) for dim in shape)


def _dimension(dim: Dim, allowed: Bounds | None) -> Dimension:
    """A dimension with its bounds and its symbol, which may be any text."""
    if isinstance(dim, int):
        return Dimension(dim)
    low, high = allowed or (0, None)
    found = Dimension(low, -1 if high is None else high)
    if dim is not None:
        found.set_symbol(dim)
    return found


def note_names(value: ir.Value, names: Iterable[str]) -> None:
    """Notes by which other names an input or output is found."""
    value.metadata_props[_NAMES] = json.dumps(sorted(names))


def note_bounds(value: ir.Value, bounds: Sequence[Bounds | None]) -> None:
    """Notes between which sizes the dimensions of an input have to stay."""
    if any(bounds):
        value.metadata_props[_BOUNDS] = json.dumps(bounds)
    else:
        value.metadata_props.pop(_BOUNDS, None)


def note_example(value: ir.Value, shape: Sequence[int]) -> None:
    """Notes a shape that tensors of an input may have."""
    value.metadata_props[_EXAMPLE] = json.dumps(list(shape))


def _still_open(noted: Sequence[Any], shape: tuple[Dim, ...] | None) -> tuple[Bounds | None, ...]:
    """The bounds that were noted, of dimensions that have no size by now."""
    if shape is None or len(noted) != len(shape):
        return ()
    found: list[Bounds | None] = []
    for allowed, dim in zip(noted, shape, strict=True):
        if allowed is None or isinstance(dim, int):
            found.append(None)
        else:
            low, high = allowed
            found.append((int(low), None if high is None else int(high)))
    return tuple(found) if any(found) else ()
