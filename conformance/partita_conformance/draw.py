"""What every random model of one operator is made of: the draw, and random shapes and arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


@dataclass
class Draw:
    """One operator with its inputs.

    Attributes:
        inputs: Arrays in order; ``None`` leaves an optional one out.
        attributes: The node's attributes.
        constant: Positions of inputs that are part of the model.
        outputs: Number of outputs.
    """

    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    constant: Sequence[int] = ()
    outputs: int = 1


Generator = Callable[[Rng], Draw]


def random_shape(rng: Rng, low: int = 1, high: int = 4, most: int = 7) -> list[int]:
    """A random shape of ``low`` to ``high`` dimensions below ``most``."""
    return [int(n) for n in rng.integers(1, most, rng.integers(low, high + 1))]


def floats(rng: Rng, shape: Sequence[int]) -> Array:
    """Normal numbers."""
    return np.asarray(rng.standard_normal(tuple(shape)), np.float32)


def ints(rng: Rng, low: int, high: int, shape: Sequence[int] | int) -> Array:
    """Whole numbers of ``[low, high)``."""
    return np.asarray(rng.integers(low, high, shape), np.int64)


def random_axis(rng: Rng, rank: int) -> int:
    """An axis, from the front or from the back."""
    return int(rng.integers(-rank, rank))


def bools(rng: Rng, shape: Sequence[int]) -> Array:
    """Either value."""
    return np.asarray(rng.random(tuple(shape)) < 0.5)
