"""Exceptions that end a walk early and say how the graph is to be walked again."""

from __future__ import annotations


class MoreValueInputs(Exception):  # noqa: N818 - a signal, not an error
    """Specialize again, with the elements of these inputs known."""

    def __init__(self, indices: set[int]) -> None:
        super().__init__()
        self.indices = indices


class MustFoldAll(Exception):  # noqa: N818 - a signal, not an error
    """Specialize again, and fold more: a node cannot do with what the run computes.

    Its cause is the error of that node.
    """


class OtherShapes(Exception):  # noqa: N818 - a signal, not an error
    """A value has another shape or type than it is said to have, or none known before the run."""
