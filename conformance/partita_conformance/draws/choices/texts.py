"""Systematic draws of string operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from partita_conformance.draws.choices.meet import meetings_of_three
from partita_conformance.draws.draw import Array, Draw

_WORDS = ("Monday", "monday", "MONDAY", "a", "A", "b c", "\u00e9t\u00e9", "\u0416uk", "kept", "")


def _texts(*shape: int, words: tuple[str, ...] = _WORDS) -> Array:
    count = int(np.prod(shape))
    return np.array([words[n * 7 % len(words)] for n in range(count)], object).reshape(shape)


def normalizer() -> Iterator[Draw]:
    """Cases, stop words of other cases, a row and a matrix of it, of which all may be stopped."""
    for row in meetings_of_three(
        is_case_sensitive=(None, 0, 1), case_change_action=(None, "LOWER", "UPPER", "NONE"),
        stopwords=(None, ["monday", "A"], ["MONDAY", "\u00c9T\u00c9"], ["kept", "b c"]),
        rank=(1, 2), left=(1, 1, 0),
    ):  # fmt: skip
        words = _texts(10) if row["left"] else _texts(3, words=tuple(row["stopwords"] or ("a",)))
        given = {n: v for n, v in row.items() if n not in ("rank", "left") and v is not None}
        yield Draw([words if row["rank"] == 1 else words[None]], given)


_LISTS = ("a,b", "a,,b,c", ",a", "a,", "  b   c ", "one", "a,  b, c", "a--b--", "--", "x y,z w")


def split() -> Iterator[Draw]:
    """By spaces, a sign and several, into few parts at most, of texts of each rank."""
    for row in meetings_of_three(
        delimiter=(None, ",", "--", " "), maxsplit=(None, 0, 1, 2, 9), shape=((), (6,), (2, 5))
    ):
        if row["maxsplit"] == 0:
            continue  # of how many parts texts are, engines do not agree
        given = {n: row[n] for n in ("delimiter", "maxsplit") if row[n] is not None}
        yield Draw([_texts(*row["shape"], words=_LISTS)], given, (), 2, 20)


def join() -> Iterator[Draw]:
    """Shapes that meet, either way, of no dimensions too."""
    for a, b in itertools.product(((3,), (2, 3), (2, 1), (), (1, 2, 1)), repeat=2):
        try:
            np.broadcast_shapes(a, b)
        except ValueError:
            continue
        yield Draw([_texts(*a), _texts(*b, words=_LISTS)], opset=20)


def match() -> Iterator[Draw]:
    """Patterns that match texts in part, in either case, or none at all, and alternatives."""
    texts = _texts(2, 9, words=(*_WORDS[:8], "ab", "aab", "a.b", "12-34", "A1"))
    for pattern in (
        "a",
        "a*b",
        "[aA].*",
        "a.b",
        r"a\.b",
        r"\d+-\d+",
        "(a|b)+",
        "Mon",
        ".*day",
        "",
        "(?i)monday",
        "Mon|A",
        "x|day",
        "a|b c|kept",
        "a|ab|a.b",
        "(a|aa)b",
        "|a",
        "12|-|34",
    ):
        yield Draw([texts], {"pattern": pattern}, opset=20)


TEXTS: Mapping[str, Callable[[], Iterator[Draw]]] = {
    "StringNormalizer": normalizer,
    "StringSplit": split,
    "StringConcat": join,
    "RegexFullMatch": match,
}
"""Operator to its draws."""
