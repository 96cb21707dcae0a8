"""Whose fault it is when an emitter cannot do with what an operation has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from partita.errors import CompileError, PartitaError
from partita.lowering.graph import Node

_MOST = 200
"""Letters of attributes that a message shows."""


@contextlib.contextmanager
def blamed_on(node: Node) -> Iterator[None]:
    """Lets errors that attributes or sizes lead to name the operation.

    A mode that a table lacks, a division by a size of 0, an infinite scale that becomes an integer:
    emitters need not look for each of them. What only a mistake in an emitter raises (TypeError,
    AttributeError, AssertionError) stays what it is: types are checked when a model is read.

    Raises:
        CompileError: In place of a LookupError, ArithmeticError or ValueError.
    """
    try:
        yield
    except PartitaError:
        raise
    except (LookupError, ArithmeticError, ValueError) as error:
        attributes = ", ".join(f"{name}={value!r}" for name, value in node.attrs.items())
        shown = attributes[:_MOST] + "..." * (len(attributes) > _MOST)
        raise CompileError(
            f"Operation '{node.name}' ({node.kind}) cannot be computed with "
            f"{f'attributes {shown}' if shown else 'its inputs'} "
            f"({type(error).__name__}: {error}); check its attributes and what it reads."
        ) from error
