"""Generating text with language models: tokenizers, sampling, chat templates, batches.

Needs ``pip install "partita[generate]"`` for tokenizers and chat templates.

Example:
    >>> from partita.generate import Generator
    >>> generator = Generator("zoo:smollm2", "CPU", context=1024)             # doctest: +SKIP
    >>> for piece in generator.generate("The capital of France is"):          # doctest: +SKIP
    ...     print(piece.text, end="", flush=True)
"""

from __future__ import annotations

from partita.generate.generation import Piece
from partita.generate.generator import Generator, Prompt, SamplingOptions
from partita.generate.sampling import Sampling
from partita.generate.statistics import Statistics
from partita.generate.text.chat_template import ChatTemplate, Message
from partita.generate.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Generator",
    "Message",
    "Piece",
    "Prompt",
    "Sampling",
    "SamplingOptions",
    "Statistics",
    "Tokenizer",
]
