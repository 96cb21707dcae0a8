"""Values of any kind, as OpenVINO hands out what a model has noted."""

from __future__ import annotations

from typing import Any


class OVAny:
    """A value with OpenVINO's ways of asking for it; equal to the value itself.

    Example:
        >>> OVAny("3").astype(int), OVAny([1, 2]).aslist(), OVAny("a") == "a"
        (3, [1, 2], True)

    Attributes:
        value: The value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        """The value."""
        return self.value

    def set(self, value: Any) -> None:
        """Sets the value."""
        self.value = value

    def astype(self, kind: type) -> Any:
        """The value as ``int``, ``float``, ``bool``, ``str`` or ``dict``.

        Raises:
            ValueError: It is none.
        """
        if kind is bool and isinstance(self.value, str):
            return self.value.strip().lower() in ("true", "yes", "1")
        return kind(self.value)

    def aslist(self, kind: type = str) -> list[Any]:
        """The value as a list; a text is parted at spaces and commas."""
        if isinstance(self.value, str):
            return [kind(word) for word in self.value.replace(",", " ").split()]
        return list(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, OVAny) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __getitem__(self, key: Any) -> Any:
        return self.value[key]

    def __len__(self) -> int:
        return len(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return f"<OVAny {self.value!r}>"
