"""What translators of all formats do at one operator: read constants, write operations."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.errors import ModelFormatError, PartitaError

if TYPE_CHECKING:
    import onnx_ir as ir

FULL = np.iinfo(np.int64).max
"""As the end of a slice: up to the end of the axis."""


class OperationSite(ABC):
    """The place of one operator of a file in the ONNX graph that is being made."""

    @abstractmethod
    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """The constant at an input, or ``None`` where it is computed."""

    @abstractmethod
    def write(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: int,
    ) -> list[ir.Value]:
        """Writes an operation, named after the operator of the file.

        Args:
            op_type: An ONNX operator.
            inputs: What it reads; ``None`` where an optional input is left out.
            attributes: Its attributes, as Python values; none of them is ``None``.
            outputs: How many values it makes.

        Returns:
            The values that it makes.
        """

    @abstractmethod
    def error(self, what: str) -> ModelFormatError:
        """The error of an operator that cannot be translated, which names it."""

    def known(self, index: int) -> np.ndarray[Any, Any]:
        """The constant at an input.

        Raises:
            ModelFormatError: It is computed; the translation needs it beforehand.
        """
        array = self.constant(index)
        if array is None:
            raise self.error(f"input {index} must be a constant")
        return array

    def emit(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Writes an operation of one output; attributes that are ``None`` are left out."""
        return self.emit_many(op_type, 1, *inputs, **attributes)[0]

    def emit_many(
        self, op_type: str, outputs: int, *inputs: ir.Value | None, **attributes: Any
    ) -> list[ir.Value]:
        """Writes an operation of several outputs.

        Args:
            op_type: An ONNX operator.
            outputs: How many values it makes.
            inputs: What it reads; ``None`` where an optional input is left out.
            attributes: Its attributes; those that are ``None`` are left out.
        """
        while inputs and inputs[-1] is None:  # an empty name there counts as an input for some
            inputs = inputs[:-1]
        given = {key: value for key, value in attributes.items() if value is not None}
        return self.write(op_type, inputs, given, outputs)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of an axis, as int64[1]."""
        return self.emit("Shape", value, start=axis, end=axis + 1 if axis != -1 else None)


@contextlib.contextmanager
def blamed_on(operator: object, misfit: str, *others: type[Exception]) -> Iterator[None]:
    """Lets errors that come of too few inputs or impossible attributes name the operator.

    Args:
        operator: What is translated; its text names it.
        misfit: What does not fit then.
        others: Errors that the format's own reading raises.

    Raises:
        ModelFormatError: In place of such an error.
    """
    misfits: tuple[type[Exception], ...] = (LookupError, ArithmeticError, ValueError, *others)
    try:
        yield
    except PartitaError:
        raise
    except misfits as error:
        raise ModelFormatError(
            f"{operator} cannot be translated: {misfit} ({type(error).__name__}: {error})"
        ) from error
