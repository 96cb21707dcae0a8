"""Reductions over any axes.

Every reduction is a chain of passes over tensors of three dimensions (outer, axis, inner): merging
neighbouring axes leaves few of them, and each function here can be applied to one group of axes
after another.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Builder, Node, Operand
from partita.lowering.geometry.axes import reduced_axes as along_axes
from partita.lowering.shapes.symbolic_size import evaluated, found_equal
from partita_cpu.jit.deferred_numba import register_jitable
from partita_cpu.kernels.elementwise.binary import larger, smaller
from partita_cpu.kernels.elementwise.broadcast_loops import Kernel, emit_map, mapped, mapped_with
from partita_cpu.kernels.elementwise.cast import emit_cast
from partita_cpu.kernels.half import through_float32
from partita_cpu.kernels.operator_table import ALL_FLOATS, BOOL, INT64, INTS, kernel
from partita_cpu.kernels.reduction.reduce_loops import (
    extreme_kernel,
    fold_kernel,
    log_sum_exp,
    negative_term,
    same_term,
    square_term,
    sum_kernel,
)
from partita_cpu.scalar.instructions import multiply_in_any_order, sqrt
from partita_cpu.scalar.math import log

PARTS = 64
"""Pieces that one very long row is cut into, to be shared among threads."""
LONG = 1 << 17


@register_jitable
def divided(x: Any, count: Any, unused: Any) -> Any:
    """A sum over its number of terms."""
    return x / count


@register_jitable
def divided_integers(x: Any, count: Any, unused: Any) -> Any:
    """An integer sum over its number of terms, towards zero."""
    quotient = abs(x) // count
    return -quotient if x < 0 else quotient


@register_jitable
def divided_unsigned(x: Any, count: Any, unused: Any) -> Any:
    """A sum of unsigned integers over its number of terms."""
    return np.uint64(x) // np.uint64(count)


@dataclass(frozen=True)
class Reduction:
    """How one operator reduces.

    Attributes:
        first: The pass over the input, for floats; a kernel with or without scratch.
        then: The pass over what earlier passes left.
        whole: The same two for integers.
        scratch: Whether the float kernels take scratch.
        empty: The result for no elements.
        last: Applied to the result: ``"mean"``, ``"sqrt"``, ``"log"`` or nothing.
        real: Whether integers are computed as float64.
    """

    first: Kernel
    then: Kernel
    whole: tuple[Kernel, Kernel]
    scratch: bool = True
    empty: float = 0.0
    last: str = ""
    real: bool = False


_sum = sum_kernel(same_term)
_sum_square = sum_kernel(square_term)
_sum_absolute = sum_kernel(abs)
_whole_sum = fold_kernel(operator.add)
_WHOLE = (_whole_sum, _whole_sum)
_WHOLE_SQUARE = (fold_kernel(operator.add, square_term), _whole_sum)
_WHOLE_ABSOLUTE = (fold_kernel(operator.add, abs), _whole_sum)
_max, _min = fold_kernel(larger), fold_kernel(smaller)
_largest = extreme_kernel(larger, same_term)
_smallest = extreme_kernel(smaller, negative_term)
_product, _whole_product = fold_kernel(multiply_in_any_order), fold_kernel(operator.mul)

_REDUCTIONS = {
    "ReduceSum": Reduction(_sum, _sum, _WHOLE),
    "ReduceMean": Reduction(_sum, _sum, _WHOLE, empty=math.nan, last="mean"),
    "ReduceSumSquare": Reduction(_sum_square, _sum, _WHOLE_SQUARE),
    "ReduceL1": Reduction(_sum_absolute, _sum, _WHOLE_ABSOLUTE),
    "ReduceL2": Reduction(_sum_square, _sum, _WHOLE_SQUARE, last="sqrt", real=True),
    "ReduceLogSum": Reduction(_sum, _sum, _WHOLE, empty=-math.inf, last="log", real=True),
    "ReduceLogSumExp": Reduction(log_sum_exp, log_sum_exp, _WHOLE, empty=-math.inf, real=True),
    "ReduceMax": Reduction(_largest, _largest, (_max, _max), scratch=False, empty=-math.inf),
    "ReduceMin": Reduction(_smallest, _smallest, (_min, _min), scratch=False, empty=math.inf),
    "ReduceProd": Reduction(
        _product, _product, (_whole_product, _whole_product), scratch=False, empty=1.0
    ),
}
_COMPOSITE = frozenset(("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"))
"""Reductions that do more to an element than to reduce."""
_LAST = {"sqrt": mapped(sqrt), "log": mapped(log)}
_MEANS = {
    "f": mapped_with(divided),
    "i": mapped_with(divided_integers),
    "u": mapped_with(divided_unsigned),
}
"""By the kind of what is divided."""
_NO_SCRATCH = np.zeros(1, np.float64)


def reduced_axes(b: Builder, node: Node, x: Operand, axes: Operand | None) -> frozenset[int] | None:
    """The axes to reduce, from the attribute or the input; ``None`` where elements stay.

    Without an axis to reduce, a sum is its element, and a sum of squares is still a square.
    """
    given = node.attrs.get("axes", ()) if axes is None else b.value(axes).reshape(-1).tolist()
    if not given:
        if not node.attrs.get("noop_with_empty_axes", 0):
            return frozenset(range(x.ndim))
        return frozenset() if node.op_type in _COMPOSITE else None
    return frozenset(along_axes(b.node, given, x.ndim))


def _groups(shape: Sequence[int], axes: frozenset[int]) -> list[tuple[int, bool]]:
    """Lengths of merged neighbouring axes, each with whether it is reduced.

    Those of 1 are left out, but for sizes that stand for others, which are not asked.
    """
    merged: list[tuple[int, bool]] = []
    for axis, length in enumerate(shape):
        reduced = axis in axes
        if type(length) is int and length == 1:
            continue
        if merged and merged[-1][1] == reduced:
            merged[-1] = (merged[-1][0] * length, reduced)
        else:
            merged.append((length, reduced))
    return merged


def _orders_booleans(node: Node) -> Reason | None:
    value = node.inputs[0]
    if value is None or value.dtype != np.bool_ or node.op_type in ("ReduceMax", "ReduceMin"):
        return None
    return Reason(ReasonCode.UNSUPPORTED_DTYPE, "input 0 is bool; only ReduceMax and ReduceMin are")


@kernel(*_REDUCTIONS, dtypes={0: ALL_FLOATS | INTS | BOOL, 1: INT64}, check=_orders_booleans)
@through_float32
def reduction(b: Builder, node: Node, x: Operand, axes: Operand | None = None) -> Operand:
    """A reduction over some axes or all."""
    reduced = reduced_axes(b, node, x, axes)
    if reduced is None:
        return x
    return reduce_axes(b, node.op_type, x, reduced, bool(node.attrs.get("keepdims", 1)))


def reduce_axes(
    b: Builder, op_type: str, x: Operand, axes: frozenset[int], keepdims: bool = True
) -> Operand:
    """Records a reduction over some axes.

    Args:
        b: Records it.
        op_type: As ONNX calls it.
        x: What is reduced.
        axes: Which axes go, counted from the front.
        keepdims: Whether they stay, of size 1.
    """
    how = _REDUCTIONS[op_type]
    computed = np.uint8 if x.dtype.kind == "b" else x.dtype
    if how.real and x.dtype.kind in "iu":
        computed = np.dtype(np.float64)
    shape = [
        1 if axis in axes else length
        for axis, length in enumerate(x.shape)
        if keepdims or axis not in axes
    ]
    count = math.prod(x.shape[axis] for axis in axes)
    if count == 0 or x.size == 0:
        return b.filled(shape, x.dtype, _empty(how, x.dtype))
    result = _passes(b, emit_cast(b, x, computed), _groups(x.shape, axes), how)
    if how.last == "mean" and count > 1:
        number = evaluated(x.dtype.type if x.dtype.kind == "f" else np.int64, count)
        result = emit_map(b, _MEANS[result.dtype.kind], result, None, number, number)
    elif how.last in _LAST:
        result = emit_map(b, _LAST[how.last], result)
    return b.view(emit_cast(b, result, x.dtype), shape)


def _empty(how: Reduction, dtype: np.dtype[Any]) -> float | int:
    if dtype.kind == "f":
        return how.empty
    if math.isinf(how.empty):
        if dtype.kind == "b":
            return int(how.empty > 0)
        limits = np.iinfo(dtype)
        return int(limits.min if how.empty < 0 else limits.max)
    return 0 if math.isnan(how.empty) else int(how.empty)


def _passes(b: Builder, x: Operand, groups: list[tuple[int, bool]], how: Reduction) -> Operand:
    """Reduces one group of axes after another, the innermost first."""
    real = x.dtype.kind == "f"
    first, then = (how.first, how.then) if real else how.whole
    scratch = how.scratch and real
    if not any(reduced for _, reduced in groups):
        groups = [*groups, (1, True)]
    function = first
    while any(reduced for _, reduced in groups):
        position = max(i for i, (_, reduced) in enumerate(groups) if reduced)
        n = groups[position][0]
        outer = math.prod(length for length, _ in groups[:position])
        inner = math.prod(length for length, _ in groups[position + 1 :])
        if found_equal(inner, 1) and found_equal(outer, 1) and n >= LONG:
            outer, n = PARTS, -(-n // PARTS)
            groups = [(PARTS, True)]
        else:
            groups = [group for i, group in enumerate(groups) if i != position]
        y = b.empty((outer * inner,), x.dtype)
        rooms: tuple[Operand, ...] = ()
        if scratch:
            rooms = (b.empty(y.shape, np.float64) if inner > 1 else b.constant(_NO_SCRATCH),)
        b.call(function, b.flat(x), y, *rooms, outer, n, inner)
        x, function = y, then
    return x
