"""What a TFLite or circle file holds: subgraphs of tensors and operators, and signatures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.frontends.tflite.sparse import Sparsity


@dataclass(frozen=True, slots=True)
class Quantization:
    """What the levels of a tensor stand for: ``scale * (level - zero_point)``.

    Attributes:
        scale: One number, or one for each index of an axis.
        zero_point: As many whole numbers.
        axis: The axis.
    """

    scale: np.ndarray[Any, Any]
    zero_point: np.ndarray[Any, Any]
    axis: int

    def equals(self, other: Quantization | None) -> bool:
        """Whether levels stand for the same numbers."""
        return (
            other is not None
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
            and (self.scale.size == 1 or self.axis == other.axis)
        )


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a subgraph.

    Attributes:
        index: Its place in the subgraph.
        name: Its name, which need not be unique.
        dims: Sizes; -1 is unknown.
        type: Number of the element type in the schema.
        data: The bytes of a constant, a view of the file; ``None`` where it is computed.
        quantization: What its levels stand for, if it is quantised.
        is_variable: Whether it keeps its elements from run to run.
        sparsity: Where its elements belong, if only some are kept.
    """

    index: int
    name: str
    dims: tuple[int, ...]
    type: int
    data: memoryview | None
    quantization: Quantization | None
    is_variable: bool
    sparsity: Sparsity | None

    def __str__(self) -> str:
        return f"tensor {self.index} '{self.name}'"

    @property
    def label(self) -> str:
        """What its value is called: its name, or a made-up one."""
        return self.name or f"tensor_{self.index}"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a subgraph.

    Attributes:
        index: Its place in the subgraph.
        code: What it does: a name of the schema, or that of a custom operator.
        is_custom: Whether it is a custom operator.
        inputs: Places of tensors; -1 where one is left out.
        outputs: Places of tensors.
        options: The reader of its options, or ``None``.
        custom_options: The bytes of the options of a custom operator.
        label: What messages call it.
    """

    index: int
    code: str
    is_custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom_options: bytes
    label: str

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A graph of a file: the model, or what control flow calls.

    Attributes:
        name: Its name, or a made-up one.
        tensors: All tensors.
        inputs: Places of those that are given.
        outputs: Places of those that are returned.
        operators: In the order in which they run.
    """

    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]

    @property
    def entries(self) -> int:
        """What is to be done to follow it: operators, and tensors that these and it name."""
        lists = (end for each in self.operators for end in (each.inputs, each.outputs))
        return len(self.operators) + sum(map(len, (self.inputs, self.outputs, *lists)))


@dataclass(frozen=True, slots=True)
class Signature:
    """A way to call a model, with names of its own for what is given and returned.

    Attributes:
        subgraph: The place of the subgraph that is called.
        inputs: Name to the place of a tensor.
        outputs: Name to the place of a tensor.
    """

    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
