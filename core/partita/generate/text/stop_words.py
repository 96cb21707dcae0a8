"""Ending a text at a stop word, wherever the borders of tokens lie in it."""

from __future__ import annotations

from collections.abc import Sequence

from partita.errors import InputError


class StopWords:
    """Passes a text on piece by piece, up to the first stop word, which is left out.

    What may be the beginning of a stop word is held back until it is known.

    Args:
        words: The stop words; one that another one contains hides it.

    Raises:
        InputError: One of them is empty, or no text.

    Example:
        >>> stop = StopWords(["END"])
        >>> stop.push("the E"), stop.push("N"), stop.push("D.")
        ('the ', '', '')
        >>> stop.found
        True
    """

    def __init__(self, words: Sequence[str] = ()) -> None:
        if not isinstance(words, Sequence):
            raise InputError(f"The stop words are {words!r}; give a list of texts.")
        for word in words:
            if not isinstance(word, str):
                raise InputError(f"A stop word is {word!r}; they are texts.")
        if "" in words:
            raise InputError("A stop word is empty; it would end every text before it begins.")
        self._words = tuple(words)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Takes the next piece; returns what can be passed on."""
        text = self._held + text
        self._held = ""
        if self.found:
            return ""
        places = [place for word in self._words if (place := text.find(word)) >= 0]
        if places:
            self.found = True
            return text[: min(places)]
        held = max((_overlap(text, word) for word in self._words), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What is still held back: the text has ended without a stop word."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, word: str) -> int:
    """How long a beginning of the word the text ends with."""
    longest = min(len(text), len(word) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)
