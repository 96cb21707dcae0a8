"""Reductions, positions of extremes, softmax and cumulative forms of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from partita.lowering import Node, Operand
from partita.lowering.geometry.axes import axis_of, reduced_axes
from partita.lowering.kernel_table import refused_choice
from partita_opencl.emitters.elementwise import apply
from partita_opencl.emitters.movement import own_axis
from partita_opencl.emitters.operator_table import FLOATS, INDICES, NUMBERS, operator
from partita_opencl.launches.emitter_kit import Kit, ctype_of, f32, i32, i64, is_half
from partita_opencl.launches.tensor_moves import transpose
from partita_opencl.passes.half_precision import SINGLE

DEVIATION_FLOOR = 1e-9
"""What MeanVarianceNormalization adds to the deviation."""

_CHUNK = 4096
"""Longest range that one group or item reduces when there are few of them."""


@dataclass(frozen=True)
class Reduction:
    """What one operator does with the elements of a range; macros of ``reduce.cl``.

    Attributes:
        join: How results are joined; ``""`` is by a sum.
        before: What elements are replaced by first.
        after: What is made of the result.
    """

    join: str = ""
    before: str = ""
    after: str = ""

    def options(self, part: Pass) -> dict[str, None]:
        """The kernel's macros for a pass."""
        before = self.before if part.reads_elements else ""
        after = self.after if part.makes_results else ""
        return {name: None for name in (self.join, before, after) if name}


@dataclass(frozen=True)
class Pass:
    """One launch of a reduction: parts of the range are reduced, each to an element.

    Attributes:
        chunks: In how many parts the range is cut.
        chunk: Elements of a part; the last one may have fewer.
        count: Elements of the tensor that one result is made of, by which a mean divides.
        reads_elements: Whether it reads the tensor's elements, not joined ones.
        makes_results: Whether its elements are the results.
    """

    chunks: int
    chunk: int
    count: int
    reads_elements: bool = True
    makes_results: bool = True


REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": Reduction(),
    "ReduceMean": Reduction(after="MEAN"),
    "ReduceMax": Reduction("MAXIMUM"),
    "ReduceMin": Reduction("MINIMUM"),
    "ReduceProd": Reduction("PRODUCT"),
    "ReduceL1": Reduction(before="MAGNITUDES"),
    "ReduceL2": Reduction(before="SQUARES", after="ROOT"),
    "ReduceSumSquare": Reduction(before="SQUARES"),
    "ReduceLogSum": Reduction(after="LOGARITHM"),
}

_FLOAT_ONLY = ("ReduceMean", "ReduceL2", "ReduceLogSum")


def _bounds(dtype: np.dtype[Any]) -> dict[str, str]:
    """The macros for the smallest and the largest element."""
    if dtype.kind == "f":
        return {"LOWEST": "-INFINITY", "HIGHEST": "INFINITY"}
    name = {
        "int": "INT",
        "long": "LONG",
        "uint": "UINT",
        "ulong": "ULONG",
        "char": "CHAR",
        "uchar": "UCHAR",
        "short": "SHRT",
        "ushort": "USHRT",
    }[ctype_of(dtype)]
    lowest = "0" if dtype.kind == "u" else f"{name}_MIN"
    return {"LOWEST": lowest, "HIGHEST": f"{name}_MAX"}


