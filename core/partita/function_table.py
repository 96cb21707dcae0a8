"""Tables of functions by name, which decorators fill."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_F = TypeVar("_F")


def entered_in(table: dict[str, _F], *names: str) -> Callable[[_F], _F]:
    """A decorator that enters a function into a table under some names.

    Args:
        table: What is written to; what it has under one of these names is replaced.
        names: Mostly types of operators.
    """

    def enter(function: _F) -> _F:
        table.update(dict.fromkeys(names, function))
        return function

    return enter
