"""Tokenizers: text to tokens and back, with the chat template that goes with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.errors import InputError, TokenizerError, raised_as
from partita.generate.text.chat_template import ChatTemplate, Message
from partita.generate.text.packages import require, surviving
from partita.generate.text.text_stream import TextStream

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """Text to tokens and back.

    Args:
        engine: The ``tokenizers.Tokenizer`` that does it.
        end_tokens: Tokens with which the model ends a text.
        chat_template: Makes prompts of messages, if the model came with one.
        origin: Where it was found, for messages.
    """

    def __init__(
        self,
        engine: tokenizers.Tokenizer,
        end_tokens: Sequence[int] = (),
        chat_template: ChatTemplate | None = None,
        origin: str = "the model",
    ) -> None:
        self._engine = engine
        self._chat_template = chat_template
        self._origin = origin
        self.end_tokens = frozenset(end_tokens)

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are; the model's logits may be padded to more."""
        size: int = self._engine.get_vocab_size()
        return size

    def encode(self, text: str, formatted: bool = False) -> list[int]:
        """The tokens of a text; special tokens such as ``<|im_end|>`` are known by their names.

        Args:
            text: The text.
            formatted: It has all special tokens already, as :meth:`chat_prompt` makes it; without
                that, those that the model expects around a text are added.

        Raises:
            InputError: It holds halves of characters, as bytes become that are no UTF-8.
            TokenizerError: The tokenizer is damaged.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"The text is none: at place {error.start} it has {text[error.start]!r}, half of a "
                "character. Was it read from bytes that are no UTF-8?"
            ) from None
        with surviving(self._origin):
            tokens: list[int] = self._engine.encode(text, add_special_tokens=not formatted).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones; bytes that are no UTF-8 become U+FFFD."""
        with surviving(self._origin):
            text: str = self._engine.decode(list(tokens), skip_special_tokens=True)
        return text

    def stream(self, before: Sequence[int] = ()) -> TextStream:
        """Turns tokens into text one by one.

        Args:
            before: Tokens that they continue: a space between both belongs to the text then.
        """
        return TextStream(self.decode, before)

    def chat_prompt(self, messages: Sequence[Message]) -> str:
        """The prompt that a conversation makes, up to where the model's answer begins.

        Args:
            messages: ``{"role": ..., "content": ...}`` each; roles are ``"system"``, ``"user"`` and
                ``"assistant"``.

        Raises:
            TokenizerError: The model has no chat template, or it fails on these messages.
        """
        return self.chat_template.render(messages)

    @property
    def chat_template(self) -> ChatTemplate:
        """Makes prompts of messages.

        Raises:
            TokenizerError: The model came without one.
        """
        if self._chat_template is None:
            raise TokenizerError(
                f"There is no chat template with {self._origin}; give the prompt itself, formatted "
                "as the model was trained."
            )
        return self._chat_template


def from_folder(folder: Path, end_tokens: Sequence[int] = ()) -> Tokenizer:
    """The tokenizer of a folder as Hugging Face and onnxruntime-genai write it.

    It is ``tokenizer.json``; the chat template lies in ``chat_template.jinja`` or
    ``tokenizer_config.json``.

    Args:
        folder: Where the files are.
        end_tokens: Tokens that end a text, besides the one that ``tokenizer_config.json`` names.

    Raises:
        TokenizerError: There is none, it is damaged, or a package is missing.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"There is no 'tokenizer.json' in '{folder}'; put it beside the model, or give tokens."
        )
    require("tokenizers", "a tokenizer")
    import tokenizers

    what = f"'{path}' is not a tokenizer that can be read"
    with surviving(f"'{folder}'"), raised_as(TokenizerError, what):
        engine = tokenizers.Tokenizer.from_file(str(path))
    config = read_json(folder / "tokenizer_config.json")
    names = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token")}
    end = engine.token_to_id(names["eos_token"]) if names["eos_token"] else None
    ends = [*end_tokens, *([] if end is None else [end])]
    own = folder / "chat_template.jinja"
    source = _default_template(config)
    if own.is_file():
        with raised_as(TokenizerError, f"'{own}' is not a chat template that can be read"):
            source = own.read_text("utf-8")
    template = ChatTemplate(source, f"'{folder}'", names) if source else None
    return Tokenizer(engine, ends, template, f"'{folder}'")


def read_json(path: Path) -> Mapping[str, Any]:
    """The entries of a JSON file; none if there is no such file.

    Raises:
        TokenizerError: It is damaged.
    """
    if not path.is_file():
        return {}
    with raised_as(TokenizerError, f"'{path}' is no JSON that can be read"):
        entries = json.loads(path.read_text("utf-8"))
        if not isinstance(entries, dict):
            raise ValueError(f"it holds a {type(entries).__name__}, not entries by name")
    return entries


def _token_text(entry: Any) -> str:
    """A token as ``tokenizer_config.json`` names it: as a text, or as an entry that has one."""
    found = entry.get("content") if isinstance(entry, Mapping) else entry
    return found if isinstance(found, str) else ""


def _default_template(config: Mapping[str, Any]) -> str:
    found = config.get("chat_template")
    if isinstance(found, list):  # several by name
        entries = (one for one in found if isinstance(one, Mapping))
        found = next((e.get("template") for e in entries if e.get("name") == "default"), None)
    return found if isinstance(found, str) else ""
