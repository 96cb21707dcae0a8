"""Checks that a prompt and its answer fit the context, also before a model is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from partita.errors import ContextLengthError, InputError

DEFAULT_CONTEXT = 4096
"""Tokens of the context if none is asked for and the model was made for more."""


def room_of(context: int | None, capacity: int | None, longest: int | None) -> int:
    """Tokens that a prompt and its answer have room for together.

    Args:
        context: What is asked for; ``None`` leaves it to the model.
        capacity: What its cache holds; ``None`` if that grows.
        longest: What it was made for, if that is known; not taken as a whole where its cache would
            take all memory.
    """
    return context or capacity or min(DEFAULT_CONTEXT, longest or DEFAULT_CONTEXT)


def require_tokens(prompt: Sequence[object]) -> None:
    """Refuses a prompt without tokens.

    Raises:
        InputError: It has none.
    """
    if len(prompt) == 0:
        raise InputError("The prompt has no tokens; at least one is needed to begin with.")


def require_count(name: str, value: int | None) -> None:
    """Refuses what is given for a number of something and is none.

    Raises:
        InputError: It is no whole number above 0.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is not None and not (whole and value >= 1):
        raise InputError(f"{name}={value}; it must be a whole number above 0.")


def new_tokens(
    prompt: int, wanted: int | None, context: int, longest: int | None
) -> tuple[int, str]:
    """How many tokens may follow a prompt, and why no more.

    Args:
        prompt: Tokens of the prompt.
        wanted: How many are asked for at most; ``None`` for as many as have room.
        context: Tokens of prompt and answer together.
        longest: Tokens of the longest text that the model was made for, if that is known.

    Raises:
        InputError: ``wanted`` is no number of tokens.
        ContextLengthError: They have no room.
    """
    require_count("max_new_tokens", wanted)
    room = context - prompt
    least = 1 if wanted is None else wanted
    if least <= room:
        return (room, "context") if wanted is None else (wanted, "length")
    longer = f"the model takes a context of up to {longest}"
    if longest is None or prompt + least > longest:
        longer = "shorten the prompt" if room < 1 else f"at most {room} new tokens fit"
    elif room >= 1:
        longer = f"at most {room} new tokens fit, and {longer}"
    raise ContextLengthError(
        f"A prompt of {prompt} tokens and {least} new ones do not fit into the context of "
        f"{context} tokens; {longer}."
    )
