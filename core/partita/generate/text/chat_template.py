"""Chat templates: messages become a prompt as a model was trained on them.

A template is Jinja that comes with a model, so a stranger wrote it:
:mod:`partita.generate.text.template_sandbox` says what it can do.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from partita.errors import InputError, TokenizerError
from partita.generate.text.packages import require

Message = Mapping[str, Any]
"""``{"role": "user", "content": "Hello"}``; templates may know further entries."""

LARGEST_TEMPLATE = 256 * 1024
"""Characters that a template may have."""


class ChatTemplate:
    """A chat template that parses.

    Args:
        source: The template.
        origin: Where it was found, for messages.
        tokens: Texts that it may write by name, such as ``bos_token``.

    Raises:
        TokenizerError: It does not parse, is too long, or the package ``jinja2`` is missing.

    Example:
        >>> source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        >>> ChatTemplate(source, "'model.gguf'").render([{"role": "user", "content": "Hi"}])
        '<user>Hi'
    """

    def __init__(self, source: str, origin: str, tokens: Mapping[str, str] | None = None) -> None:
        self._origin = origin
        self._tokens = dict(tokens or {})
        if len(source) > LARGEST_TEMPLATE:
            raise TokenizerError(
                f"The chat template of {origin} has {len(source)} characters; at most "
                f"{LARGEST_TEMPLATE} are read."
            )
        require("jinja2", "a chat template")
        from partita.generate.text.template_sandbox import TemplateSandbox

        self._sandbox = TemplateSandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except Exception as error:  # the parser raises more than its own errors on hostile text
            raise TokenizerError(
                f"The chat template of {origin} does not parse: {str(error).rstrip('.')}. Give the "
                "prompt itself, formatted as the model wants it."
            ) from error

    def render(self, messages: Sequence[Message], answer: bool = True) -> str:
        """The prompt that messages make.

        Args:
            messages: The conversation so far.
            answer: Let the prompt end where the model's answer begins.

        Raises:
            InputError: The messages are none.
            TokenizerError: The template refuses the messages, fails, or goes beyond its limits.
        """
        is_list = isinstance(messages, Sequence) and not isinstance(messages, (str, bytes))
        if not is_list or not all(isinstance(message, Mapping) for message in messages):
            raise InputError(
                f"The messages are {reprlib.repr(messages)}; give a list of entries such as "
                "{'role': 'user', 'content': 'Hello'}."
            )
        values = {
            **self._tokens,
            "messages": [dict(message) for message in messages],
            "add_generation_prompt": answer,
        }
        try:
            with self._sandbox.limits():
                text: str = self._template.render(values)
        except Exception as error:  # what a template evaluates can raise anything
            raise TokenizerError(
                f"The chat template of {self._origin} fails on these messages: "
                f"{type(error).__name__}: {error}"
            ) from error
        return text
