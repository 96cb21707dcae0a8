"""Texts matched by programs of steps, in time linear in their length.

All ways through the program are followed side by side (K. Thompson, "Regular expression search
algorithm", 1968), so that no pattern takes longer for having many; there is no going back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from partita_reference.texts.characters import PERL, Characters, Test

MOST_WORK = 1 << 21
"""Steps looked at for one text; some seconds."""

_IN_WORDS = Characters(PERL["w"])


class Step(NamedTuple):
    """One step of a program; one of ``test``, ``place`` and ``ways`` is there, none at the end.

    Attributes:
        test: Takes a character that passes, and goes on at the next step.
        place: Goes on at the next step if the place in the text is so: ``text begins``,
            ``text ends``, ``line begins``, ``line ends``, ``word ends`` (or begins), ``within``.
        ways: Goes on at all of these steps, by their distance.
    """

    test: Test | None = None
    place: str | None = None
    ways: tuple[int, ...] = ()


def matches(steps: Sequence[Step], text: str) -> bool:
    """Whether a program, whose last step is the end, takes a text as a whole.

    Raises:
        ValueError: The text and the program are too long.
    """
    reached, work = _closed(steps, [0], text, 0)
    for at, character in enumerate(text):
        if work > MOST_WORK:
            raise ValueError(
                f"a text of {len(text)} characters takes more than {MOST_WORK} steps of a pattern "
                f"of {len(steps)}; shorten either"
            )
        tests = {id(test): test for n in reached if (test := steps[n].test)}
        passing = {key for key, test in tests.items() if test(character)}
        passed = [n + 1 for n in reached if id(steps[n].test) in passing]
        if not passed:
            return False
        reached, looked_at = _closed(steps, passed, text, at + 1)
        work += looked_at
    return len(steps) - 1 in reached


def _closed(
    steps: Sequence[Step], first: Iterable[int], text: str, at: int
) -> tuple[list[int], int]:
    """The steps that take a character, and the end, to which some lead; how many were looked at."""
    waiting, seen, found = list(first), set(first), []
    while waiting:
        here = waiting.pop()
        step = steps[here]
        ways = step.ways
        if step.place is not None:
            ways = (1,) if _is_so(step.place, text, at) else ()
        elif not ways:
            found.append(here)
        for way in ways:
            if here + way not in seen:
                seen.add(here + way)
                waiting.append(here + way)
    return found, len(seen)


def _is_so(place: str, text: str, at: int) -> bool:
    match place:
        case "text begins":
            return at == 0
        case "text ends":
            return at == len(text)
        case "line begins":
            return at == 0 or text[at - 1] == "\n"
        case "line ends":
            return at == len(text) or text[at] == "\n"
    before = at > 0 and _IN_WORDS(text[at - 1])
    behind = at < len(text) and _IN_WORDS(text[at])
    return (before != behind) == (place == "word ends")
