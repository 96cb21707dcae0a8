"""Text of strangers on its way to a terminal, a log or a page: what would act there is spelled out.

Names come from models, and may hold what moves a cursor, changes a terminal's title, reverses the
direction of writing or ends a line. Whatever prints them asks here.
"""

from __future__ import annotations

import html
import re

_ACTS = (
    "\x00-\x1f\x7f-\x9f"  # control characters
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029\ufeff"  # ends of lines and paragraphs; marks of byte order
    "\ud800-\udfff"  # halves of characters, which no file takes
)
_LINE = re.compile(f"[{_ACTS}]")
_LINES = re.compile(f"[{_ACTS}]".replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str) -> str:
    r"""A name, as one line that nothing acts on.

    Example:
        >>> print(printable("conv\x1b[2J\n1"))
        conv\x1b[2J\n1
    """
    return _LINE.sub(_spelled, text)


def printable_lines(text: str) -> str:
    r"""The same for text that may have several lines: line feeds and tabs stay.

    Example:
        >>> print(printable_lines("a\x1b[2J"))
        a\x1b[2J
    """
    return _LINES.sub(_spelled, text)


def is_encodable(text: str) -> bool:
    r"""Whether UTF-8 has all of a text: halves of characters are in none.

    Example:
        >>> is_encodable("ä"), is_encodable("\udcff")
        (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def html_text(text: str) -> str:
    r"""Text for a page: control characters spelled out, what is markup escaped.

    Example:
        >>> print(html_text("<b>\x1b"))
        &lt;b&gt;\x1b
    """
    return html.escape(printable_lines(text))


def shown(value: object, most: int = 200) -> str:
    """A value that somebody gave, for a message: as code, cut where it is long.

    Example:
        >>> shown("fast"), shown([0] * 1000, 7)
        ("'fast'", '[0, 0, ...')
    """
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # an object of whatever class
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."


def _spelled(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
