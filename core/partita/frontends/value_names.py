"""Names of values in a graph that is being written: each is there once."""

from __future__ import annotations


def unused_name(name: str, taken: set[str], joint: str = "/") -> str:
    """The name, or one like it with a number behind it, that is not taken; from now on it is.

    Args:
        name: What it should be.
        taken: The names of the graph; the new one is added.
        joint: What stands before the number.
    """
    found, count = name, 0
    while found in taken:
        count += 1
        found = f"{name}{joint}{count}"
    taken.add(found)
    return found
