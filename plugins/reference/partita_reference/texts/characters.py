"""Sets of characters as RE2 names them."""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Range = tuple[str, str]

PERL: dict[str, tuple[Range, ...]] = {
    "d": (("0", "9"),),
    "s": (("\t", "\n"), ("\f", "\r"), (" ", " ")),
    "w": (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")),
}
r"""What ``\d``, ``\s`` and ``\w`` are: of ASCII alone, unlike in Python's ``re``."""

POSIX: dict[str, tuple[Range, ...]] = {
    "alnum": (("0", "9"), ("A", "Z"), ("a", "z")),
    "alpha": (("A", "Z"), ("a", "z")),
    "ascii": (("\0", "\x7f"),),
    "blank": (("\t", "\t"), (" ", " ")),
    "cntrl": (("\0", "\x1f"), ("\x7f", "\x7f")),
    "digit": (("0", "9"),),
    "graph": (("!", "~"),),
    "lower": (("a", "z"),),
    "print": ((" ", "~"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (("\t", "\r"), (" ", " ")),
    "upper": (("A", "Z"),),
    "word": PERL["w"],
    "xdigit": (("0", "9"), ("A", "F"), ("a", "f")),
}
"""What ``[:alpha:]`` and the like are."""

CATEGORIES = frozenset(
    {"Any", "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn"}
    | {"N", "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps"}
    | {"S", "Sc", "Sk", "Sm", "So", "Z", "Zl", "Zp", "Zs"}
)
r"""What ``\p{...}`` may name here; names of scripts are not among them."""

Test = Callable[[str], bool]


@dataclass(frozen=True)
class Characters:
    """A set of characters.

    Attributes:
        parts: Ranges, categories of Unicode, and further sets, any of which may hold one.
        is_negated: Whether it holds the others instead.
        folds: Whether a character stands for those that differ in case alone.
    """

    parts: Sequence[Range | str | Characters]
    is_negated: bool = False
    folds: bool = False

    def __call__(self, character: str) -> bool:
        """Whether it holds a character."""
        alike = _alike(character) if self.folds else (character,)
        return any(self._lists(c) for c in alike) != self.is_negated

    def _lists(self, character: str) -> bool:
        for part in self.parts:
            if isinstance(part, Characters):
                found = part(character)
            elif isinstance(part, str):
                found = part == "Any" or unicodedata.category(character).startswith(part)
            else:
                found = part[0] <= character <= part[1]
            if found:
                return True
        return False


def _fold(character: str) -> str:
    """The character that stands for all that differ from it in case alone."""
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character


@functools.cache
def _folded() -> dict[str, list[str]]:
    """The characters that are folded to others, by those."""
    found: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if _fold(character) != character:
            found.setdefault(_fold(character), []).append(character)
    return found


def _alike(character: str) -> list[str]:
    """A character and those that differ from it in case alone."""
    folded = _fold(character)
    return [folded, *_folded().get(folded, ())]
