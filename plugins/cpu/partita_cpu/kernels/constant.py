"""Operators whose results are known once shapes and small inputs are: they cost nothing at run."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.contract.query import Reason, ReasonCode
from partita.lowering import Array, Builder, Node, Operand
from partita.lowering.geometry.boxes import Box, strides_of
from partita.lowering.geometry.ranges import count_of_range
from partita.lowering.shapes.symbolic_size import holds_sizes, integer
from partita_cpu.jit.kernel import jit
from partita_cpu.kernels.movement.rearrange import expanded
from partita_cpu.kernels.movement.strided_copy import copy_box
from partita_cpu.kernels.operator_table import ALL_FLOATS, ANY, INT64, INTS, kernel

_AT_ONCE = 1 << 14
"""Numbers that lie in the first-level cache while they are made."""

_VALUES = {
    "value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


def _check_constant(node: Node) -> Reason | None:
    if any(name in node.attrs for name in _VALUES):
        return None
    return Reason(ReasonCode.UNSUPPORTED_ATTRIBUTE, "a sparse constant")


@kernel("Constant", dtypes={}, check=_check_constant)
def constant(b: Builder, node: Node) -> Operand:
    """The attribute's tensor, numbers or strings."""
    name = next(name for name in _VALUES if name in node.attrs)
    return b.constant(np.asarray(node.attrs[name], dtype=_VALUES[name]))


@kernel("ConstantOfShape", dtypes={0: INT64})
def constant_of_shape(b: Builder, node: Node, shape: Operand) -> Operand:
    """A tensor full of one value, 0 of float32 by default."""
    value = np.asarray(node.attrs.get("value", np.zeros(1, np.float32)))
    sizes = b.value(shape).reshape(-1)
    if not b.folding:  # of sizes that stand for others, or of more than may be folded
        dims = [integer(n) for n in sizes]
        return expanded(b, b.constant(value.reshape((1,) * len(dims))), dims)
    return b.constant(np.full(tuple(map(int, sizes)), value.ravel()[0], value.dtype))


@kernel("Shape", dtypes={})
def shape_(b: Builder, node: Node, x: Operand) -> Operand:
    """The dimensions, or a slice of them."""
    start, end = node.attrs.get("start", 0), node.attrs.get("end")
    return b.constant(np.array(x.shape[slice(start, end)], dtype=np.int64))


@kernel("Size", dtypes={})
def size(b: Builder, node: Node, x: Operand) -> Operand:
    """The number of elements."""
    return b.constant(np.array(x.size, dtype=np.int64))


@kernel("Range", dtypes=ALL_FLOATS | INTS)
def range_(b: Builder, node: Node, start: Operand, limit: Operand, delta: Operand) -> Operand:
    """Numbers from `start` to before `limit`."""
    kind = start.dtype
    if any(holds_sizes(x.const) for x in (start, limit, delta)):
        ends = [b.value(x).item() for x in (start, limit, delta)]
        shape = (count_of_range(*ends),)
        if kind.kind == "f":
            return _brought(b, b.computed(shape, kind, _counted, kind, *ends))
        y = b.empty(shape, kind)
        b.call(write_numbers, y, integer(ends[0]), integer(ends[2]))
        return y
    first, stop, step = (b.value(x).ravel()[0].item() for x in (start, limit, delta))
    y = b.empty((count_of_range(first, stop, step),), kind)
    b.call_numpy(count_up, first, step, y)
    return y


def _counted(kind: np.dtype[Any], first: float, limit: float, step: float) -> Array:
    """The numbers of a Range; its ends may be numpy's."""
    ends = [n.item() if isinstance(n, np.generic) else n for n in (first, limit, step)]
    y = np.empty(count_of_range(*ends), kind)
    count_up(ends[0], ends[2], y)
    return y


def count_up(first: float, step: float, y: Array) -> None:
    """Writes numbers in equal steps, in whole numbers or in the floats that they are of."""
    floats = np.float64 if y.dtype == np.float64 else np.float32
    wide: Any = np.int64 if y.dtype.kind in "iu" else floats
    for place in range(0, y.size, _AT_ONCE):
        numbers = np.arange(place, min(place + _AT_ONCE, y.size)).astype(wide)
        y[place : place + _AT_ONCE] = wide(first) + numbers * wide(step)


@jit
def write_numbers(y: Array, first: int, step: int, tid: int, nt: int) -> None:
    """Writes whole numbers in equal steps.

    Args:
        y: Integers, flat.
        first: The first number.
        step: From a number to the next.
        tid: This thread.
        nt: All threads.
    """
    for i in range(y.size * tid // nt, y.size * (tid + 1) // nt):
        y[i] = first + i * step


def _brought(b: Builder, x: Operand) -> Operand:
    """Elements that follow from sizes, where kernels of later nodes find them."""
    y, steps = b.empty(x.shape, x.dtype), strides_of(x.shape)
    if y.size:
        copy_box(b, Box(x, steps), Box(y, steps), x.shape)
    return y


@kernel("EyeLike", dtypes=ANY)
def eye_like(b: Builder, node: Node, x: Operand) -> Operand:
    """Ones on a diagonal of a matrix of the input's shape."""
    kind = onnx_dtype(node.attrs["dtype"]) if "dtype" in node.attrs else x.dtype
    rows, columns = x.shape
    return b.table((rows, columns), kind, _eye, rows, columns, node.attrs.get("k", 0), kind)


def _eye(rows: int, columns: int, diagonal: int, dtype: np.dtype[Any]) -> Array:
    return np.eye(rows, columns, diagonal, dtype)


@kernel("Trilu", dtypes={0: ANY, 1: INT64})
def trilu(b: Builder, node: Node, x: Operand, k: Operand | None = None) -> Operand:
    """One triangle of each matrix; zeros in the other."""
    diagonal = 0 if k is None else int(b.value(k).ravel()[0])
    rows, columns = x.shape[-2:]
    upper = bool(node.attrs.get("upper", 1))
    cleared = b.table((rows, columns), np.bool_, _cleared, rows, columns, diagonal, upper)
    y = b.empty(x.shape, x.dtype)
    b.call_numpy(_copy_and_clear, x, cleared, y)
    return y


def _cleared(rows: int, columns: int, diagonal: int, upper: bool) -> Array:
    """Which elements of a matrix are not of one of its triangles."""
    triangle = np.triu if upper else np.tril
    return ~triangle(np.ones((rows, columns), bool), diagonal)


def _copy_and_clear(x: Array, cleared: Array, y: Array) -> None:
    np.copyto(y, x)
    np.copyto(y, y.dtype.type(0), where=cleared)


def onnx_dtype(number: int) -> np.dtype[Any]:
    """The numpy type of an ONNX element type's number."""
    import onnx_ir as ir

    return np.dtype(ir.DataType(number).numpy())
