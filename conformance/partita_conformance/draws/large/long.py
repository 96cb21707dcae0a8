"""Draws of rows longer than a block of threads, and of matrices of more than one tile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partita_conformance.draws.draw import Array, Draw

_ROW = 2053
"""A prime that is more than any device has threads in a block."""
_TILES = (70, 45)


def _numbers(*shape: int) -> Array:
    """Numbers between -2 and 2 whose largest stand at the end."""
    count = int(np.prod(shape))
    values = (np.arange(count) * 7919) % 401 / 200 - 1 + np.arange(count) / count
    return np.asarray(values, np.float32).reshape(shape)


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)


def _one(*inputs: Array, constant: tuple[int, ...] = (), **given: Any) -> Callable[[], list[Draw]]:
    return lambda: [Draw(list(inputs), given, constant)]


def _reduced() -> list[Draw]:
    """Along the last axis, along the first one, and of all elements."""
    x = _numbers(3, _ROW)
    return [Draw([x], {"axes": [-1]}), Draw([x.T.copy()], {"axes": [0]}), Draw([x])]


def _summed() -> list[Draw]:
    x = _numbers(3, _ROW)
    return [Draw([x, _int64(-1)], {}, [1]), Draw([x.T.copy(), _int64(0)], {}, [1]), Draw([x])]


def _scanned() -> list[Draw]:
    """Either way, with an element's own number and without, over a block and one element, and more.

    Along the last axis and along the first one.
    """
    draws = []
    for length, exclusive, reverse in itertools.product((129, 1000, _ROW), (0, 1), (0, 1)):
        x, given = _numbers(3, length), {"exclusive": exclusive, "reverse": reverse}
        draws += [Draw([x, np.array(1, np.int64)], given, [1])]
        draws += [Draw([x.T.copy(), np.array(0, np.int64)], given, [1])]
    return draws


_ROWS = _numbers(3, _ROW)
_TIED = np.tile(np.resize(np.array([0, 0, 0, 2, 0, -2], np.float32), 101), (3, 1))
"""Rows in which the largest and the least stand often, in other lanes of a vector each time."""
_BYTES = np.asarray(255 - np.arange(210) % 7, np.uint8).reshape(3, 70)
_SIGNED_BYTES = np.asarray(127 - np.arange(350) % 5 - 250 * (np.arange(350) % 3 == 0), np.int8)
_SIGNED_BYTES = _SIGNED_BYTES.reshape(70, 5)
"""Bytes of which two products add up to more than sixteen bits hold."""
_STEPS = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""Places that are whole numbers, which is lost where steps are added up."""
_ALONG = ("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
_REDUCTIONS = ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp")

LONG: Mapping[str, Callable[[], list[Draw]]] = {
    **{op: lambda: [Draw([_ROWS]), Draw([_ROWS.T.copy()], {"axis": 0})] for op in _ALONG},
    **dict.fromkeys(_REDUCTIONS, _reduced),
    "ReduceSum": _summed,
    **dict.fromkeys(
        ("ArgMax", "ArgMin"),
        lambda: [
            *(Draw([_ROWS], {"axis": a}) for a in (0, 1)),
            *(Draw([_TIED], {"axis": 1, "select_last_index": last}) for last in (0, 1)),
        ],
    ),
    "TopK": lambda: [
        Draw([_ROWS, _int64(k)], {"axis": 1, "largest": largest}, [1], 2)
        for k, largest in ((5, 1), (600, 1), (5, 0), (600, 0))
    ],
    "CumSum": _scanned,
    "Range": lambda: [Draw([np.array(n, np.float32) for n in (1, 201, 0.1)])],
    "LayerNormalization": _one(_ROWS, _numbers(_ROW), _numbers(_ROW), constant=(1, 2)),
    "InstanceNormalization": _one(_numbers(1, 3, _ROW), _numbers(3), _numbers(3), constant=(1, 2)),
    "MatMul": _one(_numbers(70, 1100), _numbers(1100, 45)),
    "MatMulInteger": _one(_BYTES, _SIGNED_BYTES, constant=(1,)),
    "ConvInteger": _one(
        _BYTES.reshape(1, 7, 1, 30), _SIGNED_BYTES.reshape(-1, 7, 1, 5), constant=(1,)
    ),
    "Gemm": _one(_numbers(70, 300), _numbers(45, 300), _numbers(45), transB=1),
    "Transpose": lambda: [
        Draw([_numbers(*_TILES)]),
        Draw([_numbers(3, *_TILES)], {"perm": [0, 2, 1]}),
        Draw([_numbers(*_TILES, 3)], {"perm": [2, 1, 0]}),
    ],
    "Concat": _one(_ROWS, _numbers(3, 7), _ROWS, axis=1),
    "Split": lambda: [Draw([_ROWS, _int64(2000, 53)], {"axis": 1}, [1], 2)],
    "Gather": _one(_numbers(7, 5), np.arange(_ROW) % 14 - 7),
    "GatherElements": _one(_ROWS, np.tile(np.arange(_ROW)[::-1], (3, 1)), axis=1),
    "Slice": _one(_ROWS, _int64(1), _int64(2050), _int64(1), _int64(3), constant=(1, 2, 3, 4)),
    "Pad": _one(_ROWS, _int64(0, 3, 1, 0), constant=(1,)),
    "Tile": _one(_numbers(3, 700), _int64(1, 3), constant=(1,)),
    "Expand": _one(_numbers(3, 1), _int64(3, _ROW), constant=(1,)),
    "NonZero": _one(np.round(_ROWS)),
    "Compress": _one(_numbers(_ROW), np.arange(_ROW) % 3 == 0, axis=0),
    "OneHot": _one(np.arange(300), np.array(300), _numbers(2), constant=(1, 2)),
    "GlobalAveragePool": _one(_numbers(1, 2, *_TILES)),
    "GlobalMaxPool": _one(_numbers(1, 2, *_TILES)),
    "MaxPool": _one(_numbers(1, 2, *_TILES), kernel_shape=[3, 3], strides=[2, 2]),
    "Conv": _one(_numbers(1, 3, *_TILES), _numbers(20, 3, 3, 3), constant=(1,)),
    "Resize": lambda: (
        [
            Draw([_numbers(1, 1, 2, 41), None, np.array([1, 1, 1, scale], np.float32)], _STEPS, [2])
            for scale in (3, 6, 10)
        ]
        + [
            Draw([_numbers(1, 1, 4, 4), None, np.array([1, 1, *scales], np.float32)], given, [2])
            for scales in ((1.3, 1.4), (2.4, 2.3))  # other ones to the same size
            for given in ({"mode": "linear"}, {"mode": "nearest"})
        ]
    ),
    "Where": _one(np.round(_ROWS) > 0, _ROWS, -_ROWS),
}
"""Operator to draws of long rows."""

_FAR = 70_001
"""More than sixteen bits count."""
_LINE = _numbers(_FAR)
_WIDE = _numbers(1, 2, 3, 1100)
"""Lines that are longer than buffers of lines are."""
_ENDS = _int64(0, 65535, 65536, _FAR - 1, -1, -_FAR, 65539, 32768)

FAR: Mapping[str, Callable[[], list[Draw]]] = {
    "Gather": _one(_LINE, _ENDS),
    "GatherElements": _one(_LINE, _ENDS),
    "GatherND": _one(_LINE, _ENDS[:, None]),
    "ScatterND": _one(_LINE, _int64(65537, 32769, 1)[:, None], _numbers(3) + 9),
    "Slice": _one(_LINE, _int64(65530), _int64(65550), constant=(1, 2)),
    "Concat": _one(_LINE, _numbers(5) + 9, axis=0),
    "Split": lambda: [Draw([_LINE, _int64(65541, _FAR - 65541)], {"axis": 0}, [1], 2)],
    "Transpose": _one(_LINE.reshape(_FAR, 1).repeat(2, 1)),
    "ArgMax": _one(_LINE, axis=0),
    "TopK": lambda: [Draw([_LINE, _int64(3)], {"axis": 0}, [1], 2)],
    "NonZero": _one(np.maximum(_LINE - 1.99, 0)),
    "CumSum": _one(np.round(_LINE), np.array(0, np.int64), constant=(1,)),
    "Compress": _one(_LINE, np.arange(_FAR) % 9001 == 0, axis=0),
    "ReduceMax": _one(_LINE),
    "Conv": _one(_WIDE, _numbers(2, 2, 3, 3), constant=(1,), pads=[1, 1, 1, 1]),
    "MaxPool": _one(_WIDE, kernel_shape=[2, 3]),
    "AveragePool": _one(_WIDE, kernel_shape=[2, 3]),
    "Resize": lambda: [
        Draw([_WIDE, None, np.array([1, 1, 1, 0.5], np.float32)], {"mode": "nearest"}, [2])
    ],
    "DepthToSpace": _one(_numbers(1, 4, 1, 1100), blocksize=2),
}
"""Operator to draws of places that narrow counters do not reach."""
