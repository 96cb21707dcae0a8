"""Operations of drawn models, each with the formula of its result in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita_conformance.inputs.models import Array

Given = Mapping[str, Any]
_FLOATS, _SIGNED, _UNSIGNED = (
    "float double float16 bfloat16",
    "int64 int32 int8 int16",
    "uint8 uint16",
)
_NUMBERS = f"{_FLOATS} {_SIGNED} {_UNSIGNED}"
_ALL = f"{_NUMBERS} bool string"


class Step(NamedTuple):
    """An operation on a matrix.

    Attributes:
        op: The operator.
        compute: Its result, of the matrix, its constants and its attributes.
        elements: The types that it takes.
        data: How many constants it reads that are data: their type and sizes are the matrix's.
        shapes: Its constants that are no data, by the matrix's shape and a number.
        given: Its attributes, of which a model has one row.
        behind: Whether the matrix is the first input, rather than the last one.
        square: Whether the constant is a matrix of as many rows as columns.
        since: The first opset in which it is written so.
    """

    op: str
    compute: Callable[..., Array]
    elements: str = _NUMBERS
    data: int = 0
    shapes: Callable[[tuple[int, ...], int], Sequence[Array]] = lambda shape, number: ()
    given: Sequence[Given] = ({},)
    behind: bool = True
    square: bool = False
    since: int = 7


def _int64(*values: int) -> Array:
    return np.array(values, np.int64)


def _half(function: Callable[..., Any]) -> Callable[..., Array]:
    """A function of floats that numpy computes of wider ones, rounded once."""

    def compute(x: Array, *constants: Array, **given: Any) -> Array:
        wide = [array.astype(np.float64) for array in (x, *constants)]
        return np.asarray(function(*wide, **given)).astype(x.dtype)

    return compute


def _plain(function: Callable[..., Any]) -> Callable[..., Array]:
    def compute(x: Array, *constants: Array, **given: Any) -> Array:
        return np.asarray(function(x, *constants)).astype(x.dtype)

    return compute


def _softmax(x: Array, axis: int = -1) -> Array:
    powers = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _columns(shape: tuple[int, ...], number: int) -> Sequence[Array]:
    last = shape[-1] - 1
    return (_int64(*((last, 0, last // 2), (0, last), (-1, -1 - last, 0))[number]),)


def _cut(shape: tuple[int, ...], number: int) -> Sequence[Array]:
    ends = ((0, shape[-1]), (shape[-1] // 2, shape[-1]), (-1, 2**62))[number]
    return _int64(ends[0]), _int64(ends[1]), _int64(1)


def _gemm(x: Array, w: Array, alpha: float = 1.0, transB: int = 0) -> Array:  # noqa: N803
    return np.asarray(np.float32(alpha) * (x @ (w.T if transB else w)))


def _shaped(x: Array, shape: Array) -> Array:
    sizes = [x.shape[i] if n == 0 else int(n) for i, n in enumerate(shape)]
    if not x.size:
        sizes = [x.shape[0] * x.shape[1] if n == -1 else n for n in sizes]
    return x.reshape(sizes)


STEPS: Mapping[str, Step] = {
    "a sum": Step("Add", _plain(np.add), data=1),
    "a difference": Step("Sub", _plain(np.subtract), data=1),
    "taken from a constant": Step("Sub", _plain(lambda x, c: c - x), data=1, behind=False),
    "a product": Step("Mul", _plain(np.multiply), data=1),
    "a quotient": Step("Div", _half(np.divide), _FLOATS, data=1),
    "the greater": Step("Max", _plain(np.maximum), data=1, since=12),
    "the lesser": Step("Min", _plain(np.minimum), data=1, since=12),
    "a slope": Step("PRelu", _half(lambda x, c: np.where(x < 0, x * c, x)), "float double", data=1),
    "an exclusive or": Step("Xor", np.logical_xor, "bool", data=1),
    "both": Step("And", np.logical_and, "bool", data=1),
    "joined": Step(
        "Concat",
        lambda x, c, axis: np.concatenate([x, c], axis),
        _ALL,
        data=1,
        given=({"axis": 0}, {"axis": 1}, {"axis": -1}),
    ),
    "joined behind": Step(
        "Concat",
        lambda x, c, axis: np.concatenate([c, x], axis),
        _ALL,
        data=1,
        given=({"axis": 1}, {"axis": 0}, {"axis": -2}),
        behind=False,
    ),
    "times a matrix": Step("MatMul", _half(np.matmul), "float double", data=1, square=True),
    "times a matrix, scaled": Step(
        "Gemm",
        _half(_gemm),
        "float double",
        data=1,
        square=True,
        given=({"alpha": 0.5}, {"alpha": 0.5, "transB": 1}, {"transB": 1}),
    ),
    "columns": Step(
        "Gather",
        lambda x, i, axis: np.take(x, np.where(i < 0, i + x.shape[axis], i), axis),
        _ALL,
        shapes=_columns,
        given=({"axis": 1}, {"axis": 1}, {"axis": -1}),
    ),
    "a part": Step(
        "Slice",
        lambda x, start, end, axes: x[:, int(start[0]) : int(end[0])],
        _ALL,
        shapes=_cut,
        since=10,
    ),
    "reshaped": Step(
        "Reshape",
        _shaped,
        _ALL,
        shapes=lambda shape, n: (_int64(*((-1, 1), (1, -1), (-1, shape[-1]))[n]),),
    ),
    "turned": Step(
        "Transpose",
        lambda x, perm=(1, 0): x.transpose(perm),
        _ALL,
        given=({}, {"perm": [0, 1]}, {"perm": [1, 0]}),
    ),
    "repeated": Step(
        "Tile",
        np.tile,
        _ALL,
        shapes=lambda shape, n: (_int64(*((1, 2), (2, 1), (1, 1))[n]),),
    ),
    "padded": Step(
        "Pad",
        lambda x, pads: np.pad(x, ((int(pads[0]), int(pads[2])), (int(pads[1]), int(pads[3])))),
        "float double int64 int32",
        shapes=lambda shape, n: (_int64(*((0, 1, 0, 0), (1, 0, 0, 2), (0, 0, 0, 0))[n]),),
        since=11,
    ),
    "the sum of rows": Step(
        "ReduceSum",
        _half(lambda x, axes, keepdims=1: x.sum(axis=int(axes[0]), keepdims=True)),
        "float double int64 int32",
        shapes=lambda shape, n: (_int64((0, 1, -1)[n]),),
        given=({}, {"keepdims": 1}, {}),
        since=13,
    ),
    "sums so far": Step(
        "CumSum",
        lambda x, axis, reverse=0: (
            np.cumsum(x[:, ::-1], 1, x.dtype)[:, ::-1] if reverse else np.cumsum(x, 1, x.dtype)
        ),
        "float double int64 int32",
        shapes=lambda shape, n: (np.array((1, -1, 1)[n]),),
        given=({}, {"reverse": 0}, {"reverse": 1}),
        since=11,
    ),
    "shares": Step(
        "Softmax",
        _half(_softmax),
        _FLOATS,
        given=({"axis": 1}, {"axis": 0}, {}),
        since=13,
    ),
    "leaky": Step(
        "LeakyRelu",
        _half(lambda x, alpha=0.01: np.where(x < 0, np.float32(alpha) * x, x)),
        "float double float16",
        given=({"alpha": 0.25}, {}, {"alpha": 0.2500001}),
    ),
    "exponential": Step(
        "Elu",
        _half(lambda x, alpha=1.0: np.where(x < 0, np.float32(alpha) * np.expm1(x), x)),
        "float double",
        given=({}, {"alpha": 1.0}, {"alpha": -0.5}),
    ),
    "limited": Step(
        "Clip",
        lambda x, low, high: np.minimum(np.maximum(x, low), high).astype(x.dtype),
        _NUMBERS,
        shapes=lambda shape, n: (np.array((0, 1, 2)[n]), np.array((3, 2, 2)[n])),
        since=12,
    ),
    "negative": Step("Neg", np.negative, f"{_FLOATS} {_SIGNED}"),
    "absolute": Step("Abs", np.abs),
    "rectified": Step("Relu", lambda x: np.maximum(x, x.dtype.type(0)), "float double float16"),
    "a power of e": Step("Exp", _half(np.exp), "float double"),
    "a sigmoid": Step("Sigmoid", _half(lambda x: 1 / (1 + np.exp(-x))), "float double float16"),
    "handed on": Step("Identity", lambda x: x, _ALL),
    "denied": Step("Not", np.logical_not, "bool"),
    "of one row": Step(
        "Flatten",
        lambda x, axis=1: x.reshape((1, -1) if axis == 0 else x.shape),
        _ALL,
        given=({"axis": 0}, {}, {"axis": 1}),
    ),
}
"""Operations by what they make of a matrix."""
