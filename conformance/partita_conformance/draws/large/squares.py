"""Draws of half precision whose squares overflow or underflow, while roots and sums do not.

Engines square in float32: in float16, 300 times 300 is infinite and a thousandth of a thousandth
has a digit and a half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw


def _numbers(values: tuple[float, ...], *shape: int) -> Array:
    return np.resize(np.array(values, np.float32), shape)


_TALL = (300.0, -400.0, 1200.0, 500.0)
_FLAT = (0.0010004, -0.0009003, 0.0011)


def _rows(opset: int = 17, **given: Any) -> Callable[[], list[Draw]]:
    """Rows of large numbers, and many of small ones."""
    return lambda: [
        Draw([_numbers(pool, 2, count)], dict(given), (), opset=opset)
        for pool, count in ((_TALL, 4), (_FLAT, 1026))
    ]


def _many_small(**given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw([_numbers(_FLAT, 2, 4098)], dict(given))]


def _planes(opset: int = 17, **given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw([_numbers(_TALL, 1, 2, 4, 4)], dict(given), (), opset=opset)]


SQUARES: Mapping[str, Callable[[], list[Draw]]] = {
    "ReduceL2": _rows(axes=[1]),
    "ReduceSumSquare": _many_small(axes=[1]),
    "LpNormalization": _rows(axis=-1, p=2),
    "GlobalLpPool": _planes(p=2),
    "LpPool": _planes(18, p=2, kernel_shape=[2, 2]),
}
"""Operator to draws of squares; normalizations are tried with values of their own."""


def squares(op_type: str, like: Array | None) -> list[Draw]:
    """Draws of one of :data:`SQUARES` in the element type of an array."""
    assert like is not None  # noqa: S101  # all these operators have a first input
    made = SQUARES[op_type]()
    for one in made:
        one.inputs = [None if a is None else a.astype(like.dtype) for a in one.inputs]
    return made
