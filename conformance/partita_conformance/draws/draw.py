"""What every random model of one operator is made of: the draw, and random shapes and arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

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
        opset: The opset that the node is written in.
        domain: Of the operator.
    """

    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    constant: Sequence[int] = ()
    outputs: int = 1
    opset: int = 17
    domain: str = ""

    @property
    def element_type(self) -> str:
        """ONNX's name, in small letters, of the type of the first input that there is."""
        first = next(array for array in self.inputs if array is not None)
        element = helper.np_dtype_to_tensor_dtype(first.dtype)
        return str(onnx.TensorProto.DataType.Name(element)).lower()


Generator = Callable[[Rng], Draw]


class WideRng(np.random.Generator):
    """Random numbers for draws of sizes that no vector divides; see :func:`random_shape`."""


class ShapedRng(np.random.Generator):
    """Random numbers for a draw whose first shape is known.

    Args:
        seed: Which numbers.
        shape: That :func:`random_shape` gives the first time that it is asked, of any rank.
    """

    def __init__(self, seed: int, shape: Sequence[int]) -> None:
        super().__init__(np.random.PCG64(seed))
        self.known: list[list[int]] = [list(shape)]


def random_shape(rng: Rng, low: int = 1, high: int = 4, most: int = 7) -> list[int]:
    """A random shape; that of a wide draw ends in more.

    Args:
        rng: Draws it.
        low: Fewest dimensions.
        high: Most dimensions.
        most: No size is as large, but for wide draws.
    """
    if isinstance(rng, ShapedRng) and rng.known:
        return rng.known.pop()
    shape = [int(n) for n in rng.integers(1, most, rng.integers(low, high + 1))]
    if isinstance(rng, WideRng) and shape:
        shape[-1] = int(rng.choice((17, 35, 67, 131)))
        if len(shape) > 1 and rng.random() < 0.5:
            shape[0] = int(rng.choice((9, 19, 37)))
    return shape


def size(rng: Rng, low: int, high: int) -> int:
    """A size of ``[low, high)``; that of a wide draw is larger, and no vector divides it."""
    return (
        int(rng.choice((17, 35, 45))) if isinstance(rng, WideRng) else int(rng.integers(low, high))
    )


def floats(rng: Rng, shape: Sequence[int]) -> Array:
    """Normal numbers."""
    return np.asarray(rng.standard_normal(tuple(shape)), np.float32)


def ints(rng: Rng, low: int, high: int, shape: Sequence[int] | int) -> Array:
    """Random whole numbers as int64.

    Args:
        rng: Draws them.
        low: The least that is drawn.
        high: One more than the largest.
        shape: How many.
    """
    return np.asarray(rng.integers(low, high, shape), np.int64)


def one_of(rng: Rng, *values: Any) -> Any:
    """One of the values."""
    return values[int(rng.integers(len(values)))]


def random_axis(rng: Rng, rank: int) -> int:
    """An axis, from the front or from the back."""
    return int(rng.integers(-rank, rank))


def bools(rng: Rng, shape: Sequence[int]) -> Array:
    """Either value."""
    return np.asarray(rng.random(tuple(shape)) < 0.5)


def scalar(value: float, dtype: Any = np.int64) -> Array:
    """A tensor without dimensions."""
    return np.array(value, dtype)


def integers(rng: Rng, low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    """Random whole numbers of any type.

    Args:
        rng: Draws them.
        low: The least that is drawn.
        high: One more than the largest.
        shape: How many.
        dtype: Their type, which has room for them.
    """
    return np.asarray(rng.integers(low, high, shape), dtype)
