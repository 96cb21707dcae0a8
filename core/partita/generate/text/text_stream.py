"""Text of tokens as they come: characters that are not complete yet are held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MOST_MISSING = 3
"""Replacement characters at the end that further bytes may turn into one character of UTF-8."""

_LONGEST_CHARACTER = 4
"""Tokens that one character may take: as many as UTF-8 takes bytes."""

_LONGEST_WINDOW, _KEPT = 64, 16
"""Tokens that are decoded at once at most, and of more how many."""

_REPLACEMENT = "\ufffd"


class TextStream:
    """Turns tokens into text one by one.

    Concatenated, the pieces are the text of all tokens. Tokens are decoded behind those of the
    character before them, since what a token means may depend on whether it is the first.

    Args:
        decode: The text of tokens; U+FFFD stands for bytes that are no UTF-8.
        before: Tokens that the text continues; theirs is none of it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._before, self._known = self._last_character(before) or ([], "")
        self._new: list[int] = []
        self._passed = 0

    def push(self, token: int) -> str:
        """The text that a token completes; empty while a character is incomplete."""
        self._new.append(token)
        text = self._text()
        open_ended = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MOST_MISSING)
        end = max(self._passed, len(text) - open_ended)
        piece, held = text[self._passed : end], text[end:]
        last = self._last_character([*self._before, *self._new])
        if last is None:
            self._passed = end
            self._forget(held)
            return piece
        if held:  # wrong bytes before it have spoiled it
            piece = text[self._passed : max(self._passed, len(text) - len(last[0]))] + last[1]
        self._before, self._known = last
        self._new, self._passed = [], 0
        return piece

    def flush(self) -> str:
        """The text that is still held back; incomplete characters are U+FFFD."""
        piece = self._text()[self._passed :]
        self._before, self._known, self._new, self._passed = [], "", [], 0
        return piece

    def _text(self) -> str:
        """That of the new tokens.

        Some decoders take all bytes in a row for wrong if the last ones are, as those of a
        character are that is not complete.
        """
        text = self._decode([*self._before, *self._new])
        if _REPLACEMENT in text[: len(self._known)]:
            return self._decode(self._new)
        return text[len(self._known) :]

    def _last_character(self, tokens: Sequence[int]) -> tuple[list[int], str] | None:
        """The last tokens that make complete characters, as few as possible, and their text."""
        for count in range(1, min(len(tokens), _LONGEST_CHARACTER) + 1):
            last = list(tokens[-count:])
            text = self._decode(last)
            if text and _REPLACEMENT not in text:
                return last, text
        return None

    def _forget(self, held: str) -> None:
        """Lets a long window begin later, if what is held back stays so: each push decodes it."""
        if len(self._new) > _LONGEST_WINDOW:
            kept = self._new[-_KEPT:]
            text = self._decode(kept)
            if text.endswith(held):
                self._before, self._known = [], ""
                self._new, self._passed = kept, len(text) - len(held)
