"""Shapes, and the other lists of whole numbers that OpenVINO has types for."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Self, SupportsIndex, overload

from partita.errors import ModelError


class _Numbers(list[int]):
    """Whole numbers, equal to any list or tuple of the same ones."""

    __slots__ = ()

    def __init__(self, numbers: Iterable[SupportsIndex] = ()) -> None:
        try:
            super().__init__(operator.index(number) for number in numbers)
        except TypeError as error:
            raise ModelError(
                f"{type(self).__name__} holds whole numbers; found {numbers!r}."
            ) from error

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, key: slice, /) -> Self: ...
    def __getitem__(self, key: Any, /) -> Any:
        found = super().__getitem__(key)
        return type(self)(found) if isinstance(key, slice) else found

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (list, tuple)) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # it can be changed

    def __str__(self) -> str:
        return f"[{','.join(map(str, self))}]"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"


class Shape(_Numbers):
    """Sizes, outermost dimension first.

    Example:
        >>> Shape([1, 3]) == (1, 3), Shape("[1,3]")[1:], Shape([2]).to_string()
        (True, <Shape: [3]>, '[2]')

    Args:
        sizes: The sizes, or a text such as ``"[1,3]"``.

    Raises:
        ModelError: They are no sizes.
    """

    __slots__ = ()

    def __init__(self, sizes: Iterable[SupportsIndex] | str = ()) -> None:
        if isinstance(sizes, str):
            words = sizes.strip().removeprefix("[").removesuffix("]").split(",")
            try:
                sizes = [int(word) for word in words if word.strip()]
            except ValueError as error:
                raise ModelError(f"'{sizes}' is not a shape; write '[1,3]'.") from error
        super().__init__(sizes)
        if min(self, default=0) < 0:
            raise ModelError(f"A shape has no negative dimensions; found {list(self)}.")

    def to_string(self) -> str:
        """As ``"[1,3]"``."""
        return str(self)


class Strides(_Numbers):
    """Steps: of a window in elements, or of a tensor's axes in bytes."""

    __slots__ = ()


class Coordinate(_Numbers):
    """A place in a tensor."""

    __slots__ = ()


class CoordinateDiff(_Numbers):
    """The difference of two places."""

    __slots__ = ()


class AxisVector(_Numbers):
    """Axes, in order."""

    __slots__ = ()


class AxisSet(set[int]):
    """Axes, in no order."""
