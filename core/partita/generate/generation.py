"""One text in the making: what is still to be read, how tokens are chosen, when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.errors import InferError
from partita.generate.sampling import Sampler
from partita.generate.text.stop_words import StopWords
from partita.generate.text.text_stream import TextStream

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """A token that was generated.

    Attributes:
        sequence: The number of the prompt that it belongs to.
        token: The token.
        text: The text that it completes; empty while a character is incomplete, for tokens that
            end a text, and while a stop word may have begun.
        finish: Empty while the text goes on; with the last piece why it ends: ``"end"`` (the model
            ended it), ``"stop"`` (a stop word), ``"length"`` (``max_new_tokens``), or ``"context"``
            (the context is full).
    """

    sequence: int
    token: int
    text: str
    finish: str = ""


class Generation:
    """One text in the making.

    Args:
        number: Which of several it is.
        prompt: Its tokens.
        sampler: Chooses tokens.
        limit: How many to generate at most, and what the last piece says then.
        end_tokens: Tokens that end it.
        stop_words: Texts that end it.
        stream: Makes text of tokens; ``None`` if there is no tokenizer.

    Attributes:
        pending: Tokens that the model has not read yet.
        pieces: What was generated and not fetched yet.
        failure: What made it impossible to go on.
        is_given_up: Whether nobody wants it any more. It may become so at any time, on any thread:
            the garbage collector closes an iterator wherever it happens to run.
    """

    def __init__(
        self,
        number: int,
        prompt: Sequence[int],
        sampler: Sampler,
        limit: tuple[int, str],
        end_tokens: frozenset[int],
        stop_words: StopWords,
        stream: TextStream | None,
    ) -> None:
        self.prompt = list(prompt)
        self.pending = list(prompt)
        self.pieces: deque[Piece] = deque()
        self.failure: Exception | None = None
        self.is_given_up = False
        self._number = number
        self._sampler = sampler
        self._limit = limit
        self._end_tokens = end_tokens
        self._stop_words = stop_words
        self._stream = stream
        self._count = 0
        self._finish = ""
        sampler.observe(prompt)

    @property
    def is_prompt(self) -> bool:
        """Whether nothing was generated yet."""
        return self._count == 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing will be generated any more."""
        return bool(self._finish) or self.failure is not None

    def advance(self, logits: Array) -> None:
        """Chooses the next token, all pending ones having been read.

        Args:
            logits: ``[vocabulary]``, behind the last of them. If none can be chosen by them, this
                text ends with a failure; those beside it know nothing of it.
        """
        try:
            token = self._sampler.choose(logits)
        except InferError as error:
            self.failure = error.with_lines([f"It ended sequence {self._number}; others go on."])
            self.pending = []
            return
        self._count += 1
        most, why = self._limit
        if token in self._end_tokens:
            text, self._finish = self._rest(), "end"
        else:
            text = self._stop_words.push(self._stream.push(token) if self._stream else "")
            if self._stop_words.found:
                self._finish = "stop"
            elif self._count == most:
                text, self._finish = text + self._rest(), why
        self.pending = [token]
        self.pieces.append(Piece(self._number, token, text, self._finish))

    def _rest(self) -> str:
        """The text that is held back, at the end."""
        text = self._stop_words.push(self._stream.flush()) if self._stream else ""
        return text + self._stop_words.flush()
