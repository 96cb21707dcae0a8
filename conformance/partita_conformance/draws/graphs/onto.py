"""Draws of an operator for a given input of known shape and type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from partita_conformance.draws.draw import (
    Array,
    Draw,
    Rng,
    ShapedRng,
    floats,
    ints,
    one_of,
    random_axis,
)
from partita_conformance.draws.graphs import spatial
from partita_conformance.draws.operators import GENERATORS

Shape = Sequence[int]
Drawer = Callable[[Rng, Shape], "Draw | None"]


class Link(NamedTuple):
    """An operator, its inputs, and the place of that one which another operator makes."""

    op: str
    draw: Draw
    place: int


def onto(op: str, rng: Rng, shape: Shape, dtype: Any) -> Link | None:
    """An operator on a value; ``None`` if it takes none of the shape or type.

    Args:
        op: The operator.
        rng: Draws its attributes and further inputs.
        shape: Of the value.
        dtype: Of the value.
    """
    own = _OWN.get(op)
    drawn = own(rng, shape) if own else _as_usual(op, rng, shape)
    if drawn is None:
        return None
    places = [
        i
        for i, array in enumerate(drawn.inputs)
        if array is not None
        and i not in drawn.constant
        and array.shape == tuple(shape)
        and _alike(op, array.dtype, dtype)
        and (i == 0 or array.dtype.kind != "i")  # indices, which other numbers may not be
    ]
    if not places:
        return None
    place = int(rng.choice(places))
    return Link(op, _of_type(drawn, place, np.dtype(dtype)), place)


def _alike(op: str, one: Any, other: Any) -> bool:
    """Whether an input drawn of one type can be of another: floats stand for any number."""
    if np.dtype(one) == other:
        return True
    return np.dtype(one) == np.float32 and bool(other != np.bool_ or op in _OF_ANY)


_OF_ANY_NAMES = "Cast Identity Where Concat Split Slice Gather Transpose Reshape"
_OF_ANY = frozenset(_OF_ANY_NAMES.split())
"""Operators that take truth values too, though single ones are drawn of numbers."""


def _of_type(drawn: Draw, place: int, dtype: Any) -> Draw:
    """The draw, its inputs of float32 of another type, if the value is of that."""
    array = drawn.inputs[place]
    assert array is not None  # noqa: S101  # its place was found by its shape
    if array.dtype == dtype:
        return drawn
    whole = dtype.kind in "iu"

    def cast(one: Array | None) -> Array | None:
        if one is None or one.dtype != np.float32:
            return one
        if dtype == np.bool_:
            return np.asarray(one > 0)
        return np.asarray((np.round(np.abs(one) * 3) + 1 if whole else one).astype(dtype))

    return dataclasses.replace(drawn, inputs=[cast(one) for one in drawn.inputs])


def _as_usual(op: str, rng: Rng, shape: Shape) -> Draw | None:
    """A draw as single operators are drawn, which takes the shape where it draws one."""
    try:
        return GENERATORS[op](ShapedRng(int(rng.integers(2**32)), shape))
    except (ValueError, IndexError):  # of a rank that its generator does not draw
        return None


def _blank(shape: Shape) -> Array:
    return np.zeros(tuple(shape), np.float32)


def beside(rng: Rng, shape: Shape) -> list[int]:
    """A shape that broadcasts with another: smaller, as large, of more axes, or longer than it."""
    choices: list[list[int]] = [
        [],
        [*shape[-1:]],
        [n if rng.random() < 0.6 else 1 for n in shape],
        [3 if n == 1 else n for n in shape],  # makes longer what is one
        [*[1] * (len(shape) - 1), *shape[-1:]],
    ]
    if len(shape) > 2:  # of channels
        choices.append([shape[1], *[1] * (len(shape) - 2)])
    found = choices[int(rng.integers(len(choices)))]
    if rng.random() < 0.25:  # axes of its own
        found = [one_of(rng, 1, 1, 2), *[1] * (len(shape) - len(found)), *found]
    return found


def _binary(low: float = 0.0) -> Drawer:
    """Two inputs of which either is the value, and the other one often a constant."""

    def generate(rng: Rng, shape: Shape) -> Draw:
        other = floats(rng, beside(rng, shape))
        other = np.asarray(np.where(other < 0, other - low, other + low), np.float32)
        first = rng.random() < 0.65
        inputs = [_blank(shape), other] if first else [other, _blank(shape)]
        return Draw(inputs, {}, [1 if first else 0] if rng.random() < 0.75 else [])

    return generate


def _power(rng: Rng, shape: Shape) -> Draw:
    exponent = one_of(rng, 2.0, 3.0, 0.5, -1.0, 1.0, 2.0)
    return Draw([_blank(shape), np.array(exponent, np.float32)], {}, [1])


def _cast(rng: Rng, shape: Shape) -> Draw:
    return Draw([_blank(shape)], {"to": one_of(rng, 1, 10, 11, 9)})


def _not(rng: Rng, shape: Shape) -> Draw:
    return Draw([np.zeros(tuple(shape), np.bool_)])


def _concat(rng: Rng, shape: Shape) -> Draw | None:
    if not shape:
        return None
    axis, other = random_axis(rng, len(shape)), list(shape)
    other[axis] = int(rng.integers(1, 4))
    inputs = [_blank(shape), floats(rng, other)][:: int(rng.choice([1, -1]))]
    return Draw(inputs, {"axis": axis}, [i for i in (0, 1) if inputs[i].any()][:1])


def _split(rng: Rng, shape: Shape) -> Draw | None:
    long = [axis for axis, n in enumerate(shape) if n > 1]
    if not long:
        return None
    axis = int(rng.choice(long))
    named = {"axis": axis - len(shape) if rng.random() < 0.4 else axis}
    if shape[axis] % 2 == 0 and rng.random() < 0.3:  # into halves, which opset 18 has to count
        if rng.random() < 0.5:
            return Draw([_blank(shape)], named, (), 2)
        return Draw([_blank(shape)], {**named, "num_outputs": 2}, (), 2, 18)
    count = int(rng.integers(2, min(shape[axis], 3) + 1))
    cuts = np.sort(rng.choice(np.arange(1, shape[axis]), count - 1, replace=False))
    sizes = np.diff([0, *cuts, shape[axis]]).astype(np.int64)
    return Draw([_blank(shape), sizes], named, [1], count)


def _slice(rng: Rng, shape: Shape) -> Draw | None:
    if not shape:
        return None
    count = int(rng.integers(1, len(shape) + 1))
    if rng.random() < 0.25:  # of the first axes, which are not named
        limits = [(int(rng.integers(0, n)), one_of(rng, n, 2**40)) for n in shape[:count]]
        starts, ends = (np.array(column, np.int64) for column in zip(*limits, strict=True))
        return Draw([_blank(shape), starts, ends], {}, [1, 2])
    axes = rng.permutation(len(shape))[:count]
    bounds = []
    for axis in axes:
        n = shape[axis]
        if rng.random() < 0.25:
            start, end, step = one_of(rng, -1, n), -n - 1, one_of(rng, -1, -2)
        else:
            start = int(rng.integers(0, n))
            end = one_of(rng, int(rng.integers(start + 1, n + 1)), 2**40, n + 3)
            start, step = one_of(rng, start, start - n), one_of(rng, 1, 1, 2)
        bounds.append((start, end, axis - len(shape) if rng.random() < 0.3 else axis, step))
    columns = [np.array(column, np.int64) for column in zip(*bounds, strict=True)]
    return Draw([_blank(shape), *columns], {}, [1, 2, 3, 4])


def _gather(rng: Rng, shape: Shape) -> Draw | None:
    if not shape:
        return None
    axis = random_axis(rng, len(shape))
    n = shape[axis]
    start, count = int(rng.integers(0, n)), int(rng.integers(1, n + 1))
    row = np.arange(start, min(start + count, n)) - (n if rng.random() < 0.5 else 0)
    chosen = one_of(rng, np.array(start - n), row, np.arange(-n, 0), rng.integers(-n, n, (2, 2)))
    return Draw([_blank(shape), np.asarray(chosen, np.int64)], {"axis": axis}, [1])


def _transpose(rng: Rng, shape: Shape) -> Draw | None:
    if len(shape) < 2:  # there is nothing to turn
        return None
    order = [int(axis) for axis in rng.permutation(len(shape))]
    last = [len(shape) - 1, len(shape) - 2]
    ahead = [int(axis) for axis in rng.permutation(len(shape) - 2)]
    rotated = [*range(1, len(shape)), 0]
    return Draw([_blank(shape)], {"perm": one_of(rng, order, [*ahead, *last], rotated)})


def _reshape(rng: Rng, shape: Shape) -> Draw | None:
    if not shape:
        return None
    whole = int(np.prod(shape))
    halves = [2, whole // 2] if whole % 2 == 0 else [1, whole]
    targets = [[0, -1], [-1, shape[-1]], [whole], halves, [*shape[::-1]], [1, *shape], [-1, 1]]
    targets.append([*shape[:-2], -1] if len(shape) > 1 else [whole, 1])
    target = np.array(one_of(rng, *targets), np.int64)
    if target.all() and rng.random() < 0.15:
        return Draw([_blank(shape), target], {"allowzero": 1}, [1])
    return Draw([_blank(shape), target], {}, [1])


def _squeeze(rng: Rng, shape: Shape) -> Draw | None:
    ones = [axis for axis, n in enumerate(shape) if n == 1]
    if not ones:
        return None
    axes = [axis - len(shape) if rng.random() < 0.4 else axis for axis in ones]
    chosen = np.array(axes[int(rng.integers(len(axes))) :], np.int64)
    return Draw([_blank(shape), chosen], {}, [1]) if rng.random() < 0.8 else Draw([_blank(shape)])


def _unsqueeze(rng: Rng, shape: Shape) -> Draw:
    axis = random_axis(rng, len(shape) + 1)
    return Draw([_blank(shape), np.array([axis], np.int64)], {}, [1])


def _expand(rng: Rng, shape: Shape) -> Draw:
    target = [one_of(rng, 2, 3) if n == 1 else one_of(rng, n, 1) for n in shape]
    target = [int(rng.integers(1, 4)), *target] if rng.random() < 0.4 else target
    return Draw([_blank(shape), np.array(target, np.int64)], {}, [1])


def _matmul(rng: Rng, shape: Shape) -> Draw | None:
    if not shape:
        return None
    batch = [n if rng.random() < 0.5 else 1 for n in shape[:-2]] if rng.random() < 0.25 else []
    width = int(rng.integers(1, 6))
    constant = rng.random() < 0.75
    if rng.random() < 0.7 or len(shape) == 1:
        return Draw([_blank(shape), floats(rng, [*batch, shape[-1], width])], {}, [1] * constant)
    return Draw([floats(rng, [*batch, width, shape[-2]]), _blank(shape)], {}, [0][:constant])


def _gemm(rng: Rng, shape: Shape) -> Draw | None:
    if len(shape) != 2:  # a matrix
        return None
    turned, other = (int(n) for n in rng.integers(2, size=2))
    width = int(rng.integers(1, 6))
    rows, depth = shape[turned], shape[1 - turned]
    weights = floats(rng, [width, depth] if other else [depth, width])
    bias = floats(rng, one_of(rng, [width], [rows, 1], [], [1, width]))
    given = {"transA": turned, "transB": other, "alpha": one_of(rng, 1.0, 0.5)}
    inputs = [_blank(shape), weights, *([bias] if rng.random() < 0.6 else [])]
    return Draw(inputs, {**given, "beta": one_of(rng, 1.0, 2.0)}, [1, 2])


def _scatter_nd(rng: Rng, shape: Shape) -> Draw | None:
    if len(shape) < 2:  # rows
        return None
    rows = rng.permutation(shape[0])[: None if rng.random() < 0.5 else max(1, shape[0] // 2)]
    rows = np.asarray(rows, np.int64)[:, None]
    constant = [1] if rng.random() < 0.7 else []
    inputs = [_blank(shape), rows, floats(rng, [len(rows), *shape[1:]])]
    if rng.random() < 0.3:
        how = one_of(rng, "add", "mul", "max", "none")
        return Draw(inputs, {"reduction": how}, constant, opset=18)
    return Draw(inputs, {}, constant)


def _one_hot(rng: Rng, shape: Shape) -> Draw:
    depth, values = int(rng.integers(3, 6)), one_of(rng, [0, 1], [0, 1], [1, 0], [-0.5, 2])
    axis = -1 if rng.random() < 0.6 else random_axis(rng, len(shape) + 1)
    inputs = [np.zeros(tuple(shape), np.int64), np.array(depth), np.array(values, np.float32)]
    return Draw(inputs, {"axis": axis}, [1, 2])


def _einsum(rng: Rng, shape: Shape) -> Draw | None:
    """A product along one axis, others of which the second input may have too, in any order."""
    if not 2 <= len(shape) <= 4:
        return None
    mine, summed = "abcd"[: len(shape)], int(rng.integers(1, len(shape)))
    shared = [one for i, one in enumerate(mine) if i < summed and rng.random() < 0.5]
    theirs = one_of(rng, [*shared, mine[summed], "k"], ["k", *shared, mine[summed]])
    sizes = {**dict(zip(mine, shape, strict=True)), "k": int(rng.integers(1, 5))}
    left = [*mine.replace(mine[summed], ""), "k"]
    due = "".join(left if rng.random() < 0.3 else rng.permutation(left))
    other, names = floats(rng, [sizes[one] for one in theirs]), [mine, "".join(theirs)]
    if rng.random() < 0.3:
        given = {"equation": f"{names[1]},{names[0]}->{due}"}
        return Draw([other, _blank(shape)], given, [0] if rng.random() < 0.6 else [])
    given = {"equation": f"{names[0]},{names[1]}->{due}"}
    return Draw([_blank(shape), other], given, [1] if rng.random() < 0.6 else [])


def _trilu(rng: Rng, shape: Shape) -> Draw | None:
    if len(shape) < 2:  # a matrix
        return None
    given = {"upper": int(rng.integers(2))}
    if rng.random() < 0.4:
        return Draw([_blank(shape)], given)
    return Draw([_blank(shape), np.array(int(rng.integers(-2, 3)))], given, [1])


def _quantize(rng: Rng, shape: Shape) -> Draw | None:
    kind = one_of(rng, np.uint8, np.int8)
    axis, point = _per_axis(rng, shape)
    scale = np.exp2(ints(rng, -5, -2, point)).astype(np.float32)
    zero = np.asarray(ints(rng, 0, 99, point), kind)
    if rng.random() < 0.2:
        return Draw([_blank(shape), scale], axis, [1])
    return Draw([_blank(shape), scale, zero], axis, [1, 2])


def _dequantize(rng: Rng, shape: Shape) -> Draw | None:
    kind = one_of(rng, np.uint8, np.int8)
    axis, point = _per_axis(rng, shape)
    scale = np.asarray(rng.uniform(0.02, 0.06, point), np.float32)
    zero = np.asarray(ints(rng, 0, 99, point), kind)
    codes = np.asarray(ints(rng, 0, 120, tuple(shape)), kind)
    if rng.random() < 0.2:
        return Draw([codes, scale], axis, [1])
    return Draw([codes, scale, zero], axis, [1, 2])


def _per_axis(rng: Rng, shape: Shape) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The axis that scales go along, and how many there are; none and one of a whole tensor."""
    if not shape or rng.random() < 0.5:
        return {}, ()
    axis = random_axis(rng, len(shape))
    return {"axis": axis}, (shape[axis],)