def reduce_middle(k: Kit, kind: Reduction, x: Operand, dtype: np.dtype[Any]) -> Operand:
    """Reduces (outer, depth, inner) to (outer, inner)."""
    outer, depth, inner = x.shape
    y = k.empty((outer, inner), dtype)
    results = outer * inner
    chunks = 1
    if depth > _CHUNK and results < 16 * k.tuning.limits.compute_units:
        chunks = -(-depth // _CHUNK)
    if chunks == 1:
        _emit_pass(k, kind, x, y, Pass(1, depth, depth))
    else:
        # Sums of parts may be larger than what float16 holds, their mean not.
        between = np.dtype(np.float32) if is_half(dtype) else dtype
        partial = k.empty((outer, chunks, inner), between)
        _emit_pass(k, kind, x, partial, Pass(chunks, _CHUNK, depth, makes_results=False))
        _emit_pass(k, kind, partial, y, Pass(1, chunks, depth, reads_elements=False))
    return y


def _emit_pass(k: Kit, kind: Reduction, x: Operand, y: Operand, part: Pass) -> None:
    """Records one pass, from (outer, depth, inner) to (outer, chunks, inner)."""
    outer, depth, inner = x.shape
    length, results = min(depth, part.chunk), outer * part.chunks * inner
    columns, items = 1, k.tuning.items_for(length)
    if inner != 1:
        columns, items = k.tuning.columns_of_group(results, inner, length)
    options: dict[str, Any] = {
        "T": ctype_of(x.dtype),
        "ITEMS": items,
        "COLUMNS": columns,
        **({"X_HALF": None} if is_half(x.dtype) else {}),
        **({"Y_HALF": None} if is_half(y.dtype) else {}),
        **_bounds(x.dtype),
        **kind.options(part),
    }
    if inner == 1:
        k.launch(
            "reduce.cl",
            "reduce_rows",
            k.tuning.groups(outer * part.chunks, items),
            x,
            y,
            i64(depth),
            i64(part.chunk),
            i64(part.chunks),
            f32(part.count),
            **options,
        )
    else:
        k.launch(
            "reduce.cl",
            "reduce_columns",
            k.tuning.column_groups(results, columns, items),
            x,
            y,
            i64(outer),
            i64(depth),
            i64(inner),
            i64(part.chunk),
            i64(part.chunks),
            f32(part.count),
            **options,
        )


def _axes(k: Kit, node: Node, x: Operand, axes: Operand | None) -> list[int] | None:
    """The axes to reduce, in order; ``None`` if the node asks for none at all."""
    given = node.attrs.get("axes") if axes is None else k.value(axes).reshape(-1).tolist()
    if not given:
        return None if node.attrs.get("noop_with_empty_axes", 0) else list(range(x.ndim))
    return reduced_axes(node, given, x.ndim)


def _arranged(k: Kit, x: Operand, axes: Sequence[int]) -> Operand:
    """The tensor as (outer, depth, inner) with the axes as depth."""
    kept = [i for i in range(x.ndim) if i not in axes]
    first, last = axes[0], axes[-1]
    between = [i for i in range(first, last + 1) if i not in axes and x.shape[i] != 1]
    if not between:
        outer = math.prod(x.shape[:first])
        inner = math.prod(x.shape[last + 1 :])
        return k.view(x, (outer, math.prod(x.shape[i] for i in axes), inner))
    moved = transpose(k, x, [*kept, *axes])
    depth = math.prod(x.shape[i] for i in axes)
    return k.view(moved, (math.prod(x.shape[i] for i in kept), depth, 1))


def _reduced_shape(x: Operand, axes: Sequence[int], keep: bool) -> list[int]:
    if keep:
        return [1 if i in axes else size for i, size in enumerate(x.shape)]
    return [size for i, size in enumerate(x.shape) if i not in axes]


def _reduce(k: Kit, node: Node, x: Operand, axes: Operand | None = None) -> Operand:
    along = _axes(k, node, x, axes)
    if along is None:
        return _without_axes(k, node, x)
    shape = _reduced_shape(x, along, bool(node.attrs.get("keepdims", 1)))
    if not along:  # a scalar
        return k.view(_without_axes(k, node, x), shape)
    y = reduce_middle(k, REDUCTIONS[node.op_type], _arranged(k, x, along), x.dtype)
    return k.view(y, shape)


def sum_over(k: Kit, x: Operand, axes: Sequence[int]) -> Operand:
    """Sums over axes, counted from 0 and in order; the result has the other ones.

    Args:
        k: Records it.
        x: The tensor.
        axes: At least one.
    """
    y = reduce_middle(k, REDUCTIONS["ReduceSum"], _arranged(k, x, axes), x.dtype)
    return k.view(y, _reduced_shape(x, axes, keep=False))


def _without_axes(k: Kit, node: Node, x: Operand) -> Operand:
    """Each element reduced by itself."""
    flat = k.view(x, (x.size, 1, 1))
    if node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
        return x
    return k.view(reduce_middle(k, REDUCTIONS[node.op_type], flat, x.dtype), x.shape)


for _name in REDUCTIONS:
    _types = FLOATS if _name in _FLOAT_ONLY else NUMBERS
    operator(_name, types={0: _types, 1: INDICES}, values=(1,))(_reduce)


@operator("ReduceLogSumExp", types={0: FLOATS, 1: INDICES}, values=(1,))
def log_sum_exp(k: Kit, node: Node, x: Operand, axes: Operand | None = None) -> Operand:
    """log(sum(exp(x))), with the maximum taken out so that nothing overflows."""
    along = _axes(k, node, x, axes)
    if along is None or not along:
        return x
    rows = _arranged(k, x, along)
    outer, _, inner = rows.shape
    peak = reduce_middle(k, REDUCTIONS["ReduceMax"], rows, x.dtype)
    peak = apply(k, "(isinf({0}) ? 0.0f : {0})", x.dtype, peak)
    shifted = apply(k, "exp({0} - {1})", x.dtype, rows, k.view(peak, (outer, 1, inner)))
    total = reduce_middle(k, REDUCTIONS["ReduceSum"], shifted, x.dtype)
    result = apply(k, "log({0}) + {1}", x.dtype, total, peak)
    return k.view(result, _reduced_shape(x, along, bool(node.attrs.get("keepdims", 1))))


@operator("MeanVarianceNormalization", types=FLOATS)
def mean_variance_normalization(k: Kit, node: Node, x: Operand) -> Operand:
    """Mean 0 and variance 1 over the given axes, which a scalar has not; computed in float32."""
    axes = sorted({axis_of(node, axis, x.ndim) for axis in node.attrs.get("axes", (0, 2, 3))})
    if not x.size:
        return x
    centered = apply(k, "{0} - {1}", SINGLE, x, _mean(k, x, axes))
    variance = _mean(k, apply(k, "{0} * {0}", SINGLE, centered), axes)
    deviation = "{0} / (sqrt({1}) + {a})"
    return apply(k, deviation, x.dtype, centered, variance, parameters=(DEVIATION_FLOOR,))


def _mean(k: Kit, x: Operand, axes: Sequence[int]) -> Operand:
    """Of float32, along axes that stay, of size 1."""
    if not axes:
        return x
    y = reduce_middle(k, REDUCTIONS["ReduceMean"], _arranged(k, x, axes), SINGLE)
    return k.view(y, _reduced_shape(x, axes, keep=True))


@operator("LpNormalization", check=lambda node: refused_choice(node, "p", 2, 1))
def lp_normalization(k: Kit, node: Node, x: Operand) -> Operand:
    """Elements divided by the norm of those along an axis; zeros where it is 0."""
    axis = own_axis(node, x.ndim, -1)
    kind = REDUCTIONS["ReduceL1" if node.attrs.get("p", 2) == 1 else "ReduceL2"]
    norms = k.view(
        reduce_middle(k, kind, _arranged(k, x, [axis]), x.dtype),
        _reduced_shape(x, [axis], keep=True),
    )
    return apply(k, "({1} == 0.0f ? 0.0f : {0} / {1})", x.dtype, x, norms)


@operator("ArgMax", "ArgMin", types=NUMBERS)
def argument(k: Kit, node: Node, x: Operand) -> Operand:
    """Position of the largest or smallest element along an axis."""
    shape = list(x.shape) or [1]
    axis = own_axis(node, len(shape))
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    y = k.empty((outer, inner), np.int64)
    options: dict[str, Any] = {
        "T": ctype_of(x.dtype),
        "ITEMS": k.tuning.row_items,
    }
    if node.op_type == "ArgMin":
        options["SMALLEST"] = None
    if node.attrs.get("select_last_index", 0):
        options["LAST"] = None
    depth = shape[axis]
    if inner == 1:
        sizes = k.tuning.groups(outer, k.tuning.row_items)
        k.launch("argument.cl", "argument_rows", sizes, x, y, i32(depth), **options)
    else:
        arguments = (x, y, i64(outer), i32(depth), i64(inner))
        k.launch("argument.cl", "argument_columns", k.tuning.flat(y.size), *arguments, **options)
    shape[axis : axis + 1] = [1] if node.attrs.get("keepdims", 1) else []
    return k.view(y, shape if x.ndim else ())


@operator("Softmax", "LogSoftmax", types=FLOATS)
def softmax(k: Kit, node: Node, x: Operand) -> Operand:
    """exp(x) / sum(exp(x)) along an axis; before opset 13 along all from the axis on."""
    if not x.size:
        return x
    if node.version >= 13:
        axis = own_axis(node, x.ndim, -1)
        depth, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    else:
        axis = own_axis(node, x.ndim, 1)
        depth, inner = math.prod(x.shape[axis:]), 1
    is_zero = bool(node.attrs.get("closed_is_zero", 0))
    flags = {"LOGARITHM": node.op_type == "LogSoftmax", "CLOSED_IS_ZERO": is_zero}
    return softmax_middle(k, x, depth, inner, **flags)


def softmax_middle(k: Kit, x: Operand, depth: int, inner: int, **flags: bool) -> Operand:
    """Softmax over the middle of (outer, depth, inner).

    Args:
        k: Records it.
        x: Numbers, at least one.
        depth: Of them along the axis.
        inner: From one along the axis to the next.
        flags: Which of the macros of ``softmax.cl`` are defined.
    """
    y = k.empty(x.shape, x.dtype)
    options: dict[str, Any] = {name: None for name, on in flags.items() if on}
    outer = x.size // (depth * inner)
    if inner == 1:
        items = k.tuning.items_for(depth)
        rows = max(1, k.tuning.row_items // items)
        groups = -(-outer // rows)
        k.launch(
            "softmax.cl",
            "softmax_rows",
            ((groups * items, rows), (items, rows)),
            x,
            y,
            i64(outer),
            i32(depth),
            ITEMS=items,
            ROWS=rows,
            COLUMNS=1,
            **options,
        )
    else:
        columns, items = k.tuning.columns_of_group(outer * inner, inner, depth)
        k.launch(
            "softmax.cl",
            "softmax_columns",
            k.tuning.column_groups(outer * inner, columns, items),
            x,
            y,
            i64(outer),
            i32(depth),
            i64(inner),
            ITEMS=items,
            ROWS=1,
            COLUMNS=columns,
            **options,
        )
    return y
