r"""Patterns in RE2's syntax, which ONNX names, made programs of steps.

RE2 has no references back and no looking around; ``\d`` is of ASCII, ``$`` is the text's end.
Names of scripts in ``\p{...}`` and ``\C``, a byte, are refused: there is no table, and texts are of
characters here. https://github.com/google/re2/wiki/Syntax
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from partita_reference.texts.characters import CATEGORIES, PERL, POSIX, Characters, Range, Test
from partita_reference.texts.matching import Step

MOST_STEPS = 1 << 14
"""Of a program."""

MOST_REPETITIONS = 1000
"""Of a part, those of parts within it counted each time; RE2 allows no more."""

_MOST_OPEN = 1000
"""Groups within groups."""

_CONTROLS = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}

_PLACES = {"A": "text begins", "z": "text ends", "b": "word ends", "B": "within"}

_COUNTS = re.compile(r"\{([0-9]{1,9})(?:(,)([0-9]{0,9}))?\}")

_OPENING = re.compile(r"\(\?(?:P?<\w+>|([imsU]*)(?:-([imsU]+))?([:)]))", re.ASCII)

_REPETITIONS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass
class _Part:
    """Steps of a part of a pattern.

    Attributes:
        steps: They go on behind the last one.
        repeats: How often the most repeated of them is there.
    """

    steps: list[Step]
    repeats: int = 1


@dataclass
class _Group:
    """A group that is still open: alternatives that have ended, and the parts of the last one."""

    flags: frozenset[str]
    ended: list[_Part] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)


def steps_of(pattern: str) -> list[Step]:
    """The program of a pattern.

    Raises:
        ValueError: It is no pattern of RE2, has what is refused here, or is too large.
    """
    return _Reader(pattern).read()


class _Reader:
    """Reads a pattern from its first character to its last; open groups are on a stack."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._open = [_Group(self._flags)]
        self._may_repeat = True

    def read(self) -> list[Step]:
        while self._at < len(self._text):
            before = self._at
            if not self._repetition():
                self._may_repeat = True
                self._piece(self._text[before])
        if len(self._open) > 1:
            raise self._wrong("a group is not closed")
        return [*self._closed().steps, Step()]

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"the pattern {self._text[:200]!r} is not taken: {what} (at {self._at})")

    def _piece(self, first: str) -> None:
        """What begins here, unless it repeats something."""
        match first:
            case "(":
                self._opening()
            case ")":
                self._closing()
            case "|":
                self._at += 1
                self._open[-1].ended.append(self._joined())
                self._open[-1].parts = []
            case "^":
                self._at += 1
                self._place("line begins" if "m" in self._flags else "text begins")
            case "$":
                self._at += 1
                self._place("line ends" if "m" in self._flags else "text ends")
            case ".":
                self._at += 1
                self._takes(Characters([] if "s" in self._flags else [("\n", "\n")], True))
            case "[":
                self._takes(self._class())
            case "\\":
                self._escaped()
            case _:
                self._at += 1
                self._literal(first)

    # Parts

    def _add(self, part: _Part) -> None:
        if len(part.steps) > MOST_STEPS:
            raise self._wrong(f"it takes more than {MOST_STEPS} steps")
        self._open[-1].parts.append(part)

    def _takes(self, test: Test) -> None:
        self._add(_Part([Step(test=test)]))

    def _place(self, place: str) -> None:
        self._add(_Part([Step(place=place)]))

    def _literal(self, character: str) -> None:
        self._takes(Characters([(character, character)], folds="i" in self._flags))

    def _joined(self) -> _Part:
        """The parts of the last alternative, one behind the other."""
        parts = self._open[-1].parts
        whole = _Part([step for part in parts for step in part.steps])
        whole.repeats = max((part.repeats for part in parts), default=1)
        if len(whole.steps) > MOST_STEPS:
            raise self._wrong(f"it takes more than {MOST_STEPS} steps")
        return whole

    def _closed(self) -> _Part:
        """The group that was opened last, with all its alternatives."""
        last = self._joined()
        group = self._open.pop()
        self._flags = group.flags
        choices = [*group.ended, last]
        if len(choices) == 1:
            return last
        steps: list[Step] = [Step(ways=())]
        begins, ends = [], []
        for choice in choices:
            begins.append(len(steps))
            steps += [*choice.steps, Step(ways=())]
            ends.append(len(steps) - 1)
        steps[0] = Step(ways=tuple(begins))
        for end in ends:
            steps[end] = Step(ways=(len(steps) - end,))
        return _Part(steps, max(choice.repeats for choice in choices))

    def _repetition(self) -> bool:
        """Reads how often the part before is repeated, if that stands here."""
        counts = _COUNTS.match(self._text, self._at)
        if counts is not None:
            least = int(counts[1])
            most = least if counts[2] is None else int(counts[3]) if counts[3] else None
            length = len(counts[0])
        elif self._text[self._at] in _REPETITIONS:
            (least, most), length = _REPETITIONS[self._text[self._at]], 1
        else:
            return False
        if not self._open[-1].parts:
            raise self._wrong("there is nothing to repeat")
        if not self._may_repeat:
            raise self._wrong("what is repeated is repeated already")
        if counts is not None and (
            max(least, most or 0) > MOST_REPETITIONS or least > (most or least)
        ):
            raise self._wrong(
                f"{counts[0]} is not a number of repetitions up to {MOST_REPETITIONS}"
            )
        self._at += length
        self._at += self._text[self._at : self._at + 1] == "?"  # which match is taken: any is whole
        self._may_repeat = False
        self._add(self._repeated(self._open[-1].parts.pop(), least, most))
        return True

    def _repeated(self, part: _Part, least: int, most: int | None) -> _Part:
        repeats = part.repeats * max(least, most or 0, 1)
        size = len(part.steps)
        if repeats > MOST_REPETITIONS or (size + 1) * max(least, most or 0, 1) > MOST_STEPS:
            raise self._wrong(
                f"repetitions of repetitions are up to {MOST_REPETITIONS}, steps {MOST_STEPS}"
            )
        steps = part.steps * least
        if most is None:
            steps = [*steps, Step(ways=(1, size + 2)), *part.steps, Step(ways=(-size - 1,))]
        else:
            steps = steps + [Step(ways=(1, size + 1)), *part.steps] * (most - least)
        return _Part(steps, repeats)

    # Groups

    def _opening(self) -> None:
        found = _OPENING.match(self._text, self._at)
        if found is None and self._text.startswith("(?", self._at):
            raise self._wrong("(? begins no group of RE2, which cannot look around")
        if len(self._open) > _MOST_OPEN:
            raise self._wrong(f"more than {_MOST_OPEN} groups are within each other")
        outside = self._flags
        self._at += 1 if found is None else len(found[0])
        if found is not None and found[3]:
            self._flags = (self._flags | set(found[1])) - set(found[2] or "")
        if found is None or found[3] != ")":
            self._open.append(_Group(outside))

    def _closing(self) -> None:
        if len(self._open) == 1:
            raise self._wrong("no group is open")
        self._at += 1
        self._add(self._closed())

    # Characters

    def _escaped(self) -> None:
        r"""What begins with a backslash, outside of brackets."""
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in _PLACES and letter:
            self._at += 2
            self._place(_PLACES[letter])
        elif letter == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at + 2 : None if end < 0 else end]
            self._at = len(self._text) if end < 0 else end + 2
            for character in quoted:
                self._literal(character)
        else:
            found = self._set(self._flags)
            if found is not None:
                self._takes(found)
            else:
                self._literal(self._character())

    def _set(self, flags: frozenset[str]) -> Characters | None:
        r"""A set such as ``\d``, ``\PL`` or ``\p{Lu}``, if that stands here."""
        letter, folds = self._text[self._at + 1 : self._at + 2], "i" in flags
        if letter and letter.lower() in PERL:
            self._at += 2
            return Characters(PERL[letter.lower()], letter.isupper(), folds)
        if letter not in ("p", "P"):
            return None
        found = re.compile(r"\{(\^?)(\w+)\}|(\w)", re.ASCII).match(self._text, self._at + 2)
        name = "" if found is None else found[2] or found[3]
        if found is None or name not in CATEGORIES:
            raise self._wrong(f"\\{letter} names {name or 'nothing'}, which is not a category here")
        self._at = found.end()
        return Characters([name], (letter == "P") != bool(found[1]), folds)

    def _character(self) -> str:
        r"""A single character, which may be written behind a backslash."""
        first = self._text[self._at]
        if first != "\\":
            self._at += 1
            return first
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in _CONTROLS and letter:
            self._at += 2
            return _CONTROLS[letter]
        coded = re.compile(
            r"\\(?:x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,8})\}|(0[0-7]{0,2}|[1-7][0-7]{1,2}))"
        ).match(self._text, self._at)
        if coded is not None:
            code = int(coded[3], 8) if coded[3] else int(coded[1] or coded[2], 16)
            if code > 0x10FFFF:
                raise self._wrong(f"{coded[0]} is not a character")
            self._at = coded.end()
            return chr(code)
        if not letter or not letter.isascii() or letter.isalnum():
            raise self._wrong(f"\\{letter} is nothing that RE2 knows and that is taken here")
        self._at += 2
        return letter

    def _class(self) -> Characters:
        """A set in brackets."""
        self._at += 1
        is_negated = self._text.startswith("^", self._at)
        self._at += is_negated
        folds, parts = "i" in self._flags, list[Range | str | Characters]()
        begin = self._at
        while not self._text.startswith("]", self._at) or self._at == begin:
            if self._at >= len(self._text):
                raise self._wrong("a set of characters is not closed")
            named = re.compile(r"\[:(\^?)([^:\]]*):\]").match(self._text, self._at)
            if named is not None:
                if named[2] not in POSIX:
                    raise self._wrong(f"there is no set [:{named[2]}:]")
                self._at = named.end()
                parts.append(Characters(POSIX[named[2]], bool(named[1]), folds))
                continue
            found = self._set(self._flags) if self._text[self._at] == "\\" else None
            parts.append(self._range() if found is None else found)
        self._at += 1
        return Characters(parts, is_negated, folds)

    def _range(self) -> Range:
        first = self._character()
        last = first
        if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] != "]":
            self._at += 1
            if self._at >= len(self._text):
                raise self._wrong("a set of characters is not closed")
            last = self._character()
        if last < first:
            raise self._wrong(f"there is nothing from {first!r} to {last!r}")
        return first, last
