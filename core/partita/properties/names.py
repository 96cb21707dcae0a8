"""The property object: a key that is a string, and that called with a value gives the pair."""

from __future__ import annotations

from typing import Any


class Property(str):
    """The name of a property.

    Example:
        >>> PERF = Property("PERF_COUNT")
        >>> PERF(True)
        ('PERF_COUNT', True)
        >>> {PERF: "YES"}["PERF_COUNT"]
        'YES'
    """

    __slots__ = ()

    def __call__(self, *values: Any) -> Any:
        """With a value the ``(key, value)`` pair; without, the key."""
        if not values:
            return str(self)
        return str(self), values[0]
