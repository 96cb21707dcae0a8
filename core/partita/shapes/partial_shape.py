"""Shapes whose dimensions, or whose rank, need not be known."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, overload

from partita.errors import ModelError
from partita.shapes.dimension import Dimension
from partita.shapes.shape import Shape

_MOST = sys.maxsize
"""Stands for a largest size that there is not."""


class PartialShape:
    """Dimensions, outermost first; or nothing at all, if not even the rank is known.

    Dimensions can be replaced: ``shape[0] = -1``.

    Example:
        >>> PartialShape([1, (2, 5), -1]), PartialShape("1,?,..8"), PartialShape.dynamic()
        (<PartialShape: [1,2..5,?]>, <PartialShape: [1,?,..8]>, <PartialShape: [...]>)

    Args:
        dims: What :class:`Dimension` takes, or pairs of bounds; or a text such as ``"[1,?,2..5]"``;
            ``None`` and ``"..."`` if the rank is not known.

    Raises:
        ModelError: They are no dimensions.
    """

    __slots__ = ("_dims",)

    def __init__(self, dims: Any) -> None:
        self._dims: list[Dimension] | None
        if isinstance(dims, PartialShape):
            dims = dims._dims
        elif isinstance(dims, str):
            text = dims.strip().removeprefix("[").removesuffix("]").strip()
            dims = None if text == "..." else text.split(",") if text else []
        elif dims is not None and not isinstance(dims, Iterable):
            raise ModelError(f"A shape is a sequence of dimensions; found {dims!r}.")
        self._dims = None if dims is None else [_dimension(dim) for dim in dims]

    @staticmethod
    def dynamic(rank: Dimension | int = -1) -> PartialShape:
        """The shape of which nothing is known but, if given, the rank."""
        known = Dimension(-1) == rank
        return PartialShape(None if known else [-1] * Dimension.__index__(_dimension(rank)))

    @property
    def rank(self) -> Dimension:
        """The number of dimensions."""
        return Dimension() if self._dims is None else Dimension(len(self._dims))

    @property
    def is_static(self) -> bool:
        """Whether all sizes are known."""
        return self._dims is not None and all(dim.is_static for dim in self._dims)

    @property
    def is_dynamic(self) -> bool:
        """Whether a size, or the rank, is not known."""
        return not self.is_static

    @property
    def all_non_negative(self) -> bool:
        """Whether no size is negative, which none can be."""
        return True

    def to_shape(self) -> Shape:
        """The sizes.

        Raises:
            ModelError: Some are not known.
        """
        if not self.is_static:
            raise ModelError(f"Shape {self} has dimensions without a size; ask is_static first.")
        return Shape(dim.get_length() for dim in self)

    def get_shape(self) -> Shape:
        """The sizes (OpenVINO's spelling of :meth:`to_shape`)."""
        return self.to_shape()

    def get_min_shape(self) -> Shape:
        """The least size of each dimension."""
        return Shape(dim.min_length for dim in self)

    def get_max_shape(self) -> Shape:
        """The largest size of each dimension; ``sys.maxsize`` where there is none."""
        return Shape(_MOST if dim.max_length < 0 else dim.max_length for dim in self)

    def get_dimension(self, index: int) -> Dimension:
        """The dimension of an axis."""
        return self[index]

    def compatible(self, other: Any) -> bool:
        """Whether some sizes fit both."""
        return self._all("compatible", PartialShape(other), True)

    def refines(self, other: Any) -> bool:
        """Whether all sizes that fit this shape fit the other."""
        other = PartialShape(other)
        return self._all("refines", other, other._dims is None)

    def relaxes(self, other: Any) -> bool:
        """Whether all sizes that fit the other shape fit this one."""
        return self._all("relaxes", PartialShape(other), self._dims is None)

    def same_scheme(self, other: Any) -> bool:
        """Whether known sizes agree, and unknown ones are the same dimensions."""
        other = PartialShape(other)
        return self._all("same_scheme", other, self._dims is other._dims)

    def to_string(self) -> str:
        """As ``"[1,?,2..5]"``."""
        return str(self)

    def _all(self, relation: str, other: PartialShape, without_rank: bool) -> bool:
        """Whether dimensions stand in a relation, each to the other's; or what holds without."""
        mine, its = self._dims, other._dims
        if mine is None or its is None:
            return without_rank
        pairs = zip(mine, its, strict=False)
        return len(mine) == len(its) and all(getattr(one, relation)(two) for one, two in pairs)

    def _known(self) -> list[Dimension]:
        if self._dims is None:
            raise ModelError("The rank of shape [...] is not known; ask rank.is_static first.")
        return self._dims

    def __len__(self) -> int:
        return len(self._known())

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._known())

    @overload
    def __getitem__(self, key: int) -> Dimension: ...
    @overload
    def __getitem__(self, key: slice) -> PartialShape: ...
    def __getitem__(self, key: int | slice) -> Dimension | PartialShape:
        dims = self._known()
        if isinstance(key, slice):
            return PartialShape(dims[key])
        if not -len(dims) <= key < len(dims):
            raise ModelError(
                f"Shape {self} has {len(dims)} dimensions; dimension {key} does not exist."
            )
        return dims[key]

    def __setitem__(self, key: int, value: Any) -> None:
        self[key]
        self._known()[key] = _dimension(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (PartialShape, list, tuple)):
            return NotImplemented
        other = PartialShape(other)
        return self._dims == other._dims

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __str__(self) -> str:
        return "[...]" if self._dims is None else f"[{','.join(map(str, self._dims))}]"

    def __repr__(self) -> str:
        return f"<PartialShape: {self}>"


def _dimension(dim: Any) -> Dimension:
    """What stands for a dimension, as one of its own."""
    if isinstance(dim, Dimension):
        copy = Dimension(dim.min_length, dim.max_length)
        if (symbol := dim.get_symbol()) is not None:
            copy.set_symbol(symbol)
        return copy
    if isinstance(dim, (list, tuple)) and len(dim) == 2:
        return Dimension(*dim)
    return Dimension(-1 if dim is None else dim)
