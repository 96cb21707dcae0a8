"""Draws of half precision whose sums change if every partial sum is rounded.

Engines keep sums in float32, whatever the type of their terms. Neither half precision holds the sum
of so many ones before: in float16, 2048 and one is 2048.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw

_MANY = 4099
_LARGE = 30_000
"""A term of a mean; no half precision holds the sum of many."""
_LOG_MANY = 8.3125
"""About the logarithm of :data:`_MANY`: its exponential is as much as that of all zeros."""


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def _first(value: float, rest: float) -> Array:
    """Two rows of many numbers, the first of which is as much as all others together."""
    x = np.full((2, _MANY), rest, np.float32)
    x[:, 0] = value
    return x


def _signs(*shape: int) -> Array:
    """Ones of either sign, of which the mean is zero and the variance is one."""
    return np.asarray(np.where(np.indices(shape)[-1] % 2, -1, 1), np.float32)


def _one(*inputs: Array, **given: Any) -> Callable[[], Draw]:
    return lambda: Draw(list(inputs), given, range(1, len(inputs)))


def _newer(opset: int, *inputs: Array, **given: Any) -> Callable[[], Draw]:
    return lambda: Draw(list(inputs), given, range(1, len(inputs)), opset=opset)


_ROWS = _ones(2, _MANY)
_PAIR = 2 * (_MANY // 2)

_DRAWS: Mapping[str, Callable[[], Draw]] = {
    **dict.fromkeys(("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"), _one(_ROWS)),
    "ReduceLogSum": _one(_ROWS),
    "ReduceLogSumExp": _one(0 * _ROWS),
    "ReduceMean": _one(_LARGE * _ROWS),
    "Mean": lambda: Draw([_LARGE * _ones(7), 2 * _LARGE * _ones(7), _LARGE * _ones(7)]),
    "CumSum": _one(_ROWS, np.array(1, np.int64)),
    "Softmax": _one(_first(_LOG_MANY, 0)),
    "LogSoftmax": _one(_first(_LOG_MANY, 0)),
    "LpNormalization": _one(_first(4096, 1), p=1),
    "MatMul": _one(_ROWS, _ones(_MANY, 3)),
    "Gemm": _one(_ROWS, _ones(_MANY, 3)),
    "Einsum": _one(_ROWS, _ones(_MANY, 3), equation="ij,jk->ik"),
    "Conv": _one(_ones(1, 456, 3, 4), _ones(2, 456, 3, 3)),
    "ConvTranspose": _one(_ones(1, _MANY, 1, 2), _ones(_MANY, 2, 1, 1)),
    "GlobalAveragePool": _one(_LARGE * _ROWS[None]),
    "AveragePool": _one(_LARGE * _ones(1, 1, 66, 64), kernel_shape=[65, 64]),
    "GlobalLpPool": _one(_ROWS[None], p=1),
    "LpPool": _newer(18, _ones(1, 1, 66, 64), kernel_shape=[65, 64], p=1),
    "LayerNormalization": _one(_signs(2, _PAIR), _ones(_PAIR)),
    "RMSNormalization": _newer(23, _signs(2, _PAIR), _ones(_PAIR)),
    "InstanceNormalization": _one(_signs(1, 2, _PAIR), _ones(2), 0 * _ones(2)),
    "GroupNormalization": _newer(21, _signs(1, 2, _PAIR), _ones(2), 0 * _ones(2), num_groups=1),
    "MeanVarianceNormalization": _one(_signs(1, 2, 1, _PAIR), axes=[3]),
    "RNN": _one(_ones(1, 1, _MANY), _ones(1, 2, _MANY), 0 * _ones(1, 2, 2), activations=["Relu"]),
    "Attention": _newer(
        23,
        _ones(1, 1, 1, 4),
        (_first(_LOG_MANY / 2, 0)[:1, :, None] * _ones(4))[None],
        (_first(1, 0)[:1, :, None] * _ones(4))[None],
    ),
    "NegativeLogLikelihoodLoss": _one(-_ones(_MANY, 2), np.zeros(_MANY, np.int64), reduction="sum"),
}

LONG_SUMS = frozenset(_DRAWS)
"""Operators that add up, of which a draw of a long sum is tried."""


OF_AN_AXIS = frozenset(op_type for op_type in _DRAWS if op_type.startswith("Reduce"))
"""Those that add up everything unless they are given axes, which may be other code."""


def long_sum(op_type: str, like: Array | None, of_an_axis: bool = False) -> Draw:
    """A draw of one of :data:`LONG_SUMS` in the element type of an array.

    Args:
        op_type: The operator.
        like: The array.
        of_an_axis: Whether it is given the axis; only for those of :data:`OF_AN_AXIS`.
    """
    made = _DRAWS[op_type]()
    assert like is not None  # noqa: S101  # all these operators have a first input
    made.inputs = [
        a.astype(like.dtype) if a is not None and a.dtype == np.float32 else a for a in made.inputs
    ]
    if of_an_axis and op_type == "ReduceSum":
        made.inputs, made.constant = [*made.inputs, np.array([1], np.int64)], [1]
    elif of_an_axis:
        made.attributes = {**made.attributes, "axes": [1]}
    return made
