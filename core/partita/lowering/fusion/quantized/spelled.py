"""DequantizeLinear that a graph spells, as OpenVINO's tools do, and what they put behind products.

Levels are converted to floats, a zero point is subtracted, and a scale multiplied.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from partita.lowering.fusion.quantized.levels import BYTES
from partita.lowering.fusion.rewriting import Rewriter
from partita.lowering.graph import Graph, Node, Value
from partita.lowering.program import Array

_FLOAT = np.dtype(np.float32)


class _Spelled(NamedTuple):
    """A value that is ``(levels - zero) * scale``.

    Attributes:
        levels: Of 8 bits.
        scale: float32, whose shape broadcasts with that of the levels.
        zero: Whole numbers in float64, likewise.
    """

    levels: Value
    scale: Array
    zero: Array


def name_dequantizations(graph: Graph) -> None:
    """``Mul(Sub(Cast(levels), zero), scale)`` becomes DequantizeLinear, in float32.

    Zero point and scale must be constants, for the whole tensor or along one axis. Levels that were
    floats in between, and constant levels that are reshaped or transposed afterwards, are found,
    too. A constant that is added to a convolution of such values becomes its bias. To be run before
    passes that look for DequantizeLinear, and before constants are folded.

    Args:
        graph: Changed in place, bodies in it too.
    """
    for node in graph.nodes:
        for body in node.graphs():
            name_dequantizations(body)
    if not any(node.op_type in ("Cast", "DequantizeLinear") for node in graph.nodes):
        return
    found: dict[Value, _Spelled] = {}
    nodes, changed = [], False
    for node in graph.nodes:
        spelled = _spelled(node, found)
        if spelled is not None and node.result is not None:
            found[node.result] = spelled
            ends = node.kind in _ENDS and not _is_whole(spelled)
            named = _named(node, spelled) if ends else None
            changed |= named is not None
            node = node if named is None else named
        nodes.append(node)
    graph.nodes = nodes
    if changed:
        graph.prune()
    _add_biases(graph, found)


_ENDS = ("Mul", "Reshape", "Transpose")
"""What may end such a spelling."""


def _spelled(node: Node, found: dict[Value, _Spelled]) -> _Spelled | None:
    """What the result of a node is, in terms of levels."""
    x = node.inputs[0] if node.inputs else None
    if x is None or node.result is None:
        return None
    before = found.get(x)
    if node.kind == "Cast":
        return _cast(x, node.result, before)
    if node.kind == "DequantizeLinear":
        scale, zero = node.inputs[1], node.input(2)
        if x.dtype not in BYTES or scale is None or scale.const is None or scale.const.size != 1:
            return None
        if scale.const.dtype != _FLOAT or (zero is not None and zero.const is None):
            return None
        points = np.zeros(()) if zero is None or zero.const is None else zero.const
        return _Spelled(x, scale.const.reshape(()), points.astype(np.float64).reshape(()))
    if before is None or node.result.dtype != _FLOAT:
        return None
    if node.kind in ("Reshape", "Transpose"):
        return _moved(node, before)
    if node.kind not in ("Sub", "Mul") or not _is_whole(before):
        return None
    number = _known(node.inputs[1])
    shape = before.levels.shape
    if number is None or shape is None or not x.shape == node.result.shape == shape:
        return None
    if node.kind == "Mul":
        return before._replace(scale=number)
    zero_array = before.zero + number.astype(np.float64)
    return before._replace(zero=zero_array) if np.all(zero_array == np.rint(zero_array)) else None


def _is_whole(spelled: _Spelled) -> bool:
    """Whether a value is whole numbers: levels less their zero point."""
    return spelled.scale.size == 1 and spelled.scale.item() == 1


def _cast(x: Value, result: Value, before: _Spelled | None) -> _Spelled | None:
    """Levels as floats, or whole floats as bytes that hold them."""
    if result.dtype == _FLOAT and before is not None and x.dtype in BYTES:
        return before
    if result.dtype == _FLOAT and x.dtype in BYTES:
        return _Spelled(x, np.ones((), np.float32), np.zeros(()))
    if result.dtype not in BYTES or before is None or not _is_whole(before):
        return None
    held, limits = np.iinfo(before.levels.dtype), np.iinfo(result.dtype)
    least, most = held.min - before.zero.max(), held.max - before.zero.min()
    return before if limits.min <= least and most <= limits.max else None


_MOST_KNOWN = 1 << 16
"""Numbers that are computed to be known: scales, zero points and biases."""
_MOST_STEPS = 8
"""Operations one behind the other that make them; each of two inputs doubles what is computed."""


def _known(value: Value | None) -> Array | None:
    """float32 numbers that are constant, or that a graph makes of few constants."""
    if value is None or value.dtype != _FLOAT or value.shape is None:
        return None
    array = _computed(value, _MOST_STEPS)
    sizes = [n for n in value.shape if isinstance(n, int)]
    if array is None or len(sizes) < len(value.shape) or math.prod(sizes) != array.size:
        return None
    return array.reshape(sizes)


def _computed(value: Value | None, steps: int) -> Array | None:
    """The numbers of a value in order; shapes that a Reshape gives are left to who asks.

    Args:
        value: The value.
        steps: Operations that may lie between constants and it.
    """
    if value is None:
        return None
    maker = value.producer
    if value.const is not None:
        few = value.const.size <= _MOST_KNOWN and value.const.dtype.kind in "fiu"
        return value.const.astype(np.float32) if few else None
    if maker is None or value.dtype != _FLOAT or not steps:
        return None
    if maker.kind in ("Cast", "Reshape"):
        array = _computed(maker.inputs[0], steps - 1)
        sizes = [n for n in value.shape or () if isinstance(n, int)]
        fits = array is not None and value.shape is not None and math.prod(sizes) == array.size
        return array.reshape(sizes) if array is not None and fits else array
    if maker.kind not in ("Sub", "Mul"):
        return None
    a, b = (_computed(x, steps - 1) for x in maker.inputs)
    if a is None or b is None or (1 not in (a.size, b.size) and a.shape != b.shape):
        return None
    return np.asarray(a - b if maker.kind == "Sub" else a * b)


def _moved(node: Node, before: _Spelled) -> _Spelled | None:
    """Constant levels of another shape, with a scale for each row, or for all."""
    levels = before.levels.const
    if levels is None:
        return None
    scale, zero = (
        np.broadcast_to(a, np.broadcast_shapes(before.scale.shape, before.zero.shape))
        for a in (before.scale, before.zero)
    )
    if node.kind == "Transpose":
        perm = node.attrs.get("perm") or (1, 0)
        if levels.ndim != 2 or list(perm) != [1, 0]:
            return None
        turned = [a.T if a.ndim == 2 else a for a in (scale, zero)]
        return _Spelled(Value.constant(np.ascontiguousarray(levels.T)), turned[0], turned[1])
    shape = None if node.result is None else node.result.shape
    if shape is None:
        return before  # another Reshape says how they lie
    sizes = [n for n in shape if isinstance(n, int)]
    if len(sizes) < len(shape) or math.prod(sizes) != levels.size:
        return None
    if scale.size > 1:
        if scale.ndim != levels.ndim or scale.size != sizes[0]:
            return None
        scaled = [axis for axis, n in enumerate(scale.shape) if n > 1]
        longer = [axis for axis, n in enumerate(levels.shape) if n > 1]
        if scaled != longer[: len(scaled)]:
            return None
        scale, zero = (a.reshape(-1, *[1] * (len(sizes) - 1)) for a in (scale, zero))
    else:
        scale, zero = scale.reshape(()), zero.reshape(())
    return _Spelled(Value.constant(levels.reshape(sizes)), scale, zero)


def _named(node: Node, spelled: _Spelled) -> Node | None:
    """DequantizeLinear in place of what ends a spelling, if scales are along one axis or one."""
    levels, dtype = spelled.levels, spelled.levels.dtype
    result = node.result
    if dtype is None or levels.shape is None or result is None or result.shape != levels.shape:
        return None
    limits = np.iinfo(dtype)
    if not (limits.min <= spelled.zero.min() and spelled.zero.max() <= limits.max):
        return None
    shape = np.broadcast_shapes(spelled.scale.shape, spelled.zero.shape)
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    if len(axes) > 1:
        return None
    attrs = {}
    if axes:
        attrs["axis"] = axes[0] + len(levels.shape) - len(shape)
    scale, zero = (
        np.broadcast_to(a, shape).reshape(-1 if axes else ()) for a in (spelled.scale, spelled.zero)
    )
    inputs = [
        levels,
        Value.constant(np.ascontiguousarray(scale)),
        Value.constant(np.asarray(zero, dtype)),
    ]
    return Node(
        "DequantizeLinear",
        inputs,
        node.outputs[:1],
        attrs,
        version=13,
        name=node.name,
        origins=node.origins,
    )


def _add_biases(graph: Graph, found: dict[Value, _Spelled]) -> None:
    """Lets convolutions of levels add constants of channels themselves."""
    rewriter = Rewriter(graph, lambda _: True, {})
    for node in graph.nodes:
        if node.kind != "Conv" or node.input(2) is not None or len(node.inputs) < 2:
            continue
        w = node.inputs[1]
        add = rewriter.only_user(node.result, "Add")
        if w is None or w.shape is None or add is None or not {*node.inputs[:2]} <= found.keys():
            continue
        first, second = add.inputs
        row = _known(second if first is node.result else first)
        due = (w.shape[0], *[1] * (len(w.shape) - 2))
        if row is None or add.result is None or row.shape not in (due, (1, *due)):
            continue
        bias = Value.constant(row.reshape(-1))
        rewriter.replace([node, add], node.like([*node.inputs[:2], bias], [add.result]))
    rewriter.finish()
