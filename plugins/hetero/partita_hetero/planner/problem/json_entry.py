"""One JSON object, read strictly: a wrong, missing or unknown key is an error that says where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from partita.errors import PlanError

T = TypeVar("T")


class Entry:
    """A JSON object whose keys are taken one by one.

    A key that is absent takes the default, or is an error if there is none.

    Args:
        data: What was read; must be an object.
        where: Its place, for messages.

    Raises:
        PlanError: ``data`` is not an object; the methods raise it for wrong values.
    """

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict):
            raise PlanError(f"{where} is {_kind(data)}; it must be an object.")
        self.where = where
        self._data: dict[str, Any] = data
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        return self._typed(key, default, str, "a string")

    def optional_text(self, key: str) -> str | None:
        """A string, or None if it is null or absent."""
        return None if self._is_null(key) else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """Strings; none if absent."""
        items = self._typed(key, [], list, "a list of strings")
        for item in items:
            if not isinstance(item, str):
                raise PlanError(f"{self.where}: '{key}' holds {_kind(item)}; it holds strings.")
        return tuple(items)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return self._typed(key, default, bool, "true or false")

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        found = self._take(key, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise PlanError(f"{self.where}: '{key}' is {_kind(found)}; it must be a number.")
        return float(found)

    def optional_number(self, key: str, default: T) -> float | T:
        """A number, or the default if it is null or absent."""
        return default if self._is_null(key) else self.number(key)

    def whole(self, key: str, default: int | None = None) -> int:
        """An integer."""
        found = self._take(key, default)
        if isinstance(found, bool) or not isinstance(found, int):
            raise PlanError(f"{self.where}: '{key}' is {_kind(found)}; it must be an integer.")
        return found

    def optional_whole(self, key: str, default: int | None = None) -> int | None:
        """An integer or None; the default if absent."""
        if key not in self._data:
            return default
        return None if self._is_null(key) else self.whole(key)

    def choice(self, key: str, choices: Sequence[T], default: T) -> T:
        """One of several strings."""
        found = self._take(key, default)
        for choice in choices:
            if found == choice:
                return choice
        known = ", ".join(map(repr, choices))
        raise PlanError(f"{self.where}: '{key}' is {found!r}; it must be one of {known}.")

    def index(self, key: str, names: Mapping[str, int]) -> int:
        """The index of a name."""
        return self._find(key, self.text(key), names)

    def optional_index(self, key: str, names: Mapping[str, int]) -> int | None:
        """The index of a name, or None if it is null or absent."""
        return None if self._is_null(key) else self.index(key, names)

    def indices(self, key: str, names: Mapping[str, int]) -> tuple[int, ...]:
        """Indices of names; none if absent."""
        return tuple(self._find(key, name, names) for name in self.texts(key))

    def entry(self, key: str) -> Entry:
        """An object in this one."""
        return Entry(self._take(key, None), f"{self.where}: '{key}'")

    def entries(self, key: str) -> Iterator[Entry]:
        """Objects in a list; none if absent. Each must have been taken whole."""
        for index, item in enumerate(self._typed(key, [], list, "a list")):
            entry = Entry(item, f"{key}[{index}]")
            yield entry
            entry.end()

    def end(self) -> None:
        """Raises PlanError if a key has not been taken."""
        unknown = [key for key in self._data if key not in self._taken]
        if unknown:
            raise PlanError(
                f"{self.where}: unknown key '{unknown[0]}'; known are "
                f"{', '.join(repr(key) for key in sorted(self._taken))}."
            )

    def _is_null(self, key: str) -> bool:
        self._taken.add(key)
        return self._data.get(key) is None

    def _take(self, key: str, default: T | None) -> Any:
        self._taken.add(key)
        if key in self._data:
            return self._data[key]
        if default is None:
            raise PlanError(f"{self.where}: '{key}' is missing.")
        return default

    def _typed(self, key: str, default: T | None, kind: type[T], meaning: str) -> T:
        found = self._take(key, default)
        if not isinstance(found, kind):
            raise PlanError(f"{self.where}: '{key}' is {_kind(found)}; it must be {meaning}.")
        return found

    def _find(self, key: str, name: str, names: Mapping[str, int]) -> int:
        if name not in names:
            raise PlanError(f"{self.where}: '{key}' names '{name}', which does not exist.")
        return names[name]


def _kind(found: object) -> str:
    """What something is in JSON."""
    if found is None:
        return "null"
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, (int, float)):
        return f"the number {found}"
    if isinstance(found, str):
        return f"the string {found!r}"
    return "a list" if isinstance(found, list) else "an object"
