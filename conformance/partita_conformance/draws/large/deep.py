"""Draws of six and seven dimensions, more than kernels are usually written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw

_SHAPE = (2, 3, 1, 2, 3, 2)
_DEEPER = (2, 1, 2, 3, 1, 2, 2)


def _numbers(*shape: int) -> Array:
    count = int(np.prod(shape))
    return np.asarray((np.arange(count) * 5 % 23 - 11) / 4, np.float32).reshape(shape)


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)


def _one(*inputs: Array, constant: tuple[int, ...] = (), **given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw(list(inputs), given, constant)]


_X = _numbers(*_SHAPE)
_ALONG = ("Softmax", "LogSoftmax", "ArgMax", "ArgMin")
_REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceProd")
_BINARY = ("Add", "Sub", "Mul", "Max", "Greater", "Equal")


def _binary() -> list[Draw]:
    """Each input broadcast along other axes than the one beside it."""
    row, column = _numbers(3, 1, 2, 1, 2), _numbers(2, 1, 1, 2, 1, 1)
    return [Draw([_X, row]), Draw([column, _X]), Draw([_numbers(*_DEEPER), _numbers(3, 1, 1, 2)])]


DEEP: Mapping[str, Callable[[], list[Draw]]] = {
    **dict.fromkeys(_BINARY, _binary),
    **{op: _one(_X, axis=1) for op in _ALONG},
    **{op: _one(_X, axes=[1, 3, -1]) for op in _REDUCTIONS},
    "ReduceSum": _one(_X, _int64(0, 2, 4), constant=(1,)),
    "Transpose": lambda: [
        Draw([_X], {"perm": [3, 0, 5, 1, 4, 2]}),
        Draw([_numbers(*_DEEPER)], {"perm": [6, 0, 3, 1, 5, 2, 4]}),
    ],
    "Concat": _one(_X, _X[..., :2, :], axis=4),
    "Split": lambda: [Draw([_X, _int64(1, 2)], {"axis": 1}, [1], 2)],
    "Slice": _one(_X, _int64(0, 2), _int64(1, -4), _int64(3, 4), _int64(1, -1), constant=(1, 2, 3)),
    "Pad": _one(_X, _int64(0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 0), constant=(1,)),
    "Expand": _one(_X, _int64(2, 3, 4, 2, 3, 2), constant=(1,)),
    "Tile": _one(_X, _int64(1, 2, 1, 1, 2, 1), constant=(1,)),
    "Gather": _one(_X, _int64(2, -3), axis=4),
    "GatherElements": _one(_X, np.asarray(np.abs(_X) * 4 % 3, np.int64), axis=1),
    "Where": _one(_X > 0, _X, _numbers(2, 3, 1)),
    "CumSum": _one(_X, np.array(-2, np.int64), constant=(1,)),
    "MatMul": _one(_X, _numbers(3, 1, 1, 2, 4)),
    "Flatten": _one(_X, axis=4),
    "Squeeze": _one(_X, _int64(2), constant=(1,)),
    "Unsqueeze": _one(_X, _int64(-1, 1), constant=(1,)),
    "Reshape": _one(_X, _int64(3, -1, 1, 2, 2, 0), constant=(1,)),
}
"""Operator to draws of many dimensions."""
