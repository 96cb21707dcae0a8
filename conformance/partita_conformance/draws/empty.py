"""Draws with empty tensors: inputs, outputs, or parts of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw


def _numbers(*shape: int) -> Array:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)


def _one(*inputs: Array, constant: tuple[int, ...] = (), **given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw(list(inputs), given, constant)]


_NOTHING = _numbers(2, 0, 3)
_UNARY = ("Abs", "Neg", "Relu", "Sigmoid", "Exp", "Sqrt", "Identity", "Floor", "Erf", "Cos")
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Greater", "Less", "Equal", "Sum", "Mean")

EMPTY: Mapping[str, Callable[[], list[Draw]]] = {
    **{op: _one(_NOTHING) for op in _UNARY},
    **{op: _one(_NOTHING, _numbers(1, 3)) for op in _BINARY},
    "Where": _one(np.ones((2, 1, 3), np.bool_), _NOTHING, _numbers(1)),
    "Cast": _one(_NOTHING, to=7),
    **{op: _one(_NOTHING, axes=[1]) for op in ("ReduceProd", "ReduceL1", "ReduceSumSquare")},
    "ReduceSum": _one(_NOTHING, _int64(1), constant=(1,)),
    "Softmax": _one(_NOTHING),
    "MatMul": _one(_numbers(2, 0), _numbers(0, 3)),
    "Gemm": _one(_numbers(2, 0), _numbers(0, 3), _numbers(3)),
    "Concat": _one(_numbers(2, 1), _numbers(2, 0), _numbers(2, 3), axis=1),
    "Split": lambda: [Draw([_numbers(4), _int64(1, 0, 3)], {}, [1], 3)],
    "Slice": _one(_numbers(3, 4), _int64(2), _int64(2), _int64(1), constant=(1, 2, 3)),
    "Gather": _one(_numbers(3, 4), np.zeros((0,), np.int64)),
    "GatherElements": _one(_numbers(3, 4), np.zeros((0, 4), np.int64)),
    "Transpose": _one(_NOTHING, perm=[2, 0, 1]),
    "Reshape": _one(_NOTHING, _int64(0, 5), constant=(1,), allowzero=1),
    "Flatten": _one(_NOTHING),
    "Squeeze": _one(_numbers(1, 0), _int64(0), constant=(1,)),
    "Unsqueeze": _one(_numbers(0, 2), _int64(0), constant=(1,)),
    "Expand": _one(_numbers(3, 1), _int64(3, 0), constant=(1,)),
    "Tile": _one(_numbers(2, 3), _int64(2, 0), constant=(1,)),
    "Pad": _one(_numbers(0, 2), _int64(1, 0, 1, 1), constant=(1,)),
    "TopK": lambda: [Draw([_numbers(2, 3), _int64(0)], {}, [1], 2)],
    "CumSum": _one(_NOTHING, np.array(1, np.int64), constant=(1,)),
    "Trilu": _one(_numbers(2, 0)),
    "NonZero": _one(np.zeros((2, 3), np.float32)),
    "Compress": _one(_numbers(3, 2), np.zeros(3, np.bool_), axis=0),
    "ScatterND": _one(_numbers(3, 2), np.zeros((0, 1), np.int64), _numbers(0, 2)),
    "ScatterElements": _one(_numbers(3, 2), np.zeros((0, 2), np.int64), _numbers(0, 2)),
    "OneHot": _one(np.zeros((0,), np.int64), np.array(3, np.int64), _numbers(2), constant=(1, 2)),
    "Shape": _one(_NOTHING),
    "Size": _one(_NOTHING),
    "Range": _one(*(np.array(n, np.float32) for n in (3, 1, 1))),
    "ConstantOfShape": _one(_int64(2, 0)),
    "ArgMax": _one(_NOTHING, axis=2),
    "Conv": _one(_numbers(0, 2, 4), _numbers(3, 2, 2)),
    "MaxPool": _one(_numbers(0, 2, 4), kernel_shape=[2]),
    "LayerNormalization": _one(_numbers(0, 3), _numbers(3)),
}
"""Operator to draws in which something is empty."""
