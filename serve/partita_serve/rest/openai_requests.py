"""Requests of OpenAI's API for texts, as far as they are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from partita.generate import SamplingOptions
from partita_serve.protocol.errors import InvalidRequest

_Tokens = list[Annotated[int, Field(ge=0)]]


class _Body(BaseModel):
    """An object in which ``null`` is the same as nothing, and what is unknown is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data


class StreamOptions(_Body):
    """What a stream has beyond the text."""

    include_usage: bool = False


class TextRequest(_Body):
    """What both kinds of requests have; names and meanings are OpenAI's.

    ``top_k``, ``min_p`` and ``repetition_penalty`` are this server's own.
    """

    model: str
    n: int = Field(1, ge=1, le=16)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0)
    seed: int | None = Field(None, ge=0)
    stop: str | list[str] = Field(default_factory=list, max_length=1000)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str = ""
    frequency_penalty: Literal[0] = 0
    presence_penalty: Literal[0] = 0

    @property
    def new_tokens(self) -> int | None:
        """How many tokens to generate at most; ``None`` for as many as there is room for."""
        return self.max_tokens

    @property
    def stop_words(self) -> Sequence[str]:
        """Texts at which to end."""
        words = [self.stop] if isinstance(self.stop, str) else self.stop
        return [word for word in words if word]

    @property
    def sampling(self) -> SamplingOptions:
        """How tokens are chosen."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed,
        }


AnyRequest = TypeVar("AnyRequest", bound=TextRequest)


class TextPart(_Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str = ""

    def for_template(self) -> Mapping[str, str]:
        """The message as chat templates know it."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(TextRequest):
    """``/v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: Literal[False] = False

    @property
    def new_tokens(self) -> int | None:
        """How many tokens to generate at most."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(TextRequest):
    """``/v1/completions``."""

    prompt: str | list[str] | _Tokens | list[_Tokens] = Field(min_length=1)
    max_tokens: int | None = Field(16, ge=1)
    best_of: Literal[1] = 1
    echo: Literal[False] = False

    @property
    def prompts(self) -> Sequence[str | Sequence[int]]:
        """All prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [one for one in self.prompt if not isinstance(one, int)]


def parsed(kind: type[AnyRequest], body: bytes | memoryview) -> AnyRequest:
    """A request.

    Args:
        kind: Which one.
        body: What the client sent.

    Raises:
        InvalidRequest: It is no JSON, or has what is not taken.
    """
    try:
        return kind.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is no JSON: {error}.") from error
    except ValidationError as error:
        told = []
        for one in error.errors(include_url=False, include_context=False, include_input=False)[:8]:
            place = ".".join(map(str, one["loc"]))
            if one["type"] == "extra_forbidden":
                known = ", ".join(kind.model_fields)
                told.append(f"'{place}' is not taken here; this is: {known}")
            else:
                told.append(f"'{place}': {one['msg']}" if place else one["msg"])
        raise InvalidRequest(f"{'; '.join(told)}.") from error
