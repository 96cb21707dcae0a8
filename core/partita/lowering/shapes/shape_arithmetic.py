"""Evaluates small integer operations at once: the arithmetic on shapes that exporters write.

Graphs with dynamic sizes hold more operators that compute sizes than operators that compute
results, and each new shape goes through all of them. numpy computes one in a microsecond or two; a
back-end's kernels, made for large tensors, take a hundred times as long to be called. Unusual cases
are left to these kernels, which also raise the errors.

Arrays of objects hold symbolic sizes (:mod:`partita.lowering.shapes.symbolic_size`), and floats
that are computed of them (:mod:`partita.lowering.shapes.symbolic_elements`). Of floats only what
IEEE 754 defines exactly is computed here, so that kernels would make the same.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from partita.function_table import entered_in
from partita.lowering.graph import Node
from partita.lowering.program import Array, Operand
from partita.lowering.shapes.symbolic_elements import computed, converted, float_type, objects
from partita.lowering.shapes.symbolic_size import holds_sizes, integers

MOST_ELEMENTS = 64
"""Of an operand; what is larger is no shape."""

Rule = Callable[[Node, Sequence[Any]], Array | None]
"""The result for a node's constant inputs (``None`` for one left out), or ``None``: unusual."""

_RULES: dict[str, Rule] = {}

