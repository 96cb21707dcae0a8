"""Names of values in a graph that is being written: each is there once."""

from __future__ import annotations

from collections.abc import Iterable


class TakenNames:
    """The names of a graph.

    Args:
        names: Those that are taken already.

    Example:
        >>> names = TakenNames(["x"])
        >>> names.fresh("x"), names.fresh("x"), names.fresh("y")
        ('x/1', 'x/2', 'y')
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._last = dict.fromkeys(names, 0)  # the number that was put behind each last

    def take(self, names: Iterable[str]) -> None:
        """Keeps these names from being given out."""
        for name in names:
            self._last.setdefault(name, 0)

    def fresh(self, name: str, joint: str = "/") -> str:
        """The name, or one like it with a number behind it, that is not taken; now it is.

        A file may give all its values one name: numbers that were tried are not tried again.

        Args:
            name: What it should be.
            joint: What stands before the number.
        """
        found = name
        while found in self._last:
            self._last[name] += 1
            found = f"{name}{joint}{self._last[name]}"
        self._last[found] = 0
        return found
