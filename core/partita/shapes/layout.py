"""Names of dimensions: which axis is the batch, the channels, the width."""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import ModelError

_SCALAR = "**SCALAR**"
_REST = "..."

BATCH, CHANNELS, DEPTH, HEIGHT, WIDTH = "N", "C", "D", "H", "W"
"""Names with a meaning."""


class Layout:
    """The names of a tensor's dimensions, as ``"NCHW"``.

    Letters stand for one dimension each; longer names stand in brackets, ``"[N,C,height]"``. A
    dimension ``?`` has no name, and ``...`` stands for any number of them. Case does not matter.

    Example:
        >>> Layout("NCHW").get_index_by_name("H"), Layout("N...C").get_index_by_name("C")
        (2, -1)

    Args:
        text: The names.

    Raises:
        ModelError: A name or ``...`` comes twice, or a name is not made of letters, digits and
            underscores.
    """

    __slots__ = ("_names",)

    def __init__(self, text: str = "") -> None:
        self._names = _parsed(text)

    @staticmethod
    def scalar() -> Layout:
        """The layout of a tensor without dimensions."""
        return Layout(_SCALAR)

    @property
    def names(self) -> Sequence[str]:
        """The names in order, in capitals; ``?`` and ``...`` among them."""
        return self._names

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return self._names == [_REST]

    def has_name(self, name: str) -> bool:
        """Whether a dimension has the name."""
        return name.upper() in self._names and name not in ("?", _REST)

    def get_index_by_name(self, name: str) -> int:
        """The axis of a name, counted from the end (negative) behind ``...``.

        Raises:
            ModelError: No dimension has it.
        """
        if not self.has_name(name):
            raise ModelError(f"Layout '{self}' has no dimension '{name}'.")
        index = self._names.index(name.upper())
        behind = _REST in self._names[:index]
        return index - len(self._names) if behind else index

    def to_string(self) -> str:
        """As ``"[N,C,H,W]"``."""
        return str(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            other = Layout(other)
        return self._names == other._names if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._names))

    def __str__(self) -> str:
        return _SCALAR if not self._names else f"[{','.join(self._names)}]"

    def __repr__(self) -> str:
        return f"<Layout: {self}>"


def _parsed(text: str) -> list[str]:
    text = text.strip()
    if text == _SCALAR:
        return []
    if text.startswith("["):
        if not text.endswith("]"):
            raise ModelError(f"Layout '{text}' opens a bracket and does not close it.")
        names = [name.strip().upper() for name in text[1:-1].split(",")]
    else:
        before, rest, behind = text.partition(_REST)
        names = [*before.upper(), *([rest] if rest else []), *behind.upper()]
    names = names if text else [_REST]
    for name in names:
        plain = name.replace("_", "a")
        if name not in ("?", _REST) and not (plain.isalnum() and plain.isascii()):
            raise ModelError(
                f"Layout '{text}' has the dimension '{name}'; names are made of letters, digits "
                "and underscores, or '?'."
            )
        if name != "?" and names.count(name) > 1:
            raise ModelError(f"Layout '{text}' names the dimension '{name}' twice.")
    return names