_OWN: Mapping[str, Drawer] = {
    **{op: _binary() for op in ("Add", "Sub", "Mul", "Max", "Min", "Greater", "Less")},
    "Div": _binary(0.3),
    "Pow": _power,
    "Cast": _cast,
    "Not": _not,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Expand": _expand,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "Einsum": _einsum,
    "Trilu": _trilu,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Conv": spatial.conv,
    "ConvTranspose": spatial.conv_transpose,
    "MaxPool": spatial.max_pool,
    "AveragePool": spatial.average_pool,
    "GlobalAveragePool": spatial.global_pool,
    "BatchNormalization": spatial.batch_norm,
    "InstanceNormalization": spatial.instance_norm,
    "LayerNormalization": spatial.layer_norm,
    "PRelu": spatial.prelu,
    "DepthToSpace": spatial.depth_to_space,
    "SpaceToDepth": spatial.space_to_depth,
    "Resize": spatial.resize,
    "Pad": spatial.pad,
}
"""Operators whose draws choose a shape of their own, or too rarely one that passes forget."""

_ELEMENTS = """Abs Neg Relu Sigmoid Exp Log Sqrt Reciprocal Floor Erf LeakyRelu Clip HardSigmoid
    HardSwish Softplus Identity PRelu Add Sub Mul Div Pow Max Min Where Cast Greater Not"""
_ROWS = """ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceSumSquare ReduceL2
    ReduceLogSumExp ArgMax Softmax LogSoftmax CumSum TopK"""
_MOVES = """Concat Split Slice Gather GatherElements Transpose Reshape Flatten Squeeze Unsqueeze
    Expand Tile Pad Resize DepthToSpace SpaceToDepth Trilu ScatterND OneHot"""
_SUMS = """Conv ConvTranspose MaxPool AveragePool GlobalAveragePool MatMul Gemm Einsum
    BatchNormalization InstanceNormalization LayerNormalization QuantizeLinear DequantizeLinear"""
OPERATORS = tuple(f"{_ELEMENTS} {_ROWS} {_MOVES} {_SUMS}".split())
"""What compilers fuse, merge, cancel, sink, hoist and put in another order."""
