"""Declarations of built-in functions: of the thousands that PoCL has, those that a program needs.

PoCL puts clang's header ``opencl-c.h`` in front of each program: 18,500 lines, whose parsing takes
longer than all else of a build. With the header's guard defined PoCL leaves it out; then a program
begins with what it needs of it. That is taken from the header itself: its preprocessor lines and
types, and all overloads of each function that the program's text or options name, with or without
the number at its end, which macros may add. So nothing has to be listed here when a kernel begins
to use another function. One whose name macros put together otherwise is found if a comment names
it; compilers refuse what is not declared, and their error then says so (:data:`NAMED`).

Not every PoCL need take this: a driver's trial builds such a program (:mod:`.driver_trial`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import digits

HEADER = "opencl-c.h"
"""The header of clang that PoCL includes, and the one that includes all others."""

GUARD = "_OPENCL_H_"
"""The macro that keeps a compiler from reading the header again."""

UNDECLARED = "implicit declaration of function"
"""What clang says of a function that nothing declares."""

NAMED = (
    "Programs declare the built-in functions that their text names: where macros put a name "
    "together, write it in a comment of the .cl file."
)
"""What to do about that."""

FOLDERS = ("share/pocl/include", "pocl_binary_distribution/.libs/share/pocl/include")
"""Where headers are, from a folder above that of PoCL's library: a system's, and PyPI's."""

_WORD = re.compile(r"\w+")
_INCLUDE = re.compile(r'#include "(.+)"')


def header_beside(library: str) -> str:
    """PoCL's header of built-in functions; empty if a library has none, as other drivers.

    Args:
        library: The driver's file.
    """
    path = Path(library)
    if not path.is_absolute() or not path.name.startswith("libpocl"):
        return ""
    places = (above / folder / HEADER for above in path.parents for folder in FOLDERS)
    return next((str(place) for place in places if place.is_file()), "")


def with_declarations(header: str, source: str, options: Sequence[str]) -> tuple[str, list[str]]:
    """A program that declares the built-in functions it calls, and its options.

    A process reads a header once, which takes as long as half a build with it.

    Args:
        header: What :func:`header_beside` found.
        source: The program. Lines in errors are counted from its first one.
        options: Its options.

    Raises:
        OSError: The header cannot be read.
    """
    words = {word for text in (source, *options) for word in _WORD.findall(text)}
    words.add("")  # the name of all that is no function
    needed = [
        text for name, text in _pieces(header) if name in words or name.rstrip(digits) in words
    ]
    # PoCL leaves extensions disabled, which the header enables for its own declarations.
    lines = [f"#undef {GUARD}", *needed, "#pragma OPENCL EXTENSION all : disable", "#line 1"]
    return "\n".join([*lines, source]), [*options, f"-D{GUARD}"]


@functools.cache
def _pieces(header: str) -> tuple[tuple[str, str], ...]:
    """A header in pieces, in its order: functions with their names, all else with an empty one."""
    return tuple(_read(Path(header)))


def _read(header: Path) -> Iterator[tuple[str, str]]:
    lines = iter(header.read_text(encoding="utf-8").splitlines())
    statement: list[str] = []
    in_comment = False
    for line in lines:
        if in_comment or line.startswith("/*"):
            in_comment = "*/" not in line
        elif line.startswith("#"):
            while line.endswith("\\"):
                line = line[:-1] + next(lines, "")
            include = _INCLUDE.match(line)
            if include is None:
                yield "", line
            else:
                yield from _read(header.parent / include[1])
        elif line and not line.startswith("//"):
            statement.append(line)
            if line.endswith(";"):
                text = "\n".join(statement)
                yield _function(text), text
                statement.clear()


def _function(statement: str) -> str:
    """The name of the function that a statement declares; empty if it declares something else.

    In front of a function's arguments stands its name, in front of those of an attribute a word
    that no program may have for a function.
    """
    before, has_arguments, _ = statement.partition("(")
    words = _WORD.findall(before)
    return words[-1] if words and has_arguments and not statement.startswith("typedef") else ""
