"""What a pattern is: operators that compilers know as one, with slots for what may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from partita_conformance.draws.draw import Array

Choice: TypeAlias = "str | Array"


class Pattern(NamedTuple):
    """A pattern.

    Attributes:
        ports: The model's inputs, in ONNX's text.
        body: Operations that end in ``y``; words in braces are slots, and ``_`` begins the names of
            values between.
        slots: What may stand in each slot: text, or a weight. The first one is what is known.
            Choices that do not fit each other, ONNX refuses; these are left out.
        element: The type of the result.
        opset: That it is written in.
        numbers: Some that a second run's inputs hold, where the pattern matters to them.
    """

    ports: str
    body: str
    slots: Mapping[str, Sequence[Choice]]
    element: str = "float"
    opset: int = 17
    numbers: Sequence[float] = ()


def one(value: float, dtype: Any = np.float32) -> Array:
    """A number without dimensions."""
    return np.array(value, dtype)


def row(*values: float) -> Array:
    """Numbers in a row."""
    return np.array(values, np.float32)


def whole(*values: int) -> Array:
    """Whole numbers in a row: sizes, axes, places."""
    return np.array(values, np.int64)


AXES = ("[-1]", "[1]", "[0]", "[1,2]", "[-2,-1]", "[0,2]")
"""Axes of three, as attributes write them."""
SPECIAL = (0.0, -1.0, 2.0, np.inf, -np.inf, np.nan)
"""Numbers that identities of arithmetic forget."""
