"""Errors raised while an operation is emitted, completed by the operation that they are about."""

from __future__ import annotations

from partita.errors import CompileError, OperandError, PartitaError
from partita.lowering.graph import Node

_MOST = 200
"""Letters of attributes that a message shows."""


class blamed_on:  # noqa: N801 - reads as what it does; a generator takes three times as long
    """Lets errors that attributes or sizes lead to name the operation.

    A mode that a table lacks, a division by a size of 0, an infinite scale that becomes an integer:
    emitters need not look for each of them. What only a mistake in an emitter raises (TypeError,
    AttributeError, AssertionError) stays what it is: types are checked when a model is read.

    Args:
        node: The operation.

    Raises:
        OperandError: In place of an ArithmeticError or ValueError, which numbers lead to.
        CompileError: In place of a LookupError, which attributes lead to.
    """

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        """Nothing is done before."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raises what names the operation."""
        if error is None:
            return
        if isinstance(error, (LookupError, ArithmeticError, ValueError)) and not isinstance(
            error, PartitaError
        ):
            kind = CompileError if isinstance(error, LookupError) else OperandError
            raise kind(_described(self._node, error)) from error


def _described(node: Node, error: Exception) -> str:
    attributes = ", ".join(f"{name}={value!r}" for name, value in node.attrs.items())
    shown = attributes[:_MOST] + "..." * (len(attributes) > _MOST)
    return (
        f"Operation '{node.name}' ({node.model_kind}) cannot be computed with "
        f"{f'attributes {shown}' if shown else 'its inputs'} "
        f"({type(error).__name__}: {error}); check its attributes and what it reads."
    )
