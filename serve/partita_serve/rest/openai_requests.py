"""Requests of OpenAI's API for texts, as far as they are taken.

A body may have many megabytes of JSON, and is looked at on the event loop: lists end at their first
wrong element, objects of too many names are not looked into, and messages are short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    model_validator,
)

from partita.generate import SamplingOptions
from partita_serve.protocol.errors import InvalidRequest
from partita_serve.protocol.wrong_values import MOST_NAMES, in_words

_MOST_PROMPTS = 2048

Name = Annotated[str, Field(max_length=1000)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
StopWord = Annotated[str, Field(max_length=1000)]


class _Body(BaseModel):
    """An object in which ``null`` is the same as nothing, and what is unknown is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    means_nothing: ClassVar[Mapping[str, object]] = {}
    """Values of unknown names that ask for nothing; applications send them with all requests."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if len(data) > MOST_NAMES:
                raise ValueError(f"it has {len(data)} names; {MOST_NAMES} are read at most")
            nothing = cls.means_nothing
            return {
                name: value
                for name, value in data.items()
                if value is not None and not (name in nothing and value == nothing[name])
            }
        return data


class StreamOptions(_Body):
    """What a stream has beyond the text."""

    include_usage: bool = False


class TextRequest(_Body):
    """What both kinds of requests have; names and meanings are OpenAI's.

    ``top_k``, ``min_p`` and ``repetition_penalty`` are this server's own.
    """

    means_nothing = {
        "logit_bias": {},
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "store": False,
        "suffix": "",
        "tool_choice": "none",
        "tools": [],
    }
    model: Name
    n: int = Field(1, ge=1, le=16)
    max_tokens: Count | None = None
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=1e-3, le=1e3)
    seed: int | None = Field(None, ge=0)
    stop: StopWord | Annotated[list[StopWord], Field(max_length=64, fail_fast=True)] = Field(
        default_factory=list
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: Name = ""
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
    content: str | Annotated[list[TextPart], Field(max_length=4096, fail_fast=True)]
    name: Name = ""

    def for_template(self) -> Mapping[str, str]:
        """The message as chat templates know it."""
        text = self.content
        if not isinstance(text, str):
            text = "".join(part.text for part in text)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(TextRequest):
    """``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=65_536, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: Literal[False] = False

    @property
    def new_tokens(self) -> int | None:
        """How many tokens to generate at most."""
        return self.max_completion_tokens or self.max_tokens


Prompts = Sequence[str | Sequence[int]]
"""Texts, or their tokens."""


def _prompts(prompt: Any) -> Prompts:
    """All prompts: of a text, a list of texts, a list of tokens, or a list of such.

    Each of these is tried by itself: a union would collect what is wrong with each element for each
    of its members.
    """
    if (isinstance(prompt, str) and prompt) or _are_tokens(prompt):
        return [prompt]
    is_list = isinstance(prompt, list) and len(prompt) > 0
    if not is_list or not (
        all(isinstance(one, str) for one in prompt) or all(map(_are_tokens, prompt))
    ):
        raise ValueError("expected a text, several, tokens, or several lists of tokens")
    if len(prompt) > _MOST_PROMPTS:
        raise ValueError(f"it has {len(prompt)} texts; {_MOST_PROMPTS} are taken at most")
    texts: Prompts = prompt
    return texts


def _are_tokens(prompt: object) -> bool:
    return (
        isinstance(prompt, list)
        and len(prompt) > 0
        and all(type(one) is int and one >= 0 for one in prompt)
    )


class CompletionRequest(TextRequest):
    """``/v1/completions``."""

    prompt: Annotated[Prompts, PlainValidator(_prompts)]
    max_tokens: Count | None = 16
    best_of: Literal[1] = 1
    echo: Literal[False] = False


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
        raise InvalidRequest(f"{in_words(error, kind)}.") from error
