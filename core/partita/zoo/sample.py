"""A natural input of a model, and what the model ought to say to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

Infer = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Runs a model once: inputs by name in, outputs by name out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said.

    Attributes:
        text: The answer in words.
        correct: Whether it is what the input was made to bring about; ``None`` where nobody knows.
    """

    text: str
    correct: bool | None


@dataclass(frozen=True, slots=True)
class Sample:
    """A natural input.

    Attributes:
        description: What the input is, as a noun phrase.
        expected: What the answer should be, as a person would say it.
        feeds: Input name to array for one run; what benchmarks use.
        answer: Runs the model as often as it takes (once, for most; once per piece of sound where
            state is carried along) and says what came out.
        state: Input name to shape of what the model keeps from run to run and begins with zeros; a
            request feeds it itself.
    """

    description: str
    expected: str
    feeds: Mapping[str, Array]
    answer: Callable[[Infer], Answer]
    state: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[Any, tuple[int, ...]]:
        """Input name to shape, as ``Model.reshape`` takes them."""
        return {**{name: array.shape for name, array in self.feeds.items()}, **self.state}
