"""Draws of more than 65,535 rows of few elements each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw

_COUNT = 65_543
"""A prime behind 2**16: more than a grid of threads has blocks along its second axis."""


def _numbers(*shape: int) -> Array:
    """Numbers above zero; no few rows in a row are those before them, nor 65,535 or 65,536 away."""
    values = np.arange(int(np.prod(shape))) * 7919 % 2003 / 1001 + 0.03
    return np.asarray(values, np.float32).reshape(shape)


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)


_ROWS, _SIGNED = _numbers(_COUNT, 2), _numbers(_COUNT, 2) - 1
_ROW, _COLUMN = _numbers(2) + 1, _numbers(_COUNT, 1) + 1


def _one(*inputs: Array, constant: tuple[int, ...] = (), **given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw(list(inputs), given, constant)]


def _newer(opset: int, *inputs: Array, **given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw(list(inputs), given, range(1, len(inputs)), opset=opset)]


def _each(text: str, made: Callable[[], list[Draw]]) -> dict[str, Callable[[], list[Draw]]]:
    return dict.fromkeys(text.split(), made)


def _pairs(*inputs: Array) -> Callable[[], list[Draw]]:
    """Rows beside a row, which is a constant, and beside a column."""
    first = inputs[0]
    return lambda: [Draw([first, inputs[1]], {}, [1]), Draw([first, inputs[2]])]


ROWS: Mapping[str, Callable[[], list[Draw]]] = {
    **_each(
        "Abs Neg Relu Floor Ceil Round Sign Identity Sigmoid Tanh Exp Sin Cos Erf Softplus"
        " Softsign HardSwish HardSigmoid LeakyRelu Elu Selu Celu Atan Clip ThresholdedRelu Shrink"
        " IsNaN IsInf Dropout",
        _one(_SIGNED),
    ),
    **_each("Sqrt Log Reciprocal", _one(_ROWS)),
    **_each("Gelu Mish", _newer(20, _SIGNED)),
    "Not": _one(_SIGNED > 0),
    **_each(
        "Add Sub Mul Div Pow Max Min Greater Less Equal GreaterOrEqual LessOrEqual",
        _pairs(_ROWS, _ROW, _COLUMN),
    ),
    **_each("And Or Xor", _pairs(_ROWS > 1, _ROW > 1.02, _COLUMN > 2)),
    "PRelu": _pairs(_SIGNED, _ROW, _COLUMN),
    "Where": _one(_ROWS > 1, _ROWS, -_COLUMN),
    "Cast": _one(_ROWS * 90, to=6),
    **_each("Softmax LogSoftmax Hardmax LpNormalization", _one(_ROWS, axis=-1)),
    **_each(
        "ReduceMean ReduceMax ReduceMin ReduceL1 ReduceL2 ReduceProd ReduceSumSquare"
        " ReduceLogSum ReduceLogSumExp",
        _one(_ROWS, axes=[-1]),
    ),
    "ReduceSum": _one(_ROWS, _int64(-1), constant=(1,)),
    **_each("ArgMax ArgMin", _one(_ROWS, axis=1)),
    "TopK": lambda: [Draw([_ROWS, _int64(1)], {"axis": 1}, [1], 2)],
    "CumSum": _one(_ROWS, np.array(1, np.int64), constant=(1,)),
    "LayerNormalization": _one(_numbers(_COUNT, 4), _numbers(4), _numbers(4), constant=(1, 2)),
    "RMSNormalization": _newer(23, _numbers(_COUNT, 4), _numbers(4)),
    "BatchNormalization": _one(_ROWS, _ROW, _ROW, _ROW, _ROW, constant=(1, 2, 3, 4)),
    "GlobalAveragePool": _one(_numbers(_COUNT, 1, 3)),
    "GlobalMaxPool": _one(_numbers(_COUNT, 1, 3)),
    "MatMul": lambda: [
        Draw([_ROWS, _numbers(2, 3)], {}, [1]),
        Draw([_numbers(_COUNT, 1, 2), _numbers(_COUNT, 2, 1)]),
    ],
    "Gemm": _one(_ROWS, _numbers(3, 2), _numbers(3), transB=1, constant=(1, 2)),
    "Einsum": _one(_ROWS, _ROWS[::-1].copy(), equation="ij,ij->i"),
    "Transpose": lambda: [
        Draw([_ROWS], {"perm": [1, 0]}),
        Draw([_numbers(_COUNT, 2, 2)], {"perm": [0, 2, 1]}),
    ],
    "Concat": lambda: [Draw([_ROWS, _COLUMN], {"axis": 1}), Draw([_ROWS, _ROWS], {"axis": 0})],
    "Split": lambda: [Draw([_ROWS], {"axis": 1}, (), 2)],
    "Slice": _one(_ROWS, _int64(1), _int64(2), _int64(1), constant=(1, 2, 3)),
    "Gather": lambda: [
        Draw([_ROWS, np.arange(_COUNT)[::-1].copy()], {"axis": 0}),
        Draw([_ROWS, _int64(1, 0, 1)], {"axis": 1}),
    ],
    "GatherElements": _one(_ROWS, (_ROWS > 1).astype(np.int64), axis=1),
    "GatherND": _one(_ROWS, np.arange(_COUNT)[::-1, None].copy()),
    "ScatterElements": _one(_ROWS, np.tile(_int64(1, 0), (_COUNT, 1)), -_ROWS, axis=1),
    "ScatterND": _one(_ROWS, np.arange(_COUNT)[::-1, None].copy(), -_ROWS),
    "Pad": _one(_ROWS, _int64(0, 1, 0, 0), constant=(1,)),
    "Tile": _one(_COLUMN, _int64(1, 2), constant=(1,)),
    "Expand": _one(_COLUMN, _int64(_COUNT, 2), constant=(1,)),
    "Reshape": _one(_ROWS, _int64(2, -1), constant=(1,)),
    "Flatten": _one(_ROWS, axis=2),
    "Squeeze": _one(_COLUMN, _int64(1), constant=(1,)),
    "Unsqueeze": _one(_ROWS, _int64(1), constant=(1,)),
    "OneHot": _one(np.arange(_COUNT) % 3, np.array(3), _numbers(2), constant=(1, 2)),
    "Trilu": _one(_numbers(_COUNT, 2, 2)),
    "QuantizeLinear": _one(
        _ROWS, np.array(0.0625, np.float32), np.array(3, np.uint8), constant=(1, 2)
    ),
    "DequantizeLinear": _one(
        np.asarray(_ROWS * 60, np.uint8),
        np.array(0.0625, np.float32),
        np.array(3, np.uint8),
        constant=(1, 2),
    ),
    "MatMulInteger": _one(np.asarray(_ROWS * 60, np.uint8), np.asarray(_ROW[:, None], np.uint8)),
    "Conv": _one(_numbers(1, 1, _COUNT, 2), _numbers(2, 1, 1, 2), constant=(1,)),
    "MaxPool": _one(_numbers(1, 1, _COUNT, 2), kernel_shape=[2, 2]),
}
"""Operator to draws of many rows."""
