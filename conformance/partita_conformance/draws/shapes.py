"""Draws of rare shapes: inputs without dimensions, and every way of broadcasting."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partita_conformance.draws.draw import Array, Draw

_UNARY_NAMES = """Abs Neg Relu Sigmoid Tanh Exp Log Sqrt Reciprocal Floor Ceil Round Sign Erf
    Identity Not Softplus LeakyRelu Clip Cast Dropout Shape Size NonZero IsNaN Reshape Expand
    Unsqueeze Flatten ReduceSum ReduceMax ReduceMean"""
_BINARY_NAMES = """Add Sub Mul Div Pow Max Min Greater Less GreaterOrEqual LessOrEqual Equal
    And Or Xor"""
_UNARY, _BINARY = frozenset(_UNARY_NAMES.split()), frozenset(_BINARY_NAMES.split())
_LOGICAL = frozenset(("And", "Or", "Xor"))
_SEVERAL = frozenset(("Sum", "Mean"))
_ONE_WAY = frozenset(("PRelu",))
"""Operators of which the second input alone is broadcast; numbers below zero show it."""
_FULL = (2, 3, 4)
_DEEP = (2, 3, 2, 2, 4)
_OTHERS = ((4,), (3, 1), (1, 3, 4), (2, 1, 1), (1,), ())
"""Shapes that broadcast to :data:`_FULL`: to the left of it, in its middle, and nothing at all."""
_CUBE = (3, 3, 3)
_OTHERS_OF_CUBES = ((3,), (3, 1), (3, 3), (3, 1, 1), (1, 3, 1), (1, 1, 3))
_OTHERS_OF_SQUARES = ((3,), (3, 1), (1, 3), (3, 3), (1,), ())
_FIRST_TRUTH = _LOGICAL | {"Not"}


def _numbers(shape: tuple[int, ...], start: int, op_type: str) -> Array:
    """Numbers of which no two neighbours are equal, nor equal to those of another start."""
    count = int(np.prod(shape))
    values = 0.25 + (np.arange(count, dtype=np.float32) * 3 + start) % 7
    return np.asarray((values > 3 if op_type in _FIRST_TRUTH else values).reshape(shape))


def _vector(*values: int) -> Array:
    return np.array(values, np.int64)


_MORE: Mapping[str, tuple[tuple[Array, ...], dict[str, int]]] = {
    "Clip": ((np.array(0.5, np.float32), np.array(0.75, np.float32)), {}),
    "Cast": ((), {"to": 7}),
    "Reshape": ((_vector(1, 1),), {}),
    "Expand": ((_vector(2, 3),), {}),
    "Unsqueeze": ((_vector(0),), {}),
    "Flatten": ((), {"axis": 0}),
    "ReduceMax": ((), {"keepdims": 0}),
}
"""What operators take besides their first input."""


def without_dimensions(op_type: str) -> list[Draw]:
    """Draws whose inputs have no dimensions; none of operators that ask for some."""
    if op_type in _BINARY | _SEVERAL:
        return [Draw([_numbers((), start, op_type) for start in (1, 2)])]
    if op_type == "Where":
        return [
            Draw([np.array(value), *(_numbers((), n, op_type) for n in (1, 2))])
            for value in (True, False)
        ]
    if op_type not in _UNARY:
        return []
    more, given = _MORE.get(op_type, ((), {}))
    constant = range(1, 1 + len(more))
    draws = [Draw([_numbers((), 1, op_type), *more], dict(given), constant)]
    if op_type in ("Identity", "Neg", "Abs"):  # numbers that a message's head may lose
        draws += [Draw([np.array(value, np.float32)]) for value in (np.inf, np.nan, 1 / 3)]
        draws.append(Draw([np.array(2**53 + 1, np.int64)]))
    return draws


def broadcast(op_type: str) -> list[Draw]:
    """Draws in which each input in turn is of each shape that the others' broadcasts to.

    The last ones are of five dimensions, of numbers beside vectors of one element, and of shapes
    that are as long along each axis: there, a wrong axis gives no wrong shape.
    """
    if op_type == "Gemm":
        sides = [_numbers((3, 3), start, op_type) for start in (1, 2)]
        return [Draw([*sides, _numbers(shape, 3, op_type)]) for shape in _OTHERS_OF_SQUARES]
    count = 2 if op_type in _BINARY | _ONE_WAY else 3 if op_type in _SEVERAL | {"Where"} else 0
    draws = []
    pairs = [(_FULL, shape) for shape in _OTHERS] + [(_DEEP, (3, 1, 1, 4)), ((1,), ())]
    pairs += [(_CUBE, shape) for shape in _OTHERS_OF_CUBES]
    for place in range(1 if op_type in _ONE_WAY else 0, count):
        for full, shape in pairs:
            shapes = [shape if i == place else full for i in range(count)]
            inputs = [_numbers(each, i, op_type) for i, each in enumerate(shapes)]
            if op_type == "Where":
                inputs[0] = inputs[0] > 3
            if op_type in _ONE_WAY:
                inputs[0] = inputs[0] - 4
            draws.append(Draw(inputs))
    return draws
