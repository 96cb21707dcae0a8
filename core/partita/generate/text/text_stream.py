"""Text of tokens as they come: characters that are not complete yet are held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MOST_MISSING = 3
"""Replacement characters at the end that further bytes may turn into one character of UTF-8."""


class TextStream:
    """Turns tokens into text one by one.

    Concatenated, the pieces are the text of all tokens. Tokens are decoded behind the one before
    them, since what a token means may depend on whether it is the first.

    Args:
        decode: The text of tokens; U+FFFD stands for bytes that are no UTF-8.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._passed = 0

    def push(self, token: int) -> str:
        """The text that a token completes; empty while a character is incomplete."""
        self._window.append(token)
        text = self._decode(self._window)
        open_ended = min(len(text) - len(text.rstrip("\ufffd")), _MOST_MISSING)
        end = max(self._passed, len(text) - open_ended)
        piece = text[self._passed : end]
        self._passed = end
        if not open_ended and (alone := self._decode([token])):
            self._window, self._passed = [token], len(alone)
        return piece

    def flush(self) -> str:
        """The text that is still held back; incomplete characters are U+FFFD."""
        piece = self._decode(self._window)[self._passed :]
        self._window, self._passed = [], 0
        return piece
