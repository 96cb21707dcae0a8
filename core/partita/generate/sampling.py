"""Choosing the next token: greedily, or drawn from what temperature, top-k, top-p and min-p leave.

The filters come in the order in which Hugging Face's ``transformers`` applies them: repetition
penalty (Keskar et al. 2019, "CTRL"), temperature, top-k, top-p (Holtzman et al. 2020, "The curious
case of neural text degeneration"), min-p. Nothing sorts the whole vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from partita.errors import InferError, InputError

Array = np.ndarray[Any, Any]

_FIRST_NUCLEUS = 256
"""Candidates among which top-p looks first; eight times as many each time they do not suffice."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 takes the most probable token always; 1 draws from the model's own
            distribution, less sharpens it, more flattens it.
        top_k: Only so many of the most probable tokens are drawn from; 0 for all.
        top_p: Only the fewest most probable tokens that have this probability together.
        min_p: Only tokens that have at least this share of the most probable one's probability.
        repetition_penalty: Logits of tokens that have occurred, in the prompt too, are divided by
            it if they are positive and multiplied if not; 1 for none.
        seed: Of the random numbers; the same seed draws the same tokens. ``None`` for another one
            each time.

    Raises:
        InputError: A value is out of its range; says which, and the range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, kind, fits, allowed in _RANGES:
            value = getattr(self, name)
            if value is None and name == "seed":
                continue
            if not (isinstance(value, kind) and fits(value)):
                raise InputError(f"{name}={value} is out of range; it is {allowed}.")
            object.__setattr__(self, name, _PLAIN[kind](value))


_PLAIN: dict[type, Callable[[Any], float]] = {Real: float, Integral: int}
"""What makes a number of any type one that is computed with."""

_LARGEST = sys.float_info.max

_RANGES: tuple[tuple[str, type, Callable[[Any], bool], str], ...] = (
    ("temperature", Real, lambda value: 0 <= value <= _LARGEST, "0 or more"),
    ("top_k", Integral, lambda value: value >= 0, "a whole number, 0 or more"),
    ("top_p", Real, lambda value: 0 < value <= 1, "above 0 and at most 1"),
    ("min_p", Real, lambda value: 0 <= value <= 1, "from 0 to 1"),
    ("repetition_penalty", Real, lambda value: 1e-3 <= value <= 1e3, "from 0.001 to 1000"),
    ("seed", Integral, lambda value: value >= 0, "a whole number, 0 or more, or None"),
)
"""Of each setting its type, which values of it are right, and what is said of others."""


class Sampler:
    """Chooses the tokens of one sequence.

    Args:
        sampling: How.
        vocabulary_size: How many tokens there are.
        number: Which of several sequences with one seed this is; each draws its own numbers.
    """

    def __init__(self, sampling: Sampling, vocabulary_size: int, number: int = 0) -> None:
        self._sampling = sampling
        seed = None if sampling.seed is None else [sampling.seed, number]
        self._random = np.random.default_rng(seed)
        penalized = sampling.repetition_penalty != 1
        self._seen = np.zeros(vocabulary_size, bool) if penalized else None

    def observe(self, tokens: Iterable[int]) -> None:
        """Tells it tokens that have occurred, for the repetition penalty."""
        if self._seen is not None:
            self._seen[list(tokens)] = True

    def choose(self, logits: Array) -> int:
        """The next token.

        Args:
            logits: Of all tokens, ``[vocabulary]``; not changed.

        Raises:
            InferError: They hold NaN, or nothing that could be chosen.
        """
        highest = logits.max()
        if not np.isfinite(highest):
            raise InferError(
                f"The model's logits cannot be sampled from: their maximum is {highest}. A device "
                "computes wrongly ('partita bisect' finds the operation), or the weights are "
                "damaged."
            )
        if self._seen is not None:
            logits = penalize(logits, self._seen, self._sampling.repetition_penalty)
        if self._sampling.temperature == 0:
            token = int(logits.argmax())
        else:
            tokens, probabilities = distribution(logits, self._sampling)
            drawn = np.searchsorted(probabilities.cumsum(), self._random.random(), side="right")
            token = int(tokens[min(int(drawn), len(tokens) - 1)])
        self.observe([token])
        return token


def penalize(logits: Array, seen: Array, penalty: float) -> Array:
    """Logits with those of tokens that have occurred lowered.

    Args:
        logits: ``[vocabulary]``.
        seen: Which tokens have occurred, bool ``[vocabulary]``.
        penalty: Above 1 to lower them.

    Returns:
        A new array.
    """
    lowered = logits.copy()
    own = logits[seen]
    lowered[seen] = np.where(own > 0, own / penalty, own * penalty)
    return lowered


def distribution(logits: Array, sampling: Sampling) -> tuple[Array, Array]:
    """What is drawn from.

    Args:
        logits: ``[vocabulary]``, with penalties applied.
        sampling: How; its temperature is above 0.

    Returns:
        Tokens that can be drawn, in no particular order, and their probabilities (float64), which
        add up to 1.
    """
    tokens = np.arange(logits.size)
    if 0 < sampling.top_k < logits.size:
        tokens = largest(logits, sampling.top_k)
    scores = logits[tokens].astype(np.float64)
    with np.errstate(over="ignore"):  # a low temperature leaves the most probable ones alone
        weights = np.exp((scores - scores.max()) / sampling.temperature)
    if sampling.top_p < 1:
        kept = nucleus(weights, sampling.top_p)
        tokens, weights = tokens[kept], weights[kept]
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p)  # the most probable token has weight 1
        tokens, weights = tokens[kept], weights[kept]
    return tokens, weights / weights.sum()


def largest(values: Array, count: int) -> Array:
    """Indices of the largest values, largest first; of equal ones the first first.

    Takes time linear in the values, and sorts only those that are returned.

    Args:
        values: Of one axis.
        count: How many; from 1 up to all.
    """
    found = np.argpartition(values, values.size - count)[values.size - count :]
    return found[np.lexsort((found, -values[found]))]


def nucleus(weights: Array, top_p: float) -> Array:
    """Indices of the fewest largest weights that make up a share of their sum, largest first.

    Nucleus sampling: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020).

    Args:
        weights: Of one axis, 0 or more; they need not add up to 1.
        top_p: The share, above 0 and below 1.
    """
    share = top_p * weights.sum()
    count = min(_FIRST_NUCLEUS, weights.size)
    while True:
        found = largest(weights, count)
        sums = weights[found].cumsum()
        if sums[-1] >= share or count == weights.size:
            return found[: int(np.searchsorted(sums, share)) + 1]
        count = min(8 * count, weights.size)
