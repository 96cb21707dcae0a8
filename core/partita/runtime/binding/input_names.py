"""Which input of a model is meant by what an application gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import InputError
from partita.model.port import Port, PortNode
from partita.runtime.binding.input_conversion import Array
from partita.tensors.tensor import Tensor

if TYPE_CHECKING:
    from partita.runtime.compiled_facts import CompiledFacts

Inputs = Mapping[Any, Any] | Sequence[Any] | Array | Tensor | None
"""Tensors by name, index or port; a list in order; one tensor; or none (those set before)."""


class InputNames:
    """The inputs of a compiled model by name, index and port.

    Args:
        compiled: The model.

    Attributes:
        indices: By name, or another name of the same tensor, the input's index.
    """

    def __init__(self, compiled: CompiledFacts) -> None:
        self._compiled = compiled
        self._ports = compiled.inputs
        self.indices = {alias: p.index for p in compiled.inputs for alias in p.aliases}
        self.indices.update((port.name, port.index) for port in compiled.inputs)
        variables = compiled.model.variables
        feedback = {name for one in variables for name in (one.read, one.begun)}
        self._asked = sum(port.name not in feedback for port in compiled.inputs)

    def pairs(self, inputs: Inputs) -> Iterable[tuple[int, Any]]:
        """Index and data of each input that is given.

        Raises:
            InputError: An unknown name or index, or more inputs than the model has.
        """
        if type(inputs) is dict or isinstance(inputs, Mapping):
            indices = self.indices
            return [
                (indices[key] if type(key) is str and key in indices else self.index(key), data)
                for key, data in inputs.items()
            ]
        if self._asked == 1 and _is_one_list(inputs):
            return ((0, inputs),)
        if isinstance(inputs, (list, tuple)) and len(inputs) <= len(self._ports):
            return enumerate(inputs)
        if self._asked == 1 and not isinstance(inputs, (list, tuple)):
            return ((0, inputs),)
        given = f"{len(inputs)} were" if isinstance(inputs, (list, tuple)) else "one was"
        raise InputError(
            f"{self._compiled!r} takes {self._asked} inputs ({self._expected()}); {given} "
            "given. Give a dict of name to array."
        )

    def index(self, key: Any) -> int:
        """The index of the input that a name, index or port stands for.

        Raises:
            InputError: There is none; names those that there are.
        """
        if isinstance(key, (Port, PortNode)):
            key = key.name
        if isinstance(key, str):
            index = self.indices.get(key)
            if index is not None:
                return index
        elif isinstance(key, (int, np.integer)) and -len(self._ports) <= key < len(self._ports):
            return int(key) % len(self._ports)
        hint = self._compiled.model.constant_hint(key)
        raise InputError(
            f"{self._compiled!r} has no input {key!r}; it takes {self._expected()}.{hint}"
        )

    def _expected(self) -> str:
        ports = self._ports
        return ", ".join(f"'{port.name}' {port.describe()}" for port in ports) or "none"


def _is_one_list(inputs: Any) -> bool:
    """Whether a list holds elements, or rows of elements: numbers or texts, and no arrays."""
    if not isinstance(inputs, list) or not inputs:
        return False
    rows = inputs if all(isinstance(row, list) for row in inputs) else [inputs]
    return all(isinstance(x, (int, float, str, bytes, np.generic)) for row in rows for x in row)