_MIXED = frozenset({"Concat", "Add", "Sub", "Mul", "Div", "Mod", "Equal", "Where", "Max", "Min"})
_MIXED |= {"Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
"""Operators whose inputs are of one type; symbolic ones may be among them."""

_FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
"""Types of floats in which numpy computes as kernels do."""

_INT64 = np.dtype(np.int64)


def small_result(node: Node, operands: Sequence[Operand | None]) -> Array | None:
    """The one output of a node that computes shapes; ``None`` if it is anything else."""
    if node.domain:
        return None
    if node.op_type == "Shape" and operands and operands[0] is not None:
        return integers(operands[0].shape[slice(node.attrs.get("start", 0), node.attrs.get("end"))])
    if node.op_type == "Size" and operands and operands[0] is not None:
        return integers([math.prod(operands[0].shape)]).reshape(())
    rule = _RULES.get(node.op_type)
    if rule is None:
        return None
    arrays: list[Array | None] = []
    for operand in operands:
        if operand is None:
            arrays.append(None)
            continue
        array = operand.const
        if array is None or array.size > MOST_ELEMENTS:
            return None
        if operand.dtype.kind not in "ib" and operand.dtype not in _FLOATS:
            return None
        if array.ndim != operand.ndim:
            return None  # it stands for a whole array, see `Builder.computed`
        arrays.append(array)
    if not arrays or arrays[0] is None:
        return None
    if node.op_type in _MIXED and any(x is not None and x.dtype == object for x in arrays):
        arrays = [x if x is None or x.dtype == bool else objects(x) for x in arrays]
    try:
        result = rule(node, arrays)
    except ValueError:  # more inputs than the operator has
        return None
    return result if result is None or result.size <= MOST_ELEMENTS else None


def small_operand(node: Node, operands: Sequence[Operand | None]) -> Operand | None:
    """The constant that :func:`small_result` finds; sizes in it are integers."""
    result = small_result(node, operands)
    if result is None:
        return None
    dtype, output = result.dtype, node.outputs[0]
    if dtype.hasobject:
        said = None if output is None else output.dtype
        whole = said if said is not None and said.kind == "i" else _INT64
        dtype = float_type(result) or whole
        if not holds_sizes(result):  # zero times a size is a number again
            result = result.astype(dtype)
    return Operand(result.shape, dtype, result)


_rule = functools.partial(entered_in, _RULES)


def _axes(node: Node, arrays: Sequence[Any]) -> list[int] | None:
    """Axes from an attribute, or since opset 13 from an input."""
    if node.version < 13:
        return node.attrs.get("axes")
    return None if len(arrays) < 2 or arrays[1] is None else arrays[1].reshape(-1).tolist()


@_rule("Gather")
def _gather(node: Node, arrays: Sequence[Any]) -> Array | None:
    data, index = arrays
    axis = node.attrs.get("axis", 0)
    if not -data.ndim <= axis < data.ndim or index.dtype.kind != "i":
        return None
    size = data.shape[axis]
    for place in index.reshape(-1).tolist():
        if not -size <= place < size:
            return None
    return np.asarray(data.take(index, axis))


@_rule("Concat")
def _concat(node: Node, arrays: Sequence[Any]) -> Array | None:
    first = arrays[0]
    if any(array is None or array.ndim != 1 or array.dtype != first.dtype for array in arrays):
        return None
    return np.concatenate(arrays) if node.attrs.get("axis") in (0, -1) else None


@_rule("Unsqueeze")
def _unsqueeze(node: Node, arrays: Sequence[Any]) -> Array | None:
    axes = _axes(node, arrays)
    if axes is None:
        return None
    rank = arrays[0].ndim + len(axes)
    places = {axis + rank if axis < 0 else axis for axis in axes}
    if len(places) != len(axes) or not all(0 <= place < rank for place in places):
        return None
    dims = iter(arrays[0].shape)
    return np.reshape(arrays[0], [1 if axis in places else next(dims) for axis in range(rank)])


@_rule("Squeeze")
def _squeeze(node: Node, arrays: Sequence[Any]) -> Array | None:
    axes, shape = _axes(node, arrays), arrays[0].shape
    if axes is None:  # none are given
        axes = [axis for axis, n in enumerate(shape) if n == 1]
    places = {axis + len(shape) if axis < 0 else axis for axis in axes}
    if not all(0 <= place < len(shape) and shape[place] == 1 for place in places):
        return None
    return np.reshape(arrays[0], [n for axis, n in enumerate(shape) if axis not in places])


@_rule("Slice")
def _slice(node: Node, arrays: Sequence[Any]) -> Array | None:
    x = arrays[0]
    if node.version < 10 or not 3 <= len(arrays) <= 5 or any(array is None for array in arrays):
        return None
    given = [[int(n) for n in array.reshape(-1).tolist()] for array in arrays[1:]]
    count = len(given[0])
    given += [list(range(count)), [1] * count][len(given) - 2 :]
    kept = [slice(None)] * x.ndim
    if any(len(numbers) != count for numbers in given):
        return None
    for start, end, axis, step in zip(*given, strict=True):
        if not -x.ndim <= axis < x.ndim or kept[axis] != slice(None) or not step:
            return None
        if step < 0 and start < -x.shape[axis]:
            return None  # ONNX begins at the first element then, and Python before it
        kept[axis] = slice(start, end, step)
    return np.asarray(x[tuple(kept)].copy())


@_rule("Transpose")
def _transpose(node: Node, arrays: Sequence[Any]) -> Array | None:
    (x,) = arrays
    order = node.attrs.get("perm", range(x.ndim)[::-1])
    return np.transpose(x, order) if sorted(order) == list(range(x.ndim)) else None


@_rule("Cast")
def _cast(node: Node, arrays: Sequence[Any]) -> Array | None:
    dtype = None if node.outputs[0] is None else node.outputs[0].dtype
    x = arrays[0]
    if dtype is None or x.dtype.kind == "b":
        return None
    if dtype in _FLOATS or (dtype == _INT64 and float_type(x) is not None):
        return converted(x, dtype)
    if dtype.kind != "i" or x.dtype.kind not in "iO" or float_type(x) is not None:
        return None
    limits = np.iinfo(dtype)
    if not all(limits.min <= n <= limits.max for n in x.reshape(-1).tolist()):
        return None
    return x if x.dtype == object else np.asarray(x.astype(dtype))


@_rule("Reshape")
def _reshape(node: Node, arrays: Sequence[Any]) -> Array | None:
    if len(arrays) != 2 or arrays[1] is None or arrays[1].dtype != np.int64:
        return None
    dims = arrays[1].reshape(-1).tolist()
    known = math.prod(n for n in dims if n != -1)
    rest = arrays[0].size // known if known else 0
    dims = [rest if n == -1 else n for n in dims]
    fits = all(n > 0 for n in dims) and math.prod(dims) == arrays[0].size
    return np.reshape(arrays[0], dims) if fits else None


@_rule("ConstantOfShape")
def _constant_of_shape(node: Node, arrays: Sequence[Any]) -> Array | None:
    value = np.asarray(node.attrs.get("value", np.float32(0)))
    dims = arrays[0].reshape(-1).tolist()
    if value.dtype.kind not in "ib" or value.size != 1 or any(type(n) is not int for n in dims):
        return None
    if min(dims, default=0) < 0 or math.prod(dims) > MOST_ELEMENTS:
        return None
    return np.full(dims, value.reshape(-1)[0], value.dtype)


@_rule("Add", "Sub", "Mul")
def _binary(node: Node, arrays: Sequence[Any]) -> Array | None:
    x, z = arrays
    if z is None or x.dtype != z.dtype or x.dtype.kind not in "ifO" or not _broadcast(x, z):
        return None
    if float_type(x) is not None:
        return computed(_BINARY[node.op_type], x, z)
    with np.errstate(over="ignore"):  # as everywhere, sums that are too large begin anew
        return np.asarray(_BINARY[node.op_type](x, z))


@_rule("Div", "Mod")
def _div(node: Node, arrays: Sequence[Any]) -> Array | None:
    x, z = arrays
    if z is None or x.dtype != z.dtype or x.dtype.kind not in "ifO" or not _broadcast(x, z):
        return None
    if float_type(x) is not None:
        return computed(np.divide, x, z) if node.op_type == "Div" else None
    if not (z > 0).all():
        return None
    if node.op_type == "Mod" and not node.attrs.get("fmod", 0):
        return np.asarray(x % z)
    # The rest is of a division that rounds towards zero; numpy's // and % round down.
    if x.dtype != object:
        rest = np.fmod(x, z)
        return np.asarray(rest if node.op_type == "Mod" else (x - rest) // z)
    sign = np.where(np.asarray(x < 0, bool), -1, 1)
    size = x * sign
    return np.asarray((size % z if node.op_type == "Mod" else size // z) * sign)


@_rule("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _compared(node: Node, arrays: Sequence[Any]) -> Array | None:
    x, z = arrays
    if z is None or x.dtype != z.dtype or not _broadcast(x, z):
        return None
    return np.asarray(_COMPARED[node.op_type](x, z))


@_rule("Where")
def _where(node: Node, arrays: Sequence[Any]) -> Array | None:
    if any(array is None or array.shape != arrays[0].shape for array in arrays):
        return None
    condition, x, z = arrays
    return np.where(condition, x, z) if condition.dtype == bool and x.dtype == z.dtype else None


@_rule("And", "Or", "Not")
def _logical(node: Node, arrays: Sequence[Any]) -> Array | None:
    x, z = arrays[0], arrays[-1]
    if z is None or not x.dtype == z.dtype == bool or not _broadcast(x, z):
        return None
    if node.op_type == "Not":
        return np.asarray(~x)
    return np.asarray(x & z if node.op_type == "And" else x | z)


@_rule("Abs", "Neg")
def _signed(node: Node, arrays: Sequence[Any]) -> Array | None:
    (x,) = arrays
    fn = _SIGNED[node.op_type]
    return None if x.dtype == bool else computed(fn, x) if x.size else x


@_rule("Ceil", "Floor", "Reciprocal", "Round", "Sqrt")
def _unary(node: Node, arrays: Sequence[Any]) -> Array | None:
    (x,) = arrays
    dtype = float_type(x)
    if dtype is None:
        return None
    if node.op_type == "Reciprocal":
        return computed(np.divide, np.ones((), dtype), x)
    return computed(_UNARY[node.op_type], x)


@_rule("Max", "Min")
def _extreme(node: Node, arrays: Sequence[Any]) -> Array | None:
    found = arrays[0]
    for z in arrays[1:]:
        if z is None or found.dtype != z.dtype or found.dtype == bool or not _broadcast(found, z):
            return None
        found = computed(_EXTREME[node.op_type], found, z)
    return np.asarray(found)


@_rule("ReduceMax", "ReduceMin", "ReduceProd")
def _reduced(node: Node, arrays: Sequence[Any]) -> Array | None:
    """Of one dimension, as shapes have: to one element, or to none where its axis goes."""
    x, given = arrays[0], arrays[1] if len(arrays) > 1 else node.attrs.get("axes")
    axes = None if given is None else np.asarray(given).reshape(-1).tolist()
    if x.ndim != 1 or x.dtype == bool or not x.size or axes not in (None, [0], [-1]):
        return None
    if axes is None and node.attrs.get("noop_with_empty_axes", 0):
        return None
    found: Array = x[:1]
    if node.op_type != "ReduceProd":
        for number in range(1, x.size):
            found = computed(_EXTREME[node.op_type], found, x[number : number + 1])
    elif float_type(x) is None:
        found = np.multiply.reduce(x, dtype=x.dtype, keepdims=True)
    else:
        return None  # which is multiplied with which first is a kernel's matter
    return found if node.attrs.get("keepdims", 1) else found.reshape(())


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
}

_EXTREME: dict[str, Callable[..., Any]] = {
    "Max": np.maximum,
    "Min": np.minimum,
    "ReduceMax": np.maximum,
    "ReduceMin": np.minimum,
}

_UNARY: dict[str, Callable[..., Any]] = {
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.rint,
    "Sqrt": np.sqrt,
}

_SIGNED: dict[str, Callable[..., Any]] = {"Abs": np.absolute, "Neg": np.negative}

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
}


def _broadcast(x: Array, z: Array) -> bool:
    """Whether arrays are of one shape, or one has a single element and no more dimensions."""
    return (
        x.shape == z.shape or (z.size == 1 >= z.ndim <= x.ndim) or (x.size == 1 >= x.ndim <= z.ndim)
    )
