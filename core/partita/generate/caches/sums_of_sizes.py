"""Symbolic evaluation of exporters' shape arithmetic, as sums of unknown sizes.

A number is a sum: how often it holds each size, and a constant. So it is known of ``total - new``
how it changes with the total, whatever both are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from partita.function_table import entered_in

if TYPE_CHECKING:
    import onnx_ir as ir

Sum = Mapping[Hashable, int]
"""By size its factor; the constant is that of `ONE`. What is not in it has the factor 0."""

Sums = np.ndarray[Any, Any]
"""An array of `Sum`, as objects."""

ONE = "1"
"""What the constant of a sum is the factor of."""

MOST_ELEMENTS = 64
"""Of an array of sums; what is larger is no shape."""

Rule = Callable[["ir.Node", Sequence[Sums | None]], Sums | None]


def constant(number: int) -> Sum:
    """A sum without any size."""
    return {ONE: number} if number else {}


def plus(a: Sum, b: Sum, factor: int = 1) -> Sum:
    """``a + factor * b``; sizes whose factor is 0 are left out."""
    found = {size: a.get(size, 0) + factor * b.get(size, 0) for size in {**a, **b}}
    return {size: times for size, times in found.items() if times}


def number_of(one: Sum) -> int | None:
    """The number that a sum is, if it holds no size."""
    return one.get(ONE, 0) if not one.keys() - {ONE} else None


def sums(numbers: Sequence[Sum]) -> Sums:
    """An array of one axis."""
    found = np.empty(len(numbers), object)
    found[:] = numbers
    return found


def constants(array: Any) -> Sums | None:
    """The elements of an array of a few integers; ``None`` for any other."""
    array = np.asarray(array)
    if array.dtype.kind not in "iub" or array.size > MOST_ELEMENTS:
        return None
    found = np.empty(array.shape, object)
    for place in np.ndindex(array.shape):
        found[place] = constant(int(array[place]))
    return found


def computed(node: ir.Node, operands: Sequence[Sums | None]) -> Sums | None:
    """The one result of an operation on such arrays; ``None`` if it is not known here.

    Args:
        node: The operation.
        operands: Its inputs; ``None`` for one that is left out or not known.
    """
    rule = None if node.domain else _RULES.get(node.op_type)
    if rule is None or not operands or operands[0] is None:
        return None
    try:
        found = rule(node, operands)
    except (IndexError, ValueError):  # sizes that do not fit: whoever runs it says so
        return None
    return found if found is not None and found.size <= MOST_ELEMENTS else None


_RULES: dict[str, Rule] = {}

_rule = functools.partial(entered_in, _RULES)


def numbers_of(these: Sums | None) -> list[int] | None:
    """All elements as numbers; ``None`` if one is not known."""
    if these is None:
        return None
    found = [number_of(one) for one in these.reshape(-1).tolist()]
    return None if None in found else found  # type: ignore[return-value]  # none is None


def axes_of(node: ir.Node, operands: Sequence[Sums | None]) -> list[int] | None:
    """The axes that Unsqueeze or Squeeze names, as attribute or second input.

    Args:
        node: The operation.
        operands: What is known of its inputs.

    Returns:
        The axes as they stand there, negative ones too; ``None`` if they are not known.
    """
    attribute = node.attributes.get("axes")
    if attribute is not None:
        return list(attribute.as_ints())
    return numbers_of(operands[1]) if len(operands) > 1 else None


def _each(make: Callable[..., Sum], *operands: Sums) -> Sums:
    """The same computation for all elements."""
    arrays = np.broadcast_arrays(*operands)
    found = np.empty(arrays[0].shape, object)
    for place in np.ndindex(found.shape):
        found[place] = make(*(array[place] for array in arrays))
    return found


@_rule("Identity")
def _same(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    return operands[0]  # type: ignore[no-any-return]  # Sums


@_rule("Cast")
def _cast(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    import onnx_ir as ir

    kinds = ir.DataType.INT64, ir.DataType.INT32
    return operands[0] if node.attributes["to"].as_int() in kinds else None


@_rule("Gather")
def _gather(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    data, index = operands
    axis = node.attributes.get("axis")
    places = numbers_of(index)
    if data.ndim != 1 or places is None or (axis is not None and axis.as_int() not in (0, -1)):
        return None
    found = np.empty(index.shape, object)
    found.reshape(-1)[:] = data[places]
    return found


@_rule("Concat")
def _concat(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    if any(one is None or one.ndim != 1 for one in operands):
        return None
    return np.concatenate(operands)


@_rule("Unsqueeze")
def _unsqueeze(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    axes = axes_of(node, operands)
    return None if axes is None else np.expand_dims(operands[0], tuple(axes))


@_rule("Squeeze")
def _squeeze(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    axes = axes_of(node, operands)
    return None if axes is None else np.squeeze(operands[0], tuple(axes))


@_rule("Reshape")
def _reshape(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    dims = numbers_of(operands[1])
    return None if dims is None or 0 in dims else operands[0].reshape(dims)


@_rule("Slice")
def _slice(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    parts = [numbers_of(one) for one in operands[1:]]
    if operands[0].ndim != 1 or any(part is None or len(part) != 1 for part in parts):
        return None
    start, end, axis, step = [part[0] for part in parts if part] + [0, 0, 0, 1][len(parts) :]
    return operands[0][start:end:step] if axis in (0, -1) else None


@_rule("Add")
def _add(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    return None if operands[1] is None else _each(plus, *operands)


@_rule("Sub")
def _sub(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    return None if operands[1] is None else _each(lambda a, b: plus(a, b, -1), *operands)


@_rule("Neg")
def _neg(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    return _each(lambda a: plus({}, a, -1), operands[0])


@_rule("Mul")
def _mul(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    for one, other in (operands, operands[::-1]):
        if numbers_of(one) is not None and other is not None:
            return _each(lambda a, b: plus({}, b, a.get(ONE, 0)), one, other)
    return None


@_rule("Equal")
def _equal(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    """Where it is known: sizes are not negative."""
    if operands[1] is None:
        return None
    difference = _each(lambda a, b: plus(a, b, -1), *operands)
    known = [_is_zero(one) for one in difference.reshape(-1).tolist()]
    if None in known:
        return None
    return sums([constant(int(is_zero or 0)) for is_zero in known]).reshape(difference.shape)


def _is_zero(one: Sum) -> bool | None:
    """Whether a sum is 0; ``None`` if that depends on the sizes."""
    above = all(times > 0 for times in one.values())
    below = all(times < 0 for times in one.values())
    if one and (ONE not in one or not (above or below)):
        return None
    return not one


@_rule("Where")
def _where(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    condition, yes, no = operands
    if numbers_of(condition) is None or yes is None or no is None:
        return None
    return _each(lambda chosen, a, b: a if chosen else b, condition, yes, no)


@_rule("ConstantOfShape")
def _constant_of_shape(node: ir.Node, operands: Sequence[Any]) -> Sums | None:
    dims = numbers_of(operands[0])
    if dims is None or math.prod(dims) > MOST_ELEMENTS:
        return None
    value = node.attributes.get("value")
    filled = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    return constants(np.full(dims, filled.reshape(-1)[0]))
