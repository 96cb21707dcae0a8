"""Answers of OpenAI's API for texts: whole, in a stream, and errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from partita.generate import Piece
from partita_serve.protocol.errors import ServingError

_FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass
class _Choice:
    text: str = ""
    finish: str | None = None


@dataclass
class Answer:
    """An answer in the making.

    Attributes:
        model: The model's name.
        is_chat: Whether it is a message; a plain text otherwise.
        choices: How many texts there are.
        prompt_tokens: Tokens that were read.
    """

    model: str
    is_chat: bool
    choices: int
    prompt_tokens: int
    id: str = field(init=False)
    created: int = field(init=False)
    _texts: list[_Choice] = field(init=False)
    _generated: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self._texts = [_Choice() for _ in range(self.choices)]

    def add(self, piece: Piece) -> None:
        """Takes a piece of one of the texts."""
        choice = self._texts[piece.sequence]
        choice.text += piece.text
        choice.finish = _FINISH.get(piece.finish)
        self._generated += 1

    def whole(self) -> dict[str, Any]:
        """The answer, when all texts have ended."""
        choices = [
            self._choice(index, self._content(choice.text), choice.finish)
            for index, choice in enumerate(self._texts)
        ]
        return {**self._head(""), "choices": choices, "usage": self.usage()}

    def begin(self) -> Iterator[dict[str, Any]]:
        """The first events of a stream: who speaks."""
        if self.is_chat:
            for index in range(self.choices):
                delta = {"delta": {"role": "assistant", "content": ""}}
                yield self._event([self._choice(index, delta, None)])

    def event(self, piece: Piece) -> dict[str, Any]:
        """The event of a stream that holds a piece."""
        content = {"delta": {"content": piece.text} if piece.text else {}}
        body = content if self.is_chat else {"text": piece.text}
        return self._event([self._choice(piece.sequence, body, _FINISH.get(piece.finish))])

    def last_event(self) -> dict[str, Any]:
        """The event that counts the tokens."""
        return {**self._event([]), "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Tokens that were read and generated."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self._generated,
            "total_tokens": self.prompt_tokens + self._generated,
        }

    def _content(self, text: str) -> dict[str, Any]:
        if self.is_chat:
            return {"message": {"role": "assistant", "content": text}}
        return {"text": text}

    def _choice(self, index: int, content: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": index, **content, "logprobs": None, "finish_reason": finish}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head(".chunk"), "choices": choices}

    def _head(self, part: str) -> dict[str, Any]:
        kind = f"chat.completion{part}" if self.is_chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def model_entry(name: str, created: int) -> dict[str, Any]:
    """A model in the list of models."""
    return {"id": name, "object": "model", "created": created, "owned_by": "partita"}


def error_body(error: ServingError) -> dict[str, Any]:
    """An error in OpenAI's form."""
    usual = "invalid_request_error" if error.http_status < 500 else "server_error"
    code = "model_not_found" if error.http_status == 404 else None
    kind = _ERROR_TYPES.get(error.http_status, usual)
    return {"error": {"message": str(error), "type": kind, "param": None, "code": code}}
