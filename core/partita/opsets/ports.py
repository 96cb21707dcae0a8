"""Outputs and inputs of nodes of a graph that is being written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from partita.errors import ModelError
from partita.opsets.arithmetic import Arithmetic
from partita.shapes.partial_shape import PartialShape
from partita.shapes.shape import Shape
from partita.tensors.element_type import Type


class Maker(Protocol):
    """What ports ask of the node that they are of."""

    name: str

    def arithmetic(self, element_type: Type, layer: str, sides: Sequence[Any]) -> Any:
        """A node that computes from some sides, one of which is an output of this node."""

    def model_to(self, results: Sequence[Any], parameters: Sequence[Any], name: str) -> Any:
        """The model that computes results from parameters."""

    def input_value(self, index: int) -> Any:
        """What an input reads."""

    def replace_input(self, index: int, source: Any) -> None:
        """Makes an input read something else."""


N = TypeVar("N", bound=Maker)
"""The class of nodes."""


class _End(Generic[N]):
    """What an output and an input of a node are asked for alike."""

    __slots__ = ()

    node: N
    index: int

    if TYPE_CHECKING:  # a field of the one, and what the other one reads

        @property
        def element_type(self) -> Type: ...

        @property
        def partial_shape(self) -> PartialShape: ...

    @property
    def shape(self) -> Shape:
        """The sizes; raises ``ModelError`` if some are not known."""
        return self.partial_shape.to_shape()

    def get_node(self) -> N:
        """The node (OpenVINO's spelling)."""
        return self.node

    def get_index(self) -> int:
        """Which of the node's outputs or inputs it is (OpenVINO's spelling)."""
        return self.index

    def get_element_type(self) -> Type:
        """The element type (OpenVINO's spelling)."""
        return self.element_type

    def get_partial_shape(self) -> PartialShape:
        """The dimensions (OpenVINO's spelling)."""
        return self.partial_shape

    def get_shape(self) -> Shape:
        """The sizes (OpenVINO's spelling); raises ``ModelError`` if some are not known."""
        return self.shape


@dataclass(eq=False, slots=True)
class Output(_End[N], Arithmetic[N]):
    """One output of a node.

    Attributes:
        node: The node.
        index: Which of its outputs.
        element_type: The type of its elements.
        partial_shape: Its dimensions.
        names: The names that its tensor will have in a model.
    """

    node: N
    index: int
    element_type: Type
    partial_shape: PartialShape
    names: set[str] = field(default_factory=set)

    @property
    def tensor(self) -> Output[N]:
        """Itself: what OpenVINO keeps at an output's tensor is here."""
        return self

    def set_names(self, names: Iterable[str]) -> None:
        """Sets the names that the tensor will have in a model."""
        self.names = set(names)

    def add_names(self, names: Iterable[str]) -> None:
        """Adds names that the tensor will have in a model."""
        self.names |= set(names)

    def get_names(self) -> set[str]:
        """The names (OpenVINO's spelling)."""
        return self.names

    def get_tensor(self) -> Output[N]:
        """Itself (OpenVINO's spelling of :attr:`tensor`)."""
        return self

    def model_to(self, results: Sequence[Any], parameters: Sequence[Any], name: str) -> Any:
        """The model that computes results from parameters, as :meth:`Node.model_to`."""
        return self.node.model_to(results, parameters, name)

    def _operation(self, layer: str, *sides: Any) -> N:
        made: N = self.node.arithmetic(self.element_type, layer, sides)
        return made

    def __repr__(self) -> str:
        return (
            f"<Output {self.index} of {self.node.name!r}: {self.element_type}{self.partial_shape}>"
        )


@dataclass(frozen=True, slots=True)
class Input(_End[N]):
    """One input of a node, with the type and shape of what it reads.

    Attributes:
        node: The node.
        index: Which of its inputs.
    """

    node: N
    index: int

    def get_source_output(self) -> Output[N]:
        """What it reads."""
        read: Output[N] = self.node.input_value(self.index)
        return read

    def replace_source_output(self, new_source_output: Output[N]) -> None:
        """Makes it read something else.

        Types and shapes of the node's outputs follow at once, those behind it when a model is made.

        Raises:
            ModelError: It does not fit the node, is computed from it, or is no output.
        """
        if not isinstance(new_source_output, Output):
            raise ModelError(
                f"An input reads an output of a node, as node.output(0); found "
                f"{new_source_output!r}."
            )
        self.node.replace_input(self.index, new_source_output)

    @property
    def element_type(self) -> Type:
        """The type of the elements that it reads."""
        return self.get_source_output().element_type

    @property
    def partial_shape(self) -> PartialShape:
        """The dimensions of what it reads."""
        return self.get_source_output().partial_shape

    def get_tensor(self) -> Output[N]:
        """What it reads, which stands for its tensor (OpenVINO's spelling)."""
        return self.get_source_output()
