"""One dimension of a shape: a size, bounds of a size, or a symbol for one."""

from __future__ import annotations

import itertools
import operator
import re
from typing import Any

from partita.errors import ModelError

_WORDS = re.compile(r"(\?|-1)|(\d+)|(\d*)\.\.(\d*)")
"""Unknown; a size; two bounds, each of which may be left out."""

_LARGEST = 2**63 - 1
"""Models hold sizes as numbers of 64 bits."""

_MOST_DIGITS = len(str(_LARGEST))

_numbers = itertools.count(1)


class Symbol(str):
    """The name of a size that is not known: dimensions of one symbol have the same size.

    ``Symbol()`` is one that no other dimension has.
    """

    __slots__ = ()

    def __new__(cls, name: str | None = None) -> Symbol:
        """The symbol of a name, or a new one."""
        return super().__new__(cls, f"symbol_{next(_numbers)}" if name is None else name)


class Dimension:
    """A size, or what is known of it: bounds, and a symbol that other dimensions may have too.

    Equal to a number if that is its size.

    Example:
        >>> Dimension(3), Dimension(2, 5), Dimension("2.."), Dimension(), Dimension("batch")
        (<Dimension: 3>, <Dimension: 2..5>, <Dimension: 2..>, <Dimension: ?>, <Dimension: batch>)

    Args:
        low: A size, or with ``high`` the least one; -1 for any. As text ``"3"``, ``"2..5"``,
            ``"2.."``, ``"..5"``, ``"?"``, or the name of a symbol.
        high: The largest size; -1 for any.

    Raises:
        ModelError: These are no bounds of a size.
    """

    __slots__ = ("_high", "_low", "_symbol")

    def __init__(self, low: Any = -1, high: int | None = None) -> None:
        self._symbol: Symbol | None = None
        if isinstance(low, str) and high is None:
            self._low, self._high, self._symbol = _parsed(low)
            return
        try:
            least = operator.index(low)
            most = least if high is None else operator.index(high)
        except TypeError as error:
            raise ModelError(
                f"A dimension is a size, two bounds or a text; found {low!r}"
                f"{'' if high is None else f' and {high!r}'}."
            ) from error
        if least < -1 or most < -1 or (0 <= most < least) or max(least, most) > _LARGEST:
            raise ModelError(f"Sizes from {least} to {most} are not valid bounds of a dimension.")
        self._low, self._high = max(least, 0), most if most >= 0 else None

    @staticmethod
    def dynamic() -> Dimension:
        """A dimension of which nothing is known."""
        return Dimension()

    @property
    def is_static(self) -> bool:
        """Whether the size is known."""
        return self._low == self._high

    @property
    def is_dynamic(self) -> bool:
        """Whether the size is not known."""
        return self._low != self._high

    @property
    def min_length(self) -> int:
        """The least size."""
        return self._low

    @property
    def max_length(self) -> int:
        """The largest size; -1 if there is none."""
        return -1 if self._high is None else self._high

    @property
    def size(self) -> int | str | None:
        """The size, the symbol for it, or ``None``: what :attr:`partita.Port.shape` holds."""
        return self._low if self.is_static else self._symbol

    @property
    def bounds(self) -> tuple[int, int | None] | None:
        """The least and the largest size; ``None`` if the size is known, or nothing of it."""
        return None if self.is_static or (not self._low and self._high is None) else self._range

    @property
    def _range(self) -> tuple[int, int | None]:
        return self._low, self._high

    def get_length(self) -> int:
        """The size.

        Raises:
            ModelError: It is not known.
        """
        if not self.is_static:
            raise ModelError(f"Dimension '{self}' has no size; ask is_static first.")
        return self._low

    def get_min_length(self) -> int:
        """The least size (OpenVINO's spelling)."""
        return self.min_length

    def get_max_length(self) -> int:
        """The largest size (OpenVINO's spelling)."""
        return self.max_length

    def get_symbol(self) -> Symbol | None:
        """The symbol for the size, if it has one."""
        return self._symbol

    def has_symbol(self) -> bool:
        """Whether it has a symbol."""
        return self._symbol is not None

    def set_symbol(self, symbol: str) -> None:
        """Gives it a symbol."""
        self._symbol = Symbol(symbol)

    def holds(self, size: int) -> bool:
        """Whether the dimension may have a size."""
        return self._low <= size and (self._high is None or size <= self._high)

    def compatible(self, other: Dimension | int) -> bool:
        """Whether some size fits both."""
        low, high = _of(other)._range
        return (self._high is None or low <= self._high) and (high is None or self._low <= high)

    def refines(self, other: Dimension | int) -> bool:
        """Whether every size that fits this one fits the other."""
        low, high = _of(other)._range
        return low <= self._low and (
            high is None or (self._high is not None and self._high <= high)
        )

    def relaxes(self, other: Dimension | int) -> bool:
        """Whether every size that fits the other fits this one."""
        return _of(other).refines(self)

    def same_scheme(self, other: Dimension | int) -> bool:
        """Whether both have the same size, or neither has one."""
        other = _of(other)
        return (self.is_dynamic and other.is_dynamic) or self._range == other._range

    def to_string(self) -> str:
        """As ``"3"``, ``"2..5"`` or ``"?"``."""
        return str(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return self._symbol == other
        try:
            return self._range == _of(other)._range
        except ModelError:
            return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # sizes that bound one another can be equal

    def __len__(self) -> int:
        return self.get_length()

    def __bool__(self) -> bool:
        return True

    def __index__(self) -> int:
        return self.get_length()

    def __str__(self) -> str:
        if self.is_static:
            return str(self._low)
        if self.bounds is None:
            return self._symbol or "?"
        return f"{self._low or ''}..{'' if self._high is None else self._high}"

    def __repr__(self) -> str:
        return f"<Dimension: {self}>"


def _of(other: Any) -> Dimension:
    """What stands for a dimension, as one."""
    return other if isinstance(other, Dimension) else Dimension(other)


def _parsed(text: str) -> tuple[int, int | None, Symbol | None]:
    """Bounds and symbol of a text."""
    found = _WORDS.fullmatch(text.strip())
    if found is None:
        name = text.strip()
        if not name or ".." in name or name[0] in "-+0123456789" or set(name) & set(",[]"):
            raise ModelError(
                f"'{text}' is not a dimension; write '3', '2..5', '2..', '..5', '?' or a symbol."
            )
        return 0, None, Symbol(name)
    unknown, size, low, high = found.groups()
    if unknown:
        return 0, None, None
    if max(map(len, filter(None, found.groups())), default=0) > _MOST_DIGITS:
        raise ModelError(f"'{text[:_MOST_DIGITS]}...' is not a dimension: it has too many digits.")
    least, most = int(size or low or 0), int(size or high) if size or high else None
    if max(least, most or 0) > _LARGEST or (most is not None and most < least):
        raise ModelError(f"'{text}' are not valid bounds of a dimension.")
    return least, most, None
