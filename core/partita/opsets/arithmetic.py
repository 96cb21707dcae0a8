"""Arithmetic with nodes of a graph that is being written, and with their outputs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

N = TypeVar("N")
"""The class of nodes."""


class Arithmetic(Generic[N]):
    """What Python's operators write; a lone number takes the type of the other side."""

    __slots__ = ()

    __array_ufunc__ = None
    """Leaves arithmetic of numpy's arrays with nodes to these, which take them whole."""

    @abstractmethod
    def _operation(self, layer: str, *sides: Any) -> N:
        """A node of a type of layer that reads some sides, of which this is one."""

    def __add__(self, other: Any) -> N:
        return self._operation("Add", self, other)

    def __radd__(self, other: Any) -> N:
        return self._operation("Add", other, self)

    def __sub__(self, other: Any) -> N:
        return self._operation("Subtract", self, other)

    def __rsub__(self, other: Any) -> N:
        return self._operation("Subtract", other, self)

    def __mul__(self, other: Any) -> N:
        return self._operation("Multiply", self, other)

    def __rmul__(self, other: Any) -> N:
        return self._operation("Multiply", other, self)

    def __truediv__(self, other: Any) -> N:
        return self._operation("Divide", self, other)

    def __rtruediv__(self, other: Any) -> N:
        return self._operation("Divide", other, self)

    def __pow__(self, other: Any) -> N:
        return self._operation("Power", self, other)

    def __neg__(self) -> N:
        return self._operation("Negative", self)
